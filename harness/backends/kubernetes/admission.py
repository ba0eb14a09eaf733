"""Preflight: would the API server let in what an experiment makes? One pod of each kind is tried in a dry run; many are counted.

A dry run is answered by every admission of the cluster, and stores nothing; how many pods there will be is counted here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from harness.backends.kubernetes.api import TRANSIENT, KubernetesApi
from harness.backends.kubernetes.objects import PodGroup, pods_path
from harness.errors import ClusterError, Issue, IssueLevel
from harness.sharing.mode import Object
from harness.sharing.node import CAMPAIGN_LABEL
from harness.spec import KubernetesSpec
from harness.spec.pods import amount, quantity

Amounts = dict[str, Decimal]
OF_BYTES = ("memory", "ephemeral-storage")
COMPUTE = ("cpu", *OF_BYTES)
"""What is no device."""
_NO_RIGHT = " may not create pods"
_NO_SUCH_KIND = "could not find the requested resource"
_WEBHOOK = "admission webhook"
_FIT = (
    "Fit `kubernetes.reserve` and `limit` to it (`client_reserve` and `client_limit` of what sends requests, a server's own "
    "`reserve` and `limit`), have it raised, or use another namespace."
)
_REFUSALS = {
    "namespace": (
        re.compile(r'namespaces? "[^"]*" not found|being terminated'),
        "Make it: playbooks/workloads.yml, or kubectl create namespace; one that is being deleted has to be gone first.",
    ),
    "runtime class": (
        re.compile("RuntimeClass"),
        "Apply it (playbooks/cluster.yml does), or set `kubernetes.runtime_class: null` where CDI hands the GPU out.",
    ),
    "priority class": (re.compile("PriorityClass"), "Create it, or use one of: kubectl get priorityclasses"),
    "pod security": (re.compile("violates PodSecurity"), "Replicas pass `restricted`: is it a policy of another name?"),
    "quota": (
        re.compile(
            r"(exceeded|failed) quota|(minimum|maximum) \S+ usage per|limit to request ratio|must be less than or equal"
        ),
        _FIT,
    ),
}
"""What a refusal is about: the check's name, the API server's words, and what to do."""
_COUNTED = {
    "Deployment": ("count/deployments.apps", "count/replicasets.apps"),
    "Job": ("count/jobs.batch",),
    "ConfigMap": ("configmaps", "count/configmaps"),
    "ResourceClaim": ("count/resourceclaims.resource.k8s.io",),
    "ResourceClaimTemplate": ("count/resourceclaimtemplates.resource.k8s.io",),
}
"""The keys by which a quota counts objects; a Deployment makes a ReplicaSet."""


@dataclass(frozen=True, slots=True)
class PodResources:
    """What a pod asks for in all, and is limited to."""

    requests: Amounts
    limits: Amounts


@dataclass(frozen=True, slots=True)
class PlannedPods:
    """Pods of one Deployment or Job: the object, and a pod as the API server completes it, or as rendered where it says nothing."""

    group: PodGroup
    pod: Object

    @property
    def resources(self) -> PodResources:
        """Of each pod."""
        return pod_resources(self.pod["spec"])


def pod_resources(spec: Object) -> PodResources:
    """Of a pod's ``spec``: containers run side by side, those before them one after another."""
    early = spec.get("initContainers") or []
    sidecars = [container for container in early if container.get("restartPolicy") == "Always"]  # they run on
    before = [container for container in early if container not in sidecars]

    def total(kinds: tuple[str, ...]) -> Amounts:
        together: Amounts = defaultdict(Decimal)
        for container in [*spec["containers"], *sidecars]:
            for key, value in _stated(container, kinds).items():
                together[key] += value
        for container in before:
            for key, value in _stated(container, kinds).items():
                together[key] = max(together[key], value)
        return together

    requests, limits = total(("limits", "requests")), total(("limits",))  # a limit alone is a request
    for key, text in (spec.get("overhead") or {}).items():  # of its runtime class
        requests[key] += amount(text) or Decimal()
    return PodResources(requests, limits)


def _stated(container: Object, kinds: tuple[str, ...]) -> Amounts:
    stated = container.get("resources") or {}
    texts = {key: text for kind in kinds for key, text in (stated.get(kind) or {}).items()}
    return {key: value for key, text in texts.items() if (value := amount(text)) is not None}


