"""Which latency buckets a range really uses, so that quantiles need not read the others.

Dense buckets cover 0.1 ms to 60 s; one workload's latencies fall into a tenth of them. A bucket that
counted nothing in the whole range, or everything, tells ``histogram_quantile`` nothing, except for
its neighbour's edge: leaving the rest out gives the same quantiles at a fraction of the server's work.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from harness.metrics.prometheus.adapter import Series

Bucket = tuple[float, str, float]
"""Bound, the bound as the server spells it, growth of the cumulative count."""


def used_bounds(before: Sequence[Series], after: Sequence[Series]) -> list[str]:
    """The ``le`` values to read. Only right when no counter was reset in the range.

    Args:
        before: every bucket at the first sample of the range; a series that is not there began at 0.
        after: every bucket at the end of the range.

    Returns:
        As the server spells them, ascending. Of each histogram: every bound whose count grew, but by less than all,
        the edge on either side of those, the highest finite bound (it answers for saturation) and +Inf.
        None of them when a histogram has no +Inf bucket or a count fell: then every bucket has to be read.
    """
    began = {_labels(series): float(series.values[-1]) for series in before}
    histograms: dict[frozenset[tuple[str, str]], list[Bucket]] = defaultdict(list)
    for series in after:
        bound = series.labels.get("le", "")
        labels = _labels(series)
        growth = float(series.values[-1]) - began.get(labels, 0.0)
        histograms[labels - {("le", bound)}].append((float(bound or "nan"), bound, growth))
    wanted: dict[float, str] = {}
    for buckets in histograms.values():
        buckets.sort()
        if buckets[-1][0] != math.inf or any(growth < 0 for _, _, growth in buckets):
            return []
        wanted |= {value: text for value, text, _ in _needed(buckets)}
    return [wanted[value] for value in sorted(wanted)]


def _needed(buckets: Sequence[Bucket]) -> list[Bucket]:
    """The buckets of one histogram, sorted, that bear on its quantiles."""
    total = buckets[-1][2]
    if total <= 0:
        return list(buckets[-2:])
    empty = [place for place, (_, _, growth) in enumerate(buckets) if growth <= 0]
    full = next(place for place, (_, _, growth) in enumerate(buckets) if growth >= total)
    return [*buckets[empty[-1] if empty else 0 : full + 1], *buckets[-2:]]


def _labels(series: Series) -> frozenset[tuple[str, str]]:
    """Without the metric's name, which functions over a range take off."""
    return frozenset(series.labels.items()) - {("__name__", series.labels.get("__name__", ""))}
