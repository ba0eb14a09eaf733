"""A replica as whoever starts it sees it: a process, a port, two files and an exit code."""

import itertools
import json
import signal
import socket
import time
from pathlib import Path

import pytest

from harness.replica.registry import BUILTIN
from tests.integration.replica.conftest import OWN

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
TINY = '{"model_size": "tiny"}'
STARTED = {"data-parallel-training", "resnet50"}
"""By ``python -m``: one starts a second process in its own way, and one shows what a start imports by itself."""


def test_life_of_a_replica(start, own_source):
    replica = start(own_source(init="time.sleep(0.3)"), BATCH_SIZE="3", INFERENCE_SLEEP="0.001", REPLICA="4")
    replica.wait_for_phase("loading")
    assert replica.get("/health") == (503, '{"phase": "loading", "requests": 0}\n')
    assert replica.metrics()["inference_requests_total"] == 0
    replica.wait_until_ready()
    status = replica.status
    mapped = Path(f"/proc/{status['pid']}/maps").read_text()
    assert "libtorch" not in mapped, "a workload that needs no torch must not wait for it"
    assert status["pid"] == replica.process.pid
    assert (status["workload"], status["replica"], status["batch_size"], status["phase"]) == (
        "own:make",
        4,
        3,
        "serving",
    )
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] >= 50)
    before = replica.metrics()
    assert before["inference_inputs_total"] == 3 * before["inference_requests_total"]
    assert before["inference_latency_seconds_bucket"] == before["inference_requests_total"]
    code = replica.stop()
    assert (code, replica.status["phase"], replica.status["error"]) == (0, "stopped", "")
    assert len(replica.latencies) >= before["inference_requests_total"]
    assert (replica.status["requests"], replica.status["inputs"]) == (
        len(replica.latencies),
        3 * len(replica.latencies),
    )
    assert replica.last_line == f"replica: stopped after {len(replica.latencies)} requests"


def test_log_and_metrics_agree_on_count_and_sum(start, own_source):
    # After 40 requests it serves no more, so that both can be read at rest; only measured requests count.
    body = "self.served = getattr(self, 'served', 0) + 1; time.sleep(0.002 if self.served <= 43 else 600)"
    replica = start(own_source(infer=body), WARMUP_REQUESTS="3")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] == 40)
    replica.wait_for(lambda: len(replica.latencies) == 40)
    metrics = replica.metrics()
    assert metrics["inference_queue_depth"] == 1
    latencies = replica.latencies
    assert metrics["inference_latency_seconds_sum"] == pytest.approx(sum(ns for _, ns in latencies) / 1e9, abs=1e-8)
    assert all(0.002 <= ns / 1e9 < 60 for _, ns in latencies)
    assert all(start + ns <= following for (start, ns), (following, _) in itertools.pairwise(latencies))
    assert abs(latencies[-1][0] / 1e9 - time.time()) < 120


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_request_in_flight_is_finished_and_counted(start, own_source, number):
    replica = start(own_source(infer="time.sleep(0.5)"), WARMUP_REQUESTS="0")
    replica.wait_until_ready()
    time.sleep(0.1)
    served = replica.metrics()["inference_requests_total"]
    code = replica.stop(number)
    assert code == 0
    assert len(replica.latencies) >= served + 1
    assert replica.status["abandoned_requests"] == 0


@pytest.mark.parametrize(
    ("phase", "parts"),
    [
        ("loading", {"init": "time.sleep(600)"}),
        ("loading", {"init": "exec('while True: pass')"}),
        ("loading", {"init": "__import__('subprocess').run(['sleep', '600'])"}),
        ("loading", None),
        ("warming", {"infer": "time.sleep(600)"}),
    ],
    ids=["sleeps", "computes", "waits", "imports torch", "warms up"],
)
def test_a_signal_before_the_first_request_ends_it_at_once(start, own_source, phase, parts):
    replica = start(own_source(**parts)) if parts else start(WORKLOAD="resnet50", WORKLOAD_OPTIONS=TINY)
    replica.wait_for_phase(phase)
    time.sleep(0.2)
    assert (replica.stop(), replica.status["phase"]) == (0, "stopped")


def test_a_signal_in_the_pause_between_requests_ends_it_at_once(start, own_source):
    replica = start(own_source(), INFERENCE_SLEEP="600")
    replica.wait_until_ready()
    time.sleep(0.1)
    assert replica.metrics()["inference_queue_depth"] == 0
    code = replica.stop()
    assert code == 0
    assert len(replica.latencies) == 1


def test_a_request_that_takes_too_long_is_abandoned(start, own_source):
    slow = "time.sleep(0.001 if self.__dict__.setdefault('calls', []).append(1) or len(self.calls) < 9 else 600)"
    replica = start(own_source(infer=slow), WARMUP_REQUESTS="0")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] == 8)
    time.sleep(0.1)
    code = replica.stop()
    assert (code, replica.status["phase"], replica.status["abandoned_requests"]) == (0, "stopped", 1)
    assert len(replica.latencies) == 8, "what was measured is kept, what was abandoned is not counted"


