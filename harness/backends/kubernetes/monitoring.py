"""What watches a cluster: its Prometheus, from which replicas are recorded, that server's operator, and Grafana.

Grafana is kept quiet meanwhile; how many replicas it had is written onto its Deployment, so that whoever comes next can give them back.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.pods import SERVER, PodReplica
from harness.clock import Clock
from harness.errors import ClusterError, PrometheusError
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.telemetry import PrometheusTelemetry
from harness.metrics.promql import Dialect, PrometheusSource, ReplicaGroup
from harness.metrics.rows import Recording, RecordingRequest
from harness.spec import GrafanaCost, KubernetesSpec, Timing
from harness.spec.kubernetes import PrometheusAccess

QUERY_TIMEOUT_S = 30.0
OPERATOR = "/apis/monitoring.coreos.com/v1"
REPLICAS = {"app.kubernetes.io/part-of": "gpu-sharing-harness"}
"""A label of every replica."""
BEFORE, BY = "gpu-sharing-harness/replicas-before", "gpu-sharing-harness/scaled-down-by"
"""On Grafana's Deployment: the replicas that it had, and the campaign."""
_ACCESS = "Fix it, or `kubernetes.prometheus_access` of the campaign file."
GPUS_TIMEOUT_S = 5.0
TELEMETRY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Login:
    """What a Secret says: the header to be known by, the file of the authority that signed, and where to ask."""

    authorization: str = field(repr=False)
    authority: str
    url: str


def direct(url: str, access: PrometheusAccess, login: Login | None = None) -> PrometheusServer:
    """The server at an address, asked as the campaign says, or with the login of a Secret."""
    if login is not None:
        named = {**_tenant(access), "Authorization": login.authorization}
        return PrometheusServer(url, timeout_s=QUERY_TIMEOUT_S, headers=named, verify=login.authority)
    authority = str(Path(access.ca_file).expanduser()) if access.ca_file else True
    return PrometheusServer(url, timeout_s=QUERY_TIMEOUT_S, headers=lambda: _headers(access), verify=authority)


def _login(api: KubernetesApi, spec: KubernetesSpec) -> Login | None:
    """What the cluster's Secret gives; None where there is none of ours, or this account may not read it. Raises ClusterError, PrometheusError."""
    access = spec.prometheus_access
    if access.secret is None and spec.prometheus_url is not None:
        return None
    namespace, _, service = spec.prometheus_service.partition("/")
    named = access.secret or f"{namespace}/{service.partition(':')[0]}-access"
    place, _, name = named.partition("/")
    try:
        data = (api.find(f"/api/v1/namespaces/{place}/secrets/{name}") or {}).get("data") or {}
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        data = {}
    try:
        user, password, authority, url = (
            base64.b64decode(data[key]).decode() for key in ("username", "password", "ca.crt", "url")
        )
    except (KeyError, ValueError) as error:
        if access.secret is None:
            return None
        raise PrometheusError(
            f"the Secret {named} is not there for this account, or has no {error} for Prometheus.", advice=_ACCESS
        ) from error
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Login(f"Basic {basic}", _authority_file(authority), url)


@functools.cache
def _authority_file(text: str) -> str:
    """A file with these certificates, for as long as this process lives."""
    with tempfile.NamedTemporaryFile("w", prefix="prometheus-", suffix=".crt", delete=False, encoding="ascii") as file:
        file.write(text)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


def _headers(access: PrometheusAccess) -> dict[str, str]:
    """Of the moment: a token in a file may be renewed within the hour. Raises PrometheusError."""
    if access.ca_file is not None and not Path(access.ca_file).expanduser().is_file():
        raise PrometheusError(f"there is no file {access.ca_file}, which `ca_file` names.", advice=_ACCESS)
    token = _token(access)
    if token is None:
        return _tenant(access)
    if not token or not token.isascii() or not token.isprintable():
        raise PrometheusError(f"{access.token_file or access.token_env} holds no token for Prometheus.", advice=_ACCESS)
    return {**_tenant(access), "Authorization": token if token.startswith("Basic ") else f"Bearer {token}"}


def _tenant(access: PrometheusAccess) -> dict[str, str]:
    return {"X-Scope-OrgID": access.tenant} if access.tenant else {}


