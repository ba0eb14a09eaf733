"""When a rollout is done, and when it will never be: read from the objects' own status, nothing guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.backends.kubernetes import pods
from harness.backends.kubernetes.pods import Object, Obstacle


@dataclass(frozen=True, slots=True)
class Ended:
    """A replica that ended before all of them served."""

    pod: Object
    end: pods.End


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rollout is.

    Attributes:
        done: every replica serves, and there is none too many.
        ended: a replica that ended by itself; None: none did.
        stuck: why it cannot go on; None: it can.
        hindrance: why no node takes a pod, or none can be made, for now; None: nothing of that kind.
        waiting: what it waits for, in a few words.
    """

    done: bool
    ended: Ended | None = None
    stuck: Obstacle | None = None
    hindrance: Obstacle | None = None
    waiting: str = ""


def look(workload: Object, found: Sequence[Object], replicas: int) -> Progress:
    """Judge a Deployment or a Job and its pods."""
    alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    for pod in alive:
        not_copied = pods.not_copied(pod)
        if not_copied is not None:
            return Progress(False, stuck=not_copied)
        end = pods.end_of(pod)
        if end is not None:
            return Progress(False, ended=Ended(pod, end))
    stuck = next((why for pod in alive if (why := pods.obstacle(pod))), None)
    hindrance = next((why for pod in alive if (why := pods.unschedulable(pod))), _refusal(workload))
    ready = [pod for pod in alive if pods.is_ready(pod)]
    done = len(ready) == len(found) == replicas and _complete(workload, replicas)
    return Progress(done, stuck=stuck, hindrance=hindrance, waiting=_waiting(workload, found, ready, replicas))


def together(found: Sequence[Progress]) -> Progress:
    """Several rollouts as one: done when all are, and hindered by whatever hinders one."""
    return Progress(
        all(one.done for one in found),
        ended=next((one.ended for one in found if one.ended), None),
        stuck=next((one.stuck for one in found if one.stuck), None),
        hindrance=next((one.hindrance for one in found if one.hindrance), None),
        waiting=next((one.waiting for one in found if not one.done), ""),
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
        found = pods.condition(workload, kind)
        if found.get("status") == "True":
            return Obstacle(
                str(found.get("reason") or kind),
                str(found.get("message") or ""),
                "Mend what it names: a quota, a policy of the namespace, the service account or the runtime class.",
            )
    return None


def _waiting(workload: Object, found: Sequence[Object], ready: Sequence[Object], replicas: int) -> str:
    """The first thing that is missing."""
    if suspended(workload):
        return f"the {workload['kind']} is suspended: its queue has not admitted it"
    if len(found) < replicas:
        return f"{len(found)} of {replicas} pods have been made"
    unready = [pod for pod in found if pod not in ready]
    if unready:
        pod = unready[0]
        return f"{len(ready)} of {replicas} serve; {pods.name(pod)}: {pods.waits_for(pod)}"
    if len(found) > replicas:
        return f"{len(found)} pods are there instead of {replicas}"
    return f"the {workload['kind']} has not counted its {replicas} pods yet"
