"""What became of the measured replicas beside a neighbour that is to harm them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.metrics.rows import neighbour_of
from harness.results.latencies import requests_within
from harness.spec import ExperimentSpec
from harness.spec.condition import crashing
from harness.spec.workload import MEMORY_HOG
from harness.traffic.figures import Window

AT_ONCE_S = 5.0
"""Who dies with a crash may be noticed this much before it."""
_AFTER_S = "Set its option after_s, seconds from its first request, so that it lies in the recording."


def crashes(
    experiment: ExperimentSpec, folder: Path, window: Window, deaths: Sequence[ReplicaDeath]
) -> Iterator[Finding]:
    """Whether the measured replicas survived a neighbour's crash that was wanted; nothing where none was.

    Args:
        experiment: that was run.
        folder: the attempt's.
        window: the recording.
        deaths: of measured replicas and neighbours.
    """
    if not crashing(experiment.condition):
        return
    crashed = [death for death in deaths if death.neighbour in crashing(experiment.condition)]
    if not crashed:
        message = f"Whether anybody survives {', '.join(sorted(crashing(experiment.condition)))} is not known: it did not end."
        yield Finding(Severity.DEGRADED, ReasonCode.NOT_JUDGED, "", message, _AFTER_S)
        return
    first = min(crashed, key=lambda death: death.noticed_at_s)
    how = str(replace(first, last_lines=first.last_lines[-1:])).rstrip(".")
    offset_s = first.noticed_at_s - window.begin_s
    when = f"{abs(offset_s):.1f} s {'into' if offset_s >= 0 else 'before'} the recording"
    dead = [death for death in deaths if not death.neighbour and death.noticed_at_s > first.noticed_at_s - AT_ONCE_S]
    if dead:
        of = f"{len(dead)} of {experiment.replicas} measured replicas died with it"
        yield Finding(
            Severity.DEGRADED, ReasonCode.VICTIM_DIED, "", f"The victim did not survive: {of}, {when}. {how}."
        )
        return
    served = {
        name: requests
        for name, requests in requests_within(folder, first.noticed_at_s, window.end_s).items()
        if not neighbour_of(name)
    }
    left_s = window.end_s - first.noticed_at_s
    if silent := [name for name, requests in served.items() if not requests]:
        of = f"{', '.join(silent)} lives and served nothing in the {left_s:.1f} s after it"
        severity = Severity.INVALID if len(silent) == experiment.replicas else Severity.DEGRADED
        yield Finding(severity, ReasonCode.VICTIM_DIED, "", f"The victim did not survive: {of}, {when}. {how}.")
        return
    message = f"The victim survived, and served {sum(served.values())} requests in the {left_s:.1f} s after it, {when}. {how}."
    yield Finding(Severity.INFO, ReasonCode.VICTIM_SURVIVED, "", message)


def lack_of_memory(
    experiment: ExperimentSpec, deaths: Sequence[ReplicaDeath], neighbours: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Who ran out of memory beside a neighbour that takes it all; nothing where there was none.

    Args:
        experiment: that was run.
        deaths: of measured replicas and neighbours.
        neighbours: what their replicas say of themselves, by name.
    """
    for name in [each.workload.name for each in experiment.neighbours if each.workload.target == MEMORY_HOG]:
        told = [status for status in neighbours.get(name, []) if "memory_refusals" in status]
        refusals = sum(int(status["memory_refusals"]) for status in told)
        held_gb = sum(int(status.get("held_bytes_most") or 0) for status in told) / 1e9
        starved = [death for death in deaths if not death.neighbour and death.code is ReasonCode.OUT_OF_MEMORY]
        if not (refusals or starved):
            held = f"it held {held_gb:.1f} GB at most and was refused none" if told else "it did not say what it held"
            message = f"Who runs out of memory beside {name} is not known: {held}."
            yield Finding(Severity.DEGRADED, ReasonCode.NOT_JUDGED, "", message, _AFTER_S)
            continue
        victims = ", ".join(f"replica {death.replica}" for death in starved) or "none"
        itself = f"{name}, {refusals} times with {held_gb:.1f} GB held at most; " if told else ""
        unsaid = "" if told else f" What {name} held it did not say."
        message = f"Out of memory: {itself}of the measured replicas {victims}.{unsaid}"
        yield Finding(Severity.INFO, ReasonCode.OUT_OF_MEMORY, "", message)
