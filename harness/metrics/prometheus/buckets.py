"""Which latency buckets a range really uses, so that quantiles need not read the others.

Dense buckets cover 0.1 ms to 60 s; one workload's latencies fall into a tenth of them. A bucket that
counted nothing in the whole range, or everything, tells ``histogram_quantile`` nothing, except for
its neighbour's edge: leaving the rest out gives the same quantiles at a fraction of the server's work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.metrics.prometheus.adapter import Series


def used_bounds(before: Sequence[Series], after: Sequence[Series]) -> list[str]:
    """The ``le`` values to read. Only right when no counter was reset in the range.

    Args:
        before: the buckets of all replicas, added up, at the first sample of the range; one that is not there began at 0.
        after: the same at the end of the range.

    Returns:
        As the server spells them, ascending: every bound up to which some request was counted, but not yet all, the edge
        on either side of those, the highest finite bound (it answers for saturation) and +Inf. They serve each of the
        replicas, too, whose requests are among those of all.
        None of them when there is no +Inf bucket or a count fell: then every bucket has to be read.
    """
    began = {series.labels.get("le", ""): float(series.values[-1]) for series in before}
    buckets = sorted(
        (float(bound or "nan"), bound, float(series.values[-1]) - began.get(bound, 0.0))
        for series in after
        for bound in (series.labels.get("le", ""),)
    )
    if not buckets or buckets[-1][0] != math.inf or any(growth < 0 for _, _, growth in buckets):
        return []
    total = buckets[-1][2]
    first = next((place for place, (_, _, growth) in enumerate(buckets) if growth > 0), len(buckets))
    full = next(place for place, (_, _, growth) in enumerate(buckets) if growth >= total)
    needed = {*range(max(first - 1, 0), full + 1), *range(max(len(buckets) - 2, 0), len(buckets))}
    return [buckets[place][1] for place in sorted(needed)]
