"""The decision of a campaign that asks for the best sharing mode, as the terminal shows it: at its end, or when it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from harness.cli import output
from harness.errors import CampaignInterruptedError, HarnessError, duration

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
    wanted = folder.spec.until_known
    if wanted is None or not wanted.best_mode:
        return []
    from harness.analysis.campaign import analyse
    from harness.analysis.contrasts.comparison import By, gather
    from harness.analysis.questions.decision import decisions

    measured = analysis or analyse(folder.path)
    return decisions(gather([folder.path], By.SHARING, read=lambda _folder: measured))


def show(decisions: list[Decision]) -> None:
    """Print them, each with what sharing gains, and with what weakens it."""
    for decision in decisions:
        output.sentences(filter(None, [decision.sentence, decision.unclear, decision.sharing_gain, *decision.weak]))
        output.result()


def document(decisions: list[Decision]) -> dict[str, Any]:
    """For ``--json``; empty without any."""
    return {"decisions": [decision.document() for decision in decisions]} if decisions else {}
