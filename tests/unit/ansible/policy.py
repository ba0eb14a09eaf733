"""What every pod of this project has to be, and the list of those that are not, each with its reason.

Nothing else may be an exception: the test fails on a pod that breaks a rule without standing here, and on an entry
that nothing needs any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
PROBE_TIMEOUT_S = 5
WITH_PODS = {"Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CronJob", "Pod"}

_HOOKS = "Hooks link the driver's libraries in it, and crun before 1.26 runs them after it was made read-only."
REASONS: dict[str, dict[str, str]] = {
    "DaemonSet/node-exporter": {
        "host-network": "A node's interfaces are seen from its own network namespace alone.",
        "host-path /proc": "The node's CPU, memory and pressure are in its /proc; read-only.",
        "host-path /sys": "The node's disks and interfaces are in its /sys; read-only.",
        "host-path /": "Free space is asked of mounted file systems; read-only.",
    },
    "DaemonSet/dcgm-exporter": {
        "writable-root": _HOOKS,
        "host-pid": "Only with dcgm_exporter_per_pod: values per pod come from processes.",
        "root": "Only with dcgm_exporter_per_pod: the kubelet's socket is root's; and with dcgm_exporter_profiling.",
        "capability SYS_ADMIN": "Only with dcgm_exporter_profiling: the driver lets nobody less read its counters.",
        "capability SYS_PTRACE": "Only with dcgm_exporter_per_pod: a process's pod stands in a file of its owner.",
        "host-path /var/lib/kubelet/pod-resources": "Only with dcgm_exporter_per_pod: who has which device; read-only.",
    },
    "DaemonSet/kepler": {
        "host-pid": "Energy is shared out by the CPU time of the node's processes.",
        "root": "RAPL's counters are readable by root alone, since they leak what others compute.",
        "capability SYS_PTRACE": "Which container a process is of stands in its owner's files.",
        "capability DAC_READ_SEARCH": "Likewise, for processes of other users.",
        "apparmor": "AppArmor's profile of containers hides the processes of others from SYS_PTRACE.",
        "host-path /proc": "The node's processes; read-only.",
        "host-path /sys": "RAPL is in the node's /sys; read-only.",
    },
    "DaemonSet/device-plugin": {
        "writable-root": _HOOKS,
        "root": "The kubelet's folder of plugins is root's.",
        "writable-host-path /var/lib/kubelet/device-plugins": "A device plugin is a socket in the kubelet's folder.",
        "writable-host-path /var/run/cdi": "It writes the description of the devices there.",
        "host-path /": "The description names the driver's files as the host has them.",
        "writable-host-path /run/nvidia/mps": "Only with MPS: pipes to the control daemon.",
        "writable-host-path /run/nvidia/mps/shm": "Only with MPS: memory shared with it.",
        "capability SYS_ADMIN": "Only with MIG: the driver hands MIG devices to nobody less.",
    },
    "DaemonSet/mps-control-daemon": {
        "privileged": "Only with MPS: it sets the GPU's compute mode and mounts a tmpfs.",
        "host-pid": "Only with MPS: the server looks for its clients by their pids.",
        "root": "Only with MPS: it acts for clients of every user.",
        "writable-root": "Only with MPS: the control daemon writes beside itself.",
        "escalation": "Only with MPS: privileged includes it.",
        "capabilities": "Only with MPS: privileged has all.",
        "seccomp": "Only with MPS: privileged has no filter.",
        "memory-limit": "Only with MPS: it serves every client; ended, all of them end.",
        "writable-host-path /run/nvidia/mps": "Only with MPS: pipes to the clients.",
        "writable-host-path /run/nvidia/mps/shm": "Only with MPS: memory shared with them.",
    },
    "DaemonSet/dra-driver": {
        "privileged": "It makes device files and mounts memory for MPS that the node has to see.",
        "root": "The kubelet's folders of plugins are root's.",
        "writable-root": "It keeps copies of the driver's settings beside itself.",
        "escalation": "Privileged includes it.",
        "capabilities": "Privileged has every capability.",
        "seccomp": "Privileged has no filter.",
        "writable-host-path /var/lib/kubelet/plugins_registry": "The driver is a socket that the kubelet finds there.",
        "writable-host-path /var/lib/kubelet/plugins": "Its state and what MPS clients share is there.",
        "writable-host-path /var/run/cdi": "It writes the description of the devices of each claim there.",
        "writable-host-path /": "It runs the driver's own nvidia-smi, which sets the compute mode.",
    },
    "Job/cuda-smoke": {"writable-root": _HOOKS},
    "replicas": {
        "writable-root": _HOOKS,
        "requests": "By design: a replica takes what the node has, as in the experiments it repeats.",
        "memory-limit": "By design: a replica that is ended for memory would measure the limit.",
    },
}
EXCEPTIONS = {(pod, rule) for pod, rules in REASONS.items() for rule in rules}


def pod_of(item: Object) -> Object | None:
    """The pod that an object makes, or None where it makes none."""
    if item["kind"] not in WITH_PODS:
        return None
    spec = item["spec"]
    if item["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec if item["kind"] == "Pod" else spec["template"]["spec"]


def name_of(item: Object) -> str:
    """How the list of exceptions calls an object; replicas have a new name in each experiment, and the smoke test one for each GPU."""
    labels = item["metadata"].get("labels", {})
    if "gpu-sharing-harness/experiment" in labels:
        return "replicas"
    smoke = labels.get("app.kubernetes.io/name") == "cuda-smoke"
    return f"{item['kind']}/{'cuda-smoke' if smoke else item['metadata']['name']}"


def broken(item: Object) -> Iterator[str]:
    """The rules that an object's pod breaks."""
    pod = pod_of(item)
    if pod is None:
        return
    for field, rule in (("hostNetwork", "host-network"), ("hostPID", "host-pid"), ("hostIPC", "host-ipc")):
        if pod.get(field):
            yield rule
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    yield from _paths(pod, containers)
    for container in containers:
        yield from _container(container, pod.get("securityContext", {}))
        yield from _probes(container)


def _paths(pod: Object, containers: list[Object]) -> Iterator[str]:
    mounts = [mount for container in containers for mount in container.get("volumeMounts", ())]
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            writable = [one for one in mounts if one["name"] == volume["name"] and not one.get("readOnly")]
            yield f"{'writable-' if writable else ''}host-path {volume['hostPath']['path']}"


def _container(container: Object, pod: Object) -> Iterator[str]:
    own = container.get("securityContext", {})
    both = {**pod, **own}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "escalation"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser", 1) == 0:
        yield "root"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "writable-root"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "capabilities"
    yield from (f"capability {name}" for name in own.get("capabilities", {}).get("add", ()))
    if both.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccomp"
    if both.get("appArmorProfile", {}).get("type", "RuntimeDefault") != "RuntimeDefault":
        yield "apparmor"
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= set(resources.get("requests", {})):
        yield "requests"
    if "memory" not in resources.get("limits", {}):
        yield "memory-limit"


def _probes(container: Object) -> Iterator[str]:
    """On a node whose processors are all busy, one second ends what works."""
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in container]
    if any(probe.get("timeoutSeconds", 1) < PROBE_TIMEOUT_S for probe in probes):
        yield "probe-timeout"
