"""What the harness's account has to be allowed: asked of the API server, and written as the objects that an administrator applies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
import yaml

from harness.backends.kubernetes.api import KubernetesApi
from harness.data import data_path
from harness.errors import Issue, IssueLevel
from harness.spec import GrafanaCost, KubernetesSpec, WorkloadKind

ACCOUNT = "harness"
ENFORCE = "pod-security.kubernetes.io/enforce"
KUEUE = "kueue.x-k8s.io"
KUEUE_VERSIONS = "v1beta2", "v1beta1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_RESOURCES = "resource.k8s.io"
_MADE = ("get", "list", "patch", "create", "delete")

Right = tuple[str, str, str, str]
"""Verb, API group, resource (with ``/subresource``), namespace."""
Named = dict[Right, str]
"""Rights, and the one object where a right is for one."""


def needed_rights(spec: KubernetesSpec, *, jobs: bool = False, given: bool = False) -> Named:
    """Everything that a campaign does to the cluster; with Jobs beside its replicas, and with files that go into its pods."""
    own, job = spec.namespace, spec.kind is WorkloadKind.JOB
    kinds = [("batch", "jobs")] * (job or jobs) + [("apps", "deployments")] * (not job) + [("", "configmaps")] * given
    by_claims = [(_RESOURCES, "resourceclaims"), (_RESOURCES, "resourceclaimtemplates")] if spec.by_claims else []
    rights: list[Right] = [(verb, group, kind, own) for group, kind in kinds for verb in _MADE]
    rights += [(verb, "", "pods", own) for verb in ("get", "list", "watch", "delete")]
    rights += [("get", "", "pods/log", own), ("get", "", "pods/proxy", own), ("list", "", "events", own)]
    rights += [(verb, group, kind, own) for group, kind in by_claims for verb in _MADE]
    everywhere = [
        *([(_RESOURCES, "resourceslices")] if spec.by_claims else []),
        ("", "nodes"),
        *([("", "pods")] if spec.device_plugin_configs is not None else []),
    ]
    return dict.fromkeys([*rights, *(("list", group, kind, "") for group, kind in everywhere)], "")


def rights_to_switch(spec: KubernetesSpec) -> Named:
    """What switching the nodes' sharing mode takes; nothing where none is switched."""
    if spec.device_plugin_configs is None:
        return {}
    namespace, _, name = spec.device_plugin_configs.partition("/")
    everywhere: Named = {(verb, "", "nodes", ""): "" for verb in ("get", "patch")}
    return {**everywhere, ("get", "", "configmaps", namespace): name}


def rights_to_look(spec: KubernetesSpec) -> Named:
    """What preflight reads, or tries in dry runs, beyond ``needed_rights``."""
    prometheus, _, service = spec.prometheus_service.partition("/")
    by_claims: Named = {("list", _RESOURCES, "resourceclaims", ""): "", ("get", _RESOURCES, "deviceclasses", ""): ""}
    through: Named = {("get", "", "services/proxy", prometheus): service} if spec.prometheus_url is None else {}
    return {
        ("list", "", "pods", ""): "",
        ("create", "", "pods", spec.namespace): "",
        ("get", "", "namespaces", ""): spec.namespace,
        ("list", "", "resourcequotas", spec.namespace): "",
        **through,
        **(by_claims if spec.by_claims else {}),
        **_rights_to_queue(spec),
    }


def _rights_to_queue(spec: KubernetesSpec) -> Named:
    """What seeing how the pods wait for their turn takes."""
    if not spec.queue_name:
        return {}
    own = spec.namespace
    return {("get", KUEUE, "localqueues", own): spec.queue_name, ("list", KUEUE, "workloads", own): ""}


def check_looks(api: KubernetesApi, spec: KubernetesSpec) -> Iterator[Issue]:
    """What the account may not look at, so that preflight cannot judge it; all of it in one finding."""
    if lacking := _lacking(api, rights_to_look(spec)):
        message = f"this account may not look at everything: {lacking}."
        yield Issue(IssueLevel.WARNING, "rights", message, "Without it the campaign's preflight cannot judge that.")


