"""Energy of the GPUs over one recording: counted by each device where it can, its power integrated over time where it cannot."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from harness.analysis.read import ExperimentData, NotMeasuredError

LEAST_COVERAGE = 0.8
"""Share of the recording that a GPU's readings have to cover; what is less is no figure of it."""
LONGEST_STANDSTILL = 0.5
"""Share of the recording for which a counter may stand still: exporters read it every half minute."""
_GAP_STEPS = 3
"""Power is not known between two readings that lie more than so many of their usual distances apart."""
_TELEMETRY_COLUMN = re.compile(r"gpu(\d+)_")
_SERIES = re.compile(r"gpu-(\d+)")
_COUNTER, _POWER = "energy counter", "power over time"


def energy_j(data: ExperimentData) -> tuple[float, str]:
    """Joules of all GPUs of the run over the recording, idle power included, and which GPU's comes from where.

    A run whose energy is known of some of its GPUs only has none: raises NotMeasuredError with the GPU and the reason.
    """
    try:
        telemetry = data.telemetry()
    except NotMeasuredError:
        telemetry = pd.DataFrame()
    try:
        rows = data.table("gpu_power")
    except NotMeasuredError:
        rows = pd.DataFrame()
    matches = [_TELEMETRY_COLUMN.match(name) for name in telemetry.columns]
    matches += [_SERIES.fullmatch(name) for name in rows.columns]
    gpus = sorted({int(match[1]) for match in matches if match})
    if not gpus:
        data.table("gpu_power")  # raises with the reason why there is no GPU
        raise NotMeasuredError("no GPU was read")
    manifest = data.manifest
    used = manifest.gpus if manifest.gpus != manifest.provenance.gpus else []  # all of them: the replicas do not say
    if len(used) > len(gpus):
        raise NotMeasuredError(f"the replicas ran on {len(used)} GPUs, of which {len(gpus)} were read")
    total_j = 0.0
    sources: dict[str, list[str]] = {_COUNTER: [], _POWER: []}
    for gpu in gpus:
        power_w = _readings(telemetry, f"gpu{gpu}_power_w")
        if len(power_w) < 2:
            power_w = _readings(rows, f"gpu-{gpu}")
        try:
            joules, source = _of_gpu(_readings(telemetry, f"gpu{gpu}_energy_j"), power_w, data.duration_s)
        except NotMeasuredError as reason:
            raise NotMeasuredError(f"gpu-{gpu} {reason}") from reason
        total_j += joules
        sources[source].append(f"gpu-{gpu}")
    return total_j, " and ".join(f"the {source} of {', '.join(names)}" for source, names in sources.items() if names)


def _readings(table: pd.DataFrame, column: str) -> pd.Series[float]:
    return table[column].dropna() if column in table else pd.Series(dtype=float)


def _of_gpu(counter_j: pd.Series[float], power_w: pd.Series[float], duration_s: float) -> tuple[float, str]:
    """Joules of one GPU over the recording, and from which of the two series; either may be empty."""
    # A counter that fell was reset: the driver was reloaded in between.
    if len(counter_j) > 1 and not (counter_j.diff() < 0).any():
        span_s = float(counter_j.index[-1] - counter_j.index[0])
        _require_coverage(span_s, duration_s, "energy counter")
        times_s = counter_j.index.to_numpy(dtype=float)
        grown = np.flatnonzero(np.diff(counter_j.to_numpy()) > 0) + 1
        standstill_s = float(np.diff([times_s[0], *times_s[grown], times_s[-1]]).max())
        if standstill_s > LONGEST_STANDSTILL * duration_s and not (len(power_w) and (power_w == 0).all()):
            power = f" at {power_w.mean():.3g} W" if len(power_w) else ""
            raise NotMeasuredError(
                f"has an energy counter that stood still for {standstill_s:.0f} s of {duration_s:.0f} s{power}"
            )
        return float(counter_j.iloc[-1] - counter_j.iloc[0]) * duration_s / span_s, _COUNTER
    if len(power_w) < 2:
        raise NotMeasuredError("has no reading of energy or power")
    steps_s = np.diff(power_w.index.to_numpy(dtype=float))
    watts = power_w.to_numpy()
    known = steps_s <= _GAP_STEPS * np.median(steps_s)
    covered_s = float(steps_s[known].sum())
    _require_coverage(covered_s, duration_s, "power")
    joules = float((steps_s * (watts[1:] + watts[:-1]) / 2)[known].sum())
    return joules * duration_s / covered_s, _POWER


def _require_coverage(covered_s: float, duration_s: float, what: str) -> None:
    if covered_s < LEAST_COVERAGE * duration_s:
        raise NotMeasuredError(f"has its {what} read over {covered_s:.0f} s of {duration_s:.0f} s only")
