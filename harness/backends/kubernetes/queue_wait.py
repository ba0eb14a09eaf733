"""What a Job waits for that its queue has not admitted: told while it waits, in the words of Kueue where it has any."""

from __future__ import annotations

import math

from harness.backends.base import Notify
from harness.backends.kubernetes import pods, rollout
from harness.backends.kubernetes.api import KubernetesApi, Object, selectors
from harness.backends.kubernetes.rights import KUEUE, KUEUE_VERSIONS
from harness.errors import BackendError
from harness.spec import KubernetesSpec

JOB_UID_LABEL = f"{KUEUE}/job-uid"
"""Of a Workload, by which Kueue queues a Job."""
LOOK_S = 5.0
TELL_S = 15.0
"""Of waiting for the same: a queue with room admits a Job within a second or two."""


class QueueWait:
    """Follows one suspended Job.

    Args:
        api: of the cluster.
        spec: how replicas stand in it.
        limit_s: how long is waited.
        notice: told what is waited for, once it has been the same for a while.
    """

    def __init__(self, api: KubernetesApi, spec: KubernetesSpec, limit_s: float, notice: Notify) -> None:
        self._api, self._spec, self._limit_s, self._notice = api, spec, limit_s, notice
        self._asked_s, self._since_s = -math.inf, math.inf
        self.why = ""

    def look(self, owner: Object, now_s: float) -> None:
        """Read, every few seconds, why this Job is suspended; ``why`` is then a sentence, and empty where it is not.

        Args:
            owner: the Job, or a Deployment, which nothing suspends.
            now_s: seconds since the epoch.
        """
        if not rollout.suspended(owner):
            self.why, self._asked_s = "", -math.inf
            return
        if now_s < self._asked_s + LOOK_S:
            return
        self._asked_s = now_s
        why = self._in_words(self._reason(owner))
        if why != self.why:
            self.why, self._since_s = why, now_s
        if now_s >= self._since_s + TELL_S:
            self._since_s = math.inf  # once
            self._notice(f"waits up to {self._limit_s:g} s: {why}")

    def _in_words(self, reason: str) -> str:
        queue = f"its queue {self._spec.queue_name}" if self._spec.queue_name else "its queue"
        return f"the Job is suspended: {queue} has not admitted it{f': {reason}' if reason else ''}."

    def _reason(self, job: Object) -> str:
        """What Kueue says; empty: nothing, or it may not be read."""
        query = selectors(f"{JOB_UID_LABEL}={job['metadata']['uid']}", "")
        for version in KUEUE_VERSIONS:
            try:
                found = self._api.find(f"/apis/{KUEUE}/{version}/namespaces/{self._spec.namespace}/workloads", query)
            except BackendError:
                return ""  # it would have been a help, no more
            if found is not None:
                return next(filter(None, map(_said, found.get("items") or [])), "")
        return ""


def _said(workload: Object) -> str:
    """Why a Workload has no quota, or is not admitted although it has."""
    for kind in ("QuotaReserved", "Admitted"):
        condition = pods.condition(workload, kind)
        if condition.get("status") == "False":
            return " ".join(str(condition.get("message") or condition.get("reason") or "").split()).rstrip(".")
    return ""
