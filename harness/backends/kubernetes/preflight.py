"""Everything that can be known about a cluster before a pod is started. Nothing is changed: what is tried is a dry run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from harness.backends.kubernetes import admission, files, monitoring, nodes, objects, probe
from harness.backends.kubernetes.admission import PlannedPods
from harness.backends.kubernetes.api import TRANSIENT, KubernetesApi
from harness.backends.kubernetes.rights import ENFORCE, KUEUE, KUEUE_VERSIONS, check_rights
from harness.backends.workload_check import check_layer_of_image
from harness.errors import CampaignFileError, ClusterError, Issue, IssueLevel, PrometheusError
from harness.metrics.prometheus.client import PrometheusServer
from harness.sharing.cluster import cluster_sharing
from harness.sharing.dra import check_lent_twice
from harness.sharing.mode import Object
from harness.sharing.node import NODES, PODS, name, selected, takes, unusable
from harness.spec import ExperimentSpec, GrafanaCost, KubernetesSpec, ScenarioKind, WorkloadKind

API_SKEW_S = 3.0
"""The API server's clock is told in whole seconds, after a round trip."""
JOBS_SINCE = (1, 29)
"""From which version of Kubernetes on a Job takes `backoffLimitPerIndex`."""


def check(
    api: KubernetesApi,
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    *,
    campaign_id: str,
    prometheus: Callable[[], PrometheusServer],
) -> list[Issue]:
    """What would keep these experiments from running, or from meaning something."""
    try:
        every_node = api.list(NODES)
    except ClusterError as error:
        # An expired token may be renewed in the kubeconfig, which is read anew each time.
        if error.status is None or error.status in {*TRANSIENT, 401}:
            return [Issue(IssueLevel.ERROR, "cluster", error.message, error.advice, away=True)]
        every_node = None
    jobs, given = _makes_jobs(spec, experiments), files.any_named([each.workload for each in experiments])
    planned, admitted = _admitted(api, spec, experiments, campaign_id)
    findings = [
        *(finding for experiment in experiments for finding in check_layer_of_image(experiment)),
        *files.check_carried(experiments),
        *(_tried("version", lambda: _check_version(api)) if jobs else ()),
        *_tried("rights", lambda: check_rights(api, spec, jobs=jobs, given=given)),
        *admitted,
        *_tried("queue", lambda: _check_queue(api, spec)),
        *_tried("clock", lambda: _check_clock(api)),
        *_check_token(api, experiments),
    ]
    if every_node is None:
        message = "nodes and their GPUs are not checked: this account may not list them."
        findings.append(Issue(IssueLevel.WARNING, "nodes", message, "Give it the roles of access.yaml.j2."))
    else:
        findings += _check_nodes(api, every_node, spec, experiments, planned, campaign_id)
    try:
        server = prometheus()
    except (ClusterError, PrometheusError) as error:
        return [*dict.fromkeys(findings), Issue(IssueLevel.ERROR, "prometheus", error.message, error.advice)]
    with server:
        names = [name(node) for node in every_node or [] if takes(node, spec)]
        findings += probe.check_prometheus(server, spec, experiments, time.time, nodes=names)
        findings += _tried("grafana", lambda: _check_grafana(api, spec, server))
    return list(dict.fromkeys(findings))


def _admitted(
    api: KubernetesApi, spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str
) -> tuple[list[list[PlannedPods]], list[Issue]]:
    """What the experiments make, and what the API server and its quotas have against it."""
    # Repeats, and modes that are not seen in objects, make the same.
    distinct = {
        (each.workload.name, each.replicas, each.sharing, each.condition and each.condition.name): each
        for each in experiments
    }
    try:
        groups = [objects.all_pods(each, spec, campaign_id) for each in distinct.values()]
    except CampaignFileError:
        return [], []  # files that cannot be carried into pods are an error of their own
    try:
        planned, refused = admission.try_pods(api, spec, groups)
    except ClusterError as error:
        return [], [_unchecked("admission", error)]
    counted = _tried("quota", lambda: admission.check_quotas(api, spec, planned, campaign_id))
    if counted:  # a quota that one pod exceeds already is said with its numbers
        refused = [finding for finding in refused if "exceeded quota" not in finding.message]
    return planned, [*refused, *counted]


def _check_nodes(
    api: KubernetesApi,
    every_node: Sequence[Object],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    planned: Sequence[Sequence[PlannedPods]],
    campaign_id: str,
) -> Iterator[Issue]:
    """Whether the nodes are fit, have what the pods need, and their images."""
    usable = [node for node in every_node if not unusable(node, spec)]
    findings = list(nodes.check_nodes(every_node, spec))
    if any(selected(node, spec) for node in usable):  # what those lend that take no pod is no finding
        findings += _tried("gpus", lambda: check_gpus(api, every_node, usable, spec, experiments, campaign_id))
        if any(map(nodes.reserve_compute, planned)):
            room = lambda: nodes.check_room(usable, api.list(PODS), planned, campaign_id)  # noqa: E731
            findings += _tried("room", room)
    lost = nodes.lost(every_node, spec)
    for finding in findings:
        yield replace(finding, away=finding.away or (lost and finding.severity is IssueLevel.ERROR))
    servers = [each.workload.server.image for each in experiments if each.workload.server]
    layers = [each.condition.layer.preload_image for each in experiments if each.condition and each.condition.layer]
    for image in dict.fromkeys([spec.image, *filter(None, [*servers, *layers])]):
        yield from nodes.check_image(usable, spec, image)


