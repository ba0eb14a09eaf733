"""Energy of the GPUs over one recording: counted by the device where it can, power x time where it cannot."""

from __future__ import annotations

import pandas as pd

from harness.analysis.read import ExperimentData, NotMeasuredError

_COUNTER = r"^gpu\d+_energy_j$"
_POWER = r"^gpu\d+_power_w$"
_DEVICE = r"^gpu-\d+$"
_WHOLE = 0.9
"""Share of the recording that the readings must span to speak for all of it without a word."""


def energy_j(data: ExperimentData) -> tuple[float, str]:
    """Joules of all GPUs over the recording, idle power included, and where the number comes from.

    Raises NotMeasuredError with the reason when no GPU told its energy or power.
    """
    try:
        telemetry = data.telemetry()
    except NotMeasuredError:
        telemetry = pd.DataFrame()
    counted = _counted_j(telemetry.filter(regex=_COUNTER))
    if counted is not None:
        joules, span_s = counted
        part = f", read over {span_s:.0f} s of {data.duration_s:.0f} s" if span_s < _WHOLE * data.duration_s else ""
        return joules * data.duration_s / span_s, f"the GPU's energy counter{part}"
    powers_w = telemetry.filter(regex=_POWER).dropna(axis="columns", how="all")
    if len(powers_w.columns):
        return float(powers_w.mean().sum()) * data.duration_s, "mean power x time, without an energy counter"
    powers_w = data.table("gpu_power").filter(regex=_DEVICE)
    return float(powers_w.mean().sum()) * data.duration_s, "mean power x time, without telemetry"


def _counted_j(counters: pd.DataFrame) -> tuple[float, float] | None:
    """Growth of the counters in joules, and the seconds that it took; None when they do not tell."""
    each = [readings.dropna() for _, readings in counters.dropna(axis="columns", how="all").items()]
    if not each or any(len(readings) < 2 or (readings.diff() < 0).any() for readings in each):
        return None  # A counter that fell was reset: the driver was reloaded in between.
    # The exporters of two nodes are not read at the same moment: each counter speaks for its own span.
    spans_s = [float(readings.index[-1] - readings.index[0]) for readings in each]
    growths_j = [float(readings.iloc[-1] - readings.iloc[0]) for readings in each]
    span_s = min(spans_s)
    return sum(growth_j * span_s / its_s for growth_j, its_s in zip(growths_j, spans_s, strict=True)), span_s
