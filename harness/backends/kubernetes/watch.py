"""Watches objects, and what ends the pods of replicas that serve, or their nodes: list once, then follow the changes.

A watch that ends goes on from the last version seen; where the server has forgotten that (410), all is listed anew and compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import urllib3

from harness.backends.base import ReplicaDeath
from harness.backends.kubernetes import collect, nodes, pods
from harness.backends.kubernetes.api import FIRST_PAUSE_S, KubernetesApi, selectors
from harness.backends.kubernetes.pods import SERVER, End, PodReplica
from harness.backends.kubernetes.rights import KUEUE, KUEUE_VERSIONS
from harness.clock import Clock
from harness.errors import BackendError, ClusterError
from harness.sharing.lending import SHARING_LABELS
from harness.sharing.mode import Notify, Object
from harness.sharing.node import NODES, condition, labels, name, withdrawn
from harness.spec import KubernetesSpec

WATCH_TIMEOUTS = 2
"""A watch is asked anew after this many request timeouts: a server that went silent is noticed by then."""
GONE = 410
NOTABLE_OUTAGE_S = 5.0
KILLED = 137
"""Exit code of who did not heed SIGTERM; what else a server ends with is its own way."""

JOB_UID_LABEL = f"{KUEUE}/job-uid"
"""Of a Workload, by which Kueue queues a Job."""
QUEUE_POLL_S = 5.0
TELL_S = 15.0
"""Of waiting for the same: a queue with room admits a Job within a second or two."""
NODE_RETURNS_S = 60.0
"""As long as the API server was away no kubelet could report, and the cluster calls them silent: they are given this to do so."""

Listener = Callable[[str, Object], None]


class Watcher:
    """Follows the objects of one path that have these labels.

    ``listener`` is called with ADDED, MODIFIED or DELETED and the object, from the watching thread; a deleted object as it
    was last seen.
    """

    def __init__(self, api: KubernetesApi, path: str, *, labels: str = "", listener: Listener | None = None) -> None:
        self._lock = threading.Lock()
        self.outages: list[tuple[float, float, str]] = []
        self._stop = threading.Event()
        self._api, self._path, self._query = api.until(self._stop), path, selectors(labels, "")
        self._listeners = [listener] if listener else []
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._away: tuple[float, str] | None = None
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """List once, then follow from a thread. Raises ClusterError when the list is refused."""
        self._list()
        self._thread.start()

    def listen(self, listener: Listener) -> None:
        """Tell somebody else, too, from here on."""
        self._listeners = [*self._listeners, listener]

    def stop(self) -> None:
        """Follow no longer; returns at once, and the thread ends soon."""
        self._stop.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
                answer.shutdown()

    @property
    def objects(self) -> list[Object]:
        """The objects as last seen, by name."""
        with self._lock:
            return sorted(self._objects.values(), key=name)

    @property
    def away_s(self) -> float:
        """Seconds for which the API server has not answered; 0 while it does."""
        away = self._away
        return time.time() - away[0] if away else 0.0

    def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                pause_s = FIRST_PAUSE_S
            except (urllib3.exceptions.HTTPError, OSError, ValueError, BackendError) as error:
                if isinstance(error, ClusterError) and error.status == GONE:
                    self._version = ""  # no failure: it happens to every watch that is old enough
                    continue
                if self._away is None:
                    self._away = (time.time(), str(error))
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._api.longest_pause_s)

    def _list(self) -> None:
        answer = self._api.get(self._path, self._query)
        self._note_answer()
        kind = str(answer.get("kind", "")).removesuffix("List")
        now: dict[str, Object] = {
            str(item["metadata"]["uid"]): {"kind": kind, **item} for item in answer.get("items") or []
        }
        with self._lock:
            before, self._objects = self._objects, now
        self._version = str(answer["metadata"]["resourceVersion"])
        for uid, item in before.items():
            if uid not in now:
                self._tell("DELETED", item)
        for uid, item in now.items():
            if uid not in before:
                self._tell("ADDED", item)
            elif before[uid]["metadata"].get("resourceVersion") != item["metadata"].get("resourceVersion"):
                self._tell("MODIFIED", item)

    def _watch(self) -> None:
        """Follow one watch to its end. Raises what broke it."""
        duration_s = max(round(WATCH_TIMEOUTS * self._api.timeout_s), 1)
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(duration_s),
        }
        for answer in self._api.stream(self._path, query, silence_s=duration_s + self._api.timeout_s):
            self._answer = answer
            self._note_answer()
            for line in filter(bytes.strip, answer):  # one JSON object each, as they come
                if self._stop.is_set():
                    return
                event = json.loads(line)
                self._heed(str(event.get("type")), event.get("object") or {})

    def _heed(self, kind: str, item: Object) -> None:
        if kind == "ERROR":
            raise ClusterError(f"The watch of {self._path} failed: {item.get('message')}.", status=item.get("code"))
        metadata: dict[str, Any] = item.get("metadata") or {}
        self._version = str(metadata.get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(str(metadata["uid"]), None)
            else:
                self._objects[str(metadata["uid"])] = item
        self._tell(kind, item)

    def _tell(self, kind: str, item: Object) -> None:
        for listener in self._listeners:
            if not self._stop.is_set():
                listener(kind, item)

    def _note_answer(self) -> None:
        away, self._away = self._away, None
        if away is not None and time.time() - away[0] >= NOTABLE_OUTAGE_S:
            self.outages.append((away[0], time.time(), away[1]))


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
                    entry = condition(queued, kind)
                    if entry.get("status") == "False":
                        return " ".join(str(entry.get("message") or entry.get("reason") or "").split()).rstrip(".")
            if listed is not None:
                return ""
        return ""


class PodMonitor:
    """Reports deaths of the replicas of one deployment, from a watching thread; ``watched`` follows their pods already.

    The log of a dead replica is saved at once, for its pod may go. ``gpu_resource``: that they hold some of; empty: none.
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
        self._nodes = Watcher(api, NODES, listener=self._see_node)
        self._lock = threading.RLock()
        self._stopping = False
        self._dead: set[int] = set()
        self._ends: dict[tuple[int, str], End] = {}
        self._remarks: dict[str, str] = {}
        self._marks: dict[str, dict[str, str]] = {}
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
        for place in sorted(doubted):
            if why := self._not_ready(place):
                self._remark(
                    f"{place}/silent",
                    f"{why}. So it was when the recording ended, shortly after the API server had been away: that its "
                    "replicas were gone is suspected, not proven.",
                )
        # Only now: a plugin that was restarted in between has lent nothing for seconds, and hurt nobody.
        for node in self._nodes.objects if self._gpu_resource else []:
            if name(node) in self._names and (less := withdrawn(node, self._gpu_resource)):
                self._remark(f"{name(node)}/{self._gpu_resource}", f"{less}.")
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
                self._ends |= {(replica.index, its.container): its for its in ended}
                return
        self._report(replica, end, previous=pods.restarts(pod, end.container) > replica.restarts)

    def _see_node(self, kind: str, node: Object) -> None:
        place = name(node)
        if place not in self._names or self._stopping:
            return
        why = f"node {place} was removed from the cluster" if kind == "DELETED" else nodes.not_ready(node)
        if why and nodes.silent(node) and self._api_was_away():
            self._doubt(place)
        elif why:
            self._report_all(place, why)
        else:
            self._trust(place)
        marks = {key: labels(node).get(key, "") for key in SHARING_LABELS}
        for key, before in self._marks.setdefault(place, marks).items():
            if marks[key] != before:
                change = (
                    f"the label {key} of node {place} was {before or 'not there'} and became {marks[key] or 'none'}"
                )
                self._remark(
                    f"{place}/{key}", f"{change} while replicas ran: how their GPU was shared may have changed."
                )
        for pressure, message in nodes.pressures(node).items():
            self._remark(f"{place}/{pressure}", f"node {place} was under {pressure} while replicas ran ({message}).")

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

    def _look_again(self, place: str) -> None:
        if why := self._not_ready(place):
            self._report_all(place, why)
        self._trust(place)  # Only now: who stops in between finds it doubted still.

    def _not_ready(self, place: str) -> str:
        return next((nodes.not_ready(node) for node in self._nodes.objects if name(node) == place), "")

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
        index, pod, at_s = replica.index, replica.pod, self._clock.now_s()
        death = collect.death(self._api, index, pod, end, at_s, replica.neighbour, previous=previous)
        collect.keep_log(self._api, pod, self._folder, index, end.container, restarted=previous)
        self.deaths.append(death)
        self._on_death(death)
