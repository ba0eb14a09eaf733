"""What the status of pods and of their owner says: whether they serve, why they do not, how they ended, when a rollout is done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from harness.sharing.device_plugin import INSTANCES
from harness.sharing.mode import Object, PodSharing
from harness.sharing.node import condition, name, notes

OF_THE_NODE = "localhost/"
"""Images that no registry has."""
CONTAINER, SERVER = "replica", "server"
"""Names of the containers: the replica's, and that of the user's own server, where it asks one."""
_BY_CAUSE = (SERVER, CONTAINER)
"""A client may end because its server did."""
LAYER = "layer"
"""The init container that copies the library of a layer."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
PORT_ANNOTATION = "prometheus.io/port"
PARTS = ("gpu-fraction", "gpu-memory")
"""Annotations of KAI's scheduler."""
EXPERIMENT_LABEL = "gpu-sharing-harness/experiment"
GPU_LABEL = "gpu-sharing-harness/gpu"
"""Number of a GPU that is shared by a claim, where there are several, on its pods and their owner."""

# ErrImagePull would be tried again, ten seconds later; that is for the next attempt of the experiment to do.
HOPELESS_WAITS = {
    "ErrImagePull": "Check the image's name and that the node can pull it, or load it into the node's store.",
    "ImagePullBackOff": "Check the image's name and that the node can pull it, or load it into the node's store.",
    "RegistryUnavailable": "Is the image's registry running, and can the node reach it?",
    "ErrImageNeverPull": "Load the image into the node's store, or allow pulling with `image_pull_policy`.",
    "SignatureValidationFailed": "Use an image that is signed as the node's policy requires (/etc/containers/policy.json), or fix that.",
    "InvalidImageName": "Fix the image's name in the campaign file.",
    "CreateContainerConfigError": "Fix what the message names.",
    "CreateContainerError": "Look at the node's container runtime (journalctl -u crio).",
    "RunContainerError": "Look at the node's container runtime (journalctl -u crio), and at the runtime class.",
    "CrashLoopBackOff": "Run the workload by itself to see why: python -m harness.replica",
}

_WILL_NOT_COME = {"ErrImageNeverPull", "SignatureValidationFailed", "InvalidImageName"}
_OF_AN_IMAGE = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"} | _WILL_NOT_COME
_REFUSED = (
    *("manifest unknown", "name unknown", "not found", "no image found", "invalid reference format"),
    *("unauthorized", "denied", "StatusCode: 404", "x509: "),
    *("does not look like a TLS handshake", "server gave HTTP response to HTTPS client"),
)
"""What a registry that answers says, through CRI-O (as 1.37 was heard to say it) and containerd; after other words, such as of a
name that is not resolved, a limit of pulls or an error of the server, the next try may be better."""
_NOT_STARTED = frozenset({"CreateContainerError", "RunContainerError"})
"""Said of a container whose image does not have its command."""


@dataclass(frozen=True, slots=True)
class PodReplica:
    """One replica that serves, and where; a pod of the same name with another ``uid`` is another replica.

    ``neighbour``: the workload that it runs beside the measured ones, where it is not one of them.
    ``facts``: what the manifest keeps of it.
    """

    index: int
    pod: str
    uid: str
    node: str
    namespace: str
    port: int
    restarts: int = 0
    asks_a_server: bool = False
    neighbour: str = ""
    gpu_uuids: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """For sentences."""
        return f"replica {self.index}{f' of the neighbour {self.neighbour}' if self.neighbour else ''}"

    def on_gpus(self, uuids: tuple[str, ...], how: PodSharing, labels_denied: str = "") -> PodReplica:
        """The same, once it is known which GPUs it sees, how it shares them, and which labels of its node are not so."""
        denied = {"labels_denied": labels_denied} if labels_denied else {}
        facts = {**self.facts, "gpu_uuid": next(iter(uuids), ""), **how.facts(), **denied}
        return replace(self, gpu_uuids=uuids, facts=facts)


@dataclass(frozen=True, slots=True)
class End:
    """How a pod, or its container, ended."""

    exit_code: int | None
    reason: str
    container: str = CONTAINER


