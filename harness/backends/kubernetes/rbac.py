"""Preflight: the namespace, what the harness may do in it, the runtime class, and the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from harness.backends.base import IMAGE
from harness.backends.kubernetes.access import ENFORCE, KUEUE, KUEUE_VERSIONS, rights_to_wait
from harness.errors import ClusterError, Finding, Severity
from harness.spec import GrafanaCost, KubernetesSpec, PullPolicy, WorkloadKind

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
LISTED_IMAGES = 50
"""A node's status names this many of its images, the largest; with fewer, what is not named is not there."""
_DIGEST = "@sha256:"


class Api(Protocol):
    """What preflight needs of the API server; every call raises ClusterError."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """One object, or a list of them."""
        ...

    def find(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """The same; None where there is none."""
        ...

    def list(self, path: str, *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """The objects of a list."""
        ...

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a POST."""
        ...

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge ``body`` into an object."""
        ...

    def server_time_s(self) -> float | None:
        """What the API server's clock says."""
        ...

    def token_ends_s(self) -> float | None:
        """When the token ends that nothing renews by itself."""
        ...


Right = tuple[str, str, str, str]
"""Verb, API group, resource (with ``/subresource``), namespace."""


def needed_rights(spec: KubernetesSpec, *, jobs: bool = False, given: bool = False) -> list[Right]:
    """Everything that a campaign does to the cluster.

    Args:
        spec: the cluster.
        jobs: it makes Jobs beside its replicas, too.
        given: files go into its pods.
    """
    own, job = spec.namespace, spec.kind is WorkloadKind.JOB
    kinds = [("batch", "jobs")] * (job or jobs) + [("apps", "deployments")] * (not job) + [("", "configmaps")] * given
    rights = [
        (verb, group, kind, own) for group, kind in kinds for verb in ("get", "list", "patch", "create", "delete")
    ]
    rights += [(verb, "", "pods", own) for verb in ("get", "list", "watch", "delete")]
    rights += [("get", "", "pods/log", own), ("get", "", "pods/proxy", own), ("list", "", "events", own)]
    if spec.by_claims:
        rights += [
            (verb, "resource.k8s.io", kind, own)
            for kind in ("resourceclaims", "resourceclaimtemplates")
            for verb in ("get", "list", "patch", "create", "delete")
        ]
        rights += [("list", "resource.k8s.io", "resourceslices", "")]
    around = [("list", "", "pods", "")] if spec.device_plugin_configs is not None else []
    return [*rights, ("list", "", "nodes", ""), *around]


def rights_to_switch(spec: KubernetesSpec) -> dict[Right, str]:
    """What switching the nodes' sharing mode takes, and the one object where it is for one; nothing where none is switched."""
    if spec.device_plugin_configs is None:
        return {}
    namespace, _, name = spec.device_plugin_configs.partition("/")
    everywhere = {(verb, "", "nodes", ""): "" for verb in ("get", "patch")}
    return {**everywhere, ("get", "", "configmaps", namespace): name}


def rights_to_look(spec: KubernetesSpec) -> dict[Right, str]:
    """What preflight reads beyond ``needed_rights``, and the one object where it is for one."""
    prometheus, _, service = spec.prometheus_service.partition("/")
    by_claims = {
        ("list", "resource.k8s.io", "resourceclaims", ""): "",
        ("get", "resource.k8s.io", "deviceclasses", ""): "",
    }
    through = {("get", "", "services/proxy", prometheus): service} if spec.prometheus_url is None else {}
    return {
        ("list", "", "pods", ""): "",
        ("get", "", "namespaces", ""): spec.namespace,
        ("list", "", "resourcequotas", spec.namespace): "",
        ("list", "", "limitranges", spec.namespace): "",
        ("get", "node.k8s.io", "runtimeclasses", ""): "",
        **through,
        **(by_claims if spec.by_claims else {}),
        **rights_to_wait(spec),
    }


