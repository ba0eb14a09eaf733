"""The replicas of one experiment as pods: brought up, watched, asked for their results, ended."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.backends.base import Deployment, ReplicaDeath, start_advice
from harness.backends.kubernetes import collect, monitoring, nodes, objects, pods
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.collect import PodLogTail
from harness.backends.kubernetes.objects import PodGroup
from harness.backends.kubernetes.pods import PodReplica
from harness.backends.kubernetes.strangers import Strangers
from harness.backends.kubernetes.watch import PodMonitor, QueueWait, Watcher
from harness.clock import Clock
from harness.errors import AwayError, BackendError, ClusterError, ImageError, ReasonCode, ReplicaDiedError
from harness.metrics.prometheus.telemetry import PrometheusTelemetry
from harness.metrics.quality import Finding
from harness.metrics.rows import Recording, RecordingRequest
from harness.results.manifest import Provenance
from harness.results.provenance import collect as this_machine
from harness.sharing.cluster import cluster_sharing
from harness.sharing.dra import Preparing
from harness.sharing.mode import Notify, Object, PodSharing, unheard
from harness.sharing.node import CAMPAIGN_LABEL, NODES, ended, name
from harness.spec import KubernetesSpec
from harness.spec.experiment import TRACE_S

RecordingMaker = Callable[[KubernetesApi, KubernetesSpec, Sequence[PodReplica], Path, RecordingRequest], Recording]

POLL_S = 0.25
EVENTS_S = 5.0
"""How often it is asked whether the driver cannot prepare a claim."""
FORCE_AFTER_S = 20.0
FORCED_GONE_S = 20.0
UNTOLD_S = 120.0
"""The cluster's garbage collector tells pods to end, within a second; after an outage of the API server it was seen to take a minute."""
FINISH_S = 20.0
"""A load waits 10 s at its end for its last answers."""
SERVER_ADVICE = "Fix `server` as its last lines say; its command has to stay in the foreground and needs no root."