def test_a_request_stuck_outside_python_is_left_behind_with_its_own_exit_code(start, own_source):
    # A lock of the C library taken twice waits for ever and is deaf to signals, as a hung driver call is.
    stuck = (
        "import ctypes; libc = ctypes.CDLL(None); lock = ctypes.create_string_buffer(64); "
        "self.__dict__.setdefault('calls', []).append(1); "
        "len(self.calls) > 5 and [libc.pthread_mutex_lock(lock) for _ in range(2)]"
    )
    replica = start(own_source(infer=stuck), WARMUP_REQUESTS="0")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] == 5)
    time.sleep(0.2)
    code = replica.stop()
    assert code == 5
    assert replica.status["phase"] == "stopped"
    assert "could not be stopped" in replica.status["error"]
    assert len(replica.latencies) == 5


@pytest.mark.parametrize(
    ("source", "environment", "code", "says"),
    [
        ("import nothing_like_this\n", {}, 1, "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("raise RuntimeError('broken at import')\n", {}, 1, "failed while loading: RuntimeError: broken at import"),
        ("raise SystemExit(0)\n", {}, 1, "failed while loading: SystemExit: 0"),
        ("def make(settings): raise MemoryError\n", {}, 4, "out of memory"),
        ("def other(settings): pass\n", {}, 3, "has no callable 'make'"),
        ("", {"WORKLOAD": "not_there:make"}, 3, "no module 'not_there'"),
        (OWN.format(init="pass", infer="pass"), {"REPLICA_SHARING": "own:join"}, 3, "REPLICA_SHARING: module own"),
        (OWN.format(init="pass", infer="return None"), {}, 3, "infer() of workload own must return the number"),
        (
            OWN.format(init="pass", infer="raise RuntimeError('CUDA out of memory. Tried to allocate 1 GiB.')"),
            {},
            4,
            "out of memory: CUDA out of memory. Tried to allocate 1 GiB. Use fewer replicas",
        ),
        ("", {"WORKLOAD": "resnet50", "DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}, 3, "DEVICE: cuda is demanded"),
    ],
)
def test_a_workload_that_cannot_start(start, with_torch, source, environment, code, says):
    replica = start(source, forked=with_torch if "CUDA_VISIBLE_DEVICES" in environment else None, **environment)
    assert replica.process.wait(120) == code
    assert replica.status["phase"] == "failed"
    assert says in replica.status["error"]
    assert replica.last_line == f"replica: {replica.status['error']}"


def test_a_request_that_fails_ends_the_replica_and_keeps_the_others(start, own_source):
    body = "self.__dict__.setdefault('calls', []).append(1); assert len(self.calls) < 9, 'ninth request'"
    replica = start(own_source(infer=body), WARMUP_REQUESTS="2")
    assert replica.process.wait(120) == 1
    assert replica.status["error"] == "workload failed while serving: AssertionError: ninth request"
    assert len(replica.latencies) == 6
    assert "Traceback" in replica.log.read_text()


JOINS = """
    def describe(self):
        return {"multiprocessors": 132, "device": "cuda"}
joined = []
def join():
    joined.append(True)
    return {"multiprocessors": 40}
def make(settings):
    assert joined
    return Own(settings)
"""


def test_what_the_sharing_mode_asks_is_done_first_and_has_the_last_word(start, own_source):
    """What a workload says of the whole GPU is not what the process has of it."""
    replica = start(own_source().partition("def make")[0] + JOINS, REPLICA_SHARING="own:join")
    replica.wait_until_ready()
    assert (replica.status["multiprocessors"], replica.status["device"]) == (40, "cuda")


def test_a_wrong_setting_is_one_line(start):
    replica = start(BATCH_SIZE="none")
    assert replica.process.wait(120) == 2
    assert replica.log.read_text() == "replica: BATCH_SIZE: must be a whole number (found 'none').\n"


def test_a_taken_port(start, own_source):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        replica = start(own_source(), PORT=str(taken.getsockname()[1]))
        assert replica.process.wait(120) == 3
    assert "Address already in use; choose another HOST or PORT" in replica.status["error"]


def test_a_folder_that_cannot_be_written(start, tmp_path, own_source):
    (tmp_path / "file").touch()
    replica = start(own_source(), REPLICA_DIR=str(tmp_path / "file" / "below"))
    assert replica.process.wait(120) == 3
    assert "REPLICA_DIR: cannot write in" in replica.last_line


def test_without_a_folder_it_serves_all_the_same(start, own_source):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    replica = start(own_source(), REPLICA_DIR="", PORT=str(port))
    replica.wait_for(lambda: "serving" in replica.log.read_text())
    assert replica.stop() == 0
    assert not (replica.folder / "latencies.bin").exists()


def test_the_example_of_the_documentation_runs_as_it_says(start):
    source = (REPOSITORY / "examples" / "own_workload" / "word_count.py").read_text()
    replica = start(source, WORKLOAD="own:make", BATCH_SIZE="2", WORKLOAD_OPTIONS='{"words_per_text": 50}')
    replica.wait_until_ready()
    assert replica.status["device"] == "cpu"
    assert replica.metrics()["inference_inputs_total"] >= 2
    assert replica.stop() == 0


SESSION = """
from harness.replica.custom_metrics import Activity, Counter
import time
class Session:
    name, served = "session", 0
    def __init__(self):
        self.activity = Activity()
        self.words = Counter("inference_words_total", "Words.")
    def infer(self):
        self.served += 1
        self.activity.enter("active")
        time.sleep(0.01)
        self.activity.enter("idle")
        self.words.add(7)
        return 1
    def published(self):
        return (self.activity, self.words)
    def outcome(self):
        return {"words": self.words.count}
    def think_s(self):
        return 60 if self.served == 15 else 0.02
def make(settings):
    return Session()
"""


def test_thinking_is_no_latency_and_what_a_workload_publishes_begins_after_the_warm_up(start):
    replica = start(SESSION, WARMUP_REQUESTS="5")
    replica.wait_until_ready()
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] == 10)
    metrics = replica.metrics()
    assert metrics["inference_words_total"] == 70
    assert metrics["inference_idle_seconds_total"] >= 9 * 0.02
    # Between the two a busy machine may run somebody else; all of the thinking would be more.
    beyond_s = metrics["inference_latency_seconds_sum"] - metrics["inference_active_seconds_total"]
    assert -0.001 < beyond_s < 0.9 * metrics["inference_idle_seconds_total"]
    assert replica.metrics()["inference_idle_seconds_total"] > metrics["inference_idle_seconds_total"]
    assert json.loads(replica.get("/status")[1])["words"] == 70
    code = replica.stop()
    assert (code, replica.status["words"]) == (0, 70)


@pytest.mark.parametrize("workload", BUILTIN)
def test_built_in_workloads_serve(start, with_torch, workload):
    forked = None if workload in STARTED else with_torch
    replica = start(WORKLOAD=workload, WORKLOAD_OPTIONS=TINY, BATCH_SIZE="2", PRECISION="bf16", forked=forked)
    replica.wait_until_ready()
    status = replica.status
    assert (status["device"], status["precision"], status["torch"] is not None) == ("cpu", "bf16", True)
    assert status["parameters"] > 1000
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] >= 5)
    code = replica.stop()
    assert (code, replica.status["phase"]) == (0, "stopped")
    assert "Warning" not in replica.log.read_text()


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("bert-training", {"BATCH_SIZE": "2"}),
        ("whisper", {"WORKLOAD_OPTIONS": '{"new_tokens": 440}'}),
    ],
)
def test_a_signal_in_the_middle_of_a_long_request_ends_it_in_time(start, with_torch, workload, options):
    """At full size a step takes seconds on a CPU: it is finished soon, or abandoned between two layers."""
    replica = start(WORKLOAD=workload, WARMUP_REQUESTS="0", forked=with_torch, **options)
    replica.wait_for_phase("serving", timeout_s=120)
    time.sleep(0.5)
    code = replica.stop()
    assert (code, replica.status["phase"], replica.status["error"]) == (0, "stopped", "")
    assert len(replica.latencies) + replica.status["abandoned_requests"] >= 1


