"""Two arms held against each other in one metric: a ratio, its interval, a raw and a corrected p, an outcome, a sentence.

The scale is the logarithm, and p and interval are of one statistic. Arms of one campaign whose repeats are blocks (``order:
interleaved`` or ``random``) are paired by repeat from five pairs on, conditions always; all others are independent runs.

A contrast is corrected (Holm 1979) for its family, which the plan fixes: the metrics of ``COMPARED``, at every place where the same
two values were planned against each other for the same workload and the same campaigns. E.g. MPS against time-slicing at 1, 3 and 8
replicas is one family, whatever else was measured; so no p depends on which archives stand beside, nor on which section asks. A
metric that is not of those is a family of its own over the same places. The interval has 95%; where the correction alone keeps a
difference from being significant, it is widened to the corrected level, so that it always holds 1 where no difference is
significant, and leaves it out where one is.

Which mode is best by a few metrics is a question of its own, where a campaign ends when that is known (``question: best-mode``): then
those metrics are the family, and the p of each is the largest of the best mode against any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.campaign import CampaignAnalysis, Cell, MeasuredRun, key_of, pooled_cell, shared
from harness.analysis.statistics import (
    SIGNIFICANCE,
    Estimate,
    LogRatio,
    Outcome,
    corrected,
    paired,
    unpaired,
)
from harness.spec import Order

MIN_BLOCKS = 5
"""Pairs. Fewer lose more by their degrees of freedom than they win where runs resemble their neighbours: of three against three,
5% apart with a spread of 2%, pairs find 40%, independent runs 52%; and these err the less the more runs resemble each other."""
COMPARED = ("throughput", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact", "energy")
Value = Callable[[MeasuredRun], float | None]
"""A metric of one run; None where it does not have it."""


NO_FIGURES = dict.fromkeys(("ratio", "ci95_low", "ci95_high", "p"))
"""Of a contrast that there is not; see ``Contrast.figures``."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One metric of two configurations; ``ratio`` is of the candidate over the baseline, and its interval agrees with ``outcome``.

    ``p``: of this one comparison; None without an interval. ``corrected_p``: after Holm's correction with the ``family`` tests that
    are corrected together, this one included. ``paired``: by repeat; the ratio is the geometric mean over the pairs, else that of the
    means.
    """

    metric: str
    baseline: Cell
    candidate: Cell
    ratio: Estimate
    p: float | None = None
    corrected_p: float | None = None
    family: int = 1
    paired: bool = False

    @property
    def outcome(self) -> Outcome:
        """Whether, and in which direction, the candidate differs at 5%."""
        if self.corrected_p is None:
            return Outcome.INCONCLUSIVE
        if self.corrected_p >= SIGNIFICANCE:
            return Outcome.NOT_SIGNIFICANT
        return Outcome.HIGHER if self.ratio.mean > 1 else Outcome.LOWER

    @property
    def significant(self) -> bool:
        """Whether the two differ."""
        return self.outcome in {Outcome.HIGHER, Outcome.LOWER}

    @property
    def figures(self) -> dict[str, float | None]:
        """The ratio, its interval and the corrected p, for a program."""
        ratio = self.ratio
        return {"ratio": ratio.mean, "ci95_low": ratio.low, "ci95_high": ratio.high, "p": self.corrected_p}

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if self.outcome is Outcome.INCONCLUSIVE:
            single = self.ratio.n == 1
            return f"{self.outcome}: {'a single run has no spread; repeat it' if single else self.ratio.note}"
        if not self.significant:
            return str(self.outcome)
        return f"{100 * abs(self.ratio.mean - 1):.1f}% {self.outcome}"


_Arm = tuple[str, frozenset[Path], tuple[object, ...]]
"""Workload, campaigns, and the values in which two arms differ."""
_Place = tuple[frozenset[tuple[object, ...]], str]


class Contrasts:
    """Answers about campaigns; every contrast with the family that the plans fix."""

    def __init__(self, analyses: Iterable[CampaignAnalysis]) -> None:
        self._analyses = {analysis.folder: analysis for analysis in analyses}
        self._families: dict[tuple[frozenset[_Arm], frozenset[str], tuple[str, ...]], dict[_Place, float]] = {}
        self._cells: dict[frozenset[Path], list[Cell]] = {}
        self._values: dict[str, Value] = {}

    def of(
        self, baseline: Cell, candidate: Cell, metric: str, *, value: Value | None = None, first: int | None = None
    ) -> Contrast | None:
        """The candidate against the baseline; None where one does not have the metric, or a mean is not positive.

        ``metric``: a measure, or the name of what ``value`` gives. ``first``: see ``statistics.unpaired``.
        """
        if value is not None:
            self._values[metric] = value
        test, by_pairs = self._test(baseline, candidate, metric, first)
        if test is None:
            return None
        share = shared(baseline, candidate)
        if test.p is None:
            return Contrast(metric, baseline, candidate, test.estimate(share), paired=by_pairs)
        place = _place(baseline, candidate, metric)
        others = self._of_the_question(baseline, candidate, metric) or [
            p for key, p in self._family(baseline, candidate, metric).items() if key != place
        ]
        ratio, p, after = corrected(test, others, share)
        return Contrast(metric, baseline, candidate, ratio, p, after, len(others) + 1, by_pairs)

    def by_repeat(self, cell: Cell, metric: str) -> dict[int, float]:
        """One metric of every repeat used that has it; of cells of one campaign."""
        return {run.data.manifest.experiment.repeat: value for run, value in self._runs(cell, metric)}

    def _runs(self, cell: Cell, metric: str) -> Iterator[tuple[MeasuredRun, float]]:
        value = self._values.get(metric) or (lambda run: run.figures.get(metric))
        return ((run, figure) for run in cell.used if (figure := value(run)) is not None)

    def _test(
        self, baseline: Cell, candidate: Cell, metric: str, first: int | None = None
    ) -> tuple[LogRatio | None, bool]:
        """The statistic, and whether it is over pairs."""
        try:
            if self._blocks(baseline, candidate):
                before, after = self.by_repeat(baseline, metric), self.by_repeat(candidate, metric)
                repeats = sorted(before.keys() & after.keys())
                # Conditions are pairs by design, and nothing else: a machine drifts from one repeat to the next.
                if len(repeats) >= MIN_BLOCKS or differing(baseline, candidate) == {"condition"}:
                    return paired([after[repeat] for repeat in repeats], [before[repeat] for repeat in repeats]), True
            arms = [[figure for _, figure in self._runs(cell, metric)] for cell in (candidate, baseline)]
            return unpaired(*arms, first=first), False
        except ValueError:
            return None, False

    def _blocks(self, a: Cell, b: Cell) -> bool:
        """Whether the plan makes each repeat of the two a pair: a block of one campaign, whose number of repeats was fixed."""
        campaigns = _campaigns(a)
        if len(campaigns) != 1 or campaigns != _campaigns(b) or a.key == b.key:
            return False
        analysis = self._analyses.get(next(iter(campaigns)))
        spec = analysis.spec if analysis else None
        if differing(a, b) == {"condition"}:
            return True
        return spec is not None and not spec.open_ended and spec.order is not Order.LISTED

    def _of_the_question(self, a: Cell, b: Cell, metric: str) -> list[float]:
        """For a contrast that decides on the best mode in its own campaign: p of that campaign's other questions."""
        analysis = self._analyses.get(next(iter(_campaigns(a)))) if _campaigns(a) == _campaigns(b) else None
        wanted = analysis.spec.until_known if analysis and analysis.spec else None
        if analysis is None or analysis.progress is None or wanted is None or metric not in wanted.compare:
            return []
        both = any({a.key, b.key} <= {key_of(cell) for cell in group} for group in analysis.progress.rivals)
        questions = analysis.progress.verdicts if both else []
        own = {(a.workload, a.condition, metric), (b.workload, b.condition, metric)}
        return [it.p for it in questions if (it.cell.workload.name, it.cell.condition_name, it.metric) not in own]

    def _family(self, a: Cell, b: Cell, metric: str) -> Mapping[_Place, float]:
        """P of every test that is corrected together with this one."""
        kind, metrics = differing(a, b), COMPARED if metric in COMPARED else (metric,)
        arms = frozenset(_arm(cell, kind) for cell in (a, b))
        if (arms, kind, metrics) not in self._families:
            # In an order of their own, not the set's, so that the last digit is the same in every run.
            ordered = sorted(arms, key=lambda arm: (arm[0], sorted(map(str, arm[1])), str(arm[2])))
            sides = [[cell for cell in self._of(arm[1]) if _arm(cell, kind) == arm] for arm in ordered]
            self._families[arms, kind, metrics] = {
                _place(x, y, name): min((test.careful.p or 0.0) / shared(x, y), 1.0)
                for x in sides[0]
                for y in sides[-1]
                if differing(x, y) == kind
                for name in metrics
                if (test := self._test(x, y, name)[0]) is not None and test.p is not None
            }
        return self._families[arms, kind, metrics]

    def _of(self, campaigns: frozenset[Path]) -> list[Cell]:
        """Configurations that exactly these campaigns measured, over all their runs."""
        if campaigns not in self._cells:
            analyses = [analysis for folder, analysis in self._analyses.items() if folder in campaigns]
            by_key: dict[object, list[Cell]] = {}
            for cell in (cell for analysis in analyses for cell in analysis.cells if cell.used):
                by_key.setdefault(cell.key, []).append(cell)
            self._cells[campaigns] = [pooled_cell(cells) for cells in by_key.values() if len(cells) == len(campaigns)]
        return self._cells[campaigns]


def differing(a: Cell, b: Cell) -> frozenset[str]:
    """In what two configurations differ."""
    return frozenset(
        name for name in ("workload", "mode", "replicas", "condition") if getattr(a, name) != getattr(b, name)
    )


def _campaigns(cell: Cell) -> frozenset[Path]:
    return frozenset(run.data.folder.parent for run in cell.experiments)


def _arm(cell: Cell, kind: frozenset[str]) -> _Arm:
    return cell.workload, _campaigns(cell), tuple(getattr(cell, name) for name in sorted(kind))


def _place(a: Cell, b: Cell, metric: str) -> _Place:
    return frozenset([(a.key, _campaigns(a)), (b.key, _campaigns(b))]), metric
