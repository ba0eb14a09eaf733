"""Servers of known behaviour, started by the local backend and by whole campaigns."""

import base64
import io
import json
import os
import socket
import sys
import threading
import time
import urllib.request
import wave

import numpy as np
import pandas as pd
import psutil
import pytest
from PIL import Image
from typer.testing import CliRunner

from harness.analysis.client_result import evaluate
from harness.backends import local, local_check
from harness.backends.workload_check import check_server
from harness.cli import app
from harness.errors import BackendError, ObjectiveMissedError, ReasonCode
from harness.metrics.nvml import GpuFacts
from harness.replica.engine.workload import FOLLOW_S
from harness.results.manifest import read_manifest
from harness.results.requests import Window
from harness.spec import Device, SloSpec, WorkloadSpec
from tests.support.campaigns import Campaign
from tests.support.certificates import vouched_for
from tests.support.experiments import experiment
from tests.support.fake_streaming_server import HANGS_AFTER, Server, running
from tests.support.generated_load import asked_of, wait_for_requests
from tests.support.processes import eventually

pytestmark = pytest.mark.long

FIRST_S, GAP_S, TOKENS = 0.02, 0.01, 6
COMMAND = [sys.executable, "-m", "tests.support.fake_streaming_server", "--port", "{port}"]
WITH_CHILD = {"env": {"CHILDREN": "1"}}
STREAM = {"protocol": "openai-chat", "requests": {"output_tokens": {"mean": TOKENS}}}


def workload(*arguments, **server):
    command = [*COMMAND, "--first-s", str(FIRST_S), "--gap-s", str(GAP_S), *arguments]
    values = {"name": "llm", "warmup_requests": 1, "server": {"command": command, "stop_timeout_s": 60, **server}}
    return WorkloadSpec.model_validate(values)


@pytest.fixture
def deploy(deploy):
    """Servers."""

    def start(asked, replicas=1, ready_timeout_s=120):
        return deploy(workload=asked, replicas=replicas, timing={"ready_timeout_s": ready_timeout_s})

    start.deaths = deploy.deaths
    return start


def log_of(folder, replica=0):
    return folder / "replicas" / f"replica-{replica}" / "requests.bin"


@pytest.fixture
def answered(deploy, tmp_path):
    """Deploys, and ends it cleanly after so many requests; returns what the client wrote down, and its status."""

    def start(asked, count):
        deployment = deploy(asked)
        wait_for_requests(count, log_of(tmp_path))
        assert deployment.stop(timeout_s=60) == []
        return asked_of(log_of(tmp_path)), deployment.statuses()[0]

    return start


def test_servers_are_asked_measured_and_ended(deploy, tmp_path):
    asked = workload(ready={"path": "/health"}, concurrency=2, metrics={"step_s": 0.5}, **STREAM)
    deployment = deploy(asked, replicas=2)
    servers = [psutil.Process(target.pid) for target in deployment.targets]
    assert all("fake_streaming_server" in " ".join(server.cmdline()) for server in servers)
    logs = [log_of(tmp_path, index) for index in range(2)]
    wait_for_requests(40, *logs)

    assert deployment.stop(timeout_s=60) == []
    assert not any(server.is_running() for server in servers)
    for log, status in zip(logs, deployment.statuses(), strict=True):
        assert (status["phase"], status["server_end"]) == ("stopped", "stopped")
        asked = asked_of(log)
        assert set(asked["status"]) == {200}
        assert set(asked["output_tokens"]) == {TOKENS}
        assert asked["ttft_ns"].min() >= FIRST_S * 1e9
        assert asked["latency_ns"].min() >= (FIRST_S + (TOKENS - 1) * GAP_S) * 1e9
        assert len(asked["status"]) == status["requests"]
        gaps = np.fromfile(log.with_name("gaps.bin"), dtype="<i8").reshape(-1, 2)
        assert len(gaps) == (TOKENS - 1) * len(asked["status"])
        # As the server's own sleeps: a busy machine adds to them, and may deliver two tokens at once.
        assert 0.2 * GAP_S * 1e9 < gaps[:, 1].mean() < 60e9
        told = pd.read_csv(log.with_name("engine_metrics.csv"))
        counted = told[told["series"] == 'fake:requests_total{model="a b"}']["value"]
        assert counted.is_monotonic_increasing
        assert counted.iloc[-1] >= len(asked["status"]) + 2  # with the first one and that of the warm-up
        assert list(told[told["series"] == "fake:rooms"]["value"]) == [7]
        assert set(told[told["series"] == "up"]["value"]) == {1}


