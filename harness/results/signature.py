"""Who published a set: an archive's signature by an SSH key, beside it as ``ARCHIVE.sig``, made and checked by OpenSSH."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.errors import ResultsPathError, UsageError, VerificationError
from harness.results.files import storage_errors, sync_file, whole_file

SUFFIX = ".sig"
NAMESPACE = "gpu-sharing-harness"
"""What the signature is for: one made by the same key for something else does not pass."""
_PROGRAM = "ssh-keygen"


def signature_of(archive: Path) -> Path:
    """Where the signature of ``archive`` lies."""
    return archive.with_name(archive.name + SUFFIX)


def sign(archive: Path, key: Path) -> Path:
    """Sign ``archive`` with the private SSH key in the file ``key``, or with the agent's of that public one; returns the signature.

    Raises:
        UsageError: OpenSSH is not here, or cannot sign with that key.
        ConflictError: there is a signature already.
        StorageError: a file cannot be read or written.
    """
    done = _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, archive=archive)
    if done.returncode:
        raise UsageError(
            f"{archive} is there, but {key} did not sign it: {_said(done)}.",
            advice=f"ssh-keygen -Y sign -f KEY -n {NAMESPACE} {archive}",
        )
    with whole_file(signature_of(archive)) as partial:
        partial.write_bytes(done.stdout)
        sync_file(partial)
    return signature_of(archive)


def signer_of(archive: Path, signers: Path) -> str:
    """Whoever of ``signers`` (a file in the form of OpenSSH's ALLOWED SIGNERS) signed ``archive``, by the name that stands there.

    Raises:
        ResultsPathError: ``archive`` is no file; a folder has no signature.
        UsageError: OpenSSH is not here, or there is no file ``signers``.
        VerificationError: it has no signature, or none of theirs.
    """
    if not archive.is_file():
        raise ResultsPathError(
            f"{archive} is not an archive, and only those are signed.", advice="See harness publish."
        )
    if not signers.is_file():
        raise UsageError(
            f"there is no file {signers}.", advice='A line of it: NAME ssh-ed25519 AAAA... (see "man ssh-keygen").'
        )
    signature = signature_of(archive)
    if not signature.is_file():
        raise VerificationError(
            f"{archive} is not signed: there is no {signature}.", advice="Fetch it from where the archive is."
        )
    found = _ssh_keygen("find-principals", "-s", str(signature), "-f", str(signers))
    names = found.stdout.decode(errors="replace").split()
    if found.returncode or not names:
        raise VerificationError(
            f"{signature} is by none of those in {signers}: {_said(found)}.",
            advice="Ask its publisher which key is theirs, by another way than the archive's.",
        )
    options = ("-f", str(signers), "-I", names[0], "-n", NAMESPACE, "-s", str(signature))
    checked = _ssh_keygen("verify", *options, archive=archive)
    if checked.returncode:
        raise VerificationError(
            f"{archive} is not what {names[0]} signed: {_said(checked)}.",
            advice="Fetch the archive and its signature again.",
        )
    return names[0]


def _ssh_keygen(*arguments: str, archive: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [_PROGRAM, "-Y", *arguments]
    try:
        if archive is None:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        with storage_errors(archive, "read"), archive.open("rb") as content:
            return subprocess.run(command, stdin=content, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(f"{_PROGRAM} is not here.", advice="apt-get install openssh-client (8.9 or newer)") from error


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    return lines[-1].rstrip(".") if lines else f"it ended with {done.returncode}"
