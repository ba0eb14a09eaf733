"""What happened during one experiment: six panels over the seconds of its recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis.campaign import Experiment
from harness.analysis.chart import FAINT, PALETTE
from harness.analysis.figure_style import Picture, finished, from_zero, new_figure, say_absent, style
from harness.analysis.format import quantity
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.read import ExperimentData, NotMeasuredError

_GIB = 2.0**30
_POOLED, _EACH = "all", "each replica"
_SPOKEN = ("throughput", "latency_p99_exact")
_MANY_ROWS, _FINE, _PLAIN = 200, 0.8, 1.4
_QUANTILES = (("latency_p50", "p50"), ("latency_p95", "p95"), ("latency_p99", "p99"))

Panel = tuple[str, Callable[[Axes, ExperimentData], None]]


def timeline(experiment: Experiment) -> Picture:
    """The plot of one experiment; a panel without data says why."""
    data = experiment.data.keeping()
    panels = [*_COMMON, *(_ON_GPU if _has_gpu(data) else _ON_CPU)]
    with style(line_width=_FINE if data.manifest.rows > _MANY_ROWS else _PLAIN):
        figure = new_figure(10, 6.2)
        grid = figure.subplots(3, 2, sharex=True).ravel()
        for axes, (title, draw) in zip(grid, panels, strict=True):
            axes.set_title(title)
            axes.set_xlim(0, data.duration_s or 1)
            try:
                draw(axes, data)
            except NotMeasuredError as error:
                say_absent(axes, str(error))
            axes.tick_params(labelbottom=True)
        for axes in grid[-2:]:
            axes.set_xlabel("seconds since the recording began")
        figure.subplots_adjust(left=0.06, right=0.985, top=0.95, bottom=0.08, hspace=0.28, wspace=0.13)
        shown = ", ".join(title.partition(" (")[0].lower() for title, _ in panels)
        figures = [
            f"{METRICS[name].title} {quantity(experiment.measured.figures[name], METRICS[name].unit)}"
            for name in _SPOKEN
            if name in experiment.measured.figures
        ]
        alt = f"{shown.capitalize()} of {experiment.name} over {data.duration_s:g} s. {', '.join(figures)}"
        return finished(figure, f"timeline-{experiment.name}", f"{experiment.name} over time", alt, png=False)


def _has_gpu(data: ExperimentData) -> bool:
    try:
        data.table("gpu_utilization")
    except NotMeasuredError:
        return False
    return True


def _throughput(axes: Axes, data: ExperimentData) -> None:
    _replicas_and_pooled(axes, data.table("throughput"), 1.0)


def _latency(axes: Axes, data: ExperimentData) -> None:
    for index, (metric, label) in enumerate(_QUANTILES):
        series = data.table(metric)
        if _POOLED in series:
            axes.plot(series.index, series[_POOLED] * 1e3, color=PALETTE[index], label=label)
    from_zero(axes)
    _legend(axes)


def _cpu(axes: Axes, data: ExperimentData) -> None:
    _replicas_and_pooled(axes, data.table("cpu_usage"), 1.0)


def _memory(axes: Axes, data: ExperimentData) -> None:
    _replicas_and_pooled(axes, data.table("memory_usage"), 1 / _GIB)


def _pressure(metrics: Sequence[tuple[str, str]]) -> Callable[[Axes, ExperimentData], None]:
    def draw(axes: Axes, data: ExperimentData) -> None:
        for index, (metric, label) in enumerate(metrics):
            series = data.series(metric, "node")
            axes.plot(series.index, series, color=PALETTE[index], label=label)
        _legend(axes)
        axes.set_ylim(0, min(105, max(axes.dataLim.y1 * 1.3, 10)))

    return draw


def _host_cpu(axes: Axes, data: ExperimentData) -> None:
    telemetry = data.telemetry()
    axes.plot(telemetry.index, telemetry["host_cpu_percent"], color=PALETTE[0], linewidth=0.9)
    axes.set_ylim(0, 105)


def _legend(axes: Axes) -> None:
    """Beside the title, where it hides no data."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.01, 0.97), ncols=6, handlelength=1.4, columnspacing=1.2)


def _device(
    metric: str, column: str, scale: float = 1.0, top: float | None = None
) -> Callable[[Axes, ExperimentData], None]:
    """One line a GPU at the recording's step, over the fast telemetry where there is some."""

    def draw(axes: Axes, data: ExperimentData) -> None:
        table = data.table(metric)
        devices = [name for name in table.columns if name.startswith("gpu-")]
        for values in _telemetry(data, column):
            axes.plot(values.index, values * scale, color=FAINT, linewidth=0.7)
        for index, name in enumerate(devices):
            axes.plot(table.index, table[name] * scale, color=PALETTE[index % len(PALETTE)], label=name)
        if len(devices) > 1:
            _legend(axes)
        from_zero(axes)
        if top is not None:
            axes.set_ylim(0, top)

    return draw


def _telemetry(data: ExperimentData, column: str) -> list[pd.Series[float]]:
    try:
        frame = data.telemetry().filter(regex=rf"^gpu\d+_{column}$").dropna(axis="columns", how="all")
    except NotMeasuredError:
        return []
    return [frame[name] for name in frame.columns]


def _replicas_and_pooled(axes: Axes, table: pd.DataFrame, scale: float) -> None:
    replicas = [name for name in table.columns if name.startswith("replica-")]
    for name in replicas if len(replicas) > 1 else []:
        axes.plot(table.index, table[name] * scale, color=PALETTE[4], linewidth=0.8, alpha=0.8, gid=_EACH)
    if _POOLED in table:
        axes.plot(table.index, table[_POOLED] * scale, color=PALETTE[0], label="all")
    from_zero(axes)
    if len(replicas) > 1:
        axes.plot([], [], color=PALETTE[4], linewidth=0.8, label=_EACH)
        _legend(axes)


_COMMON: tuple[Panel, ...] = (("Throughput (requests/s)", _throughput), ("Latency, histogram estimate (ms)", _latency))
_ON_GPU: tuple[Panel, ...] = (
    ("GPU utilisation (%)", _device("gpu_utilization", "utilization_percent", top=105)),
    ("GPU memory (GiB)", _device("gpu_memory", "memory_bytes", 1 / _GIB)),
    ("GPU power (W)", _device("gpu_power", "power_w")),
    ("GPU temperature (°C)", _device("gpu_temperature", "temperature_celsius")),
)
_ON_CPU: tuple[Panel, ...] = (
    ("CPU of the replicas (cores)", _cpu),
    ("Memory of the replicas (GiB)", _memory),
    ("Pressure (% of time stalled)", _pressure((("cpu_psi", "CPU"), ("memory_psi", "memory"), ("io_psi", "IO")))),
    ("CPU of the whole machine (%)", _host_cpu),
)