def is_ready(pod: Object) -> bool:
    """Whether it serves, and nobody is ending it."""
    return condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def container_status(pod: Object, container: str = CONTAINER) -> Mapping[str, Any]:
    """The status of one of its containers; empty before the kubelet has written one."""
    return _status_of(pod, "containerStatuses", container)


def _layer_status(pod: Object) -> Mapping[str, Any]:
    return _status_of(pod, "initContainerStatuses", LAYER)


def _status_of(pod: Object, kind: str, container: str) -> Mapping[str, Any]:
    entries = (pod.get("status") or {}).get(kind) or []
    return next((entry for entry in entries if entry.get("name") == container), {})


def _statuses(pod: Object) -> list[Mapping[str, Any]]:
    return [status for container in _BY_CAUSE if (status := container_status(pod, container))]


def restarts(pod: Object, container: str = CONTAINER) -> int:
    """How often one of its containers was started again."""
    return int(container_status(pod, container).get("restartCount") or 0)


def unhealthy_devices(pod: Object) -> list[str]:
    """Devices that its containers hold and their plugin calls unhealthy, as ``nvidia.com/gpu GPU-...::2``.

    Kubernetes 1.36 and newer tell (ResourceHealthStatus).
    """
    return [
        f"{resource['name']} {device['resourceID']}"
        for status in _statuses(pod)
        for resource in status.get("allocatedResourcesStatus") or []
        for device in resource.get("resources") or []
        if device.get("health") == "Unhealthy"
    ]


def in_order(replicas: Sequence[Object]) -> list[Object]:
    """The replicas in order: by a job's own index, else the name; of several shared GPUs one of each in turn."""
    by_gpu: dict[str, list[Object]] = {}
    for pod in sorted(replicas, key=lambda pod: (int(notes(pod).get(INDEX_ANNOTATION, "0")), name(pod))):
        by_gpu.setdefault(gpu_of(pod), []).append(pod)
    places = [(place, int(gpu or 0), pod) for gpu, its in by_gpu.items() for place, pod in enumerate(its)]
    return [pod for _, _, pod in sorted(places, key=lambda entry: entry[:2])]


def gpu_of(item: Object) -> str:
    """Number of the shared GPU that a pod or its owner is for; empty where there is no choice."""
    return str((item["metadata"].get("labels") or {}).get(GPU_LABEL, ""))


