"""The fast series: GPU telemetry and the host's CPU, several times a second, in a file of its own; and what it says of throttling.

One row a reading, written at once: memory does not grow, and a kill loses at most a reading.
"""

from __future__ import annotations

import csv
import dataclasses
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import psutil

from harness.clock import Clock
from harness.errors import MetricsError, ReasonCode, StorageError
from harness.metrics.nvml import ACTIVITY, GAUGES, NvmlGpus
from harness.metrics.quality import Finding, Severity
from harness.metrics.rows import Lateness, LatenessHistogram, Missing

_JOIN_TIMEOUT_S = 10.0
GPU_COLUMNS = (*GAUGES, *ACTIVITY)
POWER_CAP = 0x4
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons: hardware slowdown, heat by software and by hardware, power brake."""
TOLD_SHARE = 0.01
_COLUMN = "_throttle_reasons"
_MEMORY = "_memory_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySummary:
    """One telemetry series; ``skipped``: readings left out as the one before took too long, ``missing``: reasons by column.

    ``devices``: of each GPU, in the order of the columns, ``uuid`` and ``idle_w``, its power before the replicas started, or
    ``idle_absent``, why that was not read.
    """

    rows: int = 0
    interval_s: float
    skipped: int = 0
    lateness: Lateness = field(default_factory=Lateness)
    gpus: int = 0
    gpu_absent: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for the manifest."""
        return dataclasses.asdict(self)


class Telemetry(threading.Thread):
    """Writes ``telemetry.csv`` from ``start()`` to ``finish()``, by real time. Raises StorageError where it cannot be created.

    ``devices``: see TelemetrySummary.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval_s: float,
        clock: Clock,
        source: NvmlGpus | None = None,
        devices: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(name="telemetry", daemon=True)
        self._path = path
        self._interval_s = interval_s
        self._clock = clock
        self._source = source or NvmlGpus(activity=True)
        self._wake = threading.Event()
        self._missing: dict[str, str] = {}
        self._devices = list(devices)
        self._rows = 0
        self._skipped = 0
        self._punctuality = LatenessHistogram()
        self._error: OSError | None = None
        self._gpus = self._source.count
        try:
            self._file: TextIO = path.open("x", encoding="utf-8", newline="", buffering=1)
        except OSError as error:
            raise storage_error(path, error) from error

    def run(self) -> None:
        """Read and write until woken."""
        try:
            with self._file:
                self._loop()
        except OSError as error:
            self._error = error

    def finish(self) -> TelemetrySummary:
        """End, and say what the file holds. Raises StorageError (what was written is kept), MetricsError (the driver hangs)."""
        self._wake.set()
        if self.ident is None:
            self._file.close()
        else:
            self.join(_JOIN_TIMEOUT_S)
        if self.is_alive():
            raise MetricsError(
                f"The telemetry thread has not ended within {_JOIN_TIMEOUT_S:g} s.",
                advice="The GPU driver does not answer; look at the kernel log.",
            )
        self._source.close()
        if self._error is not None:
            raise storage_error(self._path, self._error) from self._error
        return TelemetrySummary(
            rows=self._rows,
            interval_s=self._interval_s,
            skipped=self._skipped,
            lateness=self._punctuality.summary(self._skipped),
            gpus=self._gpus,
            gpu_absent=self._source.absent,
            missing=dict(self._missing),
            devices=self._devices,
        )

    def _loop(self) -> None:
        writer = csv.writer(self._file, lineterminator="\n")
        writer.writerow(columns(range(self._gpus)))
        psutil.cpu_percent()  # from here on, for this thread
        start_s = self._clock.now_s()
        index = 1  # the first reading ends one interval, so that it has a CPU share
        while not self._clock.wait_until(start_s + index * self._interval_s, self._wake):
            now_s = self._clock.now_s()
            self._punctuality.add(now_s - start_s - index * self._interval_s)
            writer.writerow(self._row(now_s, now_s - start_s))
            self._rows += 1
            due = int((self._clock.now_s() - start_s) / self._interval_s)
            self._skipped += max(due - index, 0)
            index = max(index, due) + 1

    def _row(self, now_s: float, elapsed_s: float) -> list[str]:
        row = [iso(now_s), f"{elapsed_s:.3f}"]
        for gpu, usage in enumerate(self._read() if self._gpus else ()):
            row += [self._cell(f"gpu{gpu}_{column}", usage[column]) for column in GPU_COLUMNS]
        return [*row, f"{psutil.cpu_percent():.1f}"]

    def _read(self) -> Sequence[dict[str, float | Missing]]:
        try:
            return self._source.read_telemetry()
        except Exception as error:  # noqa: BLE001 - whatever the driver's library raises, the series goes on
            reason = Missing(f"the GPU could not be read: {type(error).__name__}: {error}")
            return [dict.fromkeys(GPU_COLUMNS, reason)] * self._gpus

    def _cell(self, column: str, value: float | Missing) -> str:
        if isinstance(value, Missing):
            self._missing.setdefault(column, value.reason)
            return ""
        return repr(value)


def described(uuids: Iterable[str], idle: Mapping[str, float | Missing]) -> list[dict[str, Any]]:
    """``devices`` of the GPUs with these UUIDs."""
    unread = Missing("it was not read before the replicas started")
    power = [(uuid, idle.get(uuid, unread)) for uuid in uuids]
    return [
        {"uuid": uuid, "idle_absent": watts.reason} if isinstance(watts, Missing) else {"uuid": uuid, "idle_w": watts}
        for uuid, watts in power
    ]


def columns(gpus: Iterable[int]) -> list[str]:
    """Header of ``telemetry.csv`` with the GPUs of these numbers."""
    devices = [f"gpu{gpu}_{column}" for gpu in gpus for column in GPU_COLUMNS]
    return ["timestamp", "elapsed_s", *devices, "host_cpu_percent"]


def iso(time_s: float) -> str:
    """A time of the file, given in seconds since the epoch."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def storage_error(path: Path, error: OSError) -> StorageError:
    """Why the file could not be written."""
    return StorageError(
        f"The telemetry file {path} cannot be written: {error.strerror or error}.",
        advice="Check the folder's rights and the free space, then run `harness resume`.",
    )


