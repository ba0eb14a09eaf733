"""The claims by which NVIDIA's DRA driver gives replicas their GPUs, and what a claim says of how its GPU is shared.

Replicas that share a GPU name one ResourceClaim, and several shared GPUs have one each; where each replica has a GPU or an
instance of its own, their pods get a claim each from one ResourceClaimTemplate. Nothing of a node is switched: the driver
sets a GPU up when a claim is prepared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.backends.base import Notify
from harness.backends.kubernetes.api import Api, OwnedObject
from harness.backends.kubernetes.pods import own
from harness.errors import BackendError, Issue, IssueLevel, counted
from harness.sharing.modes import mode_of
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

Object = Mapping[str, Any]

API = "/apis/resource.k8s.io/v1"
SLICES = f"{API}/resourceslices"
CLAIMS = f"{API}/resourceclaims"
DRIVER = "gpu.nvidia.com"
GPU_CLASS, INSTANCE_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
UNPREPARED = "FailedPrepareDynamicResources"
"""The kubelet's reason of an event; with what the driver says."""
UNPREPARED_S = 60.0
"""How long the driver may refuse: the kubelet asks it every 10 to 15 s, and a driver that is started anew answers within that."""
_GATE = "feature gate"
_NEVER = (
    "error validating GPU config",
    "error decoding config parameters",
    "cannot apply GpuConfig",
    "not yet supported",
)
"""The driver's words where it will not prepare this claim, however often it is asked."""
_COMING = "not yet ready"
"""Its words while the daemon of MPS starts, whose image may have to be pulled: as long as replicas may take."""
_OF_A_POD = re.compile(r"^Failed to prepare dynamic resources: ")
_REQUEST = "gpu"
"""Name of the one request of a claim, and of a pod's one claim."""


_DRIVER_ADVICE = "Install NVIDIA's DRA driver (docs/cluster.md has its settings), or: `sharing_by: device-plugin`."
_TWICE_ADVICE = (
    "Neither knows what the other gives away: take one of them from the node. Without the device plugin: keep its DaemonSet "
    "from the node with a label. Without the driver: `sharing_by: device-plugin`, and the driver's DaemonSet likewise."
)


class ClaimedDevice(NamedTuple):
    """A device as claims and slices name it."""

    pool: str
    name: str


def collections(namespace: str) -> dict[str, str]:
    """Paths of the kinds that are made, by kind."""
    place = f"{API}/namespaces/{namespace}"
    return {"ResourceClaim": f"{place}/resourceclaims", "ResourceClaimTemplate": f"{place}/resourceclaimtemplates"}


def names(experiment: ExperimentSpec, name: str) -> tuple[str, ...]:
    """Of the claim of each GPU that replicas and neighbours share, or of the template of their pods' claims.

    Args:
        experiment: with its neighbours.
        name: of the attempt.
    """
    gpus = shared_gpus(experiment)
    return (name,) if gpus == 1 else tuple(f"{name}-gpu{number}" for number in range(gpus))


def shared_gpus(experiment: ExperimentSpec) -> int:
    """How many GPUs are shared, of which each has a claim; 1 where claims are made for each pod."""
    return 1 if mode_of(experiment.sharing).each_its_own else min(experiment.gpus, experiment.cell.processes)


def claim(experiment: ExperimentSpec, spec: KubernetesSpec, name: str, labels: Mapping[str, str]) -> OwnedObject:
    """The claim, or template, of this name."""
    asked = {"devices": _devices(experiment)}
    kind = "ResourceClaimTemplate" if mode_of(experiment.sharing).each_its_own else "ResourceClaim"
    metadata = {"name": name, "namespace": spec.namespace, "labels": dict(labels)}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {"metadata": {"labels": dict(labels)}, "spec": asked}
        if mode_of(experiment.sharing).each_its_own
        else asked,
    }
    return OwnedObject(f"{collections(spec.namespace)[kind]}/{name}", body)


def reference(experiment: ExperimentSpec, name: str) -> dict[str, str]:
    """How a pod names its claim."""
    key = "resourceClaimTemplateName" if mode_of(experiment.sharing).each_its_own else "resourceClaimName"
    return {"name": _REQUEST, key: name}


