"""One real API server for the tests of this folder."""

from collections.abc import Iterator

import pytest

# Ansible replaces sys.intern by a class when it is imported, which torch refuses; so torch comes first.
import torch._dynamo  # noqa: F401

from tests.integration.cluster.api_server import Cluster, api_server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """An empty cluster, new for every module of tests."""
    with api_server(tmp_path_factory.mktemp("cluster")) as running:
        yield running
