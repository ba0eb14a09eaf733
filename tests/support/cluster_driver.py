"""Plays the nodes and controllers of a cluster that has none: the fake API server, or a bare kube-apiserver.

Deployments and Jobs get pods, pods become real replica processes of this machine, their status is written as a kubelet
writes it, deletion sends SIGTERM, and a small HTTPS server answers for logs where the API server looks for the kubelet.
Misbehaviour is asked for: an image that is not there, an OOM kill, an eviction, a node that falls silent.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from urllib3 import BaseHTTPResponse

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.pods import end_of
from harness.backends.kubernetes.watch import Watcher
from harness.errors import BackendError
from harness.spec.server import POD_PORT
from tests.support import forked
from tests.support.dra_driver import DraDriver
from tests.support.fake_cluster_store import FOREGROUND
from tests.support.kubelet import Kubelet, mounted
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
POLL_S = 0.03
"""Processes are looked at this often."""
LIST_S = 0.5
"""And the objects, where no watch told of a change: a watch may be refused, or fall silent."""
PROBE_S = 0.3
"""Whether a container that is ready still is, is asked this often."""
GPU = "nvidia.com/gpu"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
MPS_DAEMON = "mps-control-daemon"


def own_address() -> str:
    """An address of this machine: no loopback, to which a real API server hands nothing on.

    Where there is no network it is loopback all the same, which is enough for the fake API server.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PodProcess:
    """A pod that was given to a node, or its container ``server``."""

    name: str
    uid: str
    folder: Path
    port: int
    environment: dict
    always: bool
    command: list = field(default_factory=lambda: [sys.executable, "-m", "harness.replica"])
    server: "PodProcess | None" = None
    copied: list = field(default_factory=list)
    warm: bool = False
    process: subprocess.Popen | forked.Command | None = None
    restarts: int = 0
    last: dict | None = None
    ended: dict | None = None
    reason: str = ""
    unhealthy: str = ""
    ready: bool = False
    probed_s: float = 0.0
    told: bool = False
    written: str = ""

    @property
    def containers(self) -> list:
        """Of the pod."""
        return [self, self.server] if self.server else [self]

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.restarts}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            **self.environment,
            "HOST": "0.0.0.0",
            "PORT": str(self.port),
            "REPLICA_DIR": str(self.folder),
        }
        if self.warm:
            _python, _by_module, module, *words = self.command
            begin = forked.commands().start
            self.process = begin(*words, module=module, log=self.log, cwd=self.folder, environment=environment)
            return
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def serves(self, address: str) -> bool:
        """As its probe saw it; one that is not ready is probed each time."""
        if self.ready and time.monotonic() - self.probed_s < PROBE_S:
            return True
        self.probed_s = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://{address}:{self.port}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


