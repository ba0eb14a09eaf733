"""How far one attempt can be trusted: its steps, its replicas, what the data say, what a hostile neighbour did to them; and what this machine did beside them (limits of control groups)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath
from harness.cgroup import Cgroup
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.metrics.rows import RecordingSummary, neighbour_of
from harness.metrics.telemetry import held_back
from harness.results.layout import TELEMETRY
from harness.results.manifest import Status, Verdict
from harness.results.requests import Window, requests_within
from harness.results.verification import judge_experiment
from harness.spec import ExperimentSpec
from harness.spec.condition import crashing
from harness.spec.workload import MEMORY_HOG

DEATH_ADVICE = "Look into the replica's log among the experiment's files; fewer replicas may fit where these did not."
AT_ONCE_S = 5.0
"""Who dies with a crash may be noticed this much before it."""
THROTTLED_SHARE = 0.05
"""Of the quota's periods; with more, what is measured is the quota."""
_AFTER_S = "Set its option after_s, seconds from its first request, so that it lies in the recording."
_ORDER = [Status.VALID, Status.DEGRADED, Status.INVALID]
_OF_FINDING = {Severity.INFO: Status.VALID, Severity.DEGRADED: Status.DEGRADED, Severity.INVALID: Status.INVALID}


def judge_data(folder: Path, summary: RecordingSummary | None, experiment: ExperimentSpec) -> list[Finding]:
    """What the files of an attempt say; nothing, where nothing was recorded."""
    if summary is None or summary.end_s is None:
        return []
    late_s = summary.answered_within_s or 0.0
    findings = judge_experiment(folder, experiment, rows=summary.rows, start_s=summary.start_s, late_s=late_s)
    return [*findings, *held_back(folder / TELEMETRY)]


def give_verdict(
    findings: Sequence[Finding],
    *,
    failures: Sequence[Finding],
    deaths: Sequence[ReplicaDeath],
    unclean_ends: Sequence[str],
    replicas: int,
) -> Verdict:
    """INVALID: a step failed, all measured ``replicas`` died, or the data say nothing. DEGRADED: somebody died or did not end cleanly, or the data have a flaw."""
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
    by_all = [name for name in ignored[0] or [] if all(name in (names or []) for names in ignored)] if ignored else []
    if not by_all:
        return []
    message = f"The workload ignored {', '.join(by_all)}: what the campaign file says there was not measured."
    advice = "Let the factory read the setting, let describe() name what it does instead, or leave it out."
    return [Finding(Severity.DEGRADED, ReasonCode.SETTING_IGNORED, "", message, advice)]


def crashes(
    experiment: ExperimentSpec, folder: Path, window: Window, deaths: Sequence[ReplicaDeath]
) -> Iterator[Finding]:
    """Whether the measured replicas survived a neighbour's crash that was wanted; nothing where none was."""
    wanted = crashing(experiment.condition)
    crashed = [death for death in deaths if death.neighbour in wanted]
    if wanted and not crashed:
        message = f"Whether anybody survives {', '.join(sorted(wanted))} is not known: it did not end."
        yield Finding(Severity.DEGRADED, ReasonCode.NOT_JUDGED, "", message, _AFTER_S)
    if not crashed:
        return
    first = min(crashed, key=lambda death: death.noticed_at_s)
    crash_s, left_s = first.noticed_at_s, window.end_s - first.noticed_at_s
    how = str(replace(first, last_lines=first.last_lines[-1:])).rstrip(".")
    side = "into" if crash_s >= window.begin_s else "before"
    end = f", {abs(crash_s - window.begin_s):.1f} s {side} the recording. {how}."
    dead = [death for death in deaths if not death.neighbour and death.noticed_at_s > crash_s - AT_ONCE_S]
    if dead:
        victims = f"{len(dead)} of {experiment.replicas} measured replicas died with it"
        yield Finding(Severity.DEGRADED, ReasonCode.VICTIM_DIED, "", f"The victim did not survive: {victims}{end}")
        return
    if left_s <= 0:
        message = f"Unknown whether the victim survives: the crash came {-left_s:.1f} s after the recording. {how}."
        yield Finding(Severity.DEGRADED, ReasonCode.NOT_JUDGED, "", message, _AFTER_S)
        return
    after_crash = requests_within(folder, Window(crash_s, window.end_s))
    served = {name: requests for name, requests in after_crash.items() if not neighbour_of(name)}
    if silent := [name for name, requests in served.items() if not requests]:
        victims = f"{', '.join(silent)} lives and served nothing in the {left_s:.1f} s after it"
        severity = Severity.INVALID if len(silent) == experiment.replicas else Severity.DEGRADED
        yield Finding(severity, ReasonCode.VICTIM_DIED, "", f"The victim did not survive: {victims}{end}")
        return
    message = f"The victim survived, and served {sum(served.values())} requests in the {left_s:.1f} s after it{end}"
    yield Finding(Severity.INFO, ReasonCode.VICTIM_SURVIVED, "", message)


