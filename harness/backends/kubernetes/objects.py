"""The objects that are made for one experiment, rendered from the template that people can read."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
import yaml

from harness.backends.kubernetes import files, pods
from harness.backends.kubernetes.api import Object, OwnedObject
from harness.backends.kubernetes.pods import EXPERIMENT_LABEL
from harness.data import data_path
from harness.results.layout import neighbour_folder
from harness.sharing.cluster import cluster_sharing
from harness.sharing.dra import reference
from harness.sharing.modes import mode_of
from harness.sharing.node import CAMPAIGN_LABEL
from harness.spec import (
    ExperimentSpec,
    KubernetesSpec,
    LayerSpec,
    ScenarioKind,
    ServerSpec,
    Timing,
    WorkloadKind,
    WorkloadSpec,
)
from harness.spec.kubernetes import SharingBy
from harness.spec.pods import Resource
from harness.spec.replica import ReplicaSpec
from harness.spec.server import METRICS_PORT as PORT
from harness.spec.server import PORT_PLACEHOLDER
from harness.spec.yaml_tree import SAFE_LOADER

REPLICA_DIR = "/var/run/replica"
LAYER_DIR = "/var/run/layer"
"""Where a library lies that was copied out of an image of its own."""
COMMAND = ("python", "-m", "harness.replica")
"""Of the image, which a layer is put before."""
LOAD_COMMAND = ("python", "-m", "harness.traffic.pod")
LOAD_LABEL = "gpu-sharing-harness/load"
"""On the pods that send requests alone; the namespace's NetworkPolicies know it."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NEIGHBOUR_LABEL = "gpu-sharing-harness/neighbour-of"
"""On a neighbour's pods alone: the experiment label of the measured ones."""
KEEP_S = 3600
"""Seconds that a Job, and the results in its pods, stay when nobody fetches them."""
SLACK_S = 60.0
"""Added to the time that a Job's replicas run: whatever the harness does between two phases."""
_NAME_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The Deployment or Job of an attempt's replicas, of a neighbour's or of a load's; by claims one for each shared GPU.

    Attributes:
        name: unique among the attempts of all campaigns.
        routes: by which each of its pods hands out what it wrote, beside its status.
        beside: what its pods take from the API server: a claim of its own, files.
        claims: names of the claims, or of the template, that its pods name, by the GPU's number; empty: they have none.
    """

    experiment: ExperimentSpec
    spec: KubernetesSpec
    folder: Path
    kind: str
    name: str
    collection: str
    labels: dict[str, str]
    owners: tuple[OwnedObject, ...]
    routes: tuple[str, ...]
    beside: tuple[OwnedObject, ...]
    claims: tuple[str, ...]

    @property
    def body(self) -> Object:
        """Of the first owner."""
        return self.owners[0].body

    @property
    def replicas(self) -> int:
        """Pods of it at once."""
        return sum(count_of(owner.body) for owner in self.owners)

    @property
    def selector(self) -> str:
        """Selects the pods of this attempt and no other."""
        return f"{EXPERIMENT_LABEL}={self.labels[EXPERIMENT_LABEL]}"


def collections(spec: KubernetesSpec, *, given: bool = False) -> dict[str, str]:
    """Paths of the kinds that the harness makes, by kind, owners first; ``given``: with those of files."""
    return {
        "Deployment": f"/apis/apps/v1/namespaces/{spec.namespace}/deployments",
        "Job": f"/apis/batch/v1/namespaces/{spec.namespace}/jobs",
        **cluster_sharing(spec).collections(),
        **({"ConfigMap": files.collection(spec.namespace)} if given else {}),
    }


def without_gpu(spec: KubernetesSpec) -> KubernetesSpec:
    """How pods stand in the cluster that ask others and compute nothing: they end by themselves and wait in no queue."""
    alone = {"kind": WorkloadKind.JOB, "gpus_per_replica": 0, "queue_name": None, "scheduler_name": None}
    asks = {"reserve": spec.client_reserve, "limit": spec.client_limit}
    by = {"sharing_by": SharingBy.DEVICE_PLUGIN, "device_plugin_configs": None}
    return spec.model_copy(update={**alone, **asks, **by})


def pods_path(namespace: str) -> str:
    """Path of the pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


