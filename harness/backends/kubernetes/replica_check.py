"""What is refused once replicas have said what they are: another device, sharing mode or limit than asked, or no layer, or apart from neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.kubernetes.objects import layer_in_pod
from harness.errors import BackendError, ReasonCode
from harness.sharing.cluster import cluster_sharing
from harness.sharing.modes import mode_of
from harness.spec import Device, ExperimentSpec, KubernetesSpec

Status = Mapping[str, Any]
"""What a replica says of itself, with its pod and node."""
APART_ADVICE = (
    "The scheduler chooses the node and the device plugin the GPU: narrow `kubernetes.node_selector` to nodes with one GPU, "
    "with one neighbour at least for each; a workload of your own names its GPU as `device_uuid` of describe()."
)


def refuse_what_differs(statuses: Sequence[Status], experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
    """Refuse replicas that would measure something else. Raises BackendError for the first thing that differs."""
    refuse_missing_library(statuses, experiment)
    refuse_silent_cpu(statuses, experiment, spec)
    sharing = cluster_sharing(spec)
    mode, limits = mode_of(experiment.sharing), mode_of(experiment.sharing).pod_environment(experiment)
    for status in statuses:
        who = f"replica {status['replica']} (pod {status['pod']})"
        # Where the campaign sets the mode, what a pod was handed tells whether it is under MPS.
        if sharing.sets_mode and (contradiction := mode.contradiction(status)):
            message = f"{who} {contradiction}, and it was to be under {experiment.sharing.value}."
            raise BackendError(message, advice=sharing.log_advice)
        has = status.get("mps_limits")  # None: an image of before, or a server that cannot be seen
        if limits and has is not None and has != limits:
            raise BackendError(
                f"{who} has the limits {has} under MPS and not {limits}.",
                advice="Leave CUDA_MPS_* out of the image, of `layer.environment` and of `server.env`.",
            )


def refuse_missing_library(statuses: Sequence[Status], experiment: ExperimentSpec) -> None:
    """The loader leaves out what it does not find, with a mere remark: a layer without cost would be measured. Raises BackendError."""
    layer = layer_in_pod(experiment)
    if layer is None or layer.preload is None:
        return
    for status in statuses:
        if layer.preload not in status.get("preloaded", ()):
            raise BackendError(
                f"replica {status['replica']} (pod {status['pod']}) runs without the layer's library {layer.preload}: the "
                "loader did not take it.",
                advice=f"Is it built for `kubernetes.image`, and {'what it needs itself' if layer.preload_image else 'it'} in "
                "there? The replica's log has what the loader says.",
            )


def refuse_silent_cpu(statuses: Sequence[Status], experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
    """A replica that was given a GPU and does not use it would be measured for hours on the CPU. Raises BackendError."""
    workload = experiment.workload
    if not spec.gpus_per_replica or workload.device is Device.CPU or workload.factory is not None:
        return
    on_cpu = [status for status in statuses if status.get("device") == "cpu"]
    if on_cpu:
        raise BackendError(
            f"replica {on_cpu[0]['replica']} (pod {on_cpu[0]['pod']}) runs on the CPU although it was given "
            f"{'a GPU by its claim' if spec.by_claims else f'{spec.gpu_resource}: {spec.gpus_per_replica}'}.",
            advice="Check `kubernetes.runtime_class` (a claim needs CDI in the node's container runtime) and that the image's torch is built with CUDA; or set device: cpu if this is wanted.",
            code=ReasonCode.NOT_ON_GPU,
        )


def refuse_apart(measured: Sequence[Status], beside: Mapping[str, Sequence[Status]], *, by_node: bool) -> None:
    """Refuse replicas that do not share a GPU with a neighbour. Raises BackendError; arguments as of ``apart``."""
    if why := apart(measured, beside, by_node=by_node):
        raise BackendError(why, advice=APART_ADVICE, code=ReasonCode.NEIGHBOUR_APART)


def apart(measured: Sequence[Status], beside: Mapping[str, Sequence[Status]], *, by_node: bool) -> str:
    """Who is not where the others are, in a sentence; empty: every neighbour is beside a measured replica, and the other way round.

    ``beside``: the statuses of the neighbours, by workload; ``by_node``: the node counts, and not the GPU.
    """
    neighbours: Sequence[Status] = [status for statuses in beside.values() for status in statuses]
    named = [("", status, neighbours, "no neighbour") for status in measured]
    for workload, statuses in beside.items():
        named += [(f" of the neighbour {workload}", status, measured, "no measured replica") for status in statuses]
    for whose, status, others, nobody in named:
        who = f"replica {status['replica']}{whose} (pod {status['pod']})"
        on_gpu = not by_node and _may_use_gpu(status) and any(map(_may_use_gpu, others))
        key, what = ("gpu_uuid", "GPU") if on_gpu else ("node", "node")
        if not status.get(key):
            return f"{who} does not say on which GPU it is, so that nobody knows whether it shares one."
        if status[key] not in {other.get(key) for other in others}:
            return f"{who} is on {what} {status[key]}, where {nobody} is."
    return ""


def _may_use_gpu(status: Status) -> bool:
    """A workload on the CPU says so."""
    return status.get("device") != Device.CPU
