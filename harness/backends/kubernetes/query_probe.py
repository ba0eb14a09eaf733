"""One replica for a minute, before hours of them: does every query of the catalogue answer, and often enough?

Whatever can be wrong between a pod and its numbers shows here: labels, relabelling, a container filter, an exporter that
is not there, an interval that does not match. Zero samples must not look like success an hour later.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from harness.clock import Clock
from harness.errors import Finding, NoDataError, PrometheusError, Severity
from harness.metrics.catalogue import ESSENTIAL_SOURCES, REPLICA_SOURCES, Level, Metric
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.recording_target import Origin
from harness.metrics.prometheus.targets import twice, why_unseen
from harness.metrics.promql import render
from harness.metrics.promql_math import MS_PER_S, to_ms
from harness.spec import Timing

SCRAPES = 8
"""Scrape intervals that a query may take, beyond its window, until it answers: discovery, a slow exporter, two scrapes."""
LEAST_S = 30.0
"""So long at least; and so long a server says itself that it does not scrape the replica until it is believed."""
POLL_S = 1.0
ENOUGH_SAMPLES = 3
"""So many samples tell how far apart they come."""
SLACK = 1.25
"""An interval may be longer than the step by the jitter of its scrapes."""


class Canary(Protocol):
    """One running replica."""

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """End it."""
        ...


@dataclass(slots=True)
class _Question:
    """One query of one metric, asked until it is answered.

    Attributes:
        error: what the last try said.
    """

    metric: Metric
    promql: str
    error: str = ""
    answered: bool = False


@dataclass(slots=True)
class _Interval:
    """How far apart the samples of one selector come."""

    raw: str
    metrics: list[str] = field(default_factory=list)
    interval_s: float | None = None


def rehearse(
    canary: Canary,
    server: PrometheusServer,
    origin: Origin,
    metrics: Sequence[Metric],
    timing: Timing,
    *,
    scrape_interval_s: float,
    clock: Clock,
    abort: threading.Event,
) -> list[Finding]:
    """Ask everything until it is answered, for a bounded time; end the replica, whatever comes of it.

    Args:
        canary: one replica that serves.
        server: that scrapes it.
        origin: of the replica's metrics.
        metrics: that the campaign records.
        timing: of the experiments: step, window and how long a replica may take to end.
        scrape_interval_s: that the campaign assumes.
        clock: real time.
        abort: ends it early, without findings.
    """
    try:
        return _Rehearsal(server, origin, metrics, timing, clock).run(scrape_interval_s, abort)
    finally:
        canary.stop(timeout_s=timing.drain_timeout_s)


class _Rehearsal:
    def __init__(
        self, server: PrometheusServer, origin: Origin, metrics: Sequence[Metric], timing: Timing, clock: Clock
    ) -> None:
        self._server = server
        self._timing = timing
        self._clock = clock
        self._begun_s = clock.now_s()
        self._pod_label, self._pods = origin.labels.pod, origin.pods
        dialect = origin.dialect()
        queries = {metric.name: render(metric, dialect, timing.window_s) for metric in metrics}
        self._questions = [
            _Question(metric, promql)
            for metric in metrics
            for promql in dict.fromkeys(
                _asked(queries[metric.name].each, queries[metric.name].pooled, queries[metric.name].raw)
            )
        ]
        self._intervals: dict[str, _Interval] = {}
        for metric in metrics:
            raw = queries[metric.name].raw
            self._intervals.setdefault(raw, _Interval(raw)).metrics.append(metric.name)

    def run(self, scrape_interval_s: float, abort: threading.Event) -> list[Finding]:
        patience_s = max(self._timing.window_s + SCRAPES * scrape_interval_s, LEAST_S)
        seen_s = self._begun_s
        while not self._done() and self._clock.now_s() < self._begun_s + patience_s:
            if self._clock.wait_until(self._clock.now_s() + POLL_S, abort):
                return []
            self._ask()
            if not self._why_unseen():
                seen_s = self._clock.now_s()
            elif self._clock.now_s() > seen_s + LEAST_S:
                break
        took_s = self._clock.now_s() - self._begun_s
        return [*self._unanswered(took_s), *self._too_rare(), *self._twice()]

    def _done(self) -> bool:
        answered = all(question.answered for question in self._questions)
        return answered and all(one.interval_s is not None for one in self._intervals.values())

    def _why_unseen(self) -> str:
        """Why the server, as it says itself, does not scrape the replica: nothing comes of waiting then. Empty: it may."""
        waiting = any(not one.answered and one.metric.source in REPLICA_SOURCES for one in self._questions)
        return why_unseen(self._server, self._pod_label, self._pods) if waiting else ""

    def _ask(self) -> None:
        for question in self._questions:
            if not question.answered:
                question.error = self._answer(question.promql)
                question.answered = not question.error
        now_ms = to_ms(self._clock.now_s())
        for one in self._intervals.values():
            if one.interval_s is None:
                one.interval_s = self._measure(one.raw, to_ms(self._begun_s), now_ms)

    def _answer(self, promql: str) -> str:
        """Why there is no number yet; empty when there is one."""
        try:
            answer = self._server.query(promql)
        except NoDataError:
            return "it matches nothing"
        except PrometheusError as error:
            return error.message
        numbers = [float(series.values[-1]) for series in answer.series]
        return "" if any(map(math.isfinite, numbers)) else "it answers NaN: no request was served in its window"

    def _measure(self, raw: str, start_ms: int, end_ms: int) -> float | None:
        """Seconds between two samples of the same series, at worst; None while there are too few."""
        try:
            answer = self._server.raw(raw, start_ms, end_ms)
        except (PrometheusError, NoDataError):
            return None
        gaps_s = [
            float(np.median(np.diff(series.times_ms))) / MS_PER_S
            for series in answer.series
            if len(series.times_ms) >= ENOUGH_SAMPLES
        ]
        return max(gaps_s, default=None)

    def _unanswered(self, took_s: float) -> Iterator[Finding]:
        """One finding for all metrics that have the same cause, with the text of one query."""
        unseen = self._why_unseen()
        together: dict[tuple[bool, str, str], dict[str, _Question]] = {}
        for question in self._questions:
            if not question.answered:
                metric = question.metric
                why = unseen if unseen and metric.source in REPLICA_SOURCES else question.error
                key = (metric.source in ESSENTIAL_SOURCES, why, _ADVICE[metric.level])
                together.setdefault(key, {}).setdefault(metric.name, question)
        for (essential, why, advice), questions in together.items():
            verb = "has" if len(questions) == 1 else "have"
            yield Finding(
                Severity.ERROR if essential else Severity.WARNING,
                "canary",
                f"{', '.join(questions)} of a running replica {verb} no value after {took_s:.0f} s: {why}. "
                f"{'The' if len(questions) == 1 else 'A'} query was: {next(iter(questions.values())).promql}",
                advice,
            )

    def _twice(self) -> Iterator[Finding]:
        if said := twice(self._server, self._pod_label, self._pods):
            advice = "Let it find pods in one way: by their annotations, or by a PodMonitor."
            yield Finding(Severity.ERROR, "canary", f"{said}: every request would count as often.", advice)

    def _too_rare(self) -> Iterator[Finding]:
        step_s = self._timing.step_s
        for one in self._intervals.values():
            if one.interval_s is not None and one.interval_s > SLACK * step_s:
                yield Finding(
                    Severity.WARNING,
                    "canary",
                    f"{', '.join(one.metrics)} have a new sample every {one.interval_s:.1f} s, and a row is wanted every "
                    f"{step_s:g} s: the rows in between will be missing.",
                    "Have it measured as often (scrape interval; kubelet --housekeeping-interval for containers), "
                    "or raise timing.step_s.",
                )


_ADVICE = {
    Level.REPLICA: "Check that Prometheus discovers the pod (its page /targets) and that its labels namespace and pod are there.",
    Level.DEVICE: "Check that the DCGM exporter runs on the replica's node and that its samples have the node's label.",
    Level.NODE: "Check that node-exporter runs on the replica's node and that its samples have the node's label.",
}


def _asked(*queries: str) -> list[str]:
    return [query for query in queries if query]