class KubernetesDeployment(Deployment):
    """One attempt's Deployment or Job, or one for each GPU that is shared by claims, and the pods.

    ``neighbour``: the workload of these pods, where they run beside measured ones; ``beside``: those of measured ones, begun and
    ended together; ``by_node``: sharing the node is all that there is to see, where replicas have no GPU, or one or an instance each.
    """

    def __init__(
        self,
        api: KubernetesApi,
        group: PodGroup,
        *,
        clock: Clock,
        record: RecordingMaker = monitoring.recording,
        neighbour: str = "",
        beside: Mapping[str, KubernetesDeployment] | None = None,
        by_node: bool = False,
        switch: Mapping[str, Any] | None = None,
        notice: Notify = unheard,
    ) -> None:
        self._api, self._clock, self._record, self._neighbour = api, clock, record, neighbour
        self.group, self._spec, self._experiment = group, group.spec, group.experiment
        self._folder, self._beside, self._by_node = group.folder, beside or {}, by_node
        self._switch = switch or {}
        self._all = [self, *self._beside.values()]
        self._news = threading.Event()
        self._pods_path = objects.pods_path(self._spec.namespace)
        self._owners = Watcher(api, group.collection, labels=group.selector, listener=self._notify)
        self._pods = Watcher(api, self._pods_path, labels=group.selector, listener=self._notify)
        self._statuses: list[dict[str, Any]] = []
        self._first: list[dict[str, Any]] = []
        self._nodes: list[Object] = []
        self._monitor: PodMonitor | None = None
        self._tail: PodLogTail | None = None
        self._strangers: Strangers | None = None
        self._made, self._made_s = False, math.inf
        self._notice, self._preparing = notice, Preparing(notice)
        self._queue = QueueWait(api, self._spec, self._experiment.timing.ready_timeout_s, notice)
        self._stopped = False
        self.replicas: list[PodReplica] = []

    @property
    def switch(self) -> Mapping[str, Any]:
        """See Deployment.switch."""
        return self._switch

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far, the neighbours' among them."""
        return [*self._own_deaths(), *(death for other in self._beside.values() for death in other.deaths)]

    def _own_deaths(self) -> Sequence[ReplicaDeath]:
        return self._monitor.deaths if self._monitor else ()

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What each measured replica says of itself now, or said last, and which pod, node and image it is."""
        if self.replicas and not self._stopped:
            self._refresh()
        return self._statuses

    def neighbour_statuses(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The same of the replicas of each neighbour, by workload."""
        return {workload: other.statuses() for workload, other in self._beside.items()}

    def _every_replica(self) -> list[PodReplica]:
        return [replica for part in self._all for replica in part.replicas]

    def telemetry(self, path: Path) -> PrometheusTelemetry | None:
        """Of the GPUs of all replicas, as often as Prometheus scrapes their exporter."""
        timing = self._experiment.timing
        return monitoring.telemetry(self._api, self._spec, self._every_replica(), path, timing, self._clock)

    def hottest_celsius(self) -> float:
        """What Prometheus knows of the GPUs that the replicas were on."""
        with monitoring.server(self._api, self._spec) as prometheus:
            return monitoring.origin(prometheus, self._spec, self.replicas).hottest_celsius(prometheus)

    def provenance(self) -> Provenance:
        """The nodes of the replicas, and this harness."""
        return nodes.provenance(self._nodes, self._statuses, this_machine().software)

    def recording(self, request: RecordingRequest) -> Recording:
        """From the Prometheus that watches the cluster; of each neighbour by itself. Raises StorageError."""
        if self._monitor:
            self._monitor.tell(request.notice)
        if self._strangers:
            self._strangers.look()
        if request.enough is not None:
            dead = lambda: {death.replica for death in self._own_deaths()}  # noqa: E731
            self._tail = PodLogTail(self._api, self.replicas, self._folder, request.enough, request.notice, dead)
            request = replace(request, enough=self._tail)
        return self._record(self._api, self._spec, self._every_replica(), self._folder, request)

    def start(self, abort: threading.Event) -> None:
        """Make everything and return when every replica has served, where it should be.

        Raises ReplicaDiedError; AwayError or ImageError where an image cannot be had now or at all; BackendError.
        """
        for part in self._all:
            part.make(abort)
        for part in self._all:  # the scheduler places a neighbour once a measured replica has its node
            part.wait(abort)
        beside = self.neighbour_statuses()
        if beside and (why := collect.apart(self.statuses(), beside, by_node=self._by_node)):
            raise BackendError(why, advice=collect.APART_ADVICE, code=ReasonCode.NEIGHBOUR_APART)

    def make(self, abort: threading.Event) -> None:
        """Make the objects of these pods alone, the first half of ``start``."""
        if abort.is_set():
            raise BackendError("deploying was stopped before every replica had served.")
        self._owners.start()
        self._pods.start()
        api = self._api.until(abort)
        self._made = True
        try:
            for made in (*self.group.beside, *self.group.owners):
                api.make(made.path, made.body)
        except ClusterError as error:
            self._made = error.status is None or error.status >= 500
            raise
        self._made_s = self._clock.now_s()

    def wait(self, abort: threading.Event) -> None:
        """Return when every one of these pods has served, the other half."""
        self._wait_ready(abort)
        self._learn(self._api.until(abort))

    def watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        """From here on report each replica that ends."""
        of = (self._api, self.replicas, self._pods, self._folder, self._clock, self._spec.slice_resource)
        self._monitor = PodMonitor(*of, on_death)
        self._monitor.start()
        if self._spec.gpus_per_replica and not self._neighbour:
            places = dict.fromkeys(replica.node for replica in self._every_replica())
            self._strangers = Strangers(self._api, tuple(places), self.group.labels[CAMPAIGN_LABEL])
            self._strangers.look()
        for other in self._beside.values():
            other.watch(on_death)

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """Fetch what the replicas wrote, end them, and wait until their pods are gone; a node's sentence is said once."""
        if self._strangers and not self._stopped:
            self._strangers.look()
        with ThreadPoolExecutor(len(self._all), thread_name_prefix="stop") as pool:
            ends = [self._stop, *(other.stop for other in self._beside.values())]
            sentences = pool.map(lambda end: end(timeout_s=timeout_s), ends)
            return list(dict.fromkeys(itertools.chain.from_iterable(sentences)))

    def others_on_gpus(self, telemetry: Path) -> Sequence[Finding]:
        """Pods by name, where the cluster tells of them, and memory that is not the experiment's. See Deployment.others_on_gpus."""
        if self._strangers is None:
            return ()
        ours = [statuses for part in self._all for statuses in part.first_and_last()]
        return list(self._strangers.findings(telemetry, ours))

    def first_and_last(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """What each of these replicas said of itself when each had served once, and last."""
        return list(zip(self._first, self._statuses, strict=True))

    def _stop(self, *, timeout_s: float) -> Sequence[str]:
        if self._stopped:
            return []
        self._stopped = True
        try:
            if self._tail:
                self._tail.close()
            remarks = self._monitor.stop() if self._monitor else []
            return [*remarks, *self._collect(), *self._end(timeout_s)]
        finally:
            self._owners.stop()
            self._pods.stop()
            if self._tail:
                self._tail.discard()

    def _notify(self, _kind: str, _item: Object) -> None:
        self._news.set()

    def _wait_ready(self, abort: threading.Event) -> None:
        timeout_s, now_s = self._experiment.timing.ready_timeout_s, self._clock.now_s
        deadline_s, pending_since_s, events_s = self._made_s + timeout_s, math.inf, self._made_s
        while True:
            self._news.clear()
            if abort.is_set():
                raise BackendError("deploying was stopped before every replica had served.")
            progress = self._look()
            if progress.done:
                return
            if progress.ended is not None:
                raise self._died(*progress.ended)
            hindrance = progress.hindrance
            pending_since_s = min(pending_since_s, now_s()) if hindrance else math.inf
            pending = hindrance if now_s() >= pending_since_s + self._spec.pending_s else None
            if obstacle := progress.stuck or pending:
                kind = AwayError if obstacle.away else ImageError if obstacle.of_an_image else BackendError
                raise kind(f"replicas cannot start: {obstacle}.", advice=obstacle.advice)
            if self._spec.by_claims and now_s() >= events_s + EVENTS_S:
                events_s = now_s()
                self._preparing.look(self._pods.objects, self._warnings(), events_s)
            for owner in sorted(self._owners.objects, key=pods.suspended)[-1:]:
                self._queue.poll(owner, now_s())
            if now_s() >= deadline_s:
                waiting = self._queue.why or f"{progress.waiting}."
                raise BackendError(
                    f"not every replica served within {timeout_s:g} s: {waiting}{self._last_event()}",
                    advice="Raise timing.ready_timeout_s, or look at it: kubectl describe pods",
                )
            self._news.wait(POLL_S)

    def _look(self) -> pods.Progress:
        away_s = max(self._owners.away_s, self._pods.away_s)
        if away_s > self._spec.outage_s:
            raise ClusterError(
                f"The API server at {self._api.url} has not answered for {away_s:.0f} s, while replicas were starting.",
                advice="Is the cluster running? Raise `kubernetes.outage_s` where it may be away for longer.",
            )
        kind, owners = self.group.kind, {name(owner): owner for owner in self._owners.objects}
        rollouts = []
        for body in (made.body for made in self.group.owners):
            if owner := owners.get(name(body)):
                its = [pod for pod in self._pods.objects if pods.gpu_of(pod) == pods.gpu_of(body)]
                rollouts.append(pods.rollout({"kind": kind, **owner}, its, objects.count_of(body)))
            else:
                rollouts.append(pods.Progress(False, waiting=f"the {kind} {name(body)} is not there"))
        return pods.together(rollouts)

    def _died(self, pod: Object, end: pods.End) -> ReplicaDiedError:
        names = [name(other) for other in pods.in_order(self._pods.objects)]
        index = names.index(name(pod)) if name(pod) in names else 0
        again, at_s = pods.restarts(pod, end.container) > 0, self._clock.now_s()
        death = collect.death(self._api, index, name(pod), end, at_s, self._neighbour, previous=again)
        advice = SERVER_ADVICE if end.container == pods.SERVER else start_advice(end.exit_code, "node")
        return ReplicaDiedError(f"{death} (while starting; pod {name(pod)}).", advice=advice, code=death.code)

    def _last_event(self) -> str:
        """What a controller or kubelet complained about last, where the status of the pods does not say it."""
        latest = max(self._warnings(), key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
        return f" The last warning: {latest.get('reason')}: {latest.get('message')}" if latest else ""

    def _warnings(self) -> list[Object]:
        """What was complained about the pods."""
        path = f"/api/v1/namespaces/{self._spec.namespace}/events"
        try:
            events = self._api.list(path, fields="type=Warning,involvedObject.kind=Pod")
        except BackendError:
            return []  # not allowed, or the server is gone: it would have been a help, no more
        names = {name(pod) for pod in self._pods.objects}
        return [event for event in events if event["involvedObject"].get("name") in names]

    def _learn(self, api: KubernetesApi) -> None:
        """Ask every replica what it is; and the cluster, where it is."""
        its = pods.in_order(self._pods.objects)
        replicas = [
            pods.as_replica(pod, index, self._neighbour, self._spec.extra_resources) for index, pod in enumerate(its)
        ]
        with ThreadPoolExecutor(max_workers=collect.PARALLEL, thread_name_prefix="status") as pool:
            statuses = list(pool.map(lambda replica: collect.status(api, replica), replicas))
        self._nodes = self._read_nodes(api, [replica.node for replica in replicas])
        how = [PodSharing()] * len(its)
        if self._spec.gpus_per_replica:
            how = cluster_sharing(self._spec).observe(api, self._experiment, self._nodes, its, statuses)
        by_name = {name(node): node for node in self._nodes}
        self.replicas = [
            replica.on_gpus(nodes.devices(status), shared, nodes.driver_denied(by_name.get(replica.node), status))
            for replica, status, shared in zip(replicas, statuses, how, strict=True)
        ]
        self._statuses = [{**status, **replica.facts} for replica, status in zip(self.replicas, statuses, strict=True)]
        self._first = self._statuses
        for sentence in dict.fromkeys(why for replica in self.replicas if (why := replica.facts.get("labels_denied"))):
            self._notice(f"{sentence}.")
        collect.refuse_what_differs(self._statuses, self._experiment, self._spec)

    def _refresh(self) -> None:
        with ThreadPoolExecutor(max_workers=collect.PARALLEL, thread_name_prefix="status") as pool:
            self._statuses = list(pool.map(self._ask_again, self.replicas, self._statuses))

    def _ask_again(self, replica: PodReplica, before: dict[str, Any]) -> dict[str, Any]:
        try:
            return {**collect.status(self._api, replica, patience_s=collect.QUICK_S), **replica.facts}
        except ClusterError:
            return before  # it has ended, or cannot be reached: what it said last is what is known

    def _read_nodes(self, api: KubernetesApi, names: Sequence[str]) -> list[Object]:
        try:
            return [node for place in dict.fromkeys(names) if (node := api.find(f"{NODES}/{place}")) is not None]
        except ClusterError:
            return []  # an account that may not read nodes measures all the same; the manifest says "unknown"

    def _collect(self) -> list[str]:
        dead = {death.replica for death in self._own_deaths() if death.exit_code is None}
        if not self.replicas:
            self._save_logs(dict(enumerate(pods.in_order(self._pods.objects))))
            return []
        over = self.over()
        alive = [replica for replica in self.replicas if replica.index not in dead and replica.pod not in over]
        unanswered = []
        if self._experiment.workload.server is not None or self._experiment.workload.trace:
            unanswered = self._finish(alive)
            self._refresh()  # what failed until the very end
        restarted = {
            (name(pod), container)
            for pod in self._pods.objects
            for container in (pods.CONTAINER, pods.SERVER)
            if pods.restarts(pod, container)
        }
        self._save_logs({replica.index: over[replica.pod] for replica in self.replicas if replica.pod in over})
        return [*unanswered, *collect.results(self._api, alive, self._folder, self.group.routes, restarted)]

    def over(self) -> dict[str, Object]:
        """By name, the pods that answer nothing any more."""
        return {name(pod): pod for pod in self._pods.objects if ended(pod)}

    def _save_logs(self, of: Mapping[int, Object]) -> None:
        """Of pods that answer nothing else, by replica."""
        for index, pod in of.items():
            for container in [entry["name"] for entry in pod["spec"]["containers"]]:
                again = pods.restarts(pod, container) > 0
                collect.keep_log(self._api, name(pod), self._folder, index, container, restarted=again)

    def _finish(self, replicas: Sequence[PodReplica]) -> list[str]:
        """Wait until what was asked of servers is answered or given up; a sentence for each that was asked on."""
        deadline_s = self._clock.now_s() + FINISH_S + (TRACE_S if self._experiment.workload.trace else 0.0)
        left, why = list(replicas), ""
        while left:
            for replica in list(left):
                try:
                    if collect.finished(self._api, replica):
                        left.remove(replica)
                except (ClusterError, ValueError, KeyError) as error:
                    why = f" ({error})"
            if self._clock.now_s() >= deadline_s:
                break
            self._news.wait(POLL_S)
        return [
            f"replica {replica.index} ({replica.pod}) asked its server on when it was told to finish{why}: "
            "what had no answer when its files were fetched is missing in them."
            for replica in left
        ]

    def _end(self, timeout_s: float) -> list[str]:
        """Delete the object and wait for its pods; those that stay are removed by force."""
        if not self._made:
            return []
        timeout_s = max(timeout_s, self._experiment.drain_timeout_s)  # the pods' own grace period
        for owner in self.group.owners:
            self._api.delete(owner.path, propagation="Foreground")
        for other in self.group.beside:
            self._api.delete(other.path)  # a claim goes when the last pod is gone
        begun_s = self._clock.now_s()
        gone = self._gone_within(timeout_s + FORCE_AFTER_S)
        # Force would take away what nobody has told to end, while it runs, and its owner would make others.
        if not gone and not all("deletionTimestamp" in pod["metadata"] for pod in self._pods.objects):
            gone = self._gone_within(UNTOLD_S)
        if gone:
            return self._monitor.unclean_ends() if self._monitor else []
        sentences = []
        took_s = self._clock.now_s() - begun_s
        for pod in self._pods.objects:
            where = pod["spec"].get("nodeName") or "no node"
            sentences.append(f"pod {name(pod)} on {where} did not end within {took_s:.0f} s and was removed by force.")
            self._api.delete(f"{self._pods_path}/{name(pod)}", grace_s=0)
        if not self._gone_within(FORCED_GONE_S):
            sentences.append(f"the {self.group.kind} {self.group.name} is still there.")
        return sentences

    def _gone_within(self, timeout_s: float) -> bool:
        deadline_s = self._clock.now_s() + timeout_s
        # Ask, once the watches see nothing: they may not have seen the beginning yet.
        while (
            self._owners.objects
            or self._pods.objects
            or any(self._api.find(owner.path) is not None for owner in self.group.owners)
            or self._api.list(self._pods_path, labels=self.group.selector)
        ):
            self._news.clear()
            if self._clock.now_s() >= deadline_s:
                return False
            self._news.wait(POLL_S)
        return True
