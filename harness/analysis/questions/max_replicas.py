"""How many workloads does a GPU carry? The law of scaling, and the most replicas within a latency limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from harness.analysis.campaign import PACED, Cell
from harness.analysis.contrasts.comparison import Arm, CellKey, Comparison
from harness.analysis.format import mode_name, number, quantity, replicas_in_words, under, whole_interval
from harness.analysis.pages.curves import Curve, CurveRow, by_workload
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Entry, Table, figure_entry
from harness.analysis.questions.question import ComparisonQuery, QuestionAnswer
from harness.analysis.statistics import Estimate, Outcome, keeps
from harness.analysis.statistics.scaling_models import LATENCY_LAWS, Fit, Scaling, knee, most_within, scaling_law
from harness.sharing.modes import mode_of


@dataclass(frozen=True, slots=True)
class Carried:
    """How many replicas one mode carries of one workload within a p99 limit.

    Attributes:
        most: the largest count of which every interval up to it is within; 0 when none is.
        breaks: the smallest count whose interval is beyond; None when none is.
        undecided: counts whose interval holds the limit, or that have none.
        by_law: the largest count within by the fitted law, at most the largest measured; None without a law.
    """

    most: int
    breaks: int | None
    undecided: list[int]
    by_law: int | None

    @property
    def in_words(self) -> str:
        """``kept up to 3 replicas, 5 by the law, broken at 8; undecided at 6: repeat``."""
        parts = [f"kept up to {replicas_in_words(self.most)}" if self.most else "kept for certain by none"]
        if self.by_law is not None and self.by_law != self.most:
            parts.append(f"{self.by_law} by the law")
        if self.breaks is not None:
            parts.append(f"broken at {self.breaks}")
        elif self.most and not self.undecided:
            parts.append("the most measured")
        undecided = ", ".join(map(str, self.undecided))
        return ", ".join(parts) + (f"; undecided at {undecided}: repeat" if undecided else "")

    @property
    def in_short(self) -> str:
        """``3``; ``at least 3`` or ``undecided`` where a larger count may be within, too."""
        if not any(self.most < count < (self.breaks or math.inf) for count in self.undecided):
            return str(self.most)
        return f"at least {self.most}" if self.most else "undecided"


def carried(arm: Arm, workload: str, limit_s: float) -> Carried:
    """Hold every measured count against the limit; between counts the fitted law of the p99 speaks, if there is one."""
    counts: dict[Outcome, list[int]] = {Outcome.PASS: [], Outcome.FAIL: [], Outcome.INCONCLUSIVE: []}
    for count in arm.counts(workload):
        p99 = arm.cells[CellKey(workload, count)].estimates.get("latency_p99_exact")
        counts[keeps(p99, limit_s) if p99 else Outcome.INCONCLUSIVE].append(count)
    breaks = min(counts[Outcome.FAIL], default=None)
    sure = [count for count in counts[Outcome.PASS] if breaks is None or count < breaks]
    law = scaling_law(arm.figures(workload, "latency_p99_exact"), LATENCY_LAWS).best
    by_law = most_within(law, limit_s, max(arm.counts(workload), default=0)) if law else None
    return Carried(max(sure, default=0), breaks, counts[Outcome.INCONCLUSIVE], by_law)


def laws(comparison: Comparison) -> dict[tuple[str, str], Fit]:
    """The law that each workload's throughput follows, by workload and label of the arm; those alone that have one."""
    laws = {(name, arm.label): _law(arm, name).best for name in comparison.workloads() for arm in comparison.arms}
    return {place: fit for place, fit in laws.items() if fit is not None}


def _law(arm: Arm, workload: str) -> Scaling:
    if any(arm.cells[CellKey(workload, count)].paced for count in arm.counts(workload)):
        return Scaling(None, None, PACED)
    return scaling_law(arm.figures(workload, "throughput"))


def answer(comparison: Comparison, query: ComparisonQuery) -> QuestionAnswer:
    """Laws, knees, memory and the count within the limit, for every workload and mode."""
    limit_s = query.latency_limit_s
    within = "" if limit_s is None else f"p99 within {quantity(limit_s, 's')}"
    rows: list[dict[str, str | Entry]] = []
    missing: list[str] = []
    advice: dict[str, list[str]] = {}
    for workload, arm in product(comparison.workloads(), comparison.arms):
        counts = arm.counts(workload)
        if not counts:
            continue
        name, scaling = f"{workload} {under(arm.label)}", _law(arm, workload)
        row: dict[str, str | Entry] = {"Workload": workload, "Run as": arm.label}
        row |= {"Law": _law_in_words(scaling), "Parameters": _parameters(scaling)}
        if len(counts) > 1:
            if scaling.best is None and scaling.advice:
                advice.setdefault(scaling.advice, []).append(name)
        elif not mode_of(arm.sharing).own_gpu:
            measured = f"{name} was measured at {replicas_in_words(counts[0])} only"
            missing.append(f"{measured}: add counts to `replicas` to see how it scales.")
        if limit_s is not None:
            row[within] = carried(arm, workload, limit_s).in_words
        rows.append(row | {"Memory of a replica": memory_entry(arm.cells[CellKey(workload, counts[-1])])})
    missing += [f"{sentence} Of: {', '.join(of)}." for sentence, of in advice.items()]
    if limit_s is None:
        missing.append("For workloads per GPU at a latency limit, give one: harness compare ... --latency-limit-ms 50")
    table = Table.of(rows, words=5 if within else 4) if rows else None
    takeaway = _takeaway(comparison, limit_s)
    return QuestionAnswer("carrying", "How many replicas fit?", takeaway, table, _curves(comparison, limit_s), missing)


