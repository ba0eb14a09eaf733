"""A table as data: columns with their units, cells with value, interval and the reason where there is none.

Rendered as HTML by ``templates/report/macros.html.j2``, and here as Markdown, text, records, CSV and data frame.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.analysis.format import (
    DASH,
    TIMES,
    interval_parts,
    join_unit,
    markdown,
    number,
    ratio_interval,
)
from harness.analysis.statistics import Estimate
from harness.errors import clipped

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell: mean with unit or a dash, interval and remarks, why there is no value or why it decides nothing.

    ``value`` is what ``mean`` says in the unit of all its column, to sort by; ``badge`` a verdict or outcome.
    """

    mean: str
    small: tuple[str, ...] = ()
    reason: str = ""
    value: float | None = None
    badge: str = ""

    @property
    def text(self) -> str:
        """In one line."""
        small = f"({', '.join(self.small)})" if self.small else ""
        return " ".join(filter(None, (self.mean, small, self.badge)))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: title for people, name for programs (empty: the title), and whether it holds text, which stands at the left."""

    title: str
    name: str = ""
    words: bool = False

    @property
    def key(self) -> str:
        """Its name in records and frames."""
        return self.name or self.title


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of as many cells as there are columns: texts, numbers, entries; None where nothing is known."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], words: int, caption: str = "") -> Self:
        """Of rows by title, at least one, with so many leading columns of text."""
        columns = [Column(title, words=index < words) for index, title in enumerate(rows[0])]
        return cls(columns, [list(row.values()) for row in rows], caption)

    @property
    def titles(self) -> list[str]:
        """Of the columns."""
        return [column.title for column in self.columns]

    def without(self, title: str) -> Self:
        """The same without a column."""
        return self._keeping([index for index, name in enumerate(self.titles) if name != title])

    def without_empty(self) -> Self:
        """The same without the columns that hold nothing in any row."""
        return self._keeping(
            [index for index in range(len(self.columns)) if any(text(row[index]) for row in self.rows)]
        )

    def _keeping(self, kept: Sequence[int]) -> Self:
        rows = [[row[index] for index in kept] for row in self.rows]
        return type(self)([self.columns[index] for index in kept], rows, self.caption)

    @property
    def gaps(self) -> list[tuple[str, list[str]]]:
        """Why values are not there, and under which titles: what a dash alone says to nobody without a mouse."""
        titles_by_reason: dict[str, list[str]] = {}
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, Entry) and cell.reason and not cell.badge:
                    titles = titles_by_reason.setdefault(clipped(cell.reason).rstrip("."), [])
                    titles += [] if column.title in titles else [column.title]
        return list(titles_by_reason.items())

    @property
    def column_names(self) -> str:
        """The titles as custom properties of CSS."""
        quoted = (title.replace("\\", "\\\\").replace("'", "\\'") for title in self.titles)
        return ";".join(f"--c{number}:'{title}'" for number, title in enumerate(quoted, start=1))

    @property
    def texts(self) -> list[list[str]]:
        """The cells as people read them."""
        return [[text(cell) for cell in row] for row in self.rows]

    def records(self) -> list[dict[str, str]]:
        """The same, an object per row."""
        return [dict(zip((column.key for column in self.columns), row, strict=True)) for row in self.texts]

    def markdown(self) -> str:
        """A Markdown table in which no text is markup."""
        rules = [":---" if column.words else "---:" for column in self.columns]
        lines = [map(markdown, self.titles), rules, *(map(markdown, row) for row in self.texts)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def csv(self) -> str:
        """The values with the names of the columns; nothing where there is none."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows([repr(cell) if isinstance(cell, float) else cell for cell in row] for row in self.rows)
        return stream.getvalue()

    def frame(self) -> pd.DataFrame:
        """The values as a data frame; of an entry its number."""
        import pandas as pd

        rows = [[cell.value if isinstance(cell, Entry) else cell for cell in row] for row in self.rows]
        return pd.DataFrame(rows, columns=[column.key for column in self.columns])


def text(cell: object) -> str:
    """In one line; empty for nothing."""
    if isinstance(cell, Entry):
        return cell.text
    return "" if cell is None else str(cell)


def absent(reason: str) -> Entry:
    """A dash and why."""
    return Entry(DASH, reason=reason)


def figure_entry(
    estimate: Estimate | None,
    unit: str,
    reason: str = "not measured",
    least: float = 0.0,
    remarks: Iterable[str] = (),
) -> Entry:
    """Mean, unit and half of the interval, which does not go below ``least``; without an estimate a dash with its reason."""
    if estimate is None:
        return absent(reason)
    mean, half, name = interval_parts(estimate, unit, least)
    return Entry(join_unit(mean, name), tuple(filter(None, (half, *remarks))), value=estimate.mean)


def ratio_entry(estimate: Estimate | None, reason: str = "not measured", unit: str = TIMES) -> Entry:
    """A ratio with its whole interval, which is not symmetric."""
    if estimate is None:
        return absent(reason)
    interval = ratio_interval(estimate) if estimate.half_width is not None else ""
    return Entry(join_unit(number(estimate.mean), unit), (interval,) if interval else (), value=estimate.mean)
