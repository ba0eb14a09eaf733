"""One question of the comparison page, and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Table
from harness.errors import UsageError

_MOST = 1_000_000_000
"""Of a limit in milliseconds, and of a price: more is a slip, and its square no number."""
_LONGEST_CURRENCY = 12


@dataclass(slots=True)
class Answer:
    """What the measurements say to one question.

    Attributes:
        name: anchor on the page.
        question: as asked.
        how: how the figures are defined, in a sentence or two.
        sentences: the answer; empty when nothing measured says anything.
        table: the figures with their intervals.
        pictures: plots.
        missing: which measurements would answer what these do not.
        table_first: whether the table is the answer, and the sentences say the same in words.
    """

    name: str
    question: str
    how: str
    sentences: list[str] = field(default_factory=list)
    table: Table | None = None
    pictures: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    table_first: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonQuery:
    """What the reader of the page gave.

    Attributes:
        latency_limit_s: p99 that must be kept; None: no limit.
        price_per_gpu_hour: of one GPU; None: not given.
        price_per_kwh: of electric energy; None: not given.
        currency: of both; empty: not given.
    """

    latency_limit_s: float | None = None
    price_per_gpu_hour: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""


def comparison_query(
    latency_limit_ms: float | None, price_per_gpu_hour: float | None, price_per_kwh: float | None, currency: str = ""
) -> ComparisonQuery:
    """What the options ask, checked. Raises UsageError for a limit or a price that cannot be one."""
    given = {
        "--latency-limit-ms": latency_limit_ms,
        "--price-per-gpu-hour": price_per_gpu_hour,
        "--price-per-kwh": price_per_kwh,
    }
    for option, value in given.items():
        free = option.startswith("--price") and value == 0
        if value is not None and not free and not (0 < value <= _MOST):
            raise UsageError(
                f"{option} {value:g} cannot be: it takes a positive number up to {_MOST:,}.", advice=f"E.g. {option} 50"
            )
    if not all(sign.isprintable() for sign in currency) or len(currency) > _LONGEST_CURRENCY:
        raise UsageError(
            f"--currency {currency!r:.40} cannot be: it takes a word of at most {_LONGEST_CURRENCY} characters.",
            advice="E.g. --currency USD",
        )
    limit_s = None if latency_limit_ms is None else latency_limit_ms / 1e3
    return ComparisonQuery(limit_s, price_per_gpu_hour, price_per_kwh, currency)
