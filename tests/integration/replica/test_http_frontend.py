"""A replica as an HTTP inference server: real processes, real connections."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytestmark = pytest.mark.long


HELD = "while __import__('os').path.exists('hold'): time.sleep(0.001)\n        time.sleep(0.002)"


@pytest.fixture
def serve(start, own_source):
    """Start a replica that serves over HTTP and wait until it is ready."""

    def start_server(infer="time.sleep(0.005)", batch_size=4, **scenario):
        replica = start(
            own_source(infer), BATCH_SIZE=str(batch_size), SCENARIO=json.dumps({"kind": "http", "rate": 1, **scenario})
        )
        replica.wait_until_ready()
        replica.wait_for_phase("serving")  # the file may be a moment behind
        return replica

    return start_server


def ask(replica, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", replica.status["scenario"]["port"], timeout=60)
    try:
        text = json.dumps(body) if body is not None else None
        connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_requests_are_served_counted_and_logged_and_what_cannot_be_is_refused(serve):
    replica = serve()
    assert ask(replica, "GET", "/health") == (200, {"phase": "serving"})
    assert ask(replica, "GET", "/ready") == (200, {"phase": "serving"})
    assert replica.metrics()["inference_requests_total"] == 0

    for body, status in [({"inputs": 5}, 413), ({"inputs": 0}, 422), ({"inputs": "x"}, 422), ({}, 422), (None, 422)]:
        assert ask(replica, "POST", "/infer/batch", body)[0] == status, body
    for value in (float("nan"), float("inf")):
        assert ask(replica, "POST", "/infer/batch", {"inputs": value})[0] == 422
    assert ask(replica, "POST", "/infer/batch", {"inputs": 1, "padding": "x" * 5000})[0] == 413
    assert ask(replica, "GET", "/infer")[0] == 405

    assert ask(replica, "POST", "/infer")[0] == 200
    status, body = ask(replica, "POST", "/infer/batch", {"inputs": 3})
    assert (status, body["inputs"], body["batch"]) == (200, 3, 3)
    assert body["service_ms"] >= 5
    metrics = replica.metrics()
    assert (metrics["inference_requests_total"], metrics["inference_inputs_total"]) == (2, 4)
    assert metrics["inference_service_seconds_count"] == 2
    stats = ask(replica, "GET", "/stats")[1]
    assert (stats["served"], stats["batches"], stats["mean_batch"], stats["waiting"]) == (2, 2, 2.0, 0)
    replica.stop()
    assert len(replica.latencies) == 2
    assert len(np.fromfile(replica.folder / "services.bin", "<i8")) == 4


@pytest.fixture
def hold(serve):
    """Start a replica whose requests take as long as a file is there; returns it, and a pool of clients."""
    pools = []

    def start_holding(**scenario):
        replica = serve(HELD, **scenario)
        (replica.folder / "hold").touch()
        pools.append(ThreadPoolExecutor(20))
        return replica, pools[-1]

    yield start_holding
    for pool in pools:
        pool.shutdown()


def queued(replica, pool, number):
    """Send ``number`` requests while the first is held, one known to be in service before the others come."""
    answers = []
    for more in (1, number - 1):
        answers += [pool.submit(ask, replica, "POST", "/infer") for _ in range(more)]
        wanted = len(answers)
        replica.wait_for(lambda wanted=wanted: sum(counts(replica)) == wanted)
    return answers


def counts(replica):
    stats = ask(replica, "GET", "/stats")[1]
    return stats["accepted"], stats["refused"]


def test_requests_that_wait_are_served_together(hold):
    replica, pool = hold(batch_size=8)
    answers = queued(replica, pool, 9)

    (replica.folder / "hold").unlink()

    assert sorted(answer.result()[1]["batch"] for answer in answers) == [1] + [8] * 8
    assert ask(replica, "GET", "/stats")[1]["batches"] == 2


def test_a_full_queue_answers_429_and_its_depth_is_published(hold):
    replica, pool = hold(batch_size=1, max_queue=2)
    answers = queued(replica, pool, 8)

    assert replica.metrics()["inference_queue_depth"] == 3  # one in service, two wait
    (replica.folder / "hold").unlink()

    assert sorted(answer.result()[0] for answer in answers) == [200] * 3 + [429] * 5
    assert counts(replica) == (3, 5)
    assert replica.metrics()["inference_queue_depth"] == 0


def test_latency_counts_from_the_intended_time_where_the_sender_says_it(serve):
    replica = serve()

    for late_s in (30.0, -5.0, 4000.0):  # late; in the future; another clock's
        ask(replica, "POST", "/infer", headers={"X-Intended-Ns": str(time.time_ns() - round(late_s * 1e9))})
    ask(replica, "POST", "/infer", headers={"X-Intended-Ns": "yesterday"})
    replica.stop()

    latencies_s = [latency_ns / 1e9 for _, latency_ns in replica.latencies]
    assert latencies_s[0] > 30
    assert max(latencies_s[1:]) < 30


def test_a_client_that_is_cut_off_costs_the_others_nothing(serve):
    replica = serve("time.sleep(0.1)", batch_size=1)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", replica.status["scenario"]["port"])) as client:
            client.sendall(b"POST /infer HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            time.sleep(0.02)
    for cut_off in (
        b"POST /infer HTTP/1.1\r\nHo",
        b'POST /infer/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"inp',
    ):
        with socket.create_connection(("127.0.0.1", replica.status["scenario"]["port"])) as client:
            client.sendall(cut_off)
            client.shutdown(socket.SHUT_WR)
            client.recv(1)  # the server has noticed, and closes it too

    assert ask(replica, "POST", "/infer")[0] == 200
    assert replica.process.poll() is None
    assert replica.stop() == 0
    assert "Traceback" not in replica.log.read_text()


def test_sigterm_serves_what_waits_and_exits_0(hold):
    replica, pool = hold(batch_size=1)
    answers = queued(replica, pool, 5)

    threading.Timer(0.1, (replica.folder / "hold").unlink).start()
    code = replica.stop()

    assert (code, [answer.result()[0] for answer in answers]) == (0, [200] * 5)
    assert replica.status["phase"] == "stopped"
    assert len(replica.latencies) == 5


def test_what_cannot_be_served_before_the_deadline_is_turned_away(hold):
    replica, pool = hold(batch_size=1)
    answers = queued(replica, pool, 5)

    code = replica.stop()

    assert (code, [answer.result()[0] for answer in answers]) == (0, [503] * 5)
    assert replica.status["abandoned_requests"] == 1
    assert replica.latencies == []


def test_a_request_that_fails_ends_the_replica_with_its_error(serve):
    replica = serve("assert not __import__('os').path.exists('fail'), 'bad weights'")
    assert ask(replica, "POST", "/infer")[0] == 200
    (replica.folder / "fail").touch()

    assert ask(replica, "POST", "/infer")[0] == 503
    assert replica.process.wait(120) == 1
    assert "bad weights" in replica.last_line
