"""The cluster, asked through its API: node, network, storage, metrics, housekeeping; and the GPUs as it hands them out."""

from __future__ import annotations

import ipaddress
import json
from functools import partial
from typing import Any

from harness.node.checks.nvidia import gpu_check, is_only_assumed, require_real_gpu
from harness.node.checks.registry import (
    CONTROL_PLANE,
    HERE,
    CannotLookError,
    Node,
    Observation,
    check,
    listed,
    needs,
    no,
    reading,
    same,
)

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_FAILED_PODS_MAX = 100
_UPGRADE_MARK = "gpu-sharing-harness/cordoned-by-upgrade"
_KUBELET = "kubelet.service"
_WORKLOADS = (
    ("deployments", "replicas", "readyReplicas"),
    ("daemonsets", "desiredNumberScheduled", "numberReady"),
)
"""What has pods: its kind, and the names of how many it wants and how many are ready."""
_GPU_NAMESPACE = "gpu-system"
_GPU_LABEL = "nvidia.com/gpu.present"
_PRODUCT = "nvidia.com/gpu.product"
_DISCOVERED = "nvidia.com/gfd.timestamp"
_DRA_DRIVER = "gpu.nvidia.com"
_GPU_AGAIN = "Run playbooks/gpu.yml again"


def _named(node: Node, kind: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """Objects of one kind by their names."""
    return {item["metadata"]["name"]: item for item in node.objects(kind, *arguments)}


def this_node(node: Node) -> dict[str, Any]:
    """The node under its name; a CannotLookError where there is none."""
    wanted = node.expected.node_name
    # A kubelet may ask for its own node alone; on the control plane a wrong name is answered with the right ones.
    selector = () if node.expected.kind == CONTROL_PLANE else (f"--field-selector=metadata.name={wanted}",)
    nodes = _named(node, "nodes", *selector)
    if wanted not in nodes:
        raise CannotLookError(f"no node {wanted}, only {listed(nodes)}")
    return nodes[wanted]


def _condition(item: dict[str, Any], kind: str) -> str:
    """Status of a condition, with its message where it is not True."""
    for condition in item.get("status", {}).get("conditions", []):
        if condition["type"] == kind:
            status = str(condition["status"])
            return status if status == "True" else f"{status}: {condition.get('message', 'no message')}"
    return "no such condition"


here_check = partial(check, kinds=HERE)


@check("cluster/api", "`crictl ps -a` and `crictl logs` show why the API server does not run.", unit=_KUBELET)
def api_is_ready(node: Node) -> Observation:
    """The API server says that it is ready."""
    return same("ok", node.kubectl("get", "--raw", "/readyz").strip())


@check("cluster/node-ready", "`kubectl describe node` names the condition; mostly the network or CRI-O.", unit=_KUBELET)
def node_is_ready(node: Node) -> Observation:
    """The node is Ready under its name."""
    return same("True", _condition(this_node(node), "Ready"))


@check(
    "cluster/schedulable",
    "`kubectl uncordon` it, and remove the taints: every node has to take pods. What an upgrade cordoned its next run releases.",
)
def node_takes_pods(node: Node) -> Observation:
    """No taint and no cordon keeps pods away."""
    item = this_node(node)
    spec, marked = item.get("spec", {}), _UPGRADE_MARK in item["metadata"].get("annotations", {})
    obstacles = [f"{taint['key']}:{taint['effect']}" for taint in spec.get("taints", [])]
    cordoned = "cordoned by an upgrade that did not finish" if marked else "cordoned"
    return no(obstacles + ([cordoned] if spec.get("unschedulable") else []), "no taint, not cordoned")


@check("cluster/versions", "Use playbooks/upgrade.yml to bring the cluster to the version of its packages.")
def node_runs_what_is_installed(node: Node) -> Observation:
    """The running kubelet and runtime are the pinned ones."""
    info = this_node(node)["status"]["nodeInfo"]
    kubelet = f"v{node.expected.kubernetes_packages_version.partition('-')[0]}"
    runtime = f"cri-o://{node.expected.crio_version.partition('-')[0]}"
    seen = [str(info.get(key, "absent")) for key in ("kubeletVersion", "containerRuntimeVersion")]
    return same(f"{kubelet}, {runtime}", ", ".join(seen))


@check("cluster/pod-network", "Reset and make the cluster again: its pod network cannot be changed.")
def pod_network_is_ours(node: Node) -> Observation:
    """The node hands out pod addresses of the network that Calico routes."""
    wanted = ipaddress.ip_network(node.expected.control_plane_pod_cidr)
    seen = this_node(node).get("spec", {}).get("podCIDR", "absent")
    with reading("the node has no network for its pods"):
        inside = ipaddress.ip_network(seen).subnet_of(wanted)  # type: ignore[arg-type] # the same address family
    return Observation(inside, f"inside {wanted}", seen)


@here_check("cluster/system-pods", "`kubectl get pods -A` and `kubectl describe` the ones named here.")
def workloads_are_available(node: Node) -> Observation:
    """Every Deployment and DaemonSet has all its pods ready."""
    short, number = [], 0
    for kind, desired, ready in _WORKLOADS:
        for item in node.objects(kind, "--all-namespaces"):
            status, number = item.get("status", {}), number + 1
            wanted, there = int(item["spec"].get(desired, status.get(desired, 0))), int(status.get(ready, 0))
            if there < wanted:
                short.append(f"{item['metadata']['namespace']}/{item['metadata']['name']} {there}/{wanted}")
    seen = f"{number} of them, not ready: {listed(short)}"
    return Observation(bool(number) and not short, "all pods of every Deployment and DaemonSet ready", seen)


def _calico(node: Node) -> None:
    network = node.expected.calico_network
    needs(network == "calico", f"calico_network is {network}")


@here_check("calico/available", "`kubectl get tigerastatus` and the operator's log say what is missing.", when=_calico)
def calico_is_available(node: Node) -> Observation:
    """The operator says that Calico is available and that none of its parts is degraded."""
    items = _named(node, "tigerastatuses.operator.tigera.io")
    degraded = [name for name, item in items.items() if _condition(item, "Degraded") == "True"]
    available = _condition(items.get("calico", {}), "Available")
    return same(
        "calico available: True; degraded: none", f"calico available: {available}; degraded: {listed(degraded)}"
    )


@here_check("calico/pool", "Run the calico role again (--tags calico).", when=_calico)
def calico_routes_the_pod_network(node: Node) -> Observation:
    """The Installation is ours: the pod network, VXLAN."""
    pools = [
        f"{pool.get('cidr')} {pool.get('encapsulation')}"
        for item in node.objects("installations.operator.tigera.io")
        for pool in item["spec"].get("calicoNetwork", {}).get("ipPools", [])
    ]
    return same(f"{node.expected.control_plane_pod_cidr} VXLAN", listed(pools))


@here_check("runtime-class/nvidia", "Run the addons role again (--tags runtime_class).")
def runtime_class_names_the_handler(node: Node) -> Observation:
    """Pods can ask for the NVIDIA handler."""
    handlers = {name: str(item.get("handler")) for name, item in _named(node, "runtimeclasses").items()}
    return same(node.expected.nvidia_toolkit_handler, handlers.get("nvidia", "none"))


@here_check("storage/default-class", "Run the addons role again (--tags storage); claims stay Pending without it.")
def one_default_class(node: Node) -> Observation:
    """Exactly one StorageClass is the default."""
    classes = _named(node, "storageclasses")
    default = [
        name for name, item in classes.items() if item["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true"
    ]
    seen = f"default: {listed(default)}; all: {listed(classes)}"
    return Observation(len(default) == 1, "one default StorageClass", seen)


@here_check("metrics-server/answers", "`kubectl logs -n kube-system deployment/metrics-server` says why.")
def metrics_server_answers(node: Node) -> Observation:
    """`kubectl top` has figures for the node."""
    mine = _named(node, "nodes.metrics.k8s.io").get(node.expected.node_name, {}).get("usage", {})
    return Observation(bool(mine.get("cpu")), f"figures for {node.expected.node_name}", str(mine or "none"))


@here_check(
    "housekeeping/failed-pods",
    "Run the housekeeping role again (--tags housekeeping); `kubectl get jobs -A` shows whether it runs.",
)
def failed_pods_are_cleaned_up(node: Node) -> Observation:
    """A bounded clean-up exists and failed pods have not piled up."""
    jobs = [item for item in node.objects("cronjobs", "--all-namespaces") if "failed-pods" in item["metadata"]["name"]]
    bounded = all(item["spec"]["jobTemplate"]["spec"].get("activeDeadlineSeconds") for item in jobs)
    failed = len(node.objects("pods", "--all-namespaces", "--field-selector=status.phase=Failed"))
    seen = f"{len(jobs)} clean-up jobs{'' if bounded else ' without a time limit'}, {failed} failed pods"
    wanted = f"a bounded CronJob, under {_FAILED_PODS_MAX} failed pods"
    return Observation(bool(jobs) and bounded and failed < _FAILED_PODS_MAX, wanted, seen)


@check(
    "workloads/image",
    "Run playbooks/workloads.yml again: it builds the image where it is not there.",
    unit="crio.service",
)
def workload_image_is_there(node: Node) -> Observation:
    """CRI-O has the image that replicas run in."""
    with reading("crictl gave no list of images"):
        images = json.loads(node.output("crictl", "images", "--output=json"))["images"]
    tags = {tag for image in images for tag in image.get("repoTags") or ()}
    wanted = node.expected.workload_image
    ours = [tag for tag in tags if tag.startswith(wanted.rpartition(":")[0])]
    return Observation(wanted in tags, wanted, listed(ours))


@here_check("workloads/namespace", "Run playbooks/workloads.yml again (--tags inference_namespace).")
def replicas_have_a_closed_place(node: Node) -> Observation:
    """The replicas' namespace accepts only unprivileged pods, and only Prometheus may connect."""
    name = node.expected.inference_namespace_name
    namespace = _named(node, "namespaces").get(name)
    labels = namespace["metadata"].get("labels", {}) if namespace else {}
    level = labels.get("pod-security.kubernetes.io/enforce", "none")
    policies = _named(node, "networkpolicies", "--namespace", name) if namespace else {}
    seen = f"pod security {level}, network policies: {listed(policies)}" if namespace else "no such namespace"
    good = level == "restricted" and bool(policies)
    return Observation(good, f"namespace {name}, restricted, with a network policy", seen)


@here_check("workloads/account", "Run playbooks/workloads.yml again: it renews the account's token.")
def harness_can_come_in(node: Node) -> Observation:
    """Each user has the harness's own kubeconfig, mode 0600, and it is let in."""
    seen, good = [], True
    for user in node.expected.harness_users:
        path = f"{node.home(user)}/.kube/harness.conf"
        private, file = node.private(path, user)
        words = ("auth", "can-i", "create", "deployments.apps", f"--namespace={node.expected.inference_namespace_name}")
        answer = node.machine.command("kubectl", f"--kubeconfig={path}", "--request-timeout=15s", *words)
        said = (answer.stdout or answer.stderr).strip().splitlines()[-1:] or ["nothing"]
        seen.append(f"{file}, may: {said[0]}")
        good = good and private and answer.stdout.strip() == "yes"
    return Observation(good, "mode 0600, the user's own, may create deployments", "; ".join(seen))


def _devices(node: Node) -> int:
    """Whole GPUs and MIG instances that the plugin has to hand out."""
    asked_for = len(node.expected.device_plugin_mig_profiles)
    if is_only_assumed(node):
        return node.expected.device_plugin_gpus_assumed * max(asked_for, 1)
    instances: list[int] = []
    for line in node.output("nvidia-smi", "-L").splitlines():
        if line.startswith("GPU "):
            instances.append(0)
        elif line.strip().startswith("MIG "):
            instances[-1] += 1
    # A divided GPU hands out its instances in its own place; what is asked for has to be there after a boot, too.
    return sum(asked_for or max(count, 1) for count in instances)


def _pods_of(node: Node, daemon_set: str, *, alone: bool = False) -> str:
    """How many pods of a DaemonSet are available, of how many; with those of nodes that share otherwise, unless ``alone``."""
    sets = _named(node, "daemonsets", "--namespace", _GPU_NAMESPACE)
    names = [name for name in sets if name == daemon_set or (not alone and name.startswith(f"{daemon_set}-"))]
    if not names:
        return "absent"
    all_status = [sets[name].get("status", {}) for name in names]
    available = sum(status.get("numberAvailable", status.get("numberReady", 0)) for status in all_status)
    return f"{available}/{sum(status.get('desiredNumberScheduled', 0) for status in all_status)}"


def _all_ready(seen: str) -> Observation:
    ready, _, wanted = seen.partition("/")
    return Observation(ready == wanted not in ("", "0"), "a ready pod per GPU node", seen)


@gpu_check("gpu/label", f"{_GPU_AGAIN}: without the label no DaemonSet for GPUs gets a pod.", unit=_KUBELET)
def node_is_labelled(node: Node) -> Observation:
    """The node says that it has a GPU, in a label."""
    return same("true", this_node(node)["metadata"].get("labels", {}).get(_GPU_LABEL, "absent"))


@gpu_check("gpu/features", f"{_GPU_AGAIN}: it labels the nodes.", unit=_KUBELET)
def node_says_which_gpu_it_has(node: Node) -> Observation:
    """The GPU labels agree with the driver: product, memory, count and compute capability."""
    labels = this_node(node)["metadata"].get("labels", {})
    needs(_DISCOVERED not in labels, "GPU feature discovery runs here, and says it")
    if node.expected.by_claims:
        left = [name for name in labels if name.startswith("nvidia.com/gpu.") and name != _GPU_LABEL]
        return no(left, "no such label where claims choose")
    require_real_gpu(node)
    first = node.output("nvidia-smi", "-i", "0", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader")
    name, memory, capability = (part.strip() for part in first.split(","))
    product = "-".join(name.split())
    wanted = {_PRODUCT: f"{product}-SHARED" if node.expected.device_plugin_sharing.shares_gpu else product}
    major, _, minor = capability.partition(".")
    wanted |= {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
    if "-MIG-" in labels.get(_PRODUCT, ""):
        wanted.pop(_PRODUCT)  # instances in the place of GPUs, each with memory of its own
    else:
        count = sum(line.startswith("GPU ") for line in node.output("nvidia-smi", "-L").splitlines())
        wanted |= {"nvidia.com/gpu.memory": memory.partition(" ")[0], "nvidia.com/gpu.count": str(count)}
    # A GB10 does not say all.
    wanted = {key: value for key, value in wanted.items() if value and not value.startswith("[")}
    seen = [f"{key}: {labels.get(key, 'absent')}" for key in wanted]
    return same(listed(f"{key}: {value}" for key, value in wanted.items()), listed(seen))


def _listed_devices(node: Node) -> int:
    """Devices of this node in the newest generation of the driver's pools."""
    name = this_node(node)["metadata"]["name"]
    specs = [spec["spec"] for spec in node.objects("resourceslices")]
    ours = [spec for spec in specs if spec["driver"] == _DRA_DRIVER and spec.get("nodeName") == name]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec["pool"]["name"]] = max(newest.get(spec["pool"]["name"], 0), spec["pool"]["generation"])
    return sum(
        len(spec.get("devices") or ()) for spec in ours if spec["pool"]["generation"] == newest[spec["pool"]["name"]]
    )


@gpu_check(
    "gpu/slices",
    f"{_GPU_AGAIN}; `kubectl logs -n {_GPU_NAMESPACE} daemonset/device-plugin` (or dra-driver) says what was found, and "
    "`systemctl status node-mig` why instances were not made at boot.",
    unit=_KUBELET,
)
def node_advertises_its_slices(node: Node) -> Observation:
    """The node advertises the expected slices; by claims, its driver lists the devices."""
    expectation, devices = node.expected, _devices(node)
    given = this_node(node)["status"].get("allocatable", {})
    counts = {name: int(count) for name, count in given.items() if name.startswith("nvidia.com/")}
    slices = sum(counts.values())
    if expectation.by_claims:
        seen = f"{_listed_devices(node)} devices listed for claims, {slices} slices"
        return same(f"{devices} devices listed for claims, 0 slices", seen)
    wanted = devices * expectation.slices
    expected = f"{wanted} slices ({expectation.device_plugin_sharing.sharing.value}, {expectation.slices} per device)"
    return Observation(slices == wanted, expected, listed(f"{name}: {count}" for name, count in counts.items()))


@check(
    "gpu/compute-mode", "`nvidia-smi -c DEFAULT`: a second process finds no device otherwise.", when=require_real_gpu
)
def compute_mode_fits_the_sharing(node: Node) -> Observation:
    """GPUs take several processes, unless an MPS server is the only one."""
    needs(not node.expected.by_claims, "claims set it while they are held (dra_driver_state: present)")
    rows = node.output("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader").splitlines()
    return same(node.expected.device_plugin_sharing.compute_mode, listed({row.strip() for row in rows}))


@gpu_check(
    "gpu/device-plugin", f"`kubectl describe -n {_GPU_NAMESPACE} pods` names what its pods wait for.", kinds=HERE
)
def device_plugin_is_ready(node: Node) -> Observation:
    """The device plugin, or in its place the DRA driver, runs on every node with a GPU."""
    plugin = _pods_of(node, "device-plugin")
    if not node.expected.by_claims:
        return _all_ready(plugin)
    if plugin != "absent":
        return Observation(False, "the DRA driver in place of the device plugin", f"a device plugin ({plugin}), too")
    return _all_ready(_pods_of(node, "dra-driver"))


@gpu_check("gpu/mps", f"{_GPU_AGAIN}: it starts and removes the MPS servers as the sharing mode needs.", kinds=HERE)
def mps_servers_are_where_they_are_wanted(node: Node) -> Observation:
    """MPS servers run when GPUs are shared by MPS, and otherwise not at all."""
    mps = node.expected.device_plugin_sharing.concurrent
    seen = _pods_of(node, "mps-control-daemon", alone=not mps)
    if node.expected.by_claims or not mps:
        return same("absent", seen)
    return _all_ready(seen)


@gpu_check(
    "gpu/cuda-smoke",
    f"`kubectl logs -n {_GPU_NAMESPACE} --selector app.kubernetes.io/name=cuda-smoke`, then {_GPU_AGAIN.lower()}.",
    kinds=HERE,
)
def a_cuda_kernel_has_run(node: Node) -> Observation:
    """A CUDA kernel has run in a pod on every GPU node."""
    needs(node.expected.device_plugin_smoke, "no kernel is run here (device_plugin_smoke: false)")
    jobs = _named(node, "jobs", "--namespace", _GPU_NAMESPACE, "--selector=app.kubernetes.io/name=cuda-smoke")
    bad = [name for name, job in jobs.items() if not job.get("status", {}).get("succeeded")]
    seen = f"{len(jobs)} jobs, not succeeded: {listed(bad)}"
    return Observation(bool(jobs) and not bad, "a succeeded job per GPU node", seen)
