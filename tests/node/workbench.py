"""`python -m tests.node.workbench`: boot the tests' dirty machine and leave it to you until you press Enter.

It prints an ssh command and an inventory; run any playbook of the project against it.
"""

import tempfile
from pathlib import Path

from tests.node import dirty
from tests.node.conftest import SUITE
from tests.node.machine import deps, image
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.story import playbooks_for


def main() -> None:
    """Boot, explain, wait."""
    tools = deps.ensure()
    disks = image.build(tools, SUITE)
    with tempfile.TemporaryDirectory(prefix="bench", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with (
            Mirror(tools, folder / "mirror") as mirror,
            Machine(tools, disks, folder / "m", mirror.port) as machine,
        ):
            dirty.prepare(machine, mirror, SUITE)
            playbooks = playbooks_for(machine, mirror)
            print(f"ssh -F {machine.ssh_config} node")
            print(f"ANSIBLE_HOST_KEY_CHECKING=false ansible-playbook -i {playbooks.inventory} site.yml")
            input("Enter ends the machine. ")


if __name__ == "__main__":
    main()
