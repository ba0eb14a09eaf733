"""Preflight: does Prometheus see what the campaign is going to ask it, as often as the campaign assumes?

Nothing here goes by the names of scrape jobs: which job brings a metric is asked of the samples themselves, so that it
works with a Prometheus that is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from harness.backends.kubernetes.nodes import DEVICES_ADVICE, too_many
from harness.errors import Finding, NoDataError, PrometheusError, PrometheusUnavailableError, Severity
from harness.metrics.catalogue import CATALOGUE, Level, Metric
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.targets import Target, active, last_error
from harness.metrics.prometheus.telemetry import FIELDS
from harness.metrics.promql import Dialect, Labels, cluster, one_of, render
from harness.spec import ExperimentSpec, KubernetesSpec, WorkloadSpec

SKEW_S = 1.0
"""Clocks that differ by more than this are remarked upon; rates and rows do not care below it."""
BYTES_PER_SAMPLE = 2.0
RETENTION_FACTOR = 2.0
"""Prometheus must keep an hour's recording for at least so many hours: it is collected at its end, or later by hand."""
BUSY_WINDOW_S = 300.0
BUSY_PERCENT = 10.0
"""From here on a report calls the pressure more than empty."""
_DURATION = re.compile(r"(\d+)(ms|y|w|d|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_LISTED = 5


def check_prometheus(
    server: PrometheusServer,
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    now_s: Callable[[], float],
    *,
    nodes: Sequence[str] = (),
) -> list[Finding]:
    """What Prometheus would not record, or not as assumed.

    Args:
        server: asked with a short timeout.
        spec: what is assumed of it.
        experiments: that are going to run.
        now_s: the harness's clock, seconds since the epoch.
        nodes: that replicas may be placed on; none: it is not known which.
    """
    try:
        targets = _scraped(server)
    except PrometheusError as error:
        away = isinstance(error, PrometheusUnavailableError)
        return [Finding(Severity.ERROR, "prometheus", error.message, _UNREACHED, away=away)]
    names = {name for experiment in experiments for name in experiment.metrics}
    metrics = [metric for name, metric in CATALOGUE.items() if name in names]
    dialect = cluster(spec.namespace, ".+", labels=Labels(**spec.prometheus_labels.model_dump()))
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: _clock(server, experiments, now_s),
        lambda: _targets(targets),
        lambda: _presence(server, metrics, dialect, targets, spec, experiments),
        lambda: _devices(server, metrics, dialect, spec),
        lambda: _storage(server, experiments),
        lambda: _busy(server, spec, experiments, nodes),
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except PrometheusError as error:
            findings.append(Finding(Severity.WARNING, "prometheus", f"not checked: {error.message}", error.advice))
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


_UNREACHED = (
    "Look at it (kubectl -n monitoring get pods), or set `kubernetes.prometheus_url` or `kubernetes.prometheus_service` to "
    "where it is; at an address that only the cluster has (10.96.0.0/12 mostly) it is reached on the node alone."
)


def _clock(
    server: PrometheusServer, experiments: Sequence[ExperimentSpec], now_s: Callable[[], float]
) -> Iterator[Finding]:
    """Rows are at the harness's times and samples at the server's."""
    before_s = now_s()
    there_s = float(server.query("vector(time())").series[0].values[-1])
    after_s = now_s()
    skew_s = there_s - after_s if there_s > after_s else min(there_s - before_s, 0.0)
    if abs(skew_s) <= SKEW_S:
        return
    step_s = min((experiment.timing.step_s for experiment in experiments), default=0.0)
    yield Finding(
        Severity.ERROR if abs(skew_s) > step_s else Severity.WARNING,
        "clock",
        f"the clock of {server} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's.",
        "Synchronise both (timedatectl, chronyc tracking): rows would belong to other moments than they say.",
    )


def _targets(targets: Sequence[Target]) -> Iterator[Finding]:
    down = [one for one in targets if one.get("health") == "down"]
    if not down:
        return
    told = "; ".join(
        f"{one['labels'].get('job')} {one['labels'].get('instance')}: {last_error(one)}" for one in down[:_LISTED]
    )
    more = f"; and {len(down) - _LISTED} more" if len(down) > _LISTED else ""
    yield Finding(
        Severity.WARNING,
        "targets",
        f"{len(down)} of {len(targets)} targets of Prometheus are down: {told}{more}.",
        "What only they bring will be missing; see Status > Targets on its page.",
    )


def _presence(
    server: PrometheusServer,
    metrics: Sequence[Metric],
    dialect: Dialect,
    targets: Sequence[Target],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
) -> Iterator[Finding]:
    """Whether devices and nodes are there (replicas are not, yet), and how often those who bring them are scraped."""
    jobs: dict[str, list[str]] = {}
    absent: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.level is Level.REPLICA:
            continue
        raw = render(metric, dialect, spec.scrape_interval_s * 4).raw
        try:
            answer = server.query(f"group by (job) ({raw})")
        except NoDataError:
            absent.setdefault(raw, []).append(metric.name)
            continue
        for series in answer.series:
            jobs.setdefault(series.labels.get("job", ""), []).append(metric.name)
    for raw, names in absent.items():
        if spec.gpus_per_replica or CATALOGUE[names[0]].level is not Level.DEVICE:
            yield Finding(
                Severity.WARNING,
                "metrics",
                f"{', '.join(names)} will be absent: Prometheus has no sample of {raw}.",
                "Check the exporter, its pod and its labels, before an hour is spent without it.",
            )
    brought = {name for names in jobs.values() for name in names}
    if spec.gpus_per_replica and any(CATALOGUE[name].level is Level.DEVICE for name in brought):
        yield from _activity(server, dialect)
    yield from _intervals(jobs, targets, spec, experiments)


def _intervals(
    jobs: Mapping[str, Sequence[str]],
    targets: Sequence[Target],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
) -> Iterator[Finding]:
    step_s = min((experiment.timing.step_s for experiment in experiments), default=0.0)
    for job, metrics in jobs.items():
        intervals = {
            seconds(str(one.get("scrapeInterval", ""))) for one in targets if one["labels"].get("job") == job
        } - {None}
        slowest_s = max((interval for interval in intervals if interval is not None), default=None)
        if slowest_s is None:
            continue
        if slowest_s > step_s:
            yield Finding(
                Severity.ERROR,
                "scrape interval",
                f"Prometheus scrapes {job} every {slowest_s:g} s, and a row is wanted every {step_s:g} s: "
                f"{', '.join(metrics)} would be missing in between.",
                f"Scrape at least every {step_s:g} s, or set timing.step_s to {slowest_s:g}.",
            )
        elif slowest_s != spec.scrape_interval_s:
            yield Finding(
                Severity.WARNING,
                "scrape interval",
                f"Prometheus scrapes {job} every {slowest_s:g} s; the campaign assumes {spec.scrape_interval_s:g} s.",
                "Set kubernetes.scrape_interval_s to what is true.",
            )


def _activity(server: PrometheusServer, dialect: Dialect) -> Iterator[Finding]:
    """Whether the exporter reads what the GPU's processors do."""
    ((field,), _) = FIELDS["sm_active_percent"]
    try:
        server.query(f"group({field}{{{dialect.gpus}}})")
    except NoDataError:
        yield Finding(
            Severity.WARNING,
            "metrics",
            f"the report will have no SM activity, which tells sharing modes apart: Prometheus has no sample of {field}.",
            "Let the exporter read it: `dcgm_exporter_profiling: true`, or its list of counters (docs/cluster.md).",
        )


def _devices(
    server: PrometheusServer, metrics: Sequence[Metric], dialect: Dialect, spec: KubernetesSpec
) -> Iterator[Finding]:
    device = next((metric for metric in metrics if metric.level is Level.DEVICE), None)
    if device is None or spec.expected_gpus is None or not spec.gpus_per_replica:
        return
    try:
        series = server.query(render(device, dialect, spec.scrape_interval_s * 4).each).series
    except NoDataError:
        return  # said already
    if len(series) != spec.expected_gpus:
        found = ", ".join(sorted(" ".join(one.labels.values()) for one in series))
        yield Finding(Severity.WARNING, "gpus", too_many(len(series), spec.expected_gpus, found), DEVICES_ADVICE)


def _storage(server: PrometheusServer, experiments: Sequence[ExperimentSpec]) -> Iterator[Finding]:
    """Whether it keeps what it scrapes for as long as it takes to collect it, and has the room."""
    longest_s = max((experiment.timing.record_s for experiment in experiments), default=0.0)
    try:
        retention_s = seconds(str(server.read("status/flags")["storage.tsdb.retention.time"]))
    except (PrometheusError, KeyError, TypeError):
        retention_s = None  # a store in front of several servers does not say
    if retention_s and retention_s < RETENTION_FACTOR * longest_s:
        yield Finding(
            Severity.WARNING,
            "retention",
            f"Prometheus forgets after {retention_s:g} s, and one recording takes {longest_s:g} s.",
            "Raise --storage.tsdb.retention.time, or results cannot be collected again.",
        )
    free = _value(server, 'min(kubelet_volume_stats_available_bytes{persistentvolumeclaim=~"prometheus.*"})')
    rate = _value(server, "sum(rate(prometheus_tsdb_head_samples_appended_total[5m]))")
    if free is not None and rate is not None and free < RETENTION_FACTOR * longest_s * rate * BYTES_PER_SAMPLE:
        yield Finding(
            Severity.WARNING,
            "disk",
            f"{free / 1e9:.1f} GB are free on Prometheus' volume, at {rate:.0f} samples per second.",
            "Enlarge the volume, or shorten the retention: a full one stops recording.",
        )


def _busy(
    server: PrometheusServer, spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], nodes: Sequence[str]
) -> Iterator[Finding]:
    """Pods that state no processors have next to no weight, which decides where others want them, too."""
    silent = [one.workload.name for one in experiments if not _states_processors(spec, one.workload)]
    if not silent or not nodes:
        return
    dialect = cluster(spec.namespace, ".+", nodes=nodes, labels=Labels(**spec.prometheus_labels.model_dump()))
    served = render(CATALOGUE["total_count"], dialect, BUSY_WINDOW_S).raw
    if _value(server, f"count(count_over_time({served}[{BUSY_WINDOW_S:.0f}s]))"):
        return  # replicas ran in that time: whoever waited may have been one of them
    try:
        series = server.query(render(CATALOGUE["cpu_psi"], dialect, BUSY_WINDOW_S).each).series
    except NoDataError:
        return  # an exporter that is not there is told where its metrics are asked for
    waited = {next(iter(one.labels.values()), "?"): float(one.values[-1]) for one in series}
    if busy := [f"{name} in {percent:.0f} %" for name, percent in waited.items() if percent >= BUSY_PERCENT]:
        yield Finding(
            Severity.WARNING,
            "busy",
            f"processes waited for a processor of {', '.join(sorted(busy)[:_LISTED])} of the last 5 minutes, and "
            f"{', '.join(dict.fromkeys(silent))} reserves none: where processors are short, such pods come last.",
            "End what computes there, or set `kubernetes.reserve` (a server's own `reserve`), e.g. {cpu: 500m}.",
        )


def _states_processors(spec: KubernetesSpec, workload: WorkloadSpec) -> bool:
    server = workload.server
    if server is None:
        return "cpu" in {**spec.reserve, **spec.limit}
    return "cpu" in (
        {**server.reserve, **server.limit} if server.image else {**spec.client_reserve, **spec.client_limit}
    )


def cost_of(server: PrometheusServer, namespace: str, deployment: str) -> float | None:
    """CPU cores that the pods of a deployment have used in the last minutes; None when nobody measures them."""
    pods = f"{one_of([deployment])}-.+"
    return _value(
        server,
        f'sum(rate(container_cpu_usage_seconds_total{{namespace="{namespace}",pod=~"{pods}",container!=""}}[5m]))',
    )


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
