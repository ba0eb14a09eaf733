"""Who else is on the GPUs of an experiment: pods that the cluster tells of, and memory that nobody of the experiment holds.

A pod that asks for a GPU is known by that. One that asks for none can see every GPU of its node all the same, by NVIDIA's runtime or by
the devices' files; and one of which the cluster says nothing of the kind still takes memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import BackendError, Issue, IssueLevel, ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.metrics.telemetry import memory_rises
from harness.sharing.mode import Object
from harness.sharing.node import (
    HOLDERS_ADVICE,
    PODS,
    ended,
    full_name,
    name,
    others_on_gpus,
    own,
    sees_gpus,
)

MEMORY_BYTES = 200 * 2**20
"""A CUDA context alone takes more; a replica's own, as it loads kernels that it had not used before, less."""


class Strangers:
    """Pods of others on the replicas' nodes, as they are at each look; those that come and go between two are missed."""

    def __init__(self, api: KubernetesApi, places: Sequence[str], campaign_id: str) -> None:
        self._api, self._places, self._campaign_id = api, places, campaign_id
        self._looked: set[str] = set()
        """Places of which the pods were read once."""
        self._there: set[str] = set()
        self._seen: dict[str, str] = {}
        self._names: list[str] = []
        """Of others' pods that came after the first look, whatever is known of them."""
        self._known: set[str] = set()

    def look(self) -> None:
        """Read the pods of the nodes; an account that may not measures all the same."""
        for place in self._places:
            with contextlib.suppress(BackendError):
                around = self._api.list(PODS, fields=f"spec.nodeName={place}")
                self._note(place, [pod for pod in around if not own(pod, self._campaign_id)])
                self._looked.add(place)

    def _note(self, place: str, pods: Sequence[Object]) -> None:
        holding = {_uid(pod) for pod in others_on_gpus(place, pods, self._campaign_id)}
        for pod in pods:
            uid, by = _uid(pod), sees_gpus(pod)
            if place not in self._looked:
                self._there |= {uid} if uid in holding else set()  # preflight has told of those
                self._known.add(uid)
            elif uid not in self._known:
                self._known.add(uid)
                self._names.append(full_name(pod))
            if uid in self._seen or uid in self._there or (place not in self._looked and ended(pod)):
                continue
            if uid in holding:
                self._seen[uid] = f"the pod {full_name(pod)} came onto a GPU of node {place} while replicas ran"
            elif by:
                how = f"which sees the GPUs of node {place} and asks for none ({by})"
                self._seen[uid] = f"the pod {full_name(pod)}, {how}, was there while replicas ran"

    def findings(
        self, telemetry: Path, ours: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> Iterator[Finding]:
        """What speaks against the recording; ``ours``: what each replica said of itself at first, and last."""
        for sentence in self._seen.values():
            message = f"{sentence}: whatever it did there was measured, too."
            yield Finding(Severity.DEGRADED, ReasonCode.GPU_SHARED, "gpu_memory", message, HOLDERS_ADVICE)
        grown = _growth(ours)
        for gpu, (risen, at_s) in memory_rises(telemetry, MEMORY_BYTES).items() if grown is not None else ():
            stranger = risen - (grown or 0)
            if stranger < MEMORY_BYTES:
                continue
            came = f"came to its node meanwhile: {', '.join(self._names)}" if self._names else "is known to have come"
            message = (
                f"{gpu.replace('gpu', 'gpu-')} held {stranger / 2**20:.0f} MiB that are not the replicas' from second "
                f"{at_s:.0f} of the recording on; {'' if self._names else 'no pod '}{came}."
            )
            yield Finding(Severity.DEGRADED, ReasonCode.GPU_SHARED, "gpu_memory", message, HOLDERS_ADVICE)


def _growth(ours: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> int | None:
    """Bytes by which the replicas' own memory may have grown; None where one does not tell, or takes and gives back as it likes."""
    grown = 0
    for first, last in ours:
        if first.get("device") == "cpu":
            continue
        before, most = first.get("gpu_reserved_bytes"), last.get("gpu_reserved_most_bytes")
        if before is None or most is None or "held_bytes_most" in last:
            return None
        grown += max(0, int(most) - int(before))
    return grown


def check(nodes: Sequence[Object], pods: Sequence[Object], campaign_id: str) -> Iterator[Issue]:
    """A warning of the pods of others that see the GPUs of these nodes though they ask for none."""
    places = {name(node) for node in nodes}
    for pod in pods:
        place, somebodys = pod["spec"].get("nodeName"), not ended(pod) and not own(pod, campaign_id)
        if place in places and somebodys and (by := sees_gpus(pod)):
            message = f"the pod {full_name(pod)} sees the GPUs of node {place} and asks for none ({by})."
            yield Issue(IssueLevel.WARNING, "gpus", message, HOLDERS_ADVICE)


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
