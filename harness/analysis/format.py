"""Numbers as people read them: three significant digits, a unit that fits, an interval where there is one."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from harness.analysis.statistics import Estimate
from harness.errors import counted, printable
from harness.spec.sharing import ON_CPU

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "J": ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ")),
}
TIMES, DASH = "×", "–"  # noqa: RUF001 - typography for people, not letters
MINUS = "\N{MINUS SIGN}"
_DIGITS = 3
_TOO_WIDE = "interval too wide"
_WHOLE_PERCENT = 10
"""Differences below so many percent have a decimal."""
_EXACT, _WIDE = 1e-9, 0.5
_PLUS_MINUS = "±"
_UNDECIDED = 10.0


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
    return join_unit(number(value / scale), name)


def with_interval(estimate: Estimate, unit: str) -> str:
    """``5.70 ± 0.12 ms``: the mean and half of its 95% interval, in one unit."""
    mean, interval, name = interval_parts(estimate, unit)
    if interval and not interval.startswith(_PLUS_MINUS):
        interval = f"({interval})"
    return join_unit(f"{mean} {interval}".strip(), name)


def join_unit(text: str, unit: str) -> str:
    """The number with its unit behind it: ``5 ms``, and ``5%`` without a space."""
    return f"{text}{unit}" if unit == "%" else f"{text} {unit}".strip()


def in_one_unit(values: Sequence[float], unit: str) -> tuple[list[str], str]:
    """The numbers in the unit that fits the first of them, and its name."""
    scale, name = _fit(values[0], unit)
    return [number(value / scale) for value in values], name


def interval_parts(estimate: Estimate, unit: str, least: float = 0.0) -> tuple[str, str, str]:
    """The same in pieces: ``5.70``, ``± 0.12`` (empty when there is no interval), ``ms``.

    Of a quantity that cannot be below ``least``: an interval that was cut there, or is wide, is given whole, ``0 to 910``.
    """
    scale, name = _fit(estimate.mean, unit)
    mean = number(estimate.mean / scale)
    if estimate.low is None or estimate.high is None:
        return mean, "", name
    below, above = estimate.mean - estimate.low, estimate.high - estimate.mean
    if max(below, above) > _WIDE * abs(estimate.mean) or abs(above - below) > _EXACT * abs(estimate.mean):
        return mean, f"{number(max(estimate.low, least) / scale)} to {number(estimate.high / scale)}", name
    return mean, _plus_minus(mean, above / scale, abs(estimate.mean) / scale), name


def _plus_minus(mean_text: str, half: float, mean: float) -> str:
    """Half-width with the decimals of the mean; one that would round to nothing says so."""
    places = len(mean_text.partition(".")[2])
    if half <= _EXACT * mean:
        return f"{_PLUS_MINUS} 0"
    if round(half, places) == 0:
        return f"{_PLUS_MINUS} <{10.0**-places:g}"
    return f"{_PLUS_MINUS} {half:,.{places}f}"


def _fit(value: float, unit: str) -> tuple[float, str]:
    scales = _SCALES.get(unit)
    if scales is None:
        return 1.0, unit
    return next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])


def whole_interval(estimate: Estimate) -> str:
    """``1.23 to 1.31``; empty when there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{number(estimate.low)} to {number(estimate.high)}"


def ratio_interval(estimate: Estimate) -> str:
    """The whole interval of a ratio; one that holds 1 and spans a factor of ten says nothing, and that is said."""
    if estimate.low and estimate.high and estimate.low <= 1 <= estimate.high > _UNDECIDED * estimate.low:
        return _TOO_WIDE
    return whole_interval(estimate)


def percent_more(ratio: Estimate) -> str:
    """A ratio as a difference: ``+137% (117 to 158%)``."""
    mean, interval = percent(ratio)
    return f"{mean} ({interval})" if interval else mean


def times(estimate: Estimate, what: str = "") -> str:
    """In a sentence: ``2.30 times (1.97 to 2.68)``; ``what`` stands before the interval."""
    interval = ratio_interval(estimate)
    return f"{number(estimate.mean)} times" + (f" ({what}{interval})" if interval else "")


def percent(ratio: Estimate) -> tuple[str, str]:
    """A ratio as a difference, and its interval (empty without one): ``+137%``, ``117 to 158%``; ``-24%``, ``6 to 39%``.

    An interval that holds 0 has the signs, of the others they are the difference's own; see ``ratio_interval``.
    """
    change, low, high = (None if end is None else 100 * (end - 1) for end in (ratio.mean, ratio.low, ratio.high))
    places = 0 if low is None or high is None or (abs(change or 0) >= _WHOLE_PERCENT and high - low >= 1) else 1
    mean = f"{change:+,.{places}f}%".replace("-", MINUS)
    if low is None or high is None:
        return mean, ""
    if ratio_interval(ratio) == _TOO_WIDE:
        return mean, _TOO_WIDE
    if low <= 0 <= high:
        return mean, f"{low:+,.{places}f} to {high:+,.{places}f}%".replace("-", MINUS)
    low, high = sorted((abs(low), abs(high)))
    return mean, f"{low:,.{places}f} to {high:,.{places}f}%"


def span(ratios: Sequence[Estimate], *, signs: bool = True) -> str:
    """The differences of several in one direction: ``+137 to +261%``, without ``signs`` ``23 to 46%``; of one its own."""
    changes = sorted((100 * (ratio.mean - 1) for ratio in ratios), key=abs)
    sign = "" if not signs else "+" if changes[0] > 0 else MINUS
    ends = dict.fromkeys(f"{abs(change):,.{0 if abs(change) >= _WHOLE_PERCENT else 1}f}" for change in changes)
    first, *_, last = [*ends, *ends]
    return f"{sign}{first} to {sign}{last}%" if first != last else f"{sign}{first}%"


def mode_name(label: str) -> str:
    """The label of a mode in a sentence: ``MPS``, ``MPS (25%)``."""
    return re.sub(r"\b(mps|mig|dra)\b", lambda match: match[0].upper(), label)


def under(label: str) -> str:
    """A sharing mode, or a label that begins with one, in a sentence: ``under mps, alone``, ``on the CPU``."""
    return f"{'on the' if label.partition(',')[0] == ON_CPU else 'under'} {label}"


def replicas_in_words(count: int) -> str:
    """``1 replica``, ``3 replicas``."""
    return counted(count, "replica")


def markdown(text: str) -> str:
    """A name or a sentence of somebody else's in one line of Markdown, where nothing of it is markup."""
    return re.sub(r"([\\|`\[\]])", r"\\\1", html.escape(" ".join(printable(text).split()), quote=False))
