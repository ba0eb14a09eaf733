"""Every metric of a result as one record: name, title, unit, how it is computed, and which way is better.

A new one is a function of ``Run`` and a line here. What is recorded row by row is described in
``harness/metrics/catalogue.py``, whose titles and units are used here where a result metric is the mean of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from harness.analysis.metrics.run import Run
from harness.analysis.metrics.traced import TRACED
from harness.analysis.read import NotMeasuredError
from harness.analysis.statistics import jain, percentile
from harness.metrics.catalogue import CATALOGUE, STANDARD, Level, OverDevices
from harness.metrics.rows import POOLED
from harness.metrics.telemetry import throttled
from harness.results.files import storage_errors
from harness.results.layout import TELEMETRY
from harness.spec import ExperimentSpec

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = {
    "seconds": "s",
    "percent": "%",
    "percent of time": "%",
    "watts": "W",
    "degrees Celsius": "°C",
    "tokens per second": "tokens/s",
}
"""Of the units of recorded metrics; the others are written out."""
_COLUMN_UNITS = {
    "s": "seconds",
    "%": "percent",
    "W": "watts",
    "J": "joules_per_request",
    "J/1,000 tokens": "joules",
    "°C": "celsius",
    "requests/s": "requests_per_second",
    "requests per second": "requests_per_second",
    "inputs/s": "inputs_per_second",
    "tokens/s": "tokens_per_second",
    "bytes/s": "bytes_per_s",
    "MHz": "mhz",
}
"""Units as the name of a column has them; the others are written as they are."""
_BARE = {"ratio", "index"}


@dataclass(frozen=True, slots=True)
class ResultMetric:
    """One metric of a result.

    ``name``: key in tables, e.g. ``latency_p95_exact``. ``how``: how it is computed, in one sentence. ``compute``: of a run, in
    ``unit``; None: of several runs, by their configuration. ``higher_is_better``: None: neither way is. ``short``: title of a narrow
    column; empty: ``title``. ``of``: whether the runs of an experiment have it; None: those of every experiment.
    """

    name: str
    title: str
    unit: str
    how: str
    compute: Callable[[Run], float] | None
    higher_is_better: bool | None = None
    short: str = ""
    of: Callable[[ExperimentSpec], bool] | None = None

    @property
    def heading(self) -> str:
        """Title of its column where there is little room."""
        return self.short or self.title

    @property
    def shown_unit(self) -> str:
        """The unit beside a value; none for a ratio."""
        return "" if self.unit in _BARE else self.unit

    @property
    def column(self) -> str:
        """Its name with the unit at the end."""
        word = _COLUMN_UNITS.get(self.unit, self.unit)
        if self.name.endswith(word) or word.startswith(self.name):
            return max(self.name, word, key=len)
        return f"{self.name}_{word}"


_more = partial(ResultMetric, higher_is_better=True)
_less = partial(ResultMetric, higher_is_better=False)

_OVER_DEVICES: Mapping[OverDevices, Callable[[pd.DataFrame], float]] = {
    OverDevices.MEAN: lambda table: table.mean().mean(),
    OverDevices.SUM: lambda table: table.mean().sum(),
    OverDevices.LARGEST_SUM: lambda table: table.sum(axis="columns").max(),
    OverDevices.HIGHEST: lambda table: table.max().max(),
}


def _over_devices(name: str, run: Run) -> float:
    return float(_OVER_DEVICES[CATALOGUE[name].over_devices](run.devices(name)))


def _mean_of(name: str, series: str, run: Run) -> float:
    return float(run.data.series(name, series).mean())


def _inputs(run: Run) -> float:
    if (inputs := run.data.manifest.inputs_per_request) is None:
        raise NotMeasuredError("the replicas did not say how many inputs they served")
    return run.rate[0] * inputs


def _quantile(what: str, quantile: float, run: Run) -> float:
    return percentile(run.data.requests.seconds(what), quantile)


def _worst_p99(run: Run) -> float:
    values_s, replicas = run.data.requests.seconds("latency"), run.data.requests.well["replica"]
    return max(percentile(values_s[replicas == replica], 0.99) for replica in run.data.requests.replicas)


def _shared_rates(run: Run) -> list[float]:
    """Of several replicas of which one at least served."""
    if len(run.replica_rates) < 2:
        raise NotMeasuredError("one replica shares with no other")
    if not max(run.replica_rates):
        raise NotMeasuredError("nothing was served, so there is nothing to share")
    return run.replica_rates


def _energy(run: Run) -> float:
    total_j, _ = run.energy_j
    if served := run.rate[0] * run.data.duration_s:
        return total_j / served
    raise NotMeasuredError("nothing was served")


def joules_per_1000_tokens(run: Run) -> float:
    """Energy of all GPUs by the output tokens that arrived in the recording, in thousands. Raises NotMeasuredError."""
    total_j, _ = run.energy_j
    if tokens := run.data.requests.output_tokens_per_s * run.data.duration_s:
        return total_j / tokens * 1000
    raise NotMeasuredError("no token arrived")


def _sm_active(run: Run) -> float:
    run.devices("gpu_utilization")  # without a GPU, its reason
    return run.telemetry_mean("sm_active_percent")


def _power_capped(run: Run) -> float:
    run.devices("gpu_utilization")
    path = run.data.folder / TELEMETRY
    with storage_errors(path, "read"):
        shares = [capped for _, capped in throttled(path).values()]
    if not shares:
        raise run.unread("throttle_reasons")
    return 100 * sum(shares) / len(shares)


def _recorded(name: str, how: str, compute: Callable[[Run], float], short: str = "") -> ResultMetric:
    """One that is made of the rows of a recorded metric."""
    recorded = CATALOGUE[name]
    return ResultMetric(name, recorded.title, _SYMBOLS.get(recorded.unit, recorded.unit), how, compute, short=short)


_OF_TOKENS = {
    "ttft": ("First token", "From the intended time of a request to its first token"),
    "ttfo": (
        "First answer token",
        "From the intended time of a request to the first token of its answer that is not reasoning",
    ),
    "tpot": ("Time per token", "Mean time of each token of an answer after the first"),
    "itl": ("Gap between tokens", "From one token of an answer to the next"),
}
_PERCENTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def _exact(what: str, percent: str) -> ResultMetric:
    """A percentile of what the sender measured."""
    title, of = _OF_TOKENS.get(what, ("Latency", "From the intended time of a request to the end of its answer"))
    return _less(
        f"{what}_{percent}_exact",
        f"{title}, exact {percent}",
        "s",
        f"{of}; nearest rank over all requests of the recording, at the sender.",
        partial(_quantile, what, _PERCENTS[percent]),
        short=f"Exact {percent}" if what == "latency" else f"{title} {percent}",
    )


_METRICS = (
    _more(
        "throughput",
        "Throughput",
        "requests/s",
        "Requests counted between the first and the last row, over all replicas, per second.",
        lambda run: run.rate[0],
    ),
    _more(
        "inputs",
        "Inputs",
        "inputs/s",
        "Throughput times the inputs of a request, as the replicas counted them.",
        _inputs,
    ),
    _less(
        "latency_mean",
        "Latency, mean",
        "s",
        "Mean over every request of the recording.",
        lambda run: float(run.data.requests.seconds("latency").mean()),
    ),
    *(_exact("latency", percent) for percent in _PERCENTS),
    _less(
        "latency_p99_worst",
        "Exact p99, worst replica",
        "s",
        "The highest p99 that a replica of this run has by itself; what a tenant must reckon with.",
        _worst_p99,
    ),
    ResultMetric(
        "requests",
        "Requests",
        "requests",
        "Requests that were answered well within the recording, counted by the sender.",
        lambda run: float(len(run.data.requests.well)),
    ),
    _more(
        "fairness",
        "Slowest / fastest replica",
        "ratio",
        "Throughput of the slowest replica over that of the fastest; 1 is fair.",
        lambda run: min(_shared_rates(run)) / max(_shared_rates(run)),
        short="Fairness",
    ),
    _more(
        "jain",
        "Jain's index",
        "index",
        "Fairness of the replicas' throughputs, from 1/n to 1.",
        lambda run: jain(_shared_rates(run)),
    ),
    _less(
        "energy",
        "GPU energy per request",
        "J",
        "Energy of all GPUs over the recording (idle power included), by requests served.",
        _energy,
        short="Energy /\N{NO-BREAK SPACE}request",
    ),
    ResultMetric(
        "gpu_sm_active",
        "SM active",
        "%",
        "Share of the SMs with work, mean over time and GPUs: how full the GPU was. GPU "
        "utilisation says only that some kernel ran.",
        _sm_active,
    ),
    ResultMetric(
        "gpu_power_capped",
        "At the power cap",
        "%",
        "Share of the readings in which the power cap set the GPU's clock.",
        _power_capped,
    ),
    *(
        _recorded(
            name, metric.over_devices, partial(_over_devices, name), "GPU use" if name == "gpu_utilization" else ""
        )
        for name, metric in CATALOGUE.items()
        if metric.level is Level.DEVICE
    ),
    _recorded("cpu_usage", "Mean of the sum over replicas.", partial(_mean_of, "cpu_usage", POOLED)),
    _recorded(
        "memory_usage",
        "Largest sum over replicas at one time.",
        lambda run: float(run.data.series("memory_usage", POOLED).max()),
    ),
    *(
        _recorded(
            name, f"Mean share of time in which some task waited for {resource}.", partial(_mean_of, name, "node")
        )
        for name, resource in (("cpu_psi", "a CPU"), ("memory_psi", "memory"), ("io_psi", "IO"))
    ),
)


def _has_objective(experiment: ExperimentSpec) -> bool:
    return experiment.slo is not None


def _publishes(name: str, experiment: ExperimentSpec) -> bool:
    return name in experiment.metrics


def _streams(experiment: ExperimentSpec) -> bool:
    """Whether the answers are streams of tokens."""
    server = experiment.workload.server
    return server is not None and server.streams


_OWN = (
    _more(
        "goodput",
        "Goodput",
        "requests/s",
        "Requests per second that met every limit of the objective by themselves.",
        lambda run: run.judged.goodput_per_s,
        of=_has_objective,
    ),
    *(replace(_exact(what, percent), of=_streams) for what in _OF_TOKENS for percent in _PERCENTS),
    _more(
        "output_tokens_per_s",
        "Output tokens",
        "tokens/s",
        "Tokens of good answers that arrived within the recording, per second; a stream's evenly from its first to its end.",
        lambda run: run.data.requests.output_tokens_per_s,
        of=_streams,
    ),
    _more(
        "output_tokens_per_gpu",
        "Output tokens per GPU",
        "tokens/s",
        "Output tokens per second, by the GPUs that the replicas were on.",
        lambda run: run.data.requests.output_tokens_per_s / run.gpus,
        of=_streams,
    ),
    _less(
        "energy_per_1000_tokens",
        "GPU energy per 1,000 output tokens",
        "J/1,000 tokens",
        "Energy of all GPUs over the recording (idle power included), by its output tokens.",
        joules_per_1000_tokens,
        of=_streams,
    ),
    _more(
        "tokens_per_user",
        "Tokens per user",
        "tokens/s",
        "1 / exact p90 of the time per token: what nine of ten users get, as MLPerf Endpoints defines it.",
        lambda run: 1 / _quantile("tpot", 0.9, run),
        of=_streams,
    ),
    *(
        replace(
            _recorded(
                name,
                "Mean over the rows of all replicas together; the workload says it itself.",
                partial(_mean_of, name, POOLED),
            ),
            of=partial(_publishes, name),
        )
        for name, metric in CATALOGUE.items()
        if name not in STANDARD
        and metric.level is not Level.DEVICE
        and name != "inputs_per_second"  # ``inputs`` says the same, from counts
    ),
    *(
        ResultMetric(name, *traced, {"accuracy": True, "loss": False}.get(name), of=lambda run: run.workload.trace)
        for name, traced in TRACED.items()
    ),
)

METRICS: Mapping[str, ResultMetric] = {metric.name: metric for metric in _METRICS}
"""Those of every run by name, in the order of tables."""
OWN: Mapping[str, ResultMetric] = {metric.name: metric for metric in _OWN}
"""Those that some runs have and others do not."""
ALL: Mapping[str, ResultMetric] = {**METRICS, **OWN}
STREAM_HEADLINE = tuple(f"{what}_{percent}_exact" for what in ("ttft", "itl", "tpot") for percent in ("p50", "p99"))
"""Of streams, those that a summary begins with."""


def exact_of(name: str) -> str:
    """What the exact value of a recorded percentile is called."""
    return f"{name.removeprefix('client_')}_exact"


def metrics_of(experiment: ExperimentSpec) -> list[ResultMetric]:
    """Those that its runs have, in the order of tables."""
    return [metric for metric in ALL.values() if metric.of is None or metric.of(experiment)]


OF_REPLICAS: Mapping[str, ResultMetric] = {
    metric.name: metric
    for metric in (
        _less(
            "replica_power",
            "Power of a replica",
            "W",
            "Its GPU's power above idle: all of it for a replica alone, else the share by the sharing mode's method.",
            None,
        ),
        _less(
            "replica_energy",
            "GPU energy per request of a replica",
            "J",
            "Its power times the recording, by the requests that it served.",
            None,
        ),
        ResultMetric(
            "replica_sm_active",
            "SM active of a replica",
            "%",
            "The same share of the time x streaming multiprocessors with work on them.",
            None,
        ),
    )
}
"""Those of each replica of a run, by name; see ``attribution``."""

OF_CONFIGURATIONS: Mapping[str, ResultMetric] = {
    metric.name: metric
    for metric in (
        _less("cv", "CV", "%", "Standard deviation of the throughput over its mean.", None),
        _more(
            "speed_up",
            "Speed-up",
            "ratio",
            "Mean throughput over that of one replica, with Welch's 95% interval on the logarithms.",
            None,
        ),
        ResultMetric("efficiency", "Efficiency", "ratio", "Speed-up over replicas.", None, higher_is_better=True),
    )
}
"""Those of all repeats of a configuration, by name."""