def held_back(telemetry: Path) -> Iterator[Finding]:
    """A finding for each GPU of ``telemetry.csv`` that was held back in more than 1% of its readings; none without the file."""
    for gpu, (slowed, capped) in throttled(telemetry).items():
        name = gpu.replace("gpu", "gpu-")
        if slowed > TOLD_SHARE:
            message = f"{name} was slowed by heat or by its hardware in {slowed:.0%} of the readings."
            advice = (
                "Fix the cooling or the power supply, or let it cool down between experiments "
                "(timing.cooldown_gpu_celsius)."
            )
            yield Finding(Severity.DEGRADED, ReasonCode.GPU_SLOWED, "", message, advice)
        if capped > TOLD_SHARE:
            message = f"{name} ran at its power cap in {capped:.0%} of the readings: the cap set its clock."
            yield Finding(Severity.INFO, ReasonCode.POWER_CAP, "", message)


def memory_rises(telemetry: Path, least: float) -> dict[str, tuple[float, float]]:
    """By how many bytes the memory in use rose above its first reading, and how many seconds in it had, on each GPU where that is ``least``."""
    rises: dict[str, tuple[float, float]] = {}
    if not telemetry.is_file():
        return rises
    first: dict[str, float] = {}
    with telemetry.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name in [name for name in row if name.endswith(_MEMORY) and row[name]]:
                rise = float(row[name]) - first.setdefault(name, float(row[name]))
                gpu, at_s = name.removesuffix(_MEMORY), float(row["elapsed_s"])
                most, since_s = rises.get(gpu, (least, at_s))
                if rise >= most:
                    rises[gpu] = rise, since_s
    return rises


def throttled(telemetry: Path) -> dict[str, tuple[float, float]]:
    """Shares of its readings in which each GPU, by its name in the columns, was slowed, and was at its power cap; none without the file."""
    masks: dict[str, Counter[int]] = {}
    if telemetry.is_file():
        with telemetry.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            places = [(at, name) for at, name in enumerate(next(rows, ())) if name.endswith(_COLUMN)]
            for row in rows:
                for at, name in places:
                    if row[at:] and row[at]:
                        masks.setdefault(name.removesuffix(_COLUMN), Counter())[int(float(row[at]))] += 1
    return {gpu: (_share(counts, SLOWED), _share(counts, POWER_CAP)) for gpu, counts in masks.items()}


def _share(masks: Counter[int], bits: int) -> float:
    return sum(count for mask, count in masks.items() if mask & bits) / masks.total()
