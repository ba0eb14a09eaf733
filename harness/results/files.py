"""Files that are whole or absent, whatever kills the writer, and disk errors that say what to do."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import ConflictError, ResultsPathError, StorageError

_CHUNK_BYTES = 1 << 20
_NOT_SUPPORTED = (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
_DOCUMENT_BYTES = 64 << 20
"""More than any manifest or journal of ours; a larger file is not read into memory."""
_ADVICE = {
    errno.ENOSPC: "Free some space on that disk, then run the command again (a campaign: harness resume). Everything written so far is kept.",
    errno.EDQUOT: "The disk quota is used up: free some space, then run the command again (a campaign: harness resume). Everything written so far is kept.",
    errno.EFBIG: "The file size limit of this process is reached: raise it (ulimit -f), then run the command again (a campaign: harness resume).",
    errno.EACCES: "Give yourself write access to that folder, or choose another one.",
    errno.EPERM: "Give yourself write access to that folder, or choose another one.",
    errno.EROFS: "That disk is mounted read-only: choose another folder.",
    errno.ENOENT: "Something removed the folder in mid-run: leave the results folder alone and resume.",
    errno.ENAMETOOLONG: "Choose a folder with a shorter path, or a shorter name for the campaign.",
    errno.EMFILE: "This process may not open more files: raise the limit (ulimit -n), then run the command again (a campaign: harness resume).",
    errno.ENOLCK: "That file system has no locks: choose a folder on a local disk.",
    errno.ENOTDIR: "A file is in the way of a folder: choose another folder.",
}
_READING = {
    errno.EACCES: "Give yourself the right to read it, or ask its owner for a copy.",
    errno.EPERM: "Give yourself the right to read it, or ask its owner for a copy.",
    errno.ENOENT: "Give the path of something that is there.",
    errno.ENOTDIR: "Give the path of something that is there.",
    errno.ENAMETOOLONG: "No file can have so long a name: check what was given.",
    errno.ELOOP: "Links lead in a circle there: give the file itself.",
}


def storage_error(error: OSError, path: Path, doing: str = "write") -> StorageError:
    """The error that says which path could not be written or read, why, and what to do."""
    why = error.strerror or str(error)
    advice = _ADVICE.get(
        error.errno or 0,
        "Check the disk (dmesg, df -h), then run the command again (a campaign: harness resume). What was written is kept.",
    )
    if doing == "read":
        advice = _READING.get(error.errno or 0, advice)
    elif doing != "write" and isinstance(error, PermissionError):
        advice = "Give yourself the right to it, or work on a copy of your own."
    return StorageError(f"Cannot {doing} {path}: {why}.", advice=advice)


@contextmanager
def storage_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError about ``path``."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, doing) from error


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:  # some network and FUSE file systems sync files alone
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` survive a power cut."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however often the system takes only a part. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def atomic_write(path: Path, data: bytes | str, *, replace: bool = False) -> None:
    """Write a file so that it is there whole or not at all, even under SIGKILL or a power cut.

    Raises ConflictError where it exists and ``replace`` is not set, StorageError; an old file stays as it was.
    """
    with whole_file(path, replace=replace) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        sync_file(temporary)


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary name beside ``path``: what the block writes and syncs there appears at ``path`` when it ends well.

    Raises as ``atomic_write`` does.
    """
    with storage_errors(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            yield temporary
            if replace:
                temporary.replace(path)
            else:
                _publish_new(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def _publish_new(temporary: Path, path: Path) -> None:
    # A hard link fails when the name is taken; a rename would overwrite it in silence.
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))  # no hard links there: take the name, then fill it
            temporary.replace(path)
    except FileExistsError as error:
        raise ConflictError(
            f"{path} exists already and is never overwritten.",
            advice="Move it away, or give another name.",
        ) from error


def inside(folder: Path, name: str) -> Path:
    """The path of the file that a manifest calls ``name``; it need not exist.

    Raises ResultsPathError when it is not below ``folder``, be it by a link, or is a pipe, a device or a folder.
    """
    path = folder / name
    try:
        below = _is_plain(folder, name) or path.resolve().is_relative_to(folder.resolve())
        regular = path.is_file() or not path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name with NUL, a loop of links
        raise ResultsPathError(f"{name!r} names no file in {folder}: {error}.") from error
    if not below or not regular:
        why = "is not a regular file" if below else "does not lie in that folder"
        raise ResultsPathError(f"{name!r} in {folder} {why}, and is not opened.")
    return path


def _is_plain(folder: Path, name: str) -> bool:
    """Whether the way down from ``folder`` to ``name`` has no link and no way up, which is seen sooner than where it ends."""
    place = str(folder)
    for part in name.split("/"):
        place = f"{place}/{part}"
        if part in {"", ".."} or "\0" in part or os.path.islink(place):  # noqa: PTH114 - a Path takes as long as to resolve it
            return False
    return True


def read_document(path: Path) -> bytes:
    """The content of a text file of ours. Raises ResultsPathError for what is no such file, and StorageError."""
    with storage_errors(path, "read"):
        if not path.is_file() or path.stat().st_size > _DOCUMENT_BYTES:
            raise ResultsPathError(
                f"{path} is not a regular file of at most {_DOCUMENT_BYTES >> 20} MiB.",
                advice="Restore it from a backup.",
            )
        return path.read_bytes()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours. Raises ResultsPathError and StorageError."""
    try:
        content = json.loads(read_document(path))
    except (ValueError, RecursionError) as error:
        line = f" from line {error.lineno} on" if isinstance(error, json.JSONDecodeError) else ""
        raise ResultsPathError(
            f"{path} is damaged: it is not JSON{line}.", advice="Restore it from a backup."
        ) from error
    if not isinstance(content, dict):
        raise ResultsPathError(f"{path} is damaged: an object is expected.", advice="Restore it from a backup.")
    return content


def sha256_of(path: Path) -> str:
    """Hash of a file's content in hexadecimal, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def count_lines(path: Path) -> int:
    """Whole lines in a text file, read piece by piece."""
    lines = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            lines += chunk.count(b"\n")
    return lines
