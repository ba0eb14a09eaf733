"""When a switch of a cluster's sharing mode came how far: what of its time the device plugin needs, and what the harness adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.results.layout import iso
from harness.sharing.device_plugin import CONFIG_LABEL
from harness.sharing.mode import Object
from harness.sharing.node import condition, name, offered
from harness.spec import KubernetesSpec

_DAEMON = "mps-control-daemon"


class Switch:
    """The moments of one switch, in seconds of the clock; None: that was not seen, as where nothing restarts.

    The device plugin's own part is from ``written_s``, when the last label was written, to ``shown_s``, when each node had lent as many
    slices as it should with its plugin, and the MPS daemon where one is needed, ready; the rest is the harness's.
    """

    def __init__(
        self,
        configuration: str,
        begun_s: float,
        written_s: float,
        nodes: Sequence[Object],
        pods: Sequence[Object],
        spec: KubernetesSpec,
    ) -> None:
        self.configuration, self.begun_s, self.written_s = configuration, begun_s, written_s
        self.plugin_restarted_s: float | None = None
        self.allocatable_changed_s: float | None = None
        self.shown_s: float | None = None
        self.accepted_s = begun_s
        self._spec = spec
        self._lent = {name(node): offered(node, spec) for node in nodes}
        self._plugins = {
            place: _starts(pod for pod in pods if pod["spec"].get("nodeName") == place) for place in self._lent
        }
        self._left = set(self._lent)

    def see(self, node: Object, pods: Sequence[Object], lent: int | None, now_s: float, *, with_daemon: bool) -> None:
        """Take note of a node and its pods as they are; it is to lend so many slices, of any number where that is None."""
        place, lends = name(node), offered(node, self._spec)
        plugins = [pod for pod in pods if runs_config_manager(pod)]
        if lends != self._lent[place] and self.allocatable_changed_s is None:
            self.allocatable_changed_s = now_s
        if _starts(plugins) != self._plugins[place] and self.plugin_restarted_s is None:
            self.plugin_restarted_s = now_s
        right = bool(lends) if lent is None else lends == lent
        there = bool(plugins) or not self._plugins[place]  # absent while it is made anew
        ready = there and all(map(_ready, plugins)) and (not with_daemon or any(map(runs_daemon, pods)))
        if not (right and ready):  # also where it had looked so because its plugin had not begun yet
            self._left.add(place)
            self.shown_s = None
            return
        self._left.discard(place)
        if not self._left and self.shown_s is None:
            self.shown_s = now_s

    def facts(self) -> dict[str, Any]:
        """For journal and manifest, once it was accepted."""
        moments = {
            "begun": self.begun_s,
            "written": self.written_s,
            "plugin_restarted": self.plugin_restarted_s,
            "allocatable_changed": self.allocatable_changed_s,
            "shown": self.shown_s,
            "accepted": self.accepted_s,
        }
        at = {f"{moment}_at": iso(moment_s) for moment, moment_s in moments.items() if moment_s is not None}
        seconds = {"seconds": self.accepted_s - self.begun_s}
        if self.shown_s is not None:
            seconds["plugin_seconds"] = self.shown_s - self.written_s
        return {"configuration": self.configuration, **at, **{key: round(value, 3) for key, value in seconds.items()}}

    def __str__(self) -> str:
        facts = self.facts()
        of_plugin = (
            f", of which the device plugin needed {facts['plugin_seconds']:.1f} s" if "plugin_seconds" in facts else ""
        )
        return f"switched the nodes to {self.configuration} in {facts['seconds']:.1f} s{of_plugin}."


def runs_config_manager(pod: Object) -> bool:
    """Whether it is the device plugin's, and heeds the node's label."""
    variables = [entry for container in pod["spec"].get("containers") or [] for entry in container.get("env") or []]
    return any((entry.get("name"), entry.get("value")) == ("NODE_LABEL", CONFIG_LABEL) for entry in variables)


def runs_daemon(pod: Object) -> bool:
    """Whether it is an MPS control daemon that is ready."""
    names = (str(container.get("name")) for container in pod["spec"].get("containers") or [])
    return any(text.startswith(_DAEMON) for text in names) and _ready(pod)


def _starts(pods: Iterable[Object]) -> set[tuple[str, int]]:
    """The pods of the device plugin, each with how often a container of it was started again."""
    starts = set()
    for pod in pods:
        if runs_config_manager(pod):
            statuses = (pod.get("status") or {}).get("containerStatuses") or []
            starts.add((str(pod["metadata"]["uid"]), sum(int(entry.get("restartCount") or 0) for entry in statuses)))
    return starts


def _ready(pod: Object) -> bool:
    return str(condition(pod, "Ready").get("status")) == "True"
