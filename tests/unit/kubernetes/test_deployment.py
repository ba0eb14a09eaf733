"""What a deployment refuses once its replicas have said what they are."""

from pathlib import Path

import pytest
import urllib3

from harness.backends.kubernetes.client import KubernetesApi
from harness.backends.kubernetes.connect import Connection
from harness.backends.kubernetes.deployment import KubernetesDeployment
from harness.backends.kubernetes.objects import workload
from harness.clock import SystemClock
from harness.config import KubernetesSpec, MpsLimits, Sharing, WorkloadSpec
from harness.errors import BackendError, ReasonCode
from tests.support.experiments import experiment

SERVER = {"image": "registry.example/engine:1", "args": ["--port", "{port}"]}


def told(tmp_path, status, *, device="auto", sharing=Sharing.TIME_SLICING, mps=None, **changes):
    """A deployment whose one replica, the client of a server, says this of itself."""
    spec = KubernetesSpec(**changes)
    of = WorkloadSpec.model_validate({"name": "llm", "device": device, "server": SERVER})
    asked = experiment(replicas=1, sharing=sharing, mps=mps).model_copy(update={"workload": of})
    made = workload(asked, Path("one-1"), spec, "c0ffee")
    nowhere = Connection("https://127.0.0.1:9", urllib3.PoolManager(), dict)
    api = KubernetesApi(spec, reconnect=lambda: nowhere)
    deployment = KubernetesDeployment(api, spec, made, asked, tmp_path, clock=SystemClock())
    deployment._statuses = [{"replica": 0, "pod": "llm-0", **status}]
    return deployment


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_server_without_a_cuda_context_is_not_on_the_gpu_that_its_pod_was_given(tmp_path, device):
    with pytest.raises(BackendError, match=r"runs on the CPU although it was given nvidia\.com/gpu: 1") as caught:
        told(tmp_path, {"device": "cpu"}, device=device)._refuse_silent_cpu()

    assert caught.value.code is ReasonCode.NOT_ON_GPU


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        ({"device": "cuda"}, {}),
        ({"device": ""}, {}),  # it may not be seen: the verdict says that it is not judged
        ({"device": "cpu"}, {"device": "cpu"}),
        ({"device": "cpu"}, {"gpus_per_replica": 0, "runtime_class": None}),
    ],
)
def test_a_server_that_is_where_it_should_be_or_cannot_be_seen_goes_on(tmp_path, status, changes):
    told(tmp_path, status, **changes)._refuse_silent_cpu()


@pytest.mark.parametrize(
    ("sharing", "pipe", "said"),
    [
        (Sharing.MPS, "", "without MPS, and it was to be under mps"),
        (Sharing.TIME_SLICING, "/mps/pipe", "under MPS, and it was to be under time-slicing"),
        (Sharing.MPS, "/mps/pipe", ""),
        (Sharing.MPS, None, ""),
    ],
)
def test_a_server_under_another_mode_than_its_node_was_switched_to_is_refused(tmp_path, sharing, pipe, said):
    one = told(tmp_path, {"mps_pipe_directory": pipe}, sharing=sharing, device_plugin_configs="nvidia/configs")
    if not said:
        one._refuse_other_mode()
        return
    with pytest.raises(BackendError, match=said):
        one._refuse_other_mode()


@pytest.mark.parametrize(
    ("has", "said"),
    [
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, ""),
        (None, ""),  # it cannot be seen
        ({}, r"has the limits \{\} under MPS and not"),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, "'50'} under MPS and not .*'25'"),
    ],
)
def test_a_server_that_set_itself_other_limits_than_asked_is_refused(tmp_path, has, said):
    one = told(tmp_path, {"mps_limits": has}, sharing=Sharing.MPS, mps=MpsLimits(share=25))
    if not said:
        one._refuse_other_limits()
        return
    with pytest.raises(BackendError, match=said):
        one._refuse_other_limits()
