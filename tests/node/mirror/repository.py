"""Signed flat apt repositories, as the upstream projects publish theirs."""

import gzip
import hashlib
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from tests.node.machine.errors import MachineError

KEY_FILE = "Release.key"


class Signer:
    """A signing key of its own, made in an empty key ring."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self._home = folder
        identity = "node test repository <node-test@localhost>"
        self._gpg("--passphrase", "", "--quick-generate-key", identity, "ed25519", "sign", "never")
        self.public_key = self._gpg("--armor", "--export")
        listing = self._gpg("--with-colons", "--list-keys")
        self.fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))

    def sign(self, release: Path) -> None:
        """Write InRelease and Release.gpg beside a Release file."""
        folder = release.parent
        self._gpg("--yes", "--clearsign", "--output", str(folder / "InRelease"), str(release))
        self._gpg("--yes", "--armor", "--detach-sign", "--output", str(folder / "Release.gpg"), str(release))

    def close(self) -> None:
        """End the agent that gpg started for this key ring."""
        subprocess.run(["gpgconf", "--homedir", self._home, "--kill", "all"], check=False, capture_output=True)

    def _gpg(self, *arguments: str) -> str:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--pinentry-mode", "loopback", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MachineError(f"gpg {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout


def write_index(folder: Path, signer: Signer, origin: str, debs: Iterable[Path]) -> None:
    """Index and sign the .deb files that lie in a folder; publish the key beside the index."""
    packages = "\n".join(_stanza(deb, folder) for deb in sorted(debs)).encode()
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    release = folder / "Release"
    release.write_text(_release(folder, origin))
    signer.sign(release)
    (folder / KEY_FILE).write_text(signer.public_key)


def _stanza(deb: Path, folder: Path) -> str:
    control = subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, text=True, check=True).stdout
    content = deb.read_bytes()
    lines = [
        control.rstrip("\n"),
        f"Filename: {deb.relative_to(folder)}",
        f"Size: {len(content)}",
        f"SHA256: {hashlib.sha256(content).hexdigest()}",
    ]
    return "\n".join(lines) + "\n"


def _release(folder: Path, origin: str) -> str:
    lines = [f"Origin: {origin}", f"Label: {origin}", f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S UTC}", "SHA256:"]
    for name in ("Packages", "Packages.gz"):
        content = (folder / name).read_bytes()
        lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
    return "\n".join(lines) + "\n"
