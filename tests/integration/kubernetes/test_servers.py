"""The user's own server in the pods: a container of its image beside the client, which asks it and sees what it may."""

import json
import sys

import pytest

from harness.backends.kubernetes import files
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.backends.kubernetes.objects import CAMPAIGN_LABEL
from harness.campaign.verify import verify_campaign
from harness.errors import BackendError, ReplicaDiedError
from harness.results import layout
from harness.results.requests import LATENCY, records_of
from harness.spec import Sharing, SloSpec, WorkloadSpec
from tests.support.cluster_trial import Trial
from tests.support.experiments import FAST, experiment
from tests.support.fake_streaming_server import Server, running
from tests.support.generated_load import asked_of, wait_for_requests
from tests.support.processes import DRAINED_S, eventually

COMMAND = [sys.executable, "-m", "tests.support.fake_streaming_server"]
TOKENS = 4


def asked(*arguments, replicas=1, ready_timeout_s=120, **server):
    values = {
        "image": "registry.example/engine:1",
        "command": COMMAND,
        "args": ["--port", "{port}", "--first-s", "0.01", "--gap-s", "0.01", *arguments],
        "ready": {"path": "/health"},
        "stop_timeout_s": 60,
        "protocol": "openai-chat",
        "requests": {"output_tokens": {"mean": TOKENS}},
    }
    workload = {"name": "llm", "device": "cpu", "warmup_requests": 1, "server": values | server}
    whole = WorkloadSpec.model_validate(workload)
    return experiment(workload=whole, replicas=replicas, timing={"ready_timeout_s": ready_timeout_s})


def requests_of(folder, replica):
    return asked_of(layout.replica_folder(folder, replica) / "requests.bin")


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_servers_are_started_asked_and_ended_in_the_pods_and_all_answers_are_written_down(deploy, server, driver, kind):
    driver.environment = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}  # where the GPU is, and nowhere else
    of = asked(replicas=2, concurrency=2).model_copy(update={"sharing": Sharing.MPS})
    deployment, folder = deploy(of, by=KubernetesBackend(server.spec(kind=kind), "c0ffee"))

    statuses = deployment.statuses()
    assert [status["phase"] for status in statuses] == ["serving"] * 2
    assert [status["mps_pipe_directory"] for status in statuses] == ["/mps/nvidia.com/gpu/pipe"] * 2
    assert {status["server_image_id"] for status in statuses} == {statuses[0]["image_id"]}
    logs = [driver.folder / status["pod"] / "requests.bin" for status in statuses]
    wait_for_requests(20, *logs)

    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert driver.left() == []
    for index in range(2):
        place = layout.replica_folder(folder, index)
        told = json.loads((place / "replica.json").read_text())
        assert told["phase"] == "finished", "what was under way was answered before the files were fetched"
        found = requests_of(folder, index)
        assert set(found["status"]) == {200}
        assert set(found["output_tokens"]) == {TOKENS}
        assert len(found["status"]) == told["requests"] == len(records_of(place / layout.RAW_LATENCIES, LATENCY))
        assert len(records_of(place / "gaps.bin", LATENCY)) == (TOKENS - 1) * told["requests"]
        assert "Application startup complete" in layout.server_log(folder, index).read_text()
        assert "serving" in layout.replica_log(folder, index).read_text()


def test_a_server_that_is_killed_is_noticed_as_what_it_is_with_its_own_last_words(deploy, driver, deaths):
    deployment, folder = deploy(asked(replicas=2))

    driver.kill(deployment.statuses()[1]["pod"], reason="OOMKilled", server=True)
    assert eventually(lambda: deaths)

    said = "the server of replica 1 was killed by signal 9 (OOMKilled); last lines: Application startup complete"
    assert str(deaths[0]) == said
    assert deaths[0].code.value == "out-of-memory"
    deployment.stop(timeout_s=DRAINED_S)
    assert len(deaths) == 1
    assert driver.left() == []
    assert "Application startup complete" in layout.server_log(folder, 1).read_text()
    assert set(requests_of(folder, 0)["status"]) == {200}, "what the others measured is kept"


@pytest.mark.parametrize(
    ("of", "error", "said"),
    [
        (
            asked("--live-s", "0"),
            ReplicaDiedError,
            r"the server of replica 0 exited with 1; last lines: .*the engine ran out of luck",
        ),
        (asked("--fault", "404"), ReplicaDiedError, "does not answer a request as it should: HTTP 404"),
        (asked("--fault", "500", ready_timeout_s=6), BackendError, "not every replica served within 6 s"),
    ],
    ids=["ends", "404", "never answers"],
)
def test_one_that_cannot_serve_is_named_with_its_reason_and_nothing_is_left(deploy, driver, of, error, said):
    with pytest.raises(error, match=said):
        deploy(of)

    assert driver.left() == []


def test_a_key_comes_out_of_a_secret_and_is_shown_nowhere(deploy, server, driver, tmp_path):
    driver.secrets = {"LLM_KEY": "s3cr3t"}
    keyed = {"api_key_env": "LLM_KEY", "secret_env": {"LLM_KEY": "llm/key"}}
    deployment, _ = deploy(asked(**keyed))
    spec = server.spec()
    pods = KubernetesApi(spec).list(f"/api/v1/namespaces/{spec.namespace}/pods")
    deployment.stop(timeout_s=DRAINED_S)
    with pytest.raises(ReplicaDiedError, match=r"HTTP 401: .*\(key\)"):
        deploy(asked("--fault", "401", **keyed))

    assert "s3cr3t" not in json.dumps(pods)
    written = [file.read_bytes() for file in tmp_path.glob("attempt-*/**/*") if file.is_file()]
    assert written
    assert not [content for content in written if b"s3cr3t" in content]


