"""The decision of a campaign that asks for the best sharing mode, as the terminal shows it: at its end, or when it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING

from harness.cli import output
from harness.errors import CampaignInterruptedError, HarnessError, duration

COMPARISON_HTML = "comparison.html"

if TYPE_CHECKING:
    from harness.analysis.campaign import CampaignAnalysis
    from harness.analysis.contrasts.comparison import Comparison
    from harness.analysis.questions.decision import Decision
    from harness.campaign.folder import CampaignFolder
    from harness.spec import CampaignSpec


@contextmanager
def watched(folder: CampaignFolder) -> Iterator[None]:
    """Say how long a campaign takes at most that ends when something is known; print what is known where it is interrupted."""
    if folder.spec.until_known is not None:
        output.note(_at_most(folder.spec))
    try:
        yield
    except CampaignInterruptedError:
        decisions: list[Decision] = []
        with suppress(HarnessError):  # of a folder that cannot be read: the interruption says more
            decisions = decisions_of(folder)
        if output.is_json() and decisions:
            output.document(
                {"campaign": str(folder.path), "interrupted": True, "decisions": [it.document() for it in decisions]}
            )
        elif decisions:
            output.sentence("So far:")
            show(decisions)
        elif _asks(folder):
            output.note("So far nothing is known of which mode is best.")
        raise


def decisions_of(folder: CampaignFolder, analysis: CampaignAnalysis | None = None) -> list[Decision]:
    """Which mode to use, as far as is known; nothing where the campaign does not ask, or no run can be used."""
    from harness.analysis.questions.decision import decisions

    comparison = _comparison(folder, analysis)
    return decisions(comparison) if comparison else []


def page(folder: CampaignFolder, analysis: CampaignAnalysis) -> dict[str, str]:
    """Write the page of `harness compare` beside the report, where the campaign asks for the best mode. Raises StorageError."""
    from harness.analysis.questions.first_screen import first_screen
    from harness.analysis.questions.question import ComparisonQuery
    from harness.analysis.report import answer_all, write_comparison

    comparison, query = _comparison(folder, analysis), ComparisonQuery()
    if comparison is None:
        return {}
    path = folder.path / COMPARISON_HTML
    command = f"harness compare {quote(str(folder.path))} --by {comparison.by} --html {quote(str(path))}"
    first, answered = first_screen(comparison, query), answer_all(comparison, query)
    return {"page": str(write_comparison(path, first, answered, command, query))}


def _at_most(spec: CampaignSpec) -> str:
    from harness.campaign.plan import certain, estimate, most

    first_s, most_s = estimate(certain(spec)).total_s, most(spec).total_s
    first = f"the first look is after about {duration(round(first_s))}"
    return f"At most {duration(round(most_s))}, less where the answer is known before; {first}."


def _comparison(folder: CampaignFolder, analysis: CampaignAnalysis | None) -> Comparison | None:
    """Of the campaign's modes, where it asks for the best one."""
    if not _asks(folder):
        return None
    from harness.analysis.campaign import analyse
    from harness.analysis.contrasts.comparison import By, gather

    measured = analysis or analyse(folder.path)
    if not any(cell.used for cell in measured.cells):
        return None
    return gather([folder.path], By.SHARING, unlike=True, read=lambda _folder: measured)


def _asks(folder: CampaignFolder) -> bool:
    wanted = folder.spec.until_known
    return wanted is not None and wanted.best_mode


def show(decisions: list[Decision]) -> None:
    """Print them, each with what sharing gains, and with what weakens it."""
    for decision in decisions:
        output.sentences(filter(None, [decision.headline, decision.unclear, decision.sharing_gain, *decision.weak]))
        output.result()
