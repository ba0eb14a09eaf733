"""The objects that an administrator applies so that a campaign can run: namespace, accounts, and their rights."""

from __future__ import annotations

from typing import Any

import jinja2
import yaml

from harness.data import data_path
from harness.spec import GrafanaCost, KubernetesSpec

ACCOUNT = "harness"
ENFORCE = "pod-security.kubernetes.io/enforce"
KUEUE = "kueue.x-k8s.io"
KUEUE_VERSIONS = "v1beta2", "v1beta1"


def manifest(spec: KubernetesSpec, *more: dict[str, Any]) -> str:
    """YAML with every right that ``rbac`` asks for, and none beyond it but what preflight reads; and further objects."""
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
    labels = {ENFORCE: "restricted"}
    objects: list[Any] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": spec.namespace, "labels": labels}}
    ]
    if spec.grafana is GrafanaCost.SCALE_DOWN and grafana != prometheus:
        scale = _rule("apps", "deployments", ["get", "patch"], deployment)
        objects += _granted(spec, f"gpu-sharing-harness-grafana-{spec.namespace}", grafana, scale)
    if spec.device_plugin_configs is not None:
        plugin, _, configs = spec.device_plugin_configs.partition("/")
        name = f"gpu-sharing-harness-switch-{spec.namespace}"
        objects += _granted(spec, name, "", _rule("", "nodes", ["get", "list", "patch"]))
        objects += _granted(spec, name, plugin, _rule("", "configmaps", ["get"], configs))
    for (verb, group, resource, namespace), name in rights_to_wait(spec).items():
        rule = _rule(group, resource, [verb], name)
        objects += _granted(spec, f"gpu-sharing-harness-{resource}-{spec.namespace}", namespace, rule)
    objects += more
    return f"{yaml.safe_dump_all(objects, sort_keys=False)}---\n{accounts}"


def rights_to_wait(spec: KubernetesSpec) -> dict[tuple[str, str, str, str], str]:
    """What seeing how the pods wait for their turn takes (verb, API group, resource, namespace), and the object of each."""
    wanted = {
        ("get", "scheduling.k8s.io", "priorityclasses", ""): spec.priority_class,
        ("get", KUEUE, "localqueues", spec.namespace): spec.queue_name,
    }
    why = {("list", KUEUE, "workloads", spec.namespace): ""} if spec.queue_name else {}
    return {right: name for right, name in wanted.items() if name} | why


def _rule(group: str, resource: str, verbs: list[str], name: str = "") -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "resources": [resource],
        "verbs": verbs,
        **({"resourceNames": [name]} if name else {}),
    }


def _granted(spec: KubernetesSpec, name: str, namespace: str, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """A role and its binding to the harness's account; for the whole cluster where ``namespace`` is empty."""
    kind, group = "Role" if namespace else "ClusterRole", "rbac.authorization.k8s.io"
    common = {"name": name, **({"namespace": namespace} if namespace else {})}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": spec.namespace}
    reference = {"apiGroup": group, "kind": kind, "name": name}
    binding = {"kind": f"{kind}Binding", "metadata": dict(common), "roleRef": reference, "subjects": [subject]}
    version = {"apiVersion": f"{group}/v1"}
    return [{**version, "kind": kind, "metadata": common, "rules": [rule]}, {**version, **binding}]
