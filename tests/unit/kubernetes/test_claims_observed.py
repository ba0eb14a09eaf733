"""Which GPUs replicas have by their claims, as seen: told apart, and as many on each as was asked for."""

import pytest

from harness.errors import BackendError
from harness.sharing.dra import DRIVER, Dra
from harness.spec import KubernetesSpec, Sharing
from tests.support.experiments import experiment

SPEC = KubernetesSpec(sharing_by="dra")


class Api:
    """Claims that have been given devices, and pods that name them."""

    def __init__(self, given, pods):
        self.pods = [
            {
                "metadata": {"name": name, "uid": name},
                "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]},
            }
            for name, claim in pods.items()
        ]
        self.claims = [
            {
                "metadata": {"name": claim},
                "status": {
                    "allocation": {"devices": {"results": [{"driver": DRIVER, "pool": "n1", "device": device}]}},
                    "reservedFor": [{"uid": name} for name, named in pods.items() if named == claim],
                },
            }
            for claim, device in given.items()
        ]

    def list(self, path, **_):
        return self.claims if path.endswith("resourceclaims") else []


def observed(given, pods, **changes):
    api = Api(given, pods)
    asked = experiment(sharing=Sharing.TIME_SLICING, replicas=len(pods), **changes)
    return [pod.claim for pod in Dra(SPEC).observe(api, asked, [], api.pods, [{}] * len(pods))]


def test_replicas_of_two_claims_are_on_two_gpus():
    pods = {"a": "x-gpu0", "b": "x-gpu1", "c": "x-gpu0"}
    assert observed({"x-gpu0": "gpu-4", "x-gpu1": "gpu-2"}, pods, gpus=2) == ["x-gpu0", "x-gpu1", "x-gpu0"]
    assert observed({"x": "gpu-0"}, {"a": "x"}, gpus=2) == ["x"]


@pytest.mark.parametrize(
    ("given", "pods", "why"),
    [
        (
            {"x-gpu0": "gpu-4", "x-gpu1": "gpu-4"},
            {"a": "x-gpu0", "b": "x-gpu1"},
            r"pod b and pod a were given the same device, gpu-4 of n1",
        ),
        (
            {"x-gpu0": "gpu-4", "x-gpu1": "gpu-2"},
            {"a": "x-gpu0", "b": "x-gpu0", "c": "x-gpu0", "d": "x-gpu1"},
            r"4 replicas were to share 2 GPUs evenly, and they are 3 on gpu-4 of n1, 1 on gpu-2 of n1",
        ),
        (
            {"x": "gpu-4"},
            {"a": "x", "b": "x"},
            r"2 replicas were to share 2 GPUs evenly, and they are 2 on gpu-4 of n1",
        ),
    ],
)
def test_one_gpu_twice_or_unevenly_is_not_believed(given, pods, why):
    with pytest.raises(BackendError, match=why):
        observed(given, pods, gpus=2)
