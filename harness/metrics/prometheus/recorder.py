"""A recording by a Prometheus server: it scrapes, the harness watches over it and collects the rows at the end.

What the server stops seeing is said within seconds, by its own clock; every series that was there once is expected to stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.errors import MetricsError, NoDataError, PrometheusError, PrometheusUnavailableError
from harness.metrics.catalogue import CATALOGUE, Level, Metric
from harness.metrics.prometheus.client import Patience, PrometheusServer
from harness.metrics.prometheus.exporter import ExportSummary, export
from harness.metrics.prometheus.series import Key, key_labels, natural, replica_names
from harness.metrics.promql import Dialect, ReplicaGroup, render
from harness.metrics.promql_math import MS_PER_S
from harness.metrics.rows import Lateness, RecordingRequest, RecordingSummary, grid_ms, missing_warnings

PATIENCE_S = 300.0
WOKEN_PATIENCE_S = 10.0
"""Whoever ends a recording early is waiting."""
LOOK_S = 2.0
"""Between two looks at the server, at least; otherwise every step."""
LOOK_TIMEOUT_S = 2.0
MAX_WARNINGS = 200
"""A target that comes and goes for hours must not fill the manifest."""
_SUBJECT = "metric"
"""Label that the watch's query adds, to tell what a row of the answer belongs to."""
_LARGEST_WINDOW_S = 3600.0

Target = Mapping[str, Any]
"""What the server says of one thing that it scrapes."""
Absence = tuple[Level, Key, str]
"""Level, key and metric of a series that should be there; without a key, the metric as a whole."""


