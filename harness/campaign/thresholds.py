"""What a pipeline asks with ``--fail-on``: of a campaign file before it runs, and of results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.statistics import Outcome, keeps
from harness.campaign.preflight import refuse_errors
from harness.errors import (
    DegradedError,
    ExperimentsFailedError,
    FailOn,
    HarnessError,
    Issue,
    IssueLevel,
    ObjectiveMissedError,
    PreflightError,
    RegressionError,
    UsageError,
)
from harness.results.manifest import Status

if TYPE_CHECKING:
    from harness.analysis.campaign import CampaignAnalysis
    from harness.analysis.contrasts.reproduction import Line, Reproduction
    from harness.spec import CampaignSpec, WorkloadSpec

WITHIN_PERCENT = 10.0
MISSING = "MISSING"
"""In place of the status of an experiment that the campaign asks for and that is not there."""
_REASONS = {
    PreflightError: "preflight",
    ExperimentsFailedError: FailOn.INVALID.value,
    ObjectiveMissedError: FailOn.SLO.value,
    RegressionError: FailOn.REGRESSION.value,
    DegradedError: FailOn.DEGRADED.value,
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What was asked: what to fail on, the campaign to compare with, the relative difference that counts as none, and a p99 to keep."""

    wanted: frozenset[FailOn]
    baseline: Path | None = None
    within: float = WITHIN_PERCENT / 100
    latency_limit_s: float | None = None

    def refuse_without_slo(self, spec: CampaignSpec) -> None:
        """Raise UsageError where an objective is asked about that the campaign does not have."""
        if FailOn.SLO in self.wanted and spec.slo is None and self.latency_limit_s is None:
            raise UsageError(
                "--fail-on slo: the campaign file has no `slo`.", advice="Add e.g. slo: {latency_p99_ms: 500}"
            )

    def refuse_unanswerable(self, spec: CampaignSpec) -> None:
        """Raise UsageError where no result of this campaign could answer what is asked."""
        self.refuse_without_slo(spec)
        if self.baseline is None:
            return
        from harness.analysis.campaign import analyse, key_of
        from harness.analysis.contrasts.reproduction import wanted
        from harness.results.published import opened

        with opened(self.baseline) as folder:
            published = analyse(folder)
        wanted(published, within=self.within)
        planned = {key_of(cell) for cell in spec.cells()}
        usable = {cell.key: len(cell.used) for cell in published.cells if cell.key in planned}
        if not usable:
            raise UsageError(
                f"{self.baseline} measured nothing that this campaign measures: no workload, sharing mode, replica count "
                "and condition is in both.",
                advice="Give a run of the same campaign file as --baseline.",
            )
        if spec.most_repeats < 2 or max(usable.values()) < 2:
            who = "this campaign" if spec.most_repeats < 2 else f"{self.baseline}"
            raise UsageError(
                f"--fail-on regression: {who} has one repeat, so there is no interval to judge.",
                advice="Set repeats: 3 in the campaign file, and measure the baseline in the same way.",
            )

    def of_plan(self, spec: CampaignSpec, findings: Sequence[Issue]) -> Judgement:
        """What is known before anything runs: what preflight found, and an objective that the recording is too short for."""
        failures: list[HarnessError] = []
        try:
            refuse_errors(findings)
        except PreflightError as error:
            # The plan lists them one by one.
            number = sum(finding.severity is IssueLevel.ERROR for finding in findings)
            several = f"preflight found {number} errors, so harness run would refuse this campaign."
            failures.append(
                error if number == 1 else PreflightError(several, advice="Fix each of them.", code=error.code)
            )
        if FailOn.SLO in self.wanted and (short := too_short(spec)):
            advice = "Record longer, or ask at a higher rate, so that it can pass."
            failures.append(ObjectiveMissedError(" ".join(short), advice=advice))
        warnings = [finding for finding in findings if finding.severity is IssueLevel.WARNING]
        if FailOn.DEGRADED in self.wanted and warnings:
            advice = " ".join(dict.fromkeys(finding.advice for finding in warnings if finding.advice))
            message = f"Preflight warns: {' '.join(finding.message for finding in warnings)}"
            failures.append(DegradedError(message, advice=advice))
        return Judgement(failures)

    def judge(
        self,
        statuses: Mapping[str, str],
        slo: Mapping[str, Mapping[str, Any]],
        compared: Sequence[tuple[str, Reproduction]] = (),
        *,
        advice: str = "The report says why.",
    ) -> Judgement:
        """What is not as asked, by the statuses and objectives of experiments and campaigns compared with their baseline."""
        bad = {name: status for name, status in statuses.items() if status in {Status.INVALID, MISSING}}
        degraded = [name for name, status in statuses.items() if status == Status.DEGRADED]
        unmet = [f"{name} ({judged['outcome']})" for name, judged in slo.items() if judged["outcome"] != "pass"]
        failures: list[HarnessError] = []
        if self.wanted & {FailOn.INVALID, FailOn.DEGRADED} and bad:
            what = f"{len(bad)} of {len(statuses)} experiments are {' and '.join(dict.fromkeys(bad.values()))}"
            failures.append(ExperimentsFailedError(f"{what}: {', '.join(bad)}.", advice=advice))
        if FailOn.SLO in self.wanted and (unmet or not slo):
            what = (
                f"The objective is not met, or inconclusive: {', '.join(unmet) or 'no experiment was judged by one'}."
            )
            by_how_much = "The report says by how much; a longer recording decides more."
            failures.append(ObjectiveMissedError(what, advice=by_how_much))
        if FailOn.REGRESSION in self.wanted:
            failures += _regressions([reproduction for _, reproduction in compared])
        if FailOn.DEGRADED in self.wanted and degraded:
            what = f"{len(degraded)} of {len(statuses)} experiments are DEGRADED: {', '.join(degraded)}."
            failures.append(DegradedError(what, advice="The report gives the reason of each."))
        return Judgement(failures, compared)

    def against_baseline(self, analysis: CampaignAnalysis) -> list[tuple[str, Reproduction]]:
        """The campaign compared with the baseline, where one was given."""
        if self.baseline is None:
            return []
        from harness.analysis.campaign import analyse
        from harness.analysis.contrasts.reproduction import reproduction
        from harness.campaign.planners import refuse_same
        from harness.results.published import opened

        with opened(self.baseline) as folder:
            refuse_same(folder, analysis.folder)
            return [(analysis.name, reproduction(analyse(folder), analysis, within=self.within))]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of the thresholds: what is not as asked, lowest exit code first, and campaigns compared with their baseline."""

    failures: Sequence[HarnessError]
    compared: Sequence[tuple[str, Reproduction]] = field(default_factory=tuple)

    def document(self) -> dict[str, Any]:
        """For ``--json``: every failure with its exit code, and every cell compared with the baseline."""
        regression = [
            {"campaign": name, **reproduction.to_dict(), "worse": _worse(reproduction)}
            for name, reproduction in self.compared
        ]
        failed = [
            {"reason": _REASONS[type(failure)], "exit_code": failure.exit_code, "message": failure.message}
            for failure in self.failures
        ]
        return {"failed_on": failed} | ({"regression": regression} if regression else {})

    def sentences(self) -> list[str]:
        """What the comparison with the baseline says, for people."""
        sentences = []
        for name, reproduction in self.compared:
            outcomes = Counter(_outcome(line) for cell in reproduction.cells for line in cell.lines)
            order = ("worse", "better", Outcome.AGREES.value, Outcome.INCONCLUSIVE.value)
            counts = ", ".join(f"{word} {outcomes[word]}" for word in order)
            sentences += [f"differs from the baseline: {sentence}" for sentence in reproduction.environment]
            within = f"figures within {100 * reproduction.within:g}%"
            sentences.append(f"{name} against the baseline, {within}: {counts}.")
        return sentences

    def refuse(self) -> None:
        """Raise the failure with the lowest exit code; its message says all of them."""
        if self.failures:
            first = self.failures[0]
            raise type(first)(" ".join(failure.message for failure in self.failures), advice=first.advice)


def thresholds(
    fail_on: Sequence[FailOn] | None,
    baseline: Path | None = None,
    within_percent: float | None = None,
    *,
    campaigns: int = 1,
    latency_limit_ms: float | None = None,
) -> Thresholds:
    """What the options ask of so many campaigns, of which the first is the baseline. Raises UsageError where they do not go together."""
    wanted = frozenset(fail_on or ())
    regression = FailOn.REGRESSION in wanted
    if regression and baseline is None and campaigns < 2:
        raise UsageError(
            "--fail-on regression needs a campaign to compare with.",
            advice="Add --baseline RESULTS/CAMPAIGN, which may be a published set; to `compare`, give the baseline first.",
        )
    if not regression and (baseline is not None or within_percent is not None):
        raise UsageError(
            "--baseline and --within have no effect without --fail-on regression.",
            advice="Add --fail-on regression, or leave them out.",
        )
    within = WITHIN_PERCENT if within_percent is None else within_percent
    return Thresholds(wanted, baseline, within / 100, None if latency_limit_ms is None else latency_limit_ms / 1e3)


def judge_analyses(limits: Thresholds, analyses: Sequence[CampaignAnalysis]) -> Judgement:
    """What is not as asked in campaigns that ran already; of several, the first is the baseline. Raises UsageError."""
    from harness.analysis.contrasts.reproduction import reproduction
    from harness.analysis.objective import objectives

    first, *others = analyses
    statuses: dict[str, str] = {}
    slo: dict[str, dict[str, Any]] = {}
    for analysis in analyses:
        if analysis.spec is not None:
            limits.refuse_without_slo(analysis.spec)
        prefix = f"{analysis.name}/" if others else ""
        statuses |= {f"{prefix}{name}": status for name, status in _statuses(analysis).items()}
        if FailOn.SLO in limits.wanted:
            limit_s = limits.latency_limit_s
            judged = objectives(analysis.folder) if limit_s is None else _kept(analysis, limit_s)
            slo |= {f"{prefix}{name}": outcome for name, outcome in judged.items()}
    compared = limits.against_baseline(first)
    if FailOn.REGRESSION in limits.wanted:
        compared += [(other.name, reproduction(first, other, within=limits.within)) for other in others]
    return limits.judge(statuses, slo, compared)


def _kept(analysis: CampaignAnalysis, limit_s: float) -> dict[str, dict[str, Any]]:
    """Whether each configuration keeps a limit of its p99 with its whole interval over the repeats."""
    return {
        "/".join(map(str, filter(None, cell.key))): {
            "outcome": (keeps(p99, limit_s) if p99 else Outcome.INCONCLUSIVE).value
        }
        for cell in analysis.cells
        for p99 in [cell.estimates.get("latency_p99_exact")]
    }


def _statuses(analysis: CampaignAnalysis) -> dict[str, str]:
    """The status of each experiment that the campaign asks for; what is damaged is INVALID, what is not there MISSING."""
    from harness.analysis.stress import explained
    from harness.campaign.runner import is_answer

    statuses = {run.name: Status.INVALID.value if run.damage else run.status.value for run in analysis.experiments}
    statuses |= {run.name: MISSING for run in analysis.unfinished}
    others_fit = any(run.status is not Status.INVALID for run in analysis.experiments)
    answers = explained(analysis.stress_series) | {
        run.name
        for run in analysis.experiments
        if is_answer(run.data.manifest, others_fit=others_fit, spec=analysis.spec)
    }
    return {name: status for name, status in statuses.items() if name not in answers}


def too_short(spec: CampaignSpec) -> list[str]:
    """Where requests come at a rate: workloads with too few of them for the objective to be met, in sentences.

    Of a matrix the least that a configuration of the workload gets counts, of a load that is raised the most.
    """
    from harness.analysis.objective import fewest_requests, look_times

    if spec.slo is None:
        return []
    looks = len(look_times(spec.timing))
    of_requests = [1 - quantile for _, what, quantile, _ in spec.slo.limits() if what != "itl"]
    allowed = [*of_requests, *filter(None, [spec.slo.error_rate])]
    needed, record_s = max((fewest_requests(share, looks) for share in allowed), default=0), spec.timing.record_s
    planned: dict[str, list[tuple[float, int]]] = {}
    for cell in spec.cells():
        if rate := _mean_rate(cell.workload):
            planned.setdefault(cell.workload.family, []).append((rate, cell.replicas))
    decisive = max if spec.stress else min
    counted = {name: decisive(loads, key=math.prod) for name, loads in planned.items()}
    return [
        f"{name}: {rate:g} requests/s to each server make about {rate * replicas * record_s:.0f} requests in "
        f"{record_s:g} s. The objective can be called met only from {needed} requests on, even if none misses it."
        for name, (rate, replicas) in counted.items()
        if rate * replicas * record_s < needed
    ]


def _mean_rate(workload: WorkloadSpec) -> float | None:
    """Requests per second to each replica over the recording; None in a closed loop, and of a trace."""
    if (server := workload.server) is None:
        return workload.scenario.rate if workload.scenario and workload.open_loop else None
    if server.rate is None:
        return None
    return (server.rate + (server.rate if server.ramp_to is None else server.ramp_to)) / 2


def _outcome(line: Line) -> str:
    """``worse`` and ``better`` than the baseline by more than the tolerance; else whether it agrees or is inconclusive."""
    if line.outcome is not Outcome.DIFFERS:
        return line.outcome.value
    less = line.ratio is not None and line.ratio.mean < 1
    # Of what is compared, throughput alone is the better the more there is.
    return "worse" if less == (line.measure == "throughput") else "better"


def _worse(reproduction: Reproduction) -> list[str]:
    """Figures that are worse than the baseline's, with their whole interval; a sentence each."""
    sentences = []
    for cell in reproduction.cells:
        where = "/".join(map(str, filter(None, cell.key)))
        for measure, before, now, ratio, _ in (line.words for line in cell.lines if _outcome(line) == "worse"):
            sentences.append(f"{where}: {measure}: {now} against {before}, {ratio} of the baseline.")
    return sentences


def _regressions(compared: Sequence[Reproduction]) -> list[HarnessError]:
    """What is worse, or that nothing could be compared; at most one error."""
    if sentences := [sentence for reproduction in compared for sentence in _worse(reproduction)]:
        advice = "See first whether the environment differs; harness report shows the runs."
        return [RegressionError(f"Worse than the baseline: {' '.join(sentences)}", advice=advice)]
    lines = [line for reproduction in compared for cell in reproduction.cells for line in cell.lines]
    if any(line.ratio and line.ratio.low for line in lines):
        return []
    message = "Nothing could be compared with the baseline: no figure has an interval on both sides."
    return [RegressionError(message, advice="Take repeats: 3 in the campaign file; INVALID runs are not used.")]