def observe(
    api: Api, spec: KubernetesSpec, experiment: ExperimentSpec, found: Sequence[Object], statuses: Sequence[Object]
) -> list[str]:
    """The claim by which each pod is seen to have its GPU, shared as the experiment wants it.

    Args:
        api: of the cluster.
        spec: how replicas stand in it.
        experiment: what is measured.
        found: the pods.
        statuses: what each of them says of itself.

    Raises:
        BackendError: a pod does not have the claim, the device or the setting that it should have.
    """
    claims = {one["metadata"]["name"]: one for one in api.list(collections(spec.namespace)["ResourceClaim"])}
    listed = {device: attributes for _, device, attributes in devices(api.list(SLICES))}
    seen: dict[ClaimedDevice, tuple[str, str]] = {}
    on: Counter[ClaimedDevice] = Counter()
    told = []
    for pod, status in zip(found, statuses, strict=True):
        title, name = f"pod {pod['metadata']['name']}", _claim_of(pod)
        one = claims.get(name, {})
        given = _given(one)
        if not given or pod["metadata"]["uid"] not in _reserved(one):
            raise _other(f"{title} runs, and its claim {name or '(none)'} does not show that a GPU was given to it")
        [device, *_more] = given
        other, of_other = seen.setdefault(device, (title, name))
        if other != title and (of_other != name or mode_of(experiment.sharing).each_its_own):
            raise _other(f"{title} and {other} were given the same device, {device.name} of {device.pool}")
        on[device] += 1
        asked = mode_of(experiment.sharing).claim_parameters(experiment)
        if asked is not None and asked not in _configs(one):
            raise _other(f"claim {name} of {title} was allocated without its setting {asked['sharing']}")
        uuid, has = _text(listed.get(device, {}), "uuid"), status.get("device_uuid")
        if uuid and has and uuid != has and not mode_of(experiment.sharing).own_instance:
            raise _other(f"{title} computes on {has}, and its claim {name} gave it {uuid}")
        told.append(name)
    _refuse_uneven(experiment, on)
    return told


class Preparing:
    """Why pods that have a node do not get the devices of their claims: told at once, and given up where it will not come right.

    Args:
        notice: told what is tried again.
    """

    def __init__(self, notice: Notify) -> None:
        self._notice = notice
        self._told: set[str] = set()
        self._since_s = math.inf

    def look(self, found: Sequence[Object], warnings: Sequence[Object], now_s: float) -> None:
        """Read what kubelets say of these pods.

        Args:
            found: the pods.
            warnings: the events about them.
            now_s: seconds since the epoch.

        Raises:
            BackendError: what the driver says comes right by nobody's waiting, or it has said the same for too long.
        """
        why = _unprepared(found, warnings)
        _refuse_setting(why)
        if why and why not in self._told:
            self._told.add(why)
            self._notice(f"A claim is not prepared, and the kubelet tries again: {why}")
        self._since_s = min(self._since_s, now_s) if why and _COMING not in why else math.inf
        if now_s >= self._since_s + UNPREPARED_S:
            raise BackendError(
                f"The claim has not been prepared for {now_s - self._since_s:.0f} s: {why}",
                advice="Is NVIDIA's DRA driver running on that node? Read its log there, and: kubectl describe pods",
            )