def try_pods(
    api: KubernetesApi, spec: KubernetesSpec, experiments: Sequence[Sequence[PodGroup]]
) -> tuple[list[list[PlannedPods]], list[Issue]]:
    """What each experiment makes, with its pods as the API server would complete them, and whatever it refuses. Raises ClusterError."""
    tried: dict[str, tuple[Object | None, list[Issue]]] = {}
    planned: list[list[PlannedPods]] = []
    for groups in experiments:
        planned.append([])
        for group in groups:
            template = group.body["spec"]["template"]
            key = _kind_of(template["spec"])
            if key not in tried:
                tried[key] = _try(api, spec, group)
            planned[-1].append(PlannedPods(group, tried[key][0] or template))
    if not experiments:
        _, issue = _create(api, spec, "a replica", _bare_pod(spec))
        tried["bare"] = None, [issue] if issue else []
    return planned, [finding for _, findings in tried.values() for finding in findings]


def _kind_of(pod: Object) -> str:
    """What pods that are admitted alike have in common."""
    containers = [*pod["containers"], *(pod.get("initContainers") or [])]
    of_containers = [[container.get(key) for key in ("name", "image", "resources")] for container in containers]
    own = [pod.get(key) for key in ("runtimeClassName", "priorityClassName", "serviceAccountName", "restartPolicy")]
    return json.dumps([of_containers, own])


def _try(api: KubernetesApi, spec: KubernetesSpec, group: PodGroup) -> tuple[Object | None, list[Issue]]:
    """A pod of a group, completed, and what is refused of the pod, its owner and the claims that it names."""
    whose = f"the pods of {group.labels['app.kubernetes.io/name']}"
    template = group.body["spec"]["template"]
    metadata = {**template["metadata"], "name": group.name, "namespace": spec.namespace}
    pod, finding = _create(api, spec, whose, {"metadata": metadata, "spec": template["spec"]})
    findings = [finding] if finding else []
    if finding and finding.severity is IssueLevel.ERROR:
        return None, findings
    beside = [made for made in group.beside if made.body["kind"] != "ConfigMap"]  # megabytes, and only counted
    others = [_create(api, spec, whose, made.body, made.path)[1] for made in [group.owners[0], *beside]]
    return pod, [
        *findings,
        *_limited(whose, template["spec"], (pod or template)["spec"]),
        *filter(None, others),
    ]


def _bare_pod(spec: KubernetesSpec) -> Object:
    """What every pod of a campaign has, where none is known."""
    name = "gpu-sharing-harness"
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    own = {"runtimeClassName": spec.gpu_runtime_class, "priorityClassName": spec.priority_class}
    bounds = {"requests": dict(spec.reserve), "limits": dict(spec.limit)}
    container = {"name": "replica", "image": spec.image, "securityContext": context, "resources": bounds}
    body = {key: value for key, value in own.items() if value}
    return {
        "metadata": {"name": name, "namespace": spec.namespace},
        "spec": {"serviceAccountName": spec.service_account, "containers": [container], **body},
    }


def _create(
    api: KubernetesApi, spec: KubernetesSpec, whose: str, body: Object, path: str = ""
) -> tuple[Object | None, Issue | None]:
    """The object as it would be, or what speaks against it."""
    named = {"apiVersion": "v1", "kind": "Pod", **body}
    collection = path.rpartition("/")[0] or pods_path(spec.namespace)
    try:
        return api.create(collection, named, dry_run=True), None
    except ClusterError as error:
        if error.status is None or error.status in {*TRANSIENT, 401}:
            raise
        if _NO_RIGHT in error.message:
            advice = "Give it the right, which preflight uses in dry runs alone: access.yaml.j2 has it."
            return None, Issue(IssueLevel.WARNING, "quota", f"not tried: {error.message}", advice)
        if " may not create " in error.message or error.status == 409 or _NO_SUCH_KIND in error.message:
            return None, None  # said of the rights, or of the claims; or there is one of this name
        if "dry run" in error.message and error.status == 400:
            return None, Issue(IssueLevel.WARNING, "admission", f"{whose} are not tried: {error.message}", error.advice)
        return None, _refusal(whose, error, alone=not path)


def _refusal(whose: str, error: ClusterError, *, alone: bool) -> Issue:
    """``alone``: it is a pod without its owner, which a policy may refuse for that."""
    words = error.message.partition("): ")[2].rstrip(".") or error.message
    message = f"the API server refuses {whose}: {words}."
    for check, (pattern, advice) in _REFUSALS.items():
        if pattern.search(words):
            return Issue(IssueLevel.ERROR, check, message, advice)
    if alone and _WEBHOOK in words:
        advice = "A policy that refuses only pods without an owner does not matter; any other keeps replicas from being made."
        return Issue(IssueLevel.WARNING, "admission", message, advice)
    return Issue(IssueLevel.ERROR, "admission", message, error.advice)