class PrometheusRecorder:
    """Records one experiment from the server that scrapes it.

    Args:
        groups: the measured replicas, then each neighbour's.
        remarks: what is known to be amiss from the beginning; kept with the recording.
        patience_s: how long the server may be away at the end before collecting is given up.
    """

    def __init__(
        self,
        server: PrometheusServer,
        request: RecordingRequest,
        *,
        groups: Sequence[ReplicaGroup],
        remarks: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._server = server
        self._request = request
        self._groups = groups
        self._patience_s = patience_s
        self._warnings = [*remarks]

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """See ``Recording``: wait until the rows are scraped, then collect them; fewer when woken.

        A MetricsError (the server was away at the end for longer than it may, or refused) says how to collect the same rows later.
        """
        step_s = self._request.step_s
        start_ms = grid_ms(start_s, step_s)
        done, woken = self._wait(start_s, rows)
        if not woken:
            # The last row's own scrape may come up to one interval after its grid time.
            self._request.clock.wait_until(start_s + done * step_s)
        kept = self._collect(start_s, done, WOKEN_PATIENCE_S if woken else self._patience_s) if done else None
        metrics = kept.metrics if kept else {}
        remarks = [f"Prometheus remarked: {note}" for note in kept.notes] if kept else []
        return RecordingSummary(
            start_s=start_ms / MS_PER_S,
            end_s=kept.end_s if kept else None,
            step_s=step_s,
            rows=done,
            stopped=woken,
            lateness=Lateness(),
            metrics=metrics,
            absent=kept.absent if kept else {},
            warnings=[*self._warnings, *remarks, *missing_warnings(metrics)],
            identities=kept.identities if kept else {},
        )

    def _wait(self, start_s: float, rows: int) -> tuple[int, bool]:
        """Watch until the last grid time; the rows whose scrapes are over, and whether it was woken before."""
        request, clock = self._request, self._request.clock
        with self._server.impatient(LOOK_TIMEOUT_S) as server:
            watch = Watch(server, metrics=request.metrics, groups=self._groups, stale_s=request.window_s)
            looked_s = 0.0
            for index in range(rows):
                if clock.wait_until(start_s + index * request.step_s, request.wake):
                    over = (clock.now_s() - start_s) / request.step_s
                    return min(max(int(over), 0), index), True
                if clock.now_s() - looked_s >= LOOK_S:
                    looked_s = clock.now_s()
                    for sentence in watch.poll(looked_s):
                        self._warn(sentence)
                if request.ends_with(index + 1, rows):
                    return index + 1, False
        return rows, False

    def _collect(self, start_s: float, rows: int, patience_s: float) -> ExportSummary:
        request, (measured, *neighbours) = self._request, self._groups
        try:
            with self._server.patient(Patience(request.clock, patience_s, self._warn)) as server:
                return export(
                    server,
                    metrics=request.metrics,
                    dialect=measured.dialect,
                    replicas=measured.replicas,
                    neighbours=neighbours,
                    start_s=start_s,
                    rows=rows,
                    step_s=request.step_s,
                    window_s=request.window_s,
                    sink=request.sink,
                )
        except PrometheusUnavailableError as error:
            raise MetricsError(
                f"{rows} rows were scraped and could not be collected: {error.message}",
                advice="Prometheus keeps them for its retention time. When it answers again, collect them with: "
                "harness export NEW_FOLDER --from THIS_EXPERIMENT",
            ) from error

    def _warn(self, sentence: str) -> None:
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(sentence)
        self._request.notice(sentence)


class Watch:
    """What is fresh, at most ``stale_s`` old, what is not, and since when; of the measured replicas, then of each neighbour's."""

    def __init__(
        self,
        server: PrometheusServer,
        *,
        metrics: Sequence[Metric],
        groups: Sequence[ReplicaGroup],
        stale_s: float,
    ) -> None:
        self._server = server
        self._dialect = groups[0].dialect
        self._stale_s = stale_s
        self._names: dict[Key, str] = {}
        for group in groups:
            self._names |= replica_names(group.replicas or (), group.workload)
        # One metric of each selector: several metrics come from the same samples.
        by_selector: dict[str, Metric] = {}
        for metric in metrics:
            by_selector.setdefault(_selector(metric, self._dialect), metric)
        self._leaders = list(by_selector.values())
        self._query = " or ".join(
            self._age(metric, group.dialect)
            for group in groups
            for metric in self._leaders
            if metric.level is Level.REPLICA or not group.workload
        )
        of_replicas = [metric for metric in self._leaders if metric.level is Level.REPLICA]
        self._expected = {(Level.REPLICA, key, metric.name) for metric in of_replicas for key in self._names}
        self._missing: dict[Absence, float] = {}
        self._away_since_s: float | None = None
        self._started_at: str | None = None
        self._looked = False

    def poll(self, now_s: float) -> list[str]:
        """Look once; sentences for what is different from the last look, each with its time."""
        clock = datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%SZ")
        try:
            fresh = self._fresh()
            restarted = list(self._restart())
        except PrometheusError as error:  # also one that knows us no more: a token may have ended
            if self._away_since_s is not None:
                return []
            self._away_since_s = now_s
            return [f"{clock} {error.message}"]
        sentences = list(restarted)
        if self._away_since_s is not None:
            sentences.insert(0, f"{self._server} answers again after {now_s - self._away_since_s:.0f} s.")
            self._away_since_s = None
        self._expected |= fresh
        # A metric that no device or node ever had has no key to be missed under.
        known = {name for _, _, name in self._expected}
        gone = (self._expected - fresh) | {(it.level, (), it.name) for it in self._leaders if it.name not in known}
        back = {absence: self._missing.pop(absence) for absence in self._missing.keys() - gone}
        new = gone - self._missing.keys()
        self._missing |= dict.fromkeys(new, now_s)
        away_s = now_s - min(back.values(), default=now_s)
        sentences += [f"{what} is there again after {away_s:.0f} s." for what in self._described(back.keys())]
        since = f"from the last {self._stale_s:g} s" if self._looked else "at the beginning of the recording"
        sentences += [f"{self._server} has no sample of {what} {since}." for what in self._described(new)]
        replicas = sorted({key[0] for level, key, _ in new if level is Level.REPLICA and key})
        if why := why_unseen(self._server, self._dialect.by, replicas) if replicas else "":
            sentences.append(f"{why}.")
        self._looked = True
        return [f"{clock} {sentence}" for sentence in sentences]

    def _restart(self) -> Iterator[str]:
        """A sentence when the server is not the process that it was."""
        try:
            started_at = str(self._server.read("status/runtimeinfo")["startTime"])
        except PrometheusUnavailableError:
            raise
        except (PrometheusError, KeyError, TypeError):
            return  # a store in front of several servers does not say when it was started
        if self._started_at not in {None, started_at}:
            yield f"{self._server} was restarted at {started_at}: what it did not scrape meanwhile is missing."
        self._started_at = started_at

    def _fresh(self) -> set[Absence]:
        """What has a sample that is young enough."""
        try:
            answer = self._server.query(self._query)
        except NoDataError:
            return set()
        fresh = set()
        for series in answer.series:
            metric = CATALOGUE[series.labels[_SUBJECT]]
            key = tuple(series.labels.get(label, "") for label in key_labels(metric, self._dialect))
            fresh.add((metric.level, key, metric.name))
        return fresh

    def _described(self, absences: Iterable[Absence]) -> Iterator[str]:
        """One phrase for each replica, device or node, with the metrics that are concerned."""
        metrics: dict[tuple[Level, Key], list[str]] = defaultdict(list)
        for level, key, metric in sorted(absences, key=lambda absence: (absence[0], natural(absence[1]))):
            metrics[level, key].append(_selector(CATALOGUE[metric], self._dialect).partition("{")[0])
        for (level, key), names in metrics.items():
            label = " ".join(part for part in key if part)
            who = f"{self._names.get(key, 'replica')} ({label})" if level is Level.REPLICA else f"{level.value} {label}"
            yield f"{', '.join(sorted(names))} of {who if label else f'any {level.value}'}"

    def _age(self, metric: Metric, dialect: Dialect) -> str:
        by, selector = ", ".join(key_labels(metric, self._dialect)), _selector(metric, dialect)
        young = f"time() - max by ({by}) (timestamp({selector})) <= {self._stale_s:g}"
        return f'label_replace({young}, "{_SUBJECT}", "{metric.name}", "", "")'


def _selector(metric: Metric, dialect: Dialect) -> str:
    return render(metric, dialect, _LARGEST_WINDOW_S).raw


def active(server: PrometheusServer) -> list[Target]:
    """Everything that the server scrapes. Raises PrometheusError."""
    return list(server.read("targets", state="active")["activeTargets"])


def last_error(target: Target) -> str:
    """Why it is down."""
    return str(target.get("lastError") or "it does not say why")


def twice(server: PrometheusServer, label: str, replicas: Collection[str]) -> str:
    """Which replica the server scrapes more than once, so that whatever is summed is too high; empty: none, or it does not tell."""
    try:
        targets = active(server)
    except (PrometheusError, KeyError, TypeError):
        return ""
    for name in replicas:
        jobs = [str(target["labels"].get("job")) for target in targets if target["labels"].get(label) == name]
        if len(jobs) > 1:
            return f"{server} scrapes {label}={name} {len(jobs)} times, as {' and '.join(jobs)}"
    return ""


def why_unseen(server: PrometheusServer, label: str, replicas: Collection[str]) -> str:
    """What keeps the server from seeing some of these replicas; empty when its targets do not tell."""
    try:
        by_name = {target["labels"].get(label, ""): target for target in active(server)}
        for name in replicas:
            if name in by_name and by_name[name].get("health") == "down":
                return f"{server} cannot scrape {by_name[name]['scrapeUrl']}: {last_error(by_name[name])}"
    except (PrometheusError, KeyError, TypeError):
        return ""  # a store in front of several servers has no targets
    unknown = [name for name in replicas if name not in by_name]
    return (
        f"{server} has no target with the label {label}={unknown[0]}: its discovery does not find it" if unknown else ""
    )
