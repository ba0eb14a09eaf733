"""Switches the sharing mode of the nodes' GPUs, where NVIDIA's device plugin runs with its config manager.

The value of a node's label names the configuration, a key of one ConfigMap, by which the plugin lends its GPUs. What the
labels were is written onto the node in the same request that changes them, so that whoever comes next can put them
back, however this harness ended.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.base import Notify, unheard
from harness.backends.kubernetes.api import Api, KubernetesApi
from harness.backends.kubernetes.nodes import (
    GPU_COUNT_LABEL,
    HOLDERS_ADVICE,
    Object,
    holders,
    offered,
    selected,
    unusable,
)
from harness.backends.kubernetes.pods import condition
from harness.clock import Clock
from harness.errors import BackendError, ClusterError, Issue, IssueLevel
from harness.sharing import device_plugin
from harness.sharing.device_plugin import CONFIG_LABEL, MIG_CONFIG_LABEL, MIG_STATE_LABEL, Configuration
from harness.sharing.modes import mode_of
from harness.spec import ExperimentSpec, KubernetesSpec

NODES = "/api/v1/nodes"
SWITCHED = "gpu-sharing-harness/switched"
"""On a node: by which campaign, what the labels were and what they were set to, and how many GPUs it has."""
LOOK_S = 0.5
STEADY_S = 2.0
"""A node is believed when it shows the mode for this long: a plugin lends its old slices on until it is told."""
TELL_S = 15.0
"""What a node has lacked for so long is told: a plugin that is well takes 2 to 8 s, and 40 s into MPS."""
CONFLICTS = 10
_DAEMON = "mps-control-daemon"


@dataclass(slots=True)
class ModeSwitch:
    """Brings the nodes into the mode of an experiment.

    Attributes:
        campaign_id: marks the nodes that it switched.
        failed: configurations that did not come about once; they are looked at again, and not waited for.
        believed: the configuration that the nodes have shown to be under, unless they have been changed since.
    """

    spec: KubernetesSpec
    campaign_id: str
    clock: Clock
    failed: set[str] = field(default_factory=set)
    believed: str = ""

    def to(
        self, experiment: ExperimentSpec, api: KubernetesApi, abort: threading.Event, notice: Notify = unheard
    ) -> None:
        """Switch what has to be switched, and return when every node shows the mode; ``notice`` is told what is waited for.

        Raises:
            BackendError: somebody else's pod or campaign holds a GPU, a node does not get there, or ``abort`` was set.
        """
        found, pods = api.list(NODES), api.list("/api/v1/pods")
        nodes = gpu_nodes(found, self.spec)
        configurations = device_plugin.read(api.find, self.spec)
        _refuse(check(nodes, pods, configurations, self.spec, [experiment], self.campaign_id))
        counts = {_name(node): gpus(node, configurations, self.spec) for node in nodes}
        wanted = device_plugin.choose(configurations, experiment, counts.values(), self.spec)
        labels = wanted.labels(self.spec)
        changed = [self._label(api, node, labels, counts[_name(node)]) for node in nodes]
        if any(changed) or self.believed != wanted.name:
            self.believed = ""
        limit_s = 0.0 if wanted.name in self.failed else self.spec.switch_timeout_s
        try:
            lent = {name: wanted.lent(count) for name, count in counts.items()}
            self._await(api, lent, wanted, limit_s, abort, notice)
        except BackendError:
            if not abort.is_set():
                self.failed.add(wanted.name)
            raise
        self.failed.discard(wanted.name)
        self.believed = wanted.name

    def _label(self, api: KubernetesApi, node: Object, labels: Mapping[str, str], count: int | None) -> bool:
        """Set a node's labels, and note what they were; False where they are set.

        A change by somebody else in between is looked at first.
        """
        for _ in range(CONFLICTS):
            known = _note(node)
            _refuse_claimed(node, known, self.campaign_id)
            now = _labels(node)
            if all(now.get(key) == value for key, value in labels.items()):
                return False
            before = {key: now.get(key) for key in labels}
            note = {"by": self.campaign_id, "gpus": count, "before": before, **known, "set": dict(labels)}
            changed = {**labels, MIG_STATE_LABEL: "pending"} if MIG_CONFIG_LABEL in labels else labels
            try:
                api.patch(
                    f"{NODES}/{_name(node)}",
                    {
                        "metadata": {
                            "resourceVersion": node["metadata"]["resourceVersion"],
                            "labels": changed,
                            "annotations": {SWITCHED: json.dumps(note)},
                        }
                    },
                )
            except ClusterError as error:
                if error.status != 409:
                    raise
                node = api.get(f"{NODES}/{_name(node)}")
            else:
                return True
        raise BackendError(
            f"node {_name(node)} was changed by somebody else each of {CONFLICTS} times that its labels were to be set.",
            advice="Who sets its labels? kubectl get node -o yaml --show-managed-fields tells.",
        )

    def _await(
        self,
        api: KubernetesApi,
        lent: Mapping[str, int | None],
        wanted: Configuration,
        limit_s: float,
        abort: threading.Event,
        notice: Notify,
    ) -> None:
        """Look until every node has shown the mode for a while."""
        begun_s = steady_since_s = self.clock.now_s()
        since_s: dict[str, float] = {}
        while True:
            lacking = [why for name, count in lent.items() if (why := self._lacking(api, name, count, wanted))]
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

    def _lacking(self, api: KubernetesApi, name: str, lent: int | None, wanted: Configuration) -> str:
        """What a node does not show yet of a configuration; empty when it shows everything."""
        node = api.get(f"{NODES}/{name}")
        pods = api.list("/api/v1/pods", fields=f"spec.nodeName={name}")
        shows = offered((node.get("status") or {}).get("allocatable") or {}, self.spec)
        if (
            mode_of(wanted.mode).own_instance
            and self.spec.mig_config
            and _labels(node).get(MIG_STATE_LABEL) != "success"
        ):
            return f"the MIG manager calls node {name} {_labels(node).get(MIG_STATE_LABEL) or 'nothing'}"
        if shows != lent and (lent is not None or not shows):
            return f"node {name} lends {shows} {self.spec.gpu_resource} and not {lent or 'any'}"
        seen = device_plugin.observed(node, pods, self.spec)
        if seen and wanted.mode not in seen:
            return f"node {name} shows {device_plugin.in_words(seen)} and not {wanted.mode.value}"
        if mode_of(wanted.mode).concurrent and not any(_runs_daemon(pod) for pod in pods):
            return f"no MPS control daemon is ready on node {name}"
        return ""


def check(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    configurations: Sequence[Configuration],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    campaign_id: str,
) -> Iterator[Issue]:
    """What keeps the nodes from being switched to the modes of the experiments.

    Args:
        nodes: whose GPUs replicas may be given.
        pods: of the whole cluster.
        configurations: of the device plugin.
        spec: what the campaign says of the cluster.
        experiments: that are going to run.
        campaign_id: whose own pods and marks are in nobody's way.
    """
    if not nodes:
        message = f"no usable node has a GPU: neither {spec.gpu_resource} nor the label {GPU_COUNT_LABEL}."
        yield Issue(IssueLevel.ERROR, "gpus", message, "Is the device plugin running?")
        return
    counts = {_name(node): gpus(node, configurations, spec) for node in nodes}
    wanted = set()
    for experiment in experiments:
        try:
            chosen = device_plugin.choose(configurations, experiment, counts.values(), spec)
        except BackendError as error:
            yield Issue(IssueLevel.ERROR, "sharing", error.message, error.advice)
            continue
        wanted.add(chosen)
        yield from mode_of(experiment.sharing).check_slices(experiment, [(node, chosen.slices) for node in nodes])
        for name, count in counts.items():
            if count is None and not mode_of(chosen.mode).own_instance:
                message = f"how many GPUs node {name} has cannot be told."
                advice = f"Run NVIDIA's GPU feature discovery, or: kubectl label node {name} {GPU_COUNT_LABEL}=N"
                yield Issue(IssueLevel.ERROR, "gpus", message, advice)
    for node in nodes:
        try:
            _refuse_claimed(node, _note(node), campaign_id)
        except BackendError as error:
            yield Issue(IssueLevel.ERROR, "sharing", error.message, error.advice)
        theirs = holders(node, pods, campaign_id)
        if theirs and all(_is_set(node, each.labels(spec)) for each in wanted):
            message = f"pods that are not of this campaign hold GPUs of node {_name(node)}: {', '.join(theirs)}."
            yield Issue(IssueLevel.WARNING, "gpus", message, HOLDERS_ADVICE)
        elif theirs:
            yield Issue(
                IssueLevel.ERROR,
                "sharing",
                f"node {_name(node)} cannot be switched: {', '.join(theirs)} would lose the GPU.",
                "Let them end, or keep the campaign from that node with `kubernetes.node_selector`.",
            )


def check_cluster(
    api: Api,
    found: Sequence[Object],
    pods: Sequence[Object],
    spec: KubernetesSpec,
    experiments: Sequence[ExperimentSpec],
    campaign_id: str,
) -> Iterator[Issue]:
    """The same of all nodes before anything is started, and whether somebody is there to do it. Raises ClusterError."""
    try:
        configurations = device_plugin.read(api.find, spec)
    except ClusterError:
        raise
    except BackendError as error:
        yield Issue(IssueLevel.ERROR, "sharing", error.message, error.advice)
        return
    nodes = gpu_nodes(found, spec)
    yield from check(nodes, pods, configurations, spec, experiments, campaign_id)
    watched = {pod["spec"].get("nodeName") for pod in pods if _runs_config_manager(pod)}
    for node in nodes:
        if _name(node) not in watched:
            message = (
                f"no config manager of the device plugin is seen on node {_name(node)}: nobody may heed its label."
            )
            advice = "Install the plugin with configurations: docs/cluster.md says how."
            yield Issue(IssueLevel.WARNING, "sharing", message, advice)


def restore(api: Api, spec: KubernetesSpec, campaign_id: str) -> list[str]:
    """Put back the labels that a campaign found, also those that a killed harness set; a sentence for each node."""
    if spec.device_plugin_configs is None:
        return []
    try:
        found = [node for node in api.list(NODES) if _note(node).get("by") == campaign_id]
    except ClusterError as error:
        return [
            f"the nodes' sharing mode could not be put back: {error.message} `harness resume` of the campaign tries again."
        ]
    return [_restored(api, node) for node in found]


def _restored(api: Api, node: Object) -> str:
    note, now = _note(node), _labels(node)
    kept = {key for key, value in note["set"].items() if now.get(key) != value}  # who set it meanwhile keeps it
    before = {key: value for key, value in note["before"].items() if key not in kept}
    try:
        api.patch(f"{NODES}/{_name(node)}", {"metadata": {"labels": before, "annotations": {SWITCHED: None}}})
    except ClusterError as error:
        by_hand = " ".join(f"{key}={value}" if value is not None else f"{key}-" for key, value in before.items())
        return (
            f"node {_name(node)} could not be put back: {error.message} `harness resume` of the campaign tries again. "
            f"By hand: kubectl label --overwrite node {_name(node)} {by_hand}; "
            f"kubectl annotate node {_name(node)} {SWITCHED}-"
        )
    if kept:
        return f"node {_name(node)} keeps {', '.join(sorted(kept))}: somebody else has set it meanwhile."
    return f"node {_name(node)} has the sharing mode again that was found."


def gpu_nodes(nodes: Sequence[Object], spec: KubernetesSpec) -> list[Object]:
    """The nodes with GPUs that replicas may be placed on, whatever the plugin lends just now."""
    return [
        node
        for node in nodes
        if selected(node, spec)
        and not unusable(node, spec)
        and (
            spec.gpu_resource in ((node.get("status") or {}).get("capacity") or {}) or GPU_COUNT_LABEL in _labels(node)
        )
    ]


def gpus(node: Object, configurations: Sequence[Configuration], spec: KubernetesSpec) -> int | None:
    """How many GPUs a node has; None where it cannot be told, as while they are divided into MIG instances."""
    noted = _note(node).get("gpus")
    if noted is not None:
        return int(noted)
    labels = _labels(node)
    if device_plugin.divided(labels, spec):
        return None
    told = str(labels.get(GPU_COUNT_LABEL, ""))
    if told.isdigit():
        return int(told)
    current = next((one for one in configurations if one.name == labels.get(CONFIG_LABEL)), None)
    if current is None or mode_of(current.mode).own_instance:
        return None
    return offered((node.get("status") or {}).get("capacity") or {}, spec) // current.slices or None


def _refuse(findings: Iterator[Issue]) -> None:
    """Raise BackendError with every error."""
    found = [finding for finding in findings if finding.severity is IssueLevel.ERROR]
    if found:
        advice = " ".join(dict.fromkeys(finding.advice for finding in found))
        raise BackendError(" ".join(finding.message for finding in found), advice=advice)


def _refuse_claimed(node: Object, note: Mapping[str, Any], campaign_id: str) -> None:
    if note and note.get("by") != campaign_id:
        raise BackendError(
            f"node {_name(node)} is switched by another campaign ({note.get('by')}).",
            advice="Wait until it is over; `harness resume` of that campaign puts the node back if it was killed. If its "
            f"folder is lost: kubectl annotate node {_name(node)} {SWITCHED}-",
        )


def _note(node: Object) -> dict[str, Any]:
    """What a campaign wrote onto a node; empty where none did."""
    text = (node["metadata"].get("annotations") or {}).get(SWITCHED)
    try:
        found = json.loads(text) if text else {}
        return found if {"by", "before", "set"} <= set(found) else {}
    except (ValueError, TypeError):
        return {}


def _is_set(node: Object, labels: Mapping[str, str]) -> bool:
    now = _labels(node)
    return all(now.get(key) == value for key, value in labels.items())


def _runs_config_manager(pod: Object) -> bool:
    return any(
        entry.get("name") == "NODE_LABEL" and entry.get("value") == CONFIG_LABEL
        for one in pod["spec"].get("containers") or []
        for entry in one.get("env") or []
    )


def _runs_daemon(pod: Object) -> bool:
    names = (str(one.get("name")) for one in pod["spec"].get("containers") or [])
    return any(name.startswith(_DAEMON) for name in names) and condition(dict(pod), "Ready").get("status") == "True"


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])
