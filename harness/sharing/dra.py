"""Sharing by claims: NVIDIA's DRA driver sets a GPU up when a claim is prepared, and nothing of a node is switched.

Replicas that share a GPU name one ResourceClaim; where each has a GPU or an instance of its own, all name one ResourceClaimTemplate.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from harness.errors import BackendError, Issue, IssueLevel, counted
from harness.sharing.mode import ClusterApi, ClusterSharing, Notify, Object, PodSharing
from harness.sharing.modes import mode_of
from harness.sharing.node import condition, full_name, labels, name, own, resources
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

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
    "Neither sees the other's allocations: remove one of them from the node. Without the device plugin: keep its DaemonSet "
    "from the node with a label. Without the driver: `sharing_by: device-plugin`, and the driver's DaemonSet likewise."
)


class ClaimedDevice(NamedTuple):
    """A device as claims and slices name it."""

    pool: str
    name: str


@dataclass(slots=True)
class Dra(ClusterSharing):
    """A claim for each shared GPU says how it is shared."""

    log_advice: ClassVar[str] = "Read the log of NVIDIA's DRA driver on that node."

    def collections(self) -> dict[str, str]:
        """Paths of claims and of their templates."""
        place = f"{API}/namespaces/{self.spec.namespace}"
        return {"ResourceClaim": f"{place}/resourceclaims", "ResourceClaimTemplate": f"{place}/resourceclaimtemplates"}

    def claims(self, experiment: ExperimentSpec, name: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """A claim of each GPU that replicas and neighbours share, or the template of their pods' claims."""
        gpus, template = _shared_gpus(experiment), mode_of(experiment.sharing).each_its_own
        request = {"name": _REQUEST, "exactly": {"deviceClassName": device_class(experiment.sharing)}}
        settings = mode_of(experiment.sharing).claim_parameters(experiment)
        opaque = {"driver": DRIVER, "parameters": settings}
        config = {} if settings is None else {"config": [{"requests": [_REQUEST], "opaque": opaque}]}
        wanted: dict[str, Any] = {"devices": {"requests": [request], **config}}
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
                "metadata": {"name": claim, "namespace": self.spec.namespace, "labels": dict(labels)},
                "spec": {"metadata": {"labels": dict(labels)}, "spec": wanted} if template else wanted,
            }
            for claim in ([name] if gpus == 1 else [f"{name}-gpu{number}" for number in range(gpus)])
        ]

    def check(self, api: ClusterApi, nodes: Sequence[Object], experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
        """Whether every experiment's claims can be had on the usable nodes."""
        if api.find(API) is None:
            message = "the API server has no resource.k8s.io/v1."
            advice = "Use Kubernetes 1.34 or newer, or: `sharing_by: device-plugin`."
            yield Issue(IssueLevel.ERROR, "claims", message, advice)
            return
        for device in dict.fromkeys(device_class(experiment.sharing) for experiment in experiments):
            if api.find(f"{API}/deviceclasses/{device}") is None:
                yield Issue(IssueLevel.ERROR, "claims", f"there is no DeviceClass {device}.", _DRIVER_ADVICE)
        usable, listed = _listed(api, nodes, self.spec)
        yield from _lent_twice(listed, usable.values(), self.spec)
        others = given(api.list(CLAIMS), self.campaign_id)
        needed: dict[Sharing, int] = {}
        for experiment in experiments:
            alone = mode_of(experiment.sharing).each_its_own
            count = experiment.cell.processes if alone else _shared_gpus(experiment)
            needed[experiment.sharing] = max(count, needed.get(experiment.sharing, 0))
        for mode, count in needed.items():
            yield from _check_mode(mode, count, listed, others, usable)

    def observe(
        self,
        api: ClusterApi,
        experiment: ExperimentSpec,
        nodes: Sequence[Object],  # noqa: ARG002 - the claims tell
        pods: Sequence[Object],
        statuses: Sequence[Object],
    ) -> list[PodSharing]:
        """By the claim that each pod has; one without claim, device or setting is refused."""
        claims = {name(entry): entry for entry in api.list(self.collections()["ResourceClaim"])}
        attributes_of = {device: attributes for _, device, attributes in devices(api.list(SLICES))}
        mode = mode_of(experiment.sharing)
        settings = mode.claim_parameters(experiment)
        seen: dict[ClaimedDevice, tuple[str, str]] = {}
        on: Counter[ClaimedDevice] = Counter()
        names = []
        for pod, status in zip(pods, statuses, strict=True):
            title, claim = f"pod {name(pod)}", _claim_of(pod)
            entry = claims.get(claim, {})
            has = _given(entry)
            reserved = {user["uid"] for user in (entry.get("status") or {}).get("reservedFor") or []}
            if not has or pod["metadata"]["uid"] not in reserved:
                raise _other(
                    f"{title} runs, and its claim {claim or '(none)'} does not show that a GPU was given to it"
                )
            device = has[0]
            other, of_other = seen.setdefault(device, (title, claim))
            if other != title and (of_other != claim or mode.each_its_own):
                raise _other(f"{title} and {other} were given the same device, {device.name} of {device.pool}")
            on[device] += 1
            configs = [config.get("opaque") or {} for config in _allocation(entry).get("config") or []]
            if settings is not None and settings not in [config.get("parameters") for config in configs]:
                raise _other(f"claim {claim} of {title} was allocated without its setting {settings['sharing']}")
            uuid, computes_on = _text(attributes_of.get(device, {}), "uuid"), status.get("device_uuid")
            if uuid and computes_on and uuid != computes_on and not mode.own_instance:
                raise _other(f"{title} computes on {computes_on}, and its claim {claim} gave it {uuid}")
            names.append(claim)
        _refuse_uneven(experiment, on)
        return [PodSharing(experiment.cell.mode, claim=claim) for claim in names]


def reference(experiment: ExperimentSpec, name: str) -> dict[str, str]:
    """How a pod names its claim."""
    template = mode_of(experiment.sharing).each_its_own
    return {"name": _REQUEST, "resourceClaimTemplateName" if template else "resourceClaimName": name}


class Preparing:
    """Why pods that have a node do not get the devices of their claims: told at once, and given up where it will not come right."""

    def __init__(self, notice: Notify) -> None:
        self._notice = notice
        self._noticed: set[str] = set()
        self._since_s = math.inf

    def look(self, pods: Sequence[Object], warnings: Sequence[Object], now_s: float) -> None:
        """Read what kubelets say of these pods, in events. Raises BackendError where no waiting helps, or for too long."""
        why = _unprepared(pods, warnings)
        gate = _GATE in why
        if gate or any(words in why for words in _NEVER):
            raise BackendError(
                f"NVIDIA's DRA driver refuses the claim: {why}",
                advice="Turn the feature gate on that it names (docs/cluster.md: TimeSlicingSettings, MPSSupport), or leave that mode out."
                if gate
                else "Its version, or its settings, do not know what this mode asks for (docs/cluster.md): change them, or leave that mode out.",
            )
        if why and why not in self._noticed:
            self._noticed.add(why)
            self._notice(f"A claim is not prepared, and the kubelet tries again: {why}")
        self._since_s = min(self._since_s, now_s) if why and _COMING not in why else math.inf
        if now_s >= self._since_s + UNPREPARED_S:
            raise BackendError(
                f"The claim has not been prepared for {now_s - self._since_s:.0f} s: {why}",
                advice="Is NVIDIA's DRA driver running on that node? Read its log there, and: kubectl describe pods",
            )


def devices(slices: Sequence[Object]) -> Iterator[tuple[str, ClaimedDevice, Object]]:
    """Node, name and attributes of every device that NVIDIA's driver lists; of each pool what is newest."""
    ours = [entry["spec"] for entry in slices if entry["spec"]["driver"] == DRIVER]
    newest: Counter[str] = Counter()
    for entry in ours:
        pool = entry["pool"]
        newest[pool["name"]] = max(newest[pool["name"]], int(pool["generation"]))
    for entry in ours:
        pool = entry["pool"]
        if int(pool["generation"]) == newest[pool["name"]]:
            for device in entry.get("devices") or []:
                node = str(entry.get("nodeName") or "")
                yield node, ClaimedDevice(pool["name"], device["name"]), device.get("attributes") or {}


def of_class(attributes: Object, sharing: Sharing) -> bool:
    """Whether a device is one that a mode's claims ask for: a whole GPU, or a MIG instance."""
    return _text(attributes, "type") == device_class(sharing).partition(".")[0]


def given(claims: Sequence[Object], campaign_id: str) -> dict[ClaimedDevice, str]:
    """The devices that claims of others have, and the claim of each, ``namespace/name``."""
    return {device: full_name(claim) for claim in claims if not own(claim, campaign_id) for device in _given(claim)}


def device_class(sharing: Sharing) -> str:
    """Of the devices that a mode's claims ask for."""
    return INSTANCE_CLASS if mode_of(sharing).own_instance else GPU_CLASS


def check_lent_twice(api: ClusterApi, nodes: Sequence[Object], spec: KubernetesSpec) -> Iterator[Issue]:
    """Whether the driver lists GPUs of nodes whose device plugin lends them, for campaigns without claims. Raises ClusterError."""
    if spec.gpus_per_replica and api.find(API) is not None:
        usable, listed = _listed(api, nodes, spec)
        yield from _lent_twice(listed, usable.values(), spec)


def _shared_gpus(experiment: ExperimentSpec) -> int:
    """How many GPUs are shared, of which each has a claim; 1 where claims are made for each pod."""
    return 1 if mode_of(experiment.sharing).each_its_own else min(experiment.gpus, experiment.cell.processes)


def _listed(
    api: ClusterApi, nodes: Sequence[Object], spec: KubernetesSpec
) -> tuple[dict[str, Object], list[tuple[str, ClaimedDevice, Object]]]:
    """The selected ones of some nodes, and what the driver lists of them."""
    usable = {name(node): node for node in nodes if spec.takes(dict(labels(node)))}
    return usable, [entry for entry in devices(api.list(SLICES)) if entry[0] in usable]


def _unprepared(pods: Sequence[Object], warnings: Sequence[Object]) -> str:
    """What was said last of a pod whose claims are not prepared; empty: nothing."""
    names = {name(pod) for pod in pods if not _prepared(pod)}
    events = [event for event in warnings if event.get("reason") == UNPREPARED]
    ours = [event for event in events if event["involvedObject"].get("name") in names]
    latest = max(ours, key=lambda event: str(event.get("lastTimestamp") or ""), default={})
    return _OF_A_POD.sub("", " ".join(str(latest.get("message") or "").split()))


def _prepared(pod: Object) -> bool:
    """The kubelet makes a pod's sandbox when it has prepared its claims."""
    sandbox = condition(pod, "PodReadyToStartContainers").get("status") == "True"
    return sandbox or (pod.get("status") or {}).get("phase") not in {None, "Pending"}


def _refuse_uneven(experiment: ExperimentSpec, on: Mapping[ClaimedDevice, int]) -> None:
    """Replicas that share several GPUs are on all of them, as many on each as the number allows. Raises BackendError."""
    gpus = min(experiment.gpus, experiment.replicas)
    even = sorted((experiment.replicas + place) // gpus for place in range(gpus))
    if gpus > 1 and not mode_of(experiment.sharing).each_its_own and sorted(on.values()) != even:
        where = ", ".join(f"{count} on {device.name} of {device.pool}" for device, count in on.items())
        raise _other(f"{experiment.replicas} replicas were to share {gpus} GPUs evenly, and they are {where}")


def _claim_of(pod: Object) -> str:
    """Name of a pod's claim: its own, or the one made for it; empty where there is none yet."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    named = [*made, *(pod["spec"].get("resourceClaims") or [])]
    return next((entry["resourceClaimName"] for entry in named if entry.get("resourceClaimName")), "")


def _allocation(claim: Object) -> Object:
    return ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}


def _given(claim: Object) -> list[ClaimedDevice]:
    results = _allocation(claim).get("results") or []
    return [ClaimedDevice(entry["pool"], entry["device"]) for entry in results if entry["driver"] == DRIVER]


def _text(attributes: Object, key: str) -> str:
    return str((attributes.get(key) or attributes.get(f"{DRIVER}/{key}") or {}).get("string") or "")


def _other(what: str) -> BackendError:
    return BackendError(
        f"{what}.",
        advice="Read the log of NVIDIA's DRA driver on that node, and: kubectl get resourceclaims --output yaml",
    )


def _check_mode(
    mode: Sharing,
    needed: int,
    listed: Sequence[tuple[str, ClaimedDevice, Object]],
    others: Mapping[ClaimedDevice, str],
    nodes: Iterable[str],
) -> Iterator[Issue]:
    fit = [device for _, device, attributes in listed if of_class(attributes, mode)]
    what = "MIG instance" if mode_of(mode).own_instance else "GPU"
    if not fit:
        message = f"the ResourceSlices of {DRIVER} list no {what} on {', '.join(nodes) or 'any node'}."
        yield Issue(IssueLevel.ERROR, "claims", message, _DRIVER_ADVICE, away=True)  # as while the driver restarts
        return
    free = [device for device in fit if device not in others]
    if len(free) < needed:
        held = ", ".join(sorted({others[device] for device in fit if device in others}))
        message = f"{mode.value} needs {counted(needed, what)}, and {len(free)} of {len(fit)} are free"
        message += f"; the others belong to {held}." if held else "."
        yield Issue(IssueLevel.ERROR, "gpus", message, "Use fewer replicas, or delete those claims.")


def _lent_twice(
    listed: Sequence[tuple[str, ClaimedDevice, Object]], nodes: Iterable[Object], spec: KubernetesSpec
) -> Iterator[Issue]:
    by_driver = {node for node, _, _ in listed}
    for node in nodes:
        plugins = [
            f"{count} {resource}"
            for resource, count in resources(node).items()
            if (resource.startswith("nvidia.com/") or resource == spec.gpu_resource) and int(count) > 0
        ]
        if plugins and name(node) in by_driver:
            message = (
                f"node {name(node)} allocates its GPUs twice: {', '.join(plugins)} by the device plugin, and "
                "the same to claims by the DRA driver."
            )
            yield Issue(IssueLevel.ERROR, "claims", message, _TWICE_ADVICE)