def test_a_client_of_ones_own_asks_and_tells_each_token(answered):
    asked = workload(
        protocol="own", client="tests.support.own_client:make", requests={"output_tokens": {"mean": TOKENS}}
    )

    told, _ = answered(asked, 20)

    assert set(told["status"]) == {200}
    assert set(told["output_tokens"]) == {TOKENS}
    assert set(told["input_tokens"]) == {128}
    assert told["ttft_ns"].min() >= FIRST_S * 1e9


def test_one_that_loads_slowly_is_asked_until_it_answers(deploy):
    deployment = deploy(workload("--fault", "slow-to-load"))
    assert deployment.statuses()[0]["phase"] == "serving"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (workload("--fault", "404"), "does not answer a request as it should: HTTP 404"),
        (workload("--fault", "302"), "does not answer a request as it should: HTTP 302"),
        (workload("--live-s", "0"), "the server ended with 1; its last lines: .*the engine ran out of luck"),
        (workload("--fault", "not-json", protocol="openai-chat", stream=False), "the answer is not a JSON"),
    ],
)
def test_one_that_cannot_serve_is_named_with_its_reason(deploy, asked, message):
    with pytest.raises(BackendError, match=message):
        deploy(asked)


@pytest.mark.parametrize(
    "asked",
    [
        workload("--fault", "500"),
        workload("--fault", "429"),
        workload("--fault", "mute"),
        workload("--gap-s", "60", **STREAM),
        workload(ready={"log": "never said"}),
    ],
    ids=["500", "429", "mute", "a token per minute", "never ready"],
)
def test_one_that_never_answers_is_given_up(deploy, asked):
    with pytest.raises(BackendError, match="replica 0 did not serve within 2 s"):
        deploy(asked, ready_timeout_s=2)


