"""The Prometheus that watches a cluster, and how replicas are recorded from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.backends.base import RecordingRequest
from harness.backends.kubernetes.client import KubernetesApi
from harness.backends.kubernetes.pods import PodReplica
from harness.config import KubernetesSpec
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.recording_target import Origin
from harness.metrics.promql import Labels
from harness.metrics.recording import Recording

QUERY_TIMEOUT_S = 30.0
GPUS_TIMEOUT_S = 5.0


def server(api: KubernetesApi, spec: KubernetesSpec) -> PrometheusServer:
    """The server at ``prometheus_url``, or behind the API server at ``prometheus_service``."""
    if spec.prometheus_url is not None:
        return PrometheusServer(spec.prometheus_url, timeout_s=QUERY_TIMEOUT_S)
    namespace, _, service = spec.prometheus_service.partition("/")
    connection = api.connection

    def authorization() -> dict[str, str]:
        return api.connection.authorization()  # of the moment: credentials may be renewed within the hour

    return PrometheusServer(
        f"{connection.url}/api/v1/namespaces/{namespace}/services/{service}/proxy",
        timeout_s=QUERY_TIMEOUT_S,
        headers=authorization,
        verify=connection.verify,
        cert=connection.certificate,
    )


def origin(prometheus: PrometheusServer, spec: KubernetesSpec, replicas: Sequence[PodReplica]) -> Origin:
    """Where the metrics of these replicas are, and of the devices that they are on."""
    labels = spec.prometheus_labels
    where = Origin(
        url=prometheus.url,
        namespace=spec.namespace,
        pods=tuple(replica.pod for replica in replicas),
        nodes=tuple(dict.fromkeys(replica.node for replica in replicas)),
        labels=Labels(pod=labels.pod, node=labels.node, gpu_node=labels.gpu_node),
    )
    if not spec.gpus_per_replica:
        return where
    with prometheus.impatient(GPUS_TIMEOUT_S) as quick:
        return where.with_gpus(quick, [replica.gpu_uuid for replica in replicas])


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
        metrics=request.metrics,
        step_s=request.timing.step_s,
        window_s=request.timing.window_s,
        sink=request.sink,
        clock=request.clock,
        wake=request.wake,
        on_tick=request.on_tick,
        notice=request.notice,
        remarks=[where.gpus_why] if where.gpus_why else [],
    )