def _token(access: PrometheusAccess) -> str | None:
    """What the file or the environment variable holds; None: neither is named."""
    if access.token_env is not None:
        return os.environ.get(access.token_env, "").strip()
    if access.token_file is None:
        return None
    try:
        return Path(access.token_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrometheusError(f"the token for Prometheus cannot be read: {error}.", advice=_ACCESS) from error


def server(api: KubernetesApi, spec: KubernetesSpec) -> PrometheusServer:
    """The server at ``prometheus_url`` or where the cluster's Secret says, else behind the API server. Raises ClusterError, PrometheusError."""
    login = _login(api, spec)
    if url := spec.prometheus_url or (login.url if login else None):
        return direct(url, spec.prometheus_access, login)
    namespace, _, service = spec.prometheus_service.partition("/")
    connection = api.connection

    def authorization() -> dict[str, str]:  # of the moment: credentials may be renewed within the hour
        return {**_tenant(spec.prometheus_access), **api.connection.authorization()}

    def renew() -> None:
        with contextlib.suppress(ClusterError):  # what the server then says is the same again, and said
            api.renew()

    return PrometheusServer(
        f"{connection.url}/api/v1/namespaces/{namespace}/services/{service}/proxy",
        timeout_s=QUERY_TIMEOUT_S,
        headers=authorization,
        verify=connection.verify,
        cert=connection.certificate,
        renew=renew,
    )


def origin(prometheus: PrometheusServer, spec: KubernetesSpec, replicas: Sequence[PodReplica]) -> PrometheusSource:
    """Where the metrics of these replicas are, the neighbours' among them, and of the devices that they are on."""
    measured = [replica for replica in replicas if not replica.neighbour]
    beside: dict[str, tuple[str, ...]] = {}
    for replica in replicas:
        if replica.neighbour:
            beside[replica.neighbour] = (*beside.get(replica.neighbour, ()), replica.pod)
    where = PrometheusSource(
        url=prometheus.url,
        namespace=spec.namespace,
        pods=tuple(replica.pod for replica in measured),
        nodes=tuple(dict.fromkeys(replica.node for replica in replicas)),
        labels=spec.prometheus_labels,
        container=SERVER if any(replica.asks_a_server for replica in measured) else "",
        neighbours=beside,
    )
    if not spec.gpus_per_replica:
        return where
    with prometheus.impatient(GPUS_TIMEOUT_S) as quick:
        return where.with_gpus(quick, [uuid for replica in replicas for uuid in replica.gpu_uuids or ("",)])


def telemetry(
    api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica], path: Path, timing: Timing, clock: Clock
) -> PrometheusTelemetry | None:
    """The series of the GPUs of these replicas; None: they have none."""

    @contextlib.contextmanager
    def where() -> Iterator[tuple[PrometheusServer, Dialect]]:
        with server(api, spec) as prometheus, prometheus.impatient(TELEMETRY_TIMEOUT_S) as quick:
            yield quick, origin(prometheus, spec, replicas).dialect()

    if not spec.gpus_per_replica:
        return None
    return PrometheusTelemetry(path, interval_s=timing.step_s, clock=clock, where=where)


def recording(
    api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica], folder: Path, request: RecordingRequest
) -> Recording:
    """A recorder of these replicas; where their metrics are is kept in the attempt's folder. Raises StorageError."""
    from harness.metrics.prometheus.recorder import PrometheusRecorder
    from harness.results.from_prometheus import save_source

    prometheus = server(api, spec)
    where = origin(prometheus, spec, replicas)
    save_source(folder, where)
    return PrometheusRecorder(
        prometheus,
        request,
        groups=[ReplicaGroup("", where.dialect(), where.pods), *where.neighbour_replicas()],
        remarks=[where.gpus_why] if where.gpus_why else [],
    )


