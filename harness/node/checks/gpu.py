"""The GPUs as the cluster hands them out: label, slices, way of sharing, and a CUDA kernel that ran."""

from __future__ import annotations

from typing import Any

from harness.node.checks.cluster import this_node
from harness.node.checks.nvidia import require_gpu
from harness.node.checks.registry import (
    CONTROL_PLANE,
    Node,
    NotApplicableError,
    Observation,
    check,
    listed,
)

_NAMESPACE = "gpu-system"
_LABEL = "nvidia.com/gpu.present"
_PRODUCT = "nvidia.com/gpu.product"
_DISCOVERED = "nvidia.com/gfd.timestamp"
_DRIVER = "gpu.nvidia.com"
_AGAIN = "Run playbooks/gpu.yml again"
_HERE = (CONTROL_PLANE,)


def _smi(node: Node, fields: str) -> list[str]:
    """A row per GPU of what nvidia-smi says of these fields."""
    return node.output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()


def _devices(node: Node) -> int:
    """Whole GPUs and MIG instances that the plugin has to hand out."""
    asked_for = len(node.expected.device_plugin_mig_profiles)
    if node.expected.nvidia_toolkit_gpu == "assumed" and node.machine.read("/proc/driver/nvidia/version") is None:
        return node.expected.device_plugin_gpus_assumed * max(asked_for, 1)
    instances: list[int] = []
    for line in node.output("nvidia-smi", "-L").splitlines():
        if line.startswith("GPU "):
            instances.append(0)
        elif line.strip().startswith("MIG "):
            instances[-1] += 1
    # A divided GPU hands out its instances in its own place; what is asked for has to be there after a boot, too.
    return sum(asked_for or max(count, 1) for count in instances)


def _daemon_sets(node: Node) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in node.objects("daemonsets", "--namespace", _NAMESPACE)}


def _short(item: dict[str, Any] | None) -> str:
    """How many pods of a DaemonSet are available, of how many."""
    if item is None:
        return "absent"
    status = item.get("status", {})
    return f"{status.get('numberAvailable', status.get('numberReady', 0))}/{status.get('desiredNumberScheduled', 0)}"


@check("gpu/label", advice=f"{_AGAIN}: without the label no DaemonSet for GPUs gets a pod.", unit="kubelet.service")
def node_is_labelled(node: Node) -> Observation:
    """The node says that it has a GPU, in a label."""
    require_gpu(node)
    value = str(this_node(node)["metadata"].get("labels", {}).get(_LABEL, "absent"))
    return Observation(value == "true", f"{_LABEL}: true", value)


@check("gpu/features", advice=f"{_AGAIN}: it labels the nodes.", unit="kubelet.service")
def node_says_which_gpu_it_has(node: Node) -> Observation:
    """The labels by which pods choose a GPU say what the driver says: product, memory, count and compute capability."""
    require_gpu(node)
    labels = this_node(node)["metadata"].get("labels", {})
    if _DISCOVERED in labels:
        raise NotApplicableError("GPU feature discovery runs here, and says it")
    if node.expected.by_claims:
        left = sorted(name for name in labels if name.startswith(f"{_PRODUCT.rpartition('.')[0]}.") and name != _LABEL)
        return Observation(not left, "no such label where claims choose", listed(left))
    if node.expected.nvidia_toolkit_gpu == "assumed" and node.machine.read("/proc/driver/nvidia/version") is None:
        raise NotApplicableError("there is no GPU to ask (nvidia_toolkit_gpu: assumed)")
    first = node.output("nvidia-smi", "-i", "0", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader")
    name, memory, capability = (part.strip() for part in first.split(","))
    product = "-".join(name.split())
    wanted = {_PRODUCT: f"{product}-SHARED" if node.expected.sharing.shares_gpu else product}
    major, _, minor = capability.partition(".")
    wanted |= {f"nvidia.com/gpu.compute.{part}": value for part, value in (("major", major), ("minor", minor))}
    if "-MIG-" in labels.get(_PRODUCT, ""):
        wanted.pop(_PRODUCT)  # instances in the place of GPUs, each with memory of its own
    else:
        count = sum(line.startswith("GPU ") for line in node.output("nvidia-smi", "-L").splitlines())
        wanted |= {"nvidia.com/gpu.memory": memory.partition(" ")[0], "nvidia.com/gpu.count": str(count)}
    wanted = {
        key: value for key, value in wanted.items() if value and not value.startswith("[")
    }  # a GB10 does not say all
    seen = [f"{key}: {labels.get(key, 'absent')}" for key in wanted]
    return Observation(
        all(labels.get(key) == value for key, value in wanted.items()),
        listed(f"{key}: {value}" for key, value in wanted.items()),
        listed(seen),
    )


def _listed_devices(node: Node) -> int:
    """Devices of this node in the newest generation of the driver's pools."""
    name = this_node(node)["metadata"]["name"]
    specs = [spec["spec"] for spec in node.objects("resourceslices")]
    ours = [spec for spec in specs if spec["driver"] == _DRIVER and spec.get("nodeName") == name]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec["pool"]["name"]] = max(newest.get(spec["pool"]["name"], 0), spec["pool"]["generation"])
    return sum(
        len(spec.get("devices") or ()) for spec in ours if spec["pool"]["generation"] == newest[spec["pool"]["name"]]
    )


