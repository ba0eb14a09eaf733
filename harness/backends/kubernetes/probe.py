"""Does Prometheus see what the campaign is going to ask it, and often enough? Before anything starts, and of one replica that runs.

Nothing goes by the names of scrape jobs: which job brings a metric is asked of the samples, so that it works with any Prometheus.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.backends.kubernetes.nodes import check_number
from harness.clock import Clock
from harness.errors import Issue, IssueLevel, NoDataError, PrometheusError, PrometheusUnavailableError
from harness.metrics.catalogue import CATALOGUE, ESSENTIAL_SOURCES, REPLICA_SOURCES, Level, Metric
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import why_no_buckets
from harness.metrics.prometheus.recorder import Target, active, last_error, twice, why_unseen
from harness.metrics.prometheus.telemetry import FIELDS
from harness.metrics.promql import Dialect, PrometheusSource, cluster, one_of, render
from harness.metrics.promql_math import MS_PER_S, to_ms
from harness.sharing.node import CAMPAIGN_LABEL
from harness.spec import ExperimentSpec, KubernetesSpec, Timing, WorkloadSpec

SKEW_S = 1.0
"""Clocks that differ by more than this are remarked upon; rates and rows do not care below it."""
BYTES_PER_SAMPLE = 2.0
RETENTION_FACTOR = 2.0
"""Prometheus must keep an hour's recording for at least so many hours: it is collected at its end, or later by hand."""
BUSY_WINDOW_S = 300.0
BUSY_PERCENT = 10.0
"""From here on a report calls the pressure more than empty."""
SCRAPES = 8
"""Scrape intervals that a query may take, beyond its window, until it answers: discovery, a slow exporter, two scrapes."""
LEAST_S = 30.0
"""So long at least; and so long a server says itself that it does not scrape the replica until it is believed."""
POLL_S = 1.0
ENOUGH_SAMPLES = 3
"""So many samples tell how far apart they come."""
SLACK = 1.25
"""An interval may be longer than the step by the jitter of its scrapes."""
_DURATION = re.compile(r"(\d+)(ms|y|w|d|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_LISTED = 5
_OF_A_CAMPAIGN = f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9]', '_', CAMPAIGN_LABEL)}"
"""The label of pods of campaigns, as discovery tells it."""
_UNREACHED = (
    "Look at it (kubectl -n monitoring get pods), or set `kubernetes.prometheus_url` or `kubernetes.prometheus_service` to "
    "where it is; at an address that only the cluster has (10.96.0.0/12 mostly) it is reached on the node alone."
)
_NO_VALUE_ADVICE = {
    Level.REPLICA: "Check that Prometheus discovers the pod (its page /targets) and that its labels namespace and pod are there.",
    Level.DEVICE: "Check that the DCGM exporter runs on the replica's node and that its samples have the node's label.",
    Level.NODE: "Check that node-exporter runs on the replica's node and that its samples have the node's label.",
}


def check_prometheus(
    server: PrometheusServer,
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    now_s: Callable[[], float],
    *,
    nodes: Sequence[str] = (),
) -> list[Issue]:
    """What Prometheus would not record, or not as assumed.

    ``now_s``: the harness's clock; ``nodes``: that replicas may be placed on, none where it is not known which.
    """
    try:
        targets = _scraped(server)
    except PrometheusError as error:
        away = isinstance(error, PrometheusUnavailableError)
        return [Issue(IssueLevel.ERROR, "prometheus", error.message, _UNREACHED, away=away)]
    names = {name for experiment in experiments for name in experiment.metrics}
    metrics = [metric for name, metric in CATALOGUE.items() if name in names]
    dialect = cluster(spec.namespace, ".+", labels=spec.prometheus_labels)
    step_s = min((experiment.timing.step_s for experiment in experiments), default=0.0)
    checks: list[Callable[[], Iterable[Issue]]] = [
        lambda: _clock(server, step_s, now_s),
        lambda: _targets(targets),
        lambda: _presence(server, metrics, dialect, targets, spec, step_s),
        lambda: _devices(server, metrics, dialect, spec),
        lambda: _storage(server, experiments),
        lambda: _busy(server, spec, experiments, nodes),
    ]
    findings: list[Issue] = []
    for check in checks:
        try:
            findings += check()
        except PrometheusError as error:
            findings.append(Issue(IssueLevel.WARNING, "prometheus", f"not checked: {error.message}", error.advice))
    return findings