def check_rights(
    api: KubernetesApi, spec: KubernetesSpec, *, jobs: bool = False, given: bool = False
) -> Iterator[Issue]:
    """What the account of the kubeconfig lacks; all of it in one finding. Arguments as of ``needed_rights``."""
    if lacking := _lacking(api, needed_rights(spec, jobs=jobs, given=given)):
        advice = "Use the account that playbooks/workloads.yml makes, or give this one its roles (templates/kubernetes/workloads/access.yaml.j2)."
        yield Issue(IssueLevel.ERROR, "rights", f"this account may not: {lacking}.", advice)
    if lacking := _lacking(api, rights_to_switch(spec)):
        message = f"this account may not switch how the nodes' GPUs are shared: {lacking}."
        commands = " && ".join(commands_to_allow_switching(spec))
        advice = f"An administrator allows it (--user=NAME for another account): {commands}"
        yield Issue(IssueLevel.ERROR, "rights", message, advice)
    namespace, _, name = spec.grafana_deployment.partition("/")
    if spec.grafana is GrafanaCost.SCALE_DOWN and _lacking(api, {("patch", "apps", "deployments", namespace): name}):
        message = f"this account may not scale {spec.grafana_deployment} down, so a Grafana that runs is measured, too."
        advice = "Give it that right, or state the cost: `kubernetes.grafana: leave`."
        yield Issue(IssueLevel.WARNING, "rights", message, advice)


def _lacking(api: KubernetesApi, rights: Named) -> str:
    """Those that the API server would not let this account have, for a sentence."""
    lacking = [right for right, name in rights.items() if not _allowed(api, right, name)]
    return "; ".join(f"{verb} {resource}{f' in {place}' if place else ''}" for verb, _, resource, place in lacking)


def _allowed(api: KubernetesApi, right: Right, name: str) -> bool:
    verb, group, resource, namespace = right
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    attributes |= {"namespace": namespace, "name": name}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    return bool((api.create(REVIEWS, body).get("status") or {}).get("allowed"))


def commands_to_allow_switching(spec: KubernetesSpec) -> list[str]:
    """For an administrator, once; for the account that access.yaml makes."""
    namespace, _, name = (spec.device_plugin_configs or "").partition("/")
    role, account = f"gpu-sharing-harness-switch-{spec.namespace}", f"--serviceaccount={spec.namespace}:{ACCOUNT}"
    return [
        f"kubectl create clusterrole {role} --verb=get,list,patch --resource=nodes",
        f"kubectl create clusterrolebinding {role} --clusterrole={role} {account}",
        f"kubectl create role {role} --namespace {namespace} --verb=get --resource=configmaps --resource-name={name}",
        f"kubectl create rolebinding {role} --namespace {namespace} --role={role} {account}",
    ]


def manifest(spec: KubernetesSpec, *more: dict[str, Any]) -> str:
    """YAML of namespace, accounts and every right that is asked for here, and none beyond; and further objects."""
    prometheus, _, service = spec.prometheus_service.partition("/")
    grafana, _, deployment = spec.grafana_deployment.partition("/")
    template = data_path("templates/kubernetes/workloads/access.yaml.j2").read_text(encoding="utf-8")
    # It renders YAML, where every value is written as JSON.
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)  # noqa: S701
    accounts = environment.from_string(template).render(
        access_namespace=spec.namespace,
        access_replica_account=spec.service_account,
        access_account=ACCOUNT,
        access_monitoring_namespace=prometheus,
        access_prometheus=service,
        access_grafana=deployment,
    )
    metadata = {"name": spec.namespace, "labels": {ENFORCE: "restricted"}}
    objects: list[Any] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]
    further: dict[str, Named] = {f"switch-{spec.namespace}": rights_to_switch(spec)}
    if spec.device_plugin_configs is not None:
        further[f"switch-{spec.namespace}"][("list", "", "nodes", "")] = ""
    if spec.grafana is GrafanaCost.SCALE_DOWN and grafana != prometheus:
        scale: Named = {(verb, "apps", "deployments", grafana): deployment for verb in ("get", "patch")}
        further[f"grafana-{spec.namespace}"] = scale
    further[f"queue-{spec.namespace}"] = _rights_to_queue(spec)
    for name, rights in further.items():
        for namespace in dict.fromkeys(place for *_, place in rights):
            objects += _granted(spec, f"gpu-sharing-harness-{name}", namespace, rights.items())
    return f"{yaml.safe_dump_all([*objects, *more], sort_keys=False)}---\n{accounts}"


def _granted(
    spec: KubernetesSpec, name: str, namespace: str, rights: Iterable[tuple[Right, str]]
) -> list[dict[str, Any]]:
    """A role with those of the rights that are for a namespace, and its binding to the harness's account; empty: for the cluster."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb], **({"resourceNames": [only]} if only else {})}
        for (verb, group, resource, place), only in rights
        if place == namespace
    ]
    kind, group = "Role" if namespace else "ClusterRole", "rbac.authorization.k8s.io"
    common = {"name": name, **({"namespace": namespace} if namespace else {})}
    version, subject = f"{group}/v1", {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": spec.namespace}
    return [
        {"apiVersion": version, "kind": kind, "metadata": common, "rules": rules},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": dict(common),
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [subject],
        },
    ]
