"""A real engine (``transformers serve``) with a small model of random weights, started, asked and ended as users have it done."""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.backends.local import LocalBackend
from harness.spec import WorkloadSpec
from tests.support import random_vlm
from tests.support.experiments import experiment
from tests.support.generated_load import asked_of, wait_for_requests
from tests.support.processes import marked

pytestmark = pytest.mark.long
TOKENS = 8


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Of the requests for texts to an engine that the harness started, and of those for images to the same, which ran already.

    Both clients have ended then, and the engine with the first.
    """
    model, folder = tmp_path_factory.mktemp("models") / "vlm", tmp_path_factory.mktemp("engine")
    random_vlm.write(model)
    asked = {"input_tokens": {"mean": 16}, "output_tokens": {"mean": TOKENS}, "tokenizer": str(model)}
    of_both = {"protocol": "openai-chat", "model": str(model), "rate": 2}
    program = Path(sys.executable).with_name("transformers")
    own = {
        "command": [str(program), "serve", str(model), "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"],
        "env": {"HF_HUB_OFFLINE": "1"},
        "ready": {"path": "/health"},
        "stop_timeout_s": 60,
        "requests": asked,
    }
    campaign_id = f"engine-{os.getpid()}"
    first = deployed(campaign_id, folder / "text", own | of_both)
    try:
        [engine] = [psutil.Process(target.pid) for target in first.targets]
        text = few_answers(folder / "text")
        url = f"http://127.0.0.1:{first.statuses()[0]['server_port']}"
        seen = {"url": [url], "requests": asked | {"image": {"width": 64, "height": 48}}}
        second = deployed(campaign_id, folder / "image", seen | of_both)
        try:
            image = few_answers(folder / "image")
        finally:
            assert second.stop(timeout_s=120) == []
        assert engine.is_running()
    finally:
        assert first.stop(timeout_s=120) == []

    assert not engine.is_running()
    assert marked(campaign_id) == []
    return text, image


def deployed(campaign_id, folder, server):
    """One server that answers, and its client."""
    folder.mkdir()
    workload = WorkloadSpec.model_validate({"name": "llm", "warmup_requests": 1, "server": server})
    spec = experiment(workload=workload, replicas=1, timing={"ready_timeout_s": 600})
    return LocalBackend(campaign_id).deploy(spec, folder, abort=threading.Event(), on_death=lambda _death: None)


def few_answers(folder):
    """The client's log, once a few are in it."""
    log = folder / "replicas" / "replica-0" / "requests.bin"
    wait_for_requests(3, log, timeout_s=300)
    return log


def test_every_token_of_an_engines_stream_is_timed(logs):
    log, _ = logs
    asked = asked_of(log)
    assert set(asked["status"]) == {200}, log.with_name("replica.json").read_text()
    assert set(asked["output_tokens"]) == {TOKENS}
    assert set(asked["input_tokens"]) == {16}, "as the engine counts them"
    assert (asked["ttft_ns"] > 0).all()
    gaps = np.fromfile(log.with_name("gaps.bin"), dtype="<i8").reshape(-1, 2)
    assert len(gaps) == (TOKENS - 1) * len(asked["status"])
    # A client that was kept waiting takes a whole answer at once.
    assert (asked["latency_ns"] >= asked["ttft_ns"]).all()
    assert (asked["latency_ns"] > asked["ttft_ns"]).any()


def test_an_engine_sees_the_image_beside_the_text(logs):
    _, log = logs
    asked = asked_of(log)
    assert set(asked["status"]) == {200}, log.with_name("replica.json").read_text()
    assert set(asked["input_tokens"]) == {16 + random_vlm.IMAGE_TOKENS}, "as the engine counts them"
