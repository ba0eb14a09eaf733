"""What one experiment makes in a cluster: the measured replicas, their neighbours, and the pods that send requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.backends.kubernetes import objects
from harness.results.layout import neighbour_folder
from harness.spec import ExperimentSpec, KubernetesSpec, ScenarioKind


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One Deployment or Job of an attempt.

    Attributes:
        experiment: what it runs; of a neighbour or of the load, with its own workload and number.
        spec: how its pods stand in the cluster.
        folder: of what its pods write.
        workload: the object.
    """

    experiment: ExperimentSpec
    spec: KubernetesSpec
    folder: Path
    workload: objects.Workload


def place(experiment: ExperimentSpec, spec: KubernetesSpec) -> KubernetesSpec:
    """How measured pods stand in the cluster: who asks a server that runs already holds no GPU."""
    server = experiment.workload.server
    return objects.without_gpu(spec) if server and server.url else spec


def measured(experiment: ExperimentSpec, folder: Path, spec: KubernetesSpec, campaign_id: str) -> PodGroup:
    """The measured replicas."""
    there = place(experiment, spec)
    return PodGroup(experiment, there, folder, objects.workload(experiment, folder, there, campaign_id))


def neighbours(beside: PodGroup, spec: KubernetesSpec, campaign_id: str) -> dict[str, PodGroup]:
    """Those of the measured replicas, by workload."""
    experiment, found = beside.experiment, {}
    position = experiment.replicas
    limits = experiment.mps.among(experiment.replicas_per_gpu) if experiment.mps else None
    for each in experiment.neighbours:
        name = each.workload.name
        changes = {"workload": each.workload, "replicas": each.replicas, "condition": None, "mps": limits}
        own, folder = experiment.model_copy(update=changes), neighbour_folder(beside.folder, name)
        made = objects.workload(own, folder, spec, campaign_id, measured=beside.workload, position=position)
        position += each.replicas
        found[name] = PodGroup(own, spec, folder, made)
    return found


def load(experiment: ExperimentSpec, folder: Path, spec: KubernetesSpec, campaign_id: str, *, plan: str) -> PodGroup:
    """One pod for each shard of the load, without a GPU."""
    shards = min(spec.load_generators, experiment.replicas)
    own = experiment.workload.model_copy(update={"scenario": None, "name": f"load-{experiment.workload.name}"})
    changes = {"replicas": shards, "workload": own, "condition": None, "mps": None}
    of, there = experiment.model_copy(update=changes), objects.without_gpu(spec)
    return PodGroup(of, there, folder / "load", objects.load_job(of, folder / "load", there, campaign_id, plan=plan))


def everything(experiment: ExperimentSpec, spec: KubernetesSpec, campaign_id: str) -> list[PodGroup]:
    """All that there will be at once, looked at before anything is made."""
    folder, scenario = Path(experiment.experiment_id), experiment.workload.scenario
    first = measured(experiment, folder, spec, campaign_id)
    http = scenario is not None and scenario.kind is ScenarioKind.HTTP
    sending = [load(experiment, folder, spec, campaign_id, plan="")] if http else []
    return [first, *neighbours(first, spec, campaign_id).values(), *sending]
