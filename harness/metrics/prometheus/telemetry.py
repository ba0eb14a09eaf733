"""The telemetry of a cluster's GPUs: every sample of DCGM's exporter, in the file that is written beside a local GPU.

SM activity and its like are there where the exporter reads DCGM's profiling fields; each is the mean over its own interval, so
that a scrape every 5 s of an exporter that reads every second tells of one second in five.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.clock import Clock
from harness.errors import ClusterError, NoDataError, PrometheusError
from harness.metrics.catalogue import CATALOGUE, MIG_INSTANCE, Level
from harness.metrics.nvml import ACTIVITY, six_digits
from harness.metrics.prometheus.client import PrometheusServer, SampledSeries
from harness.metrics.prometheus.exporter import query_pool
from harness.metrics.prometheus.series import by_labels, device_names, key_labels, mixed
from harness.metrics.promql import Dialect, quote
from harness.metrics.promql_math import MS_PER_S, to_ms
from harness.metrics.telemetry import GPU_COLUMNS, TelemetrySummary, columns, iso, storage_error

FIELDS: dict[str, tuple[tuple[str, ...], float]] = {
    **{
        metric.gauge: ((metric.dcgm,), float(metric.scale))
        for metric in CATALOGUE.values()
        if metric.level is Level.DEVICE
    },
    "sm_clock_mhz": (("DCGM_FI_DEV_SM_CLOCK",), 1.0),
    "memory_clock_mhz": (("DCGM_FI_DEV_MEM_CLOCK",), 1.0),
    # One field under the name of before and of DCGM 4; its bits are NVML's.
    "throttle_reasons": (("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"), 1.0),
    "energy_j": (("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), 1e-3),
    "sm_active_percent": (("DCGM_FI_PROF_SM_ACTIVE",), 100.0),
    "sm_occupancy_percent": (("DCGM_FI_PROF_SM_OCCUPANCY",), 100.0),
    "tensor_active_percent": (("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",), 100.0),
    "dram_active_percent": (("DCGM_FI_PROF_DRAM_ACTIVE",), 100.0),
    "pcie_sent_bytes_per_s": (("DCGM_FI_PROF_PCIE_TX_BYTES",), 1.0),
    "pcie_received_bytes_per_s": (("DCGM_FI_PROF_PCIE_RX_BYTES",), 1.0),
    "nvlink_sent_bytes_per_s": (("DCGM_FI_PROF_NVLINK_TX_BYTES",), 1.0),
    "nvlink_received_bytes_per_s": (("DCGM_FI_PROF_NVLINK_RX_BYTES",), 1.0),
}
"""DCGM's names of each column of ``telemetry.csv``, and what their values are multiplied by."""
MOST = {metric.gauge: metric.maximum for metric in CATALOGUE.values() if metric.gauge and metric.maximum}
MOST |= {"sm_clock_mhz": 1e5, "memory_clock_mhz": 1e5} | {name: 200.0 for name in ACTIVITY if name.endswith("_percent")}
_MOST = 1e13
"""A value above its column's ``MOST``, or this, is one of the numbers by which DCGM says that it has none."""
_DEVICE = CATALOGUE["gpu_utilization"]
_HOST_CPU = "the processors are those of another machine: see node_cpu_seconds_total of its node exporter"

Where = Callable[[], AbstractContextManager[tuple[PrometheusServer, Dialect]]]
"""Opens the server and says how it names the GPUs in use."""


class PrometheusTelemetry:
    """Writes ``telemetry.csv`` when a recording is over; Prometheus has kept the samples until then.

    A server that does not answer, or has no sample, leaves no file, and the summary the reason.
    """

    def __init__(self, path: Path, *, interval_s: float, clock: Clock, where: Where) -> None:
        self._path = path
        self._interval_s = interval_s
        self._clock = clock
        self._where = where
        self.start()

    def start(self) -> None:
        """From here on samples count."""
        self._start_s = self._clock.now_s()

    def finish(self) -> TelemetrySummary:
        """End, and write what the server holds. Raises StorageError."""
        start_s, end_s = self._start_s, self._clock.now_s()
        try:
            with self._where() as (server, dialect):
                return collect_telemetry(
                    self._path, server, dialect, start_s=start_s, end_s=end_s, interval_s=self._interval_s
                )
        except (ClusterError, PrometheusError) as error:
            return TelemetrySummary(interval_s=self._interval_s, gpu_absent=error.message)


