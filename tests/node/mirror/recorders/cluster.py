"""The objects of the recorded cluster: files on disk, with the status that controllers would have written.

An object may be read back exactly as applied. Kinds must be known and namespaces must exist, as at the real server.
"""

import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import static_pods
import yaml
from recorded import API_PORT, KUBELET_HEALTH_PORT, STATE, answers, fail, replace

Object = dict[str, Any]
OBJECTS = STATE / "objects"
# The last word of each worker's kubelet, and how old it may be.
HEARTBEATS = STATE / "heartbeats"
SILENT_AFTER_S = 40.0
API_MANIFEST = Path("/etc/kubernetes/manifests/kube-apiserver.yaml")
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"


class Kind(NamedTuple):
    """A kind the server knows: plural and group as in kubectl's output, short names, scope."""

    name: str
    plural: str
    group: str
    namespaced: bool
    short: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """As kubectl names it in output (`deployment.apps`)."""
        return f"{self.name.lower()}.{self.group}" if self.group else self.name.lower()

    @property
    def words(self) -> set[str]:
        """Every way to name it on a command line."""
        plain = {self.name.lower(), self.plural, *self.short}
        return plain | {f"{name}.{self.group}" for name in plain}


_BUILT_IN = """
Namespace namespaces - cluster ns
Node nodes - cluster no
Pod pods - namespaced po
Service services - namespaced svc
ServiceAccount serviceaccounts - namespaced sa
ConfigMap configmaps - namespaced cm
Secret secrets - namespaced -
Event events - namespaced ev
Endpoints endpoints - namespaced ep
PersistentVolume persistentvolumes - cluster pv
PersistentVolumeClaim persistentvolumeclaims - namespaced pvc
ResourceQuota resourcequotas - namespaced quota
LimitRange limitranges - namespaced limits
Deployment deployments apps namespaced deploy
DaemonSet daemonsets apps namespaced ds
StatefulSet statefulsets apps namespaced sts
ReplicaSet replicasets apps namespaced rs
Job jobs batch namespaced -
CronJob cronjobs batch namespaced cj
Role roles rbac.authorization.k8s.io namespaced -
RoleBinding rolebindings rbac.authorization.k8s.io namespaced -
ClusterRole clusterroles rbac.authorization.k8s.io cluster -
ClusterRoleBinding clusterrolebindings rbac.authorization.k8s.io cluster -
StorageClass storageclasses storage.k8s.io cluster sc
RuntimeClass runtimeclasses node.k8s.io cluster -
NetworkPolicy networkpolicies networking.k8s.io namespaced netpol
PriorityClass priorityclasses scheduling.k8s.io cluster pc
PodDisruptionBudget poddisruptionbudgets policy namespaced pdb
CustomResourceDefinition customresourcedefinitions apiextensions.k8s.io cluster crd,crds
NodeMetrics nodes metrics.k8s.io cluster -
APIService apiservices apiregistration.k8s.io cluster -
CertificateSigningRequest certificatesigningrequests certificates.k8s.io cluster csr
ValidatingAdmissionPolicy validatingadmissionpolicies admissionregistration.k8s.io cluster -
ValidatingAdmissionPolicyBinding validatingadmissionpolicybindings admissionregistration.k8s.io cluster -
MutatingAdmissionPolicy mutatingadmissionpolicies admissionregistration.k8s.io cluster -
MutatingAdmissionPolicyBinding mutatingadmissionpolicybindings admissionregistration.k8s.io cluster -
"""


def kinds() -> list[Kind]:
    """Built-in kinds and those of every applied CustomResourceDefinition."""
    found = []
    for line in _BUILT_IN.split("\n"):
        if line:
            name, plural, group, scope, short = line.split()
            names = () if short == "-" else tuple(short.split(","))
            found.append(Kind(name, plural, "" if group == "-" else group, scope == "namespaced", names))
    for definition in _stored("CustomResourceDefinition"):
        spec = definition["spec"]
        names = spec["names"]
        scope = spec["scope"] == "Namespaced"
        found.append(Kind(names["kind"], names["plural"], spec["group"], scope, tuple(names.get("shortNames", ()))))
    return found


