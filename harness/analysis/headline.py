"""What a report says first: the answer in a sentence or two, and what weakens it in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.client_result import read_scenarios
from harness.analysis.contrasts.comparison import By, gather
from harness.analysis.contrasts.outcome import Outcome
from harness.analysis.format import quantity, replicas_in_words, times, with_interval
from harness.analysis.goodput import Best, sentences
from harness.analysis.narrative import FEW_REPEATS, UNSTEADY_CV, answers
from harness.analysis.questions.condition_overhead import Interference
from harness.analysis.questions.question import ComparisonQuery
from harness.analysis.questions.recommendation import LOWEST_P99, MOST_THROUGHPUT, Choice, choices
from harness.analysis.statistics import Estimate
from harness.errors import ResultsPathError
from harness.metrics.telemetry import TOLD_SHARE
from harness.results.manifest import Status

MOST = 3
"""Sentences of an answer; what there is besides stands further down."""


def headline(analysis: CampaignAnalysis, best: Sequence[Best], against_first: Interference | None) -> list[str]:
    """The answer to what the campaign asked, at most ``MOST`` sentences.

    Args:
        analysis: of the campaign.
        best: of a stress campaign with an objective, the highest goodput.
        against_first: of a campaign with conditions, what each costs.
    """
    if analysis.stress_series:
        return (sentences(best) or [sentence for series in analysis.stress_series for sentence in series.sentences()])[
            :MOST
        ]
    if against_first and against_first.overheads:
        return [*against_first.worst(), *against_first.verdicts()][:MOST]
    if analysis.progress and (asked := analysis.progress.sentences()):
        return asked[:MOST]
    return (_decided(analysis) or answers(analysis))[:MOST]


def _decided(analysis: CampaignAnalysis) -> list[str]:
    """Which sharing mode does best, a sentence per workload; nothing where one mode was measured."""
    if len({cell.mode for cell in analysis.cells if cell.used}) < 2:
        return []
    comparison = gather([analysis.folder], By.SHARING, unlike=True, read=lambda _folder: analysis)
    found: dict[str, Choice] = {}
    for choice in choices(comparison, ComparisonQuery()):
        if choice.goal.name in {MOST_THROUGHPUT, LOWEST_P99}:
            found.setdefault(choice.workload, choice)  # The throughput comes first, unless it was set.
    return [_sentence(choice) for choice in found.values()]


def _sentence(choice: Choice) -> str:
    (mode, best), (other, runner_up) = choice.best, choice.next
    goal = choice.goal.name.removesuffix(" with many replicas")
    than = f"{times(choice.gain.ratio)} that of" if choice.gain else "against"
    told = f"{_figures(choice, best)}; {than} {other} with {replicas_in_words(runner_up.replicas)}"
    where = f"under {mode} with {replicas_in_words(best.replicas)}, {told}"
    if choice.clear:
        return f"{choice.workload}: {goal} {where} (significant)."
    sure = (
        "no significant difference between the modes"
        if choice.outcome is Outcome.NOT_SIGNIFICANT
        else "too few runs to choose a mode"
    )
    return f"{choice.workload}: {sure}; {goal} here {where}."


def _figures(choice: Choice, cell: Cell) -> str:
    p99 = cell.estimates.get("latency_p99_exact")
    if choice.goal.name == LOWEST_P99:
        return with_interval(p99, "s") if p99 else ""
    rate = with_interval(cell.estimates["throughput"], "requests/s")
    return rate + (f" at a p99 of {quantity(p99.mean, 's')}" if p99 else "")


def limits(analysis: CampaignAnalysis) -> list[str]:
    """In how many runs a scenario's latency limit was kept; nothing where none has one."""
    scenarios = {
        each.name: scenario
        for each in analysis.experiments
        if each.used and (scenario := each.data.manifest.experiment.workload.scenario)
    }
    if not scenarios:
        return []
    try:
        results = read_scenarios(analysis.folder)
    except ResultsPathError:  # all of them are damaged, which the commands that read them say
        return []
    met = {
        each["experiment"]: each["results"]["limit_met"]
        for each in results
        if each["experiment"] in scenarios and each["results"].get("limit_met") is not None
    }
    if not met:
        return []
    kept = f"kept in {sum(met.values())} of {len(met)} runs"
    limits_ms = sorted({scenarios[name].latency_limit_ms or 0.0 for name in met})
    limit = " or ".join(f"{limit_ms:g}" for limit_ms in limits_ms)
    broken = "" if all(met.values()) else ", broken in the others"
    return [f"Latency limit of {limit} ms for 99 % of the requests: {kept}{broken}."]


def concerns(analysis: CampaignAnalysis) -> list[str]:
    """What a reader has to know before anything else, in a few words each; empty when nothing weakens the answer."""
    runs = len(analysis.experiments)
    damaged = sum(bool(each.damage) for each in analysis.experiments)
    single = sum(len(cell.used) == 1 for cell in analysis.cells)
    few = sum(1 < len(cell.used) < FEW_REPEATS for cell in analysis.cells)
    restless = sum((estimate.cv or 0) > UNSTEADY_CV for estimate in _estimates(analysis, "throughput"))
    capped = sum(estimate.mean > 100 * TOLD_SHARE for estimate in _estimates(analysis, "gpu_power_capped"))
    on_cpu = any(
        replica.get("device") == "cpu"
        for each in analysis.experiments
        if each.data.manifest.provenance.gpus
        for replica in each.data.manifest.replicas
    )
    told = {
        f"{len(analysis.unfinished)} of {analysis.planned} experiments are missing": bool(analysis.unfinished),
        f"{analysis.count(Status.INVALID)} of {runs} runs are INVALID and left out": analysis.count(Status.INVALID),
        f"{damaged} of {runs} runs are damaged and left out": damaged,
        f"{analysis.count(Status.DEGRADED)} of {runs} runs are DEGRADED and included": analysis.count(Status.DEGRADED),
        "replicas ran on the CPU although there is a GPU": on_cpu,
        f"one run only, so without an interval, in {_of(single, analysis)}": single,
        f"two runs only, so with wide intervals, in {_of(few, analysis)}": few,
        f"the power cap set the GPU's clock in {_of(capped, analysis)}": capped,
        f"throughput varies by more than {100 * UNSTEADY_CV:.0f} % between repeats in {_of(restless, analysis)}": restless,
    }
    return [sentence for sentence, holds in told.items() if holds]


def _estimates(analysis: CampaignAnalysis, name: str) -> list[Estimate]:
    return [cell.estimates[name] for cell in analysis.cells if name in cell.estimates]


def _of(count: int, analysis: CampaignAnalysis) -> str:
    return f"{count} of {len(analysis.cells)} configurations"
