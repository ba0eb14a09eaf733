"""What a deployment refuses once its replicas have said what they are."""

import contextlib

import pytest

from harness.backends.kubernetes import collect
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


@pytest.mark.parametrize(
    ("on", "wanted", "changes", "refused"),
    [
        ("cpu", "auto", {}, True),
        ("cpu", "cuda", {}, True),
        ("cuda", "auto", {}, False),
        ("", "auto", {}, False),  # it may not be seen: the verdict says that it is not judged
        ("cpu", "cpu", {}, False),
        ("cpu", "auto", {"gpus_per_replica": 0, "runtime_class": None}, False),
    ],
)
def test_a_server_without_a_cuda_context_is_not_on_the_gpu_that_its_pod_was_given(on, wanted, changes, refused):
    given = r"runs on the CPU although it was given nvidia\.com/gpu: 1"
    with pytest.raises(BackendError, match=given) if refused else contextlib.nullcontext() as caught:
        collect.refuse_what_differs(said(device=on), asked(device=wanted), KubernetesSpec(**changes))
    assert not refused or caught.value.code is ReasonCode.NOT_ON_GPU


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
        collect.refuse_what_differs(said(mps_pipe_directory=pipe), asked(sharing=sharing), spec)


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
        collect.refuse_what_differs(said(mps_limits=has), limited, KubernetesSpec())


@pytest.mark.parametrize(
    ("has", "share", "why"),
    [
        (14, "1/N", r"has 14 of the 132 SMs of its GPU \(10.6%\), and the campaign says 12.5%"),  # the plugin's 12%
        (16, "1/N", ""),
        (12, 10, ""),
        (14, "all", ""),
    ],
)
def test_fewer_processors_than_a_share_of_mps_are_seen_in_the_replica(has, share, why):
    of = asked(sharing=Sharing.MPS, mps=MpsLimits(share=share)).model_copy(update={"replicas": 8})
    limits = {} if share == "all" else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{of.mps.percentage(8):g}"}
    status = said(mps_pipe_directory="/mps", mps_limits=limits, multiprocessors=has, gpu={"multiprocessors": 132})
    with pytest.raises(BackendError, match=why) if why else contextlib.nullcontext():
        collect.refuse_what_differs(status, of, KubernetesSpec())


def test_a_pipe_that_a_replica_may_not_use_is_named_before_anything_is_measured():
    closed = "/mps/pipe is drwx------ of user 0, and this is user 65534"
    status = said(mps_pipe_directory="/mps/pipe", mps_pipe_closed=closed)
    with pytest.raises(BackendError, match=f"does not reach the MPS daemon: {closed}"):
        collect.refuse_what_differs(status, asked(sharing=Sharing.MPS), KubernetesSpec())


FIRST, SECOND = "replica 0 (pod pod-0)", "replica 1 (pod pod-1)"


def at(node, gpu="", replica=0, **more):
    return {"replica": replica, "pod": f"pod-{replica}", "node": node, "gpu_uuid": gpu, **more}


@pytest.mark.parametrize(
    ("measured", "noisy", "by_node", "said"),
    [
        ([at("a", "G1")], [at("a", "G1")], False, ""),
        ([at("a", "G1")], [at("a", "G2")], False, f"{FIRST} is on GPU G1, where no neighbour is."),
        ([at("a", "G1"), at("a", "G2", 1)], [at("a", "G1"), at("a", "G2", 1)], False, ""),
        ([at("a", "G1"), at("a", "G2", 1)], [at("a", "G1")], False, f"{SECOND} is on GPU G2, where no neighbour is."),
        (
            [at("a", "G1")],
            [at("a", "G1"), at("a", "G2", 1)],
            False,
            "replica 1 of the neighbour noisy (pod pod-1) is on GPU G2, where no measured replica is.",
        ),
        ([at("a", "G1")], [at("a")], False, f"{FIRST} is on GPU G1, where no neighbour is."),
        (
            [at("a")],
            [at("a")],
            False,
            f"{FIRST} does not say on which GPU it is, so it is unknown whether it shares one.",
        ),
        # A neighbour that works on the CPU disturbs the host.
        ([at("a", "G1")], [at("a", device="cpu")], False, ""),
        ([at("a", "G1")], [at("b", device="cpu")], False, f"{FIRST} is on node a, where no neighbour is."),
        # Whole GPUs, instances, or none.
        ([at("a", "G1")], [at("a", "G2")], True, ""),
        ([at("a")], [at("b")], True, f"{FIRST} is on node a, where no neighbour is."),
    ],
)
def test_who_is_not_beside_whom(measured, noisy, by_node, said):
    assert collect.apart(measured, {"noisy": noisy}, by_node=by_node) == said