def kind_of(word: str) -> Kind:
    """The kind meant by a word on the command line (`ds`, `nodes`, `deployment.apps`)."""
    lowered = word.lower()
    found = next((kind for kind in kinds() if lowered in kind.words), None)
    return found or fail(f'error: the server doesn\'t have a resource type "{word}"')


def kind_of_object(item: Object) -> Kind:
    """The kind of a manifest; unknown ones are refused (a custom resource before its definition)."""
    version = str(item.get("apiVersion", ""))
    group = version.rpartition("/")[0]
    found = next((kind for kind in kinds() if (kind.name, kind.group) == (item.get("kind"), group)), None)
    name = item.get("kind")
    return found or fail(f'error: resource mapping not found: no matches for kind "{name}" in version "{version}"')


def require_api() -> None:
    """Refuse as kubectl does when nothing listens on the API server's port."""
    if not answers(("127.0.0.1", API_PORT)):
        fail(f"The connection to the server 127.0.0.1:{API_PORT} was refused - did you specify the right host or port?")


def read(kind: Kind, namespace: str, name: str) -> Object | None:
    """One object with its status, or None."""
    if kind.name == "Pod":
        named = (namespace, name)
        return next(
            (item for item in _pods() if (item["metadata"]["namespace"], item["metadata"]["name"]) == named), None
        )
    path = _path(kind.name, namespace if kind.namespaced else "", name)
    return with_status(json.loads(path.read_text())) if path.exists() else None


def listing(kind: Kind, namespace: str | None) -> list[Object]:
    """All objects of a kind, of one namespace or of all (None), by namespace and name."""
    found = []
    made = {"NodeMetrics": _node_metrics, "Pod": _pods}
    for item in made.get(kind.name, lambda: _stored(kind.name))():
        place = item["metadata"].get("namespace", "")
        if not kind.namespaced or namespace is None or place == namespace:
            found.append(with_status(item))
    return found


def merged(item: Object, namespace: str) -> tuple[Object | None, Object]:
    """The stored object (None when new) and what applying a manifest would make of it."""
    kind = kind_of_object(item)
    wanted = json.loads(json.dumps(item))
    wanted.pop("status", None)
    if kind.name == "CustomResourceDefinition":
        _require_schemas(wanted)
    if kind.namespaced:
        wanted["metadata"].setdefault("namespace", namespace)
        place = wanted["metadata"]["namespace"]
        if not _path("Namespace", "", place).exists():
            fail(f'Error from server (NotFound): namespaces "{place}" not found')
    path = _path(kind.name, wanted["metadata"].get("namespace", "") if kind.namespaced else "", _name(wanted))
    if not path.exists():
        return None, wanted
    stored = json.loads(path.read_text())
    return stored, _overlay(stored, wanted)


def _require_schemas(definition: Object) -> None:
    for number, version in enumerate(definition["spec"]["versions"]):
        if "openAPIV3Schema" not in version.get("schema", {}):
            field = f"spec.versions[{number}].schema.openAPIV3Schema"
            fail(
                f'The CustomResourceDefinition "{_name(definition)}" is invalid: {field}: Required value: schemas are required'
            )


def write(item: Object) -> None:
    """Store an object and let the controllers that watch it act."""
    kind = kind_of_object(item)
    path = _path(kind.name, item["metadata"].get("namespace", "") if kind.namespaced else "", _name(item))
    for folder in (STATE, OBJECTS, path.parent.parent, path.parent):
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o777)
    # A node's status is made when it is read; kept, it would be that of whoever wrote a label last.
    kept = {key: value for key, value in item.items() if key != "status" or kind.name != "Node"}
    if kind.name == "Service":
        kept["spec"] = {"clusterIP": _service_address(item)} | kept["spec"]
    replace(path, json.dumps(kept, sort_keys=True, indent=1), 0o666)
    _control(item)


def delete(kind: Kind, namespace: str, name: str) -> bool:
    """Remove an object; whether there was one."""
    path = _path(kind.name, namespace if kind.namespaced else "", name)
    existed = path.exists()
    path.unlink(missing_ok=True)
    if kind.name == "Node":  # the collector of old requests takes an hour
        _path("CertificateSigningRequest", "", f"csr-{name}").unlink(missing_ok=True)
    return existed