def lack_of_memory(
    experiment: ExperimentSpec, deaths: Sequence[ReplicaDeath], neighbours: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Who ran out of memory beside a neighbour that takes it all; ``neighbours``: what their replicas say, by name."""
    hogs = [beside.workload.name for beside in experiment.neighbours if beside.workload.target == MEMORY_HOG]
    for name in hogs:
        reports = [status for status in neighbours.get(name, []) if "memory_refusals" in status]
        refusals = sum(int(status["memory_refusals"]) for status in reports)
        held_gb = sum(int(status.get("held_bytes_most") or 0) for status in reports) / 1e9
        starved = [death for death in deaths if not death.neighbour and death.code is ReasonCode.OUT_OF_MEMORY]
        if not (refusals or starved):
            held = f"it held at most {held_gb:.1f} GB, refused none" if reports else "it did not say what it held"
            message = f"Who runs out of memory beside {name} is not known: {held}."
            yield Finding(Severity.DEGRADED, ReasonCode.NOT_JUDGED, "", message, _AFTER_S)
            continue
        victims = ", ".join(f"replica {death.replica}" for death in starved) or "none"
        itself = f"{name}, {refusals} times with {held_gb:.1f} GB held at most; " if reports else ""
        unsaid = "" if reports else f" What {name} held it did not say."
        message = f"Out of memory: {itself}of the measured replicas {victims}.{unsaid}"
        yield Finding(Severity.INFO, ReasonCode.OUT_OF_MEMORY, "", message)


def _once(sentences: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


class GroupWatch:
    """The limits of this process's control groups over a recording."""

    def __init__(self, group: Cgroup | None = None) -> None:
        self._group = group or Cgroup()
        self._limits, self._counters = self._group.limits(), self._group.counters()

    def findings(self) -> Iterator[Finding]:
        """What the limits did since this was made."""
        limits = self._group.limits()
        changes = [
            f"{name} from {_words(before)} to {_words(asdict(limits)[name])}"
            for name, before in asdict(self._limits).items()
            if asdict(limits)[name] != before
        ]
        if changes:
            message = f"The limits of the cgroup changed while it was recorded: {', '.join(changes)}."
            advice = "Leave the limits as they are while a campaign runs."
            yield Finding(Severity.DEGRADED, ReasonCode.LIMITS_CHANGED, "", message, advice)
        share = self._group.counters().throttled_share(self._counters)
        if share is not None and share > THROTTLED_SHARE:
            quota = "its CPU quota" if limits.cpus is None else f"its quota of {limits.cpus:g} CPUs"
            message = f"The cgroup stopped its processes in {100 * share:.0f}% of the periods of {quota}."
            advice = (
                "Raise the quota, or give the replicas less work, so that the machine is measured and not the quota."
            )
            yield Finding(Severity.DEGRADED, ReasonCode.CPU_THROTTLED, "", message, advice)


def _words(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"
