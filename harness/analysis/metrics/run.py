"""What the metrics of one run are computed from: its rates, its energy, the readings of its GPUs and its objective.

Rates come from the replicas' counters, or from their logs where those are not there. Energy is counted by each GPU where it
can, and its power integrated over time where it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.objective import Judged, judge
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate, batch_means
from harness.analysis.statistics.distributions import Floats
from harness.metrics.rows import POOLED
from harness.results.manifest import said_uuids

if TYPE_CHECKING:
    import pandas as pd  # half a second, which a campaign that only runs does not need

FROM_LOGS = "Throughput from the raw latency logs: no counter was recorded."
WITH_LOGS = "Throughput with the raw latency logs: the counter of {} was not read in the first or the last row."
WITHOUT_UNREAD = "Throughput without what {} served before the first or after the last reading of its counter: {}."
LEAST_COVERAGE = 0.8
"""Share of the recording that a GPU's readings have to cover; what is less is no figure of it."""
LONGEST_STANDSTILL = 0.5
"""Share of the recording for which a counter may stand still: exporters read it every half minute."""
_GAP_STEPS = 3
"""Power is not known between two readings that lie more than so many of their usual distances apart."""
_INSTANCE = "MIG-"
_OF_GPU = re.compile(r"gpu(?:(\d+)_(?:energy_j|power_w)|-(\d+)$)")
_COUNTER, _POWER = "energy counter", "power over time"
Readings = tuple[Floats, Floats]
"""Seconds since the start of the recording, and values."""
_NO_READINGS: Readings = (np.empty(0), np.empty(0))


class Run:
    """One run; each of its files is read once. Every part raises NotMeasuredError."""

    def __init__(self, data: ExperimentData) -> None:
        self.data = data.keeping()
        self._names = [f"replica-{index}" for index in range(data.manifest.experiment.replicas)]

    @cached_property
    def rate(self) -> tuple[float, str]:
        """Requests per second of all replicas, and a note where they do not come from the counters alone.

        The pooled counter stands still for a replica that could not be read, although that may have served: its log says it.
        """
        try:
            counts = self._pooled_counts
        except NotMeasuredError:
            with suppress(NotMeasuredError):
                if self.data.duration_s > 0:
                    return len(self.data.requests.well) / self.data.duration_s, FROM_LOGS
            raise
        counted = float(counts.iloc[-1] - counts.iloc[0]) / float(counts.index[-1] - counts.index[0])
        unread = ", ".join(self._unread)
        if not unread:
            return counted, ""
        try:
            return sum(self.replica_rates), WITH_LOGS.format(unread)
        except NotMeasuredError as error:
            return counted, WITHOUT_UNREAD.format(unread, error)

    @cached_property
    def replica_rates(self) -> list[float]:
        """Requests per second of each replica, in order, over the whole recording.

        A replica that died early has served little, not little per second. What one served while its counter could not be
        read is in its log.
        """
        if self.data.duration_s <= 0:
            raise NotMeasuredError("a rate takes at least two rows")
        try:
            counts = self.data.table("total_count")
        except NotMeasuredError:
            with suppress(NotMeasuredError):
                return list(self._logged_rates().values())
            raise
        served = {name: float(counts[name].max() - counts[name].min()) for name in self._names if name in counts}
        logged = self._logged_rates() if self._unread else {}
        for name in self._unread:
            rate = logged.get(self._names.index(name))
            if rate is None:
                raise NotMeasuredError(f"{name} wrote no latency log")
            served[name] = max(served.get(name, 0.0), rate * self.data.duration_s)
        return [served[name] / self.data.duration_s for name in self._names]

    @property
    def within(self) -> Estimate:
        """Throughput with a batch-means interval over the steps of this one run."""
        counts = self._pooled_counts
        if self._unread:  # the pooled counter stands still for it
            raise NotMeasuredError("not every counter was read in the first and the last row")
        return batch_means((np.diff(counts.to_numpy()) / np.diff(counts.index.to_numpy())).tolist())

    @cached_property
    def judged(self) -> Judged:
        """What came of the objective."""
        experiment = self.data.manifest.experiment
        if experiment.slo is None:
            raise NotMeasuredError("the campaign has no objective (`slo`)")
        return judge(experiment.slo, self.data.requests, open_loop=experiment.workload.open_loop)

    @property
    def energy_j(self) -> tuple[float, str]:
        """Joules of all GPUs over the recording, idle power included, and which GPU's comes from where."""
        sources: dict[str, list[str]] = {_COUNTER: [], _POWER: []}
        for gpu, (_, source) in self.gpu_energy_j.items():
            sources[source].append(f"gpu-{gpu}")
        where = (f"the {source} of {', '.join(names)}" for source, names in sources.items() if names)
        return sum(joules for joules, _ in self.gpu_energy_j.values()), " and ".join(where)

    @cached_property
    def gpu_energy_j(self) -> dict[int, tuple[float, str]]:
        """The same of each GPU, by its number.

        A run whose energy is known of some of its GPUs only has none: the error names the GPU and the reason.
        """
        readings: dict[str, Readings] = {}
        for read in (self.data.telemetry, lambda: self.data.table("gpu_power")):
            with suppress(NotMeasuredError):
                columns = {name: column.dropna() for name, column in read().items() if _OF_GPU.match(str(name))}
                readings |= {
                    str(name): (column.index.to_numpy(float), column.to_numpy(float))
                    for name, column in columns.items()
                }
        matches = [match for name in readings if (match := _OF_GPU.match(name))]
        gpus = sorted({int(match[1] or match[2]) for match in matches})
        if not gpus:
            self.data.table("gpu_power")  # raises with the reason why there is no GPU
            raise NotMeasuredError("no GPU was read")
        manifest = self.data.manifest
        used = (
            manifest.gpus if manifest.gpus != manifest.provenance.gpus else []
        )  # all of them: the replicas do not say
        if len(used) > len(gpus):
            raise NotMeasuredError(f"the replicas ran on {len(used)} GPUs, of which {len(gpus)} were read")
        energy_j: dict[int, tuple[float, str]] = {}
        for gpu in gpus:
            counter, power, rows = (
                readings.get(name, _NO_READINGS) for name in (f"gpu{gpu}_energy_j", f"gpu{gpu}_power_w", f"gpu-{gpu}")
            )
            try:
                energy_j[gpu] = _energy_of(counter, power if len(power[0]) > 1 else rows, self.data.duration_s)
            except NotMeasuredError as reason:
                raise NotMeasuredError(f"gpu-{gpu} {reason}") from reason
        return energy_j

    @property
    def gpus(self) -> int:
        """How many GPUs the replicas were on, as they say, or as the campaign spreads them where they do not: as under MIG."""
        manifest = self.data.manifest
        server = manifest.experiment.workload.server
        if not manifest.provenance.gpus and not (server and server.url):
            raise NotMeasuredError(manifest.provenance.gpus_absent or "there was no GPU")
        whole = {uuid for uuid in said_uuids(manifest.replicas) if not uuid.startswith(_INSTANCE)}
        return len(whole) or min(manifest.experiment.gpus, manifest.experiment.replicas)

    def devices(self, metric: str) -> pd.DataFrame:
        """The rows of a metric, a column per GPU."""
        table = self.data.table(metric)
        columns = [name for name in table.columns if name.startswith("gpu-")]
        if not columns:
            raise NotMeasuredError("no device gave a value")
        return table if len(columns) == len(table.columns) else table[columns]

    def telemetry_mean(self, column: str) -> float:
        """Of a column of the telemetry, over the recording and the GPUs."""
        of_gpus = rf"^(gpu\d+_)?{re.escape(column)}$"
        columns = self.data.telemetry().filter(regex=of_gpus).dropna(axis="columns", how="all")
        if columns.empty:
            raise self.unread(column)
        return float(columns.mean().mean())

    def unread(self, column: str) -> NotMeasuredError:
        """Why the telemetry holds nothing of a column, as far as it was said."""
        telemetry = self.data.manifest.telemetry
        by_column: Mapping[str, str] = telemetry.get("missing") or {}
        reasons = (reason for name, reason in by_column.items() if name.endswith(column))
        reason = next(reasons, telemetry.get("gpu_absent"))
        return NotMeasuredError(f"the telemetry has no reading of {column}{f': {reason}' if reason else ''}")

    @property
    def _pooled_counts(self) -> pd.Series[float]:
        counts = self.data.series("total_count", POOLED)
        if len(counts) < 2:
            raise NotMeasuredError("a rate takes at least two rows")
        return counts

    @cached_property
    def _unread(self) -> list[str]:
        """Who was not read in the first or the last row: its counter is not that of the whole recording, unless it has died."""
        ends = self.data.table("total_count").iloc[[0, -1]]
        return [name for name in self._names if name not in ends or ends[name].isna().any()]

    def _logged_rates(self) -> dict[int, float]:
        """Requests per second that each replica's log has in the recording."""
        requests = self.data.requests
        served = requests.well["replica"]
        return {replica: int((served == replica).sum()) / self.data.duration_s for replica in requests.replicas}


