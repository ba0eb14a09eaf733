"""The disk of a fresh server: Debian packages into a tar (slow, cached), then into an ext4 file (no loop mounts).

Both are cached by the hash of everything that goes into them, the text of this file and of what it puts there included.
"""

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import ansible.module_utils
import ansible.release

from tests.node.machine import deps
from tests.node.machine.deps import Tools
from tests.node.machine.errors import MachineError
from tests.support.module_python import KEPT_BYTECODE, WARM_SERVER, warm_client

# What a minimal cloud server has: no build tools, no container tools, no python beyond what apt needs.
PACKAGES = (
    "apt,apt-utils,ca-certificates,curl,dbus,e2fsprogs,gpg,gpgv,iproute2,iputils-ping,kmod,less,libpam-systemd,"
    "logrotate,mount,openssh-server,openssl,procps,python3,python3-apt,python3-yaml,sudo,systemd,systemd-sysv,udev,zstd"
)
# Sparse: a machine large enough for the checks of the preflight, of which half a gigabyte is really there.
ROOT_BYTES = 24 << 30
SWAP_PARTITION_BYTES = 256 << 20
SWAP_FILE_BYTES = 16 << 20

# A machine, and one that stands beside it on the same network. The image serves for both: a network card that ends in
# the address's last part (:15, :16) has that address.
ADDRESSES = ("10.0.2.15", "10.0.2.16")
GATEWAY = "10.0.2.2"  # the host's loopback, as the guest sees it
HOSTNAME = "fresh"
USER = "ops"
# What the tests' Ansible takes for Python: its modules start there in half the time. The plain one is there as well.
WARM_PYTHON = "/usr/lib/warm_python/python3"
WARM_SERVER_THERE = str(Path(WARM_PYTHON).with_name(WARM_SERVER.name))
PLAIN_PYTHON = "/usr/bin/python3"

NETWORK = f"""\
[Match]
MACAddress={{mac}}
[Network]
Address={{address}}/24
Gateway={GATEWAY}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
# Timers that would wake up in the middle of a test and hold the apt lock or the CPU; the user's own service manager,
# which every log-in would start and every log-out end, half a second each, for nobody.
MASKED_UNITS = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_reap.service",
    "e2scrub_all.timer",
    "fstrim.timer",
    "dpkg-db-backup.timer",
    "systemd-networkd-wait-online.service",
    "man-db.timer",
    "logrotate.timer",
    "systemd-journal-flush.service",
    "user@.service",
]
# Swap three times over, written three ways, with the leftovers of someone who "turned it off" before, and lines that
# are none of anybody's business.
FSTAB = """\
# /etc/fstab: static file system information.
#
# <file system>\t<mount point>   <type>  <options>       <dump>  <pass>
LABEL=root / ext4 errors=remount-ro 0 1
LABEL=swap none swap sw 0 0
/swapfile\tnone\tswap\tsw\t0\t0
/swapfile none swap sw 0 0
#/swapfile none swap sw 0 0
#/swapfile none swap sw 0 0
LABEL=swap   none   swap   sw   0 0