def _takeaway(comparison: Comparison, limit_s: float | None) -> str:
    """How many keep the limit under each mode; without one, how the throughput still grows with the last replicas."""
    parts = []
    for arm in comparison.arms:
        of_workload = []
        for workload in comparison.workloads():
            counts = arm.counts(workload)
            if limit_s is not None:
                of_workload += [f"{workload} {carried(arm, workload, limit_s).in_short}"] if counts else []
                continue
            if len(counts) < 2:
                continue
            before, last = (arm.cells[CellKey(workload, count)].estimates.get("throughput") for count in counts[-2:])
            if before and last and not arm.cells[CellKey(workload, counts[-1])].paced:
                change = f"{100 * (last.mean / before.mean - 1):+.0f}%"
                of_workload.append(f"{workload} {change} from {counts[-2]} to {counts[-1]}")
        parts += [f"{mode_name(arm.label)}: {', '.join(of_workload)}"] if of_workload else []
    head = (
        "Mean throughput with more replicas"
        if limit_s is None
        else f"Replicas within a p99 of {quantity(limit_s, 's')}"
    )
    return f"{head}: {'; '.join(parts)}." if parts else ""


def _curves(comparison: Comparison, limit_s: float | None) -> list[Picture]:
    """Throughput with its law and p99 with its limit; a column for each workload."""
    limit = "" if limit_s is None else " with the limit (dotted)"
    rows = [
        CurveRow(Curve("throughput"), "requests/s", laws=laws(comparison)),
        CurveRow(Curve("latency_p99_exact", scale=1e3), "p99, ms", logarithmic=True, line=limit_s),
    ]
    title = f"Throughput of all replicas with the fitted laws (dashed), and p99 latency{limit}"
    speed = by_workload(comparison, "speed", title, rows)
    return [speed] if speed else []


def _law_in_words(scaling: Scaling) -> str:
    if scaling.best:
        point = knee(scaling.best)
        full = "" if point is None else f"; full at about {number(point)} replicas"
        return f"{scaling.best.law.name}: {scaling.best.law.formula}{full}"
    if scaling.nearest and scaling.nearest.p is not None:
        near = scaling.nearest
        return f"no law fits; the nearest, {near.law.name}, is off by up to {100 * near.off:.1f}% (p = {near.p:.2g})"
    return f"not known: {scaling.reason}"


def _parameters(scaling: Scaling) -> str:
    if scaling.best is None:
        return ""
    return ", ".join(f"{name} = {_with_interval(estimate)}" for name, estimate in scaling.best.parameters.items())


def _with_interval(estimate: Estimate) -> str:
    interval = whole_interval(estimate)
    return number(estimate.mean) + (f" ({interval})" if interval else "")


def memory_entry(cell: Cell) -> Entry:
    """GPU memory of a replica, and how many would fit on a GPU that is shared."""
    used = cell.estimates.get("gpu_memory")
    if used is None:
        return figure_entry(None, "bytes", cell.absent.get("gpu_memory", "not measured"))
    own = Estimate(used.mean / cell.replicas, None, None, used.n, None)
    entry = figure_entry(own, "bytes")
    gpus = cell.used[0].data.manifest.gpus
    total = gpus[0].memory_bytes if gpus else None
    experiment = cell.used[0].data.manifest.experiment
    mode = mode_of(experiment.sharing)
    if not total or not own.mean or mode.each_its_own or mode.own_multiprocessors:
        return Entry(entry.mean, ())
    limit_gb = experiment.mps.pinned_memory_gb if experiment.mps else None
    fit = math.floor(total / max(own.mean, (limit_gb or 0.0) * 1e9))
    most = mode.most_processes
    if most is None or fit <= most:
        return Entry(entry.mean, (f"{fit} would fit",))
    return Entry(entry.mean, (f"{most}, all that {experiment.sharing.value.upper()} takes, would fit",))
