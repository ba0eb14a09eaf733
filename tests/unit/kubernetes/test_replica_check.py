"""What a deployment refuses once its replicas have said what they are."""

import contextlib

import pytest

from harness.backends.kubernetes import replica_check
from harness.errors import BackendError, ReasonCode
from harness.spec import KubernetesSpec, MpsLimits, Sharing, WorkloadSpec
from tests.support.experiments import experiment

SERVER = {"image": "registry.example/engine:1", "args": ["--port", "{port}"]}


def asked(*, device="auto", sharing=Sharing.TIME_SLICING, mps=None):
    """One replica, the client of a server."""
    of = WorkloadSpec.model_validate({"name": "llm", "device": device, "server": SERVER})
    return experiment(replicas=1, sharing=sharing, mps=mps).model_copy(update={"workload": of})


def said(**status):
    """What it says of itself."""
    return [{"replica": 0, "pod": "llm-0", **status}]


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_server_without_a_cuda_context_is_not_on_the_gpu_that_its_pod_was_given(device):
    with pytest.raises(BackendError, match=r"runs on the CPU although it was given nvidia\.com/gpu: 1") as caught:
        replica_check.refuse_silent_cpu(said(device="cpu"), asked(device=device), KubernetesSpec())

    assert caught.value.code is ReasonCode.NOT_ON_GPU


@pytest.mark.parametrize(
    ("on", "wanted", "changes"),
    [
        ("cuda", "auto", {}),
        ("", "auto", {}),  # it may not be seen: the verdict says that it is not judged
        ("cpu", "cpu", {}),
        ("cpu", "auto", {"gpus_per_replica": 0, "runtime_class": None}),
    ],
)
def test_a_server_that_is_where_it_should_be_or_cannot_be_seen_goes_on(on, wanted, changes):
    replica_check.refuse_silent_cpu(said(device=on), asked(device=wanted), KubernetesSpec(**changes))


@pytest.mark.parametrize(
    ("sharing", "pipe", "why"),
    [
        (Sharing.MPS, "", "without MPS, and it was to be under mps"),
        (Sharing.TIME_SLICING, "/mps/pipe", "under MPS, and it was to be under time-slicing"),
        (Sharing.MPS, "/mps/pipe", ""),
        (Sharing.MPS, None, ""),
    ],
)
def test_a_server_under_another_mode_than_its_node_was_switched_to_is_refused(sharing, pipe, why):
    spec = KubernetesSpec(device_plugin_configs="nvidia/configs")
    with pytest.raises(BackendError, match=why) if why else contextlib.nullcontext():
        replica_check.refuse_what_differs(said(mps_pipe_directory=pipe), asked(sharing=sharing), spec)


@pytest.mark.parametrize(
    ("has", "why"),
    [
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, ""),
        (None, ""),  # it cannot be seen
        ({}, r"has the limits \{\} under MPS and not"),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, "'50'} under MPS and not .*'25'"),
    ],
)
def test_a_server_that_set_itself_other_limits_than_asked_is_refused(has, why):
    limited = asked(sharing=Sharing.MPS, mps=MpsLimits(share=25))
    with pytest.raises(BackendError, match=why) if why else contextlib.nullcontext():
        replica_check.refuse_what_differs(said(mps_limits=has), limited, KubernetesSpec())
