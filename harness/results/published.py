"""A published set: one campaign as one archive (``.tar.xz``), read wherever the campaign's folder is.

Regular files alone, in an order that follows from their names, without owner or time: the same campaign gives the same bytes. An
archive comes from somebody else, so that everything that is not like this is refused. The experiments in it may be condensed.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import BinaryIO, Self

import numpy as np

from harness.errors import HarnessError, ResultsPathError, UsageError
from harness.results import requests
from harness.results.files import read_object, storage_errors, sync_file, whole_file
from harness.results.layout import LATENCIES, MANIFEST, RAW_LATENCIES, REPLICAS, REQUESTS, SAMPLES, SERVER_LOG, SERVICES
from harness.results.manifest import SCHEMA_VERSION, Condensed, FileEntry, content_digest, read_manifest
from harness.results.packed import OLD_SUFFIX, Nanoseconds, pack_columns
from harness.traffic.records import NONE

SUFFIX = ".tar.xz"
_FILTERS = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "dict_size": 16 << 20},)
"""Bytes of text and of logs stand at no multiple of four; a larger dictionary would take more memory than it saves bytes."""
_MEMORY_BYTES = 256 << 20
_PIECE_BYTES = 1 << 18
MOST_FILES, MOST_BYTES = 200_000, 16 << 30
"""What an archive may hold."""
_NUMBER = re.compile(r"\d+")
_LOGS = {RAW_LATENCIES: requests.LATENCY, SERVICES: requests.LATENCY, requests.GAPS_LOG: requests.GAP}
"""Logs of times beside the table of requests, by the names under which replicas write them."""


def pack(files: dict[str, Path], out: Path) -> None:
    """Make the archive ``out``, a new file, of ``files`` by their names in it, which all begin with the campaign's.

    Raises ResultsPathError where they are more than an archive may hold, or a name is too long; ConflictError, StorageError.
    """
    _refuse_more(len(files), sum(path.stat().st_size for path in files.values()), out)
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


def unpack(archive: Path, into: Path) -> Path:
    """Write what an archive holds below ``into``, a folder of ours; returns the campaign's folder.

    Raises ResultsPathError where it is damaged, or holds anything but regular files below one folder, or too much; StorageError.
    """
    into = into / archive.resolve().parent.name  # where two campaigns have one name, they are told apart by this
    try:
        with storage_errors(archive, "unpack"), archive.open("rb") as raw:
            stream = _Unpacking(raw)
            names = _write_below(into, stream, archive)
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        why = str(error) if isinstance(error, EOFError | _UnlikeError) else "there is no whole .tar.xz in it"
        raise _refused(archive, f"it is damaged or something else: {why}") from error
    tops = {name.partition("/")[0] for name in names}
    if len(tops) != 1:
        raise _refused(archive, f"{len(tops)} folders where there is one campaign")
    return into / tops.pop()


class _UnlikeError(tarfile.ReadError):
    """A member that no archive of ours has."""


class _RegularFile(tarfile.TarInfo):
    """A member; whatever is not a regular file below one folder is refused at its header, before tarfile acts on it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.size < 0:
            raise _UnlikeError(f"{member.name!r} is not a regular file")
        parts = member.name.split("/")
        if len(parts) < 2 or {"", ".", ".."} & set(parts) or not member.name.isprintable():
            raise _UnlikeError(f"{member.name!r} is not the name of a file in a campaign's folder")
        return member


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


def _write_below(into: Path, stream: _Unpacking, archive: Path) -> list[str]:
    names: list[str] = []
    total = 0
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_RegularFile) as tar:
        for member in tar:
            names.append(member.name)
            total += member.size
            _refuse_more(len(names), total, archive)
            content = tar.extractfile(member)
            assert content is not None  # noqa: S101 - a regular file has content
            target = into / member.name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
            except (FileExistsError, NotADirectoryError) as error:
                raise _refused(archive, f"{member.name} is there twice") from error
        padding = 0
        while rest := stream.read():  # to where the checksum is; a tar ends in zeros
            padding += len(rest)
            if rest.strip(b"\0") or padding > 2 * tarfile.RECORDSIZE:
                raise EOFError("something follows its end")
    return names


def _refuse_more(files: int, size_bytes: int, path: Path) -> None:
    if files > MOST_FILES or size_bytes > MOST_BYTES:
        raise ResultsPathError(
            f"{path} holds more than the {MOST_FILES} files or {MOST_BYTES / 2**30:g} GiB that an archive may hold.",
            advice="Results of that size are passed on as a folder.",
        )


def _refused(archive: Path, why: str) -> ResultsPathError:
    if archive.suffix in {".yaml", ".yml"}:
        return ResultsPathError(
            f"{archive} is a campaign file, and results are expected here.",
            advice=f"harness run {quote(str(archive))}, and then give the folder of that campaign below results/.",
        )
    return ResultsPathError(
        f"{archive} is not a harness archive, or is damaged: {why}.",
        advice="Fetch it again, or give the folder of a campaign; `harness publish` makes such archives.",
    )


