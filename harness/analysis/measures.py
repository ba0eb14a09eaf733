"""The figures of one experiment: each is measured, or missing with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from harness.analysis.energy import energy_j
from harness.analysis.load_bands import LoadState, load_state
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.analysis.statistics import Estimate, percentile
from harness.analysis.statistics.distributions import Floats
from harness.analysis.throughput import fairness, pooled_rate, replica_rates, within_run
from harness.metrics.catalogue import CATALOGUE, STANDARD, Level
from harness.metrics.metric import OverDevices
from harness.metrics.steady import SteadyState, steady_state
from harness.metrics.throttling import power_capped, reasons
from harness.results.files import storage_errors
from harness.results.layout import TELEMETRY

_POOLED = "all"
_PRESSURES = ("cpu_psi", "memory_psi", "io_psi")


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure.

    Attributes:
        name: key in tables, e.g. ``latency_p95_exact``.
        title: for people.
        unit: of the value.
        how: how it is computed, in one sentence.
    """

    name: str
    title: str
    unit: str
    how: str


@dataclass(slots=True)
class Measured:
    """The figures of one experiment.

    Attributes:
        figures: by measure, in its unit.
        absent: measure to the reason for its absence.
        replica_throughput: requests per second of each replica, in order; empty when not measured.
        within: throughput with a batch-means interval inside this one run; None when not measured.
        steady: whether the throughput had settled; None when not measured.
        loads: load state by what is loaded (``node pressure``, ``node CPU``, ``GPU``).
        notes: how a figure came about, where that is not the usual way.
    """

    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    replica_throughput: list[float] = field(default_factory=list)
    within: Estimate | None = None
    steady: SteadyState | None = None
    loads: dict[str, LoadState] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _mean_of(metric: str, series: str) -> Callable[[ExperimentData], float]:
    return lambda data: float(data.values(metric, series).mean())


def _devices(data: ExperimentData, metric: str) -> pd.DataFrame:
    table = data.table(metric)
    columns = [name for name in table.columns if name.startswith("gpu-")]
    if not columns:
        raise NotMeasuredError("no device gave a value")
    return table if len(columns) == len(table.columns) else table[columns]


_FIGURE: Mapping[OverDevices, Callable[[pd.DataFrame], float]] = {
    OverDevices.MEAN: lambda table: table.mean().mean(),
    OverDevices.SUM: lambda table: table.mean().sum(),
    OverDevices.LARGEST_SUM: lambda table: table.sum(axis="columns").max(),
    OverDevices.HIGHEST: lambda table: table.max().max(),
}


def _over_devices(metric: str, how: OverDevices, data: ExperimentData) -> float:
    return float(_FIGURE[how](_devices(data, metric)))


_SHORT = {
    "seconds": "s",
    "percent": "%",
    "percent of time": "%",
    "watts": "W",
    "degrees Celsius": "°C",
    "tokens per second": "tokens/s",
}

_SIMPLE: tuple[tuple[Measure, Callable[[ExperimentData], float]], ...] = (
    *(
        (
            Measure(name, metric.title, _SHORT.get(metric.unit, metric.unit), metric.over_devices),
            partial(_over_devices, name, metric.over_devices),
        )
        for name, metric in CATALOGUE.items()
        if metric.level is Level.DEVICE
    ),
    (
        Measure("cpu_usage", "CPU", "cores", "Mean of the sum over replicas."),
        _mean_of("cpu_usage", _POOLED),
    ),
    (
        Measure("memory_usage", "Memory", "bytes", "Largest sum over replicas at one time."),
        lambda data: float(data.values("memory_usage", _POOLED).max()),
    ),
    (
        Measure("cpu_psi", "CPU pressure", "%", "Mean share of time in which some task waited for a CPU."),
        _mean_of("cpu_psi", "node"),
    ),
    (
        Measure("memory_psi", "Memory pressure", "%", "Mean share of time in which some task waited for memory."),
        _mean_of("memory_psi", "node"),
    ),
    (
        Measure("io_psi", "IO pressure", "%", "Mean share of time in which some task waited for IO."),
        _mean_of("io_psi", "node"),
    ),
)

