"""What every pod of this project has to be, and the list of those that are not, each with its reason.

Nothing else may be an exception: the test fails on a pod that breaks a rule without standing here, and on an entry
that nothing needs any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]
WITH_PODS = {"Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job", "CronJob", "Pod"}

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("DaemonSet/node-exporter", "host-network"): "A node's interfaces are seen from its own network namespace alone.",
    ("DaemonSet/node-exporter", "host-path /proc"): "The node's CPU, memory and pressure are in its /proc; read-only.",
    ("DaemonSet/node-exporter", "host-path /sys"): "The node's disks and interfaces are in its /sys; read-only.",
    ("DaemonSet/node-exporter", "host-path /"): "Free space is asked of mounted file systems; read-only.",
    ("DaemonSet/dcgm-exporter", "host-pid"): "Only with dcgm_exporter_per_pod: values per pod come from processes.",
    ("DaemonSet/dcgm-exporter", "root"): (
        "Only with dcgm_exporter_per_pod: the kubelet's socket is root's; and with dcgm_exporter_profiling."
    ),
    ("DaemonSet/dcgm-exporter", "capability SYS_ADMIN"): (
        "Only with dcgm_exporter_profiling: the driver lets nobody less read the counters of the processors."
    ),
    ("DaemonSet/dcgm-exporter", "capability SYS_PTRACE"): (
        "Only with dcgm_exporter_per_pod: which pod a process is of stands in a file of the process's owner."
    ),
    ("DaemonSet/dcgm-exporter", "host-path /var/lib/kubelet/pod-resources"): (
        "Only with dcgm_exporter_per_pod: the kubelet tells there who was given which device; read-only."
    ),
    ("DaemonSet/kepler", "host-pid"): "Energy is shared out by the CPU time of the node's processes.",
    ("DaemonSet/kepler", "root"): "RAPL's counters are readable by root alone, since they leak what others compute.",
    ("DaemonSet/kepler", "capability SYS_PTRACE"): "Which container a process is of stands in its owner's files.",
    ("DaemonSet/kepler", "capability DAC_READ_SEARCH"): "Likewise, for processes of other users.",
    ("DaemonSet/kepler", "apparmor"): "AppArmor's profile of containers hides the processes of others from SYS_PTRACE.",
    ("DaemonSet/kepler", "host-path /proc"): "The node's processes; read-only.",
    ("DaemonSet/kepler", "host-path /sys"): "RAPL is in the node's /sys; read-only.",
    ("DaemonSet/device-plugin", "root"): "The kubelet's folder of plugins is root's.",
    ("DaemonSet/device-plugin", "writable-host-path /var/lib/kubelet/device-plugins"): (
        "A device plugin is a socket in the kubelet's folder."
    ),
    ("DaemonSet/device-plugin", "writable-host-path /var/run/cdi"): "It writes the description of the devices there.",
    ("DaemonSet/device-plugin", "host-path /"): "The description names the driver's files as the host has them.",
    ("DaemonSet/device-plugin", "writable-host-path /run/nvidia/mps"): "Only with MPS: pipes to the control daemon.",
    ("DaemonSet/device-plugin", "writable-host-path /run/nvidia/mps/shm"): "Only with MPS: memory shared with it.",
    ("DaemonSet/device-plugin", "capability SYS_ADMIN"): "Only with MIG: the driver hands MIG devices to nobody less.",
    ("DaemonSet/mps-control-daemon", "privileged"): "Only with MPS: it sets the GPU's compute mode and mounts a tmpfs.",
    ("DaemonSet/mps-control-daemon", "host-pid"): "Only with MPS: the server looks for its clients by their pids.",
    ("DaemonSet/mps-control-daemon", "root"): "Only with MPS: it acts for clients of every user.",
    ("DaemonSet/mps-control-daemon", "writable-root"): "Only with MPS: the control daemon writes beside itself.",
    ("DaemonSet/mps-control-daemon", "escalation"): "Only with MPS: privileged includes it.",
    ("DaemonSet/mps-control-daemon", "capabilities"): "Only with MPS: privileged has all.",
    ("DaemonSet/mps-control-daemon", "seccomp"): "Only with MPS: privileged has no filter.",
    ("DaemonSet/mps-control-daemon", "memory-limit"): "Only with MPS: it serves every client; ended, all of them end.",
    ("DaemonSet/mps-control-daemon", "writable-host-path /run/nvidia/mps"): "Only with MPS: pipes to the clients.",
    (
        "DaemonSet/mps-control-daemon",
        "writable-host-path /run/nvidia/mps/shm",
    ): "Only with MPS: memory shared with them.",
    ("DaemonSet/dra-driver", "privileged"): "It makes device files and mounts memory for MPS that the node has to see.",
    ("DaemonSet/dra-driver", "root"): "The kubelet's folders of plugins are root's.",
    ("DaemonSet/dra-driver", "writable-root"): "It keeps copies of the driver's settings beside itself.",
    ("DaemonSet/dra-driver", "escalation"): "Privileged includes it.",
    ("DaemonSet/dra-driver", "capabilities"): "Privileged has every capability.",
    ("DaemonSet/dra-driver", "seccomp"): "Privileged has no filter.",
    ("DaemonSet/dra-driver", "writable-host-path /var/lib/kubelet/plugins_registry"): (
        "A DRA driver is a socket that the kubelet finds there."
    ),
    (
        "DaemonSet/dra-driver",
        "writable-host-path /var/lib/kubelet/plugins",
    ): "Its state and what MPS clients share is there.",
    (
        "DaemonSet/dra-driver",
        "writable-host-path /var/run/cdi",
    ): "It writes the description of the devices of each claim there.",
    (
        "DaemonSet/dra-driver",
        "writable-host-path /",
    ): "It runs the driver's own nvidia-smi, which sets the compute mode.",
    ("replicas", "requests"): "By design: a replica takes what the node has, as in the experiments it repeats.",
    ("replicas", "memory-limit"): "By design: a replica that is ended for memory would measure the limit.",
}


def pod_of(item: Object) -> Object | None:
    """The pod that an object makes, or None where it makes none."""
    if item["kind"] not in WITH_PODS:
        return None
    spec = item["spec"]
    if item["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec if item["kind"] == "Pod" else spec["template"]["spec"]


def name_of(item: Object) -> str:
    """How the list of exceptions calls an object; replicas have a new name in each experiment."""
    labels = item["metadata"].get("labels", {})
    replica = "gpu-sharing-harness/experiment" in labels
    return "replicas" if replica else f"{item['kind']}/{item['metadata']['name']}"


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