def workload(
    experiment: ExperimentSpec,
    folder: Path,
    spec: KubernetesSpec,
    campaign_id: str,
    *,
    measured: PodGroup | None = None,
    position: int = 0,
) -> PodGroup:
    """The pods that run an experiment's replicas, and what they need.

    Several owners where replicas share several GPUs by claims, since all pods of one name the same. ``measured``: beside which it
    runs, where it is a neighbour's; ``position``: how many replicas are dealt out to the GPUs before these.
    """
    attempt = measured.name if measured else f"{campaign_id}/{experiment.experiment_id}/{folder.name}"
    name = _name(experiment, attempt)
    labels = {
        **spec.labels,
        "app.kubernetes.io/name": experiment.workload.name,
        "app.kubernetes.io/part-of": "gpu-sharing-harness",
        "app.kubernetes.io/managed-by": "gpu-sharing-harness",
        CAMPAIGN_LABEL: campaign_id,
        EXPERIMENT_LABEL: name,
        **({NEIGHBOUR_LABEL: measured.name} if measured else {}),
    }
    kind = "Job" if spec.kind is WorkloadKind.JOB else "Deployment"
    collection_of = collections(spec)
    server = experiment.workload.server
    given = files.carried(server, spec, name, labels) if server else ()
    claims = [] if measured else cluster_sharing(spec).claims(experiment, name, labels)
    named = measured.claims if measured else tuple(str(body["metadata"]["name"]) for body in claims)
    several = len(named) > 1
    places = range(position, position + experiment.replicas)
    owners = []
    # Dealt out in turn, as on this machine.
    for gpu, count in Counter(place % max(len(named), 1) for place in places).items():
        own, marked = (f"{name}-gpu{gpu}", labels | {pods.GPU_LABEL: str(gpu)}) if several else (name, labels)
        claim = reference(experiment, named[gpu]) if named else None
        values = _values(experiment, spec, own, marked) | {
            "given": [{"configMap": {"name": entry.body["metadata"]["name"]}} for entry in given],
            "given_dir": files.FOLDER,
            "replicas": count,
            "numbered": not several,
            "claim": claim,
            "resources": _resources(spec, server, claim),
        }
        body = yaml.load(_template().render(values), SAFE_LOADER)  # noqa: S506 - it is safe
        owners.append(OwnedObject(f"{collection_of[kind]}/{own}", body))
    made = [OwnedObject(f"{collection_of[body['kind']]}/{body['metadata']['name']}", body) for body in claims]
    return PodGroup(
        experiment,
        spec,
        folder,
        kind,
        name,
        collection_of[kind],
        labels,
        owners=tuple(owners),
        routes=_routes(experiment.workload),
        beside=(*made, *given),
        claims=named,
    )


def count_of(body: Mapping[str, Any]) -> int:
    """Pods of a Deployment or Job at once."""
    return int(body["spec"]["parallelism" if body["kind"] == "Job" else "replicas"])


def _resources(spec: KubernetesSpec, server: ServerSpec | None, claim: dict[str, str] | None) -> dict[str, Any]:
    """Of each container by its name: what its node must have free, what it may use, and of the one that computes, the GPU."""
    gpu: dict[str, Any] = {}
    if spec.gpus_per_replica:
        slices = {spec.gpu_resource: spec.gpus_per_replica} if spec.gpu_resource else {}
        gpu = {"claims": [{"name": claim["name"]}]} if claim else {"limits": {**slices, **spec.extra_resources}}
    if server is None:
        own = _bounds(spec.reserve, spec.limit)
        return {pods.CONTAINER: _with(gpu, own), pods.LAYER: own}
    asks = _bounds(spec.client_reserve, spec.client_limit)
    return {pods.CONTAINER: asks, pods.LAYER: asks, pods.SERVER: _with(gpu, _bounds(server.reserve, server.limit))}


def _bounds(reserve: Mapping[Resource, str], limit: Mapping[Resource, str]) -> dict[str, dict[str, str]]:
    kinds = {"limits": limit, "requests": reserve}
    return {kind: {str(key): text for key, text in stated.items()} for kind, stated in kinds.items() if stated}