def as_replica(pod: Object, index: int, neighbour: str = "", extra: Collection[str] = ()) -> PodReplica:
    """A pod that serves, as a replica, of the measured workload or of a neighbour; ``extra``: resources that divide its GPU."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    containers = {str(entry["name"]): entry.get("resources") or {} for entry in pod["spec"]["containers"]}
    computes = next(containers[kind] for kind in _BY_CAUSE if kind in containers)
    limits = computes.get("limits") or {}
    devices = {
        **{key: str(value) for key, value in limits.items() if key in extra},
        **{key: text for key, text in notes(pod).items() if key in PARTS},
    }
    # More than one are whole GPUs, which a server that spans them does not name.
    whole = [value for key, value in limits.items() if key.startswith("nvidia.com/") and key not in extra]
    held = 0 if any(key.startswith(INSTANCES) for key in limits) else sum(map(int, whole))
    images = {
        "server_image_id": container_status(pod, SERVER).get("imageID"),
        "layer_image_id": _layer_status(pod).get("imageID"),  # none, or the replica's own
    }
    where = {"pod": name(pod), "node": pod["spec"].get("nodeName") or "", "namespace": metadata["namespace"]}
    return PodReplica(
        index=index,
        uid=str(metadata["uid"]),
        port=int(metadata["annotations"][PORT_ANNOTATION]),
        restarts=restarts(pod),
        asks_a_server=SERVER in containers,
        neighbour=neighbour,
        facts={
            "replica": index,
            **where,
            "image": pod["spec"]["containers"][0]["image"],
            "image_id": container_status(pod).get("imageID") or "",  # with its digest where the runtime tells
            "qos_class": status.get("qosClass") or "",
            "pod_ip": status.get("podIP") or "",
            "reserve": _of_the_node(computes.get("requests") or {}),
            "limit": _of_the_node(limits),
            **({"devices": devices} if devices else {}),
            **({"gpus_held": held} if held > 1 else {}),
            **{key: image for key, image in images.items() if image},
        },
        **where,
    )


def _of_the_node(resources: Mapping[str, Any]) -> dict[str, str]:
    """Those that are no devices."""
    return {key: str(value) for key, value in resources.items() if "/" not in key}


def ends_of(pod: Object, *, restarts_before: int = 0) -> Iterator[End]:
    """How its containers ended, that of the server first; none for one that runs."""
    why = _why_ended(pod)
    for container in _statuses(pod):
        for state in islice(_terminated(container, restarts_before), 1):
            reason = str(state.get("reason") or "")
            known = reason if reason not in {"", "Error", "Completed"} else ""
            yield End(int(state["exitCode"]), "; ".join(part for part in (known, why) if part), str(container["name"]))


def end_of(pod: Object, *, restarts_before: int = 0) -> End | None:
    """How this pod ended, or is being ended; None while nothing speaks against it."""
    status = pod.get("status") or {}
    why = _why_ended(pod)
    for end in ends_of(pod, restarts_before=restarts_before):
        return end
    if status.get("phase") == "Failed":
        return End(None, why or "the pod failed")
    if "deletionTimestamp" in pod["metadata"]:
        return End(None, why or "the pod was deleted")
    return None


def _terminated(container: Mapping[str, Any], restarts_before: int) -> Iterator[Mapping[str, Any]]:
    state = (container.get("state") or {}).get("terminated")
    if state:
        yield state
    last = (container.get("lastState") or {}).get("terminated")
    if last and int(container.get("restartCount") or 0) > restarts_before:
        yield last


def _why_ended(pod: Object) -> str:
    """``Evicted: The node was low on resource: memory.``, a drain, a preemption; empty when nobody says."""
    status, disruption = pod.get("status") or {}, condition(pod, "DisruptionTarget")
    if status.get("reason"):
        return _sentence(status["reason"], status.get("message"))
    if disruption.get("status") == "True":
        return _sentence(disruption.get("reason"), disruption.get("message"))
    return ""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod does not come up; ``away``: an image that may come by itself."""

    reason: str
    message: str
    advice: str
    of_an_image: bool = False
    away: bool = False

    def __str__(self) -> str:
        return _sentence(self.reason, self.message)


def obstacle(pod: Object) -> Obstacle | None:
    """What this pod waits for that will not come by itself; None while there is hope."""
    for image, waiting in _waiting(pod):
        reason, message = str(waiting["reason"]), str(waiting.get("message") or "")
        if reason in HOPELESS_WAITS:
            of_an_image = reason in _OF_AN_IMAGE
            refused = (
                reason in _WILL_NOT_COME or image.startswith(OF_THE_NODE) or any(words in message for words in _REFUSED)
            )
            return Obstacle(reason, message, HOPELESS_WAITS[reason], of_an_image, away=of_an_image and not refused)
    return None


def not_copied(pod: Object) -> Obstacle | None:
    """Why the library of a layer is not in this pod; None while nothing speaks against it."""
    status = _layer_status(pod)
    state = status.get("state") or {}
    if (state.get("terminated") or {}).get("exitCode") == 0:
        return None
    failed = next((end for end in _terminated(status, 0) if end["exitCode"]), None)
    waiting = state.get("waiting") or {}
    failed = waiting if waiting.get("reason") in _NOT_STARTED else failed
    if failed is None:
        return None
    copy = next(entry for entry in pod["spec"]["initContainers"] if entry["name"] == LAYER)
    return Obstacle(
        f"the layer's library {copy['command'][1]} could not be copied out of {copy['image']}",
        str(failed.get("message") or failed.get("reason") or ""),
        "Fix `preload` or `preload_image`: the image has to hold the file, readable by all, and the command `cp`.",
    )


