"""How far one attempt can be trusted: its steps, its replicas, and what the data themselves say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath
from harness.metrics.quality import Finding, Severity, judge
from harness.metrics.summary import RecordingSummary
from harness.metrics.throttling import held_back
from harness.results import latencies
from harness.results.layout import TELEMETRY
from harness.results.manifest import Status, Verdict

DEATH_ADVICE = "Look into the replica's log among the experiment's files; fewer replicas may fit where these did not."
_ORDER = [Status.VALID, Status.DEGRADED, Status.INVALID]
_OF_FINDING = {Severity.INFO: Status.VALID, Severity.DEGRADED: Status.DEGRADED, Severity.INVALID: Status.INVALID}


def judge_data(folder: Path, summary: RecordingSummary | None, *, open_loop: bool = False) -> list[Finding]:
    """What the files of an attempt say; nothing, where nothing was recorded. ``open_loop``: as of ``judge``."""
    if summary is None or summary.end_s is None:
        return []
    requests = latencies.requests_within(folder, summary.start_s, summary.end_s)
    found = judge(folder, rows=summary.rows, requests=requests, open_loop=open_loop)
    return [*found, *held_back(folder / TELEMETRY)]


def give_verdict(
    findings: Sequence[Finding],
    *,
    failures: Sequence[str],
    advice: Sequence[str],
    deaths: Sequence[ReplicaDeath],
    unclean_ends: Sequence[str],
    replicas: int,
) -> Verdict:
    """The verdict on one attempt.

    INVALID: a step failed, every measured replica died, or the data say nothing. DEGRADED: a replica or a
    neighbour died or did not end cleanly, or the data have a flaw that the report must show.

    Args:
        findings: from ``judge_data``.
        failures: reasons of the steps that failed.
        advice: what to do about those.
        deaths: replicas that ended by themselves.
        unclean_ends: replicas that had to be killed at the end, a sentence each.
        replicas: how many were measured; neighbours do not count.
    """
    flaws = [finding for finding in findings if finding.severity is not Severity.INFO]
    grounds = [Status.VALID, *(_OF_FINDING[finding.severity] for finding in flaws)]
    grounds += [Status.INVALID] * bool(failures) + [Status.DEGRADED] * bool(unclean_ends)
    if deaths:
        measured = [death for death in deaths if not death.neighbour]
        grounds.append(Status.INVALID if len(measured) == replicas else Status.DEGRADED)
    reasons = [*failures, *(flaw.message for flaw in flaws), *(f"{death}." for death in deaths), *unclean_ends]
    advice = [*advice, *(flaw.advice for flaw in flaws), *([DEATH_ADVICE] if deaths else [])]
    return Verdict(status=max(grounds, key=_ORDER.index), reasons=_once(reasons), advice=_once(advice))


def as_records(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as the manifest keeps them."""
    return [asdict(finding) for finding in findings]


def _once(sentences: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))