def _energy_of(counter: Readings, power: Readings, duration_s: float) -> tuple[float, str]:
    """Joules of one GPU over the recording, and from which of the two they come; either may be empty."""
    (times_s, joules), (power_times_s, watts) = counter, power
    if (
        len(joules) > 1 and not (np.diff(joules) < 0).any()
    ):  # one that fell was reset: the driver was reloaded in between
        span_s = float(times_s[-1] - times_s[0])
        _require_coverage(span_s, duration_s, "energy counter")
        grown = np.flatnonzero(np.diff(joules) > 0) + 1
        standstill_s = float(np.diff([times_s[0], *times_s[grown], times_s[-1]]).max())
        if standstill_s > LONGEST_STANDSTILL * duration_s and not (len(watts) and (watts == 0).all()):
            at_power = f" at {watts.mean():.3g} W" if len(watts) else ""
            raise NotMeasuredError(
                f"has an energy counter that stood still for {standstill_s:.0f} s of {duration_s:.0f} s{at_power}"
            )
        return float(joules[-1] - joules[0]) * duration_s / span_s, _COUNTER
    if len(watts) < 2:
        raise NotMeasuredError("has no reading of energy or power")
    steps_s = np.diff(power_times_s)
    known = steps_s <= _GAP_STEPS * np.median(steps_s)
    covered_s = float(steps_s[known].sum())
    _require_coverage(covered_s, duration_s, "power")
    return float((steps_s * (watts[1:] + watts[:-1]) / 2)[known].sum()) * duration_s / covered_s, _POWER


def _require_coverage(covered_s: float, duration_s: float, what: str) -> None:
    if covered_s < LEAST_COVERAGE * duration_s:
        raise NotMeasuredError(f"has its {what} read over {covered_s:.0f} s of {duration_s:.0f} s only")