def _scraped(server: PrometheusServer) -> list[Target]:
    """Its targets; none where it answers queries and scrapes nothing itself, as Mimir. Raises PrometheusError."""
    try:
        return active(server)
    except PrometheusUnavailableError:
        raise
    except PrometheusError as error:
        try:
            server.query("vector(1)")
        except (PrometheusError, NoDataError):
            raise error from None
        return []


def _clock(server: PrometheusServer, step_s: float, now_s: Callable[[], float]) -> Iterator[Issue]:
    """Rows are at the harness's times and samples at the server's."""
    before_s = now_s()
    there_s = float(server.query("vector(time())").series[0].values[-1])
    after_s = now_s()
    skew_s = there_s - after_s if there_s > after_s else min(there_s - before_s, 0.0)
    if abs(skew_s) > SKEW_S:
        yield Issue(
            IssueLevel.ERROR if abs(skew_s) > step_s else IssueLevel.WARNING,
            "clock",
            f"the clock of {server} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's.",
            "Synchronise both (timedatectl, chronyc tracking): rows would belong to other moments than they say.",
        )


def _targets(targets: Sequence[Target]) -> Iterator[Issue]:
    """What is down; but for pods of campaigns: they come and go, and one that has ended stays a target for a while."""
    down = [
        target
        for target in targets
        if target.get("health") == "down" and _OF_A_CAMPAIGN not in (target.get("discoveredLabels") or {})
    ]
    if down:
        listed = "; ".join(
            f"{target['labels'].get('job')} {target['labels'].get('instance')}: {last_error(target)}"
            for target in down[:_LISTED]
        )
        more = f"; and {len(down) - _LISTED} more" if len(down) > _LISTED else ""
        message = f"{len(down)} of {len(targets)} targets of Prometheus are down: {listed}{more}."
        advice = "What only they bring will be missing; see Status > Targets on its page."
        yield Issue(IssueLevel.WARNING, "targets", message, advice)


def _presence(
    server: PrometheusServer,
    metrics: Sequence[Metric],
    dialect: Dialect,
    targets: Sequence[Target],
    spec: KubernetesSpec,
    step_s: float,
) -> Iterator[Issue]:
    """Whether devices and nodes are there (replicas are not, yet), and how often those who bring them are scraped."""
    jobs: dict[str, list[str]] = {}
    absent: dict[str, list[Metric]] = {}
    for metric in metrics:
        if metric.level is Level.REPLICA:
            continue
        raw = render(metric, dialect, spec.scrape_interval_s * 4).raw
        try:
            answer = server.query(f"group by (job) ({raw})")
        except NoDataError:
            absent.setdefault(raw, []).append(metric)
            continue
        for series in answer.series:
            jobs.setdefault(series.labels.get("job", ""), []).append(metric.name)
    for raw, lacking in absent.items():
        if spec.gpus_per_replica or lacking[0].level is not Level.DEVICE:
            message = (
                f"{', '.join(metric.name for metric in lacking)} will be absent: Prometheus has no sample of {raw}."
            )
            advice = "Check the exporter, its pod and its labels, before an hour is spent without it."
            yield Issue(IssueLevel.WARNING, "metrics", message, advice)
    brought = {name for names in jobs.values() for name in names}
    if spec.gpus_per_replica and any(CATALOGUE[name].level is Level.DEVICE for name in brought):
        yield from _activity(server, dialect)
    yield from _intervals(jobs, targets, spec, step_s)


