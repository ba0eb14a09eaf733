"""The sharing of a cluster's GPUs: as it is found, by claims, or switched where NVIDIA's device plugin has its config manager.

A node's label names the configuration, a key of one ConfigMap; what it was is written onto the node, so that whoever comes next can put it back.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from harness.clock import Clock, SystemClock
from harness.errors import BackendError, ClusterError, Issue, IssueLevel
from harness.sharing import device_plugin
from harness.sharing.device_plugin import CONFIG_LABEL, MIG_CONFIG_LABEL, Configuration
from harness.sharing.dra import Dra
from harness.sharing.lending import Lending, check_sharing, divided, in_words, lending, strangers
from harness.sharing.mode import ClusterApi, ClusterSharing, Notify, Object, PodSharing, refusal, unheard
from harness.sharing.modes import mode_of
from harness.sharing.node import (
    GPU_COUNT_LABEL,
    HOLDERS_ADVICE,
    NODES,
    PODS,
    holders,
    labels,
    name,
    notes,
    offered,
    resources,
    selected,
    takes,
    withdrawn,
)
from harness.sharing.switch import Switch, runs_config_manager, runs_daemon
from harness.spec import ExperimentSpec, KubernetesSpec

MIG_STATE_LABEL = "nvidia.com/mig.config.state"
SWITCHED = "gpu-sharing-harness/switched"
"""On a node: by which campaign, what the labels were and what they were set to, and how many GPUs it has."""
LOOK_S = 0.5
STEADY_S = 2.0
"""A node is believed when it shows the mode for this long: a plugin lends its old slices on until it is told."""
TELL_S = 15.0
"""What a node has lacked for so long is told: a plugin that is well takes 2 to 8 s, and 40 s into MPS."""
CONFLICTS = 10


def cluster_sharing(spec: KubernetesSpec, campaign_id: str = "", clock: Clock | None = None) -> ClusterSharing:
    """How this cluster's GPUs come to be shared."""
    if spec.by_claims:
        return Dra(spec, campaign_id)
    if spec.device_plugin_configs is None:
        return AsLent(spec, campaign_id)
    return SwitchedPlugin(spec, campaign_id, clock or SystemClock())


@dataclass(slots=True)
class AsLent(ClusterSharing):
    """The GPUs as the device plugin lends them when the campaign begins."""

    fixed_slices: ClassVar[bool] = True
    log_advice: ClassVar[str] = "Say what there is in `sharing`, or switch the cluster: harness node sharing MODE."

    def check(self, api: ClusterApi, nodes: Sequence[Object], experiments: Sequence[ExperimentSpec]) -> Iterable[Issue]:
        """Whether the GPUs are shared as the experiments say."""
        wanted = [node for node in nodes if selected(node, self.spec)]
        return check_sharing(wanted, api.list(PODS), self.spec, experiments)

    def observe(
        self,
        api: ClusterApi,
        experiment: ExperimentSpec,
        nodes: Sequence[Object],
        pods: Sequence[Object],
        statuses: Sequence[Object],
    ) -> list[PodSharing]:
        """By each pod's node, its device plugin where pods of others may be read, and what the pod sees.

        A node may show several modes, or none. A share that is a part of N is refused where another N is on a GPU.
        """
        _refuse_another_share(experiment, statuses)
        try:
            around = api.list(PODS)
        except ClusterError:
            around = []
        by_node = {name(node): lending(node, around, self.spec) for node in nodes}
        shown = [by_node.get(str(pod["spec"].get("nodeName")), Lending(frozenset())) for pod in pods]
        return [
            PodSharing(how.in_words(status), how.slices, denied=how.denied)
            for how, status in zip(shown, statuses, strict=True)
        ]