def _limited(whose: str, rendered: Object, completed: Object) -> Iterator[Issue]:
    """Limits that the namespace adds: a replica would be measured with them."""
    added: dict[str, str] = {}
    for before, after in zip(rendered["containers"], completed["containers"], strict=False):
        stated, limits = ((container.get("resources") or {}).get("limits") or {} for container in (before, after))
        added |= {key: value for key, value in limits.items() if key not in stated}
    if added:
        listed = ", ".join(f"{key} {value}" for key, value in added.items())
        message = f"a LimitRange of the namespace limits {whose} ({listed}): that would be measured, too."
        advice = "Use a namespace without default limits, or set `kubernetes.limit` to more than a replica needs."
        yield Issue(IssueLevel.WARNING, "quota", message, advice)


def check_quotas(
    api: KubernetesApi, spec: KubernetesSpec, experiments: Sequence[Sequence[PlannedPods]], campaign_id: str
) -> Iterator[Issue]:
    """Which quotas are too small for all pods and objects of an experiment. Raises ClusterError."""
    for quota in api.list(f"/api/v1/namespaces/{spec.namespace}/resourcequotas"):
        name, hard = quota["metadata"]["name"], quota["spec"].get("hard") or {}
        used = (quota.get("status") or {}).get("used") or {}
        needed: Amounts = defaultdict(Decimal)
        for planned in experiments:  # one experiment at a time
            for key, count in _needed([pods for pods in planned if _counts(quota["spec"], pods)]).items():
                needed[key] = max(count, needed[key])
        for key, count in needed.items():
            most, others = amount(hard.get(key)), amount(used.get(key)) or Decimal()
            if most is None or count + others <= most:
                continue
            alone = count > most
            own = not alone and api.list(pods_path(spec.namespace), labels=f"{CAMPAIGN_LABEL}={campaign_id}")
            needs = quantity(count, of_bytes=key.endswith(OF_BYTES))
            yield Issue(
                IssueLevel.WARNING if own else IssueLevel.ERROR,
                "quota",
                f"the quota {name} allows {key}: {hard[key]}, of which {used.get(key, 0)} are used, and the campaign needs {needs}.",
                f"{'' if alone else 'End what uses it, u'}{'U' if alone else ''}se fewer replicas, or have it raised.",
                away=not alone,
            )


def _needed(planned: Sequence[PlannedPods]) -> Amounts:
    """What quotas count of all these, by their keys."""
    needed: Amounts = defaultdict(Decimal)
    for pods in planned:
        group, resources = pods.group, pods.resources
        count = group.replicas
        for key in ("pods", "count/pods"):
            needed[key] += count
        for resource, value in resources.requests.items():
            for key in (f"requests.{resource}", *([resource] if resource in COMPUTE else [])):
                needed[key] += value * count
        for resource in resources.limits.keys() & COMPUTE:  # of everything else requests alone are counted
            needed[f"limits.{resource}"] += resources.limits[resource] * count
        for body in (made.body for made in (*group.owners, *group.beside)):
            for key in _COUNTED[body["kind"]]:
                needed[key] += 1
            for key, number in _of_claims(body, count).items():
                needed[key] += number
    return needed


def _of_claims(body: Object, replicas: int) -> dict[str, int]:
    """Devices by their class, and the claims that pods get from a template."""
    if not body["kind"].startswith("ResourceClaim"):
        return {}
    template = body["kind"] == "ResourceClaimTemplate"
    claims = replicas if template else 1
    requests = (body["spec"]["spec"] if template else body["spec"])["devices"]["requests"]
    devices = {
        f"{request['exactly']['deviceClassName']}.deviceclass.resource.k8s.io/devices": claims
        * request["exactly"].get("count", 1)
        for request in requests
    }
    return {**devices, **({_COUNTED["ResourceClaim"][0]: claims} if template else {})}


def _counts(quota: Object, planned: PlannedPods) -> bool:
    """Whether a quota is for these pods."""
    pod, resources = planned.pod["spec"], planned.resources
    best_effort = not {"cpu", "memory"} & {*resources.requests, *resources.limits}
    ends = pod.get("activeDeadlineSeconds") is not None
    fits = {
        "Terminating": ends,
        "NotTerminating": not ends,
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
    }
    for scope in quota.get("scopes") or []:
        if not fits.get(scope, scope == "PriorityClass" and bool(pod.get("priorityClassName"))):
            return False
    for term in (quota.get("scopeSelector") or {}).get("matchExpressions") or []:
        if term["scopeName"] != "PriorityClass":
            fit = fits.get(term["scopeName"], False)
        else:
            name = pod.get("priorityClassName")
            among = name in (term.get("values") or [])
            fit = {"Exists": bool(name), "DoesNotExist": not name, "In": among, "NotIn": not among}[term["operator"]]
        if not fit:
            return False
    return True
