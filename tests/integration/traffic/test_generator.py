"""The load generator as a process against real servers: on time, honest about what was not answered."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from harness.replica.engine.readiness import takes_connections
from harness.results.requests import GENERATED
from harness.traffic.arrivals import of_targets
from harness.traffic.generator import main
from harness.traffic.records import ABANDONED, BROKEN, UNANSWERED
from tests.support.generated_load import ROOT, fake_service, plan_for, records, run, start
from tests.support.ports import free_port
from tests.support.processes import eventually

S = 1_000_000_000


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_every_intended_request_is_sent_and_answered_after_the_services_own_time(tmp_path, arrivals):
    with fake_service(5.0) as port:
        found = run(plan_for(port, tmp_path, rate=200.0, duration_s=1.5, arrivals=arrivals, seed=3))

    expected_ns = []
    for at_ns, _ in of_targets(200.0, arrivals, 1, 3):
        if at_ns >= 1.5 * S:
            break
        expected_ns.append(at_ns)
    intended_ns = np.sort(found["intended_ns"])
    assert np.diff(intended_ns).tolist() == np.diff(expected_ns).tolist()
    # On a busy machine the last of them are not answered in time.
    answered = found[found["status"] == 200]
    assert set(found["status"]) <= {200, ABANDONED}
    assert len(answered) > 0
    assert (answered["latency_ns"] >= 5_000_000).all()
    assert found["send_error_ns"].min() >= 0
    # Of the quickest: how much a busy machine adds to the others is a benchmark's question.
    assert (answered["latency_ns"] - answered["send_error_ns"]).min() < 100_000_000


def test_two_servers_get_a_stream_each(tmp_path):
    with fake_service(1.0) as first, fake_service(1.0) as second:
        targets = [("127.0.0.1", first), ("127.0.0.1", second)]
        found = run(plan_for(first, tmp_path, targets=targets, rate=100.0, duration_s=1.0))

    assert len(found) == pytest.approx(200, abs=60)
    assert set(found["status"]) <= {200, ABANDONED}


def test_too_few_clients_show_as_late_sends_and_not_as_a_lower_rate(tmp_path):
    with fake_service(100.0) as port:
        plan = plan_for(port, tmp_path, rate=100.0, duration_s=1.0, max_clients=2, arrivals="constant")
        found = run(plan)

    assert len(found) == pytest.approx(100, abs=1)
    answered = found["status"] == 200
    assert 1 <= answered.sum() <= 45  # two clients, 100 ms each, for a second and one more for the last answers
    assert (found["status"][~answered] == UNANSWERED).all()
    assert found["send_error_ns"].max() > 500_000_000


class Server(threading.Thread):
    """Answers as it is told to, in plain sockets."""

    def __init__(self, behave):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.behave = behave
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            while client.recv(4096):
                if not self.behave(client):
                    return

    def close(self):
        self.listener.close()


@pytest.fixture
def serving():
    servers = []

    def serve(behave):
        servers.append(Server(behave))
        return servers[-1].port

    yield serve
    for server in servers:
        server.close()


def answer(text):
    def behave(client):
        client.sendall(text)
        return True

    return behave


def in_pieces(client):
    for piece in (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 4\r\n\r\nab", b"cd"):
        client.sendall(piece)
        time.sleep(0.002)
    return True


@pytest.mark.parametrize(
    ("behave", "status"),
    [
        (in_pieces, 200),
        (answer(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"), 429),
        (answer(b"HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"), 503),
        (lambda _client: False, BROKEN),
        (answer(b"nonsense\r\n\r\n"), BROKEN),
        (lambda _client: True, UNANSWERED),
    ],
    ids=["in pieces", "refused", "closes", "hangs up", "no HTTP", "silent"],
)
def test_what_became_of_a_request_is_written_down(tmp_path, serving, behave, status):
    found = run(plan_for(serving(behave), tmp_path, rate=50.0, duration_s=0.3, arrivals="constant"))

    assert len(found) == pytest.approx(15, abs=1)
    assert {status} <= set(found["status"].tolist()) <= {status, UNANSWERED}


def test_nobody_listening_is_a_failed_request_each_and_not_an_end(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    found = run(plan_for(port, tmp_path, rate=100.0, duration_s=0.3))

    assert len(found) > 15
    assert {BROKEN} <= set(found["status"].tolist()) <= {BROKEN, UNANSWERED}


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def test_a_server_that_dies_in_between_fails_only_what_comes_then(tmp_path, serving):
    left = list(range(50))

    def behave(client):
        if not left:
            return False
        left.pop()
        client.sendall(OK)
        return True

    found = run(plan_for(serving(behave), tmp_path, rate=200.0, duration_s=0.5, arrivals="constant"))

    assert len(found) == pytest.approx(100, abs=1)
    assert 0 < (found["status"] == 200).sum() <= 50
    assert {200, BROKEN} <= set(found["status"].tolist()) <= {200, BROKEN, UNANSWERED}


def test_sigterm_ends_it_with_everything_written(tmp_path, serving):
    asked = []

    def behave(client):
        asked.append(client)
        time.sleep(0.2)
        client.sendall(OK)
        return True

    generator = start(plan_for(serving(behave), tmp_path, rate=100.0, duration_s=None))
    while len(asked) < 30:
        time.sleep(0.01)
    generator.send_signal(signal.SIGTERM)
    assert generator.wait(timeout=120) == 0

    found = records(tmp_path / "requests.bin")
    assert (tmp_path / "requests.bin").stat().st_size == found.nbytes
    assert len(found) == len(asked)
    assert (found["status"] == 200).all()  # the last answers were waited for


def test_a_plan_that_cannot_be_read_is_one_line_and_code_2(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"rate": 1}))

    assert main([str(path)]) == 2
    assert main([str(tmp_path / "absent.json")]) == 2
    assert main([]) == 2
    assert capsys.readouterr().err.count("load: no plan to run") == 3


def test_a_load_pod_sends_its_shard_and_hands_out_the_log(tmp_path):
    port = free_port()

    def fetch(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return reply.read()

    with fake_service(1.0) as first, fake_service(1.0) as second:
        plan = plan_for(first, tmp_path, targets=[("127.0.0.1", first), ("127.0.0.1", second)], duration_s=None)
        told = {"LOAD_PLAN": plan.model_dump_json(), "LOAD_SHARDS": "2", "REPLICA": "1", "REPLICA_DIR": str(tmp_path)}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **told, "PORT": str(port)}
        with subprocess.Popen([sys.executable, "-m", "harness.traffic.pod"], env=environment, cwd=tmp_path) as pod:
            assert eventually(lambda: takes_connections(port))
            assert eventually(lambda: len(fetch("/requests")) > 0)
            assert json.loads(fetch("/status/?more")) == {"sends": True}
            assert json.loads(fetch("/finish")) == {"exit_code": 0}
            with pytest.raises(urllib.error.HTTPError, match="503"):
                fetch("/health")
            found = np.frombuffer(fetch("/requests"), dtype=GENERATED)
            pod.terminate()

    assert len(found) > 0
    assert set(found["replica"].tolist()) == {1}
    # Those that were on their way at the end have no answer.
    assert 200 in found["status"]
    assert {*found["status"].tolist()} <= {200, ABANDONED}
    assert pod.returncode == 0