def check_gpus(
    api: KubernetesApi,
    every_node: Sequence[Object],
    usable: Sequence[Object],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    campaign_id: str,
) -> list[Issue]:
    """Whether the usable nodes can give the experiments their GPUs, and share them so. Raises ClusterError."""
    sharing = cluster_sharing(spec, campaign_id)
    findings = [] if spec.by_claims else _tried("claims", lambda: check_lent_twice(api, usable, spec))
    findings += sharing.check(api, usable, experiments)
    if not sharing.fixed_slices:
        return [*findings, *nodes.check_devices(every_node, spec)]
    replicas = max((experiment.cell.processes for experiment in experiments), default=1)
    return [*findings, *nodes.check_gpus(every_node, api.list(PODS), spec, replicas, campaign_id)]


def check_pod_security(api: KubernetesApi, spec: KubernetesSpec) -> Iterator[Issue]:
    """Whether the namespace keeps its pods as restricted as replicas are."""
    try:
        namespace = api.find(f"/api/v1/namespaces/{spec.namespace}")
    except ClusterError:
        return  # said already: it may not be looked at
    level = ((namespace or {}).get("metadata") or {}).get("labels", {}).get(ENFORCE)
    if namespace is not None and level != "restricted":
        message = f"the namespace {spec.namespace} enforces {f'the Pod Security level {level}' if level else 'no Pod Security level'}."
        advice = f"Replicas pass the strictest: kubectl label namespace {spec.namespace} {ENFORCE}=restricted"
        yield Issue(IssueLevel.WARNING, "pod security", message, advice)


def _tried(name: str, check: Callable[[], Iterable[Issue]]) -> list[Issue]:
    try:
        return list(check())
    except ClusterError as error:
        return [_unchecked(name, error)]


def _unchecked(name: str, error: ClusterError) -> Issue:
    return Issue(IssueLevel.WARNING, name, f"not checked: {error.message}", error.advice)


def _makes_jobs(spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]) -> bool:
    """Whether a campaign's replicas, or the pods that ask them or others, are a Job's."""
    workloads = [each.workload for each in experiments]
    return spec.kind is WorkloadKind.JOB or any(
        (each.scenario is not None and each.scenario.kind is ScenarioKind.HTTP)
        or (each.server is not None and each.server.url)
        for each in workloads
    )


def _check_version(api: KubernetesApi) -> Iterator[Issue]:
    """Whether Jobs can be as the harness makes them: before, the field is dropped without a word. Raises ClusterError."""
    version = api.get("/version")
    parts_of = [re.match(r"\d+", str(version.get(part) or "")) for part in ("major", "minor")]
    numbers = tuple(int(part[0]) for part in parts_of if part)
    if len(numbers) < len(JOBS_SINCE) or numbers < JOBS_SINCE:
        message = (
            f"the cluster is Kubernetes {version.get('gitVersion') or 'of a version that it does not say'}, and the campaign makes Jobs with "
            "`backoffLimitPerIndex`, which Kubernetes knows from 1.29 on: without it one replica that ends takes all others along."
        )
        advice = "Upgrade the cluster; or take `kind: deployment`, no scenario http and no `server.url`."
        yield Issue(IssueLevel.ERROR, "version", message, advice)


def _check_queue(api: KubernetesApi, spec: KubernetesSpec) -> Iterator[Issue]:
    """A Job for a queue that is not there stays suspended."""
    place, name = f"namespaces/{spec.namespace}/localqueues", spec.queue_name
    if name and not any(api.find(f"/apis/{KUEUE}/{version}/{place}/{name}") for version in KUEUE_VERSIONS):
        message = f"there is no LocalQueue {name} in the namespace {spec.namespace}."
        advice = f"Make it, or take one of: kubectl get localqueues --namespace {spec.namespace}"
        yield Issue(IssueLevel.ERROR, "queue", message, advice)


def _check_clock(api: KubernetesApi) -> Iterator[Issue]:
    """Tokens and leases go by the API server's clock."""
    there_s = api.server_time_s()
    skew_s = 0.0 if there_s is None else there_s - time.time()
    if abs(skew_s) > API_SKEW_S:
        message = (
            f"the API server's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's."
        )
        yield Issue(IssueLevel.WARNING, "clock", message, "Synchronise both (timedatectl, chronyc tracking).")


def _check_token(api: KubernetesApi, experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
    """A campaign waits for another token for as long as its limits let it; a person may be asleep by then."""
    ends_s = api.token_ends_s()
    timings = [each.timing for each in experiments]
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
    yield Issue(IssueLevel.WARNING, "token", message, advice)


def _check_grafana(api: KubernetesApi, spec: KubernetesSpec, server: PrometheusServer) -> Iterator[Issue]:
    """A Grafana that runs during the recording is part of what is measured."""
    if spec.grafana is GrafanaCost.SCALE_DOWN or not monitoring.grafana_replicas(api, spec):
        return
    namespace, _, name = spec.grafana_deployment.partition("/")
    try:
        cores = probe.cost_of(server, namespace, name)
    except PrometheusError:
        cores = None  # why Prometheus does not answer is a finding of its own
    cost = f"it used {cores:.3f} CPU cores in the last 5 minutes" if cores is not None else "what it costs is not known"
    message = f"{spec.grafana_deployment} runs beside the measurement: {cost}, and whoever looks at it costs more."
    yield Issue(IssueLevel.WARNING, "grafana", message, "Set `kubernetes.grafana: scale-down`.")