_LATENCY: tuple[tuple[Measure, Callable[[Floats], float]], ...] = (
    (
        Measure("latency_mean", "Latency, mean", "s", "Mean over every request of the recording."),
        lambda values: float(values.mean()),
    ),
    *(
        (
            Measure(
                f"latency_p{quantile * 100:g}_exact",
                f"Latency, exact p{quantile * 100:g}",
                "s",
                "Nearest rank over every request of the recording, all replicas pooled; from the raw log, where the "
                f"metric latency_p{quantile * 100:g} is an estimate from a histogram.",
            ),
            lambda values, quantile=quantile: percentile(values, quantile),
        )
        for quantile in (0.5, 0.95, 0.99)
    ),
)

_WORST = Measure(
    "latency_p99_worst",
    "Exact p99, worst replica",
    "s",
    "The highest p99 that a replica of this run has by itself; what a tenant must reckon with.",
)

_RATES = (
    Measure(
        "throughput",
        "Throughput",
        "requests/s",
        "Requests counted between the first and the last row, over all replicas, per second.",
    ),
    Measure("inputs", "Inputs", "inputs/s", "Throughput times the inputs of a request, as the replicas counted them."),
)

_SM_ACTIVE = Measure(
    "gpu_sm_active",
    "SM active",
    "%",
    "Share of the streaming multiprocessors with work on them, mean over time and GPUs: how full the GPU was. GPU "
    "utilisation says only that some kernel ran.",
)
_POWER_CAPPED = Measure(
    "gpu_power_capped", "At the power cap", "%", "Share of the readings in which the power cap set the GPU's clock."
)

_OTHERS = (
    Measure("requests", "Requests", "requests", "Requests in the raw logs that ended within the recording."),
    Measure(
        "fairness",
        "Slowest / fastest replica",
        "ratio",
        "Throughput of the slowest replica over that of the fastest; 1 is fair.",
    ),
    Measure("jain", "Jain's index", "index", "Fairness of the replicas' throughputs, from 1/n to 1."),
    Measure(
        "energy",
        "GPU energy per request",
        "J",
        "Energy of all GPUs over the recording (idle power included), by requests served.",
    ),
)

MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        *_RATES,
        *(measure for measure, _ in _LATENCY),
        _WORST,
        *_OTHERS,
        _SM_ACTIVE,
        _POWER_CAPPED,
        *(measure for measure, _ in _SIMPLE),
    )
}
"""Every figure of every experiment by name, in the order of tables."""

OWN: Mapping[str, Measure] = {
    name: Measure(
        name,
        metric.title,
        _SHORT.get(metric.unit, metric.unit),
        "Mean over the rows of all replicas together; the workload says it itself.",
    )
    for name, metric in CATALOGUE.items()
    if name not in STANDARD
    and metric.level is not Level.DEVICE
    and name != "inputs_per_second"  # ``inputs`` says the same, from counts
}
"""Figures that only some workloads have, by name: those of the metrics that they publish themselves."""
ALL: Mapping[str, Measure] = {**MEASURES, **OWN}
"""Both, by name."""


def measure(data: ExperimentData) -> Measured:
    """All figures of one experiment. Raises StorageError or ResultsPathError when a file cannot be read."""
    found = Measured()
    data = data.keeping()
    _measure_rates(found, data)
    for item, compute in _SIMPLE:
        _put(found, item.name, partial(compute, data))
    _measure_telemetry(found, data)
    _measure_latencies(found, data)
    for name in data.manifest.experiment.metrics:
        if name in OWN:
            _put(found, name, partial(_mean_of(name, _POOLED), data))
    _measure_fairness(found, data)
    _measure_energy(found, data)
    _measure_steadiness(found, data)
    _measure_loads(found, data)
    return found


def _put(found: Measured, name: str, compute: Callable[[], float]) -> None:
    try:
        found.figures[name] = compute()
    except ValueError as error:  # NotMeasuredError, or a statistic that the sample cannot support
        found.absent[name] = str(error)