def wanted_pod_monitor(api: KubernetesApi, spec: KubernetesSpec) -> dict[str, Any] | None:
    """The PodMonitor that lacks; None: there is no operator, one is there, or they may not be read.

    Its labels are those by which the operator's Prometheus chooses.
    """
    try:
        # Without a selector a Prometheus takes no PodMonitor at all; with an empty one, every one.
        servers = [entry for entry in api.list(f"{OPERATOR}/prometheuses") if "podMonitorSelector" in entry["spec"]]
        chosen = [(_place(entry, spec), _labels(entry["spec"]["podMonitorSelector"])) for entry in servers]
        there = {place: api.list(f"{OPERATOR}/namespaces/{place}/podmonitors") for place, _ in chosen}
    except ClusterError:
        return None
    if not chosen or any(_names_replicas(entry, labels, spec) for place, labels in chosen for entry in there[place]):
        return None
    place, labels = chosen[0]
    seconds = spec.scrape_interval_s
    interval = f"{seconds:g}s" if seconds.is_integer() else f"{seconds * 1000:.0f}ms"
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "gpu-sharing-harness", "namespace": place, "labels": labels},
        "spec": {
            **({} if place == spec.namespace else {"namespaceSelector": {"matchNames": [spec.namespace]}}),
            "selector": {"matchLabels": REPLICAS},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": interval}],
        },
    }


def _place(server: Mapping[str, Any], spec: KubernetesSpec) -> str:
    """Where a Prometheus looks for PodMonitors: without a selector of namespaces, in its own alone."""
    return spec.namespace if "podMonitorNamespaceSelector" in server["spec"] else str(server["metadata"]["namespace"])


def _labels(selector: Mapping[str, Any]) -> dict[str, str]:
    """Labels that a selector chooses."""
    labels = dict(selector.get("matchLabels") or {})
    for term in selector.get("matchExpressions") or []:
        if term["operator"] in {"In", "Exists"}:
            labels.setdefault(term["key"], next(iter(term.get("values") or []), "true"))
    return labels


def _names_replicas(monitor: Mapping[str, Any], labels: Mapping[str, str], spec: KubernetesSpec) -> bool:
    where = monitor["spec"].get("namespaceSelector") or {"matchNames": [monitor["metadata"]["namespace"]]}
    if not where.get("any") and spec.namespace not in where.get("matchNames", ()):
        return False
    chosen = (monitor["spec"].get("selector") or {}).get("matchLabels") or {}
    own = monitor["metadata"].get("labels") or {}
    return chosen.items() <= REPLICAS.items() and labels.items() <= own.items()


def grafana_replicas(api: KubernetesApi, spec: KubernetesSpec) -> int:
    """Replicas that Grafana is meant to have, by default 1; 0 when there is no Grafana. Raises ClusterError."""
    deployment = api.find(grafana_path(spec)) or {"spec": {"replicas": 0}}
    return int(deployment["spec"].get("replicas", 1))


def quiet_grafana(api: KubernetesApi, spec: KubernetesSpec, campaign_id: str) -> list[str]:
    """Scale Grafana down when the campaign says so; a sentence for what was done, or could not be."""
    if spec.grafana is not GrafanaCost.SCALE_DOWN:
        return []
    try:
        replicas = grafana_replicas(api, spec)
        if not replicas:
            return []
        notes = {BEFORE: str(replicas), BY: campaign_id}
        api.patch(grafana_path(spec), {"metadata": {"annotations": notes}, "spec": {"replicas": 0}})
    except ClusterError as error:
        return [f"{spec.grafana_deployment} was not scaled down, and is measured, too: {error.message}"]
    return [f"{spec.grafana_deployment} is scaled down to 0 replicas until the campaign ends."]


def restore_grafana(api: KubernetesApi, spec: KubernetesSpec) -> list[str]:
    """Give Grafana back the replicas that ``quiet_grafana`` took, also those that a killed harness took. Idempotent."""
    try:
        deployment = api.find(grafana_path(spec)) or {}
        before = (deployment.get("metadata", {}).get("annotations") or {}).get(BEFORE)
        if before is None:
            return []
        patch: dict[str, Any] = {"metadata": {"annotations": {BEFORE: None, BY: None}}}
        if before.isdigit() and not deployment["spec"].get("replicas", 1):
            patch["spec"] = {"replicas": int(before)}  # somebody who scaled it up meanwhile keeps what he made
        api.patch(grafana_path(spec), patch)
    except ClusterError as error:
        namespace, _, name = spec.grafana_deployment.partition("/")
        by_hand = f"kubectl -n {namespace} scale deployment {name} --replicas=1"
        return [f"{spec.grafana_deployment} could not be scaled up again: {error.message} By hand: {by_hand}"]
    return [f"{spec.grafana_deployment} has its replicas again."] if "spec" in patch else []


def grafana_path(spec: KubernetesSpec) -> str:
    """Path of Grafana's Deployment."""
    namespace, _, name = spec.grafana_deployment.partition("/")
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
