"""A table is one record: what it renders as HTML, Markdown, records, CSV and frame is the same."""

from __future__ import annotations

import html
import math
import re

import pytest

from harness.analysis.pages.table import Column, Entry, Table, absent
from harness.analysis.report import environment

P99 = Entry("5.70 ms", ("± 0.12",), value=0.0057)
TABLE = Table(
    [Column("Run as", words=True), Column("p99 <ms>", "latency_p99_exact"), Column("Energy"), Column("Verdict")],
    [
        ["mps | <b>", P99, absent("no GPU."), Entry("", badge="VALID")],
        ["alone", absent("one run"), absent("no GPU."), Entry("3%", reason="too few", badge="inconclusive")],
    ],
    "What was run",
)


def rendered(table: Table) -> str:
    return str(environment().get_template("macros.html.j2").module.table(table))  # type: ignore[attr-defined]


def test_each_reason_for_a_missing_value_is_given_once_with_its_columns() -> None:
    assert TABLE.gaps == [("no GPU", ["Energy"]), ("one run", ["p99 <ms>"])]


def test_a_page_escapes_names_and_keeps_value_interval_reason_and_outcome() -> None:
    page = rendered(TABLE)
    assert "mps | &lt;b&gt;" in page
    assert 'data-value="0.0057">5.70 ms<span class="pm">± 0.12</span>' in page
    assert 'class="absent" title="no GPU."' in page
    assert '<span class="badge DEGRADED">inconclusive</span><span class="pm why">too few</span>' in page
    assert [page.count(f'role="{role}"') for role in ("columnheader", "row", "cell")] == [4, 3, 8]


def test_titles_stay_one_string_of_css() -> None:
    (style,) = re.findall('style="([^"]*)"', rendered(Table([Column('a\'s \\ "<b"')], [])))
    assert html.unescape(style) == r"""--c1:'a\'s \\ "<b"'"""


def test_markdown_holds_no_markup_and_no_commands_of_a_terminal() -> None:
    table = Table.of([{"a|b": "x\n<img src=x>\x1b]0;title\x07\u202e[l](u)"}], words=1)
    assert table.markdown().splitlines() == ["| a\\|b |", "| :--- |", "| x &lt;img src=x&gt; \\[l\\](u) |"]


def test_records_csv_and_frame_have_the_names_of_programs() -> None:
    assert TABLE.records()[0] == {
        "Run as": "mps | <b>",
        "latency_p99_exact": "5.70 ms (± 0.12)",
        "Energy": "–",  # noqa: RUF001
        "Verdict": "VALID",
    }
    assert TABLE.frame()["latency_p99_exact"].tolist() == [0.0057, pytest.approx(math.nan, nan_ok=True)]
    assert Table([Column("Mean", "mean"), Column("Why", "why")], [[0.1, None]]).csv() == "mean,why\n0.1,\n"


def test_columns_that_hold_nothing_can_go() -> None:
    assert Table.of([{"a": "", "b": "1"}, {"a": None, "b": "2"}], words=0).without_empty().titles == ["b"]
