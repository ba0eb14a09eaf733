"""Everything that can be known about a cluster before a pod is started. Nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from harness.backends.kubernetes import (
    capacity,
    claims_check,
    files,
    grafana,
    monitoring,
    node_room,
    parts,
    quota,
    rbac,
    sharing,
    switching,
)
from harness.backends.kubernetes.api import TRANSIENT, Api
from harness.backends.kubernetes.capacity import Object
from harness.backends.kubernetes.objects import Workload
from harness.backends.kubernetes.version import check_version, makes_jobs
from harness.backends.layer_check import check_layer_of_image
from harness.errors import CampaignFileError, ClusterError, Finding, PrometheusError, Severity
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.spec import ExperimentSpec, GrafanaCost, KubernetesSpec

API_SKEW_S = 3.0
"""The API server's clock is told in whole seconds, after a round trip."""


def check(
    api: Api,
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    *,
    campaign_id: str,
    prometheus: Callable[[], PrometheusServer],
) -> list[Finding]:
    """What would keep these experiments from running, or from meaning something.

    Args:
        api: of the cluster.
        spec: what the campaign says of it.
        experiments: that are going to run.
        campaign_id: of the campaign, whose own pods hold no slice against it.
        prometheus: makes the connection to the server that records.
    """
    try:
        nodes = api.list("/api/v1/nodes")
    except ClusterError as error:
        # An expired token may be renewed in the kubeconfig, which is read anew each time.
        if error.status is None or error.status in {*TRANSIENT, 401}:
            return [Finding(Severity.ERROR, "cluster", error.message, error.advice, away=True)]
        nodes = None
    jobs, given = makes_jobs(spec, experiments), files.any_named([one.workload for one in experiments])
    findings = [
        *(one for experiment in experiments for one in check_layer_of_image(experiment)),
        *_tried("namespace", lambda: rbac.check_namespace(api, spec)),
        *files.check_carried(experiments),
        *(_tried("version", lambda: check_version(api)) if jobs else ()),
        *_tried("rights", lambda: rbac.check_rights(api, spec, jobs=jobs, given=given)),
        *_tried("runtime class", lambda: rbac.check_runtime_class(api, spec)),
        *_tried("priority class", lambda: rbac.check_priority_class(api, spec)),
        *_tried("queue", lambda: rbac.check_queue(api, spec)),
        *_tried("quota", lambda: _check_quota(api, spec, experiments, campaign_id)),
        *_tried("clock", lambda: _check_clock(api)),
        *_check_token(api, experiments),
    ]
    if nodes is None:
        message = "nodes and their GPUs are not checked: this account may not list them."
        findings.append(Finding(Severity.WARNING, "nodes", message, "Give it the roles of access.yaml.j2."))
    else:
        usable = [node for node in nodes if not capacity.unusable(node, spec)]
        found = list(capacity.check_nodes(nodes, spec))
        if any(capacity.selected(node, spec) for node in usable):  # what those lend that take no pod is no finding
            found += _tried("gpus", lambda: check_gpus(api, nodes, usable, spec, experiments, campaign_id))
            found += _tried("room", lambda: _check_room(api, usable, spec, experiments, campaign_id))
        lost = capacity.lost(nodes, spec)
        findings += [replace(one, away=one.away or (lost and one.severity is Severity.ERROR)) for one in found]
        servers = [one.workload.server.image for one in experiments if one.workload.server]
        layers = [one.condition.layer.preload_image for one in experiments if one.condition and one.condition.layer]
        for image in dict.fromkeys([spec.image, *filter(None, [*servers, *layers])]):
            findings += rbac.check_image(usable, spec, image)
    try:
        server = prometheus()
    except (ClusterError, PrometheusError) as error:
        return [*dict.fromkeys(findings), Finding(Severity.ERROR, "prometheus", error.message, error.advice)]
    with server:
        names = [str(node["metadata"]["name"]) for node in nodes or [] if capacity.takes(node, spec)]
        findings += monitoring.check_prometheus(server, spec, experiments, time.time, nodes=names)
        findings += _tried("grafana", lambda: _check_grafana(api, spec, server))
    return list(dict.fromkeys(findings))


