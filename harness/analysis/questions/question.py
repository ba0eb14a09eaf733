"""One question of a comparison: what it was asked with, its answer, and the table of figures that most answers have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from harness.analysis.campaign import Cell
from harness.analysis.contrasts.comparison import Arm, Comparison
from harness.analysis.format import mode_name, under
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Entry, Table, figure_entry
from harness.analysis.statistics import Estimate
from harness.errors import UsageError

_MOST = 1_000_000_000
"""Of a limit in milliseconds, and of a price: more is a slip, and its square no number."""
_LONGEST_CURRENCY = 12
ColumnOf = Callable[[Arm, Cell], Entry]
OfMode = tuple[str, str, Estimate]
"""A value with the row of a plot and the name of the mode that it is of."""


@dataclass(slots=True)
class QuestionAnswer:
    """What the measurements say to one question.

    Attributes:
        name: anchor on the page, which defines the figures by it.
        takeaway: the answer in one sentence; empty when nothing measured says anything.
        missing: which measurements would answer what these do not.
    """

    name: str
    question: str
    takeaway: str = ""
    table: Table | None = None
    pictures: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """For a program."""
        rows = self.table.records() if self.table else []
        return {"question": self.question, "answer": self.takeaway, "table": rows, "missing": self.missing}


@dataclass(frozen=True, slots=True)
class ComparisonQuery:
    """What the reader gave: the p99 that must be kept, prices and their currency; None or empty where nothing was given."""

    latency_limit_s: float | None = None
    price_per_gpu_hour: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""

    @property
    def priced(self) -> bool:
        """Whether a price was given."""
        return self.price_per_gpu_hour is not None or self.price_per_kwh is not None


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


def cell_table(comparison: Comparison, columns: Mapping[str, ColumnOf], fewest: int = 1) -> Table | None:
    """A row for each configuration of so many replicas at least; None without any."""
    rows = [
        {"Workload": workload, "Run as": arm.label, "Replicas": str(count)}
        | {title: column(arm, cell) for title, column in columns.items()}
        for workload, arm, count, cell in comparison.cells()
        if count >= fewest
    ]
    return Table.of(rows, words=3) if rows else None


def by_mode(shown: str, values: Iterable[OfMode], unit: str, first: str = "") -> str:
    """The range of a value under each mode: ``82 to 90% under MPS, 13 to 35% under time-slicing``.

    ``shown``: how it is formatted. ``first``: the unit where it stands first.
    """
    of_mode: dict[str, list[float]] = {}
    for _, mode, estimate in values:
        of_mode.setdefault(mode, []).append(estimate.mean)
    parts: list[str] = []
    for mode, means in sorted(of_mode.items(), key=lambda item: -max(item[1])):
        ends = dict.fromkeys(format(value, shown) for value in (min(means), max(means)))
        parts.append(f"{' to '.join(ends)}{unit if parts else first or unit} {under(mode)}")
    return ", ".join(parts)


def labels(comparison: Comparison) -> list[str]:
    """Names of the modes, in the order of their colours."""
    return [mode_name(arm.label) for arm in comparison.arms]


def estimated(name: str, unit: str) -> ColumnOf:
    """A column of one metric."""
    return lambda _arm, cell: figure_entry(cell.estimates.get(name), unit, cell.absent.get(name, ""))