def _intervals(
    jobs: Mapping[str, Sequence[str]], targets: Sequence[Target], spec: KubernetesSpec, step_s: float
) -> Iterator[Issue]:
    for job, metrics in jobs.items():
        texts = [str(target.get("scrapeInterval", "")) for target in targets if target["labels"].get("job") == job]
        slowest_s = max(filter(None, map(seconds, texts)), default=None)
        if slowest_s is None or step_s >= slowest_s == spec.scrape_interval_s:
            continue
        scrapes = f"Prometheus scrapes {job} every {slowest_s:g} s"
        if slowest_s > step_s:
            message = (
                f"{scrapes}, and a row is wanted every {step_s:g} s: {', '.join(metrics)} would be missing in between."
            )
            advice = f"Scrape at least every {step_s:g} s, or set timing.step_s to {slowest_s:g}."
            yield Issue(IssueLevel.ERROR, "scrape interval", message, advice)
        else:
            message = f"{scrapes}; the campaign assumes {spec.scrape_interval_s:g} s."
            advice = "Set kubernetes.scrape_interval_s to what is true."
            yield Issue(IssueLevel.WARNING, "scrape interval", message, advice)


def _activity(server: PrometheusServer, dialect: Dialect) -> Iterator[Issue]:
    """Whether the exporter reads what the GPU's processors do."""
    ((field,), _) = FIELDS["sm_active_percent"]
    if _value(server, f"group({field}{{{dialect.gpus}}})") is None:
        message = f"the report will have no SM activity, which distinguishes sharing modes: Prometheus has no sample of {field}."
        advice = "Let the exporter read it: `dcgm_exporter_profiling: true`, or its list of counters (docs/cluster.md)."
        yield Issue(IssueLevel.WARNING, "metrics", message, advice)


def _devices(
    server: PrometheusServer, metrics: Sequence[Metric], dialect: Dialect, spec: KubernetesSpec
) -> Iterator[Issue]:
    device = next((metric for metric in metrics if metric.level is Level.DEVICE), None)
    if device is None or spec.expected_gpus is None or not spec.gpus_per_replica:
        return
    try:
        series = server.query(render(device, dialect, spec.scrape_interval_s * 4).each).series
    except NoDataError:
        return  # said already
    listed = ", ".join(sorted(" ".join(entry.labels.values()) for entry in series))
    yield from check_number(len(series), spec, listed)


def _storage(server: PrometheusServer, experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
    """Whether it keeps what it scrapes for as long as it takes to collect it, and has the room."""
    longest_s = max((experiment.timing.record_s for experiment in experiments), default=0.0)
    try:
        retention_s = seconds(str(server.read("status/flags")["storage.tsdb.retention.time"]))
    except (PrometheusError, KeyError, TypeError):
        retention_s = None  # a store in front of several servers does not say
    if retention_s and retention_s < RETENTION_FACTOR * longest_s:
        message = f"Prometheus forgets after {retention_s:g} s, and one recording takes {longest_s:g} s."
        advice = "Raise --storage.tsdb.retention.time, or results cannot be collected again."
        yield Issue(IssueLevel.WARNING, "retention", message, advice)
    free = _value(server, 'min(kubelet_volume_stats_available_bytes{persistentvolumeclaim=~"prometheus.*"})')
    rate = _value(server, "sum(rate(prometheus_tsdb_head_samples_appended_total[5m]))")
    if free is not None and rate is not None and free < RETENTION_FACTOR * longest_s * rate * BYTES_PER_SAMPLE:
        message = f"{free / 1e9:.1f} GB are free on Prometheus' volume, at {rate:.0f} samples per second."
        advice = "Enlarge the volume, or shorten the retention: a full one stops recording."
        yield Issue(IssueLevel.WARNING, "disk", message, advice)


def _busy(
    server: PrometheusServer, spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], nodes: Sequence[str]
) -> Iterator[Issue]:
    """Pods that state no processors have next to no weight, which decides where others want them, too."""
    workloads = [experiment.workload for experiment in experiments]
    silent = [workload.name for workload in workloads if not _states_processors(spec, workload)]
    if not silent or not nodes:
        return
    dialect = cluster(spec.namespace, ".+", nodes=nodes, labels=spec.prometheus_labels)
    served = render(CATALOGUE["total_count"], dialect, BUSY_WINDOW_S).raw
    if _value(server, f"count(count_over_time({served}[{BUSY_WINDOW_S:.0f}s]))"):
        return  # replicas ran in that time: whoever waited may have been one of them
    try:
        series = server.query(render(CATALOGUE["cpu_psi"], dialect, BUSY_WINDOW_S).each).series
    except NoDataError:
        return  # an exporter that is not there is told where its metrics are asked for
    waited = {next(iter(entry.labels.values()), "?"): float(entry.values[-1]) for entry in series}
    if busy := [f"{name} in {percent:.0f}%" for name, percent in waited.items() if percent >= BUSY_PERCENT]:
        yield Issue(
            IssueLevel.WARNING,
            "busy",
            f"processes waited for a processor of {', '.join(sorted(busy)[:_LISTED])} of the last 5 minutes, and "
            f"{', '.join(dict.fromkeys(silent))} reserves none: where processors are short, such pods come last.",
            "End what computes there, or set `kubernetes.reserve` (a server's own `reserve`), e.g. {cpu: 500m}.",
        )


