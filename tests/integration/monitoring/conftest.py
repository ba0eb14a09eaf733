"""Clusters of two sizes, each watched by a real Prometheus for all tests that ask for it."""

from collections.abc import Iterator

import pytest

# Ansible replaces sys.intern by a class when it is imported, which torch refuses; so torch comes first.
import torch._dynamo  # noqa: F401

from tests.integration.monitoring.watched import DEBIAN, WITH_KUBERNETES, Watched, watched_cluster

SIZES = {"1 GPU, 1 replica": (1, 1), "8 GPUs, 3 replicas": (8, 3)}


# Of a module: its replicas work until it ends, beside whatever test comes then.
@pytest.fixture(scope="module", params=SIZES)
def watched(request, tmp_path_factory) -> Iterator[Watched]:
    """Found in files, by Debian's Prometheus."""
    if DEBIAN is None:
        pytest.skip("no prometheus in PATH (Debian's package prometheus)")
    gpus, replicas = SIZES[request.param]
    with watched_cluster(tmp_path_factory.mktemp("watched") / "cluster", gpus=gpus, replicas=replicas) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def discovered(tmp_path_factory) -> Iterator[Watched]:
    """Found at an API server, by a Prometheus that can."""
    if WITH_KUBERNETES is None:
        pytest.skip("no prometheus in PROMETHEUS_ASSETS (one with kubernetes_sd_configs; Debian's is built without)")
    with watched_cluster(tmp_path_factory.mktemp("discovered") / "cluster", gpus=2, replicas=3, api=True) as cluster:
        yield cluster
