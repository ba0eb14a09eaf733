"""Settings of one workload side by side, by what differs between them: batch, precision, execution, size; and what holds each back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.analysis.bottleneck import BottleneckFound, Cause, find
from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.format import DASH, number, quantity, with_interval
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.pages.plot import Panel, Picture, PlotSeries, ReferenceLine, interval_series
from harness.analysis.pages.table import Column, Entry, Table, figure_entry
from harness.analysis.statistics import Estimate, t_interval
from harness.errors import counted
from harness.results.old_profile import OldProfile
from harness.spec import StressLoad
from harness.spec.workload import axes_of, values_of

BATCH = "batch_size"
_COLUMNS = (
    "inputs",
    "latency_mean",
    "latency_p99_exact",
    "gpu_memory_peak_percent",
    "gpu_sm_active",
    "gpu_dram_active_percent",
    "gpu_power",
    "cpu_usage",
)
_SHORT = (
    ("inputs/s", "inputs", 1.0),
    ("ms/request", "latency_mean", 1e3),
    ("GPU memory %", "gpu_memory_peak_percent", 1.0),
    ("SM %", "gpu_sm_active", 1.0),
    ("DRAM %", "gpu_dram_active_percent", 1.0),
)
_CAUSE = Column("bottleneck", words=True)
_IF_ANY = ("loss_first", "loss", "accuracy")
_MEMORY = "gpu_memory_peak_percent"
_PANELS = (
    ("inputs", 1.0, "Throughput (inputs/s)"),
    ("latency_mean", 1e3, "Mean latency of a request (ms)"),
    (_MEMORY, 1.0, "Peak GPU memory (%)"),
)
LIMIT_PERCENT = 85.0
_MOST_BARS = 24
_WIDE = 0.5
"""Half of an interval over its mean, beyond which the mean is no headline."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting: its name as folders have it, its values, estimates by metric, and the reasons of those that are missing.

    ``failure``: why a run was not measured. ``finding``: what holds it back; None where nothing was measured or traced.
    ``kernels``: those that ran longest: name, calls and us per request, mean us, percent.
    """

    name: str
    values: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    missing: Mapping[str, str]
    failure: str
    finding: BottleneckFound | None
    kernels: Sequence[Sequence[Any]] = ()

    @property
    def held_back(self) -> str:
        """In one sentence, or how it ended without a figure."""
        if self.finding is not None:
            return self.finding.sentence
        return "not traced" if self.estimates else self.failure.partition(":")[0] or "not measured"

    def mean(self, metric: str) -> float | None:
        """Over the runs."""
        return self.estimates[metric].mean if metric in self.estimates else None


@dataclass(frozen=True, slots=True)
class Family:
    """All settings of one workload under one mode with one number of replicas, in the order of the plan.

    ``axes``: on which they differ. ``capacity``: how far the batch goes, in sentences.
    """

    title: str
    axes: list[str]
    variants: list[Variant]
    capacity: list[str] = field(default_factory=list)

    @property
    def measured(self) -> list[Variant]:
        """Those with a speed."""
        return [variant for variant in self.variants if "inputs" in variant.estimates]

    def curves(self) -> dict[str, list[Variant]]:
        """Measured settings that differ in the batch alone, ascending, by what they have in common."""
        curves: dict[str, list[Variant]] = {}
        for variant in sorted(self.measured, key=lambda variant: variant.values[BATCH]):
            rest = ", ".join(
                str(variant.values[axis]) for axis in self.axes if axis != BATCH and axis in variant.values
            )
            curves.setdefault(rest or "all", []).append(variant)
        return curves

    def answers(self) -> list[str]:
        """The fastest setting, what holds it back, how far the batch goes, and the best accuracy."""
        if not self.measured:
            return [f"{self.title}: nothing could be measured.", *self.capacity]
        best = max(self.measured, key=lambda variant: variant.estimates["inputs"].mean)
        estimate = best.estimates["inputs"]
        wide = estimate.half_width is not None and estimate.half_width > _WIDE * estimate.mean
        rate = quantity(estimate.mean, "inputs/s") if wide else with_interval(estimate, "inputs/s")
        latency = best.mean("latency_mean")
        slow = "" if latency is None else f", {quantity(latency, 's')} per request"
        sentences = [f"The fastest setting of {self.title} is {best.name}: {rate}{slow}."]
        if wide:
            sentences.append(
                f"Caveat: its runs differ too much ({counted(estimate.n, 'run')}, ± {100 * (estimate.half_width or 0) / estimate.mean:.0f}%): repeat it."
            )
        if best.finding is not None:
            why = best.finding.sentence[:1].lower() + best.finding.sentence[1:]
            sentences.append(" ".join((f"At this setting: {why}", *best.finding.evidence, *best.finding.following)))
        sentences += self.capacity
        if learnt := [variant for variant in self.measured if "accuracy" in variant.estimates]:
            top = max(learnt, key=lambda variant: variant.estimates["accuracy"].mean)
            loss = top.mean("loss")
            more = "" if loss is None else f", loss {number(loss)}"
            sentences.append(f"The best accuracy is {top.estimates['accuracy'].mean:.1%}{more}, of {top.name}.")
        return sentences

    def table(self) -> Table:
        """Every setting with its metrics and what holds it back."""
        known = {name for variant in self.variants for name in variant.estimates}
        names = [*_COLUMNS, *(name for name in _IF_ANY if name in known)]
        columns = [
            Column("Setting", "setting", words=True),
            *(Column(ALL[name].heading, name) for name in names),
            _CAUSE,
        ]
        rows = [
            [variant.name, *(_entry(variant, name) for name in names), variant.held_back] for variant in self.variants
        ]
        return Table(columns, rows, "Every setting with its figures")

    def short_table(self) -> Table:
        """The same for a terminal."""
        columns = [Column("setting", words=True), *(Column(title) for title, _, _ in _SHORT), _CAUSE]
        rows = [
            [
                variant.name,
                *(DASH if (mean := variant.mean(name)) is None else number(scale * mean) for _, name, scale in _SHORT),
                variant.held_back,
            ]
            for variant in self.variants
        ]
        return Table(columns, rows)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what `harness profile` says of every setting."""
        return {
            "workload": self.title,
            "axes": self.axes,
            "answers": self.answers(),
            "settings": [
                {
                    "name": variant.name,
                    "values": dict(variant.values),
                    "failure": variant.failure,
                    "figures": {name: asdict(estimate) for name, estimate in variant.estimates.items()},
                    "missing": dict(variant.missing),
                    "bottleneck": variant.finding and asdict(variant.finding),
                }
                for variant in self.variants
            ],
        }


