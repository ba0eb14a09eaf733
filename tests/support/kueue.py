"""What Kueue does to the Jobs of a queue: suspended as they are made, given a Workload that says why, and admitted."""

from __future__ import annotations

from dataclasses import dataclass, field

import yaml

from harness.backends.kubernetes import objects, rights, watch
from harness.backends.kubernetes.api import KubernetesApi
from harness.spec import KubernetesSpec
from tests.support.processes import eventually

_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_VERSION = {
    "name": rights.KUEUE_VERSIONS[0],
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OPEN, "status": _OPEN}}},
}
_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"workloads.{rights.KUEUE}"},
    "spec": {
        "group": rights.KUEUE,
        "scope": "Namespaced",
        "names": {"kind": "Workload", "plural": "workloads", "singular": "workload"},
        "versions": [_VERSION],
    },
}
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass
class Kueue:
    """Use it as a context.

    Attributes:
        api: of an administrator.
        allowed: paths of what gives the harness's account its right.
    """

    api: KubernetesApi
    allowed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        namespace = self.api.namespace
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.workloads = f"/apis/{rights.KUEUE}/{rights.KUEUE_VERSIONS[0]}/namespaces/{namespace}/workloads"

    def __enter__(self):
        self.api.apply(f"{_DEFINITIONS}/{_DEFINITION['metadata']['name']}", _DEFINITION)
        assert eventually(lambda: self.api.find(self.workloads) is not None)
        return self

    def __exit__(self, *_):
        for one in self.api.list(self.workloads):
            self.api.delete(f"{self.workloads}/{one['metadata']['name']}")
        self.api.delete(f"{_DEFINITIONS}/{_DEFINITION['metadata']['name']}")
        for path in self.allowed:
            self.api.delete(path)

    def allow(self, spec: KubernetesSpec) -> None:
        """Give the harness's account what ``harness doctor --kubernetes`` prints for reading Workloads."""
        for one in yaml.safe_load_all(rights.manifest(spec)):
            name = one["metadata"]["name"]
            if "workloads" in name:
                kind = f"{one['kind'].lower()}s"
                self.allowed.append(f"{_RBAC}/namespaces/{self.api.namespace}/{kind}/{name}")
                self.api.apply(self.allowed[-1], one)

    def says(self, message: str, kind: str = "QuotaReserved") -> None:
        """Why the suspended Jobs are not admitted."""
        for job in self._held():
            name, uid = f"job-{job['metadata']['name']}-1a2b3", job["metadata"]["uid"]
            labels = {watch.JOB_UID_LABEL: uid}
            body = {"apiVersion": f"{rights.KUEUE}/{rights.KUEUE_VERSIONS[0]}", "kind": "Workload"}
            self.api.apply(f"{self.workloads}/{name}", {**body, "metadata": {"name": name, "labels": labels}})
            condition = {"type": kind, "status": "False", "reason": "Pending", "message": message}
            self.api.patch(f"{self.workloads}/{name}/status", {"status": {"conditions": [condition]}})

    def admit(self) -> None:
        """Let every suspended Job go."""
        for job in self._held():
            self.api.patch(f"{self.jobs}/{job['metadata']['name']}", {"spec": {"suspend": False}})

    def _held(self) -> list:
        return [one for one in self.api.list(self.jobs) if one["spec"].get("suspend")]


def suspending(make):
    """``KubernetesApi.make``, as where Kueue's webhook sees every Job of a queue before it is stored."""

    def made(api, path, body):
        if objects.QUEUE_LABEL in body["metadata"].get("labels", {}):
            body = {**body, "spec": {**body["spec"], "suspend": True}}
        return make(api, path, body)

    return made