def check_looks(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """What the account may not look at, so that preflight cannot judge it; all of it in one finding."""
    lacking = [right for right, name in rights_to_look(spec).items() if not allowed(api, right, name)]
    if lacking:
        message = f"this account may not look at everything: {_words(lacking)}."
        yield Finding(Severity.WARNING, "rights", message, "Without it the campaign's preflight cannot judge that.")


def check_pod_security(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """Whether the namespace keeps its pods as restricted as replicas are."""
    try:
        found = api.find(f"/api/v1/namespaces/{spec.namespace}")
    except ClusterError:
        return  # said already: it may not be looked at
    level = ((found or {}).get("metadata") or {}).get("labels", {}).get(ENFORCE)
    if found is not None and level != "restricted":
        message = f"the namespace {spec.namespace} enforces {f'the Pod Security level {level}' if level else 'no Pod Security level'}."
        advice = f"Replicas pass the strictest: kubectl label namespace {spec.namespace} {ENFORCE}=restricted"
        yield Finding(Severity.WARNING, "pod security", message, advice)


def check_rights(api: Api, spec: KubernetesSpec, *, jobs: bool = False, given: bool = False) -> Iterator[Finding]:
    """What the account of the kubeconfig lacks; all of it in one finding. Arguments as of ``needed_rights``."""
    lacking = [right for right in needed_rights(spec, jobs=jobs, given=given) if not allowed(api, right)]
    if lacking:
        yield Finding(
            Severity.ERROR,
            "rights",
            f"this account may not: {_words(lacking)}.",
            "Use the account that playbooks/workloads.yml makes, or give this one its roles "
            "(templates/kubernetes/workloads/access.yaml.j2).",
        )
    lacking = [right for right, name in rights_to_switch(spec).items() if not allowed(api, right, name)]
    if lacking:
        message = f"this account may not switch how the nodes' GPUs are shared: {_words(lacking)}."
        commands = " && ".join(commands_to_allow_switching(spec))
        advice = f"An administrator allows it (--user=NAME for another account): {commands}"
        yield Finding(Severity.ERROR, "rights", message, advice)
    namespace, _, name = spec.grafana_deployment.partition("/")
    if spec.grafana is GrafanaCost.SCALE_DOWN and not allowed(api, ("patch", "apps", "deployments", namespace), name):
        yield Finding(
            Severity.WARNING,
            "rights",
            f"this account may not scale {spec.grafana_deployment} down, so a Grafana that runs is measured, too.",
            "Give it that right, or state the cost: `kubernetes.grafana: leave`.",
        )


def _words(rights: Sequence[Right]) -> str:
    return "; ".join(f"{verb} {resource}{f' in {where}' if where else ''}" for verb, _, resource, where in rights)


def commands_to_allow_switching(spec: KubernetesSpec) -> list[str]:
    """For an administrator, once; for the account that access.yaml makes."""
    namespace, _, name = (spec.device_plugin_configs or "").partition("/")
    role, account = f"gpu-sharing-harness-switch-{spec.namespace}", f"--serviceaccount={spec.namespace}:harness"
    return [
        f"kubectl create clusterrole {role} --verb=get,list,patch --resource=nodes",
        f"kubectl create clusterrolebinding {role} --clusterrole={role} {account}",
        f"kubectl create role {role} --namespace {namespace} --verb=get --resource=configmaps --resource-name={name}",
        f"kubectl create rolebinding {role} --namespace {namespace} --role={role} {account}",
    ]


def allowed(api: Api, right: Right, name: str = "") -> bool:
    """Whether the API server would let this account do it."""
    verb, group, resource, namespace = right
    resource, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    review = api.create(
        REVIEWS,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        },
    )
    return bool((review.get("status") or {}).get("allowed"))


def check_namespace(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """Whether replicas can be made in it at all."""
    found = api.find(f"/api/v1/namespaces/{spec.namespace}")
    if found is None:
        advice = f"Make it: playbooks/workloads.yml, or kubectl create namespace {spec.namespace}."
        yield Finding(Severity.ERROR, "namespace", f"there is no namespace {spec.namespace}.", advice)
    elif (found.get("status") or {}).get("phase") == "Terminating":
        message = f"the namespace {spec.namespace} is being deleted."
        yield Finding(Severity.ERROR, "namespace", message, "Wait until it is gone, and make it again.")


def check_runtime_class(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """A pod with a runtime class that is not there is refused; one without may silently run on the CPU."""
    if spec.gpu_runtime_class is None:
        return
    if api.find(f"/apis/node.k8s.io/v1/runtimeclasses/{spec.runtime_class}") is None:
        yield Finding(
            Severity.ERROR,
            "runtime class",
            f"there is no runtime class {spec.runtime_class}.",
            "Apply it (playbooks/cluster.yml does), or set `kubernetes.runtime_class: null` where CDI hands the GPU out.",
        )


def check_priority_class(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """Pods of a class that is not there are never made, and their owner just goes on trying."""
    name = spec.priority_class
    if name and api.find(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}") is None:
        message = f"there is no PriorityClass {name}."
        yield Finding(Severity.ERROR, "priority class", message, "Make it, or take one of: kubectl get priorityclasses")


def check_queue(api: Api, spec: KubernetesSpec) -> Iterator[Finding]:
    """A Job for a queue that is not there stays suspended."""
    place, name = f"namespaces/{spec.namespace}/localqueues", spec.queue_name
    if name and not any(api.find(f"/apis/{KUEUE}/{version}/{place}/{name}") for version in KUEUE_VERSIONS):
        message = f"there is no LocalQueue {name} in the namespace {spec.namespace}."
        advice = f"Make it, or take one of: kubectl get localqueues --namespace {spec.namespace}"
        yield Finding(Severity.ERROR, "queue", message, advice)


def check_image(nodes: Sequence[Mapping[str, Any]], spec: KubernetesSpec, image: str) -> Iterator[Finding]:
    """Whether an image can be there when a replica starts, as far as the nodes tell."""
    registry, _, rest = image.partition("/")
    tagged = ":" in rest or _DIGEST in image
    if not tagged or image.endswith(":latest"):
        yield Finding(
            Severity.WARNING,
            IMAGE,
            f"{image} may be another image tomorrow.",
            "Name a version or a digest, so that a repeat runs the same.",
        )
    if spec.image_pull_policy is PullPolicy.ALWAYS or (
        registry != "localhost" and spec.image_pull_policy is PullPolicy.IF_NOT_PRESENT
    ):
        return
    without = [str(node["metadata"]["name"]) for node in nodes if _lacks(node, image)]
    if without:
        yield Finding(
            Severity.ERROR if len(without) == len(nodes) else Severity.WARNING,
            IMAGE,
            f"{image} is not in the store of {', '.join(without)}, and no registry has it.",
            "Build it there: playbooks/workloads.yml."
            if image == spec.image
            else "Load it there, e.g. with podman load.",
        )


def _lacks(node: Mapping[str, Any], image: str) -> bool:
    images = (node.get("status") or {}).get("images") or []
    names = {name for one in images for name in one.get("names") or []}
    return image not in names and len(images) < LISTED_IMAGES


def unchecked(check: str, error: ClusterError) -> Finding:
    """A check that the API server would not let us make."""
    return Finding(Severity.WARNING, check, f"not checked: {error.message}", error.advice)
