"""Pages of exporters as their real ones write them, for a node with any number of GPUs and pods.

Names, labels and label sets are those of node-exporter 1.12, the DCGM exporter 4.5.3-4.8.2, kube-state-metrics 2.20 and
the kubelet 1.35 on CRI-O; values are made up and move with the time (seconds since the epoch), counters upwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NODE = "controlplane"
SINCE_S = 1_700_000_000.0
GIB = 2**30
CPU_MODES = {
    "idle": 0.4,
    "iowait": 0.01,
    "irq": 0.0,
    "nice": 0.0,
    "softirq": 0.02,
    "steal": 0.0,
    "system": 0.1,
    "user": 0.47,
}
DISKS = {"read_bytes": 1e6, "written_bytes": 4e6, "io_time_seconds": 0.2, "reads_completed": 20.0}
PRESSURES = {"cpu_waiting": 0.31, "io_stalled": 0.02, "io_waiting": 0.04, "memory_stalled": 0.0, "memory_waiting": 0.01}
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
EVICTION_REASONS = ("Evicted", "NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError")
CONDITIONS = {"Ready": "true", "MemoryPressure": "false", "DiskPressure": "false", "PIDPressure": "false"}


@dataclass(frozen=True)
class Pod:
    """A pod as kube-state-metrics and cAdvisor know it."""

    namespace: str
    name: str
    container: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class Page:
    """Lines of the text format; labels in the order in which they are given."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def head(self, name: str, kind: str) -> None:
        self._lines += [f"# HELP {name} As the exporter says.", f"# TYPE {name} {kind}"]

    def add(self, name: str, value: float, labels: Mapping[str, str] | None = None, at_ms: int | None = None) -> None:
        pairs = ",".join(f'{label}="{text}"' for label, text in (labels or {}).items())
        braces = f"{{{pairs}}}" if pairs else ""
        self._lines.append(f"{name}{braces} {float(value)!r}" + ("" if at_ms is None else f" {at_ms}"))

    def family(self, name: str, kind: str, rows: Iterator[tuple[Mapping[str, str], float]]) -> None:
        self.head(name, kind)
        for labels, value in rows:
            self.add(name, value, labels)

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def node_exporter(now_s: float, *, cores: int = 4, node: str = NODE) -> str:
    """``/metrics`` of node-exporter."""
    page, age_s = Page(), now_s - SINCE_S
    modes = (
        ({"cpu": str(core), "mode": mode}, age_s * share) for core in range(cores) for mode, share in CPU_MODES.items()
    )
    page.family("node_cpu_seconds_total", "counter", modes)
    for name, gib in {"MemTotal": 62.5, "MemAvailable": 41.0, "MemFree": 20.0, "Cached": 18.0, "Buffers": 1.0}.items():
        page.family(f"node_memory_{name}_bytes", "gauge", iter([({}, gib * GIB)]))
    disks = [
        ("/dev/vda1", "ext4", "/", 100, 61),
        ("/dev/vda15", "vfat", "/boot/efi", 1, 0.9),
        ("tmpfs", "tmpfs", "/run", 6, 6),
    ]
    for name, column in {"size": 3, "avail": 4, "free": 4}.items():
        rows = (
            ({"device": one[0], "device_error": "", "fstype": one[1], "mountpoint": one[2]}, one[column] * GIB)
            for one in disks
        )
        page.family(f"node_filesystem_{name}_bytes", "gauge", rows)
    for name, per_s in DISKS.items():
        rows = (({"device": device}, age_s * per_s) for device in ("vda", "loop0"))
        page.family(f"node_disk_{name}_total", "counter", rows)
    for way in ("receive", "transmit"):
        for name, per_s in {"bytes": 2e5, "packets": 200.0, "errs": 0.0, "drop": 0.0}.items():
            page.family(f"node_network_{way}_{name}_total", "counter", iter([({"device": "eth0"}, age_s * per_s)]))
    for minutes, value in {"1": 2.5, "5": 2.1, "15": 1.8}.items():
        page.family(f"node_load{minutes}", "gauge", iter([({}, value)]))
    for name, share in PRESSURES.items():
        page.family(f"node_pressure_{name}_seconds_total", "counter", iter([({}, age_s * share)]))
    uname = {"domainname": "(none)", "machine": "x86_64", "nodename": node, "release": "6.14.0-36-generic"}
    uname |= {"sysname": "Linux"}
    page.family("node_uname_info", "gauge", iter([(uname | {"version": "#36~24.04.1-Ubuntu SMP"}, 1)]))
    return str(page)


