"""Energy of the GPUs over one recording: counted by the device where it can, power x time where it cannot."""

from __future__ import annotations

import pandas as pd

from harness.analysis.read import ExperimentData, NotMeasuredError

_COUNTER = r"^gpu\d+_energy_j$"
_POWER = r"^gpu\d+_power_w$"
_DEVICE = r"^gpu-\d+$"


def energy_j(data: ExperimentData) -> tuple[float, str]:
    """Joules of all GPUs over the recording, idle power included, and where the number comes from.

    Raises NotMeasuredError with the reason when no GPU told its energy or power.
    """
    try:
        telemetry = data.telemetry()
    except NotMeasuredError:
        telemetry = pd.DataFrame()
    counted_j = _counted_j(telemetry.filter(regex=_COUNTER), data.duration_s)
    if counted_j is not None:
        return counted_j, "the GPU's energy counter"
    powers_w = telemetry.filter(regex=_POWER).dropna(axis="columns", how="all")
    if len(powers_w.columns):
        return float(powers_w.mean().sum()) * data.duration_s, "mean power x time, without an energy counter"
    powers_w = data.table("gpu_power").filter(regex=_DEVICE)
    return float(powers_w.mean().sum()) * data.duration_s, "mean power x time, without telemetry"


def _counted_j(counters: pd.DataFrame, duration_s: float) -> float | None:
    """Growth of the counters, scaled from the readings' span to the recording; None when they do not tell."""
    readings = counters.dropna(axis="columns", how="all").dropna()
    if not len(readings.columns) or len(readings) < 2 or (readings.diff() < 0).to_numpy().any():
        return None  # A counter that fell was reset: the driver was reloaded in between.
    span_s = float(readings.index[-1] - readings.index[0])
    return float((readings.iloc[-1] - readings.iloc[0]).sum()) * duration_s / span_s
