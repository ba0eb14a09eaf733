"""A real engine (``transformers serve``) with a small model of random weights, started, asked and ended as users have it done."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.backends.local import LocalBackend
from harness.config import WorkloadSpec
from harness.replica.engine.ledger import FIELDS
from tests.support.experiments import experiment
from tests.support.processes import eventually, marked

pytestmark = pytest.mark.integration
TOKENS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, "-m", "tests.support.random_llm", folder], check=True, capture_output=True)
    return folder


def test_every_token_of_an_engines_stream_is_timed(model, tmp_path):
    program = Path(sys.executable).with_name("transformers")
    workload = {
        "name": "llm",
        "warmup_requests": 1,
        "server": {
            "command": [
                str(program),
                "serve",
                str(model),
                "--host",
                "127.0.0.1",
                "--port",
                "{port}",
                "--device",
                "cpu",
            ],
            "env": {"HF_HUB_OFFLINE": "1"},
            "ready": {"path": "/health"},
            "stop_timeout_s": 60,
            "protocol": "openai-chat",
            "model": str(model),
            "requests": {"input_tokens": {"mean": 16}, "output_tokens": {"mean": TOKENS}},
        },
    }
    campaign_id = f"engine-{os.getpid()}"
    spec = experiment(replicas=2, timing={"ready_timeout_s": 600})
    spec = spec.model_copy(update={"workload": WorkloadSpec.model_validate(workload)})
    deployment = LocalBackend(campaign_id).deploy(spec, tmp_path, abort=threading.Event(), on_death=lambda _death: None)
    try:
        engines = [psutil.Process(target.pid) for target in deployment.targets]
        logs = [tmp_path / "replicas" / f"replica-{index}" / "requests.bin" for index in range(2)]
        assert eventually(lambda: all(log.stat().st_size > 3 * 8 * len(FIELDS) for log in logs), timeout_s=300)
    finally:
        assert deployment.stop(timeout_s=120) == []

    assert not any(engine.is_running() for engine in engines)
    assert marked(campaign_id) == []
    for log in logs:
        asked = dict(zip(FIELDS, np.fromfile(log, dtype="<i8").reshape(-1, len(FIELDS)).T, strict=True))
        assert set(asked["status"]) == {200}
        assert set(asked["output_tokens"]) == {TOKENS}
        assert (asked["ttft_ns"] > 0).all()
        gaps = np.fromfile(log.with_name("gaps.bin"), dtype="<i8").reshape(-1, 2)
        assert len(gaps) == (TOKENS - 1) * len(asked["status"])
        assert (asked["latency_ns"] > asked["ttft_ns"]).all()