def condense(folder: Path, into: Path, resolution_ns: int) -> dict[str, Path]:
    """Write what takes the place of an experiment's files below ``into``, a new folder; returns all its files by name.

    The table of requests and logs of times are packed. ``samples.parquet``, which is made of the CSVs, is left out, and so is
    what servers printed: no figure comes from it, and it may hold what they were asked. The manifest lists what is there, and
    keeps the hashes of what was recorded. One that is condensed already gets its logs as they are packed now.

    Raises UsageError where it was condensed before, to another resolution; ResultsPathError, StorageError.
    """
    manifest = read_manifest(folder)
    if manifest.condensed and manifest.condensed.resolution_ns != resolution_ns:
        raise UsageError(
            f"{folder.name} was published with a resolution of {manifest.condensed.resolution_ns} ns already.",
            advice="Publish the campaign as it was recorded, or leave --resolution out.",
        )
    with storage_errors(into):
        into.mkdir(parents=True, exist_ok=True)
    made = _packed(folder, into, list(manifest.files), resolution_ns)
    replaced = {name for sources in made.values() for name in sources} | set(filter(_left_out, manifest.files))
    files = {name: folder / name for name in (MANIFEST, *manifest.files) if name not in replaced}
    listed = {name: entry for name, entry in manifest.files.items() if name not in replaced}
    for name, sources in made.items():
        files[name] = into / name
        with storage_errors(files[name], "read"):
            listed[name] = FileEntry.of(files[name], sum(manifest.files[source].rows or 0 for source in sources))
    recorded = {} if manifest.condensed else {name: manifest.files[name] for name in replaced}
    before = manifest.condensed or Condensed(resolution_ns=resolution_ns, recorded={}, recorded_digest=manifest.digest)
    condensed = before.model_copy(update={"recorded": before.recorded | recorded})
    content = read_object(folder / MANIFEST) | {
        "schema_version": SCHEMA_VERSION,
        "files": {name: listed[name].model_dump() for name in sorted(listed)},
        "condensed": condensed.model_dump(),
    }
    files[MANIFEST] = into / MANIFEST
    with storage_errors(into):
        files[MANIFEST].write_text(json.dumps(content | {"digest": content_digest(content)}, indent=2) + "\n")
    return files


def _left_out(name: str) -> bool:
    path = PurePosixPath(name)
    return name == SAMPLES or (path.name == SERVER_LOG and REPLICAS in path.parts)


def _packed(folder: Path, into: Path, names: list[str], resolution_ns: int) -> dict[str, list[str]]:
    """Pack the requests and the logs of times among these files; the names that are new, with those that they replace."""
    made: dict[str, list[str]] = {}

    def pack_into(
        target: str,
        columns: Mapping[str, Nanoseconds],
        replaced: list[str],
        metadata: Mapping[bytes, bytes] | None = None,
    ) -> None:
        with storage_errors(into / target):
            (into / target).parent.mkdir(parents=True, exist_ok=True)
        pack_columns(into / target, columns, resolution_ns, metadata)
        made[target] = replaced

    for place in dict.fromkeys(name for name in map(_of_requests, names) if name is not None):
        if (table := requests.read(folder / place)) is not None:
            replaced = [name for name in names if _of_requests(name) == place]
            metadata = {requests.REPLICAS_KEY: json.dumps(table.replicas).encode()}
            pack_into(str(place / REQUESTS), _relative(table.rows), replaced, metadata)
    for name in names:
        path = PurePosixPath(name)
        raw = path.with_suffix(".bin").name
        if REPLICAS in path.parts and raw in _LOGS and path.suffix in {".bin", ".parquet", OLD_SUFFIX}:
            records = requests.records_of(folder / name, _LOGS[raw])
            columns = {column: records[column] for column in records.dtype.names or ()}
            pack_into(str(path.with_suffix(".parquet")), columns, [name])
    return made


def _of_requests(name: str) -> PurePosixPath | None:
    """The workload's folder, where a file holds its requests: the table, or the logs of before there was one."""
    path = PurePosixPath(name)
    if path.name == REQUESTS:
        return path.parent
    if path.parent.name == LATENCIES:
        return path.parents[1]
    if path.stem == "requests" and REPLICAS in path.parts:
        return path.parents[2]
    return None


def _relative(rows: requests.Rows) -> dict[str, Nanoseconds]:
    """The columns of a table of requests with the intended instant first, and durations after it."""
    since = {
        name: np.where(rows[instant] >= 0, rows[instant] - rows["intended_ns"], NONE)
        for name, instant in requests.SINCE_INTENDED.items()
    }
    apart = {"intended_ns", "end_ns", *requests.SINCE_INTENDED.values()}
    others = sorted({*requests.COLUMNS} - apart, key=lambda name: (name == "replica", requests.COLUMNS.index(name)))
    head = {"intended_ns": rows["intended_ns"], "latency_ns": requests.latency_ns(rows)}
    return head | since | {name: rows[name] for name in others}
