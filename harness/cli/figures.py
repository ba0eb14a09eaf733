"""The figures that `run`, `resume` and `report` end with, from the analysis that the report was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import output

if TYPE_CHECKING:
    from harness.analysis.axes import Family
    from harness.analysis.campaign import CampaignAnalysis

_WIDEST = 80


def document(analysis: CampaignAnalysis, report: Path) -> dict[str, Any]:
    """The report's path and the figures, for ``--json``."""
    from harness.analysis.axes import families
    from harness.analysis.summary import headline

    settings = [family.to_dict() for family in families(analysis)]
    return {"report": str(report), "figures": headline(analysis), **({"settings": settings} if settings else {})}


def show(analysis: CampaignAnalysis, *, printed: Sequence[str] = ()) -> None:
    """Print what the report begins with but for what was ``printed``, and a line of figures per configuration."""
    from harness.analysis.axes import families
    from harness.analysis.goodput import bests
    from harness.analysis.narrative import concerns, headline
    from harness.analysis.pages.tables import short_tables
    from harness.analysis.questions.condition_overhead import interference

    for sentence in headline(analysis, bests(analysis.spec, analysis.stress_series), interference(analysis)):
        if sentence not in printed:
            output.sentence(sentence)
    for family in families(analysis):
        settings(family, printed=printed)
    if analysis.cells:
        for table, dropped in short_tables(analysis, min(_WIDEST, output.terminal_width())):
            output.show(table)
            if dropped:
                output.note(f"(left out for want of room: {', '.join(dropped)}; the report has them)")
    if weak := concerns(analysis):
        output.sentence(f"Before you use it: {'; '.join(weak)}.")


def settings(family: Family, *, printed: Sequence[str] = ()) -> None:
    """Print a line for every setting of a workload, and what follows from them."""
    output.show(family.short_table())
    output.result()
    for variant in family.variants:
        if variant.failure:
            output.sentence(f"{variant.name}: {variant.failure}")
    missing = [why for variant in family.variants if variant.finding for why in variant.finding.missing]
    for sentence in (*family.answers(), *(f"missing: {why}" for why in dict.fromkeys(missing))):
        if sentence not in printed:
            output.sentence(sentence)