def devices(slices: Sequence[Object]) -> Iterator[tuple[str, ClaimedDevice, Object]]:
    """Node, name and attributes of every device that NVIDIA's driver lists; of each pool what is newest."""
    ours = [one["spec"] for one in slices if one["spec"]["driver"] == DRIVER]
    newest: dict[str, int] = {}
    for one in ours:
        pool = one["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), int(pool["generation"]))
    for one in ours:
        pool = one["pool"]
        if int(pool["generation"]) == newest[pool["name"]]:
            for each in one.get("devices") or []:
                yield (
                    str(one.get("nodeName") or ""),
                    ClaimedDevice(pool["name"], each["name"]),
                    each.get("attributes") or {},
                )


def of_class(attributes: Object, sharing: Sharing) -> bool:
    """Whether a device is one that a mode's claims ask for: a whole GPU, or a MIG instance."""
    return _text(attributes, "type") == device_class(sharing).partition(".")[0]


def given(claims: Sequence[Object], campaign_id: str) -> dict[ClaimedDevice, str]:
    """The devices that claims of others have, and the claim of each, ``namespace/name``."""
    return {
        device: f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        for one in claims
        if not own(one, campaign_id)
        for device in _given(one)
    }


def device_class(sharing: Sharing) -> str:
    """Of the devices that a mode's claims ask for."""
    return INSTANCE_CLASS if mode_of(sharing).own_instance else GPU_CLASS


def _unprepared(found: Sequence[Object], warnings: Sequence[Object]) -> str:
    """What was said last of a pod whose claims are not prepared; empty: nothing."""
    names = {one["metadata"]["name"] for one in found if not _prepared(one)}
    told = [one for one in warnings if one.get("reason") == UNPREPARED and one["involvedObject"].get("name") in names]
    latest = max(told, key=lambda event: str(event.get("lastTimestamp") or ""), default={})
    return _OF_A_POD.sub("", " ".join(str(latest.get("message") or "").split()))


def _prepared(pod: Object) -> bool:
    """The kubelet makes a pod's sandbox when it has prepared its claims."""
    status = pod.get("status") or {}
    sandbox = any(
        one.get("type") == "PodReadyToStartContainers" and one.get("status") == "True"
        for one in status.get("conditions") or []
    )
    return sandbox or status.get("phase") not in {None, "Pending"}


def _refuse_setting(why: str) -> None:
    if _GATE in why:
        raise BackendError(
            f"NVIDIA's DRA driver refuses the claim: {why}",
            advice="Turn the feature gate on that it names (docs/cluster.md: TimeSlicingSettings, MPSSupport), or leave that mode out.",
        )
    if any(words in why for words in _NEVER):
        raise BackendError(
            f"NVIDIA's DRA driver refuses the claim: {why}",
            advice="Its version, or its settings, do not know what this mode asks for (docs/cluster.md): change them, or leave that mode out.",
        )


def _refuse_uneven(experiment: ExperimentSpec, on: Mapping[ClaimedDevice, int]) -> None:
    """Replicas that share several GPUs are on all of them, as many on each as the number allows. Raises BackendError."""
    gpus = min(experiment.gpus, experiment.replicas)
    if gpus > 1 and not mode_of(experiment.sharing).each_its_own:
        even = sorted((experiment.replicas + place) // gpus for place in range(gpus))
        if sorted(on.values()) != even:
            where = ", ".join(f"{count} on {device.name} of {device.pool}" for device, count in on.items())
            raise _other(f"{experiment.replicas} replicas were to share {gpus} GPUs evenly, and they are {where}")


def _devices(experiment: ExperimentSpec) -> dict[str, Any]:
    request = {"name": _REQUEST, "exactly": {"deviceClassName": device_class(experiment.sharing)}}
    asked = mode_of(experiment.sharing).claim_parameters(experiment)
    if asked is None:
        return {"requests": [request]}
    config = {"requests": [_REQUEST], "opaque": {"driver": DRIVER, "parameters": asked}}
    return {"requests": [request], "config": [config]}


def _claim_of(pod: Object) -> str:
    """Name of a pod's claim: its own, or the one made for it; empty where there is none yet."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    named = [*made, *(pod["spec"].get("resourceClaims") or [])]
    return next((one["resourceClaimName"] for one in named if one.get("resourceClaimName")), "")


def _allocation(one: Object) -> Object:
    return ((one.get("status") or {}).get("allocation") or {}).get("devices") or {}


def _given(one: Object) -> list[ClaimedDevice]:
    results = _allocation(one).get("results") or []
    return [ClaimedDevice(each["pool"], each["device"]) for each in results if each["driver"] == DRIVER]


def _configs(one: Object) -> list[Object]:
    return [(each.get("opaque") or {}).get("parameters") or {} for each in _allocation(one).get("config") or []]


def _reserved(one: Object) -> set[str]:
    return {each["uid"] for each in (one.get("status") or {}).get("reservedFor") or []}


def _text(attributes: Object, name: str) -> str:
    return str((attributes.get(name) or attributes.get(f"{DRIVER}/{name}") or {}).get("string") or "")


def _other(what: str) -> BackendError:
    return BackendError(
        f"{what}.",
        advice="Read the log of NVIDIA's DRA driver on that node, and: kubectl get resourceclaims --output yaml",
    )


def check_claims(
    api: Api, usable: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str
) -> Iterator[Issue]:
    """Whether every experiment's claims can be had on the usable nodes. Raises ClusterError."""
    if api.find(API) is None:
        message = "the API server has no resource.k8s.io/v1."
        yield Issue(
            IssueLevel.ERROR, "claims", message, "Use Kubernetes 1.34 or newer, or: `sharing_by: device-plugin`."
        )
        return
    for name in dict.fromkeys(device_class(one.sharing) for one in experiments):
        if api.find(f"{API}/deviceclasses/{name}") is None:
            yield Issue(IssueLevel.ERROR, "claims", f"there is no DeviceClass {name}.", _DRIVER_ADVICE)
    nodes = {one["metadata"]["name"]: one for one in usable if spec.takes(one["metadata"].get("labels") or {})}
    listed = [each for each in devices(api.list(SLICES)) if each[0] in nodes]
    yield from _lent_twice(listed, nodes.values(), spec)
    others = given(api.list(CLAIMS), campaign_id)
    for mode in dict.fromkeys(one.sharing for one in experiments):
        own = mode_of(mode).each_its_own
        needed = max(one.cell.processes if own else shared_gpus(one) for one in experiments if one.sharing is mode)
        yield from _check_mode(mode, needed, listed, others, nodes.keys())


def check_lent_twice(api: Api, usable: Sequence[Object], spec: KubernetesSpec) -> Iterator[Issue]:
    """Whether the driver lists GPUs of nodes whose device plugin lends them, for campaigns without claims. Raises ClusterError."""
    if spec.gpus_per_replica and api.find(API) is not None:
        nodes = {one["metadata"]["name"]: one for one in usable if spec.takes(one["metadata"].get("labels") or {})}
        listed = [each for each in devices(api.list(SLICES)) if each[0] in nodes]
        yield from _lent_twice(listed, nodes.values(), spec)


def _check_mode(
    mode: Sharing,
    needed: int,
    listed: Sequence[tuple[str, ClaimedDevice, Object]],
    others: dict[ClaimedDevice, str],
    nodes: Iterable[str],
) -> Iterator[Issue]:
    fit = [device for _, device, attributes in listed if of_class(attributes, mode)]
    what = "MIG instance" if mode_of(mode).own_instance else "GPU"
    if not fit:
        message = f"the ResourceSlices of {DRIVER} list no {what} on {', '.join(nodes) or 'any node'}."
        yield Issue(IssueLevel.ERROR, "claims", message, _DRIVER_ADVICE, away=True)  # as while the driver restarts
        return
    free = [device for device in fit if device not in others]
    held = sorted({others[device] for device in fit if device in others})
    if len(free) < needed:
        message = f"{mode.value} needs {counted(needed, what)}, and {len(free)} of {len(fit)} are free"
        holders = f"; the others belong to {', '.join(held)}" if held else ""
        yield Issue(IssueLevel.ERROR, "gpus", f"{message}{holders}.", "Use fewer replicas, or delete those ")


def _lent_twice(
    listed: Sequence[tuple[str, ClaimedDevice, Object]], nodes: Iterable[Object], spec: KubernetesSpec
) -> Iterator[Issue]:
    by_driver = {name for name, _, _ in listed}
    for node in nodes:
        lent = (node.get("status") or {}).get("allocatable") or {}
        plugins = {
            name: count for name, count in lent.items() if name.startswith("nvidia.com/") or name == spec.gpu_resource
        }
        both = [f"{count} {name}" for name, count in plugins.items() if int(count) > 0]
        if both and node["metadata"]["name"] in by_driver:
            message = (
                f"node {node['metadata']['name']} lends its GPUs twice: {', '.join(both)} by the device plugin, and "
                "the same to claims by the DRA driver."
            )
            yield Issue(IssueLevel.ERROR, "claims", message, _TWICE_ADVICE)
