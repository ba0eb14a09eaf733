"""The nodes: are they fit, have they room for the pods and for nobody else, and what machines are they?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from harness.backends.base import IMAGE
from harness.backends.kubernetes.admission import COMPUTE, OF_BYTES, Amounts, PlannedPods, pod_resources
from harness.backends.kubernetes.pods import OF_THE_NODE
from harness.errors import Issue, IssueLevel, counted
from harness.results.manifest import Gpu, Host, Provenance, Software
from harness.sharing.lending import PRODUCT_LABEL
from harness.sharing.mode import Object
from harness.sharing.mps import MEMORY_LABEL
from harness.sharing.node import (
    GPU_COUNT_LABEL,
    HOLDERS_ADVICE,
    condition,
    condition_in_words,
    ended,
    full_name,
    labels,
    name,
    offered,
    own,
    resources,
    selected,
    takes,
    unusable,
    withdrawn,
)
from harness.spec import KubernetesSpec
from harness.spec.pods import amount, quantity

PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
CLUSTERS_TAINTS = "node.kubernetes.io/"
"""The cluster itself sets and removes these, with the node's conditions."""
LISTED_IMAGES = 50
"""A node's status names this many of its images, the largest; with fewer, what is not named is not there."""
_FAILED_GPU_ADVICE = (
    "Read its log. After an Xid it withdraws one slice and still advertises the others of the same GPU: "
    "reset that GPU, or reboot the node, before anything is measured."
)
_ROOM_ADVICE = "Reserve less, use fewer replicas, or nodes that have more: `kubernetes.node_selector`."
_NAMED = 5
"""How many of a kind a sentence names."""
_PodKind = tuple[tuple[str, Decimal], ...]
"""What a pod asks for of a node, by resource."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What pods can be given of one node, and what pods of others, ``namespace/pod``, hold of it."""

    name: str
    lends: Amounts
    held: Mapping[str, Amounts]

    def taken(self, resource: str) -> Decimal:
        """What others hold of a resource."""
        return sum((amounts.get(resource, Decimal()) for amounts in self.held.values()), Decimal())

    def fits(self, pod: Mapping[str, Decimal], *, empty: bool = False) -> int:
        """How many pods that ask for this have room; ``empty``: were nobody else there."""
        free = {key: self.lends.get(key, Decimal()) - (0 if empty else self.taken(key)) for key in pod}
        return max(0, min(int(free[key] // value) for key, value in pod.items()))


def rooms(nodes: Sequence[Object], pods: Sequence[Object], campaign_id: str) -> list[NodeRoom]:
    """What each of these nodes has; the campaign's own pods are gone before anything is made."""
    held: dict[str, dict[str, Amounts]] = defaultdict(dict)
    for pod in pods:
        if not ended(pod) and not own(pod, campaign_id):
            held[pod["spec"].get("nodeName") or ""][full_name(pod)] = pod_resources(pod["spec"]).requests
    return [
        NodeRoom(
            name(node),
            {key: value for key, text in resources(node).items() if (value := amount(text)) is not None},
            held[name(node)],
        )
        for node in nodes
    ]


def check_nodes(nodes: Sequence[Object], spec: KubernetesSpec) -> Iterator[Issue]:
    """Whether there is a node to run on, and what the nodes say of themselves."""
    wanted = [node for node in nodes if selected(node, spec)]
    if not wanted:
        terms = [f"{key}={value}" for key, value in spec.node_selector.items()]
        terms += [" ".join((term.key, term.operator, *term.values)) for term in spec.node_affinity]
        message = f"no node has the labels {', '.join(terms)}." if terms else "the cluster has no node."
        advice = "Check the context, `kubernetes.node_selector` and `node_affinity`."
        yield Issue(IssueLevel.ERROR, "nodes", message, advice)
        return
    usable = [node for node in wanted if not unusable(node, spec)]
    for node in wanted:
        # A control plane that takes no pods is nothing to remark upon while other nodes do.
        apart = usable and "node-role.kubernetes.io/control-plane" in labels(node)
        if (why := unusable(node, spec)) and not apart:
            severity = IssueLevel.WARNING if usable else IssueLevel.ERROR
            advice = "Fix the node: kubectl describe node shows more."
            yield Issue(severity, "nodes", f"node {name(node)} takes no replica: {why}.", advice)
    for node in usable:
        for kind in pressures(node):
            message = f"node {name(node)} is under {condition_in_words(condition(node, kind))}."
            advice = "Free what it lacks first: replicas would be evicted in mid-experiment."
            yield Issue(IssueLevel.ERROR, "pressure", message, advice)


def check_gpus(
    nodes: Sequence[Object], pods: Sequence[Object], spec: KubernetesSpec, replicas: int, campaign_id: str
) -> Iterator[Issue]:
    """Whether the slices are enough for ``replicas``, and who else has some."""
    resource = spec.slice_resource
    if not resource:
        return
    usable = [node for node in nodes if takes(node, spec)]
    less = [why for node in usable if (why := withdrawn(node, resource))]
    for why in less:
        yield Issue(IssueLevel.WARNING, "gpus", f"{why}.", _FAILED_GPU_ADVICE)
    has = rooms(usable, pods, campaign_id)
    lending = {room.name: int(room.lends[resource]) for room in has if room.lends.get(resource)}
    if not lending:
        message = f"none of {len(has)} usable nodes advertises {resource}."
        lent = {key for room in has for key, number in room.lends.items() if key.startswith("nvidia.com/") and number}
        advice = "Is the device plugin running? kubectl get pods --all-namespaces, and its log, show why not."
        if less:
            message, advice = f"{message.removesuffix('.')}: {'; '.join(less)}.", _FAILED_GPU_ADVICE
        if lent:
            advice = f"They advertise {', '.join(sorted(lent))}: name that in `kubernetes.gpu_resource`."
        yield Issue(IssueLevel.ERROR, "gpus", message, advice)
        return
    fitting = sum(room.fits({resource: Decimal(spec.gpus_per_replica)}) for room in has)
    if fitting < replicas:
        offers = ", ".join(f"{node} offers {slices}" for node, slices in lending.items())
        held = sum(room.taken(resource) for room in has)
        yield Issue(
            IssueLevel.ERROR,
            "gpus",
            f"{counted(replicas, 'replica', 'need')} {replicas * spec.gpus_per_replica} {resource}, and there is room for {fitting}: "
            f"{offers}{f', of which others hold {held}' if held else ''}.",
            "Use fewer replicas, or more slices: harness node sharing time-slicing --replicas N.",
        )
    if there := [pod for room in has for pod, amounts in room.held.items() if amounts.get(resource)]:
        more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        message = f"pods that are not of this campaign hold {resource}: {', '.join(there[:_NAMED])}{more}."
        yield Issue(IssueLevel.WARNING, "gpus", message, HOLDERS_ADVICE)
    yield from check_devices(nodes, spec)


def check_devices(nodes: Sequence[Object], spec: KubernetesSpec) -> Iterator[Issue]:
    """Whether the nodes have as many GPUs as the campaign expects, where it does."""
    texts = {name(node): str(labels(node).get(GPU_COUNT_LABEL, "")) for node in nodes if takes(node, spec)}
    counts = {node: int(text) for node, text in texts.items() if text.isdigit()}
    if counts:
        yield from check_number(sum(counts.values()), spec, ", ".join(f"{node}: {n}" for node, n in counts.items()))


def check_number(gpus: int, spec: KubernetesSpec, where: str) -> Iterator[Issue]:
    """Whether there are as many GPUs as the campaign expects, where it does; ``where`` they were seen."""
    expected = spec.expected_gpus
    if expected is not None and gpus != expected:
        message = f"{counted(gpus, 'GPU')} where {expected} {'was' if expected == 1 else 'were'} expected ({where})."
        advice = "Replicas are spread over all that is there: narrow `kubernetes.node_selector`, or expect it."
        yield Issue(IssueLevel.WARNING, "gpus", message, advice)


def check_room(
    nodes: Sequence[Object],
    pods: Callable[[], Sequence[Object]],
    experiments: Sequence[Sequence[PlannedPods]],
    campaign_id: str,
) -> Iterator[Issue]:
    """What cannot be placed for its processors, memory or disk, whatever the scheduler does; it may refuse more.

    ``nodes``: that are fit to take pods; ``pods`` of the cluster are asked for where any of the planned ones reserves something.
    """
    if not any(map(_kinds, experiments)):
        return
    has = dict(zip(map(name, nodes), rooms(nodes, pods(), campaign_id), strict=True))
    most: dict[_PodKind, list[PlannedPods]] = {}
    needed: Amounts = {}
    for planned in experiments:  # one at a time, so that the largest decides
        kinds = _kinds(planned)
        for kind, alike in kinds.items():
            most[kind] = max(most.get(kind, []), alike, key=_number)
        for key in COMPUTE if len(kinds) > 1 else ():
            total = sum((dict(kind).get(key, Decimal()) * _number(alike) for kind, alike in kinds.items()), Decimal())
            needed[key] = max(total, needed.get(key, Decimal()))
    alone: list[Issue] = []
    for kind, alike in most.items():
        fit = [has[name(node)] for node in nodes if selected(node, alike[0].group.spec)]
        alone += _check_kind(dict(kind), alike, fit)
    yield from alone
    for key, total in needed.items() if not alone else ():  # pods that have room by themselves
        lent = sum((room.lends.get(key, Decimal()) for room in has.values()), Decimal())
        held = sum((room.taken(key) for room in has.values()), Decimal())
        if total > lent - held:
            yield _no_room(
                f"all pods of an experiment reserve {_shown(key, total)} of {key}, and the nodes have {_shown(key, lent)}, "
                f"of which others hold {_shown(key, held)}.",
                away=total <= lent,
            )


def _kinds(planned: Sequence[PlannedPods]) -> dict[_PodKind, list[PlannedPods]]:
    """The pods of one experiment by what each asks for; those that ask for nothing are left out."""
    kinds: dict[_PodKind, list[PlannedPods]] = {}
    for pods in planned:
        requests = pods.resources.requests
        if kind := tuple((key, requests[key]) for key in COMPUTE if requests.get(key)):
            kinds.setdefault(kind, []).append(pods)
    return kinds


def _check_kind(pod: Amounts, planned: Sequence[PlannedPods], nodes: Sequence[NodeRoom]) -> Iterator[Issue]:
    number, fitting = _number(planned), sum(room.fits(pod) for room in nodes)
    if fitting >= number:
        return
    wanted = " and ".join(f"{_shown(key, value)} of {key}" for key, value in pod.items())
    names = ", ".join(dict.fromkeys(pods.group.labels["app.kubernetes.io/name"] for pods in planned))
    listed = "; ".join(
        f"{room.name} has "
        + " and ".join(
            f"{_shown(key, room.lends.get(key, Decimal()))} of {key}, of which others hold {_shown(key, room.taken(key))}"
            for key in pod
        )
        for room in nodes[:_NAMED]
    )
    more = f"; and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    yield _no_room(
        f"{counted(number, 'pod', 'reserve')} {wanted} each ({names}), and there is room for {fitting}: {listed or 'no node'}{more}.",
        away=sum(room.fits(pod, empty=True) for room in nodes) >= number,
    )


def _no_room(message: str, *, away: bool) -> Issue:
    return Issue(IssueLevel.ERROR, "room", message, f"{'End what holds it. ' * away}{_ROOM_ADVICE}", away=away)


def _number(planned: Sequence[PlannedPods]) -> int:
    return sum(pods.group.replicas for pods in planned)


def _shown(key: str, value: Decimal) -> str:
    """Bytes are shortened to what a person reads; the comparison is exact."""
    mebi = (value / 2**20).to_integral_value() * 2**20
    return quantity(mebi if key in OF_BYTES else value, of_bytes=key in OF_BYTES)


def check_image(nodes: Sequence[Object], spec: KubernetesSpec, image: str) -> Iterator[Issue]:
    """Whether an image can be there when a replica starts, as far as the nodes tell."""
    _, _, rest = image.partition("/")
    if not (":" in rest or "@sha256:" in image) or image.endswith(":latest"):
        advice = "Name a version or a digest, so that a repeat runs the same."
        yield Issue(IssueLevel.WARNING, IMAGE, f"{image} may be another image tomorrow.", advice)
    without = lacking(nodes, spec, image)
    if without:
        ours = image == spec.image
        why = f"{OF_THE_NODE} is not a registry" if image.startswith(OF_THE_NODE) else "`image_pull_policy: Never`"
        yield Issue(
            IssueLevel.ERROR if len(without) == len(nodes) else IssueLevel.WARNING,
            IMAGE,
            f"{image} is not listed by the kubelet of {', '.join(without)}, and it is not pulled: {why}.",
            "Build it there: playbooks/workloads.yml." if ours else "Load it there, e.g. with podman load.",
        )


def lacking(nodes: Sequence[Object], spec: KubernetesSpec, image: str) -> list[str]:
    """The nodes that do not list an image that is not pulled; a kubelet lists one half a minute after it was loaded."""
    pulls = spec.image_pull_policy == "IfNotPresent" and not image.startswith(OF_THE_NODE)
    if pulls or spec.image_pull_policy == "Always":
        return []
    return [name(node) for node in nodes if _lacks(node, image)]


def _lacks(node: Object, image: str) -> bool:
    images = (node.get("status") or {}).get("images") or []
    return len(images) < LISTED_IMAGES and not any(image in (entry.get("names") or []) for entry in images)


def lost(nodes: Sequence[Object], spec: KubernetesSpec) -> bool:
    """Whether a node, or what it lends, is away in a way that may end by itself: silent, cordoned, its plugin restarting."""
    wanted = [node for node in nodes if selected(node, spec)]
    if not wanted or any(_is_away(node) for node in wanted):
        return True
    resource = spec.slice_resource
    if not resource:
        return False
    idle = [node for node in wanted if not offered(node, spec)]
    # A kubelet that has started anew says 0 of a resource until the device plugin is back.
    restarted = any(resource in resources(node, "capacity") for node in idle)
    return len(idle) == len(wanted) or restarted or any(withdrawn(node, resource) for node in wanted)


def _is_away(node: Object) -> bool:
    taints = [taint["key"] for taint in node["spec"].get("taints") or [] if taint.get("effect") != "PreferNoSchedule"]
    return (
        condition(node, "Ready").get("status") != "True"
        or bool(node["spec"].get("unschedulable"))
        or any(key.startswith(CLUSTERS_TAINTS) for key in taints)
    )


def not_ready(node: Object) -> str:
    """Why the node is not ready, in its own words; empty when it is."""
    ready = condition(node, "Ready")
    if ready.get("status") == "True":
        return ""
    words = f"{ready.get('reason') or 'no condition Ready'}: {ready.get('message') or 'no reason given'}"
    return f"node {name(node)} is NotReady: {words}".rstrip(".")


def silent(node: Object) -> bool:
    """Whether it is called not ready because its kubelet has not reported, and not by its kubelet."""
    return condition(node, "Ready").get("status") == "Unknown"


def pressures(node: Object) -> dict[str, str]:
    """The pressures that the node is under: kind and its own message."""
    entries = {kind: condition(node, kind) for kind in PRESSURES}
    return {kind: str(entry.get("message") or "") for kind, entry in entries.items() if entry.get("status") == "True"}


def provenance(nodes: Sequence[Object], statuses: Sequence[Mapping[str, Any]], software: Software) -> Provenance:
    """All nodes together as the host, and every GPU that a replica sees. ``nodes``: empty where they cannot be read."""
    marks = {name(node): labels(node) for node in nodes}
    gpus: dict[str, Gpu] = {}
    for status in statuses:
        for uuid in devices(status):
            gpus.setdefault(uuid, _gpu(len(gpus), uuid, status, marks.get(str(status.get("node")), {})))
    return Provenance(
        host=_host(nodes, statuses),
        gpus=list(gpus.values()),
        gpus_absent="" if gpus else "no replica sees a GPU",
        software=software,
    )


def devices(status: Mapping[str, Any]) -> tuple[str, ...]:
    """UUIDs of the GPUs that a replica computes on, two where it spans them; none where it does not say."""
    return tuple(str(status[fact]) for fact in ("device_uuid", "second_device_uuid") if status.get(fact))


def _gpu(index: int, uuid: str, status: Mapping[str, Any], marks: Mapping[str, str]) -> Gpu:
    """As the driver in the replica says, else GPU feature discovery's labels of its node, under the names of either version."""
    labelled: dict[str, Any] = {
        "driver": _labelled_driver(marks),
        "cuda": marks.get("nvidia.com/cuda.runtime-version.full")
        or ".".join(marks.get(f"nvidia.com/cuda.runtime.{part}", "") for part in ("major", "minor")).strip("."),
    }
    memory_mib = str(marks.get(MEMORY_LABEL, ""))
    if memory_mib.isdigit() and "-MIG-" not in marks.get(PRODUCT_LABEL, ""):
        labelled["memory_bytes"] = int(memory_mib) * 2**20
    known = {key: value for key, value in labelled.items() if value}
    known |= {key: value for key, value in (status.get("gpu") or {}).items() if key in Gpu.model_fields}
    device = str(status.get("device_name") or marks.get(PRODUCT_LABEL, "").removesuffix("-SHARED") or "unknown")
    return Gpu(index=index, name=device, uuid=uuid, **known)


def _labelled_driver(marks: Mapping[str, str]) -> str:
    parts = (marks.get(f"nvidia.com/cuda.driver.{part}", "") for part in ("major", "minor", "rev"))
    return marks.get("nvidia.com/cuda.driver-version.full") or ".".join(parts).strip(".")


def driver_denied(node: Object | None, status: Mapping[str, Any]) -> str:
    """That the labels of a node say another driver than a replica there has; empty: they agree, or one does not tell."""
    runs = str((status.get("gpu") or {}).get("driver") or "")
    labelled = _labelled_driver(labels(node)) if node else ""
    if not node or not runs or not labelled or f"{runs}.".startswith(f"{labelled}."):
        return ""
    return f"the labels of node {name(node)} say driver {labelled}, and its GPU runs {runs}: feature discovery has not looked since"


def _host(nodes: Sequence[Object], statuses: Sequence[Mapping[str, Any]]) -> Host:
    """What the nodes say of themselves, and where they may not be read, what the replicas see of them."""
    seen = {str(status.get("node") or "unknown"): status.get("host") or {} for status in statuses} or {"unknown": {}}
    first: Mapping[str, Any] = next(iter(seen.values()))
    info: Mapping[str, Any] = resources(nodes[0], "nodeInfo") if nodes else {}

    def total(resource: str, fact: str) -> int | None:
        amounts = [amount(resources(node, "capacity").get(resource)) for node in nodes]
        values = amounts if nodes else [host.get(fact) for host in seen.values()]
        known = [int(value) for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    return Host(
        hostname=", ".join(seen),
        os=str(info.get("osImage") or "unknown"),
        kernel=str(info.get("kernelVersion") or first.get("kernel") or "unknown"),
        architecture=str(info.get("architecture") or first.get("architecture") or "unknown"),
        cpu_model=str(first.get("cpu_model") or "unknown"),
        cpus=total("cpu", "cpus") or 1,
        memory_bytes=total("memory", "memory_bytes"),
        cgroup_version=first.get("cgroup_version"),
        psi=first.get("psi"),
    )