def _measure_latencies(found: Measured, data: ExperimentData) -> None:
    names = ["requests", *(item.name for item, _ in _LATENCY), _WORST.name]
    try:
        each = data.replica_latencies_s()
    except NotMeasuredError as error:
        found.absent |= dict.fromkeys(names, str(error))
        return
    pooled = np.concatenate(each)
    found.figures["requests"] = float(len(pooled))
    if not len(pooled):
        found.absent |= dict.fromkeys(names[1:], "no request ended within the recording")
        return
    for item, compute in _LATENCY:
        _put(found, item.name, partial(compute, pooled))
    _put(found, _WORST.name, lambda: max(percentile(latencies, 0.99) for latencies in each))


def _measure_telemetry(found: Measured, data: ExperimentData) -> None:
    if no_gpu := found.absent.get("gpu_utilization"):
        found.absent |= dict.fromkeys((_SM_ACTIVE.name, _POWER_CAPPED.name), no_gpu)
        return

    def sm_active() -> float:
        columns = data.telemetry().filter(regex=r"^gpu\d+_sm_active_percent$").dropna(axis="columns", how="all")
        if columns.empty:
            raise NotMeasuredError(_unread(data, "sm_active_percent"))
        return float(columns.mean().mean())

    def capped() -> float:
        path = data.folder / TELEMETRY
        with storage_errors(path, "read"):
            shares = [power_capped(masks.elements()) for masks in reasons(path).values()]
        if not shares:
            raise NotMeasuredError(_unread(data, "throttle_reasons"))
        return 100 * sum(shares) / len(shares)

    _put(found, _SM_ACTIVE.name, sm_active)
    _put(found, _POWER_CAPPED.name, capped)


def _unread(data: ExperimentData, column: str) -> str:
    """Why the telemetry holds nothing of a column of the GPUs, as far as it was said."""
    said = data.manifest.telemetry
    reasons_by_column: Mapping[str, str] = said.get("missing") or {}
    why = next((why for name, why in reasons_by_column.items() if name.endswith(f"_{column}")), said.get("gpu_absent"))
    return f"the telemetry has no reading of {column}{f': {why}' if why else ''}"


def _measure_rates(found: Measured, data: ExperimentData) -> None:
    try:
        rate, note = pooled_rate(data)
    except NotMeasuredError as error:
        found.absent |= {"throughput": str(error), "inputs": str(error)}
        return
    found.figures["throughput"] = rate
    each = data.manifest.inputs_per_request
    if each is None:
        found.absent["inputs"] = "the replicas did not say how many inputs they served"
    else:
        found.figures["inputs"] = rate * each
    found.notes += [note] if note else []
    try:
        found.within = within_run(data)
    except NotMeasuredError:
        return  # The note has said what there is of counters.


def _measure_fairness(found: Measured, data: ExperimentData) -> None:
    try:
        found.replica_throughput = replica_rates(data)
        found.figures["fairness"], found.figures["jain"] = fairness(found.replica_throughput)
    except NotMeasuredError as error:
        found.absent |= {"fairness": str(error), "jain": str(error)}


def _measure_energy(found: Measured, data: ExperimentData) -> None:
    served = found.figures.get("throughput", 0.0) * data.duration_s
    try:
        total_j, source = energy_j(data)
    except NotMeasuredError as error:
        found.absent["energy"] = str(error)
        return
    if not served:
        found.absent["energy"] = found.absent.get("throughput", "nothing was served")
        return
    found.figures["energy"] = total_j / served
    found.notes.append(f"Energy from {source}.")


def _measure_steadiness(found: Measured, data: ExperimentData) -> None:
    try:
        found.steady = steady_state(data.table("throughput")[_POOLED].to_numpy())
    except (NotMeasuredError, KeyError):
        return  # Said already: without a pooled throughput, every figure of it is absent.


def _measure_loads(found: Measured, data: ExperimentData) -> None:
    pressures = [found.figures[name] for name in _PRESSURES if name in found.figures]
    if pressures:
        found.loads["node pressure"] = load_state(max(pressures))
    if "cpu_usage" in found.figures:
        found.loads["node CPU"] = load_state(100 * found.figures["cpu_usage"] / data.manifest.provenance.host.cpus)
    if "gpu_utilization" in found.figures:
        found.loads["GPU"] = load_state(found.figures["gpu_utilization"])
