"""Deploys by the local backend, and leaves nothing behind."""

import os
import threading

import pytest

from harness.backends.local import LocalBackend
from tests.support.experiments import experiment
from tests.support.processes import DRAINED_S, marked


@pytest.fixture
def campaign_id(request):
    return f"test-{os.getpid()}-{request.node.name}"


@pytest.fixture
def deploy(tmp_path, campaign_id):
    """Deploys an experiment of these wishes, and checks afterwards that nothing is left; ``deaths`` are what it was told."""
    deployments = []

    def start(abort=None, **wishes):
        made = LocalBackend(campaign_id).deploy(
            experiment(**wishes), tmp_path, abort=abort or threading.Event(), on_death=start.deaths.append
        )
        deployments.append(made)
        return made

    start.deaths = []
    yield start
    for deployment in deployments:
        deployment.stop(timeout_s=DRAINED_S)
    assert marked(campaign_id) == []