def check_gpus(
    api: Api,
    nodes: Sequence[Object],
    usable: Sequence[Object],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    campaign_id: str,
) -> list[Finding]:
    """Whether the usable nodes can give the experiments their GPUs, and share them so. Raises ClusterError."""
    if spec.by_claims:
        return [
            *claims_check.check_claims(api, usable, spec, experiments, campaign_id),
            *capacity.check_devices(nodes, spec),
        ]
    pods = api.list("/api/v1/pods")
    twice = _tried("claims", lambda: claims_check.check_lent_twice(api, usable, spec))
    if spec.device_plugin_configs is not None:
        return [
            *twice,
            *switching.check_cluster(api, nodes, pods, spec, experiments, campaign_id),
            *capacity.check_devices(nodes, spec),
        ]
    replicas = max((experiment.cell.processes for experiment in experiments), default=1)
    wanted = [node for node in usable if capacity.selected(node, spec)]
    return [
        *twice,
        *sharing.check_sharing(wanted, pods, spec, experiments),
        *capacity.check_gpus(nodes, pods, spec, replicas, campaign_id),
    ]


def _check_quota(
    api: Api, spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str
) -> list[Finding]:
    def planned() -> list[list[Workload]]:
        return [[part.workload for part in each] for each in _planned(spec, experiments, campaign_id)]

    return list(quota.check_quota(api, spec.namespace, planned, campaign_id))


def _planned(spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str) -> list[list[parts.Part]]:
    """What each makes; repeats, and modes that are not seen in objects, make the same."""
    distinct = {
        (one.workload.name, one.replicas, one.sharing, one.condition and one.condition.name): one for one in experiments
    }
    try:
        return [parts.everything(one, spec, campaign_id) for one in distinct.values()]
    except CampaignFileError:
        return []  # files that cannot be carried into pods are an error of their own


def _check_room(
    api: Api, usable: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str
) -> list[Finding]:
    """The pods of the whole cluster are listed only where ours ask for something."""
    planned = _planned(spec, experiments, campaign_id)
    try:
        ranges = api.list(f"/api/v1/namespaces/{spec.namespace}/limitranges") if planned else []
    except ClusterError:
        ranges = []  # that it may not be read is said of the quota
    bounds = [limit for one in ranges for limit in one["spec"].get("limits") or []]
    if not any(node_room.stated(each, bounds) for each in planned):
        return []
    return list(node_room.check_room(usable, api.list("/api/v1/pods"), bounds, planned, campaign_id))


def _tried(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except ClusterError as error:
        return [rbac.unchecked(name, error)]


def _check_clock(api: Api) -> list[Finding]:
    """Tokens and leases go by the API server's clock."""
    there_s = api.server_time_s()
    skew_s = 0.0 if there_s is None else there_s - time.time()
    if abs(skew_s) <= API_SKEW_S:
        return []
    message = f"the API server's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's."
    return [Finding(Severity.WARNING, "clock", message, "Synchronise both (timedatectl, chronyc tracking).")]


def _check_token(api: Api, experiments: Sequence[ExperimentSpec]) -> Iterator[Finding]:
    """A campaign waits for another token for as long as its limits let it; a person may be asleep by then."""
    ends_s = api.token_ends_s()
    timings = [one.timing for one in experiments]
    planned_s = sum(timing.stabilise_s + timing.record_s + timing.cooldown_s for timing in timings)
    if ends_s is None or ends_s - time.time() > planned_s:
        return
    at = datetime.fromtimestamp(ends_s, UTC)
    message = (
        f"the token of the kubeconfig ends at {at:%Y-%m-%d %H:%M} UTC, in {max(ends_s - time.time(), 0) / 60:.0f} min, and what is planned "
        f"takes {planned_s / 60:.0f} min."
    )
    advice = (
        "Write one that lasts into it (kubectl create token harness --duration 24h); it is read anew, so that it can be done while the campaign runs, "
        "which waits for it between experiments."
    )
    yield Finding(Severity.WARNING, "token", message, advice)


def _check_grafana(api: Api, spec: KubernetesSpec, server: PrometheusServer) -> list[Finding]:
    """A Grafana that runs during the recording is part of what is measured."""
    if spec.grafana is GrafanaCost.SCALE_DOWN or not grafana.running(api, spec):
        return []
    namespace, _, name = spec.grafana_deployment.partition("/")
    try:
        cores = monitoring.cost_of(server, namespace, name)
    except PrometheusError:
        cores = None  # why Prometheus does not answer is a finding of its own
    cost = f"it used {cores:.3f} CPU cores in the last 5 minutes" if cores is not None else "what it costs is not known"
    message = f"{spec.grafana_deployment} runs beside the measurement: {cost}, and whoever looks at it costs more."
    return [Finding(Severity.WARNING, "grafana", message, "Set `kubernetes.grafana: scale-down`.")]
