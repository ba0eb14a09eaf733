"""The host side of the booted machine: programs from Debian packages, the kernel, and the mirror the host uses.

`ensure()` is the one entry point. As root it installs what is missing with apt-get and unpacks the kernel into the
cache folder; it is idempotent and safe to call from several processes at once.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.node.machine.errors import DependencyError

# program -> Debian package that brings it
HOST_PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "mkswap": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setarch": "util-linux",
    "taskset": "util-linux",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "slirp4netns": "slirp4netns",
    "socat": "socat",
    "patchelf": "patchelf",
    "gpg": "gnupg",
    "dpkg-deb": "dpkg",
}
# 7.x has the fast seccomp mode; it needs a newer libc than the host's, which is unpacked beside it.
KERNEL_SUITE = os.environ.get("NODE_TEST_KERNEL_SUITE", "forky")
CACHE_VARIABLE = "NODE_TEST_CACHE"
MIRROR_VARIABLE = "NODE_TEST_DEBIAN_MIRROR"


@dataclass(frozen=True)
class Tools:
    """Where everything is that a machine needs.

    kernel: the user-mode kernel, runnable as it stands. modules: folder holding one folder per kernel release.
    debian_mirror: archive root URL the host's apt uses, without a trailing slash. cache: folder for big files.
    """

    kernel: Path
    modules: Path
    debian_mirror: str
    cache: Path

    @property
    def security_mirror(self) -> str:
        """The security archive that belongs to the mirror, by Debian's naming."""
        return f"{self.debian_mirror}-security"


def cache_folder() -> Path:
    """Outside the checkout, so that a fresh checkout finds the image again."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpu-sharing-harness" / "node"
    return Path(os.environ.get(CACHE_VARIABLE, default)).absolute()


def ensure() -> Tools:
    """Install and unpack whatever is missing; raise DependencyError with the reason when that is impossible."""
    if os.geteuid() != 0:
        raise DependencyError("booting a machine needs root (namespaces, a tap device, mmdebstrap): run as root")
    if not Path("/dev/net/tun").exists():
        raise DependencyError("no /dev/net/tun: the machine has no network without it; load the tun module")
    if shutil.which("apt-get") is None:
        raise DependencyError("no apt-get: the machine is made from Debian packages; run on Debian or Ubuntu")
    mirror = host_debian_mirror()
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with lock(cache / "deps.lock"):
        _install_programs()
        kernel_root = _unpack_kernel(cache, mirror)
    return Tools(kernel_root / "linux.uml", kernel_root / "usr/lib/uml/modules", mirror, cache)


def host_debian_mirror() -> str:
    """The Debian archive that this host's apt is configured for (any sources format), or the variable's."""
    if chosen := os.environ.get(MIRROR_VARIABLE):
        return chosen.rstrip("/")
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in listing.splitlines():
        uri, _, component = line.partition(" ")
        if component == "main" and uri.rstrip("/").endswith("/debian"):
            return uri.rstrip("/")
    raise DependencyError(f"apt here is configured for no Debian archive: set {MIRROR_VARIABLE} to one")


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file for the length of the block."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def remove_abandoned(folder: Path) -> None:
    """Remove every folder in it whose `lock` nobody holds any more: a killed session cleans up nothing."""
    for path in folder.iterdir():
        with (path / "lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(path, ignore_errors=True)


def _install_programs() -> None:
    packages = sorted({package for program, package in HOST_PROGRAMS.items() if shutil.which(program) is None})
    if not packages:
        return
    # An unrelated third-party source may fail to update: what counts is whether the packages install.
    subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
    installed = subprocess.run(
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    if installed.returncode != 0:
        reason = installed.stderr.strip()[-600:]
        raise DependencyError(f"apt-get install {' '.join(packages)} failed: {reason}")


def _unpack_kernel(cache: Path, mirror: str) -> Path:
    """Fetch kernel and libc with private apt directories (signatures checked, /etc/apt untouched)."""
    root = cache / f"kernel-{KERNEL_SUITE}"
    if (root / "linux.uml").exists():
        return root
    scratch = cache / f"kernel-{KERNEL_SUITE}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    debs = _download(scratch / "apt", mirror, KERNEL_SUITE, ["user-mode-linux", "libc6"])
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, scratch], check=True)
    shutil.rmtree(root, ignore_errors=True)
    scratch.rename(root)
    loader = next(root.rglob("ld-linux-x86-64.so.2")).resolve()
    libraries = next(root.rglob("libc.so.6")).parent
    kernel = root / "linux.uml.new"
    shutil.copy2(root / "usr/bin/linux.uml", kernel)
    subprocess.run(["patchelf", "--set-interpreter", loader, "--set-rpath", libraries, kernel], check=True)
    kernel.rename(root / "linux.uml")
    return root


def _download(work: Path, mirror: str, suite: str, packages: list[str]) -> list[Path]:
    for folder in ("lists/partial", "cache/archives/partial", "empty", "debs"):
        (work / folder).mkdir(parents=True)
    (work / "sources.list").write_text(f"deb {mirror} {suite} main\n")
    settings = {
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::PreferencesParts": work / "empty",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    (work / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    for command in (["update", "-qq"], ["download", "-qq", *packages]):
        done = subprocess.run(
            ["apt-get", *command],
            cwd=work / "debs",
            env=os.environ | {"APT_CONFIG": str(work / "apt.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = done.stderr.strip()[-600:]
            raise DependencyError(f"apt-get {command[0]} of {suite} from {mirror} failed: {reason}")
    return sorted((work / "debs").glob("*.deb"))


if __name__ == "__main__":
    ensure()
