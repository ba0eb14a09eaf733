"""How far one attempt can be trusted: its steps, its replicas, and what the data themselves say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity, judge
from harness.metrics.summary import RecordingSummary
from harness.metrics.throttling import held_back
from harness.results.latencies import requests_between_readings
from harness.results.layout import TELEMETRY
from harness.results.manifest import Status, Verdict

DEATH_ADVICE = "Look into the replica's log among the experiment's files; fewer replicas may fit where these did not."
_ORDER = [Status.VALID, Status.DEGRADED, Status.INVALID]
_OF_FINDING = {Severity.INFO: Status.VALID, Severity.DEGRADED: Status.DEGRADED, Severity.INVALID: Status.INVALID}


def judge_data(
    folder: Path, summary: RecordingSummary | None, *, open_loop: bool = False, waiting: Collection[str] = ()
) -> list[Finding]:
    """What the files of an attempt say; nothing, where nothing was recorded. ``open_loop``, ``waiting``: as of ``judge``."""
    if summary is None or summary.end_s is None:
        return []
    logged = partial(
        requests_between_readings,
        folder,
        start_s=summary.start_s,
        step_s=summary.step_s,
        late_s=summary.answered_within_s or 0.0,
    )
    found = judge(folder, rows=summary.rows, logged=logged, open_loop=open_loop, waiting=waiting)
    return [*found, *held_back(folder / TELEMETRY)]


def give_verdict(
    findings: Sequence[Finding],
    *,
    failures: Sequence[Finding],
    deaths: Sequence[ReplicaDeath],
    unclean_ends: Sequence[str],
    replicas: int,
) -> Verdict:
    """The verdict on one attempt.

    INVALID: a step failed, every measured replica died, or the data say nothing. DEGRADED: a replica or a
    neighbour died or did not end cleanly, or the data have a flaw that the report must show.

    Args:
        findings: from ``judge_data``.
        failures: of the steps that failed.
        deaths: replicas that ended by themselves.
        unclean_ends: replicas that had to be killed at the end, a sentence each.
        replicas: how many were measured; neighbours do not count.
    """
    measured = sum(not death.neighbour for death in deaths)
    of_deaths = Severity.INVALID if measured == replicas else Severity.DEGRADED
    flaws = [
        *failures,
        *(finding for finding in findings if finding.severity is not Severity.INFO),
        *(Finding(of_deaths, death.code, "", f"{death}.", DEATH_ADVICE) for death in deaths),
        *(Finding(Severity.DEGRADED, ReasonCode.UNCLEAN_END, "", sentence) for sentence in unclean_ends),
    ]
    codes = {flaw.message: flaw.code for flaw in reversed(flaws)}
    reasons = _once([flaw.message for flaw in flaws])
    return Verdict(
        status=max([Status.VALID, *(_OF_FINDING[flaw.severity] for flaw in flaws)], key=_ORDER.index),
        reasons=reasons,
        codes=[codes[reason] for reason in reasons],
        advice=_once([flaw.advice for flaw in flaws]),
    )


def ignored_settings(statuses: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A finding where the campaign file sets what no replica's workload took up; the built-in ones take up all."""
    ignored = [status.get("ignored_settings") for status in statuses]
    by_all = [name for name in ignored[0] or [] if all(name in (each or []) for each in ignored)] if ignored else []
    if not by_all:
        return []
    message = f"The workload ignored {', '.join(by_all)}: what the campaign file says there was not measured."
    advice = "Let the factory read the setting, let describe() name what it does instead, or leave it out."
    return [Finding(Severity.DEGRADED, ReasonCode.SETTING_IGNORED, "", message, advice)]


def as_records(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as the manifest keeps them."""
    return [asdict(finding) for finding in findings]


def _once(sentences: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))
