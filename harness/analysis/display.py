"""Numbers as people read them: three significant digits, a unit that fits, an interval where there is one."""

from __future__ import annotations

import math

from harness.analysis.statistics import Estimate

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "J": ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ")),
}
_DIGITS = 3
_EXACT = 1e-9


def number(value: float) -> str:
    """Three significant digits, thousands separated, no exponent: ``1,234``, ``12.3``, ``0.0123``."""
    rounded = float(f"{value:.{_DIGITS}g}")
    if rounded == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, _DIGITS - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{places}f}"


def quantity(value: float, unit: str) -> str:
    """The number with its unit, scaled to fit: 0.0057 s is ``5.70 ms``."""
    scale, name = _fit(value, unit)
    return f"{number(value / scale)} {name}".strip()


def with_interval(estimate: Estimate, unit: str) -> str:
    """``5.70 ± 0.12 ms``: the mean and half of its 95 % interval, in one unit."""
    mean, half, name = interval_parts(estimate, unit)
    return " ".join(part for part in (mean, half, name) if part)


def interval_parts(estimate: Estimate, unit: str) -> tuple[str, str, str]:
    """The same in pieces: ``5.70``, ``± 0.12`` (empty when there is no interval), ``ms``."""
    scale, name = _fit(estimate.mean, unit)
    mean = number(estimate.mean / scale)
    half = estimate.half_width
    return mean, "" if half is None else _plus_minus(mean, half / scale, abs(estimate.mean) / scale), name


def _plus_minus(mean_text: str, half: float, mean: float) -> str:
    """Half-width with the decimals of the mean; one that would round to nothing says so."""
    places = len(mean_text.partition(".")[2])
    if half <= _EXACT * mean:
        return "± 0"
    if round(half, places) == 0:
        return f"± <{10.0**-places:g}"
    return f"± {half:,.{places}f}"


def _fit(value: float, unit: str) -> tuple[float, str]:
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, unit
    return next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``4 min 05 s``, ``12.3 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def clipped(text: str, length: int = 300) -> str:
    """One line of at most ``length`` characters, for lists where the whole story stands elsewhere."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."
