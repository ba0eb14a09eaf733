"""What is said of a server before anything starts, and what its replica is told."""

import os
import socket
import sys

import pytest

from harness.backends import workload_check
from harness.backends.local import replica_environment
from harness.backends.local_check import check_machine
from harness.backends.local_replica import ReplicaSlot
from harness.backends.workload_check import check_server
from harness.replica.registry import find_factory
from harness.replica.settings import from_environment
from harness.spec import Timing, WorkloadSpec
from tests.support import local_tokenizers
from tests.support.experiments import experiment
from tests.support.raw_server import RawServer, whole


def workload(**server):
    command = server.pop("command", [sys.executable, "-m", "mine", "--port", "{port}"])
    return WorkloadSpec.model_validate({"name": "llm", "server": {"command": command, **server}})


def test_what_is_missing_is_said_with_what_to_do(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    spec = workload(command=["no-such-server", "{port}"], requests={"file": "none.jsonl"}, api_key_env="NO_KEY").server
    told = [finding.message for finding in check_server("llm", spec)]
    assert told == [
        "the workload llm starts no-such-server, and there is no such program.",
        "the workload llm asks what is in none.jsonl, and there is no such file.",
        "the workload llm takes its key from NO_KEY, which is not set.",
    ]


PROMPT, REQUEST = '{"prompt": "a"}\n', '{"timestamp": %d, "input_length": 1, "output_length": 1}\n'


@pytest.mark.parametrize(
    ("field", "good", "bad", "message"),
    [
        ("requests", PROMPT, PROMPT + '{"prompt": null}', ":2: `prompt` is null"),
        ("trace", REQUEST % 0 + REQUEST % 9, REQUEST % -1, ":1: timestamp must be at least 0"),
    ],
)
def test_a_file_that_cannot_be_asked_is_said_before_anything_starts(tmp_path, field, good, bad, message):
    file = tmp_path / "asked.jsonl"
    spec = workload(**{field: {"file": str(file)} | ({"unit": "ms"} if field == "trace" else {})}).server
    (finding,) = check_server("llm", spec)
    assert finding.message == f"the workload llm asks what is in {file}, and there is no such file."
    file.write_text(good)
    assert check_server("llm", spec) == []
    file.write_text(bad)
    (finding,) = check_server("llm", spec)
    assert finding.message.startswith(f"the workload llm cannot be asked: {file}{message}")
    assert finding.advice == f"Fix {file}, or say in the campaign file how to read it."


def test_a_tokenizer_that_is_none_is_said_before_anything_starts(tmp_path, monkeypatch):
    spec = workload(requests={"tokenizer": str(tmp_path)}).server
    (finding,) = check_server("llm", spec)
    assert finding.message.startswith(
        f"the workload llm cannot be asked: the tokenizer {tmp_path}/tokenizer.json cannot be read"
    )
    assert finding.advice == f"Fix {tmp_path}."
    local_tokenizers.letters().save(str(tmp_path / "tokenizer.json"))
    assert check_server("llm", spec) == []
    monkeypatch.setattr(workload_check, "absent", lambda *modules: list(modules))
    (finding,) = check_server("llm", spec)
    assert finding.message == "the workload llm needs tokenizers, which is not installed."
    assert finding.advice == "Install it: pip install 'gpu-sharing-harness[tokenizer]'"


def test_a_tokenizer_is_read_once_for_all_loads_of_a_sweep_and_again_when_it_changed(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setattr(workload_check, "READER", [sys.executable, "-c", f"open({str(log)!r}, 'a').write('x')"])
    file = tmp_path / "tokenizer.json"
    local_tokenizers.letters().save(str(file))
    served = {"protocol": "openai-chat", "requests": {"tokenizer": str(tmp_path)}}
    loads = [{"concurrency": 1}, {"concurrency": 2}, {"rate": 4, "arrivals": "constant"}]
    assert [check_server("llm", workload(**served, **load).server) for load in loads] == [[], [], []]
    assert log.read_text() == "x"
    os.utime(file, (1, 1))
    assert check_server("llm", workload(**served).server) == []
    assert log.read_text() == "xx"


def test_one_that_runs_already_must_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        up, down = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (server, closed))
        spec = WorkloadSpec.model_validate({"name": "llm", "server": {"url": [up, down]}})
        (finding,) = check_server("llm", spec.server)
    assert finding.message == f"the workload llm asks {down}, which cannot be reached: Connection refused."
    assert finding.advice == "Start it, or fix `server.url`."
    assert finding.away, "a campaign waits for it between experiments"


def test_one_without_tls_at_https_is_said_before_anything_is_asked():
    with RawServer(whole(b"", status="400 Bad"), speaks_first=True) as server:
        spec = workload(command=[], url=f"https://127.0.0.1:{server.port}").server
        (issue,) = check_server("llm", spec)
    assert not issue.away, "waiting for it changes nothing"
    assert "http://" in issue.message


def test_a_server_needs_no_torch_and_no_table_of_memory():
    spec = experiment().model_copy(update={"workload": workload()})
    findings = [each for each in check_machine([spec]) if each.severity.value == "error"]
    assert [each for each in findings if each.message.startswith("the workload")] == []


def test_the_replica_reads_what_the_campaign_file_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "theirs")
    monkeypatch.delenv("REPLICA_SPEC", raising=False)
    served = workload(
        rate=4, ramp_to=8, protocol="openai-chat", model="m", ready={"path": "/health"}, env={"A": "{port}"}
    )
    settings = from_environment(
        replica_environment(ReplicaSlot(served, 0, tmp_path), Timing(step_s=1, stabilise_s=3, record_s=60))
    )
    assert settings.spec.workload == served
    assert served.server.target == "/v1/chat/completions"
    assert (settings.spec.settle_s, settings.spec.record_s) == (4, 60), "the first row takes a window of 4 s"
    assert settings.spec.restore["PYTHONPATH"] == "theirs"
    assert settings.spec.restore["REPLICA_SPEC"] is None
    assert find_factory(settings.workload).__name__ == "make"
