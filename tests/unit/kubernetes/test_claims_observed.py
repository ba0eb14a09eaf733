"""Which GPUs replicas have by their claims, as seen: told apart, and as many on each as was asked for."""

from dataclasses import replace

import pytest

from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import BackendError
from harness.sharing.dra import DRIVER, Dra
from harness.spec import KubernetesSpec, Sharing
from tests.support.experiments import experiment
from tests.support.fake_cluster_store import Target

CLAIMS = Target("apis/resource.k8s.io/v1", "inference", "resourceclaims")


@pytest.fixture
def observed(cluster, tmp_path):
    """The claims of some pods, by name, of claims that were given some devices, as the campaign sees them."""
    spec = KubernetesSpec(sharing_by="dra", kubeconfig=str(cluster.write_kubeconfig(tmp_path / "kubeconfig")))

    def observing(given, pods, **changes):
        for claim, device in given.items():
            results = [{"driver": DRIVER, "pool": "n1", "device": device}]
            users = [{"uid": name} for name, named in pods.items() if named == claim]
            status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
            cluster.store.apply(CLAIMS.named(claim), {})
            cluster.store.merge(replace(CLAIMS.named(claim), subresource="status"), {"status": status})
        bodies = [
            {"metadata": {"name": name, "uid": name}, "spec": {"resourceClaims": [{"resourceClaimName": claim}]}}
            for name, claim in pods.items()
        ]
        asked = experiment(sharing=Sharing.TIME_SLICING, replicas=len(pods), **changes)
        return [pod.claim for pod in Dra(spec).observe(KubernetesApi(spec), asked, [], bodies, [{}] * len(pods))]

    return observing


def test_replicas_of_two_claims_are_on_two_gpus(observed):
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
def test_one_gpu_twice_or_unevenly_is_not_believed(observed, given, pods, why):
    with pytest.raises(BackendError, match=why):
        observed(given, pods, gpus=2)