def test_servers_of_this_machine_are_asked_over_no_proxy_of_the_environment(deploy, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert deploy(workload(ready={"path": "/health"})).statuses()[0]["phase"] == "serving"


def test_one_that_never_gets_ready_is_named_with_what_was_seen(deploy):
    with pytest.raises(BackendError, match=r"did not serve within 4 s .*: GET /nope answered 404"):
        deploy(workload("--fault", "404", ready={"path": "/nope"}), ready_timeout_s=4)


@pytest.mark.parametrize("below", [0, 1])
def test_one_that_should_be_on_the_gpu_is_seen_there(deploy, tmp_path, monkeypatch, below):
    """Itself, or a process that it has started."""

    def machine():
        told = [json.loads(file.read_text()) for file in tmp_path.glob("replicas/*/replica.json")]
        servers = [psutil.Process(status["server_pid"]) for status in told]
        pids = [[server, *server.children()][below].pid for server in servers]
        return [GpuFacts("a GPU", total_bytes=10**10, free_bytes=10**10, processes=tuple(pids))], ""

    on_gpu(monkeypatch, machine)
    deployment = deploy(workload(**STREAM, **WITH_CHILD).model_copy(update={"device": Device.CUDA}), replicas=2)
    assert [status["phase"] for status in deployment.statuses()] == ["serving"] * 2


def test_one_that_should_be_on_the_gpu_and_is_not_is_refused(deploy, monkeypatch):
    """Other programs on the GPU are not it."""
    rival = GpuFacts("a GPU", total_bytes=10**10, free_bytes=10**10, processes=(os.getpid(),))
    on_gpu(monkeypatch, lambda: ([rival], ""))
    monkeypatch.setattr(local, "ON_GPU_WITHIN_S", 0.0)
    with pytest.raises(
        BackendError, match="the server of replica 0 answers requests, and none of its processes"
    ) as caught:
        deploy(workload(**STREAM).model_copy(update={"device": Device.CUDA}))
    assert caught.value.code is ReasonCode.NOT_ON_GPU


def test_where_nvml_cannot_name_processes_it_is_said_before(monkeypatch):
    gpu = GpuFacts("a GPU", total_bytes=10**10, free_bytes=10**10)
    monkeypatch.setattr(local_check, "gpu_facts", lambda: ([gpu], ""))
    asked = workload(**STREAM).model_copy(update={"device": Device.CUDA})
    spec = experiment(workload=asked)
    for ours, told in ((False, 1), (True, 0)):
        monkeypatch.setattr(local_check, "nvml_names_our_processes", lambda answer=ours: answer)
        found = [each for each in local_check.check_machine([spec]) if "will not be checked" in each.message]
        assert [each.severity.value for each in found] == ["warning"] * told


def on_gpu(monkeypatch, machine):
    """This machine has a GPU, on which is what ``machine`` says."""
    monkeypatch.setattr(local, "gpu_facts", machine)
    monkeypatch.setattr(local, "nvml_names_our_processes", lambda: True)


TENSORS = [
    {"name": "x", "shape": [2, 4], "datatype": "FP32"},
    {"name": "note", "shape": [1], "datatype": "BYTES"},
]


def inference(protocol="oip", **changes):
    module = {"oip": "tests.support.fake_oip_server", "oip-grpc": "tests.support.fake_oip_grpc_server"}[protocol]
    command = [sys.executable, "-m", module, "--port", "{port}"]
    server = {"command": command, "stop_timeout_s": 60, "protocol": protocol, "model": "sum", "tensors": TENSORS}
    return WorkloadSpec.model_validate({"name": "sums", "warmup_requests": 1, "server": server | changes})


@pytest.mark.parametrize("protocol", ["oip", "oip-grpc"])
def test_a_server_of_the_open_inference_protocol_is_asked_with_tensors(answered, protocol):
    asked, _ = answered(inference(protocol, concurrency=2), 40)
    assert set(asked["status"]) == {200}
    assert set(asked["ttft_ns"]) == set(asked["output_tokens"]) == {-1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "other"}, "HTTP 404: .*unknown path /v2/models/other/infer"),
        ({"tensors": TENSORS[:1]}, "HTTP 400: .*expected the inputs x and note"),
        (
            {"tensors": [TENSORS[0] | {"datatype": "INT32"}, TENSORS[1]]},
            "HTTP 400: .*unexpected datatype or shape for input 'x'",
        ),
        ({"protocol": "oip-grpc", "model": "other"}, "gRPC NOT_FOUND: .*unknown model: 'other'.*check `protocol`"),
        ({"protocol": "oip-grpc", "tensors": TENSORS[:1]}, "gRPC INVALID_ARGUMENT: expected the inputs x and note"),
    ],
)
def test_tensors_that_the_model_does_not_take_are_said_in_its_own_words(deploy, changes, message):
    with pytest.raises(BackendError, match=message):
        deploy(inference(**changes))


def test_the_death_of_a_server_is_its_replicas(deploy):
    deployment = deploy(workload(**STREAM), replicas=2)
    psutil.Process(deployment.targets[1].pid).kill()
    assert eventually(lambda: deploy.deaths)
    assert [death.replica for death in deploy.deaths] == [1]
    assert "the server was ended by SIGKILL" in str(deploy.deaths[0])


def running_already(urls, **server):
    values = {"name": "llm", "warmup_requests": 1, "server": {"url": urls, "concurrency": 2, **STREAM, **server}}
    return WorkloadSpec.model_validate(values)


def test_servers_that_run_already_are_asked_and_left_as_they_are(deploy, tmp_path):
    servers = Server(first_s=FIRST_S, gap_s=GAP_S), Server(first_s=FIRST_S, gap_s=GAP_S)
    with running(*servers) as urls:
        deployment = deploy(running_already(urls), replicas=2)
        logs = [log_of(tmp_path, index) for index in range(2)]
        wait_for_requests(20, *logs)
        assert deployment.stop(timeout_s=60) == []
        for url, server, status in zip(urls, servers, deployment.statuses(), strict=True):
            assert (status["server_url"], status["server_end"], "server_pid" in status) == (url, "left running", False)
            assert len(server.asked) >= status["requests"] > 0, "each was asked by its own replica"
            urllib.request.urlopen(f"{url}/health").close()


