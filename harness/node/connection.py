"""Reach a node of the inventory the way the playbooks reach it: locally or over one ssh connection, as root."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.node.machine import TestinfraMachine

if TYPE_CHECKING:
    from testinfra.host import Host


@contextmanager
def connect(project: Path, host: str, inventory: Path | None = None) -> Iterator[TestinfraMachine]:
    """A machine of the inventory, as root, reached the way the playbooks reach it.

    Raises UsageError where the host is unknown or root's rights cannot be had, NodeUnreachableError where it does
    not answer.
    """
    with _ansible_environment(project), tempfile.TemporaryDirectory(prefix="harness-ssh-") as sockets:
        native = _native_host(host, inventory)
        _share_connection(native, sockets)
        if TestinfraMachine(native).command("id", "-u").stdout.strip() != "0":
            native.backend.sudo = True
            if TestinfraMachine(native).command("id", "-u").stdout.strip() != "0":
                raise UsageError(
                    f"Judging {host} needs root's rights, and sudo there does not give them without a password.",
                    advice="Log in as root, or allow this user sudo without a password.",
                )
        try:
            yield TestinfraMachine(native)
        finally:
            _end_connection(sockets)


def _native_host(host: str, inventory: Path | None) -> Host:
    """The connection that testinfra makes to a host of Ansible's inventory."""
    from testinfra.host import Host
    from testinfra.utils.ansible_runner import AnsibleRunner

    shared = AnsibleRunner(str(inventory.resolve()) if inventory else None).get_host(host)
    if shared is None:
        raise UsageError(
            f"The inventory reaches {host} in a way that the checks cannot use.",
            advice="Use ansible_connection ssh or local.",
        )
    # testinfra keeps one connection per address for the life of the process: what is set on it would stay.
    backend = copy.copy(shared.backend)
    native = Host(backend)
    backend.set_host(native)
    return native


def _share_connection(native: Host, sockets: str) -> None:
    """One ssh connection for all commands: each of its own would take most of the time there is."""
    arguments = getattr(native.backend, "ssh_extra_args", None)
    if arguments is None:  # no ssh: the machine we are on
        return
    if not native.backend.host.password:
        arguments += " -o BatchMode=yes"  # a question nobody sees would be waited for
    if "controlpath" not in arguments.lower():
        arguments += f" -o ControlMaster=auto -o ControlPersist=60s -o ControlPath={sockets}/%C"
    native.backend.ssh_extra_args = arguments


def _end_connection(sockets: str) -> None:
    for socket in Path(sockets).iterdir():
        subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "node"], capture_output=True, check=False)


@contextmanager
def _ansible_environment(project: Path) -> Iterator[None]:
    """The environment in which testinfra finds `ansible-inventory` and our `ansible.cfg`."""
    wanted = {
        "ANSIBLE_CONFIG": str(project / "ansible.cfg"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
