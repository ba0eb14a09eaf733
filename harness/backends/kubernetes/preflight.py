"""Everything that can be known about a cluster before a pod is started. Nothing is changed: what is tried is a dry run."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from harness.backends.kubernetes import admission, files, monitoring, nodes, objects, probe, strangers
from harness.backends.kubernetes.admission import PlannedPods
from harness.backends.kubernetes.api import TRANSIENT, KubernetesApi
from harness.backends.kubernetes.rights import ENFORCE, KUEUE, KUEUE_VERSIONS, check_rights
from harness.backends.workload_check import check_layer_of_image
from harness.clock import Clock
from harness.errors import CampaignFileError, ClusterError, Issue, IssueLevel, PrometheusError
from harness.metrics.prometheus.client import PrometheusServer
from harness.sharing.cluster import cluster_sharing
from harness.sharing.dra import check_lent_twice
from harness.sharing.mode import Object
from harness.sharing.node import NODES, PODS, name, selected, takes, unusable
from harness.spec import ExperimentSpec, GrafanaCost, KubernetesSpec, ScenarioKind, WorkloadKind

API_SKEW_S = 3.0
"""The API server's clock is told in whole seconds, after a round trip."""
LISTED_S, LISTED_POLL_S = 40.0, 2.0
"""A kubelet was seen to list an image 24 to 26 s after it was loaded."""
JOBS_SINCE = (1, 29)
"""From which version of Kubernetes on a Job takes `backoffLimitPerIndex`."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What would keep these experiments from running, or from meaning something.

    ``campaign_id``: whose own objects are in nobody's way; with a ``clock`` images that were just loaded are waited for.
    """

    api: KubernetesApi
    spec: KubernetesSpec
    experiments: Sequence[ExperimentSpec]
    campaign_id: str
    clock: Clock | None = None

    def check(self, prometheus: Callable[[], PrometheusServer]) -> list[Issue]:
        """Everything, the server of Prometheus last."""
        api, spec, every_node = self.api, self.spec, None
        try:
            every_node = api.list(NODES)
        except ClusterError as error:
            # An expired token may be renewed in the kubeconfig, which is read anew each time.
            if error.status is None or error.status in {*TRANSIENT, 401}:
                return [Issue(IssueLevel.ERROR, "cluster", error.message, error.advice, away=True)]
        jobs, given = self._makes_jobs(), files.any_named([experiment.workload for experiment in self.experiments])
        planned, admitted = self.admitted()
        issues = [
            *(issue for experiment in self.experiments for issue in check_layer_of_image(experiment)),
            *files.check_carried(self.experiments),
            *(_tried("version", lambda: _check_version(api)) if jobs else ()),
            *_tried("rights", lambda: check_rights(api, spec, jobs=jobs, given=given)),
            *admitted,
            *_tried("queue", lambda: _check_queue(api, spec)),
            *_tried("clock", lambda: _check_clock(api)),
            *_check_token(api, self.experiments),
        ]
        if every_node is None:
            message = "nodes and their GPUs are not checked: this account may not list them."
            issues.append(Issue(IssueLevel.WARNING, "nodes", message, "Give it the roles of access.yaml.j2."))
        else:
            issues += self._check_nodes(every_node, planned)
        try:
            server = prometheus()
        except (ClusterError, PrometheusError) as error:
            return [*dict.fromkeys(issues), Issue(IssueLevel.ERROR, "prometheus", error.message, error.advice)]
        with server:
            names = [name(node) for node in every_node or [] if takes(node, spec)]
            issues += probe.check_prometheus(server, spec, self.experiments, time.time, nodes=names)
            issues += _tried("grafana", lambda: _check_grafana(api, spec, server))
        return list(dict.fromkeys(issues))

    def admitted(self) -> tuple[list[list[PlannedPods]], list[Issue]]:
        """What the experiments make, and what the API server and its quotas have against it."""
        # Repeats, and modes that are not seen in objects, make the same.
        distinct = {
            (it.workload.name, it.replicas, it.sharing, it.condition and it.condition.name): it
            for it in self.experiments
        }
        try:
            groups = [objects.all_pods(it, self.spec, self.campaign_id) for it in distinct.values()]
            planned, refused = admission.try_pods(self.api, self.spec, groups)
        except CampaignFileError:
            return [], []  # files that cannot be carried into pods are an error of their own
        except ClusterError as error:
            return [], [_unchecked("admission", error)]
        quotas = lambda: admission.check_quotas(self.api, self.spec, planned, self.campaign_id)  # noqa: E731
        counted = _tried("quota", quotas)
        if counted:  # a quota that one pod exceeds already is said with its numbers
            refused = [issue for issue in refused if "exceeded quota" not in issue.message]
        return planned, [*refused, *counted]

    def _check_nodes(self, every_node: Sequence[Object], planned: Sequence[Sequence[PlannedPods]]) -> Iterator[Issue]:
        """Whether the nodes are fit, have what the pods need, and their images."""
        usable = [node for node in every_node if not unusable(node, self.spec)]
        issues = list(nodes.check_nodes(every_node, self.spec))
        if any(selected(node, self.spec) for node in usable):  # what those lend that take no pod is no issue
            issues += _tried("gpus", lambda: self.check_gpus(every_node, usable))
            every_pod = functools.partial(self.api.list, PODS)
            issues += _tried("room", lambda: nodes.check_room(usable, every_pod, planned, self.campaign_id))
        lost = nodes.lost(every_node, self.spec)
        for issue in issues:
            yield replace(issue, away=issue.away or (lost and issue.severity is IssueLevel.ERROR))
        servers = [it.workload.server.image for it in self.experiments if it.workload.server]
        layers = [it.condition.layer.preload_image for it in self.experiments if it.condition and it.condition.layer]
        images = dict.fromkeys([self.spec.image, *filter(None, [*servers, *layers])])
        listing = self._until_listed(usable, images)
        for image in images:
            yield from nodes.check_image(listing, self.spec, image)

    def _until_listed(self, usable: Sequence[Object], images: Iterable[str]) -> Sequence[Object]:
        """The nodes once they list every image that is not pulled, or as they are after a while."""
        names, clock = {name(node) for node in usable}, self.clock
        deadline_s = clock.now_s() + LISTED_S if clock else 0.0
        while clock and any(nodes.lacking(usable, self.spec, image) for image in images):
            if clock.now_s() >= deadline_s:
                break
            clock.wait_until(clock.now_s() + LISTED_POLL_S)
            with contextlib.suppress(ClusterError):  # then as they were
                usable = [node for node in self.api.list(NODES) if name(node) in names]
        return usable

    def check_gpus(self, every_node: Sequence[Object], usable: Sequence[Object]) -> list[Issue]:
        """Whether the usable nodes can give the experiments their GPUs, and share them so. Raises ClusterError."""
        sharing = cluster_sharing(self.spec, self.campaign_id)
        twice = lambda: check_lent_twice(self.api, usable, self.spec)  # noqa: E731
        issues = [] if self.spec.by_claims else _tried("claims", twice)
        issues += sharing.check(self.api, usable, self.experiments)
        if self.spec.gpus_per_replica:
            there = lambda: strangers.check(usable, self.api.list(PODS), self.campaign_id)  # noqa: E731
            issues += _tried("gpus", there)
        if not sharing.fixed_slices:
            return [*issues, *nodes.check_devices(every_node, self.spec)]
        replicas = max((experiment.cell.processes for experiment in self.experiments), default=1)
        return [*issues, *nodes.check_gpus(every_node, self.api.list(PODS), self.spec, replicas, self.campaign_id)]

    def _makes_jobs(self) -> bool:
        """Whether a campaign's replicas, or the pods that ask them or others, are a Job's."""
        workloads = [experiment.workload for experiment in self.experiments]
        return self.spec.kind is WorkloadKind.JOB or any(
            (workload.scenario is not None and workload.scenario.kind is ScenarioKind.HTTP)
            or (workload.server is not None and workload.server.url)
            for workload in workloads
        )


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
        advice = f"Create it, or use one of: kubectl get localqueues --namespace {spec.namespace}"
        yield Issue(IssueLevel.ERROR, "queue", message, advice)


def _check_clock(api: KubernetesApi) -> Iterator[Issue]:
    """Tokens and leases go by the API server's clock."""
    date = api.exchange("GET", "/version").headers.get("Date")
    skew_s = parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
    if abs(skew_s) > API_SKEW_S:
        message = f"the API server's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this one's."
        yield Issue(IssueLevel.WARNING, "clock", message, "Synchronise both (timedatectl, chronyc tracking).")


def _check_token(api: KubernetesApi, experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
    """A campaign waits for another token for as long as its limits let it; a person may be asleep by then."""
    ends_s = api.connection.token_ends_s
    timings = [experiment.timing for experiment in experiments]
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
    message = f"{spec.grafana_deployment} runs beside the measurement: {cost}, and each viewer costs more."
    yield Issue(IssueLevel.WARNING, "grafana", message, "Set `kubernetes.grafana: scale-down`.")