def test_one_behind_tls_is_asked_where_its_authority_is_trusted(answered, tmp_path, monkeypatch):
    shown, authority = vouched_for(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with running(Server(tls=shown)) as urls:
        asked = running_already(urls)
        assert urls[0].startswith("https://")
        assert check_server("llm", asked.server) == []
        _, status = answered(asked, 20)
    assert status["load"]["failures"] == {}


@pytest.mark.parametrize(
    ("address", "trusted", "why"),
    [
        ("127.0.0.1", False, "local issuer"),
        ("127.0.0.2", True, "not valid for '127.0.0.1'"),
    ],
)
def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_asked(
    tmp_path, monkeypatch, address, trusted, why
):
    shown, authority = vouched_for(tmp_path, address)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    refused = []

    def show():
        with listening.accept()[0] as connection, pytest.raises(OSError) as caught:  # noqa: PT011 - OpenSSL's own
            shown.wrap_socket(connection, server_side=True).recv(1)
        refused.append(caught)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=show)
        thread.start()
        (finding,) = check_server("llm", running_already([url]).server)
        thread.join()
    assert refused
    assert finding.message.startswith(f"the workload llm asks {url}, whose certificate is not valid here: ")
    assert why in finding.message
    assert (str(authority) if trusted else "not set") in finding.advice
    assert not finding.away, "waiting mends no certificate"


def test_a_trace_comes_again_at_its_times_with_its_lengths(answered, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lengths, times_ms = [3, 1, 2], [7000, 7040, 7100]
    entries = zip(times_ms, lengths, strict=True)
    trace.write_text("".join(f'{{"timestamp": {ms}, "input_length": 5, "output_length": {n}}}\n' for ms, n in entries))
    server = Server()
    with running(server) as urls:
        asked = running_already(
            urls, concurrency=None, requests={}, trace={"file": str(trace), "unit": "ms", "factor": 2}
        )
        told, _ = answered(asked, 9)
    first = told["intended_ns"].argsort()[:9]
    assert set(told["status"]) == {200}
    assert told["output_tokens"][first].tolist() == lengths * 3
    between_ms = np.diff(told["intended_ns"][first]) / 1e6
    assert between_ms.round(3).tolist() == [20, 30, 25, 20, 30, 25, 20, 30], (
        "twice as fast, and a mean interval between"
    )


@pytest.mark.parametrize("load", [{"concurrency": 2}, {"concurrency": None, "rate": 200}])
@pytest.mark.parametrize("protocol", ["openai-chat", "http"])
def test_images_and_sounds_arrive_whole(answered, protocol, load):
    server = Server()
    requests = STREAM["requests"] | {"image": {"width": 160, "height": 121}, "audio": {"seconds": 0.5}}
    asked = {"protocol": protocol, "requests": requests, **load}
    if protocol == "http":
        asked["body"] = {"text": "{prompt}", "image": "{image}", "audio": "{audio}"}
    with running(server) as urls:
        _, status = answered(running_already(urls, **asked), 20)
    assert status["load"]["failures"] == {}
    for body in server.asked:
        image, audio = body.get("image"), body.get("audio")
        if protocol == "openai-chat":
            _, picture, sound = body["messages"][0]["content"]
            image, audio = picture["image_url"]["url"].partition(",")[2], sound["input_audio"]["data"]
        with Image.open(io.BytesIO(base64.b64decode(image))) as found:
            found.load()
            assert found.size == (160, 121)
        with wave.open(io.BytesIO(base64.b64decode(audio))) as found:
            assert (found.getframerate(), found.getnframes()) == (16_000, 8000)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("404", "HTTP 404: .*; check `protocol`, `path` and `model`: it serves fake"),
        ("401", "HTTP 401: .*; name the variable that holds its key in `api_key_env`"),
        ("500", "did not serve within 3 s .*the server does not answer yet: HTTP 500"),
    ],
)
def test_one_that_runs_already_and_does_not_answer_is_named_with_what_to_do(
    deploy, tmp_path, monkeypatch, fault, message
):
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    with running(Server(fault=fault)) as urls, pytest.raises(BackendError, match=message) as caught:
        deploy(running_already(urls, api_key_env="MY_KEY"), ready_timeout_s=3 if fault == "500" else 120)
    assert "s3cr3t" not in str(caught.value)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"s3cr3t" in path.read_bytes() for path in kept)


