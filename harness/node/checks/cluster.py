"""The cluster, asked through its API: node, network, runtime class, storage, metrics, housekeeping."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from harness.node.checks.registry import (
    CONTROL_PLANE,
    CannotLookError,
    Node,
    NotApplicableError,
    Observation,
    check,
    listed,
)

_HERE = (CONTROL_PLANE,)
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_FAILED_PODS_MAX = 100
_UPGRADE_MARK = "gpu-sharing-harness/cordoned-by-upgrade"


def this_node(node: Node) -> dict[str, Any]:
    """The node under its name; a CannotLookError where there is none."""
    wanted = node.expected.node_name
    # A kubelet may ask for its own node alone; on the control plane a wrong name is answered with the right ones.
    selector = () if node.expected.kind == CONTROL_PLANE else (f"--field-selector=metadata.name={wanted}",)
    nodes = {item["metadata"]["name"]: item for item in node.objects("nodes", *selector)}
    if wanted not in nodes:
        raise CannotLookError(f"no node {wanted}, only {listed(nodes)}")
    return nodes[wanted]


def _needs_calico(node: Node) -> None:
    if node.expected.calico_network != "calico":
        raise NotApplicableError(f"calico_network is {node.expected.calico_network}")


def _condition(item: dict[str, Any], kind: str) -> str:
    """Status of a condition, with its message where it is not True."""
    for condition in item.get("status", {}).get("conditions", []):
        if condition["type"] == kind:
            status = str(condition["status"])
            return status if status == "True" else f"{status}: {condition.get('message', 'no message')}"
    return "no such condition"


def _workloads(node: Node, kind: str, desired: str, ready: str) -> dict[str, tuple[int, int]]:
    """namespace/name -> (wanted, ready) of every Deployment or DaemonSet."""
    return {
        f"{item['metadata']['namespace']}/{item['metadata']['name']}": (
            int((item["spec"] if desired == "replicas" else item["status"]).get(desired, 0)),
            int(item.get("status", {}).get(ready, 0)),
        )
        for item in node.objects(kind, "--all-namespaces")
    }


@check(
    "cluster/api",
    advice="`crictl ps -a` and `crictl logs` show why the API server does not run.",
    unit="kubelet.service",
)
def api_is_ready(node: Node) -> Observation:
    """The API server says that it is ready."""
    answer = node.kubectl("get", "--raw", "/readyz").strip()
    return Observation(answer == "ok", "ok from /readyz", answer)


@check(
    "cluster/node-ready",
    advice="`kubectl describe node` names the condition; mostly the network or CRI-O.",
    unit="kubelet.service",
)
def node_is_ready(node: Node) -> Observation:
    """The node is Ready under its name."""
    ready = _condition(this_node(node), "Ready")
    return Observation(ready == "True", f"node {node.expected.node_name} Ready", ready)


@check(
    "cluster/schedulable",
    advice="`kubectl uncordon` it, and remove the taints: every node has to take pods. What an upgrade cordoned its next run releases.",
)
def node_takes_pods(node: Node) -> Observation:
    """No taint and no cordon keeps pods away."""
    item = this_node(node)
    spec, marked = item.get("spec", {}), _UPGRADE_MARK in item["metadata"].get("annotations", {})
    obstacles = [f"{taint['key']}:{taint['effect']}" for taint in spec.get("taints", [])]
    cordoned = "cordoned by an upgrade that did not finish" if marked else "cordoned"
    obstacles += [cordoned] if spec.get("unschedulable") else []
    return Observation(not obstacles, "no taint, not cordoned", listed(obstacles))


@check(
    "cluster/versions",
    advice="Use playbooks/upgrade.yml to bring the cluster to the version of its packages.",
)
def node_runs_what_is_installed(node: Node) -> Observation:
    """The running kubelet and runtime are the pinned ones."""
    info = this_node(node)["status"]["nodeInfo"]
    wanted = {
        "kubeletVersion": f"v{node.expected.kubernetes_packages_version.partition('-')[0]}",
        "containerRuntimeVersion": f"cri-o://{node.expected.crio_version.partition('-')[0]}",
    }
    seen = {key: str(info.get(key, "absent")) for key in wanted}
    return Observation(seen == wanted, listed(wanted.values()), listed(seen.values()))


@check("cluster/pod-network", advice="Reset and make the cluster again: its pod network cannot be changed.")
def pod_network_is_ours(node: Node) -> Observation:
    """The node hands out pod addresses of the network that Calico routes."""
    wanted = ipaddress.ip_network(node.expected.control_plane_pod_cidr)
    seen = this_node(node).get("spec", {}).get("podCIDR", "absent")
    try:
        inside = ipaddress.ip_network(seen).subnet_of(wanted)  # type: ignore[arg-type] # the same address family
    except (ValueError, TypeError):
        inside = False
    return Observation(inside, f"inside {wanted}", seen)


@check("cluster/system-pods", advice="`kubectl get pods -A` and `kubectl describe` the ones named here.", kinds=_HERE)
def workloads_are_available(node: Node) -> Observation:
    """Every Deployment and DaemonSet has all its pods ready."""
    all_workloads = {
        **_workloads(node, "deployments", "replicas", "readyReplicas"),
        **_workloads(node, "daemonsets", "desiredNumberScheduled", "numberReady"),
    }
    short = [f"{name} {ready}/{wanted}" for name, (wanted, ready) in all_workloads.items() if ready < wanted]
    seen = listed(short) if short else f"{len(all_workloads)} whole"
    return Observation(bool(all_workloads) and not short, "all pods of every Deployment and DaemonSet ready", seen)


@check("calico/available", advice="`kubectl get tigerastatus` and the operator's log say what is missing.", kinds=_HERE)
def calico_is_available(node: Node) -> Observation:
    """The operator says that Calico is available and that none of its parts is degraded."""
    _needs_calico(node)
    items = {item["metadata"]["name"]: item for item in node.objects("tigerastatuses.operator.tigera.io")}
    degraded = [name for name, item in items.items() if _condition(item, "Degraded") == "True"]
    available = _condition(items["calico"], "Available") if "calico" in items else "no such status"
    seen = f"calico available: {available}; degraded: {listed(degraded)}"
    return Observation(available == "True" and not degraded, "calico Available, nothing Degraded", seen)


@check("calico/pool", advice="Run the calico role again (--tags calico).", kinds=_HERE)
def calico_routes_the_pod_network(node: Node) -> Observation:
    """The Installation is ours: the pod network, VXLAN."""
    _needs_calico(node)
    pools = [
        (str(pool.get("cidr")), str(pool.get("encapsulation")))
        for item in node.objects("installations.operator.tigera.io")
        for pool in item["spec"].get("calicoNetwork", {}).get("ipPools", [])
    ]
    wanted = (node.expected.control_plane_pod_cidr, "VXLAN")
    return Observation(pools == [wanted], " ".join(wanted), listed(" ".join(pool) for pool in pools))


@check("runtime-class/nvidia", advice="Run the runtime_class role again (--tags runtime_class).", kinds=_HERE)
def runtime_class_names_the_handler(node: Node) -> Observation:
    """Pods can ask for the NVIDIA handler."""
    handlers = {item["metadata"]["name"]: str(item.get("handler")) for item in node.objects("runtimeclasses")}
    wanted = node.expected.nvidia_toolkit_handler
    return Observation(handlers.get("nvidia") == wanted, f"RuntimeClass nvidia -> {wanted}", str(handlers or "none"))


@check(
    "storage/default-class",
    advice="Run the storage role again (--tags storage); claims stay Pending without it.",
    kinds=_HERE,
)
def one_default_class(node: Node) -> Observation:
    """Exactly one StorageClass is the default."""
    classes = {
        item["metadata"]["name"]: item["metadata"].get("annotations", {}) for item in node.objects("storageclasses")
    }
    default = [name for name, annotations in classes.items() if annotations.get(_DEFAULT_CLASS) == "true"]
    return Observation(
        len(default) == 1, "one default StorageClass", f"default: {listed(default)}; all: {listed(classes)}"
    )


@check(
    "metrics-server/answers", advice="`kubectl logs -n kube-system deployment/metrics-server` says why.", kinds=_HERE
)
def metrics_server_answers(node: Node) -> Observation:
    """`kubectl top` has figures for the node."""
    usage = {item["metadata"]["name"]: item.get("usage", {}) for item in node.objects("nodes.metrics.k8s.io")}
    mine = usage.get(node.expected.node_name, {})
    return Observation(bool(mine.get("cpu")), f"figures for {node.expected.node_name}", str(mine or "none"))


@check(
    "housekeeping/failed-pods",
    advice="Run the housekeeping role again (--tags housekeeping); `kubectl get jobs -A` shows whether it runs.",
    kinds=_HERE,
)
def failed_pods_are_cleaned_up(node: Node) -> Observation:
    """A bounded clean-up exists and failed pods have not piled up."""
    jobs = [item for item in node.objects("cronjobs", "--all-namespaces") if "failed-pods" in item["metadata"]["name"]]
    bounded = all(item["spec"]["jobTemplate"]["spec"].get("activeDeadlineSeconds") for item in jobs)
    failed = len(node.objects("pods", "--all-namespaces", "--field-selector=status.phase=Failed"))
    seen = f"{len(jobs)} clean-up jobs{'' if bounded else ' without a time limit'}, {failed} failed pods"
    return Observation(
        bool(jobs) and bounded and failed < _FAILED_PODS_MAX,
        f"a bounded CronJob, under {_FAILED_PODS_MAX} failed pods",
        seen,
    )


@check(
    "workloads/image",
    advice="Run playbooks/workloads.yml again: it builds the image where it is not there.",
    unit="crio.service",
)
def workload_image_is_there(node: Node) -> Observation:
    """CRI-O has the image that replicas run in."""
    try:
        images = json.loads(node.output("crictl", "images", "--output=json"))["images"]
    except (ValueError, KeyError, TypeError) as error:
        raise CannotLookError(f"crictl gave no list of images: {error}") from error
    tags = {tag for image in images for tag in image.get("repoTags") or ()}
    wanted = node.expected.workload_image
    ours = sorted(tag for tag in tags if tag.startswith(wanted.rpartition(":")[0]))
    return Observation(wanted in tags, wanted, listed(ours))


@check("workloads/namespace", advice="Run playbooks/workloads.yml again (--tags inference_namespace).", kinds=_HERE)
def replicas_have_a_closed_place(node: Node) -> Observation:
    """Replicas have a namespace that takes unprivileged pods only and lets nobody in but Prometheus."""
    name = node.expected.inference_namespace_name
    levels = {
        item["metadata"]["name"]: item["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce", "none")
        for item in node.objects("namespaces")
    }
    if name not in levels:
        return Observation(False, f"namespace {name}, restricted, with a network policy", "no such namespace")
    policies = [item["metadata"]["name"] for item in node.objects("networkpolicies", "--namespace", name)]
    seen = f"pod security {levels[name]}, network policies: {listed(policies)}"
    good = levels[name] == "restricted" and bool(policies)
    return Observation(good, f"namespace {name}, restricted, with a network policy", seen)


@check("workloads/account", advice="Run playbooks/workloads.yml again: it renews the account's token.", kinds=_HERE)
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
