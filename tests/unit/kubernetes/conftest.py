"""A cluster of its own for a test."""

import pytest

from tests.support.fake_cluster import FakeCluster


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running
