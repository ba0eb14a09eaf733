"""A published set: one campaign as one archive (``.tar.xz``), read wherever the campaign's folder is.

Regular files alone, in an order that follows from their names, without owner or time: the same campaign gives the same bytes. An
archive comes from somebody else, so that everything that is not like this is refused.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from harness.errors import HarnessError, ResultsPathError
from harness.results.files import storage_errors, sync_file, whole_file

SUFFIX = ".tar.xz"
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "dict_size": 16 << 20},)
"""Bytes of text and of logs stand at no multiple of four; a larger dictionary would take more memory than it saves bytes."""
_MEMORY_BYTES = 256 << 20
_PIECE_BYTES = 1 << 18
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that an archive may hold."""

    files: int = 200_000
    bytes: int = 16 << 30


def pack(files: dict[str, Path], out: Path, *, bounds: Bounds | None = None) -> None:
    """Make the archive ``out``, a new file, of ``files`` by their names in it, which all begin with the campaign's.

    Raises:
        ResultsPathError: they are more than an archive may hold, or a name is too long.
        ConflictError: ``out`` exists.
        StorageError: a file cannot be read or written.
    """
    _refuse_more(bounds or Bounds(), len(files), sum(path.stat().st_size for path in files.values()), out)
    with whole_file(out) as partial:
        with (
            lzma.open(partial, "wb", format=lzma.FORMAT_XZ, filters=_FILTERS) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for name, path in sorted(files.items(), key=_beside_its_like):
                member = tarfile.TarInfo(name)
                with path.open("rb") as content:
                    member.size = path.stat().st_size
                    try:
                        tar.addfile(member, content)
                    except ValueError as error:
                        raise ResultsPathError(
                            f"{path} cannot be archived: {error}.", advice="Pass the folder on as it is."
                        ) from error
        sync_file(partial)


def _beside_its_like(file: tuple[str, Path]) -> tuple[str, str, str]:
    """Order of the members: by ending, then by name without numbers, as files of one kind repeat each other."""
    name = PurePosixPath(file[0])
    return name.suffix, _NUMBER.sub("", name.name), file[0]


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The folder of a campaign: ``path`` itself; or, of an archive, where it is unpacked as long as the block lasts.

    Raises ResultsPathError where there is nothing, and for a file that is no archive of ours, StorageError. Errors of the block name the archive.
    """
    if not is_archive(path):
        with storage_errors(path, "read"):
            there = path.exists()
        if not there:
            raise ResultsPathError(
                f"there is no file and no folder {path}.",
                advice="Give the folder of a campaign, or an archive of `harness publish`.",
            )
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="harness-") as temporary:
        folder = unpack(path, Path(temporary))
        try:
            yield folder
        except HarnessError as error:
            error.message = error.message.replace(str(folder), str(path))
            error.advice = error.advice.replace(str(folder), str(path))
            raise


def is_archive(path: Path) -> bool:
    """Whether there is a file, which is an archive or nothing of ours. Raises StorageError."""
    with storage_errors(path, "read"):
        return path.is_file()


def unpack(archive: Path, into: Path, *, bounds: Bounds | None = None) -> Path:
    """Write what an archive holds below ``into``, a folder of ours; returns the campaign's folder.

    Raises:
        ResultsPathError: it is damaged, or holds anything but regular files below one folder, or too much.
        StorageError: a file cannot be read or written.
    """
    into = into / archive.resolve().parent.name  # where two campaigns have one name, they are told apart by this
    try:
        with storage_errors(archive, "unpack"), archive.open("rb") as raw:
            stream = _Unpacking(raw)
            names = _write_below(into, stream, bounds or Bounds(), archive)
    except lzma.LZMAError as error:
        raise _refused(archive, "it is damaged, or no .tar.xz at all") from error
    except (EOFError, _UnlikeError) as error:
        raise _refused(archive, f"it is damaged or something else: {error}") from error
    except tarfile.TarError as error:
        raise _refused(archive, "it is damaged or something else: there is no whole tar in it") from error
    tops = {name.partition("/")[0] for name in names}
    if len(tops) != 1:
        raise _refused(archive, f"{len(tops)} folders where there is one campaign")
    return into / tops.pop()


class _UnlikeError(tarfile.ReadError):
    """A member that no archive of ours has."""


class _RegularFile(tarfile.TarInfo):
    """A member; whatever is no regular file is refused at its header, before tarfile acts on it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.size < 0:
            raise _UnlikeError(f"{member.name!r} is no regular file")
        if not _is_below(member.name):
            raise _UnlikeError(f"{member.name!r} is no name of a file in a campaign's folder")
        return member


def _is_below(name: str) -> bool:
    """Whether a member lies below the archive's one folder, by a name that a terminal can show."""
    parts = name.split("/")
    return len(parts) > 1 and not {"", ".", ".."} & set(parts) and name.isprintable()


class _Unpacking(io.RawIOBase):
    """The content of an xz file, in pieces and in bounded memory."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__()
        self._raw = raw
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES)

    def read(self, size: int = _PIECE_BYTES, /) -> bytes:
        """At most ``size`` bytes; none at the end. Raises LZMAError, EOFError and OSError."""
        while not self._xz.eof:
            fresh = self._raw.read(_PIECE_BYTES) if self._xz.needs_input else b""
            if self._xz.needs_input and not fresh:
                raise EOFError("it ends in the middle")
            if data := self._xz.decompress(fresh, size):
                return data
        if self._xz.unused_data or self._raw.read(1):
            raise EOFError("something follows its end")
        return b""


def _write_below(into: Path, stream: _Unpacking, bounds: Bounds, archive: Path) -> list[str]:
    names: list[str] = []
    total = 0
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_RegularFile) as tar:
        for member in tar:
            names.append(member.name)
            total += member.size
            _refuse_more(bounds, len(names), total, archive)
            content = tar.extractfile(member)
            assert content is not None  # noqa: S101 - a regular file has content
            target = into / member.name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
            except (FileExistsError, NotADirectoryError) as error:
                raise _refused(archive, f"{member.name} is there twice") from error
        _read_to_end(stream)
    return names


def _read_to_end(stream: _Unpacking) -> None:
    """To where the checksum is; a tar ends in zeros. Raises EOFError when anything else follows."""
    padding = 0
    while rest := stream.read():
        padding += len(rest)
        if rest.strip(b"\0") or padding > 2 * tarfile.RECORDSIZE:
            raise EOFError("something follows its end")


def _refuse_more(bounds: Bounds, files: int, size_bytes: int, path: Path) -> None:
    if files > bounds.files or size_bytes > bounds.bytes:
        raise ResultsPathError(
            f"{path} holds more than the {bounds.files} files or {bounds.bytes / 2**30:g} GiB that an archive may hold.",
            advice="Results of that size are passed on as a folder.",
        )


def _refused(archive: Path, why: str) -> ResultsPathError:
    return ResultsPathError(
        f"{archive} is no published set of this harness: {why}.",
        advice="Fetch it again, or give the folder of a campaign; `harness publish` makes such archives.",
    )
