"""What becomes of claims in a cluster with NVIDIA's DRA driver: its slices, the scheduler's allocation, the clean-up.

The cluster's driver asks it where it makes, admits and ends pods. As the scheduler does, it keeps an allocated claim by a
finalizer until no pod has it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import ClusterError
from harness.sharing.dra import UNPREPARED

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
KEPT = "resource.kubernetes.io/delete-protection"
MADE_FOR_POD = "resource.kubernetes.io/pod-claim-name"
CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")


@dataclass
class DraDriver:
    """The driver on one node.

    Attributes:
        uuids: of the GPUs that it lists, by the devices' names.
        gates: strategies that it knows.
        controlled: by the real scheduler and the real controller of claims, which do all that is the cluster's.
        deaf: whether it gives devices without heeding what a claim says of sharing.
        hindered: why it prepares no claim, in its words; empty: it does.
        shared: what the claims said of sharing, each time that one was allocated; None: nothing.
    """

    api: KubernetesApi
    node: str
    uuids: dict[str, str]
    controlled: bool = False
    gates: frozenset[str] = frozenset({"TimeSlicing", "MPS"})
    deaf: bool = False
    hindered: str = ""
    shared: list[dict | None] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.claims = f"{GROUP}/namespaces/{self.api.namespace}/resourceclaims"
        self.templates = f"{GROUP}/namespaces/{self.api.namespace}/resourceclaimtemplates"
        for name in CLASSES:
            kind = name.partition(".")[0]
            expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            self.api.apply(f"{GROUP}/deviceclasses/{name}", _body("DeviceClass", name, spec))
        devices = [
            {"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}}}
            for name, uuid in self.uuids.items()
        ]
        pool = {"name": self.node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self.node, "pool": pool, "devices": devices}
        self.api.apply(f"{GROUP}/resourceslices/{self.node}-gpu", _body("ResourceSlice", f"{self.node}-gpu", spec))

    def withdraw(self) -> None:
        """As where the driver is taken off."""
        for name in CLASSES:
            self.api.delete(f"{GROUP}/deviceclasses/{name}")
        self.api.delete(f"{GROUP}/resourceslices/{self.node}-gpu")

    def left(self) -> list[str]:
        """Every claim and template that is still there."""
        return [one["metadata"]["name"] for path in (self.claims, self.templates) for one in self.api.list(path)]

    def turn(self, pods: list) -> None:
        """Make the claims of new pods, allocate, reserve, and let go of what no pod has; or see it done."""
        if self.controlled:
            self._look()
            return
        for pod in pods:
            for wanted in pod["spec"].get("resourceClaims") or []:
                with _deleted_meanwhile():
                    self._claim(pod, wanted)
        alive = {pod["metadata"]["uid"]: pod for pod in pods if pod.get("status", {}).get("phase") != "Succeeded"}
        users: dict[str, list] = {}
        for pod in alive.values():
            users.setdefault(self.of(pod), []).append(pod["metadata"])
        for claim in self.api.list(self.claims):
            with _deleted_meanwhile():
                self._tend(claim, users.get(claim["metadata"]["name"], []), alive)

    def of(self, pod: dict) -> str:
        """Name of a pod's claim; empty where it has none."""
        made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        for wanted in [*made, *(pod["spec"].get("resourceClaims") or [])]:
            return wanted.get("resourceClaimName") or f"{pod['metadata']['name']}-{wanted['name']}"
        return ""

    def allocated(self, pod: dict) -> dict | None:
        """The devices that the scheduler chose for a pod's claim."""
        claim = self.api.find(f"{self.claims}/{self.of(pod)}")
        return ((claim or {}).get("status") or {}).get("allocation", {}).get("devices")

    def given(self, pod: dict) -> dict[str, str] | None:
        """The environment that the driver gives a pod's container; None: its claim is not allocated, or not prepared."""
        devices = self.allocated(pod)
        if not devices or self._refused(pod, _sharing(devices)):
            return None
        environment = {"NVIDIA_VISIBLE_DEVICES": self.uuids[devices["results"][0]["device"]]}
        shared = _sharing(devices)
        if shared and shared["strategy"] == "MPS" and not self.deaf:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = tempfile.gettempdir()
        return environment

    def _look(self) -> None:
        """Note what was allocated since."""
        for claim in self.api.list(self.claims):
            devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices")
            if devices and claim["metadata"]["uid"] not in self._seen:
                self._seen.add(claim["metadata"]["uid"])
                self.shared.append(_sharing(devices))

    def _refused(self, pod: dict, shared: dict | None) -> bool:
        """Whether it prepares nothing, or does not know a strategy; the kubelet says so."""
        message = self.hindered
        if not message:
            if shared is None or shared["strategy"] in self.gates:
                return False
            gate = {"MPS": "MPSSupport", "TimeSlicing": "TimeSlicingSettings"}[shared["strategy"]]
            message = f'"{shared["strategy"]}" is selected as the GPU sharing strategy, but the "{gate}" feature gate is not enabled'
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.api.namespace}/events/{name}.refused"
        about = {"kind": "Pod", "namespace": self.api.namespace, "name": name, "uid": pod["metadata"]["uid"]}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.refused"}, "type": "Warning"}
        event |= {
            "involvedObject": about,
            "reason": UNPREPARED,
            "message": f"Failed to prepare dynamic resources: {message}",
        }
        self.api.apply(path, event)
        return True

    def _claim(self, pod: dict, wanted: dict) -> None:
        template = wanted.get("resourceClaimTemplateName")
        name, status = self.of(pod), pod.get("status") or {}
        if template is None or status.get("resourceClaimStatuses") or "deletionTimestamp" in pod["metadata"]:
            return
        made_by = self.api.find(f"{self.templates}/{template}")
        if made_by is None:
            return
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = _body("ResourceClaim", name, made_by["spec"]["spec"])
        labels = made_by["spec"].get("metadata", {}).get("labels", {})
        body["metadata"] |= {
            "labels": labels,
            "annotations": {MADE_FOR_POD: wanted["name"]},
            "ownerReferences": [owner],
        }
        self.api.apply(f"{self.claims}/{name}", body)
        told = [{"name": wanted["name"], "resourceClaimName": name}]
        pod.setdefault("status", {})["resourceClaimStatuses"] = told
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{pod['metadata']['name']}/status"
        self.api.patch(path, {"status": {"resourceClaimStatuses": told}})

    def _tend(self, claim: dict, users: list, alive: dict) -> None:
        path = f"{self.claims}/{claim['metadata']['name']}"
        status = claim.get("status") or {}
        reserved = [{"resource": "pods", "name": one["name"], "uid": one["uid"]} for one in users]
        going = "deletionTimestamp" in claim["metadata"]
        if not users and (status.get("allocation") or going):
            self.api.patch(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
            self.api.patch(path, {"metadata": {"finalizers": None}})
        elif users and not status.get("allocation") and not going:
            self._allocate(path, claim, reserved)
        elif users and sorted(one["uid"] for one in status.get("reservedFor") or []) != sorted(
            one["uid"] for one in reserved
        ):
            self.api.patch(f"{path}/status", {"status": {"reservedFor": reserved}})
        owners = claim["metadata"].get("ownerReferences") or []
        if owners and not going and owners[0]["uid"] not in alive:
            self.api.delete(path)

    def _allocate(self, path: str, claim: dict, reserved: list) -> None:
        taken = {
            result["device"]
            for one in self.api.list(f"{GROUP}/resourceclaims")
            for result in ((one.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
        }
        free = [name for name in self.uuids if name not in taken]
        if not free:
            return
        request = claim["spec"]["devices"]["requests"][0]["name"]
        config = [{"source": "FromClaim", **one} for one in claim["spec"]["devices"].get("config") or []]
        result = {"request": request, "driver": DRIVER, "pool": self.node, "device": free[0]}
        devices = {"results": [result], **({"config": config} if config else {})}
        self.shared.append(_sharing(devices))
        self.api.patch(path, {"metadata": {"finalizers": [KEPT]}})
        self.api.patch(f"{path}/status", {"status": {"allocation": {"devices": devices}, "reservedFor": reserved}})


@contextlib.contextmanager
def _deleted_meanwhile() -> Iterator[None]:
    """What is gone needs nothing more."""
    try:
        yield
    except ClusterError as error:
        if error.status != 404:
            raise


def _sharing(devices: dict) -> dict | None:
    told = [one["opaque"]["parameters"].get("sharing") for one in devices.get("config") or []]
    return told[0] if told else None


def _body(kind: str, name: str, spec: dict) -> dict:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
