"""The metrics of one run: each has its value, or the reason why there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from harness.analysis.metrics.catalogue import metrics_of
from harness.analysis.metrics.run import Run
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate
from harness.metrics.quality import SteadyState, steady_state
from harness.metrics.rows import POOLED

_PRESSURES = ("cpu_psi", "memory_psi", "io_psi")


class LoadState(StrEnum):
    """How loaded, from pressure or utilisation: below 10 %, below 70 %, to 90 %, above."""

    EMPTY = "empty"
    MODEST = "modest"
    HIGH = "high"
    CRITICAL = "critical"


def load_state(percent: float) -> LoadState:
    """The band of a pressure or utilisation, in percent."""
    if percent < 10:
        return LoadState.EMPTY
    if percent < 70:
        return LoadState.MODEST
    return LoadState.HIGH if percent <= 90 else LoadState.CRITICAL


@dataclass(slots=True)
class Measured:
    """The metrics of one run.

    Attributes:
        figures: value by metric, in its unit.
        absent: metric to the reason for its absence.
        replica_throughput: requests per second of each replica, in order; empty when not measured.
        within: throughput with a batch-means interval inside this one run; None when not measured.
        steady: whether the throughput had settled; None when not measured.
        loads: load state by what is loaded (``node pressure``, ``node CPU``, ``GPU``).
        notes: how a value came about, where that is not the usual way.
    """

    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    replica_throughput: list[float] = field(default_factory=list)
    within: Estimate | None = None
    steady: SteadyState | None = None
    loads: dict[str, LoadState] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure(data: ExperimentData) -> Measured:
    """All metrics of one run. Raises StorageError or ResultsPathError when a file cannot be read."""
    run, measured = Run(data), Measured()
    for metric in metrics_of(data.manifest.experiment):
        if metric.compute is None:
            continue
        try:
            measured.figures[metric.name] = metric.compute(run)
        except ValueError as error:  # NotMeasuredError, or a statistic that the sample cannot support
            measured.absent[metric.name] = str(error)
    if "throughput" in measured.figures and run.rate[1]:
        measured.notes.append(run.rate[1])
    if "energy" in measured.figures:
        measured.notes.append(f"Energy from {run.energy_j[1]}.")
    # What is not there has been said: in the notes, or as the reason why metrics made of it are absent.
    with suppress(NotMeasuredError):
        measured.replica_throughput = run.replica_rates
    with suppress(NotMeasuredError):
        measured.within = run.within if "throughput" in measured.figures else None
    with suppress(NotMeasuredError, KeyError):
        measured.steady = steady_state(run.data.table("throughput")[POOLED].to_numpy())
    figures = measured.figures
    percents = {"node pressure": max((figures[name] for name in _PRESSURES if name in figures), default=None)}
    if "cpu_usage" in figures:
        percents["node CPU"] = 100 * figures["cpu_usage"] / data.manifest.provenance.host.cpus
    percents["GPU"] = figures.get("gpu_utilization")
    measured.loads = {what: load_state(percent) for what, percent in percents.items() if percent is not None}
    return measured
