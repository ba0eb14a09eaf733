"""The figures that `run`, `resume` and `report` end with, from the analysis that the report was made of."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import output

if TYPE_CHECKING:
    from harness.analysis.campaign import CampaignAnalysis
    from harness.analysis.goodput import Best

_WIDEST = 80
_GAP = 2
_SHORTEST = 12
_FIGURES = (("p50 ms", "latency_p50_exact", 1e3), ("p99 ms", "latency_p99_exact", 1e3), ("J/req", "energy", 1.0))
"""Column, measure, and what its unit is multiplied by."""
_DROPPED_FIRST = ("p50 ms", "J/req", "p99 ms", "sharing")
"""Columns that go, in this order, until the rest fits; ``sharing`` only where all of it is the same."""


def document(analysis: CampaignAnalysis, report: Path) -> dict[str, Any]:
    """The report's path and the figures, for ``--json``."""
    from harness.analysis.summary import headline

    return {"report": str(report), "figures": headline(analysis)}


def tell(sentences: Sequence[str], best: Sequence[Best], analysis: CampaignAnalysis | None) -> None:
    """Print what a campaign has answered, and the figures where there is an analysis."""
    from harness.analysis import goodput

    for sentence in sentences:
        output.sentence(sentence)
    if best:
        output.table(*goodput.table(best))
    if analysis is not None:
        show(analysis, told=sentences)


def show(analysis: CampaignAnalysis, *, told: Sequence[str] = ()) -> None:
    """Print what the report begins with, and a line of figures per workload, sharing mode, replica count and condition.

    Args:
        analysis: of the campaign.
        told: sentences that have been printed already.
    """
    from harness.analysis.goodput import bests
    from harness.analysis.headline import concerns, headline
    from harness.analysis.questions.condition_overhead import interference

    for sentence in headline(analysis, bests(analysis.spec, analysis.ladders), interference(analysis)):
        if sentence not in told:
            output.sentence(sentence)
    if analysis.cells:
        _table(analysis)
    if weak := concerns(analysis):
        output.sentence(f"Before you use it: {'; '.join(weak)}.")


def _table(analysis: CampaignAnalysis) -> None:
    from harness.analysis.format import DASH, number, with_interval

    conditions = any(cell.condition for cell in analysis.cells)
    energies = any("energy" in cell.estimates for cell in analysis.cells)
    rows = []
    for cell in analysis.cells:
        row = {"workload": cell.workload, "sharing": cell.mode, "replicas": str(cell.replicas)}
        row |= {"condition": cell.condition} if conditions else {}
        rate = cell.estimates.get("throughput")
        row["requests/s"] = with_interval(rate, "") if rate else DASH
        for header, name, scale in _FIGURES:
            estimate = cell.estimates.get(name)
            if name != "energy" or energies:
                row[header] = number(scale * estimate.mean) if estimate else DASH
        rows.append(row | {"verdict": cell.badge})
    dropped = _fit(rows, min(_WIDEST, shutil.get_terminal_size().columns))
    output.table(list(rows[0]), [list(row.values()) for row in rows])
    if dropped:
        output.note(f"(left out for want of room: {', '.join(dropped)}; the report has them)")


def _fit(rows: list[dict[str, str]], limit: int) -> list[str]:
    """Take columns out of the rows until a line has room in the limit, then shorten names. Returns what went."""
    from harness.analysis.format import clipped

    dropped = []
    one_mode = len({row["sharing"] for row in rows}) == 1
    for name in _DROPPED_FIRST:
        if name in rows[0] and _excess(rows, limit) > 0 and (one_mode or name != "sharing"):
            dropped.append(name)
            for row in rows:
                del row[name]
    for name in ("workload", "condition"):
        if name in rows[0] and (excess := _excess(rows, limit)) > 0:
            length = max(_SHORTEST, max(len(row[name]) for row in rows) - excess)
            for row in rows:
                row[name] = clipped(row[name], length)
    return dropped


def _excess(rows: list[dict[str, str]], limit: int) -> int:
    widths = output.widths([list(rows[0]), *(list(row.values()) for row in rows)])
    return sum(widths) + _GAP * (len(widths) - 1) - limit
