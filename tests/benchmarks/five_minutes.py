"""Whether five minutes say what the whole published set says: resampled runs of each set in ``examples/h200``, through the judge.

    python -m tests.benchmarks.five_minutes [--runs 1000] [--start 1.0] [ARCHIVE...]

A made-up campaign has the cells of ``harness run sharing`` that a set has: one replica with the GPU to itself, and the sharing modes
at its two largest numbers of replicas. A run of a cell is one of the published ones, drawn at random, with how far it lies from their
mean (widened by what so few runs are short of), and with how far one of its pieces of 8 s lies from the whole. Blocks go through the judge
until it has its answers or the next one does not fit into 300 s, where a run takes its 10 s and ``--start`` times what replicas
usually take to start. The whole set's answer is the decision of ``harness compare``.

For each metric: how often the made-up campaign names the whole set's best mode, another one, or says that they are as good. Of a set, any
other best mode than the whole set's (the better mean) may be named in 5% of campaigns; where the whole set decided by more than 10%,
the same must be named in 90%.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.analysis.campaign import ConfigurationKey, MeasuredRun, key_of
from harness.analysis.contrasts.comparison import By, gather
from harness.analysis.contrasts.until_known import State, judge
from harness.analysis.questions.decision import BestMode, Certainty, decisions
from harness.campaign.fit import FASTEST_START, block_s, most_blocks
from harness.results.published import opened
from harness.spec import CampaignSpec, CellSpec, Repeats, Sharing, Timing, UntilKnown
from tests.benchmarks.stop_when_known import ROOT, _replay

BUDGET_S = 300.0
TIMING = Timing(step_s=0.5, stabilise_s=2, record_s=8, cooldown_s=0, start="forked")
WRONG, RIGHT, CLEAR = 0.05, 0.9, 0.1
SETS = (
    ["h200-activity-2*"],
    ["h200-busy-distilbert-*"],
    ["h200-busy-resnet50-*"],
    ["h200-busy-whisper-*"],
    ["h200-engine-*"],
    ["h200-server-*"],
    ["h200-shares-*"],
    ["h200-sharing-distilbert-*"],
    ["h200-sharing-resnet50-*"],
    ["h200-sharing-whisper-*"],
)

Draws = dict[str, float]


@dataclass(slots=True)
class Resampled:
    """Runs of one configuration to draw from: logarithms beside the mean, of starts and of pieces within a start."""

    means: dict[str, float]
    starts: dict[str, np.ndarray] = field(default_factory=dict)
    pieces: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def draw(self, random: np.random.Generator) -> Draws:
        """Metrics of one run; those of one start, and of one piece, belong together."""
        start = int(random.integers(min(map(len, self.starts.values()))))
        piece = random.random()
        drawn = {}
        for metric, mean in self.means.items():
            within = self.pieces[metric][start]
            drawn[metric] = mean * math.exp(self.starts[metric][start] + within[int(piece * len(within))])
        return drawn


@dataclass(slots=True)
class WholeSet:
    """One workload of a published set: its cells in five minutes, their runs, and the decision over all that was recorded."""

    name: str
    spec: CampaignSpec
    cells: dict[str, tuple[CellSpec, Resampled]]
    whole: dict[str, BestMode]


@dataclass(slots=True)
class Tally:
    """How often the best mode by one metric was the whole set's, another, practically equal or known to 5%, or open."""

    right: int = 0
    wrong: int = 0
    equal: int = 0
    open: int = 0


def whole_sets(archives: Sequence[Path]) -> Iterator[WholeSet]:
    """The workloads of archives that belong together."""
    with ExitStack() as stack:
        folders = [stack.enter_context(opened(archive)) for archive in archives]
        comparison = gather(folders, By.SHARING)
        spec = comparison.analyses[-1].spec
        assert spec is not None
        for decision in decisions(comparison):
            whole = {best.metric: best for best in decision.by_metric if best.certainty is not Certainty.NOT_MEASURED}
            runs: dict[ConfigurationKey, list[MeasuredRun]] = {}
            for analysis in comparison.analyses:
                for cell in analysis.cells:
                    runs.setdefault(cell.key, []).extend(cell.used)
            plan = five_minute_plan(spec, decision.workload, decision.replicas, [*whole])
            cells = {}
            for cell in plan.cells():
                drawn = resampled(runs.get(key_of(cell), []), [*whole])
                if drawn is not None:
                    cells[cell.experiment_id(0)] = (cell, drawn)
            yield WholeSet(f"{archives[0].name.partition('-2026')[0]} {decision.workload}", plan, cells, whole)


def five_minute_plan(spec: CampaignSpec, workload: str, most: int, metrics: Sequence[str]) -> CampaignSpec:
    """What ``harness run sharing`` would run of a campaign."""
    counts = sorted({count for count in spec.replicas if 1 < count <= most})[-2:]
    wanted = UntilKnown(question="best-mode", compare=metrics, budget=f"{BUDGET_S:g} s")
    changed = spec.model_copy(
        update={
            "workloads": [it for it in spec.workloads if it.name == workload],
            "replicas": [*([1] if Sharing.EXCLUSIVE in spec.sharing else []), *counts],
            "timing": TIMING,
            "repeats": Repeats(until_known=wanted),
        }
    )
    blocks = most_blocks(changed, BUDGET_S)
    return changed.model_copy(update={"repeats": Repeats(until_known=wanted.model_copy(update={"max": blocks}))})