def test_requests_come_out_of_a_file_of_this_machine_and_the_servers_own_metrics_come_back(
    deploy, server, driver, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "PART_BYTES", 60)  # several parts, as of a large file
    texts, times = tmp_path / "texts.jsonl", tmp_path / "times.json"
    prompts = {f"the question number {number}, of its own" for number in range(40)}
    texts.write_text("".join(json.dumps({"prompt": prompt, "output_tokens": 2}) + "\n" for prompt in prompts))
    of = asked("--times", str(times), requests={"file": str(texts)}, metrics={"path": "/metrics", "step_s": 0.5})
    spec = server.spec()
    backend = KubernetesBackend(spec, "c0ffee", [of.workload])
    deployment, folder = deploy(of, by=backend)
    config_maps = f"/api/v1/namespaces/{spec.namespace}/configmaps"
    made = {one["metadata"]["name"] for one in backend.api.list(config_maps, labels=f"{CAMPAIGN_LABEL}=c0ffee")}
    log = driver.folder / deployment.statuses()[0]["pod"] / "requests.bin"
    wait_for_requests(20, log)

    assert len(made) > 2
    assert list(deployment.stop(timeout_s=DRAINED_S)) == []
    assert backend.api.list(config_maps, labels=f"{CAMPAIGN_LABEL}=c0ffee") == []
    assert {chat["text"] for chat in json.loads(times.read_text())} <= prompts
    assert set(requests_of(folder, 0)["output_tokens"]) == {2}
    told = (layout.replica_folder(folder, 0) / "engine_metrics.csv").read_text().splitlines()
    assert told[0] == "timestamp,series,value"
    assert any("fake:requests_total" in line for line in told)


def test_what_a_killed_harness_left_of_files_is_swept(server, driver):
    of = asked(requests={"file": __file__})
    left = KubernetesBackend(server.spec(), "c0ffee", [of.workload])
    for one in files.carried(of.workload.server, server.spec(), "left", {CAMPAIGN_LABEL: "c0ffee"}):
        left.api.apply(one.path, one.body)

    assert left.sweep() == ["deleted ConfigMap left-0 of an earlier run."]
    assert driver.left() == []


def test_servers_that_run_already_are_asked_from_pods_without_a_gpu_each_by_one(deploy, server, driver):
    engines = [Server(first_s=0.01), Server(first_s=0.01)]
    with running(*engines) as urls:
        of = asked(replicas=2)
        own = {"url": urls, "protocol": "openai-chat", "requests": {"output_tokens": {"mean": TOKENS}}}
        workload = WorkloadSpec.model_validate({"name": "llm", "warmup_requests": 1, "server": own})
        of = of.model_copy(update={"workload": workload, "sharing": Sharing.AS_FOUND})
        deployment, folder = deploy(of, by=KubernetesBackend(server.spec(), "c0ffee"))
        pods = KubernetesApi(server.spec()).list(driver.collection)
        logs = [driver.folder / status["pod"] / "requests.bin" for status in deployment.statuses()]
        wait_for_requests(20, *logs)
        assert list(deployment.stop(timeout_s=DRAINED_S)) == []
        sent = [len(engine.asked) for engine in engines]

    assert driver.left() == []
    assert [len(pod["spec"]["containers"]) for pod in pods] == [1, 1]
    assert not any(pod["spec"]["containers"][0].get("resources") for pod in pods)
    for index, url in enumerate(urls):
        told = json.loads((layout.replica_folder(folder, index) / "replica.json").read_text())
        assert (told["phase"], told["server_url"]) == ("finished", url)
        found = requests_of(folder, index)
        assert set(found["status"]) == {200}
        assert 20 < len(found["status"]) <= sent[index], "each by one, beside the first and that of the warm-up"


def test_a_campaign_of_servers_ends_with_its_figures_and_its_objective(server, driver, run_campaign):
    timing = {**FAST, "record_s": 3.0, "drain_timeout_s": 30}
    workload = asked(concurrency=2).workload
    slo = SloSpec(latency_p99_ms=600_000, error_rate=0.5)
    metrics = ["throughput", "client_ttft_p50"]
    folder, manifests = run_campaign(
        Trial(server.spec()), workloads=[workload], replicas=[2], timing=timing, metrics=metrics, slo=slo
    )
    [(identity, manifest)] = manifests.items()

    assert driver.left() == []
    assert verify_campaign(folder.path).ok
    final = folder.final_folder(identity)
    assert not [reason for reason in manifest.verdict.reasons if "fetched" in reason or "asked its server on" in reason]
    assert {one["phase"] for one in manifest.replicas} == {"finished"}
    told = json.loads((final / "server.json").read_text())
    assert told["slo"]["outcome"] in {"pass", "inconclusive"}, "a few seconds decide little"
    assert len(told["by_server"]) == 2
    assert told["results"]["requests"] > 0