@dataclass(slots=True)
class SwitchedPlugin(AsLent):
    """The device plugin, told anew for each mode."""

    clock: Clock = field(default_factory=SystemClock)
    failed: set[str] = field(default_factory=set)
    """Configurations that did not come about once; they are looked at again, and not waited for."""
    believed: str = ""
    """The configuration that the nodes have shown, unless they have been changed since."""

    fixed_slices: ClassVar[bool] = False
    log_advice: ClassVar[str] = (
        "The device plugin lent its slices before it was told: read the log of its config manager."
    )

    def check(self, api: ClusterApi, nodes: Sequence[Object], experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
        """Whether the nodes can be switched, and somebody is there to do it."""
        try:
            configurations = device_plugin.read(api.find, self.spec)
        except BackendError as error:
            if isinstance(error, ClusterError):
                raise
            yield refusal(error.message, error.advice)
            return
        nodes, pods = gpu_nodes(nodes, self.spec), api.list(PODS)
        yield from self._check(nodes, pods, configurations, experiments)
        watched = {pod["spec"].get("nodeName") for pod in pods if runs_config_manager(pod)}
        for node in nodes:
            if name(node) not in watched:
                message = f"no config manager of the device plugin is seen on node {name(node)}: its label may have no effect."
                advice = "Install the plugin with configurations: docs/cluster.md says how."
                yield Issue(IssueLevel.WARNING, "sharing", message, advice)

    def switch(
        self, api: ClusterApi, experiment: ExperimentSpec, abort: threading.Event, notice: Notify = unheard
    ) -> Switch | None:
        """Switch what has to be switched, and return when every node shows the mode. Raises BackendError."""
        begun_s = self.clock.now_s()
        nodes, pods = gpu_nodes(api.list(NODES), self.spec), api.list(PODS)
        configurations = device_plugin.read(api.find, self.spec)
        issues = self._check(nodes, pods, configurations, [experiment])
        if errors := [issue for issue in issues if issue.severity is IssueLevel.ERROR]:
            advice = " ".join(dict.fromkeys(finding.advice for finding in errors))
            raise BackendError(" ".join(finding.message for finding in errors), advice=advice)
        counts = {name(node): gpus(node, configurations, self.spec) for node in nodes}
        wanted = device_plugin.choose(configurations, experiment, counts.values(), self.spec)
        changed = [self._label(api, node, wanted.labels(self.spec), counts[name(node)], notice) for node in nodes]
        if any(changed) or self.believed != wanted.name:
            self.believed = ""
        step = Switch(wanted.name, begun_s, self.clock.now_s(), nodes, pods, self.spec)
        limit_s = 0.0 if wanted.name in self.failed else self.spec.switch_timeout_s
        lent = {node: wanted.lent(count) for node, count in counts.items()}
        try:
            self._await(api, lent, wanted, limit_s, abort, notice, step)
        except BackendError as error:
            # An API server that is away says nothing of the configuration.
            if not abort.is_set() and not isinstance(error, ClusterError):
                self.failed.add(wanted.name)
            raise
        self.failed.discard(wanted.name)
        self.believed = wanted.name
        if not any(changed):
            return None
        step.accepted_s = self.clock.now_s()
        notice(str(step))
        return step

    def restore(self, api: ClusterApi) -> list[str]:
        """Put back the labels that a campaign found."""
        try:
            nodes = [node for node in api.list(NODES) if _note(node).get("by") == self.campaign_id]
        except ClusterError as error:
            return [f"the nodes' sharing mode could not be put back: {error.message} `harness resume` tries again."]
        return [_restored(api, node) for node in nodes]

    def _check(
        self,
        nodes: Sequence[Object],
        pods: Sequence[Object],
        configurations: Sequence[Configuration],
        experiments: Sequence[ExperimentSpec],
    ) -> Iterator[Issue]:
        """What keeps nodes with GPUs from being switched to the modes of the experiments."""
        if not nodes:
            message = f"no usable node has a GPU: neither {self.spec.gpu_resource} nor the label {GPU_COUNT_LABEL}."
            yield Issue(IssueLevel.ERROR, "gpus", message, "Is the device plugin running?")
            return
        counts = {name(node): gpus(node, configurations, self.spec) for node in nodes}
        wanted = set()
        for experiment in experiments:
            try:
                chosen = device_plugin.choose(configurations, experiment, counts.values(), self.spec)
            except BackendError as error:
                yield refusal(error.message, error.advice)
                continue
            wanted.add(chosen)
            yield from mode_of(experiment.sharing).check_slices(experiment, [(node, chosen.slices) for node in nodes])
            for place, count in counts.items():
                if count is None and not mode_of(chosen.mode).own_instance:
                    message = f"it is unknown how many GPUs node {place} has."
                    advice = f"Run NVIDIA's GPU feature discovery, or: kubectl label node {place} {GPU_COUNT_LABEL}=N"
                    yield Issue(IssueLevel.ERROR, "gpus", message, advice)
        for node in nodes:
            if why := _claimed(node, self.campaign_id):
                yield refusal(why.message, why.advice)
            theirs = ", ".join(holders(node, pods, self.campaign_id))
            if theirs and all(_has(node, configuration.labels(self.spec)) for configuration in wanted):
                message = f"pods that are not of this campaign hold GPUs of node {name(node)}: {theirs}."
                yield Issue(IssueLevel.WARNING, "gpus", message, HOLDERS_ADVICE)
            elif theirs:
                message = f"node {name(node)} cannot be switched: {theirs} would lose the GPU."
                advice = "Let them end, or keep the campaign from that node with `kubernetes.node_selector`."
                yield refusal(message, advice)

    def _label(
        self, api: ClusterApi, node: Object, wanted: Mapping[str, str], count: int | None, notice: Notify
    ) -> bool:
        """Set a node's labels, and note what they were; False where they are set.

        A change by somebody else in between is looked at first. What somebody set since the campaign did is told, and put back.
        """
        path = f"{NODES}/{name(node)}"
        for _ in range(CONFLICTS):
            if why := _claimed(node, self.campaign_id):
                raise why
            if _has(node, wanted):
                return False
            noted = _note(node)
            theirs = {
                key: labels(node).get(key)
                for key, value in noted.get("set", {}).items()
                if labels(node).get(key) != value
            }
            before = {key: labels(node).get(key) for key in wanted} | noted.get("before", {}) | theirs
            note = {"gpus": count, **noted, "by": self.campaign_id, "before": before, "set": dict(wanted)}
            changed = {**wanted, MIG_STATE_LABEL: "pending"} if MIG_CONFIG_LABEL in wanted else wanted
            metadata = {
                "resourceVersion": node["metadata"]["resourceVersion"],
                "labels": changed,
                "annotations": {SWITCHED: json.dumps(note)},
            }
            try:
                api.patch(path, {"metadata": metadata})
            except ClusterError as error:
                if error.status != 409:
                    raise
                node = api.get(path)
            else:
                if theirs:
                    are = ", ".join(f"{key}={value or ''}" for key, value in theirs.items())
                    notice(
                        f"another user has set {are} on node {name(node)} since this campaign did: it is put back at the end."
                    )
                return True
        raise BackendError(
            f"node {name(node)} was changed by another client each of {CONFLICTS} times that its labels were to be set.",
            advice="Find who sets its labels: kubectl get node -o yaml --show-managed-fields.",
        )

    def _await(
        self,
        api: ClusterApi,
        lent: Mapping[str, int | None],
        wanted: Configuration,
        limit_s: float,
        abort: threading.Event,
        notice: Notify,
        step: Switch,
    ) -> None:
        """Look until every node has shown the mode for a while."""
        begun_s = steady_since_s = self.clock.now_s()
        since_s: dict[str, float] = {}
        while True:
            lacking = [why for place, count in lent.items() if (why := self._lacking(api, place, count, wanted, step))]
            now_s = self.clock.now_s()
            since_s = {why: since_s.get(why, now_s) for why in lacking}
            for why in [why for why, first_s in since_s.items() if now_s - first_s >= TELL_S]:
                since_s[why] = math.inf  # once
                notice(f"waits up to {limit_s:g} s for the nodes to be under {wanted.name}: {why}.")
            if lacking:
                steady_since_s = now_s
                if now_s - begun_s >= limit_s:
                    raise BackendError(
                        f"the nodes were set to {wanted.name} and are not there after {now_s - begun_s:.0f} s: "
                        f"{'; '.join(lacking)}.",
                        advice="Read the log of the device plugin and of its config manager on that node, or raise "
                        "`kubernetes.switch_timeout_s`.",
                    )
            elif self.believed or now_s - steady_since_s >= STEADY_S:
                return
            if self.clock.wait_until(now_s + LOOK_S, abort):
                raise BackendError(f"stopped while the nodes were switched to {wanted.name}.")

    def _lacking(self, api: ClusterApi, place: str, lent: int | None, wanted: Configuration, step: Switch) -> str:
        """What a node does not show yet of a configuration; empty when it shows everything."""
        node, mode = api.get(f"{NODES}/{place}"), mode_of(wanted.mode)
        pods = api.list(PODS, fields=f"spec.nodeName={place}")
        step.see(node, pods, lent, self.clock.now_s(), with_daemon=mode.concurrent)
        shows, mig_state = offered(node, self.spec), labels(node).get(MIG_STATE_LABEL)
        if mode.own_instance and self.spec.mig_config and mig_state != "success":
            return f"the MIG manager calls node {place} {mig_state or 'nothing'}"
        if shows != lent and (lent is not None or not shows):
            less = withdrawn(node, str(self.spec.gpu_resource))
            by = f" ({they} manages them)" if (they := strangers(node)) else ""
            return less or f"node {place} advertises {shows} {self.spec.gpu_resource} and not {lent or 'any'}{by}"
        how = lending(node, pods, self.spec)
        if how.modes and wanted.mode not in how.modes:
            return f"node {place} shows {in_words(how.modes)} and not {wanted.mode.value}"
        if how.denied:  # feature discovery labels a node a minute later
            return f"of node {place} {'; '.join(how.denied)}"
        if mode.concurrent and not any(runs_daemon(pod) for pod in pods):
            return f"no MPS control daemon is ready on node {place}"
        return ""


def _refuse_another_share(experiment: ExperimentSpec, statuses: Sequence[Object]) -> None:
    """Raise BackendError where the device plugin has not put as many replicas on each GPU as a part of N is reckoned with."""
    on = Counter(str(status.get("device_uuid") or "") for status in statuses)
    if experiment.mps is None or not experiment.mps.of_replicas or "" in on or experiment.neighbours:
        return
    gpus = min(experiment.gpus, len(statuses))
    if len(on) == gpus and max(on.values()) == experiment.replicas_per_gpu:
        return
    where = ", ".join(f"{count} on {uuid}" for uuid, count in on.items())
    raise BackendError(
        f"`mps.share: {experiment.mps.share}` is reckoned with {experiment.replicas_per_gpu} replicas on a GPU, since the campaign says "
        f"`gpus: {experiment.gpus}`, and the device plugin has put {where}.",
        advice=f"Say `gpus: {len(on)}`, keep the replicas to fewer GPUs (`kubernetes.node_selector`), or give the share in percent.",
    )


def gpu_nodes(nodes: Iterable[Object], spec: KubernetesSpec) -> list[Object]:
    """The nodes with GPUs that replicas may be placed on, whatever the plugin lends just now."""
    return [
        node
        for node in nodes
        if takes(node, spec) and (spec.gpu_resource in resources(node, "capacity") or GPU_COUNT_LABEL in labels(node))
    ]


def gpus(node: Object, configurations: Sequence[Configuration], spec: KubernetesSpec) -> int | None:
    """How many GPUs a node has; None where it cannot be told, as while they are divided into MIG instances."""
    noted = _note(node).get("gpus")
    if noted is not None:
        return int(noted)
    if divided(node, spec):
        return None
    count = str(labels(node).get(GPU_COUNT_LABEL, ""))
    if count.isdigit():
        return int(count)
    current = next((entry for entry in configurations if entry.name == labels(node).get(CONFIG_LABEL)), None)
    if current is None or current.single:  # where GPUs may be divided
        return None
    return offered(node, spec, "capacity") // current.slices or None


def _restored(api: ClusterApi, node: Object) -> str:
    note, place = _note(node), name(node)
    kept = {
        key for key, value in note["set"].items() if labels(node).get(key) != value
    }  # who set it meanwhile keeps it
    before = {key: value for key, value in note["before"].items() if key not in kept}
    try:
        api.patch(f"{NODES}/{place}", {"metadata": {"labels": before, "annotations": {SWITCHED: None}}})
    except ClusterError as error:
        by_hand = " ".join(f"{key}={value}" if value is not None else f"{key}-" for key, value in before.items())
        return (
            f"node {place} could not be put back: {error.message} `harness resume` of the campaign tries again. "
            f"By hand: kubectl label --overwrite node {place} {by_hand}; kubectl annotate node {place} {SWITCHED}-"
        )
    if kept:
        return f"node {place} keeps {', '.join(sorted(kept))}: another user has set it meanwhile."
    return f"node {place} has the sharing mode again that was found."


def _claimed(node: Object, campaign_id: str) -> BackendError | None:
    """That another campaign has switched a node; None: none has."""
    by = _note(node).get("by", campaign_id)
    if by == campaign_id:
        return None
    return BackendError(
        f"node {name(node)} is switched by another campaign ({by}).",
        advice="Wait until it is over; `harness resume` of that campaign puts the node back if it was killed. If its "
        f"folder is lost: kubectl annotate node {name(node)} {SWITCHED}-",
    )


def _note(node: Object) -> dict[str, Any]:
    """What a campaign wrote onto a node; empty where none did."""
    text = notes(node).get(SWITCHED)
    try:
        note = json.loads(text) if text else {}
        return note if {"by", "before", "set"} <= set(note) else {}
    except (ValueError, TypeError):
        return {}


def _has(node: Object, wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels(node).items()
