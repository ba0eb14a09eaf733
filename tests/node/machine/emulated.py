"""A machine with a whole kernel, fully emulated: it has what the user-mode kernel lacks, and is several times slower.

Pressure stall information, packet filters, two processors: what real container runtimes and kubelets want. Its network, its
disks and the way to it are those of any machine here.
"""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.node.machine import deps, image
from tests.node.machine.deps import Tools
from tests.node.machine.errors import DependencyError
from tests.node.machine.image import Disks
from tests.node.machine.network import Namespace
from tests.node.machine.vm import Machine

EMULATOR = "qemu-system-x86_64"
# Beside what every machine here has: the kernel, what makes its first disk, and somebody who keeps the clock.
MORE_PACKAGES = "linux-image-cloud-amd64,initramfs-tools,systemd-timesyncd"
MEMORY_BYTES = 6 << 30
PROCESSORS = 2
BOOT_WITHIN_S = 900.0


@dataclass(frozen=True)
class Bootable:
    """Disks of a fresh machine, and the kernel with its first disk, which no boot loader finds."""

    disks: Disks
    kernel: Path
    first_disk: Path


def build(tools: Tools, suite: str) -> Bootable:
    """Return the cached machine of a Debian suite, building it when its inputs changed."""
    if shutil.which(EMULATOR) is None:
        raise DependencyError(f"no {EMULATOR}: apt-get install qemu-system-x86")
    with deps.lock(tools.cache / f"emulated-{suite}.lock"):
        packages = f"{image.PACKAGES},{MORE_PACKAGES}"
        tarball = image.root_tarball(tools, suite, f"emulated-{suite}", packages)
        public_key = image.ssh_key(tools).with_suffix(".pub").read_text()
        inputs = (tarball.name, public_key, Path(image.__file__).read_text())
        folder = tools.cache / f"emulated-{suite}-{hashlib.sha256(''.join(inputs).encode()).hexdigest()[:12]}"
        if not folder.exists():
            for old in tools.cache.glob(f"emulated-{suite}-*"):
                shutil.rmtree(old)
            _make(tools, tarball, public_key, folder)
    return Bootable(Disks(folder / "root.img", folder / "swap.img"), folder / "vmlinuz", folder / "initrd.img")


def _make(tools: Tools, tarball: Path, public_key: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tools.cache, prefix="root.") as scratch:
        root, made = Path(scratch) / "root", Path(scratch) / "made"
        image.unpack(tarball, root)
        image.customize(root, public_key)
        made.mkdir()
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy2(next((root / "boot").glob(f"{name}-*")), made / name)
        # With a journal: power is cut here.
        image.make_disks(root, made, "metadata_csum")
        made.rename(folder)


class Emulated(Machine):
    """A Machine on the emulator; what boots is given in place of the disks."""

    boot_within_s = BOOT_WITHIN_S

    def __init__(
        self,
        tools: Tools,
        bootable: Bootable,
        folder: Path,
        mirror_port: int,
        *,
        name: str = "node",
        beside: Machine | None = None,
    ) -> None:
        super().__init__(tools, bootable.disks, folder, mirror_port, name=name, beside=beside)
        self._bootable = bootable

    def _kernel_command(self, disks: Disks, namespace: Namespace) -> list[str]:
        drives = [
            word
            for path in (disks.root, disks.swap)
            for word in ("-drive", f"file={path},format=raw,if=virtio,cache=unsafe")
        ]
        return [
            *(EMULATOR, "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", str(PROCESSORS)),
            *("-m", f"{MEMORY_BYTES >> 20}M", "-nodefaults", "-display", "none", "-serial", "stdio"),
            *("-kernel", str(self._bootable.kernel), "-initrd", str(self._bootable.first_disk)),
            *drives,
            *("-netdev", f"tap,id=net0,ifname={namespace.tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net0,mac={image.mac(namespace.address)}"),
            *("-device", "virtio-rng-pci"),
            # The emulator writes over a running kernel's code now and then, which ends it: it boots again.
            *("-append", "root=/dev/vda rw psi=1 net.ifnames=0 console=ttyS0 quiet mitigations=off panic=10"),
        ]