DCGM_FIELDS = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", 1755),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", 6251),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", 61),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", 58.3),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", 97),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", 41),
    "DCGM_FI_DEV_FB_FREE": ("gauge", 11_600),
    "DCGM_FI_DEV_FB_USED": ("gauge", 3_340),
    "DCGM_FI_DEV_FB_RESERVED": ("gauge", 416),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", 0),
}
# Read only by exporters with the right to profile.
DCGM_FIELDS |= {"DCGM_FI_PROF_SM_ACTIVE": ("gauge", 0.62), "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gauge", 0.31)}
PER_POD_FIELDS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")


def dcgm_exporter(now_s: float, gpus: int, *, sharing: Sequence[Pod] = (), node: str = NODE) -> str:
    """``/metrics`` of the DCGM exporter.

    With ``sharing``, as with KUBERNETES_VIRTUAL_GPUS: two fields have the device's row and one per pod, the others have
    the device's value once for every pod and no row of the device's own.
    """
    page = Page()
    devices = [
        {
            "gpu": str(index),
            "UUID": f"GPU-{index:08x}-1111-2222-3333-444444444444",
            "pci_bus_id": f"00000000:{6 + index:02X}:00.0",
            "device": f"nvidia{index}",
            "modelName": "NVIDIA A16",
            "Hostname": node,
        }
        for index in range(gpus)
    ]
    owners = [{"container": pod.container, "namespace": pod.namespace, "pod": pod.name} for pod in sharing]
    for name, (kind, value) in DCGM_FIELDS.items():
        page.head(name, kind)
        for device in devices:
            if not owners or name in PER_POD_FIELDS:
                page.add(name, value, device)
            for owner in owners:
                own = value / len(owners) if name in PER_POD_FIELDS else value
                page.add(name, own if "PROF" in name else math.floor(own), device | owner)
        # Of an instance of MIG it has no utilisation, and says 0.
        for device in devices[-1:] if name.endswith("_UTIL") else ():
            page.add(name, 0, device | {"GPU_I_PROFILE": "1g.5gb", "GPU_I_ID": "7"})
    page.head("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter")
    for device in devices:
        page.add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", round((now_s - SINCE_S) * 58_300), device)
    return str(page)


def kube_state_metrics(now_s: float, pods: Sequence[Pod], *, gpus: int, node: str = NODE) -> str:
    """``/metrics`` of kube-state-metrics."""
    page = Page()
    keys = [{"namespace": pod.namespace, "pod": pod.name, "uid": f"uid-{pod.name}"} for pod in pods]
    info = {"host_ip": "192.0.2.10", "created_by_kind": "ReplicaSet", "created_by_name": "x", "node": node}
    page.family("kube_pod_info", "gauge", ((key | info, 1) for key in keys))
    page.family("kube_pod_start_time", "gauge", ((key, now_s - 300) for key in keys))
    phases = ((key | {"phase": phase}, float(phase == "Running")) for key in keys for phase in PHASES)
    page.family("kube_pod_status_phase", "gauge", phases)
    ready = (
        (key | {"condition": state}, float(state == "true")) for key in keys for state in ("true", "false", "unknown")
    )
    page.family("kube_pod_status_ready", "gauge", ready)
    reasons = ((key | {"reason": reason}, 0.0) for key in keys for reason in EVICTION_REASONS)
    page.family("kube_pod_status_reason", "gauge", reasons)
    containers = [key | {"container": pod.container} for key, pod in zip(keys, pods, strict=True)]
    page.family("kube_pod_container_status_restarts_total", "counter", ((one, 0) for one in containers))
    states = (
        ({"node": node, "condition": name, "status": status}, float(status == wanted))
        for name, wanted in CONDITIONS.items()
        for status in ("true", "false", "unknown")
    )
    page.family("kube_node_status_condition", "gauge", states)
    resources = {("cpu", "core"): 16, ("memory", "byte"): 62 * GIB, ("pods", "integer"): 110}
    if gpus:
        resources["nvidia_com_gpu", "integer"] = gpus * 10
    allocatable = (({"node": node, "resource": name, "unit": unit}, value) for (name, unit), value in resources.items())
    page.family("kube_node_status_allocatable", "gauge", allocatable)
    return str(page)


