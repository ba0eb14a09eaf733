"""One test per check of the verdict: what was expected, what was found, what to do, and the unit's journal.

Run against a machine, before and after a reboot:
``pytest tests/testinfra --hosts=ansible://HOST --ansible-inventory=FILE`` (with ``--sudo`` where Ansible logs in as an
ordinary user); ``-k swap`` takes one area alone.
"""

from __future__ import annotations

import pytest

from harness.node.checks import Node, NodeCheck, registered
from harness.node.checks.registry import NotApplicableError
from harness.node.verify import run_check


@pytest.mark.parametrize("check", registered(), ids=lambda check: check.name)
def test_node(node: Node, check: NodeCheck) -> None:
    if node.expected.kind not in check.kinds:
        pytest.skip(f"this node is a {node.expected.kind}")
    try:
        result = run_check(check, node)
    except NotApplicableError as reason:
        pytest.skip(str(reason))
    assert result.ok, f"\n{result}"
