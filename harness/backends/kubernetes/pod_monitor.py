"""Watches pods: what a Job waits for in its queue, and whatever ends a replica that serves, or the node below it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.backends.base import ReplicaDeath
from harness.backends.kubernetes import collect, nodes, pods
from harness.backends.kubernetes.api import KubernetesApi, Object, selectors
from harness.backends.kubernetes.pods import SERVER, End, PodReplica
from harness.backends.kubernetes.rights import KUEUE, KUEUE_VERSIONS
from harness.backends.kubernetes.watch import Watcher
from harness.clock import Clock
from harness.errors import BackendError, ClusterError
from harness.sharing.mode import Notify
from harness.sharing.node import condition
from harness.spec import KubernetesSpec

KILLED = 137
"""Exit code of who did not heed SIGTERM; what else a server ends with is its own way."""

JOB_UID_LABEL = f"{KUEUE}/job-uid"
"""Of a Workload, by which Kueue queues a Job."""
QUEUE_POLL_S = 5.0
TELL_S = 15.0
"""Of waiting for the same: a queue with room admits a Job within a second or two."""
NODE_RETURNS_S = 60.0
"""As long as the API server was away no kubelet could report, and the cluster calls them silent: they are given this to do so."""


class QueueWait:
    """Tells ``notice`` what a suspended Job waits for, up to ``limit_s`` seconds, once it has been the same for a while."""

    def __init__(self, api: KubernetesApi, spec: KubernetesSpec, limit_s: float, notice: Notify) -> None:
        self._api, self._spec, self._limit_s, self._notice = api, spec, limit_s, notice
        self._asked_s, self._since_s = -math.inf, math.inf
        self.why = ""

    def poll(self, owner: Object, now_s: float) -> None:
        """Read, every few seconds, why this Job is suspended; ``why`` is then a sentence, and empty where it is not."""
        if not pods.suspended(owner):
            self.why, self._asked_s = "", -math.inf
            return
        if now_s < self._asked_s + QUEUE_POLL_S:
            return
        self._asked_s = now_s
        queue = f"its queue {self._spec.queue_name}" if self._spec.queue_name else "its queue"
        reason = self._reason(owner)
        why = f"the Job is suspended: {queue} has not admitted it{f': {reason}' if reason else ''}."
        if why != self.why:
            self.why, self._since_s = why, now_s
        if now_s >= self._since_s + TELL_S:
            self._since_s = math.inf  # once
            self._notice(f"waits up to {self._limit_s:g} s: {why}")

    def _reason(self, job: Object) -> str:
        """What Kueue says of why there is no quota, or no admission with it; empty: nothing, or it may not be read."""
        query = selectors(f"{JOB_UID_LABEL}={job['metadata']['uid']}", "")
        for version in KUEUE_VERSIONS:
            try:
                listed = self._api.find(f"/apis/{KUEUE}/{version}/namespaces/{self._spec.namespace}/workloads", query)
            except BackendError:
                return ""  # it would have been a help, no more
            for queued in (listed or {}).get("items") or []:
                for kind in ("QuotaReserved", "Admitted"):
                    found = condition(queued, kind)
                    if found.get("status") == "False":
                        return " ".join(str(found.get("message") or found.get("reason") or "").split()).rstrip(".")
            if listed is not None:
                return ""
        return ""


class PodMonitor:
    """Reports deaths of the replicas of one deployment.

    Args:
        api: of the cluster.
        replicas: that serve.
        watched: follows their pods already.
        folder: the attempt's; the log of a dead replica is saved there at once, for its pod may go.
        clock: real time.
        gpu_resource: that the replicas hold some of; empty: none.
        on_death: called for each death, from a watching thread.
    """

    def __init__(
        self,
        api: KubernetesApi,
        replicas: Sequence[PodReplica],
        watched: Watcher,
        folder: Path,
        clock: Clock,
        gpu_resource: str,
        on_death: Callable[[ReplicaDeath], None],
    ) -> None:
        self._api, self._clock, self._folder, self._on_death = api, clock, folder, on_death
        self._replicas = {replica.uid: replica for replica in replicas}
        self._titles = {replica.index: replica.title for replica in replicas}
        self._watched = watched
        self._gpu_resource = gpu_resource
        self._names = {replica.node for replica in replicas}
        self._nodes = Watcher(api, "/api/v1/nodes", listener=self._see_node)
        self._lock = threading.RLock()
        self._stopping = False
        self._dead: set[int] = set()
        self._ends: dict[tuple[int, str], End] = {}
        self._remarks: dict[str, str] = {}
        self._silent = ""
        self._doubted: dict[str, threading.Timer] = {}
        self._notice: Notify | None = None
        self.deaths: list[ReplicaDeath] = []

    def start(self) -> None:
        """Look at everything once, then at every change."""
        self._watched.listen(self._see_pod)
        try:
            self._nodes.start()
        except ClusterError as error:
            # Not everybody may read nodes; replicas are watched all the same.
            self._silent = f"Nodes are not watched: {error.message}"
        for pod in self._watched.objects:
            self._see_pod("MODIFIED", pod)
        present = {str(pod["metadata"]["uid"]) for pod in self._watched.objects}
        for uid, replica in self._replicas.items():
            if uid not in present:
                self._report(replica, End(None, "the pod is gone"), previous=False)

    def tell(self, notice: Notify) -> None:
        """From here on say at once what is no death, and now what was noticed before."""
        self._notice = notice
        for sentence in [self._silent, *self._remarks.values()]:
            if sentence:
                notice(sentence)

    def stop(self) -> list[str]:
        """Whatever ends from here on was told to; returns what speaks against the recording besides deaths."""
        with self._lock:
            self._stopping = True
            for timer in self._doubted.values():
                timer.cancel()
            doubted = {replica.node for replica in self._replicas.values() if replica.index not in self._dead}
            doubted &= self._doubted.keys()
        for name in sorted(doubted):
            if why := self._not_ready(name):
                self._remark(
                    f"{name}/silent",
                    f"{why}. So it was when the recording ended, shortly after the API server had been away: that its "
                    "replicas were gone is suspected, not proven.",
                )
        # Only now: a plugin that was restarted in between has lent nothing for seconds, and hurt nobody.
        for node in self._nodes.objects if self._gpu_resource else []:
            name = str(node["metadata"]["name"])
            if name in self._names and (less := nodes.withdrawn(node, self._gpu_resource)):
                self._remark(f"{name}/{self._gpu_resource}", f"{less}.")
        self._nodes.stop()
        outages = [
            f"the API server did not answer for {end_s - begin_s:.0f} s while replicas were watched ({why[:200]})."
            for begin_s, end_s, why in self._watched.outages
        ]
        return [*self._remarks.values(), *(outages if self.deaths else [])]

    def unclean_ends(self) -> list[str]:
        """A sentence for each replica that did not end with 0 when it was told to."""
        with self._lock:
            ends = [(index, end) for (index, _), end in sorted(self._ends.items()) if index not in self._dead]
            return [
                f"the server of {self._titles[index]} did not end in time when it was told to stop, and was killed; "
                "raise server.stop_timeout_s."
                if end.container == SERVER
                else f"{self._titles[index]} ended with {end.exit_code} when it was told to stop ({end.reason or 'no reason given'})."
                for index, end in ends
                if (end.exit_code == KILLED if end.container == SERVER else end.exit_code)
            ]

    def _see_pod(self, kind: str, pod: Object) -> None:
        replica = self._replicas.get(str(pod["metadata"]["uid"]))
        if replica is None:
            return  # made by the controller in place of a dead one: nothing that is measured
        for device in [] if self._stopping else pods.unhealthy_devices(pod):
            self._remark(device, f"{replica.title} held {device} when its plugin called it unhealthy.")
        end = pods.end_of(pod, restarts_before=replica.restarts)
        if kind == "DELETED":
            end = end or End(None, "the pod was deleted")
        if end is None:
            return
        with self._lock:
            if self._stopping:
                ended = pods.ends_of(pod, restarts_before=replica.restarts)
                self._ends |= {(replica.index, one.container): one for one in ended}
                return
        self._report(replica, end, previous=pods.restarts(pod, end.container) > replica.restarts)

    def _see_node(self, kind: str, node: Object) -> None:
        name = str(node["metadata"]["name"])
        if name not in self._names or self._stopping:
            return
        why = f"node {name} was removed from the cluster" if kind == "DELETED" else nodes.not_ready(node)
        if why and nodes.silent(node) and self._api_was_away():
            self._doubt(name)
        elif why:
            self._report_all(name, why)
        else:
            self._trust(name)
        for pressure, message in nodes.pressures(node).items():
            self._remark(f"{name}/{pressure}", f"node {name} was under {pressure} while replicas ran ({message}).")

    def _report_all(self, node: str, why: str) -> None:
        for replica in self._replicas.values():
            if replica.node == node:
                self._report(replica, End(None, why), previous=False)

    def _api_was_away(self) -> bool:
        """Whether it is, or came back so lately that no kubelet need have reported since."""
        if self._watched.away_s or self._nodes.away_s:
            return True
        ends = [end_s for _, end_s, _ in (*self._watched.outages, *self._nodes.outages)]
        return time.time() - max(ends, default=0.0) < NODE_RETURNS_S

    def _doubt(self, node: str) -> None:
        """Look again later whether a node is silent by itself."""
        with self._lock:
            if node in self._doubted or self._stopping:
                return
            timer = self._doubted[node] = threading.Timer(NODE_RETURNS_S, self._look_again, [node])
            timer.daemon = True
            timer.start()

    def _trust(self, node: str) -> None:
        with self._lock:
            timer = self._doubted.pop(node, None)
        if timer is not None:
            timer.cancel()

    def _look_again(self, name: str) -> None:
        if why := self._not_ready(name):
            self._report_all(name, why)
        self._trust(name)  # Only now: who stops in between finds it doubted still.

    def _not_ready(self, name: str) -> str:
        found = (nodes.not_ready(node) for node in self._nodes.objects if node["metadata"]["name"] == name)
        return next(found, None) or ""

    def _remark(self, key: str, sentence: str) -> None:
        with self._lock:
            if key in self._remarks:
                return
            self._remarks[key] = sentence
        if self._notice:
            self._notice(sentence)

    def _report(self, replica: PodReplica, end: End, *, previous: bool) -> None:
        with self._lock:
            if replica.index in self._dead or self._stopping:
                return
            self._dead.add(replica.index)
        container = end.container
        lines = collect.last_lines(self._api, replica.pod, container=container, previous=previous)
        collect.keep_log(self._api, replica.pod, self._folder, replica.index, container, restarted=previous)
        at_s, of_server = self._clock.now_s(), container == SERVER
        death = ReplicaDeath(replica.index, at_s, end.exit_code, lines, end.reason, replica.neighbour, of_server)
        self.deaths.append(death)
        self._on_death(death)
