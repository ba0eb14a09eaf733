"""How far one attempt can be trusted: its steps, its replicas, and what the data themselves say."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.metrics.quality import Severity, judge
from harness.results import latencies, layout
from harness.results.manifest import Status, Verdict

if TYPE_CHECKING:
    from harness.campaign.attempt import Attempt
    from harness.metrics.summary import RecordingSummary

DEATH_ADVICE = "Look into the replica's log among the experiment's files; fewer replicas may fit where these did not."


def judge_attempt(attempt: Attempt) -> tuple[Verdict, list[dict[str, Any]]]:
    """The verdict, and the findings about the data in the form the manifest keeps.

    INVALID: a step before the clean-up failed, every replica died, or the data say nothing.
    DEGRADED: a replica died, did not end cleanly, or the data have a flaw that the report must show.
    """
    reasons = list(attempt.failures)
    advice = list(attempt.advice)
    status = Status.INVALID if reasons else Status.VALID
    findings: list[dict[str, Any]] = []
    if attempt.summary is not None and attempt.summary.rows:
        for finding in judge(attempt.folder, rows=attempt.summary.rows, requests=_requests(attempt, attempt.summary)):
            findings.append(asdict(finding))
            if finding.severity is Severity.INFO:
                continue
            status = _worse(status, Status.INVALID if finding.severity is Severity.INVALID else Status.DEGRADED)
            reasons.append(finding.message)
            advice.append(finding.advice)
    if attempt.deaths:
        lost_all = len(attempt.deaths) == attempt.experiment.replicas
        status = _worse(status, Status.INVALID if lost_all else Status.DEGRADED)
        reasons += [f"{death}." for death in attempt.deaths]
        advice.append(DEATH_ADVICE)
    for problem in attempt.unclean_ends:
        status = _worse(status, Status.DEGRADED)
        reasons.append(problem)
    return Verdict(status=status, reasons=_once(reasons), advice=_once(advice)), findings


def _requests(attempt: Attempt, summary: RecordingSummary) -> dict[str, int]:
    """Requests that each replica's own log holds between the first and the last row."""
    begin_ns, end_ns = round(summary.start_s * 1e9), round((summary.end_s or summary.start_s) * 1e9)
    counts = {}
    for replica in range(attempt.experiment.replicas):
        log = layout.replica_folder(attempt.folder, replica) / layout.RAW_LATENCIES
        if log.is_file():
            counts[f"replica-{replica}"] = sum(
                int(((ends := chunk["start_ns"] + chunk["latency_ns"]) > begin_ns).sum() - (ends > end_ns).sum())
                for chunk in latencies.chunks(log)
            )
    return counts


_ORDER = [Status.VALID, Status.DEGRADED, Status.INVALID]


def _worse(one: Status, other: Status) -> Status:
    return max(one, other, key=_ORDER.index)


def _once(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))
