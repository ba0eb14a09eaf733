"""The suite judges a machine that is named on the command line, and skips itself where none is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from harness.node.checks import Node
from harness.node.expected import VARIABLES, Expected
from harness.node.machine import Machine
from harness.node.runner import resolve

PROJECT = Path(__file__).parents[2]

if shutil.which("ansible-inventory") is None:  # testinfra calls it by name while it collects
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


@pytest.fixture(scope="session")
def variables(pytestconfig: pytest.Config) -> dict[str, dict[str, Any]]:
    """Host -> variables, as the roles see them."""
    inventory = pytestconfig.getoption("--ansible-inventory")
    return resolve(PROJECT, VARIABLES, inventory=Path(inventory) if inventory else None)


@pytest.fixture(scope="module")
def node(host: Host, variables: dict[str, dict[str, Any]]) -> Node:
    """The machine, and what is expected of it; a host that the inventory does not name is its only node."""
    name = getattr(host.backend, "host", None)
    known = variables.get(name) if isinstance(name, str) else None
    return Node(Machine(host), Expected.from_variables(known or next(iter(variables.values()))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --hosts there is no node to judge: this machine is none."""
    if config.getoption("--hosts"):
        return
    reason = "no node named: pytest tests/testinfra --hosts=ansible://HOST --ansible-inventory=FILE"
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason=reason))