def test_a_training_that_fails_says_at_which_step(start, with_torch):
    options = '{"model_size": "tiny", "tokens": 8, "learning_rate": 1.0e30}'
    replica = start(WORKLOAD="bert-training", WORKLOAD_OPTIONS=options, BATCH_SIZE="2", forked=with_torch)
    assert replica.process.wait(120) == 1
    assert replica.last_line.startswith("replica: the loss of training step ")


def test_a_compiled_workload_serves(start, with_torch):
    # It is told that there are no vector instructions: to look for them takes a compiler ten seconds.
    told = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    replica = start(WORKLOAD="mnist", EXECUTION="compiled", **told, forked=with_torch)
    replica.wait_until_ready(timeout_s=240)
    replica.wait_for(lambda: replica.metrics()["inference_requests_total"] >= 5)
    assert replica.stop() == 0


def test_a_replica_with_a_time_to_run_ends_by_itself_and_can_be_asked_for_its_results(start, own_source):
    replica = start(own_source(infer="time.sleep(0.002)"), RUN_SECONDS="0.3", LINGER_SECONDS="30")
    replica.wait_for_phase("finished")

    served = replica.metrics()["inference_requests_total"]
    assert served > 10
    assert replica.get("/health")[0] == 503
    assert json.loads(replica.get("/status")[1])["phase"] == "finished"
    assert len(replica.latencies) == served
    code = replica.stop()
    assert (code, replica.status["phase"]) == (0, "stopped")


def test_a_time_to_run_without_a_stay_ends_with_0(start, own_source):
    replica = start(own_source(infer="time.sleep(0.002)"), RUN_SECONDS="0.2")

    assert replica.process.wait(120) == 0
    assert replica.status["phase"] == "stopped"