def collect_telemetry(
    path: Path,
    server: PrometheusServer,
    dialect: Dialect,
    *,
    start_s: float,
    end_s: float,
    interval_s: float,
    pool: ThreadPoolExecutor | None = None,
) -> TelemetrySummary:
    """Write every sample in ``(start, end]`` (since the epoch) of the GPUs in use; no file where there is none, the summary says so.

    Raises PrometheusError, StorageError (the file is there already, or cannot be written).
    """
    begin_ms, end_ms = to_ms(start_s), max(to_ms(end_s), to_ms(start_s) + 1)
    with query_pool(pool) as queries:
        pending = {
            column: queries.submit(_samples, server, dialect, names, begin_ms, end_ms)
            for column, (names, _) in FIELDS.items()
        }
        samples = {column: answer.result() for column, answer in pending.items()}
    by_device = {column: by_labels(series, key_labels(_DEVICE, dialect)) for column, series in samples.items()}
    names = device_names(key for devices in by_device.values() for key in devices)
    if not names:
        return TelemetrySummary(interval_s=interval_s, gpu_absent="Prometheus has no sample of a GPU in use")
    times_ms = np.unique(np.concatenate([series.times_ms for column in samples.values() for series in column]))
    values: NDArray[np.float64] = np.full((len(times_ms), len(names) * len(GPU_COLUMNS)), np.nan)
    missing = {"host_cpu_percent": _HOST_CPU}
    numbers = [int(name.removeprefix("gpu-")) for name in names.values()]
    for place, (key, number) in enumerate(zip(names, numbers, strict=True)):
        for at, column in enumerate(GPU_COLUMNS, place * len(GPU_COLUMNS)):
            if why := _fill(values[:, at], times_ms, by_device.get(column, {}).get(key, ()), column):
                missing[f"gpu{number}_{column}"] = why
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns(numbers))
            for time_ms, row in zip(times_ms.tolist(), values.tolist(), strict=True):
                time_s = time_ms / MS_PER_S
                cells = ["" if math.isnan(value) else repr(value) for value in row]
                writer.writerow([iso(time_s), f"{time_s - start_s:.3f}", *cells, ""])
    except OSError as error:
        raise storage_error(path, error) from error
    return TelemetrySummary(rows=len(times_ms), interval_s=interval_s, gpus=len(names), missing=missing)


def _samples(
    server: PrometheusServer, dialect: Dialect, names: Sequence[str], begin_ms: int, end_ms: int
) -> Sequence[SampledSeries]:
    """Of one field, of every GPU in use. Raises PrometheusError."""
    matchers = [f"__name__=~{quote('|'.join(names))}", dialect.gpus]
    try:
        return server.raw(f"{{{','.join(filter(None, matchers))}}}", begin_ms, end_ms).series
    except NoDataError:
        return []


def _fill(into: NDArray[np.float64], times_ms: NDArray[np.int64], samples: Sequence[SampledSeries], column: str) -> str:
    """Put the samples of one device into its column, in place; the reason where there is none.

    An exporter that tells pods apart repeats the device's value for each of them, and one that tells instances of MIG apart
    has values of theirs: as in the metrics the largest counts, and of memory the sum over the instances.
    """
    names, scale = FIELDS.get(column, ((), 1.0))
    if not samples:
        return f"Prometheus has no sample of {' or '.join(names) or 'such a field'}"
    if why := mixed(_DEVICE, samples):
        return why
    if column in ACTIVITY:
        samples = [series for series in samples if not series.labels.get(MIG_INSTANCE)]
        if not samples:
            return "the exporter reports it for each MIG instance, not for the GPU"
    parts = by_labels(samples, (MIG_INSTANCE,))
    if column == "memory_bytes" and len(parts) > 1:
        parts.pop(("",), None)
    elif column != "memory_bytes":
        parts = {(): list(samples)}
    for part in parts.values():
        largest = np.full(len(times_ms), np.nan)
        for series in part:
            values = np.where(series.values * scale <= MOST.get(column, _MOST), series.values * scale, np.nan)
            places = np.searchsorted(times_ms, series.times_ms)
            largest[places] = np.fmax(largest[places], values)
        into[:] = np.where(np.isnan(largest), into, np.nan_to_num(into) + largest)
    if column in ACTIVITY:
        known = ~np.isnan(into)
        into[known] = [six_digits(value) for value in into[known]]
    return "" if np.isfinite(into).any() else "Prometheus has no number of it"
