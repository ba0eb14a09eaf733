"""What a stress campaign of servers answers: the highest goodput within the objective by sharing mode and number of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.format import under, with_interval
from harness.analysis.statistics import Estimate, t_interval
from harness.analysis.stress import Grade, ServedLoad, StressSeries, in_words
from harness.spec import CampaignSpec, StressLoad, StressSpec

_J_PER_KWH, _S_PER_H = 3.6e6, 3600.0
_THOUSANDS = 1000.0
"""In a million tokens."""


@dataclass(frozen=True, slots=True)
class Best:
    """The highest load of one series that keeps the objective, and what the next one breaks: ``limit`` in a word, ``why`` in a sentence.

    ``mode``: the sharing mode for people. ``servers``: of a series that raises them and has no good point, the least that were tried. ``rate``: requests per second to each,
    where that was raised and there is a good point. ``goodput``: requests per second of all within the objective; None: there is no
    good point. ``energy_j``: of the GPUs per 1,000 output tokens. ``cost``: of a million output tokens; both None where not known.
    """

    workload: str
    sharing: str
    mode: str
    servers: int
    rate: float | None
    goodput: Estimate | None
    limit: str
    why: str
    energy_j: Estimate | None
    cost: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {
            "goodput_per_s": self.goodput,
            "energy_j_per_1000_tokens": self.energy_j,
            "cost_per_million_tokens": self.cost,
        }
        known = {
            name: estimate and {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "runs": estimate.n}
            for name, estimate in figures.items()
        }
        head = {"workload": self.workload, "sharing": self.sharing, "servers": self.servers, "rate_each": self.rate}
        return {**head, **known, "limited_by": self.limit, "why": self.why}


def bests(spec: CampaignSpec | None, every_series: Sequence[StressSeries]) -> list[Best]:
    """That of every series whose answer is there; none without an objective."""
    if spec is None or spec.stress is None or spec.slo is None:
        return []
    return [_best(spec.stress, series) for series in every_series if series.following is None]


def sentences(series: Sequence[Best]) -> list[str]:
    """How many servers of each workload, under which mode, have the highest goodput, and at what price."""
    lines = []
    for workload in dict.fromkeys(best.workload for best in series):
        known = [(best.goodput, best) for best in series if best.workload == workload and best.goodput]
        if not known:
            lines.append(f"{workload}: no number of servers was seen to keep the objective.")
            continue
        goodput, best = max(known, key=lambda pair: pair[0].mean)
        rate = f" ({in_words(best.rate, StressLoad.RATE)})" if best.rate else ""
        once = " Measured once, so without an interval." if goodput.n == 1 else ""
        price = [f"{_shown(best.energy_j)} J per 1,000 tokens"] if best.energy_j else []
        price += [f"{_shown(best.cost)} per million tokens"] if best.cost else []
        like = [
            f"{rival.servers} {under(rival.mode)}"
            for other, rival in known
            if rival is not best and _reaches(other, goodput)
        ]
        lines.append(
            f"{workload}: the highest goodput within the objective is {_shown(goodput)} requests/s, of {best.servers} "
            f"{'server' if best.servers == 1 else 'servers'} {under(best.mode)}{rate}"
            f"{', at ' + ' and '.join(price) if price else ''}.{once}{' No significant difference: ' + ', '.join(like) + '.' if like else ''}"
        )
    return lines


def _best(stress: StressSpec, series: StressSeries) -> Best:
    good = series.last_good
    served = [run.served for run in series.repeats if run.served]
    above = [point for point in series.points if good is None or point.load > good.load]
    limit = next((point for point in above if point.grade is Grade.BROKEN), None)
    if limit is not None:
        word, why = str(limit.failure_mode), f"{in_words(limit.load, series.unit)}: {limit.sentence}"
    elif above:
        word = "inconclusive" if above[0].grade is Grade.DOUBTFUL else "not repeatable"
        why = f"{in_words(above[0].load, series.unit)}: {above[0].sentence or 'it did not hold when measured again.'}"
    else:
        most = in_words(series.points[-1].load, series.unit)
        word, why = "nothing", f"Nothing broke up to {most}, the most that was asked for."
    return Best(
        series.lowest.workload.family,
        series.lowest.mode,
        series.mode,
        (good.cell if good else series.lowest).replicas,
        good.load if good and series.unit is StressLoad.RATE else None,
        _mean([load.goodput for load in served]),
        word,
        why,
        _mean([load.energy_j for load in served]),
        _mean([_cost(stress, load) for load in served]),
    )


def _mean(values: Sequence[float | None]) -> Estimate | None:
    """Over the runs; None where one of them has no value."""
    known = [value for value in values if value is not None]
    return t_interval(known) if known and len(known) == len(values) else None


def _cost(stress: StressSpec, served: ServedLoad) -> float | None:
    """Of a million output tokens. With a price for energy and no energy measured there is none: half of a cost is no cost."""
    hourly, kwh = stress.price_per_gpu_hour, stress.price_per_kwh
    if (hourly is None and kwh is None) or not served.tokens or (kwh is not None and served.energy_j is None):
        return None
    hours = served.gpus * _THOUSANDS * 1000 / served.tokens / _S_PER_H
    return (hourly or 0.0) * hours + (kwh or 0.0) * (served.energy_j or 0.0) * _THOUSANDS / _J_PER_KWH


def _reaches(other: Estimate, best: Estimate) -> bool:
    """Whether their intervals overlap; without one nobody can say."""
    return other.high is not None and best.low is not None and other.high >= best.low


def _shown(estimate: Estimate | None) -> str:
    return with_interval(estimate, "").strip() if estimate else ""