@check(
    "gpu/slices",
    advice=f"{_AGAIN}; `kubectl logs -n {_NAMESPACE} daemonset/device-plugin` (or dra-driver) says what was found, and "
    "`systemctl status node-mig` why instances were not made at boot.",
    unit="kubelet.service",
)
def node_advertises_its_slices(node: Node) -> Observation:
    """The node advertises as many slices as its GPUs, the MIG instances asked for and the way of sharing come to; by claims, its driver lists them."""
    require_gpu(node)
    expectation = node.expected
    wanted = _devices(node) * expectation.slices
    given = this_node(node)["status"].get("allocatable", {})
    counts = {name: int(count) for name, count in given.items() if name.startswith("nvidia.com/")}
    if expectation.by_claims:
        there, slices = _listed_devices(node), sum(counts.values())
        expected = f"{wanted} devices listed for claims, and no slices beside them"
        return Observation((there, slices) == (wanted, 0), expected, f"{there} devices, {slices} slices")
    expected = f"{wanted} slices ({expectation.sharing.sharing.value}, {expectation.slices} per device)"
    return Observation(sum(counts.values()) == wanted, expected, listed(f"{k}: {v}" for k, v in counts.items()))


@check("gpu/compute-mode", advice="`nvidia-smi -c DEFAULT`: a second process finds no device otherwise.")
def compute_mode_fits_the_sharing(node: Node) -> Observation:
    """GPUs take several processes, unless an MPS server is the only one."""
    require_gpu(node)
    if node.expected.nvidia_toolkit_gpu == "assumed" and node.machine.read("/proc/driver/nvidia/version") is None:
        raise NotApplicableError("there is no GPU to ask (nvidia_toolkit_gpu: assumed)")
    if node.expected.by_claims:
        raise NotApplicableError("claims set it while they are held (dra_driver_state: present)")
    wanted = node.expected.sharing.compute_mode
    seen = {row.strip() for row in _smi(node, "compute_mode")}
    return Observation(seen == {wanted}, f"{wanted} on every GPU", listed(seen))


@check(
    "gpu/device-plugin", advice=f"`kubectl describe -n {_NAMESPACE} pods` names what its pods wait for.", kinds=_HERE
)
def device_plugin_is_ready(node: Node) -> Observation:
    """The device plugin, or in its place the DRA driver, runs on every node with a GPU."""
    require_gpu(node)
    seen = _short(_daemon_sets(node).get("device-plugin"))
    if node.expected.by_claims:
        plugin, seen = seen, _short(_daemon_sets(node).get("dra-driver"))
        if plugin != "absent":
            return Observation(
                False, "the DRA driver in place of the device plugin", f"a device plugin ({plugin}), too"
            )
    ready, _, wanted = seen.partition("/")
    return Observation(ready == wanted not in ("", "0"), "a ready pod per GPU node", seen)


@check("gpu/mps", advice=f"{_AGAIN}: it starts and removes the MPS servers as the way of sharing asks.", kinds=_HERE)
def mps_servers_are_where_they_are_wanted(node: Node) -> Observation:
    """MPS servers run when GPUs are shared by MPS, and otherwise not at all."""
    require_gpu(node)
    seen = _short(_daemon_sets(node).get("mps-control-daemon"))
    if node.expected.by_claims or not node.expected.sharing.concurrent:
        return Observation(seen == "absent", "no MPS servers", seen)
    ready, _, wanted = seen.partition("/")
    return Observation(ready == wanted not in ("", "0"), "a ready pod per GPU node", seen)


@check(
    "gpu/cuda-smoke",
    advice=f"`kubectl logs -n {_NAMESPACE} --selector app.kubernetes.io/name=cuda-smoke`, then {_AGAIN.lower()}.",
    kinds=_HERE,
)
def a_cuda_kernel_has_run(node: Node) -> Observation:
    """A CUDA kernel has run in a pod on every GPU node."""
    require_gpu(node)
    if not node.expected.device_plugin_smoke:
        raise NotApplicableError("no kernel is run here (device_plugin_smoke: false)")
    jobs = node.objects("jobs", "--namespace", _NAMESPACE, "--selector=app.kubernetes.io/name=cuda-smoke")
    bad = [job["metadata"]["name"] for job in jobs if not job.get("status", {}).get("succeeded")]
    seen = f"{len(jobs)} jobs, not succeeded: {listed(bad)}"
    return Observation(bool(jobs) and not bad, "a succeeded job per GPU node", seen)