tmpfs  /srv/scratch  tmpfs  size=16m,nodev   0 0   # not swap, though swap is mentioned
"""
# Sorts after any name that a role would choose, so it wins at boot unless somebody thinks of it.
OLD_SYSCTL_PATH = "etc/sysctl.d/zzz-hardening.conf"
OLD_SYSCTL = """\
# written by a hardening guide years ago
net.ipv4.ip_forward = 0
net.ipv4.conf.all.accept_redirects = 0
vm.swappiness=60
"""


@dataclass(frozen=True)
class Disks:
    """The two block devices of a machine."""

    root: Path
    swap: Path

    def copy_to(self, folder: Path) -> "Disks":
        """Copy both, holes kept, into a folder that is made; shared blocks where the file system can."""
        folder.mkdir(parents=True, exist_ok=True)
        for source in (self.root, self.swap):
            subprocess.run(["cp", "--sparse=auto", "--reflink=auto", source, folder / source.name], check=True)
        return Disks(folder / self.root.name, folder / self.swap.name)


def build(tools: Tools, suite: str = "bookworm") -> Disks:
    """Return the cached disks of a fresh machine of a Debian suite, building them when their inputs changed."""
    with deps.lock(tools.cache / f"image-{suite}.lock"):
        key = ssh_key(tools)
        tarball = root_tarball(tools, suite, suite, PACKAGES)
        kernels = ",".join(sorted(path.name for path in tools.modules.iterdir()))
        texts = (path.read_text() for path in (key.with_suffix(".pub"), Path(__file__), KEPT_BYTECODE, WARM_SERVER))
        inputs = (tarball.name, kernels, ansible.release.__version__, _warm_client(), *texts)
        folder = tools.cache / f"image-{suite}-{_digest(*inputs)}"
        disks = Disks(folder / "root.img", folder / "swap.img")
        if not folder.exists():
            for old in tools.cache.glob(f"image-{suite}-*"):
                shutil.rmtree(old)
            _make_disks(tools, tarball, folder)
    return disks


def mac(address: str) -> str:
    """Hardware address of the network card that has this address."""
    return f"02:00:00:00:00:{address.rpartition('.')[2]}"


def ssh_key(tools: Tools) -> Path:
    """Return the private key that every image of this cache lets in."""
    key = tools.cache / "id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "node-test", "-f", key], check=True)
    return key


def _digest(*inputs: str) -> str:
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:12]


def root_tarball(tools: Tools, suite: str, name: str, packages: str) -> Path:
    """Return the cached packages of a suite, unpacked and configured; name: which of several such roots."""
    tarball = tools.cache / f"root-{name}-{_digest(suite, packages)}.tar"
    if tarball.exists():
        return tarball
    partial = tarball.with_suffix(".new.tar")
    sources = [
        f"deb {tools.debian_mirror} {suite} main",
        f"deb {tools.debian_mirror} {suite}-updates main",
        f"deb {tools.security_mirror} {suite}-security main",
    ]
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale")]
    command = [
        *("mmdebstrap", "--variant=minbase", "--mode=root", "--format=tar", f"--include={packages}"),
        *("--dpkgopt=force-unsafe-io", '--aptopt=Acquire::Languages "none"', *excluded),
        *(suite, str(partial), *sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"mmdebstrap of {suite} failed: {done.stderr.strip()[-800:]}")
    for old in tools.cache.glob(f"root-{name}-*.tar"):
        if old != partial:
            old.unlink()
    return partial.rename(tarball)


def _make_disks(tools: Tools, tarball: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tools.cache, prefix="root.") as scratch:
        root = Path(scratch) / "root"
        unpack(tarball, root)
        _install_modules(tools.modules, root)
        customize(root, ssh_key(tools).with_suffix(".pub").read_text())
        made = Path(scratch) / "disks"
        made.mkdir()
        make_disks(root, made, "^has_journal,^metadata_csum")
        made.rename(folder)


def unpack(tarball: Path, root: Path) -> None:
    """Lay the packages out below a folder, which is made."""
    root.mkdir(mode=0o755)
    _run("tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-xf", tarball, "-C", root)


def make_disks(root: Path, folder: Path, features: str) -> None:
    """Write both disks into a folder, one with the tree below root; features: of its ext4, as mke2fs takes them."""
    _sparse_file(folder / "root.img", ROOT_BYTES)
    extended = "lazy_itable_init=1,root_owner=0:0"
    _run("mke2fs", "-q", "-t", "ext4", "-O", features, "-E", extended, "-L", "root", "-d", root, folder / "root.img")
    _sparse_file(folder / "swap.img", SWAP_PARTITION_BYTES)
    _run("mkswap", "-q", "-L", "swap", folder / "swap.img")


def _sparse_file(path: Path, size_bytes: int) -> None:
    with path.open("wb") as handle:
        handle.truncate(size_bytes)


def _install_modules(modules: Path, root: Path) -> None:
    for source in modules.iterdir():
        target = root / "usr/lib/modules" / source.name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("build", "source"))
        _run("chroot", root, "depmod", source.name)


def customize(root: Path, public_key: str) -> None:
    """Turn the bare tree into the server: accounts, network, and the mess that earlier owners left."""
    _write(root / "etc/hostname", f"{HOSTNAME}\n")
    _write(root / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {HOSTNAME}\n")
    for address in ADDRESSES:
        name = f"etc/systemd/network/10-wired-{address.rpartition('.')[2]}.network"
        _write(root / name, NETWORK.format(mac=mac(address), address=address))
    _write(root / "etc/ssh/sshd_config.d/10-test.conf", "UseDNS no\nGSSAPIAuthentication no\n")
    _write(root / "etc/apt/apt.conf.d/99-test", 'Acquire::Languages "none";\nAcquire::Check-Valid-Until "false";\n')
    _write(root / "root/.ssh/authorized_keys", public_key)
    _run("chroot", root, "useradd", "-m", "-s", "/bin/bash", USER)
    _write(root / f"home/{USER}/.ssh/authorized_keys", public_key)
    _run("chroot", root, "chown", "-R", f"{USER}:", f"/home/{USER}/.ssh")
    _write(root / f"etc/sudoers.d/{USER}", f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    _run("chroot", root, "systemctl", "-q", "enable", "systemd-networkd", "ssh")
    _run("chroot", root, "systemctl", "-q", "mask", *MASKED_UNITS)
    _write(root / "etc/fstab", FSTAB)
    (root / "srv/scratch").mkdir()
    _write(root / OLD_SYSCTL_PATH, OLD_SYSCTL)
    # mke2fs turns zero blocks into holes, and swapon refuses a file with holes.
    (root / "swapfile").write_bytes(b"\xff" * SWAP_FILE_BYTES)
    (root / "swapfile").chmod(0o600)
    _run("mkswap", "-q", root / "swapfile")
    packages = root / "usr/lib/python3/dist-packages"
    _write(packages / KEPT_BYTECODE.name, KEPT_BYTECODE.read_text())
    _write(packages / "kept_bytecode.pth", "import kept_bytecode\n")
    _install_warm_python(root)


def _install_warm_python(root: Path) -> None:
    """Beside it what it imports of this Ansible; a module that brings another one's is run without."""
    program = root / WARM_PYTHON.lstrip("/")
    _write(program, _warm_client())
    program.chmod(0o755)
    _write(program.with_name(WARM_SERVER.name), WARM_SERVER.read_text())
    _write(program.with_name("ansible") / "__init__.py", "")
    sources = Path(ansible.module_utils.__file__).parent
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(sources, program.with_name("ansible") / "module_utils", ignore=without)
    _run("chroot", root, PLAIN_PYTHON, "-m", "compileall", "-q", str(Path(WARM_PYTHON).parent))


def _warm_client() -> str:
    return warm_client(PLAIN_PYTHON, f"{PLAIN_PYTHON} {WARM_SERVER_THERE}", "/run/warm_python")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()[-600:]}")
