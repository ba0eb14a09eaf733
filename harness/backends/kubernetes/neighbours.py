"""An experiment with neighbours: pods of each workload, begun together, seen to share a GPU, and ended together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.backends.base import RecordingRequest, ReplicaDeath
from harness.backends.kubernetes.deployment import KubernetesDeployment
from harness.backends.kubernetes.pods import PodReplica
from harness.errors import BackendError, ReasonCode
from harness.metrics.prometheus.telemetry import PrometheusTelemetry
from harness.metrics.summary import Recording
from harness.results.manifest import Provenance
from harness.sharing.modes import mode_of
from harness.spec import Device, Sharing

Status = Mapping[str, Any]
_ADVICE = (
    "The scheduler chooses the node and the device plugin the GPU: narrow `kubernetes.node_selector` to nodes with one GPU, "
    "with one neighbour at least for each; a workload of your own names its GPU as `device_uuid` of describe()."
)


class WithNeighbours:
    """The measured replicas of one experiment and its neighbours, each workload with a deployment of its own.

    Args:
        measured: the replicas that the experiment is about.
        beside: the neighbours, by workload.
        by_node: replicas have a GPU or an instance each, or none: sharing the node is all that there is to see.
    """

    def __init__(
        self, measured: KubernetesDeployment, beside: Mapping[str, KubernetesDeployment], *, by_node: bool
    ) -> None:
        self._measured, self._beside, self._by_node = measured, beside, by_node
        self._all = [measured, *beside.values()]

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far, the neighbours' among them."""
        return [death for one in self._all for death in one.deaths]

    def statuses(self) -> Sequence[Status]:
        """What each measured replica says of itself. See KubernetesDeployment.statuses."""
        return self._measured.statuses()

    def neighbour_statuses(self) -> Mapping[str, Sequence[Status]]:
        """The same of the replicas of each neighbour, by workload."""
        return {name: one.statuses() for name, one in self._beside.items()}

    def telemetry(self, path: Path) -> PrometheusTelemetry | None:
        """Of the GPUs of all of them."""
        return self._measured.telemetry(path, self._beside_replicas())

    def hottest_celsius(self) -> float:
        """Of the measured replicas' GPUs, which are those of the neighbours."""
        return self._measured.hottest_celsius()

    def provenance(self) -> Provenance:
        """The nodes of the measured replicas, which are those of the neighbours."""
        return self._measured.provenance()

    def recording(self, request: RecordingRequest) -> Recording:
        """Of the measured replicas, and of each neighbour by itself. Raises StorageError."""
        return self._measured.recording(request, self._beside_replicas())

    def _beside_replicas(self) -> list[PodReplica]:
        return [each for one in self._beside.values() for each in one.replicas]

    def start(self, abort: threading.Event) -> None:
        """Begin everything and return when all have served, where they should be.

        Raises:
            ReplicaDiedError: one ended by itself.
            BackendError: see KubernetesDeployment.start; or they do not share a GPU.
        """
        for one in self._all:
            one.make(abort)
        for one in self._all:  # the scheduler places a neighbour once a measured replica has its node
            one.wait(abort)
        why = apart(self._measured.statuses(), self.neighbour_statuses(), by_node=self._by_node)
        if why:
            raise BackendError(why, advice=_ADVICE, code=ReasonCode.NEIGHBOUR_APART)

    def watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        """From here on report each replica that ends."""
        for one in self._all:
            one.watch(on_death)

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """Fetch what was written and end everything; a node's sentence is said once."""
        with ThreadPoolExecutor(len(self._all), thread_name_prefix="stop") as pool:
            found = list(pool.map(lambda one: one.stop(timeout_s=timeout_s), self._all))
        return list(dict.fromkeys(sentence for sentences in found for sentence in sentences))


def only_node_is_shared(sharing: Sharing, gpus_per_replica: int) -> bool:
    """Whether replicas have no GPU, or by their sharing mode a GPU or an instance each."""
    return not gpus_per_replica or mode_of(sharing).each_its_own


def apart(measured: Sequence[Status], beside: Mapping[str, Sequence[Status]], *, by_node: bool) -> str:
    """Who is not where the others are, in a sentence; empty: every neighbour is beside a measured replica, and the other way round.

    Args:
        measured: what each measured replica says of itself, with its pod and node.
        beside: the same of the neighbours, by workload.
        by_node: the node counts, and not the GPU.
    """
    neighbours = [one for statuses in beside.values() for one in statuses]
    named = [
        *((f"replica {one['replica']} (pod {one['pod']})", one, neighbours, "no neighbour") for one in measured),
        *(
            (
                f"replica {one['replica']} of the neighbour {name} (pod {one['pod']})",
                one,
                measured,
                "no measured replica",
            )
            for name, statuses in beside.items()
            for one in statuses
        ),
    ]
    for who, one, others, nobody in named:
        on_gpu = not by_node and _may_use_gpu(one) and any(map(_may_use_gpu, others))
        key, what = ("gpu_uuid", "GPU") if on_gpu else ("node", "node")
        if not one.get(key):
            return f"{who} does not say on which GPU it is, so that nobody knows whether it shares one."
        if one[key] not in {other.get(key) for other in others}:
            return f"{who} is on {what} {one[key]}, where {nobody} is."
    return ""


def _may_use_gpu(status: Status) -> bool:
    """A workload on the CPU says so."""
    return status.get("device") != Device.CPU