@dataclass
class ClusterDriver:
    """Drives one namespace; use it as a context.

    Attributes:
        controlled: by the real controllers and scheduler; this plays nothing but the node.
        slices: of the GPU resource that its node has.
        withdrawn: of these, how many it does not lend.
        pull: what the kubelet says of an image instead of running it, e.g. ``("ImagePullBackOff", "no such image")``.
        collects: whether its garbage collector tells the pods of a deleted owner to end; until then the owner keeps their number.
        forbidden: message with which the controller fails to make pods, e.g. a quota's; empty: it can.
        started_after_s: how long a pod takes until its process starts.
        gpus: that its slices are of, given to pods in turn; none: a pod is not told of any.
        plugin: configurations of a device plugin that heeds the node's label: slices, and whether they are MPS's.
        heeded: those that it lent by, in order; it begins with the first.
        dra: gives pods the GPUs of their claims; None: there is no such driver.
        secrets: values out of Secrets, by the variable that they go into.
        forked: modules that are run by a process that has imported the harness, instead of a Python of their own.
        last_signal: that ends a pod that is deleted: SIGTERM, or SIGKILL as after a grace period that was of no use.
        marks: when the last owner was seen, complete, found deleted and ended, seconds since the epoch.
    """

    api: KubernetesApi
    folder: Path
    node: str = "node-a"
    controlled: bool = False
    slices: int = 10
    withdrawn: int = 0
    pull: tuple[str, str] | None = None
    forbidden: str = ""
    started_after_s: float = 0.0
    collects: bool = True
    gpus: list[str] = field(default_factory=list)
    plugin: dict[str, tuple[int, bool]] = field(default_factory=dict)
    heeded: list[str] = field(default_factory=list)
    dra: DraDriver | None = None
    forked: tuple[str, ...] = ()
    last_signal: int = signal.SIGTERM
    marks: dict[str, float] = field(default_factory=dict)
    pods: dict[str, PodProcess] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _quota: str = ""
    _pods: list = field(default_factory=list)
    _owners: list = field(default_factory=list)
    _listed_s: float = 0.0
    _watchers: list[Watcher] = field(default_factory=list)
    _changed: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self):
        self.api = _telling(self.api, self._changed)
        self.address = own_address()
        self.collection = f"/api/v1/namespaces/{self.api.namespace}/pods"
        self.apps = f"/apis/apps/v1/namespaces/{self.api.namespace}/deployments"
        self.batch = f"/apis/batch/v1/namespaces/{self.api.namespace}/jobs"
        self.kubelet = Kubelet(self.address, self.folder, self.pods).__enter__()
        self._make_place()
        for path in (self.collection, self.apps, self.batch, "/api/v1/nodes"):
            self._watchers.append(Watcher(self.api, path, listener=lambda *_: self._changed.set()))
            self._watchers[-1].start()
        self._thread = threading.Thread(target=self._run, name="cluster-driver", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)
        for watcher in self._watchers:
            watcher.stop()
        if self._quota:
            self.api.delete(self._quota)
        for pod in self.pods.values():
            self._end_process(pod)
        self.kubelet.__exit__()
        assert self.failures == []

    # What tests ask for.

    def kill(self, name: str, number: int = signal.SIGKILL, reason: str = "", *, server: bool = False) -> None:
        """End a pod's process; ``reason`` is what the kubelet will say, e.g. OOMKilled."""
        with self._lock:
            one = self.pods[name].server if server else self.pods[name]
            one.reason = reason
            one.process.send_signal(number)

    def evict(self, name: str, reason: str = "Evicted", message: str = "The node was low on resource: memory.") -> None:
        """As the kubelet evicts: the pod fails and stays as an object."""
        with self._lock:
            pod = self.pods[name]
            self._end_process(pod)
            pod.ended = {"phase": "Failed", "reason": reason, "message": message}

    def drain(self, name: str) -> None:
        """As ``kubectl drain`` does."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": now(),
        }
        self.api.patch(f"{self.collection}/{name}/status", {"status": {"conditions": [condition]}})
        self.api.delete(f"{self.collection}/{name}")

    def set_node(self, kind: str, status: str, reason: str, message: str) -> None:
        """Set one condition of the node."""
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting"}]
        conditions = [one for one in conditions if one["type"] != kind]
        conditions.append({"type": kind, "status": status, "reason": reason, "message": message})
        self._write_node(conditions)

    def report(self) -> None:
        """Let the kubelet say that the node is ready."""
        self.set_node("Ready", "True", "KubeletReady", "kubelet is posting ready status")

    def fall_silent(self) -> None:
        """Let the kubelet say nothing any more."""
        self.set_node("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

    def lend(self, slices: int) -> None:
        """Let the node have as many slices from now on."""
        self.slices = slices
        self.report()

    def forbid_pods(self) -> None:
        """By a quota of none."""
        if not self.controlled:
            self.forbidden = 'pods "x" is forbidden: exceeded quota: gpus'
            return
        path, hard = f"/api/v1/namespaces/{self.api.namespace}/resourcequotas/gpus", {"pods": "0"}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
        self.api.apply(path, body)
        self.api.patch(f"{path}/status", {"status": {"hard": hard, "used": {"pods": "0"}}})
        self._quota = path

    def fail_device(self, name: str, device: str) -> None:
        """Let the device plugin call the slice that a pod holds unhealthy."""
        self.pods[name].unhealthy = device
        self.withdrawn += 1
        self.report()

    def names(self) -> list[str]:
        """The pods that are there, by name."""
        return sorted(pod["metadata"]["name"] for pod in self.api.list(self.collection))

    def left(self) -> list[str]:
        """Every object of the harness that is still there."""
        return [
            one["metadata"]["name"] for path in (self.apps, self.batch, self.collection) for one in self.api.list(path)
        ]

    # What a cluster does.

    def _make_place(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.api.namespace}}
        self.api.apply(f"/api/v1/namespaces/{self.api.namespace}", namespace)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}, "spec": {}}
        node["metadata"]["labels"] = {"kubernetes.io/hostname": self.node}
        self.api.apply(f"/api/v1/nodes/{self.node}", node)
        self.report()
        # An API server taints a new node as not ready; the controller that takes it away runs nowhere here.
        self.api.patch(f"/api/v1/nodes/{self.node}", {"spec": {"taints": None}})

    def _write_node(self, conditions: list) -> None:
        status = {
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110", GPU: str(self.slices)},
            "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110", GPU: str(self.slices - self.withdrawn)},
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.14.0", "osImage": "Ubuntu 24.04",
                "containerRuntimeVersion": "cri-o://1.36.3", "kubeletVersion": "v1.36.2", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        }  # fmt: skip
        self.api.patch(f"/api/v1/nodes/{self.node}/status", {"status": status})

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                with self._lock:
                    self._turn()
            except BackendError as error:
                # A test that stops the API server under us says so by stopping us, too.
                if not self._stop.is_set() and error.args and "409" not in str(error):
                    self.failures.append(str(error))

    def _turn(self) -> None:
        looked = self._changed.is_set() or time.monotonic() - self._listed_s >= LIST_S
        if looked:
            self._look()
        for path, kind, owner in self._owners:
            self._control(path, kind, owner, [pod for pod in self._pods if _owned(pod, owner)])
        if looked and self.dra is not None:
            self.dra.turn(self._pods)
        for pod in self._pods:
            self._play(pod)
        for name in set(self.pods) - {pod["metadata"]["name"] for pod in self._pods}:
            self._end_process(self.pods.pop(name))

    def _look(self) -> None:
        """Heed the node's label, and list what there is; a refusal is tried again at the next turn."""
        self._changed.clear()
        try:
            if self.plugin:
                self._heed_label()
            self._pods = [pod for pod in self.api.list(self.collection) if pod["metadata"]["name"] != MPS_DAEMON]
            kinds = () if self.controlled else ((self.apps, "Deployment"), (self.batch, "Job"))
            self._owners = [(path, kind, owner) for path, kind in kinds for owner in self.api.list(path)]
        except BackendError:
            self._changed.set()
            raise
        self._listed_s = time.monotonic()

    def _heed_label(self) -> None:
        """As the device plugin's config manager does."""
        labels = self.api.get(f"/api/v1/nodes/{self.node}")["metadata"].get("labels") or {}
        wanted = labels.get(CONFIG_LABEL) or next(iter(self.plugin))
        if self.heeded[-1:] == [wanted]:
            return
        self.slices, mps = self.plugin[wanted]
        pipe = self.folder / "mps"
        pipe.mkdir(parents=True, exist_ok=True)
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)} if mps else {}
        self.api.delete(f"{self.collection}/{MPS_DAEMON}", grace_s=0)
        if mps:
            container = {"name": "mps-control-daemon-ctr", "image": "registry.example/plugin:1"}
            spec = {"nodeName": self.node, "serviceAccountName": "replica", "containers": [container]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": MPS_DAEMON}, "spec": spec}
            self.api.create(self.collection, body)
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.api.patch(f"{self.collection}/{MPS_DAEMON}/status", {"status": ready})
        self.report()
        self.heeded.append(wanted)

    def _control(self, path: str, kind: str, owner: dict, owned: list) -> None:
        name, metadata = owner["metadata"]["name"], owner["metadata"]
        if "deletionTimestamp" in metadata and self.collects:
            self.marks.setdefault("deletion", time.time())
            for pod in owned:
                if "deletionTimestamp" not in pod["metadata"]:
                    self.api.delete(f"{self.collection}/{pod['metadata']['name']}")
            if not owned and FOREGROUND in (metadata.get("finalizers") or ()):
                self.marks["ended"] = time.time()
                others = [one for one in metadata["finalizers"] if one != FOREGROUND]
                with contextlib.suppress(BackendError):  # it may be gone by now
                    self.api.patch(f"{path}/{name}", {"metadata": {"finalizers": others or None}})
            return
        self.marks.setdefault("seen", time.time())
        replicas = owner["spec"].get("replicas") or owner["spec"].get("completions")
        replicas = 0 if owner["spec"].get("suspend") or owner["spec"].get("paused") else replicas
        alive = [pod for pod in owned if "deletionTimestamp" not in pod["metadata"]]
        running = [pod for pod in alive if pod.get("status", {}).get("phase") not in {"Failed", "Succeeded"}]
        for index in range(len(running if kind == "Deployment" else alive), replicas):
            if not self.forbidden:
                self._make_pod(kind, owner, index)
        failed = len(alive) - len(running) if kind == "Job" else 0
        if failed > owner["spec"].get("backoffLimit", failed):  # a Job that has failed keeps no pod
            for pod in running:
                self.api.delete(f"{self.collection}/{pod['metadata']['name']}")
        self._write_owner(path, kind, owner, running, failed)

    def _write_owner(self, path: str, kind: str, owner: dict, running: list, failed: int) -> None:
        ready = sum(_ready(pod) for pod in running)
        count = len(running)
        status = {"ready": ready, "active": count, "failed": failed} if kind == "Job" else {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "readyReplicas": ready,
            "availableReplicas": ready,
        }  # fmt: skip
        if self.forbidden:
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": self.forbidden}
            status["conditions"] = [failure]
        known = owner.get("status") or {}
        if any(known.get(key, 0) != value for key, value in status.items() if key != "conditions") or (
            self.forbidden and not known.get("conditions")
        ):
            if kind == "Job":
                status["startTime"] = known.get("startTime") or now()
            self.api.patch(f"{path}/{owner['metadata']['name']}/status", {"status": status})
            self.marks["complete"] = time.time()

    def _make_pod(self, kind: str, owner: dict, index: int) -> None:
        template = owner["spec"]["template"]
        metadata = json.loads(json.dumps(template["metadata"]))
        metadata["annotations"]["prometheus.io/port"] = str(free_port(self.address))
        if kind == "Job":
            metadata["annotations"]["batch.kubernetes.io/job-completion-index"] = str(index)
        metadata["generateName"] = f"{owner['metadata']['name']}-"
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner.get("apiVersion") or ("batch/v1" if kind == "Job" else "apps/v1"),
                "kind": kind,
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        spec = json.loads(json.dumps(template["spec"]))
        lent = sum(self._wanted(pod["spec"]) for pod in self._placed())
        if self._wanted(spec) + lent <= self.slices - self.withdrawn:
            spec["nodeName"] = self.node
        self.api.create(self.collection, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def _placed(self) -> list:
        return [pod for pod in self.api.list(self.collection) if pod["spec"].get("nodeName")]

    def _wanted(self, spec: dict) -> int:
        limits = [one.get("resources", {}).get("limits") or {} for one in spec["containers"]]
        return sum(int(one.get(GPU, 0)) for one in limits)

    def _play(self, pod: dict) -> None:
        name = pod["metadata"]["name"]
        known = self.pods.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._terminate(name, known, pod)
        elif not pod["spec"].get("nodeName") and self.controlled:
            return  # the scheduler's
        elif not pod["spec"].get("nodeName"):
            message = f"0/1 nodes are available: 1 Insufficient {GPU}."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            self._write(name, None, {"phase": "Pending", "conditions": [condition]}, pod)
        elif self.dra is not None and known is None and self.dra.of(pod) and self.dra.given(pod) is None:
            self._write(name, None, self._without_devices(pod), pod)
        elif self.pull is not None:
            waiting = {"reason": self.pull[0], "message": self.pull[1]}
            self._write(name, None, {"phase": "Pending", "containerStatuses": [_container(waiting=waiting)]}, pod)
        elif known is None:
            self._admit(pod)
        else:
            self._tend(known, pod)

    def _without_devices(self, pod: dict) -> dict:
        """The scheduler places a pod when its claim is allocated, and the kubelet makes its sandbox when that is prepared."""
        if self.dra.allocated(pod):
            conditions = [
                {"type": "PodReadyToStartContainers", "status": "False"},
                {"type": "PodScheduled", "status": "True"},
            ]
            waiting = [_container(waiting={"reason": "ContainerCreating"})]
            return {"phase": "Pending", "conditions": conditions, "containerStatuses": waiting}
        message = "0/1 nodes are available: 1 cannot allocate all claims."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        return {"phase": "Pending", "conditions": [condition]}

    def _admit(self, pod: dict) -> None:
        name, annotations = pod["metadata"]["name"], pod["metadata"]["annotations"]
        if self.controlled:  # the pods of this machine share one network, so each needs a port of its own
            annotations["prometheus.io/port"] = str(free_port(self.address))
            self.api.patch(f"{self.collection}/{name}", {"metadata": {"annotations": annotations}})
        copied = [_run_to_its_end(one) for one in pod["spec"].get("initContainers", [])]
        if any(one["state"]["terminated"]["exitCode"] for one in copied):
            waiting = [_container(waiting={"reason": "PodInitializing"})]
            status = {"phase": "Pending", "initContainerStatuses": copied, "containerStatuses": waiting}
            self._write(name, None, status, pod)
            return
        client, *beside = pod["spec"]["containers"]
        environment = {} if beside else dict(self.environment)  # the device plugin's, of the container with the GPU
        if self.gpus:
            environment["NVIDIA_VISIBLE_DEVICES"] = self.gpus[len(self.pods) % len(self.gpus)]
        if self.dra is not None and self.dra.of(pod):
            environment |= self.dra.given(pod) or {}
        for entry in client["env"]:
            field_path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            indexed = annotations.get("batch.kubernetes.io/job-completion-index", "")
            environment[entry["name"]] = entry.get("value") or (name if field_path == "metadata.name" else indexed)
        made = PodProcess(
            name=name,
            uid=pod["metadata"]["uid"],
            folder=self.folder / name,
            port=int(annotations["prometheus.io/port"]),
            environment=environment,
            always=pod["spec"].get("restartPolicy") == "Always",
            copied=copied,
        )
        environment |= mounted(self.api, pod["spec"], made.folder)
        if client.get("command"):
            made.command = [sys.executable if word == "python" else word for word in client["command"]]
        plain = made.command[:2] == [sys.executable, "-m"] and "LD_PRELOAD" not in environment
        made.warm = plain and made.command[2] in self.forked
        if beside:
            made.server = self._server(made, beside[0])
        self.pods[name] = made
        if self.started_after_s:
            time.sleep(self.started_after_s)
        for one in made.containers:
            one.start()

    def _server(self, client: PodProcess, container: dict) -> PodProcess:
        """Its second container, at a port of its own: the pods of this machine share one network."""
        asked = json.loads(client.environment["REPLICA_SPEC"])
        server = asked["workload"]["server"]
        in_pod, here = str(server.get("port", POD_PORT)), str(free_port())
        server["port"] = int(here)
        client.environment["REPLICA_SPEC"] = json.dumps(asked)
        of_pod = {one["name"] for one in container["env"] if "fieldRef" in one.get("valueFrom", {})}  # a Job's index
        of_others = [one for one in container["env"] if one["name"] not in of_pod]
        given = {one["name"]: one.get("value") or self.secrets[one["name"]] for one in of_others}
        client.environment |= {name: value for name, value in self.secrets.items() if name in client.environment}
        words = [word.replace(in_pod, here) for kind in ("command", "args") for word in container.get(kind, [])]
        return replace(
            client,
            folder=client.folder / "server",
            environment=self.environment | given,
            command=words,
            server=None,
            warm=False,
        )

    def _tend(self, known: PodProcess, pod: dict) -> None:
        for one in known.containers:
            code = one.process.poll()
            if code is None:
                one.ready = one is not known or known.serves(self.address)
            elif one.ended is None:
                self._note_end(one, 128 - code if code < 0 else code)
        self._write(known.name, known, self._status(known), pod)

    def _note_end(self, known: PodProcess, code: int) -> None:
        reason = known.reason or ("Completed" if code == 0 else "Error")
        state = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        known.ready = False
        if known.always:
            known.last, known.restarts, known.reason = state, known.restarts + 1, ""
            known.start()
        else:
            known.ended = {"phase": "Succeeded" if code == 0 else "Failed", "terminated": state}

    def _status(self, known: PodProcess) -> dict:
        over = all(one.ended for one in known.containers) or (known.ended and "terminated" not in known.ended)
        ended = known.ended if over else {}
        ready = "True" if all(one.ready and not one.ended for one in known.containers) else "False"
        status = {
            "phase": ended.get("phase", "Running"),
            "podIP": self.address,
            "hostIP": self.address,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": ready},
                {"type": "ContainersReady", "status": ready},
            ],
            "initContainerStatuses": known.copied,
            "containerStatuses": [
                _container(
                    name="replica" if one is known else "server",
                    terminated=(one.ended or {}).get("terminated"),
                    last=one.last,
                    restarts=one.restarts,
                    ready=one.ready and not one.ended,
                )
                | ({"allocatedResourcesStatus": [_sick(one.unhealthy)]} if one.unhealthy else {})
                for one in known.containers
            ],
        }
        return status | {key: ended[key] for key in ("reason", "message") if key in ended}

    def _terminate(self, name: str, known: PodProcess | None, pod: dict) -> None:
        if known is None or known.process is None:
            self.api.delete(f"{self.collection}/{name}", grace_s=0)
            return
        for one in known.containers:
            if not one.told and one.process.poll() is None:
                one.told = True
                one.process.send_signal(self.last_signal)
        if any(one.process.poll() is None for one in known.containers):
            return
        for one in known.containers:
            if one.ended is None:
                one.always, code = False, one.process.poll()
                self._note_end(one, 128 - code if code < 0 else code)
        self._write(name, known, self._status(known), pod)
        self.api.delete(f"{self.collection}/{name}", grace_s=0)

    def _end_process(self, known: PodProcess) -> None:
        for one in known.containers:
            if one.process and one.process.poll() is None:
                one.process.kill()
                one.process.wait()

    def _write(self, name: str, known: PodProcess | None, status: dict, pod: dict) -> None:
        kept = [one for one in pod.get("status", {}).get("conditions") or [] if one["type"] == "DisruptionTarget"]
        status["conditions"] = [*status.get("conditions", []), *kept]
        text = json.dumps(status, sort_keys=True)
        if known is not None and known.written == text:
            return
        if known is None and pod.get("status", {}).get("phase") == status["phase"] and _same(pod, status):
            return
        with contextlib.suppress(BackendError):  # deleted by force in the meantime
            self.api.patch(f"{self.collection}/{name}/status", {"status": status})
            if known is not None:
                known.written = text


def _telling(api: KubernetesApi, changed: threading.Event) -> KubernetesApi:
    """The same server for somebody who is told of his own changes before any watch does."""

    def exchange(method: str, path: str, **options) -> BaseHTTPResponse:
        try:
            return api.exchange(method, path, **options)
        finally:
            if method != "GET":
                changed.set()

    telling = api.until(threading.Event())
    telling.exchange = exchange
    return telling


def _run_to_its_end(container: dict) -> dict:
    """An init container, whose image and volumes are folders of this machine."""
    for mount in container["volumeMounts"]:
        Path(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(container["command"], capture_output=True, text=True, check=False)
    state = {"exitCode": done.returncode, "reason": "Error" if done.returncode else "Completed", "message": done.stderr}
    return _container(name=container["name"], terminated=state)


def _same(pod: dict, status: dict) -> bool:
    return bool(pod["status"].get("conditions")) == bool(status.get("conditions")) and bool(
        pod["status"].get("containerStatuses")
    ) == bool(status.get("containerStatuses"))


def _owned(pod: dict, owner: dict) -> bool:
    return any(one["uid"] == owner["metadata"]["uid"] for one in pod["metadata"].get("ownerReferences") or [])


def _ready(pod: dict) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions) and end_of(pod) is None


def _sick(device: str) -> dict:
    return {"name": GPU, "resources": [{"resourceID": device, "health": "Unhealthy"}]}


def _container(*, name="replica", waiting=None, terminated=None, last=None, restarts=0, ready=False) -> dict:
    state = (
        {"waiting": waiting}
        if waiting
        else {"terminated": terminated}
        if terminated
        else {"running": {"startedAt": now()}}
    )
    if "running" in state:
        state = {"running": {"startedAt": "2026-01-31T00:00:00Z"}}
    return {
        "name": name,
        "image": "registry.example/workload:1",
        "imageID": "registry.example/workload@sha256:" + 64 * "a",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }
