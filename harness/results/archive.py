"""A database of Prometheus with the raw samples of one experiment, kept beside its results.

Samples are read through the query interface, so that it works with any server, through any proxy, and nobody has to
open the one that deletes and snapshots. ``promtool`` makes blocks of them, which a Prometheus opens as its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness.errors import ConflictError, NoDataError, StorageError, UsageError
from harness.metrics.prometheus.adapter import PrometheusServer, Series
from harness.metrics.promql import quote
from harness.results.files import atomic_write, sha256_of, storage_errors
from harness.results.layout import iso

ARCHIVE_JSON = "archive.json"
DATABASE = "tsdb"
EVERYTHING = '{__name__!=""}'
WORKERS = 4
PIECE_MS = 600_000
"""Read at once of one metric: the buckets of many replicas fill a few tens of megabytes in it."""
AHEAD = 2 * WORKERS
TOOL_TIMEOUT_S = 3600
_CLASSIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TEMPORARY = ".partial"
_OPEN = (
    "cp -r {database} opened && prometheus --config.file=/dev/null --storage.tsdb.path=opened "
    "--storage.tsdb.retention.time=100y"
)
"""On a copy: a server merges blocks, and writes a log beside them."""


@dataclass(slots=True)
class Archive:
    """What an archive holds, as ``archive.json`` says it.

    Attributes:
        origin: the server that was asked.
        start, end: of the samples, UTC.
        selectors: of the series.
        series: number of series, in the largest piece of each metric.
        samples: number of samples.
        left_out: names that OpenMetrics cannot say.
        files: sha256 of every file below the archive.
        open_with: command that opens it again.
    """

    origin: str
    start: str
    end: str
    selectors: list[str]
    series: int = 0
    samples: int = 0
    left_out: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    open_with: str = ""
    format: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def archive(
    server: PrometheusServer,
    out: Path,
    start_s: float,
    end_s: float,
    *,
    selectors: Sequence[str] = (EVERYTHING,),
    say: Callable[[str], None] = lambda _sentence: None,
) -> Archive:
    """Keep every sample of a window in ``out``, a new folder that appears whole.

    Args:
        server: that has them.
        out: folder to make.
        start_s: of the first sample, seconds since the epoch.
        end_s: of the last sample.
        selectors: of the series to keep.
        say: told how far it has come.

    Raises:
        ConflictError: ``out`` exists.
        UsageError: ``promtool`` is not installed.
        NoDataError: no series matches.
        PrometheusError: the server refused, timed out or answered with an error.
        StorageError: the folder cannot be written.
    """
    if out.exists():
        raise ConflictError(
            f"{out} exists already and is not overwritten.", advice="Remove it, or choose another --out."
        )
    tool = shutil.which("promtool")
    if tool is None:
        raise UsageError(
            "promtool makes the archive's database, and is not installed here.",
            advice="Install it: apt-get install prometheus, or put the binary of Prometheus' release into PATH.",
        )
    partial = out.with_name(out.name + _TEMPORARY)
    found = Archive(server.url, iso(start_s), iso(end_s), list(selectors))
    with storage_errors(out):
        shutil.rmtree(partial, ignore_errors=True)  # of an archiver that was killed
        partial.mkdir(parents=True)
    try:
        _fill(server, partial, round(start_s * 1000), round(end_s * 1000), found, tool, say)
        found.open_with = _OPEN.format(database=out / DATABASE)
        atomic_write(partial / ARCHIVE_JSON, json.dumps(found.to_dict(), indent=2) + "\n")
        with storage_errors(out):
            partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return found


def _fill(
    server: PrometheusServer,
    folder: Path,
    start_ms: int,
    end_ms: int,
    found: Archive,
    tool: str,
    say: Callable[[str], None],
) -> None:
    source = folder / "samples.om"
    with storage_errors(source), source.open("w", encoding="utf-8") as file:
        _write_samples(server, file, start_ms, end_ms, found, say)
    say(f"{found.samples:,} samples of {found.series:,} series read; making the database.")
    command = [tool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(source), str(folder / DATABASE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise StorageError(
            f"promtool could not make the archive's database: {(done.stderr or done.stdout).strip()[-500:]}",
            advice="Is the disk full? Otherwise this is a defect of the harness.",
        )
    with storage_errors(source):
        source.unlink()
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        found.files = {str(path.relative_to(folder)): sha256_of(path) for path in files}


def _write_samples(
    server: PrometheusServer, file: TextIO, start_ms: int, end_ms: int, found: Archive, say: Callable[[str], None]
) -> None:
    """Every metric after the other, each piece of time after the other: a series' samples ascend."""
    names = _names(server, start_ms, end_ms, found)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="archive") as pool:
        waiting: deque[tuple[str, Future[list[Series]]]] = deque()
        last = ""
        try:
            for name, own, piece in _pieces(names, found.selectors, start_ms, end_ms):
                waiting.append((name, pool.submit(_read, server, own, *piece)))
                if len(waiting) >= AHEAD:
                    last = _take(waiting, file, found, last, say, len(names))
            while waiting:
                last = _take(waiting, file, found, last, say, len(names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    file.write("# EOF\n")


def _take(
    waiting: deque[tuple[str, Future[list[Series]]]],
    file: TextIO,
    found: Archive,
    last: str,
    say: Callable[[str], None],
    names: int,
) -> str:
    """Write the oldest answer; returns the metric that it belongs to."""
    name, future = waiting.popleft()
    series = future.result()
    if name != last:
        found.series += len(series)
        say(f"{name} ({names} metrics in all)")
    for one in series:
        found.samples += len(one.values)
        file.writelines(_lines(one))
    return name


def _names(server: PrometheusServer, start_ms: int, end_ms: int, found: Archive) -> list[str]:
    """Names of the metrics that have samples in the window."""
    every: dict[str, None] = {}
    for selector in found.selectors:
        every |= dict.fromkeys(
            server.read(
                "label/__name__/values",
                **{"match[]": selector, "start": f"{start_ms / 1000}", "end": f"{end_ms / 1000}"},
            )
        )
    found.left_out = [name for name in every if not _CLASSIC_NAME.fullmatch(name)]
    names = [name for name in every if _CLASSIC_NAME.fullmatch(name)]
    if not names:
        raise NoDataError(
            f"{server} has no series of {', '.join(found.selectors)} between {found.start} and {found.end}.",
            advice="Its retention time may be over, or the selector matches nothing.",
        )
    return names


def _pieces(
    names: Sequence[str], selectors: Sequence[str], start_ms: int, end_ms: int
) -> Iterator[tuple[str, list[str], tuple[int, int]]]:
    """Name, selectors and half-open span ``(begin, end]`` of every query."""
    for name in names:
        own = [narrowed for selector in selectors if (narrowed := _narrowed(selector, name))]
        for begin_ms in range(start_ms - 1, end_ms, PIECE_MS):
            yield name, own, (begin_ms, min(begin_ms + PIECE_MS, end_ms))


def _narrowed(selector: str, name: str) -> str:
    """The selector, for one metric; empty when it is for another."""
    own, _, matchers = selector.strip().partition("{")
    matchers = matchers.removesuffix("}").strip().removesuffix(",")
    if own not in {"", name}:
        return ""
    return f"{{__name__={quote(name)}{',' if matchers else ''}{matchers}}}"


def _read(server: PrometheusServer, selectors: Sequence[str], begin_ms: int, end_ms: int) -> list[Series]:
    """Samples in ``(begin, end]``; a series that several selectors match is there once."""
    known: dict[frozenset[tuple[str, str]], Series] = {}
    for selector in selectors:
        try:
            answer = server.raw(selector, begin_ms, end_ms)
        except NoDataError:
            continue
        known |= {frozenset(series.labels.items()): series for series in answer.series}
    return list(known.values())


def _lines(series: Series) -> Iterator[str]:
    labels = ",".join(f"{name}={quote(value)}" for name, value in series.labels.items() if name != "__name__")
    head = f"{series.labels['__name__']}{{{labels}}}"
    for time_ms, value in zip(series.times_ms.tolist(), series.values.tolist(), strict=True):
        yield f"{head} {_number(value)} {time_ms // 1000}.{time_ms % 1000:03d}\n"


def _number(value: float) -> str:
    text = repr(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)