def test_a_campaign_of_servers_that_run_already_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    with running(Server(gap_s=GAP_S)) as urls:
        workload = running_already(urls, api_key_env="MY_KEY", rate=10, concurrency=None).model_dump(mode="json")
        campaign = Campaign(tmp_path, CAMPAIGN | {"workloads": [workload], "replicas": [1], "repeats": 2})
        second = "llm_r1_as-found_rep2"
        campaign.kill(campaign.started("record", second))
        campaign.measured()
        urllib.request.urlopen(f"{urls[0]}/health").close()
    assert campaign.verified().experiments == 2
    assert "not-judged" in {finding["code"] for finding in campaign.manifest(second).findings}
    assert not any(b"s3cr3t" in path.read_bytes() for path in campaign.path.rglob("*") if path.is_file())


CAMPAIGN = {
    "name": "served",
    "replicas": [2],
    "timing": {"step_s": 0.5, "stabilise_s": 0.5, "record_s": 4, "cooldown_s": 0},
}


def test_a_server_that_hangs_in_the_recording_does_not_pass(deploy, tmp_path):
    """What it answered before was within the limit, and no request has failed."""
    asked = workload("--fault", "hang", concurrency=2, request_timeout_s=600, **STREAM)
    begin_s = time.time()
    deployment = deploy(asked)
    of_load = HANGS_AFTER - 2  # one showed that it is ready, one was its warm-up
    wait_for_requests(of_load, log_of(tmp_path))
    window = Window(begin_s, time.time())

    assert deployment.stop(timeout_s=60) == []

    objective = SloSpec(latency_p99_ms=1e3 * FOLLOW_S)
    spec = experiment(workload=asked).model_copy(update={"slo": objective})
    result = evaluate(spec, tmp_path, window, statuses=deployment.statuses(), provenance=None)
    content, findings = result.files["server.json"], result.findings
    assert (content["results"]["requests"], content["results"]["abandoned"]) == (of_load, 2)
    assert content["results"]["failed"] == {}
    assert content["slo"]["parts"]["latency_p99_ms"]["missed_share"] >= 2 / HANGS_AFTER
    assert content["slo"]["outcome"] != "pass"
    assert "2 of 40 requests failed (2 x -3;" in findings[0].message
    assert deployment.statuses()[0]["server_end"] == "stopped"


def test_a_campaign_leaves_what_every_command_reads(tmp_path):
    slo = {"ttft_p99_ms": 1, "error_rate": 0.5}  # the first token takes longer
    spec = CAMPAIGN | {"workloads": [workload(rate=10, **STREAM).model_dump(mode="json")], "slo": slo}
    campaign = Campaign(tmp_path, spec, options=())
    done = campaign.run("--fail-on", "slo", code=11)
    assert "llm_r2_time-slicing_rep1: Objective: fail. Goodput 0 requests per second; first token p99" in done.stdout

    campaign.verified()
    folder = campaign.path / "llm_r2_time-slicing_rep1"
    content = json.loads((folder / "server.json").read_text())
    assert {name: part["outcome"] for name, part in content["slo"]["parts"].items()} == {
        "ttft_p99_ms": "fail",
        "error_rate": "pass",
    }
    assert content["results"]["latency_ms"]["p50"] >= 1e3 * (FIRST_S + (TOKENS - 1) * GAP_S)
    assert "Objective: fail." in (campaign.path / "report.html").read_text()
    again = CliRunner().invoke(
        app, ["report", str(campaign.path), "--out", str(tmp_path / "again"), "--fail-on", "slo"]
    )
    assert isinstance(again.exception, ObjectiveMissedError), again.output
    assert [each["server_end"] for each in read_manifest(folder).replicas] == ["stopped", "stopped"]
    rows = next(folder.glob("llm_r2_client_ttft_p50_*.csv")).read_text().splitlines()[1:]
    values = [float(row.split(",")[3]) for row in rows if ",all," in row and row.split(",")[3]]
    assert values
    assert min(values) >= 0.9 * FIRST_S, "a quantile lies in its bucket of 8%"