def _with(gpu: dict[str, Any], own: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {**gpu, **own, **({"limits": {**gpu["limits"], **own.get("limits", {})}} if "limits" in gpu else {})}


def _routes(measured: WorkloadSpec) -> tuple[str, ...]:
    """Of the files that a replica of this workload writes."""
    if measured.server is None:
        return ("latencies", *(("services",) if measured.scenario is not None else ()))
    server = measured.server
    more = {"turns": server.may_have_sessions, "engine_metrics": server.metrics is not None}
    return ("latencies", "requests", "gaps", "answers", *(route for route, written in more.items() if written))


def _name(experiment: ExperimentSpec, attempt: str) -> str:
    """Readable, valid everywhere, and another one for every attempt."""
    digest = hashlib.sha256(attempt.encode()).hexdigest()[:8]
    readable = f"{experiment.workload.name[: _NAME_CHARACTERS - 6]}-r{experiment.replicas}".strip("-")
    return f"{readable}-{digest}"


def _values(experiment: ExperimentSpec, spec: KubernetesSpec, name: str, labels: dict[str, str]) -> dict[str, Any]:
    timing, indexed, server = experiment.timing, spec.kind is WorkloadKind.JOB, experiment.workload.server
    layer, mps = layer_in_pod(experiment), mode_of(experiment.sharing).pod_environment(experiment)
    run_s = run_time_s(timing)
    bounded = {"RUN_SECONDS": repr(run_s)} if indexed else {}
    if indexed or server or experiment.workload.trace:
        bounded["LINGER_SECONDS"] = repr(float(KEEP_S))
    beside = {}
    if server and files.named(server):
        beside[files.FOLDER_VARIABLE] = files.FOLDER
    if server and spec.gpus_per_replica:
        beside["NVIDIA_VISIBLE_DEVICES"] = "void"  # whatever the image of the replicas says: the GPU is the server's
    return {
        "spec": spec,
        "indexed": indexed,
        "name": name,
        "labels": labels,
        "deadline_s": math.ceil(timing.ready_timeout_s + run_s + KEEP_S + experiment.drain_timeout_s),
        "keep_s": KEEP_S,
        "startup_tries": math.ceil(timing.ready_timeout_s),
        "grace_s": math.ceil(experiment.drain_timeout_s),
        "port": PORT,
        "selector": {key: labels[key] for key in (EXPERIMENT_LABEL, pods.GPU_LABEL) if key in labels},
        "owner_labels": labels | ({QUEUE_LABEL: spec.queue_name} if spec.queue_name else {}),
        "image_pull_secrets": [{"name": name} for name in spec.image_pull_secrets],
        "neighbour_of": labels.get(NEIGHBOUR_LABEL),
        "packed": spec.placement == "packed",
        "node_affinity": [term.model_dump(exclude_defaults=True) for term in spec.node_affinity],
        "tolerations": [term.model_dump(exclude_none=True) for term in spec.tolerations],
        "replica_dir": REPLICA_DIR,
        "command": layer.around(COMMAND, here=False) if layer and (layer.prefix or layer.preload) else None,
        "environment": {
            **_replica_spec(experiment).environment(),
            "PORT": str(PORT),
            "REPLICA_DIR": REPLICA_DIR,
            "HOME": "/tmp",  # noqa: S108 - a volume of the pod's own; nobody has no home
            "USER": "replica",  # where the cluster chooses the user's number, no file gives it a name
            **bounded,
            **({} if server else mps),
            **beside,
            **(layer.environment if layer else {}),
        },
        "library": _library(experiment),
        "key_of_client": _secrets(server, [server.api_key_env]) if server and server.api_key_env else {},
        "server": _server(server, mps) if server and server.image else None,
    }


def _replica_spec(experiment: ExperimentSpec) -> ReplicaSpec:
    """What the replicas are told; the client of a server with the names that files have in its pod."""
    workload, server = experiment.workload, experiment.workload.server
    if server is None:
        return ReplicaSpec.timed(workload, experiment.timing)
    workload = workload.model_copy(update={"server": files.renamed(server)})
    return ReplicaSpec.timed(workload, experiment.timing, beside=server.image is not None)


def layer_in_pod(experiment: ExperimentSpec) -> LayerSpec | None:
    """The layer of the replicas, its library where a pod has it; None: there is none."""
    layer = experiment.condition.layer if experiment.condition else None
    library = _library(experiment)
    return layer.model_copy(update={"preload": library["target"]}) if layer and library else layer


def _library(experiment: ExperimentSpec) -> dict[str, str] | None:
    """What is copied out of another image, and where to; None: nothing."""
    layer = experiment.condition.layer if experiment.condition else None
    if layer is None or layer.preload is None or layer.preload_image is None:
        return None
    name = PurePosixPath(layer.preload).name
    return {"image": layer.preload_image, "source": layer.preload, "folder": LAYER_DIR, "target": f"{LAYER_DIR}/{name}"}


def _server(server: ServerSpec, mps: dict[str, str]) -> dict[str, Any]:
    """The container of the user's own server."""

    def filled(text: str) -> str:
        return text.replace(PORT_PLACEHOLDER, str(server.pod_port))

    return {
        "image": server.image,
        "command": [filled(word) for word in server.command],
        "args": [filled(word) for word in server.args],
        "environment": {"HOME": "/tmp"} | mps | {name: filled(text) for name, text in server.env.items()},  # noqa: S108
        "secrets": _secrets(server, server.secret_env),
        "claims": server.claims,
    }


def _secrets(server: ServerSpec, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Where each variable's value is kept, as a container refers to it."""
    places = ((name, server.secret_env[name].split("/")) for name in names)
    return {name: {"name": secret, "key": key} for name, (secret, key) in places}


def run_time_s(timing: Timing) -> float:
    """Seconds that a Job's replica serves: long enough for the slowest of them to start, and for every phase."""
    return timing.ready_timeout_s + timing.stabilise_s + timing.window_s + timing.record_s + SLACK_S


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(data_path("templates/kubernetes/workloads"))
    # It renders YAML, where every value that is not ours is written as JSON.
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True)  # noqa: S701
    return environment.get_template("replicas.yaml.j2")


def placed(experiment: ExperimentSpec, spec: KubernetesSpec) -> KubernetesSpec:
    """How measured pods stand in the cluster: who asks a server that runs already holds no GPU."""
    server = experiment.workload.server
    return without_gpu(spec) if server and server.url else spec


def measured_pods(experiment: ExperimentSpec, folder: Path, spec: KubernetesSpec, campaign_id: str) -> PodGroup:
    """The measured replicas."""
    return workload(experiment, folder, placed(experiment, spec), campaign_id)


def neighbour_pods(measured: PodGroup, spec: KubernetesSpec, campaign_id: str) -> dict[str, PodGroup]:
    """Those of the measured replicas, by workload."""
    experiment = measured.experiment
    groups: dict[str, PodGroup] = {}
    limits = experiment.mps.among(experiment.replicas_per_gpu) if experiment.mps else None
    for neighbour in experiment.neighbours:
        name = neighbour.workload.name
        changes = {"workload": neighbour.workload, "replicas": neighbour.replicas, "condition": None, "mps": limits}
        own, folder = experiment.model_copy(update=changes), neighbour_folder(measured.folder, name)
        position = experiment.replicas + sum(group.experiment.replicas for group in groups.values())
        groups[name] = workload(own, folder, spec, campaign_id, measured=measured, position=position)
    return groups


def load_pods(
    experiment: ExperimentSpec, folder: Path, spec: KubernetesSpec, campaign_id: str, *, plan: str
) -> PodGroup:
    """A Job with one pod for each shard of the load, without a GPU, away from the replicas where there is room."""
    measured = experiment.workload
    model = None if measured.factory else measured.target
    own = measured.model_copy(update={"scenario": None, "name": f"load-{measured.name}", "model": model})
    shards = min(spec.load_generators, experiment.replicas)
    sending = experiment.model_copy(update={"replicas": shards, "workload": own, "condition": None, "mps": None})
    made = workload(sending, folder.with_name(f"{folder.name}-load"), without_gpu(spec), campaign_id)
    template = made.body["spec"]["template"]
    template["metadata"]["labels"][LOAD_LABEL] = "true"
    template["metadata"]["annotations"]["prometheus.io/scrape"] = "false"
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {CAMPAIGN_LABEL: campaign_id}}}
    away = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    affinity = template["spec"].get("affinity") or {}
    affinity.pop("podAffinity", None)
    template["spec"]["affinity"] = {**affinity, "podAntiAffinity": away}
    [container] = template["spec"]["containers"]
    container["command"] = list(LOAD_COMMAND)
    kept = {"PORT", "REPLICA_DIR", "HOME", "USER", "LINGER_SECONDS", "REPLICA"}
    settings = {"LOAD_PLAN": plan, "LOAD_SHARDS": str(shards)}
    container["env"] = [
        *(variable for variable in container["env"] if variable["name"] in kept),
        *({"name": name, "value": value} for name, value in settings.items()),
    ]
    return replace(made, folder=folder / "load", routes=())


def all_pods(experiment: ExperimentSpec, spec: KubernetesSpec, campaign_id: str) -> list[PodGroup]:
    """All that there will be at once, looked at before anything is made."""
    folder, scenario = Path(experiment.experiment_id), experiment.workload.scenario
    first = measured_pods(experiment, folder, spec, campaign_id)
    http = scenario is not None and scenario.kind is ScenarioKind.HTTP
    sending = [load_pods(experiment, folder, spec, campaign_id, plan="")] if http else []
    return [first, *neighbour_pods(first, spec, campaign_id).values(), *sending]