def resampled(runs: Sequence[MeasuredRun], metrics: Sequence[str]) -> Resampled | None:
    """What to draw from; None where a cell has too few runs."""
    if len(runs) < 2:
        return None
    pieces = [list(pieces_of(run)) for run in runs]
    drawn = Resampled({})
    for metric in metrics:
        values = np.array([run.figures.get(metric, math.nan) for run in runs])
        within = [np.log([piece[metric] for piece in of_run if metric in piece]) for of_run in pieces]
        if np.isnan(values).any() or not all(map(len, within)):
            continue
        drawn.means[metric] = float(values.mean())
        logs = np.log(values)
        drawn.starts[metric] = (logs - logs.mean()) * math.sqrt(len(logs) / (len(logs) - 1))
        drawn.pieces[metric] = [(logs - logs.mean()) * math.sqrt(len(logs) / max(len(logs) - 1, 1)) for logs in within]
    return drawn if drawn.means else None


def pieces_of(run: MeasuredRun) -> Iterator[Draws]:
    """What each piece as long as a short recording would have reported."""
    replay = _replay(run.data)
    length_s = min(TIMING.record_s, replay.record_s)
    try:
        readings = run.data.telemetry().filter(regex=r"power_w$").sum(axis=1)
    except ValueError:
        readings = None
    for begin_s in np.arange(0, replay.record_s - length_s + 0.01, length_s):
        piece = replay.piece(begin_s, begin_s + length_s)
        if readings is not None and piece["throughput"]:
            watts = readings[(readings.index >= begin_s) & (readings.index < begin_s + length_s)]
            if len(watts):
                piece["energy"] = float(watts.mean()) / piece["throughput"]
        yield piece


def campaign(
    random: np.random.Generator, published: WholeSet, start: float
) -> tuple[dict[str, tuple[State, str]], float]:
    """One made-up campaign: by metric how it ended and the mode it names best; and the seconds that it took."""
    wanted = published.spec.until_known
    assert wanted is not None
    cells = [cell for cell, _ in published.cells.values()]
    runs: dict[str, Draws] = {}
    spent_s = 0.0
    while True:
        progress = judge(wanted, cells, runs)
        cost_s = block_s(published.spec, progress.following, start)
        if not progress.following or spent_s + cost_s > BUDGET_S:
            return {it.metric: (it.state, it.cell.mode) for it in progress.verdicts}, spent_s
        spent_s += cost_s
        for cell in progress.following:
            _, source = published.cells[cell.experiment_id(0)]
            runs[cell.experiment_id(progress.blocks + 1)] = source.draw(random)


def tallies(
    random: np.random.Generator, published: WholeSet, runs: int, start: float
) -> tuple[dict[str, Tally], int, float]:
    """By metric; campaigns that name any other best mode than the whole set; mean seconds of a campaign."""
    counts = {metric: Tally() for metric in published.whole}
    others, spent_s = 0, 0.0
    for _ in range(runs):
        ended, took_s = campaign(random, published, start)
        spent_s += took_s
        wrong = False
        for metric, tally in counts.items():
            state, mode = ended[metric]
            best = published.whole[metric].best
            assert best is not None
            if state is State.BEST and mode == best.mode:
                tally.right += 1
            elif state is State.BEST:
                tally.wrong, wrong = tally.wrong + 1, True
            elif state in {State.EQUAL, State.KNOWN}:
                tally.equal += 1
            else:
                tally.open += 1
        others += wrong
    return counts, others, spent_s / runs


def is_clear(best: BestMode) -> bool:
    """Whether the whole set decided by more than 10%."""
    gain = best.gain
    return best.certainty is Certainty.BEST and gain is not None and abs(math.log(gain.ratio.mean)) > math.log1p(CLEAR)


def main() -> int:
    """Simulate and print; 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, nargs="*", help="one published set (default: all)")
    parser.add_argument("--runs", type=int, default=1000, help="made-up campaigns of each set")
    parser.add_argument(
        "--start", type=float, default=1.0, help=f"of the usual time to start; fastest: {FASTEST_START}"
    )
    wishes = parser.parse_args()
    folder = ROOT / "examples" / "h200"
    every = (
        [wishes.archives]
        if wishes.archives
        else [sorted(p for glob in globs for p in folder.glob(globs[0])) for globs in SETS for glob in globs]
    )
    beyond = 0
    for archives in every:
        for published in whole_sets(archives):
            counts, others, mean_s = tallies(np.random.default_rng(1), published, wishes.runs, wishes.start)
            beyond += others > WRONG * wishes.runs
            print(
                f"{published.name}: another best mode in {100 * others / wishes.runs:.1f}%; {mean_s:.0f} s in the mean",
                flush=True,
            )
            for metric, tally in counts.items():
                best = published.whole[metric]
                gain, clear = best.gain, is_clear(best)
                beyond += clear and tally.right < RIGHT * wishes.runs
                print(
                    f"  {metric}: whole set {best.certainty}{f' {best.best.mode} {100 * (gain.ratio.mean - 1):+.1f}%' if gain and best.best else ''}"
                    f"{' (by more than 10%)' if clear else ''}; five minutes the same {100 * tally.right / wishes.runs:.1f}%, another "
                    f"{100 * tally.wrong / wishes.runs:.1f}%, practically equal {100 * tally.equal / wishes.runs:.1f}%, not known "
                    f"{100 * tally.open / wishes.runs:.1f}%",
                    flush=True,
                )
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
