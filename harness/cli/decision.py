"""The decision of a campaign that asks for the best sharing mode, as the terminal shows it: at its end, or when it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from harness.cli import output
from harness.errors import CampaignInterruptedError, HarnessError, duration

COMPARISON_HTML = "comparison.html"

if TYPE_CHECKING:
    from harness.analysis.campaign import CampaignAnalysis
    from harness.analysis.questions.decision import Decision
    from harness.campaign.folder import CampaignFolder
    from harness.spec import CampaignSpec


def at_most(spec: CampaignSpec) -> str:
    """How long such a campaign takes at most, and what may end it before."""
    from harness.campaign.plan import certain, estimate, most

    first_s, most_s = estimate(certain(spec)).total_s, most(spec).total_s
    first = f"the first look is after about {duration(round(first_s))}"
    return f"At most {duration(round(most_s))}, less where the answer is known before; {first}."


@contextmanager
def shown_if_interrupted(folder: CampaignFolder) -> Iterator[None]:
    """Print what is known so far where what is done in here is interrupted."""
    try:
        yield
    except CampaignInterruptedError:
        with suppress(HarnessError):  # nothing is known yet
            decisions = decisions_of(folder)
            if output.is_json() and decisions:
                output.document({"campaign": str(folder.path), "interrupted": True, **document(decisions)})
            elif decisions:
                output.sentence("So far:")
                show(decisions)
        raise


def decisions_of(folder: CampaignFolder, analysis: CampaignAnalysis | None = None) -> list[Decision]:
    """Which mode to use, as far as is known; nothing where the campaign does not ask."""
    if not _asks(folder):
        return []
    from harness.analysis.campaign import analyse
    from harness.analysis.contrasts.comparison import By, gather
    from harness.analysis.questions.decision import decisions

    measured = analysis or analyse(folder.path)
    return decisions(gather([folder.path], By.SHARING, read=lambda _folder: measured))


def write_page(folder: CampaignFolder, analysis: CampaignAnalysis) -> Path | None:
    """The page of `harness compare` beside the report, of a campaign that asks for the best mode. Raises StorageError."""
    if not _asks(folder):
        return None
    from harness.analysis.contrasts.comparison import By, gather
    from harness.analysis.questions.question import ComparisonQuery
    from harness.analysis.report import answer_all, write_comparison

    comparison, query = gather([folder.path], By.SHARING, unlike=True, read=lambda _folder: analysis), ComparisonQuery()
    page = folder.path / COMPARISON_HTML
    command = f"harness compare {quote(str(folder.path))} --by {By.SHARING} --html {quote(str(page))}"
    return write_comparison(page, comparison, answer_all(comparison, query), command, query)


def _asks(folder: CampaignFolder) -> bool:
    wanted = folder.spec.until_known
    return wanted is not None and wanted.best_mode


def show(decisions: list[Decision]) -> None:
    """Print them, each with what sharing gains, and with what weakens it."""
    for decision in decisions:
        output.sentences(filter(None, [decision.headline, decision.unclear, decision.sharing_gain, *decision.weak]))
        output.result()


def document(decisions: list[Decision]) -> dict[str, Any]:
    """For ``--json``; empty without any."""
    return {"decisions": [decision.document() for decision in decisions]} if decisions else {}
