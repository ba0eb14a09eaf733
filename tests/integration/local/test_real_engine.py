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
from tests.support.local_tokenizers import letters
from tests.support.processes import eventually, marked
from tests.support.random_llm import VOCABULARY
from tests.support.random_vlm import IMAGE_TOKENS

pytestmark = [pytest.mark.integration, pytest.mark.long]
TOKENS = 8


SAVE = """
import sys
from pathlib import Path
from tests.support import random_llm, random_vlm
random_llm.write(Path(sys.argv[1], "llm"))
random_vlm.write(Path(sys.argv[1], "vlm"))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Both saved by one process, which imports for seconds what saves them."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, "-c", SAVE, folder], check=True, capture_output=True)
    return folder


def asked_of_engines(model, folder, replicas, requests):
    """Where each client's log is, of a few requests to as many engines, which have ended then."""
    program = Path(sys.executable).with_name("transformers")
    server = {
        "command": [str(program), "serve", str(model), "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"],
        "env": {"HF_HUB_OFFLINE": "1"},
        "ready": {"path": "/health"},
        "stop_timeout_s": 60,
        "protocol": "openai-chat",
        "model": str(model),
        "requests": {"input_tokens": {"mean": 16}, "output_tokens": {"mean": TOKENS}, **requests},
    }
    campaign_id = f"engine-{os.getpid()}"
    spec = experiment(replicas=replicas, timing={"ready_timeout_s": 600})
    workload = WorkloadSpec.model_validate({"name": "llm", "warmup_requests": 1, "server": server})
    spec = spec.model_copy(update={"workload": workload})
    deployment = LocalBackend(campaign_id).deploy(spec, folder, abort=threading.Event(), on_death=lambda _death: None)
    try:
        engines = [psutil.Process(target.pid) for target in deployment.targets]
        logs = [folder / "replicas" / f"replica-{index}" / "requests.bin" for index in range(replicas)]
        assert eventually(lambda: all(log.stat().st_size > 3 * 8 * len(FIELDS) for log in logs), timeout_s=300)
    finally:
        assert deployment.stop(timeout_s=120) == []

    assert not any(engine.is_running() for engine in engines)
    assert marked(campaign_id) == []
    return logs


def figures(log):
    return dict(zip(FIELDS, np.fromfile(log, dtype="<i8").reshape(-1, len(FIELDS)).T, strict=True))


def test_every_token_of_an_engines_stream_is_timed(models, tmp_path):
    model = models / "llm"
    letters(VOCABULARY).save(str(model / "tokenizer.json"))  # under which a word is as many tokens as it has letters
    for log in asked_of_engines(model, tmp_path, 1, {"tokenizer": str(model)}):
        asked = figures(log)
        assert set(asked["status"]) == {200}, log.with_name("replica.json").read_text()
        assert set(asked["output_tokens"]) == {TOKENS}
        assert set(asked["input_tokens"]) == {16}, "as the engine counts them"
        assert (asked["ttft_ns"] > 0).all()
        gaps = np.fromfile(log.with_name("gaps.bin"), dtype="<i8").reshape(-1, 2)
        assert len(gaps) == (TOKENS - 1) * len(asked["status"])
        assert (asked["latency_ns"] > asked["ttft_ns"]).all()


def test_an_engine_sees_the_image_beside_the_text(models, tmp_path):
    model = models / "vlm"
    requests = {"tokenizer": str(model), "image": {"width": 64, "height": 48}}
    (log,) = asked_of_engines(model, tmp_path, 1, requests)
    asked = figures(log)
    assert set(asked["status"]) == {200}, log.with_name("replica.json").read_text()
    assert set(asked["input_tokens"]) == {16 + IMAGE_TOKENS}, "as the engine counts them"
