"""Every pair of every published set: one outcome, wherever it is said, alone and beside other archives."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.analysis.campaign import CampaignAnalysis, analyse
from harness.analysis.contrasts.comparison import By, Comparison, gather
from harness.analysis.contrasts.contrast import COMPARED, Contrast, Contrasts
from harness.analysis.pages.tables import table_of_tests
from harness.analysis.questions.question import ComparisonQuery
from harness.analysis.questions.recommendation import choices
from harness.analysis.statistics import SIGNIFICANCE, Outcome
from harness.cli.results import _line
from harness.results.published import opened

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).parents[3] / "examples"
FLIPPED = {Outcome.HIGHER: Outcome.LOWER, Outcome.LOWER: Outcome.HIGHER}
Said = dict[tuple[object, ...], set[tuple[Outcome, float | None]]]


@pytest.fixture(scope="module")
def sets() -> Iterator[dict[str, list[CampaignAnalysis]]]:
    """The campaigns of each folder of published sets, read once."""
    by_folder = defaultdict(list)
    with ExitStack() as stack:
        for path in sorted(EXAMPLES.glob("*/*.tar.xz")):
            by_folder[path.parent.name].append(analyse(stack.enter_context(opened(path))))
        yield by_folder


def compared(analyses: list[CampaignAnalysis], by: By | None = None) -> Comparison:
    read = {analysis.folder: analysis for analysis in analyses}
    return gather([*read], by, unlike=True, read=read.__getitem__)


def note(said: Said, contrast: Contrast) -> None:
    """Remember an outcome, of the two arms in one order, after a look at what stands beside it."""
    runs = [tuple(run.name for run in cell.used) for cell in (contrast.baseline, contrast.candidate)]
    folders = {run.data.folder.parent.name for cell in (contrast.baseline, contrast.candidate) for run in cell.used}
    outcome = contrast.outcome if runs == sorted(runs) else FLIPPED.get(contrast.outcome, contrast.outcome)
    p = None if contrast.corrected_p is None else round(contrast.corrected_p, 9)
    said[contrast.metric, *sorted(runs), *sorted(folders)].add((outcome, p))
    ratio = contrast.ratio
    if contrast.corrected_p is not None and ratio.low is not None and ratio.high is not None:
        assert contrast.significant == (contrast.corrected_p < SIGNIFICANCE) == (not ratio.low <= 1 <= ratio.high)


def hear(said: Said, comparison: Comparison) -> None:
    """Everything that a comparison says of its pairs: tests, their table and document, decision, its table and document."""
    for tested, row in zip(comparison.tests, table_of_tests(comparison).records(), strict=True):
        note(said, tested.contrast)
        line = _line(tested)
        assert line["outcome"] == tested.contrast.outcome
        assert line["difference"]["adjusted_p"] == tested.contrast.corrected_p
        assert row["Answer"] == line["answer"] == tested.contrast.sentence
    for choice in choices(comparison, ComparisonQuery()):
        assert choice.document()["outcome"] == choice.outcome
        assert (choice.in_words["Best"] in {"no clear winner", "inconclusive: repeat it"}) == (not choice.clear)
        if choice.gain:
            note(said, choice.gain)


def test_a_pair_has_one_outcome_wherever_it_is_said(sets: dict[str, list[CampaignAnalysis]]) -> None:
    said: Said = defaultdict(set)
    for analyses in sets.values():
        for analysis in analyses:
            for by in {By.SHARING, By.CONDITION if analysis.spec and analysis.spec.conditions else By.SHARING}:
                hear(said, compared([analysis], by))
            engine = Contrasts([analysis])
            cells = [cell for cell in analysis.cells if cell.used]
            for (a, b), metric in itertools.product(itertools.combinations(cells, 2), COMPARED):
                if contrast := engine.of(b, a, metric):
                    note(said, contrast)
        alone = len(said)
        hear(said, compared(analyses, By.SHARING))
        hear(said, compared(analyses, By.CAMPAIGN))
        assert len(said) >= alone > 0
    assert {pair: outcomes for pair, outcomes in said.items() if len(outcomes) > 1} == {}
    assert len({outcome for outcomes in said.values() for outcome, _ in outcomes}) == 4
