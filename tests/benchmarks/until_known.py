"""Whether repeats that end when the answer is known answer rightly, and what they save.

    python -m tests.benchmarks.until_known [--campaigns 10000] [--replays 200]

First campaigns of known truth go through the judge that decides on the repeats. Their truths are the hardest: sides that do
not differ at all, or by exactly what counts as equal; a spread that is fivefold on one side, slow drift over the
blocks, figures that are not normal, runs that are INVALID. Printed is the share of campaigns with any false answer, and with three
standard errors it must stay below 5%. An answer is false where it is "different" though the truth is 1, "practically equal"
though it is beyond, or "known" though the interval leaves out the truth.

Then the matrix published in ``examples/h200``: every cell has the mean and the spread over its repeats that were recorded, with
whole recordings and with their first 10 s, which is what such campaigns take where their file gives no phase. Printed is how many
repeats the judge asks for, and how many a plan of
fixed repeats takes until no more questions stay without an answer (the same intervals, one look, Bonferroni over the questions). Short
runs are held against fixed repeats of whole recordings, at the larger of both shares without an answer.

Last, whether replicas could be kept from one run to the next: each recording is cut into pieces of 10 s, and printed is how much of
the variance of a piece is between starts. What is between starts is left out of an interval over runs of replicas that were
never started anew; printed is also in how many cells a test says so (F, 5%), and how often an interval over four pieces
of one start leaves out the mean of the other starts.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count

import numpy as np
from scipy.stats import f_oneway

from harness.analysis.contrasts.until_known import RepeatProgress, RepeatQuestion, State, judge, questions
from harness.analysis.read import read_experiment
from harness.analysis.statistics import ratio, t_interval
from harness.results.layout import experiment_folders
from harness.results.published import opened
from harness.spec import CampaignSpec, CellSpec, UntilKnown
from harness.spec.load import parse_campaign
from harness.spec.timing import PRESETS
from tests.benchmarks.stop_when_known import ROOT, Key, _replay

LIMIT = 0.05
SHORT_S = PRESETS["short"]["record_s"]
AROUND_S = 15.0
"""To start, warm up and end the replicas of one run."""
SETS = {"batch 1": ("h200-sharing-*", 40.0), "GPU kept busy": ("h200-busy-*", 30.0)}
UNANSWERED = (State.OPEN, State.HOPELESS, State.NOT_MEASURED, State.MAX)

Draw = Callable[[np.random.Generator, int], np.ndarray]
Truth = Mapping[tuple[str, str], tuple[float, float]]
"""Mean and coefficient of variation, by cell and metric."""


def normal(random: np.random.Generator, runs: int) -> np.ndarray:
    """Independent runs."""
    return random.standard_normal(runs)


def drifting(random: np.random.Generator, runs: int) -> np.ndarray:
    """Runs that share a wave over the blocks, as on a machine that warms up."""
    return np.sin(np.arange(runs) / 3) + 0.5 * random.standard_normal(runs)


def skewed(random: np.random.Generator, runs: int) -> np.ndarray:
    """Runs with a long upper tail, of mean 0 and variance 1."""
    return (random.lognormal(0, 0.5, runs) - math.exp(0.125)) / math.sqrt(math.expm1(0.25) * math.exp(0.25))


HARD: dict[str, tuple[Draw, float, float, float]] = {
    "normal, equal spreads of 3%": (normal, 0.03, 0.03, 0.0),
    "normal, spreads of 1 and 5%": (normal, 0.01, 0.05, 0.0),
    "normal, a tenth of the runs INVALID": (normal, 0.03, 0.02, 0.1),
    "drift over the blocks": (drifting, 0.02, 0.02, 0.0),
    "skewed": (skewed, 0.03, 0.03, 0.0),
}
"""How runs scatter; the spreads of both sides; and the share of runs that are INVALID."""


def campaign(sharing: str, replicas: str = "[1, 2]", workloads: str = "{name: resnet50}") -> CampaignSpec:
    """A matrix."""
    text = f"name: x\nworkloads: [{workloads}]\nreplicas: {replicas}\nsharing: {sharing}\n"
    return parse_campaign(text, origin="x")


def hard_campaign(
    random: np.random.Generator, wanted: UntilKnown, cells: Sequence[CellSpec], kind: str
) -> tuple[RepeatProgress, Callable[[RepeatQuestion], float]]:
    """One campaign whose cells of 1 replica are equal and whose others differ by just more than what counts as equal."""
    draw, first, second, invalid = HARD[kind]
    beyond = (1 + wanted.within) * 1.0001
    runs: dict[str, dict[str, float]] = {}
    for cell in cells:
        other = cell.sharing is not cells[0].sharing
        mean = beyond if other and cell.replicas > 1 else 1.0
        lost = random.random(wanted.max) < invalid
        for metric in wanted.compare:
            figures = mean * (1 + (second if other else first) * draw(random, wanted.max))
            for repeat, figure in enumerate(figures.tolist(), start=1):
                found = runs.setdefault(cell.experiment_id(repeat), {})
                if not lost[repeat - 1]:
                    found[metric.value] = figure

    def truth(question: RepeatQuestion) -> float:
        return beyond if question.reference is not None and question.cell.replicas > 1 else 1.0

    return judge(wanted, cells, runs), truth


def is_false(progress: RepeatProgress, truth: Callable[[RepeatQuestion], float], within: float) -> bool:
    """Whether a campaign has any false answer."""
    for verdict in progress.verdicts:
        true, found = truth(verdict), verdict.estimate
        if verdict.state is State.DIFFERENT and (true == 1 or (found is not None and (found.mean > 1) != (true > 1))):
            return True
        if verdict.state is State.EQUAL and not 1 / (1 + within) <= true <= 1 + within:
            return True
        if verdict.state is State.KNOWN and (
            found is None or found.low is None or found.high is None or not found.low <= true <= found.high
        ):
            return True
    return False


def false_answers(random: np.random.Generator, sharing: str, kind: str, campaigns: int) -> tuple[float, float]:
    """Share of campaigns with a false answer; and of questions without any."""
    cells, wanted, false, without, asked = campaign(sharing).cells(), UntilKnown(), 0, 0, 0
    for _ in range(campaigns):
        progress, truth = hard_campaign(random, wanted, cells, kind)
        false += is_false(progress, truth, wanted.within)
        asked += len(progress.verdicts)
        without += sum(verdict.state in UNANSWERED for verdict in progress.verdicts)
    return false / campaigns, without / asked


def recorded(pattern: str, wanted: UntilKnown, length_s: float) -> tuple[list[CellSpec], Truth]:
    """The published matrix: what its recordings tell when each is cut after so many seconds."""
    cells = campaign(
        "[exclusive, time-slicing, mps]", "[1, 3, 8]", "{name: distilbert}, {name: resnet50}, {name: whisper}"
    )
    names = {(c.workload.name, c.sharing.value, c.replicas): c.experiment_id(0) for c in cells.cells()}
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        for archive in sorted((ROOT / "examples" / "h200").glob(pattern)):
            for folder in experiment_folders(stack.enter_context(opened(archive))):
                replay = _replay(read_experiment(folder))
                for metric, figure in replay.figures(min(length_s, replay.record_s)).items():
                    figures[names[replay.key], metric].append(figure)
    truth = {
        place: (float(np.mean(values)), float(np.std(values, ddof=1) / np.mean(values)))
        for place, values in figures.items()
        if len(values) > 1 and place[1] in wanted.compare
    }
    return cells.cells(), truth


def between_starts(pattern: str) -> dict[str, str]:
    """By metric, how pieces of 10 s scatter within a start and between starts."""
    starts: dict[tuple[str, Key], list[list[float]]] = defaultdict(list)
    with ExitStack() as stack:
        for archive in sorted((ROOT / "examples" / "h200").glob(pattern)):
            for folder in experiment_folders(stack.enter_context(opened(archive))):
                replay = _replay(read_experiment(folder))
                pieces = [replay.piece(at, at + SHORT_S) for at in np.arange(0, replay.record_s - 1, SHORT_S)]
                for metric in set.intersection(*(set(piece) for piece in pieces)):
                    starts[metric, replay.key].append([piece[metric] for piece in pieces])
    found = {}
    for metric in {metric for metric, _ in starts}:
        cells = [np.array(runs) for (of, _), runs in starts.items() if of == metric and len(runs) > 2]
        shares, tests, left_out = [], 0, []
        for runs in cells:
            within = runs.var(axis=1, ddof=1).mean()
            between = max(0.0, runs.mean(axis=1).var(ddof=1) - within / runs.shape[1])
            shares.append(between / (between + within))
            tests += f_oneway(*runs).pvalue < LIMIT
            for number, run in enumerate(runs):
                own = t_interval(run.tolist())
                others = np.delete(runs, number, axis=0).mean()
                left_out.append(own.low is None or own.high is None or not own.low <= others <= own.high)
        found[metric] = (
            f"{100 * np.median(shares):.0f}% of a piece's variance is between starts (median of {len(cells)} cells; more than a tenth "
            f"in {sum(share > 0.1 for share in shares)}); F says so in {tests}; a 95% interval of one start's pieces leaves "
            f"out the mean of the others in {100 * np.mean(left_out):.0f}%"
        )
    return found


def drawn(random: np.random.Generator, truth: Truth, runs: int) -> dict[tuple[str, str], list[float]]:
    """Figures of so many runs of every cell."""
    return {place: (mean * np.exp(cv * random.standard_normal(runs))).tolist() for place, (mean, cv) in truth.items()}


def sequential(
    random: np.random.Generator, wanted: UntilKnown, cells: Sequence[CellSpec], truth: Truth, replays: int
) -> tuple[float, float]:
    """Mean repeats of a cell, and the share of questions without an answer."""
    repeats, without, asked = 0, 0, 0
    for _ in range(replays):
        runs: dict[str, dict[str, float]] = defaultdict(dict)
        for (name, metric), figures in drawn(random, truth, wanted.max).items():
            for repeat, figure in enumerate(figures, start=1):
                runs[f"{name.removesuffix('0')}{repeat}"][metric] = figure
        progress = judge(wanted, cells, runs)
        took: dict[str, int] = defaultdict(int)
        for verdict in progress.verdicts:
            for cell in (verdict.cell, verdict.reference):
                if cell is not None:
                    took[cell.experiment_id(0)] = max(took[cell.experiment_id(0)], verdict.repeats)
        repeats += sum(took.values())
        asked += len(progress.verdicts)
        without += sum(verdict.state in UNANSWERED for verdict in progress.verdicts)
    return repeats / replays / len(cells), without / asked


def fixed(
    random: np.random.Generator, wanted: UntilKnown, cells: Sequence[CellSpec], truth: Truth, replays: int, runs: int
) -> float:
    """Share of questions that as many repeats of every cell leave without an answer."""
    asked = questions(cells, [metric.value for metric in wanted.compare])
    without, equal = 0, 1 + wanted.within
    for _ in range(replays):
        figures = drawn(random, truth, runs)
        for question in asked:
            sides = [figures[side.experiment_id(0), question.metric] for side in question.sides]
            found = ratio(*sides, share=1 / len(asked))
            if found.low is None or found.high is None:
                without += 1
            else:
                different = found.low > 1 or found.high < 1
                without += not (different or (1 / equal <= found.low and found.high <= equal))
    return without / replays / len(asked)


def main() -> int:
    """Simulate, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=10_000, help="simulated campaigns of each kind")
    parser.add_argument("--replays", type=int, default=200, help="simulated campaigns of each published matrix")
    wishes = parser.parse_args()
    random = np.random.default_rng(1)
    beyond = 0
    for sharing, kind in [*(("[time-slicing, mps]", kind) for kind in HARD), ("[mps]", next(iter(HARD)))]:
        false, without = false_answers(random, sharing, kind, wishes.campaigns)
        margin = 3 * math.sqrt(max(false * (1 - false), 1e-4) / wishes.campaigns)
        beyond += false + margin >= LIMIT
        print(
            f"{'BEYOND' if false + margin >= LIMIT else 'kept'}: {100 * false:.2f} ± {100 * margin:.2f}% of campaigns have a "
            f"false answer; {sharing}, {kind}; {100 * without:.0f}% of questions without an answer",
            flush=True,
        )
    for name, (pattern, record_s) in SETS.items():
        wanted, most_without = UntilKnown(), 0.0
        cells, whole = recorded(pattern, wanted, record_s)
        for length_s in (record_s, SHORT_S):
            _, truth = recorded(pattern, wanted, length_s)
            repeats, without = sequential(random, wanted, cells, truth, wishes.replays)
            most_without = max(most_without, without)
            same = next(n for n in count(3) if fixed(random, wanted, cells, whole, wishes.replays, n) <= most_without)
            print(
                f"{name}, runs of {length_s:g} s: {repeats:.1f} repeats of a cell in the mean, {100 * without:.1f}% of questions "
                f"without an answer; fixed repeats of {record_s:g} s take {same} of every cell for {100 * most_without:.1f}%, "
                f"{same * record_s / (repeats * length_s):.1f} times as long; "
                f"{same * (record_s + AROUND_S) / (repeats * (length_s + AROUND_S)):.1f} times with {AROUND_S:g} s around each run",
                flush=True,
            )
    for name, (pattern, _) in SETS.items():
        for metric, found in sorted(between_starts(pattern).items()):
            print(f"{name}, {metric}: {found}", flush=True)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
