"""Requests per second of one recording: from the replicas' counters, or from their logs where those are not there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate, batch_means, jain

FROM_LOGS = "Throughput from the raw latency logs: no counter was recorded."
WITH_LOGS = "Throughput with the raw latency logs: the counter of {} was not read in the first or the last row."
WITHOUT_UNREAD = "Throughput without what {} served before the first or after the last reading of its counter: {}."
_POOLED = "all"


def pooled_rate(data: ExperimentData) -> tuple[float, str]:
    """Requests per second of all replicas together, and a note when they do not come from the counters alone.

    The pooled counter stands still for a replica that could not be read, although that may have served: its log says it.
    Raises NotMeasuredError when there are neither counters nor logs.
    """
    try:
        counts = _pooled_counts(data)
    except NotMeasuredError as error:
        try:
            requests = len(data.requests.well)
        except NotMeasuredError:
            raise error from None
        if data.duration_s <= 0:
            raise
        return requests / data.duration_s, FROM_LOGS
    counted = float(counts.iloc[-1] - counts.iloc[0]) / float(counts.index[-1] - counts.index[0])
    unread = ", ".join(_unread(data.table("total_count"), _names(data)))
    if not unread:
        return counted, ""
    try:
        return sum(replica_rates(data)), WITH_LOGS.format(unread)
    except NotMeasuredError as error:
        return counted, WITHOUT_UNREAD.format(unread, error)


def replica_rates(data: ExperimentData) -> list[float]:
    """Requests per second of each replica, in order, over the whole recording.

    A replica that died early has served little, not little per second. What one served while its counter could not be read is
    in its log. Raises NotMeasuredError, also where that log is not there.
    """
    if data.duration_s <= 0:
        raise NotMeasuredError("a rate takes at least two rows")
    try:
        counts = data.table("total_count")
    except NotMeasuredError as error:
        try:
            return list(data.served_rates().values())
        except NotMeasuredError:
            raise error from None
    names = _names(data)
    served = {name: float(counts[name].max() - counts[name].min()) for name in names if name in counts}
    unread = _unread(counts, names)
    logged = data.served_rates() if unread else {}
    for name in unread:
        rate = logged.get(names.index(name))
        if rate is None:
            raise NotMeasuredError(f"{name} wrote no latency log")
        served[name] = max(served.get(name, 0.0), rate * data.duration_s)
    return [served[name] / data.duration_s for name in names]


def within_run(data: ExperimentData) -> Estimate:
    """Throughput of this one run with a batch-means interval over its steps.

    Raises NotMeasuredError, also where a replica was not read at an end: the pooled counter stands still for it.
    """
    counts = _pooled_counts(data)
    if _unread(data.table("total_count"), _names(data)):
        raise NotMeasuredError("not every counter was read in the first and the last row")
    return batch_means((np.diff(counts.to_numpy()) / np.diff(counts.index.to_numpy())).tolist())


def fairness(rates: Sequence[float]) -> tuple[float, float]:
    """Slowest over fastest replica, and Jain's index. Raises NotMeasuredError for one replica or none that served."""
    if len(rates) < 2:
        raise NotMeasuredError("one replica has nobody to share with")
    if not max(rates):
        raise NotMeasuredError("nothing was served, so there is nothing to share")
    return min(rates) / max(rates), jain(rates)


def _pooled_counts(data: ExperimentData) -> pd.Series[float]:
    counts = data.series("total_count", _POOLED)
    if len(counts) < 2:
        raise NotMeasuredError("a rate takes at least two rows")
    return counts


def _names(data: ExperimentData) -> list[str]:
    return [f"replica-{index}" for index in range(data.manifest.experiment.replicas)]


def _unread(counts: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Who was not read in the first or the last row: its counter is not that of the whole recording, unless it has died."""
    ends = counts.iloc[[0, -1]]
    return [name for name in names if name not in ends or ends[name].isna().any()]