def _waiting(pod: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What containers of it wait for, each with its image."""
    for status in (_layer_status(pod), *_statuses(pod)):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            yield str(status.get("image") or ""), waiting


def unschedulable(pod: Object) -> Obstacle | None:
    """Why no node takes this pod; None when one has, or nobody has looked yet."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or not scheduled.get("reason"):
        return None
    message = str(scheduled.get("message") or "")
    return Obstacle(str(scheduled["reason"]), message, "Use fewer replicas, free what is held, or add a node.")


def waits_for(pod: Object) -> str:
    """What a pod that does not serve yet is doing, in a few words."""
    for _, waiting in _waiting(pod):
        return _sentence(waiting["reason"], waiting.get("message"))
    if placeless := unschedulable(pod):
        return str(placeless)
    phase = str((pod.get("status") or {}).get("phase") or "not seen by a node yet")
    return "running, not serving yet" if phase == "Running" else phase


def _sentence(reason: object, message: object) -> str:
    text = " ".join(str(message or "").split()).rstrip(".")
    return f"{reason}: {text}" if text else str(reason or "")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rollout is: whether every replica serves, and there is none too many."""

    done: bool
    ended: tuple[Object, End] | None = None
    """A replica that ended by itself before all served, and how."""
    stuck: Obstacle | None = None
    hindrance: Obstacle | None = None
    """Why no node takes a pod, or none can be made, for now."""
    waiting: str = ""


def rollout(workload: Object, owned: Sequence[Object], replicas: int) -> Progress:
    """Judge a Deployment or a Job and its pods."""
    alive = [pod for pod in owned if "deletionTimestamp" not in pod["metadata"]]
    for pod in alive:
        if why := not_copied(pod):
            return Progress(False, stuck=why)
        if end := end_of(pod):
            return Progress(False, ended=(pod, end))
    ready = [pod for pod in alive if is_ready(pod)]
    return Progress(
        len(ready) == len(owned) == replicas and _complete(workload, replicas),
        stuck=next(filter(None, map(obstacle, alive)), None),
        hindrance=next(filter(None, map(unschedulable, alive)), _refusal(workload)),
        waiting=_missing(workload, owned, ready, replicas),
    )


def together(rollouts: Sequence[Progress]) -> Progress:
    """Several rollouts as one: done when all are, and hindered by whatever hinders one."""
    return Progress(
        all(rollout.done for rollout in rollouts),
        ended=next((rollout.ended for rollout in rollouts if rollout.ended), None),
        stuck=next((rollout.stuck for rollout in rollouts if rollout.stuck), None),
        hindrance=next((rollout.hindrance for rollout in rollouts if rollout.hindrance), None),
        waiting=next((rollout.waiting for rollout in rollouts if not rollout.done), ""),
    )


def suspended(workload: Object) -> bool:
    """Whether a queue, or whoever else, holds a Job back: no pod of it is made."""
    return bool((workload.get("spec") or {}).get("suspend"))


def _complete(workload: Object, replicas: int) -> bool:
    """What ``kubectl rollout status`` waits for, exactly."""
    status: dict[str, Any] = workload.get("status") or {}
    if workload["kind"] == "Job":
        return int(status.get("ready") or 0) == int(status.get("active") or 0) == replicas
    if int(status.get("observedGeneration") or 0) < int(workload["metadata"]["generation"]):
        return False
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return all(int(status.get(count) or 0) == replicas for count in counts)


def _refusal(workload: Object) -> Obstacle | None:
    """Why the controller cannot make pods at all: a quota, an admission policy, a missing account."""
    for kind in ("ReplicaFailure", "Failed", "FailureTarget"):
        entry = condition(workload, kind)
        if entry.get("status") == "True":
            return Obstacle(
                str(entry.get("reason") or kind),
                str(entry.get("message") or ""),
                "Fix what it names: a quota, a policy of the namespace, the service account or the runtime class.",
            )
    return None


def _missing(workload: Object, owned: Sequence[Object], ready: Sequence[Object], replicas: int) -> str:
    """The first thing that is missing."""
    if suspended(workload):
        return f"the {workload['kind']} is suspended: its queue has not admitted it"
    if len(owned) < replicas:
        return f"{len(owned)} of {replicas} pods have been made"
    for pod in owned:
        if pod not in ready:
            return f"{len(ready)} of {replicas} serve; {name(pod)}: {waits_for(pod)}"
    if len(owned) > replicas:
        return f"{len(owned)} pods are there instead of {replicas}"
    return f"the {workload['kind']} has not counted its {replicas} pods yet"