def with_status(item: Object) -> Object:
    """The object as its controller would have left it."""
    kind = item["kind"]
    if kind == "Node":
        item["status"] = _node_status(item)
    elif kind in {"Deployment", "DaemonSet", "StatefulSet"}:
        item["status"] = _workload_status(item)
    elif kind in {"TigeraStatus", "APIService", "CustomResourceDefinition"}:
        names = {"TigeraStatus": ("Available",), "APIService": ("Available",)}.get(
            kind, ("Established", "NamesAccepted")
        )
        item["status"] = {"conditions": [{"type": name, "status": "True"} for name in names]}
    elif kind == "Namespace":
        item["status"] = {"phase": "Active"}
    elif kind == "Job":
        item["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    elif kind == "PersistentVolumeClaim":
        item["status"] = {"phase": "Bound"}
    elif kind == "PodDisruptionBudget":
        item["status"] = _budget_status(item)
    return item


def running_versions() -> dict[str, str]:
    """Versions of the daemons as they were when they started, which need not be what is installed now."""
    kubelet, crio = STATE / "kubelet-running", STATE / "crio-running"
    return {
        "kubeletVersion": f"v{kubelet.read_text()}" if kubelet.exists() else "",
        "containerRuntimeVersion": f"cri-o://{crio.read_text()}" if crio.exists() else "",
    }


def _node_metrics() -> Iterator[Object]:
    """Figures of every node, once metrics-server and its entry in the API are there."""
    served = any(item["metadata"]["name"].endswith("metrics.k8s.io") for item in _stored("APIService"))
    if served and any(item["metadata"]["name"] == "metrics-server" for item in _stored("Deployment")):
        for item in _stored("Node"):
            name = {"name": item["metadata"]["name"]}
            usage = {"cpu": "100m", "memory": "500Mi"}
            yield {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics", "metadata": name, "usage": usage}


def control_plane_node() -> str:
    """The name of the control plane's node; empty where there is none yet."""
    names = [
        one["metadata"]["name"] for one in _stored("Node") if CONTROL_PLANE_LABEL in one["metadata"].get("labels", {})
    ]
    return str(names[0]) if names else ""


def _pods() -> Iterator[Object]:
    """The static pods of the control plane, once it has a node, and what somebody applied; nothing here runs them."""
    node = control_plane_node()
    yield from static_pods.pods(node) if node else ()
    for pod in _stored("Pod"):
        yield pod | {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def can_leave(pod: Object, node: str) -> bool:
    """Whether a drain of the node takes this pod away."""
    metadata = pod["metadata"]
    kinds = [owner["kind"] for owner in metadata.get("ownerReferences", ())]
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return pod["spec"].get("nodeName") == node and not static and "DaemonSet" not in kinds


def budgets(pod: Object) -> list[Object]:
    """The disruption budgets that choose a pod."""
    place, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels", {})
    found = listing(kind_of("poddisruptionbudget"), place)
    return [one for one in found if one["spec"]["selector"]["matchLabels"].items() <= labels.items()]


def _budget_status(budget: Object) -> Object:
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    chosen = [pod for pod in _stored("Pod") if wanted <= pod["metadata"].get("labels", {}).items()]
    healthy, least = len(chosen), int(budget["spec"].get("minAvailable", 0))
    counts = {"currentHealthy": healthy, "expectedPods": healthy, "desiredHealthy": least}
    return {**counts, "disruptionsAllowed": max(0, healthy - least)}


def _node_status(item: Object) -> Object:
    network = any(_stored("Installation"))
    alive = _heard(item)
    status, message = str(network and alive), ""
    if not alive:
        status, message = "Unknown", "Kubelet stopped posting node status."
    elif not network:
        message = "container runtime network not ready: NetworkReady=false"
    ready = {"type": "Ready", "status": status, "reason": "Kubelet", "message": message}
    word = _last_word(item)
    versions = running_versions() if word is None else word.get("nodeInfo", {})
    addresses = (word or {}).get("addresses", [])
    return {"conditions": [ready], "nodeInfo": versions, "addresses": addresses, "allocatable": _slices(item)}


def _slices(node: Object) -> Object:
    """What a device plugin with one GPU per machine would have told the kubelet, by the configuration it was given."""
    plugin = read(kind_of("daemonset"), "gpu-system", "device-plugin")
    given = read(kind_of("configmap"), "gpu-system", "device-plugin")
    if plugin is None or given is None or not _fits(plugin, node):
        return {}
    sharing = yaml.safe_load(given["data"]["config.yaml"]).get("sharing", {})
    replicas = [one["replicas"] for kind in sharing.values() for one in kind["resources"]] or [1]
    return {"nvidia.com/gpu": str(replicas[0])}


def _fits(workload: Object, node: Object) -> bool:
    """Whether a node has the labels that the pods of a workload ask for."""
    wanted = workload.get("spec", {}).get("template", {}).get("spec", {}).get("nodeSelector", {})
    ours = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": node["metadata"]["name"]}
    return bool(wanted.items() <= (ours | node["metadata"].get("labels", {})).items())


def _heard(node: Object) -> bool:
    """Whether the node's kubelet is alive: asked where it runs here, else by its last word."""
    word = _last_word(node)
    if word is None:
        return answers(("127.0.0.1", KUBELET_HEALTH_PORT))
    return time.time() - float(word.get("at", 0)) < SILENT_AFTER_S


def _last_word(node: Object) -> Object | None:
    """What a worker's kubelet said last, empty when it has not yet; None for the control plane, which is here."""
    if CONTROL_PLANE_LABEL in node["metadata"].get("labels", {}):
        return None
    path = HEARTBEATS / f"{node['metadata']['name']}.json"
    word: Object = json.loads(path.read_text()) if path.exists() else {}
    return word


def _workload_status(item: Object) -> Object:
    count = item.get("spec", {}).get("replicas", 1)
    generation = item["metadata"].get("generation", 1)
    if item["kind"] == "DaemonSet":
        nodes = [node for node in _stored("Node") if _fits(item, node)]
        wanted = ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled")
        running = ("numberReady", "numberAvailable")
        counts = dict.fromkeys(wanted, len(nodes)) | dict.fromkeys(running, sum(map(_heard, nodes)))
        return {"observedGeneration": generation, **counts}
    names = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
    condition = {"type": "Available", "status": "True"}
    return {"observedGeneration": generation, **dict.fromkeys(names, count), "conditions": [condition]}


def _control(item: Object) -> None:
    """What operators do when an object appears."""
    if item["kind"] == "Installation":
        write({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "calico-system"}})
        write({"apiVersion": "operator.tigera.io/v1", "kind": "TigeraStatus", "metadata": {"name": "calico"}})
        for kind, name in (
            ("DaemonSet", "calico-node"),
            ("Deployment", "calico-kube-controllers"),
            ("Deployment", "calico-typha"),
        ):
            place = {"name": name, "namespace": "calico-system"}
            write({"apiVersion": "apps/v1", "kind": kind, "metadata": place, "spec": {}})


def _service_address(item: Object) -> str:
    """One of the range of Services, always the same for the same name."""
    number = zlib.crc32(f"{item['metadata'].get('namespace')}/{_name(item)}".encode()) % 0xFF00
    return f"10.100.{number >> 8}.{number & 0xFF}"


def _stored(kind: str) -> Iterator[Object]:
    for path in sorted((OBJECTS / kind).glob("*/*.json")):
        yield json.loads(path.read_text())


def _path(kind: str, namespace: str, name: str) -> Path:
    return OBJECTS / kind / (namespace or "_") / f"{name}.json"


def _name(item: Object) -> str:
    name = item.get("metadata", {}).get("name")
    if not name:
        fail("error: resource name may not be empty")
    return str(name)


def _overlay(stored: Any, wanted: Any) -> Any:
    """Fields of a manifest laid over the stored object; lists are replaced, what is not named stays."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        both = {key: _overlay(stored[key], value) if key in stored else value for key, value in wanted.items()}
        return stored | both
    return wanted
