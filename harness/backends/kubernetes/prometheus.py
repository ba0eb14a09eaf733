"""The Prometheus that watches a cluster, and how replicas are recorded from it."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from harness.backends.base import RecordingRequest
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.pods import SERVER, PodReplica
from harness.clock import Clock
from harness.errors import ClusterError, PrometheusError
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.recording_target import Origin
from harness.metrics.prometheus.telemetry import PrometheusTelemetry
from harness.metrics.promql import Dialect, Labels
from harness.metrics.recording import Recording
from harness.spec import KubernetesSpec, Timing
from harness.spec.prometheus import PrometheusAccess

QUERY_TIMEOUT_S = 30.0
_ACCESS = "Mend it, or `kubernetes.prometheus_access` of the campaign file."
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
    """What the cluster's Secret gives; None where there is none of ours, or this account may not read it.

    Raises:
        ClusterError: the API server does not answer.
        PrometheusError: the Secret that the campaign names is not there or is another.
    """
    access = spec.prometheus_access
    namespace, _, service = spec.prometheus_service.partition("/")
    named = access.secret or f"{namespace}/{service.partition(':')[0]}-access"
    place, _, name = named.partition("/")
    if access.secret is None and spec.prometheus_url is not None:
        return None
    try:
        found = (api.find(f"/api/v1/namespaces/{place}/secrets/{name}") or {}).get("data") or {}
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        found = {}
    try:
        user, password, authority, url = (
            base64.b64decode(found[key]).decode() for key in ("username", "password", "ca.crt", "url")
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
    """The server at ``prometheus_url`` or where the cluster's Secret says, else behind the API server at ``prometheus_service``.

    Raises:
        ClusterError: the API server does not answer.
        PrometheusError: the Secret that the campaign names is not there or is another.
    """
    login = _login(api, spec)
    if url := spec.prometheus_url or (login.url if login else None):
        return direct(url, spec.prometheus_access, login)
    namespace, _, service = spec.prometheus_service.partition("/")
    connection = api.connection

    def authorization() -> dict[str, str]:
        return {
            **_tenant(spec.prometheus_access),
            **api.connection.authorization(),
        }  # of the moment: credentials may be renewed within the hour

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


def origin(prometheus: PrometheusServer, spec: KubernetesSpec, replicas: Sequence[PodReplica]) -> Origin:
    """Where the metrics of these replicas are, the neighbours' among them, and of the devices that they are on."""
    labels = spec.prometheus_labels
    measured = [replica for replica in replicas if not replica.neighbour]
    beside: dict[str, tuple[str, ...]] = {}
    for one in replicas:
        if one.neighbour:
            beside[one.neighbour] = (*beside.get(one.neighbour, ()), one.pod)
    where = Origin(
        url=prometheus.url,
        namespace=spec.namespace,
        pods=tuple(replica.pod for replica in measured),
        nodes=tuple(dict.fromkeys(replica.node for replica in replicas)),
        labels=Labels(pod=labels.pod, node=labels.node, gpu_node=labels.gpu_node),
        container=SERVER if any(replica.asks_a_server for replica in measured) else "",
        neighbours=beside,
    )
    if not spec.gpus_per_replica:
        return where
    with prometheus.impatient(GPUS_TIMEOUT_S) as quick:
        return where.with_gpus(quick, [replica.gpu_uuid for replica in replicas])


def hottest_celsius(api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica]) -> float:
    """Temperature of the hottest GPU of these replicas, as its exporter says; infinite where nobody tells."""
    with server(api, spec) as asked:
        return origin(asked, spec, replicas).hottest_celsius(asked)


@contextlib.contextmanager
def _asked_of(
    api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica]
) -> Iterator[tuple[PrometheusServer, Dialect]]:
    with server(api, spec) as asked, asked.impatient(TELEMETRY_TIMEOUT_S) as quick:
        yield quick, origin(asked, spec, replicas).dialect()


def telemetry(
    api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica], path: Path, timing: Timing, clock: Clock
) -> PrometheusTelemetry | None:
    """The series of the GPUs of these replicas; None: they have none."""
    if not spec.gpus_per_replica:
        return None
    return PrometheusTelemetry(
        path, interval_s=timing.step_s, clock=clock, where=functools.partial(_asked_of, api, spec, replicas)
    )


def recording(
    api: KubernetesApi, spec: KubernetesSpec, replicas: Sequence[PodReplica], folder: Path, request: RecordingRequest
) -> Recording:
    """A recorder of these replicas; where their metrics are is kept in the attempt's folder. Raises StorageError."""
    from harness.metrics.prometheus.recorder import PrometheusRecorder
    from harness.results.origin import save_origin

    prometheus = server(api, spec)
    where = origin(prometheus, spec, replicas)
    save_origin(folder, where)
    return PrometheusRecorder(
        prometheus,
        dialect=where.dialect(),
        replicas=where.pods,
        beside=where.beside(),
        metrics=request.metrics,
        step_s=request.timing.step_s,
        window_s=request.timing.window_s,
        sink=request.sink,
        clock=request.clock,
        wake=request.wake,
        on_tick=request.on_tick,
        notice=request.notice,
        enough=request.enough,
        remarks=[where.gpus_why] if where.gpus_why else [],
    )