def families(analysis: CampaignAnalysis) -> list[Family]:
    """Workloads that have several settings, or whose kernels were traced."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in analysis.cells:
        if cell.experiments:
            workload = cell.experiments[0].data.manifest.experiment.workload
            rest = (cell.mode, f"{cell.replicas} replicas" if cell.replicas > 1 else "", cell.condition)
            groups.setdefault((workload.family, *rest), []).append(cell)
    several_modes = len({key[1] for key in groups}) > 1
    every_family = [
        _family([name, *([mode] if several_modes else []), *rest], cells, analysis)
        for (name, mode, *rest), cells in groups.items()
    ]
    return [family for family in every_family if family.axes or any(variant.finding for variant in family.variants)]


def _family(names: Sequence[str], cells: Sequence[Cell], analysis: CampaignAnalysis) -> Family:
    workloads = [cell.experiments[0].data.manifest.experiment.workload for cell in cells]
    raised = [series for series in analysis.stress_series if series.unit is StressLoad.BATCH]
    capacity = [
        sentence for series in raised if series.lowest.workload.family == names[0] for sentence in series.sentences()
    ]
    variants = [_variant(cell, values_of(workload)) for cell, workload in zip(cells, workloads, strict=True)]
    return Family(", ".join(filter(None, names)), axes_of(workloads), variants, capacity)


def _variant(cell: Cell, values: Mapping[str, Any]) -> Variant:
    manifests = [run.data.manifest for run in cell.experiments]
    unused = [run.data.manifest.verdict for run in cell.experiments if not run.used]
    reasons = [f"{verdict.codes[0]}: {verdict.reasons[0]}" for verdict in unused if verdict.codes and verdict.reasons]
    traced = manifests[0].experiment.workload.trace and bool(cell.estimates)
    finding = _finding(cell.estimates, cell.absent) if traced else None
    kernels = [replica["trace"].get("top", ()) for replica in manifests[0].replicas if "trace" in replica]
    failure = next(iter(reasons), "")
    return Variant(cell.workload, values, cell.estimates, cell.absent, failure, finding, next(iter(kernels), ()))


def _finding(estimates: Mapping[str, Estimate], missing: Mapping[str, str]) -> BottleneckFound:
    return find({name: estimate.mean for name, estimate in estimates.items()}, missing)


def family_of_old(profile: OldProfile) -> Family:
    """What an earlier version's profile measured."""
    points: dict[str, list[Any]] = {}
    for point in profile.points:
        points.setdefault(point.name, []).append(point)
    variants = []
    for name, repeats in points.items():
        good = [point.figures for point in repeats if not point.failure]
        metrics = dict.fromkeys(metric for figures in good for metric in figures)
        estimates = {
            metric: t_interval([figures[metric] for figures in good if metric in figures]) for metric in metrics
        }
        reasons = {metric: why for point in repeats if not point.failure for metric, why in point.missing.items()}
        missing = {metric: why for metric, why in reasons.items() if metric not in estimates}
        finding = _finding(estimates, missing) if good else None
        failure = next((point.failure for point in repeats if point.failure), "")
        kernels = next((point.kernels for point in repeats if point.kernels), ())
        variants.append(Variant(name, repeats[0].values, estimates, missing, failure, finding, kernels))
    axes = [axis for axis in variants[0].values if len({repr(variant.values.get(axis)) for variant in variants}) > 1]
    variants.sort(
        key=lambda variant: (
            [str(variant.values[axis]) for axis in variant.values if axis != BATCH],
            variant.values[BATCH],
        )
    )
    return Family(profile.workload, axes, variants, profile.capacity)


