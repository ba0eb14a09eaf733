"""What is refused once replicas have said what they are: another device, sharing mode or limit than asked, or no layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.kubernetes import objects
from harness.errors import BackendError, ReasonCode
from harness.sharing.modes import mode_of
from harness.spec import Device, ExperimentSpec, KubernetesSpec

Statuses = Sequence[Mapping[str, Any]]
"""What each replica says of itself, with its pod."""


def refuse_what_differs(statuses: Statuses, experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
    """Refuse replicas that would measure something else. Raises BackendError for the first thing that differs."""
    refuse_missing_library(statuses, experiment)
    refuse_silent_cpu(statuses, experiment, spec)
    refuse_other_mode(statuses, experiment, spec)
    refuse_other_limits(statuses, experiment)


def refuse_missing_library(statuses: Statuses, experiment: ExperimentSpec) -> None:
    """The loader leaves out what it does not find, with a mere remark: a layer without cost would be measured. Raises BackendError."""
    layer = objects.layer_in_pod(experiment)
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


def refuse_silent_cpu(statuses: Statuses, experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
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


def refuse_other_mode(statuses: Statuses, experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
    """Where the campaign sets the mode: what a pod was handed tells whether it is under MPS. Raises BackendError."""
    if spec.device_plugin_configs is None and not spec.by_claims:
        return
    for status in statuses:
        contradiction = mode_of(experiment.sharing).contradiction(status)
        if contradiction:
            raise BackendError(
                f"replica {status['replica']} (pod {status['pod']}) {contradiction}, "
                f"and it was to be under {experiment.sharing.value}.",
                advice="Read the log of NVIDIA's DRA driver on that node."
                if spec.by_claims
                else "The device plugin lent its slices before it was told: read the log of its config manager.",
            )


def refuse_other_limits(statuses: Statuses, experiment: ExperimentSpec) -> None:
    """A layer, an image or a workload can set the same variables. Raises BackendError."""
    asked = mode_of(experiment.sharing).pod_environment(experiment)
    for status in statuses:
        has = status.get("mps_limits")  # None: an image of before, or a server that cannot be seen
        if asked and has is not None and has != asked:
            raise BackendError(
                f"replica {status['replica']} (pod {status['pod']}) has the limits {has} under MPS and not {asked}.",
                advice="Leave CUDA_MPS_* out of the image, of `layer.environment` and of `server.env`.",
            )