def _states_processors(spec: KubernetesSpec, workload: WorkloadSpec) -> bool:
    server = workload.server
    computes = spec if server is None else server if server.image else None
    stated = {**computes.reserve, **computes.limit} if computes else {**spec.client_reserve, **spec.client_limit}
    return "cpu" in stated


def cost_of(server: PrometheusServer, namespace: str, deployment: str) -> float | None:
    """CPU cores that the pods of a deployment have used in the last minutes; None when nobody measures them."""
    pods = f'namespace="{namespace}",pod=~"{one_of([deployment])}-.+",container!=""'
    return _value(server, f"sum(rate(container_cpu_usage_seconds_total{{{pods}}}[5m]))")


def _value(server: PrometheusServer, promql: str) -> float | None:
    try:
        return float(server.query(promql).series[0].values[-1])
    except NoDataError:
        return None


def seconds(duration: str) -> float | None:
    """Seconds of a duration as Prometheus writes it, e.g. ``1h30m``; None when it is none."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


@dataclass(slots=True)
class _Query:
    """One query of one metric, asked until it is answered; ``error``: what the last try said."""

    metric: Metric
    promql: str
    error: str = ""
    answered: bool = False


class Rehearsal:
    """Asks everything of one replica that serves until it is answered, for a bounded time."""

    def __init__(
        self,
        server: PrometheusServer,
        origin: PrometheusSource,
        metrics: Sequence[Metric],
        timing: Timing,
        clock: Clock,
    ) -> None:
        self._server, self._timing, self._clock = server, timing, clock
        self._begun_s = clock.now_s()
        self._label, self._pods, self._dialect = origin.labels.pod, origin.pods, origin.dialect()
        self._queries: list[_Query] = []
        self._intervals_s: dict[str, float | None] = {}  # between the samples of a selector, once that can be told
        self._metrics_of: dict[str, list[str]] = {}
        for metric in metrics:
            text = render(metric, self._dialect, timing.window_s)
            for promql in dict.fromkeys(filter(None, (text.each, text.pooled, text.raw))):
                self._queries.append(_Query(metric, promql))
            self._intervals_s[text.raw] = None
            self._metrics_of.setdefault(text.raw, []).append(metric.name)

    def run(self, scrape_interval_s: float, abort: threading.Event) -> list[Issue]:
        """What has no answer by then, comes too rarely or is read twice; nothing once ``abort`` is set."""
        patience_s = max(self._timing.window_s + SCRAPES * scrape_interval_s, LEAST_S)
        seen_s = now_s = self._begun_s
        while not self._done() and now_s < self._begun_s + patience_s and now_s <= seen_s + LEAST_S:
            if self._clock.wait_until(self._clock.now_s() + POLL_S, abort):
                return []
            self._ask()
            seen = not self._why_unseen()
            now_s = self._clock.now_s()
            seen_s = now_s if seen else seen_s
        return [*self._unanswered(self._clock.now_s() - self._begun_s), *self._too_rare(), *self._twice()]

    def _done(self) -> bool:
        return all(query.answered for query in self._queries) and None not in self._intervals_s.values()

    def _why_unseen(self) -> str:
        """Why the server, as it says itself, does not scrape the replica: nothing comes of waiting then. Empty: it may."""
        waiting = any(not query.answered and query.metric.source in REPLICA_SOURCES for query in self._queries)
        return why_unseen(self._server, self._label, self._pods) if waiting else ""

    def _ask(self) -> None:
        for query in self._queries:
            if not query.answered:
                query.error = self._answer(query.promql)
                query.answered = not query.error
        now_ms = to_ms(self._clock.now_s())
        for raw, interval_s in self._intervals_s.items():
            if interval_s is None:
                self._intervals_s[raw] = self._measure(raw, to_ms(self._begun_s), now_ms)

    def _answer(self, promql: str) -> str:
        """Why there is no number yet; empty when there is one."""
        try:
            answer = self._server.query(promql)
        except NoDataError:
            return "it matches nothing"
        except PrometheusError as error:
            return error.message
        finite = any(math.isfinite(float(series.values[-1])) for series in answer.series)
        return "" if finite else "it answers NaN: no request was served in its window"

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

    def _unanswered(self, took_s: float) -> Iterator[Issue]:
        """One finding for all metrics that have the same cause, with the text of one query."""
        unseen = self._why_unseen()
        together: dict[tuple[bool, str, str], dict[str, _Query]] = {}
        for query in self._queries:
            if not query.answered:
                metric = query.metric
                why = unseen if unseen and metric.source in REPLICA_SOURCES else query.error
                if metric.of_histogram and not unseen:
                    why = self._why_no_buckets(metric) or why
                key = (metric.source in ESSENTIAL_SOURCES, why, _NO_VALUE_ADVICE[metric.level])
                together.setdefault(key, {}).setdefault(metric.name, query)
        for (essential, why, advice), queries in together.items():
            verb, article = ("has", "The") if len(queries) == 1 else ("have", "A")
            yield Issue(
                IssueLevel.ERROR if essential else IssueLevel.WARNING,
                "canary",
                f"{', '.join(queries)} of a running replica {verb} no value after {took_s:.0f} s: {why}. "
                f"{article} query was: {next(iter(queries.values())).promql}",
                advice,
            )

    def _why_no_buckets(self, metric: Metric) -> str:
        try:
            return why_no_buckets(self._server, metric, self._dialect, to_ms(self._timing.window_s))
        except PrometheusError:
            return ""

    def _twice(self) -> Iterator[Issue]:
        if doubled := twice(self._server, self._label, self._pods):
            advice = "Let it find pods in one way: by their annotations, or by a PodMonitor."
            yield Issue(IssueLevel.ERROR, "canary", f"{doubled}: every request would count as often.", advice)

    def _too_rare(self) -> Iterator[Issue]:
        for raw, interval_s in self._intervals_s.items():
            if interval_s is not None and interval_s > SLACK * self._timing.step_s:
                yield Issue(
                    IssueLevel.WARNING,
                    "canary",
                    f"{', '.join(self._metrics_of[raw])} have a new sample every {interval_s:.1f} s, and a row is wanted every "
                    f"{self._timing.step_s:g} s: the rows in between will be missing.",
                    "Have it measured as often (scrape interval; kubelet --housekeeping-interval for containers), "
                    "or raise timing.step_s.",
                )