def kubelet(now_s: float, *, pods: int, node: str = NODE) -> str:
    """``/metrics`` of the kubelet: of hundreds of families, one of each kind, and some that nobody wants."""
    page = Page()
    page.family("kubelet_node_name", "gauge", iter([({"node": node}, 1)]))
    page.family("kubelet_running_pods", "gauge", iter([({}, pods)]))
    page.family("process_cpu_seconds_total", "counter", iter([({}, (now_s - SINCE_S) * 0.05)]))
    page.family("rest_client_requests_total", "counter", iter([({"code": "200", "method": "GET"}, now_s - SINCE_S)]))
    return str(page)


CADVISOR_COUNTERS = {
    "container_cpu_usage_seconds_total": ({"cpu": "total"}, 0.9),
    "container_fs_reads_bytes_total": ({"device": "/dev/vda"}, 1e4),
    "container_fs_writes_bytes_total": ({"device": "/dev/vda"}, 2e4),
    "container_oom_events_total": ({}, 0.0),
    "container_pressure_cpu_waiting_seconds_total": ({}, 0.2),
    "container_pressure_memory_waiting_seconds_total": ({}, 0.01),
    "container_pressure_io_waiting_seconds_total": ({}, 0.02),
}
CADVISOR_GAUGES = {
    "container_memory_working_set_bytes": ({}, 1.5 * GIB),
    "container_fs_usage_bytes": ({"device": "/dev/vda"}, 0.1 * GIB),
    "container_tasks_state": ({"state": "running"}, 0.0),
}


def cadvisor(now_s: float, pods: Sequence[Pod]) -> str:
    """``/metrics/cadvisor`` of the kubelet.

    Beside a pod's container there are its own control group (no container) and its sandbox (container POD), which count
    the same again; and the groups of the system, which belong to no pod. Every sample has a time.
    """
    page, at_ms = Page(), round(now_s * 1000)
    groups = [_system("/"), _system("/system.slice"), _system("/system.slice/crio.service"), _system("/kubepods.slice")]
    for pod in pods:
        groups += [
            _group(pod, "", ""),
            _group(pod, "POD", "registry.k8s.io/pause:3.10.1"),
            _group(pod, pod.container, "img"),
        ]
    for name, (more, per_s) in CADVISOR_COUNTERS.items():
        page.head(name, "counter")
        for group in groups:
            page.add(name, (now_s - SINCE_S) * per_s, group | more, at_ms)
    for name, (more, value) in CADVISOR_GAUGES.items():
        page.head(name, "gauge")
        for group in groups:
            page.add(name, value, group | more, at_ms)
    for way in ("receive", "transmit"):
        page.head(f"container_network_{way}_bytes_total", "counter")
        for group in (one for one in groups if one["id"] == "/" or one["container"] == "POD"):
            page.add(
                f"container_network_{way}_bytes_total", (now_s - SINCE_S) * 3e3, group | {"interface": "eth0"}, at_ms
            )
    page.family("machine_cpu_cores", "gauge", iter([({"boot_id": "b", "machine_id": "m", "system_uuid": "s"}, 16)]))
    return str(page)


def _system(group: str) -> dict[str, str]:
    return {"container": "", "id": group, "image": "", "name": "", "namespace": "", "pod": ""}


def _group(pod: Pod, container: str, image: str) -> dict[str, str]:
    slice_ = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod.name}.slice"
    scope = f"{slice_}/crio-{container or 'x'}.scope" if container else slice_
    name = f"k8s_{container}_{pod.name}_{pod.namespace}" if container else ""
    return {
        "container": container,
        "id": scope,
        "image": image,
        "name": name,
        "namespace": pod.namespace,
        "pod": pod.name,
    }
