"""The mess a machine starts with, as far as it cannot lie in the image: it needs the mirror's own packages."""

from tests.node.machine import image
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror

BRIDGE = "/etc/cni/net.d/10-crio-bridge.conflist"
LOST_PROGRAM = "/usr/bin/crio"


def prepare(machine: Machine, mirror: Mirror, suite: str = "bookworm") -> None:
    """Point apt at the mirror, then half-install CRI-O: dpkg calls it installed, its program is gone."""
    machine.ssh("rm -f /etc/apt/sources.list.d/*")
    machine.write("/etc/apt/sources.list", mirror.debian_sources(suite))
    version = mirror.row()["crio"]
    machine.write_bytes("/root/cri-o.deb", mirror.deb("cri-o", version).read_bytes())
    machine.ssh("dpkg -i /root/cri-o.deb")
    machine.ssh(f"rm -r /root/cri-o.deb {LOST_PROGRAM} && cp {BRIDGE}.disabled {BRIDGE}")
    state = machine.output("dpkg-query -W -f '${db:Status-Status}' cri-o")
    if state != "installed" or machine.ssh(f"test -e {LOST_PROGRAM}", check=False).returncode == 0:
        raise AssertionError("the machine does not start dirty: cri-o is whole")
    machine.ssh(f"test -e /swapfile && grep -q swapfile /etc/fstab && test -e /{image.OLD_SYSCTL_PATH}")