def _entry(variant: Variant, name: str) -> Entry:
    reason = variant.missing.get(name) or variant.failure or "not measured"
    return figure_entry(variant.estimates.get(name), ALL[name].shown_unit, reason)


def pictures(family: Family) -> list[Picture]:
    """Those that there is something to draw for."""
    return [picture for picture in (_curves(family), _where_time_goes(family)) if picture is not None]


def _file(family: Family, what: str) -> str:
    readable = "".join(character if character.isalnum() else "-" for character in family.title)
    return f"{what}-{readable}"


def _curves(family: Family) -> Picture | None:
    """Throughput, latency and memory of every curve against the batch size; None where that is one."""
    if BATCH not in family.axes or not family.measured:
        return None
    panels = []
    for name, scale, title in _PANELS:
        series = []
        for index, (label, variants) in enumerate(family.curves().items()):
            known = {float(item.values[BATCH]): item.estimates[name] for item in variants if name in item.estimates}
            if known:
                series.append(interval_series(list(known), list(known.values()), scale, index, label))
        reasons = (variant.missing.get(name, "") for variant in family.measured)
        absent = "" if series else next(filter(None, reasons), "not measured")
        rules = [ReferenceLine(LIMIT_PERCENT, f"{LIMIT_PERCENT:g}%", dashes="--")] if name == _MEMORY else []
        panels.append(
            Panel(title=title, x_label="batch size", series=series, rules=rules, doubling=True, absent=absent)
        )
    title = f"{family.title}: speed and memory against the batch size"
    return Picture(_file(family, "batch"), title, panels, 3, (280, 220), png=True)


def _where_time_goes(family: Family) -> Picture | None:
    """The share of the time that each cause explains, one bar a setting; None where no metric says."""
    variants = [variant for variant in family.measured if variant.finding and any(variant.finding.shares.values())][
        :_MOST_BARS
    ]
    if not variants:
        return None
    labels = [variant.name for variant in variants]
    places = [float(place) for place in range(len(variants))]
    starts, series = [0.0] * len(variants), []
    for colour, cause in enumerate(Cause):
        shares = [100 * ((variant.finding.shares[cause] or 0.0) if variant.finding else 0.0) for variant in variants]
        ends = [start + share for start, share in zip(starts, shares, strict=True)]
        series.append(PlotSeries(x=ends, y=places, name=cause.value, colour=colour, starts=starts, labels=labels))
        starts = ends
    panel = Panel(title="Share of the time that each cause explains (%)", series=series, x_range=(0, 100))
    title = f"{family.title}: where the time goes; what is left empty is not explained"
    size = (640.0, 28.0 * len(variants) + 60)
    return Picture(_file(family, "time"), title, [panel], 1, size, png=True)
