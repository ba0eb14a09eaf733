"""What happened during one run: six panels over the seconds of its recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from harness.analysis.campaign import MeasuredRun
from harness.analysis.format import quantity
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.pages.plot import FAINT, INK, Panel, Picture, PlotSeries
from harness.analysis.read import ExperimentData, NotMeasuredError

_GIB = 2.0**30
_POOLED, _EACH = "all", "each replica"
_SPOKEN = ("throughput", "latency_p99_exact")
_MANY_ROWS = 200
_QUANTILES = (("latency_p50", "p50", 2), ("latency_p95", "p95", 3), ("latency_p99", "p99", 5))
_PRESSURES = (("cpu_psi", "CPU", 1), ("memory_psi", "memory", 6), ("io_psi", "IO", 7))
_DEVICE_COLOURS = (1, 6, 7, 0, 2, 3, 5)

Draw = Callable[[ExperimentData], list[PlotSeries]]


def timeline(experiment: MeasuredRun) -> Picture:
    """The plot of one run; a panel without data says why."""
    data = experiment.data.keeping()
    drawn = [*_COMMON, *(_ON_GPU if _has_gpu(data) else _ON_CPU)]
    panels = [_panel(data, title, draw, top) for title, draw, top in drawn]
    shown = ", ".join(title.partition(" (")[0].lower() for title, _, _ in drawn)
    figures = [
        f"{METRICS[name].title} {quantity(experiment.measured.figures[name], METRICS[name].unit)}"
        for name in _SPOKEN
        if name in experiment.measured.figures
    ]
    alt = f"{shown.capitalize()} of {experiment.name} over {data.duration_s:g} s. {', '.join(figures)}"
    name = f"timeline-{experiment.name}"
    return Picture(name, f"{experiment.name} over time", alt, panels, 2, (360, 150))


def _panel(data: ExperimentData, title: str, draw: Draw, top: float | None) -> Panel:
    try:
        series = draw(data)
    except NotMeasuredError as error:
        return Panel(title=title, absent=str(error))
    span = (0.0, data.duration_s or 1.0)
    return Panel(title=title, x_label="seconds since the recording began", series=series, x_range=span, top=top)


def _has_gpu(data: ExperimentData) -> bool:
    try:
        data.table("gpu_utilization")
    except NotMeasuredError:
        return False
    return True


def _line(
    values: pd.Series[float], scale: float, name: str, colour: int, *, silent: bool = False, thin: bool = False
) -> PlotSeries:
    x, y = values.index.to_numpy(dtype=float).tolist(), (values * scale).to_numpy(dtype=float).tolist()
    return PlotSeries(x=x, y=y, name=name, colour=colour, silent=silent, thin=thin or len(x) > _MANY_ROWS)


def _of_replicas(metric: str, scale: float = 1.0) -> Draw:
    """All replicas together over each of them."""

    def draw(data: ExperimentData) -> list[PlotSeries]:
        table = data.table(metric)
        replicas = [name for name in table.columns if name.startswith("replica-")]
        single = [_line(table[name], scale, _EACH, 4, silent=True, thin=True) for name in replicas]
        pooled = [_line(table[_POOLED], scale, _POOLED, 0)] if _POOLED in table else []
        return [*(single if len(single) > 1 else []), *pooled]

    return draw


def _latency(data: ExperimentData) -> list[PlotSeries]:
    tables = [(data.table(metric), label, colour) for metric, label, colour in _QUANTILES]
    return [_line(table[_POOLED], 1e3, label, colour) for table, label, colour in tables if _POOLED in table]


def _pressure(data: ExperimentData) -> list[PlotSeries]:
    return [_line(data.series(metric, "node"), 1.0, label, colour) for metric, label, colour in _PRESSURES]


def _host_cpu(data: ExperimentData) -> list[PlotSeries]:
    return [_line(data.telemetry()["host_cpu_percent"], 1.0, "whole machine", INK)]


def _device(metric: str, column: str, scale: float = 1.0) -> Draw:
    """One line a GPU at the recording's step, over the fast telemetry where there is some."""

    def draw(data: ExperimentData) -> list[PlotSeries]:
        table = data.table(metric)
        fast = [_line(values, scale, "", FAINT, silent=True, thin=True) for values in _telemetry(data, column)]
        devices = [name for name in table.columns if name.startswith("gpu-")]
        return fast + [
            _line(table[name], scale, name, _DEVICE_COLOURS[index % len(_DEVICE_COLOURS)])
            for index, name in enumerate(devices)
        ]

    return draw


def _telemetry(data: ExperimentData, column: str) -> list[pd.Series[float]]:
    try:
        frame = data.telemetry().filter(regex=rf"^gpu\d+_{column}$").dropna(axis="columns", how="all")
    except NotMeasuredError:
        return []
    return [frame[name] for name in frame.columns]


_COMMON: Sequence[tuple[str, Draw, float | None]] = (
    ("Throughput (requests/s)", _of_replicas("throughput"), None),
    ("Latency, histogram estimate (ms)", _latency, None),
)
_ON_GPU: Sequence[tuple[str, Draw, float | None]] = (
    ("GPU utilisation (%)", _device("gpu_utilization", "utilization_percent"), 105),
    ("GPU memory (GiB)", _device("gpu_memory", "memory_bytes", 1 / _GIB), None),
    ("GPU power (W)", _device("gpu_power", "power_w"), None),
    ("GPU temperature (°C)", _device("gpu_temperature", "temperature_celsius"), None),
)
_ON_CPU: Sequence[tuple[str, Draw, float | None]] = (
    ("CPU of the replicas (cores)", _of_replicas("cpu_usage"), None),
    ("Memory of the replicas (GiB)", _of_replicas("memory_usage", 1 / _GIB), None),
    ("Pressure (% of time stalled)", _pressure, None),
    ("CPU of the whole machine (%)", _host_cpu, 105),
)
