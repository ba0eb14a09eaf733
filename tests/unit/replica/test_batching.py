"""Batches out of waiting requests, and what is counted of them."""

import threading
import time

import numpy as np
import pytest

from harness.replica.frontends.batching import Batcher, BatchLedger, Passes, Pending, Service, batch_sizes
from harness.replica.metrics import RequestMetrics
from harness.traffic.records import RecordLog

MS = 1_000_000


def pending(inputs=1, token=None):
    now_ns = time.perf_counter_ns()
    return Pending(inputs, now_ns, now_ns, token)


def batcher(max_inputs=4, max_wait_s=0.0, max_queue=None, on_depth=lambda _depth: None):
    return Batcher(max_inputs, max_wait_s, max_queue, on_depth)


def offered(queue, *inputs):
    return [queue.offer(pending(size, number)) for number, size in enumerate(inputs)]


def test_what_waits_is_served_together_up_to_the_largest_batch_and_in_order():
    queue = batcher(max_inputs=4)
    offered(queue, 1, 2, 2, 1, 9)

    taken = [[request.token for request in queue.take()] for _ in range(3)]

    assert taken == [[0, 1], [2, 3], [4]]  # 9 inputs are more than one batch: by itself


def test_a_lone_request_is_not_kept_waiting():
    queue = batcher()
    offered(queue, 1)

    assert len(queue.take()) == 1  # nobody else comes: a wait for company would have no end


def test_a_request_waits_for_company_as_long_as_it_may():
    queue = batcher(max_inputs=2, max_wait_s=600.0)
    offered(queue, 1)
    threading.Timer(0.05, offered, (queue, 1)).start()

    begun_s = time.perf_counter()
    assert len(queue.take()) == 2
    assert time.perf_counter() - begun_s < 60

    alone = batcher(max_inputs=2, max_wait_s=0.1)
    offered(alone, 1)
    begun_s = time.perf_counter()
    assert len(alone.take()) == 1
    assert time.perf_counter() - begun_s >= 0.09


def test_a_full_queue_refuses_and_takes_again_when_there_is_room():
    queue = batcher(max_inputs=4, max_queue=4)

    assert offered(queue, 1, 2, 2, 1) == [True, True, False, True]
    queue.take()
    assert queue.offer(pending(2))


def test_a_closed_queue_refuses_and_still_hands_out():
    queue = batcher()
    offered(queue, 1)
    queue.close()

    assert not queue.offer(pending())
    assert len(queue.take()) == 1


def test_what_was_not_served_is_returned_when_it_is_dropped():
    queue = batcher(max_inputs=1)
    offered(queue, 1, 1)
    queue.take()

    assert [request.token for request in queue.drop()] == [0, 1]
    assert queue.depth == 0


def test_depth_counts_what_waits_and_what_is_served():
    depths = []
    queue = batcher(max_inputs=2, on_depth=depths.append)
    offered(queue, 1, 1, 1)

    queue.take()
    assert queue.depth == 3
    queue.done()

    assert depths == [1, 2, 3, 1]


def test_an_empty_queue_lets_the_server_look_around():
    assert batcher().take() == ()


class Model:
    """Says what it is told to do; ``ahead``: it computes while others are begun."""

    def __init__(self, *, ahead=False, takes_s=0.0):
        self.ahead, self.said, self._takes_s = ahead, [], takes_s

    def begin(self, inputs):
        def wait():
            time.sleep(self._takes_s)
            self.said.append(f"wait {inputs}")

        self.said.append(f"begin {inputs}")
        return wait


class Kept:
    """A ledger that keeps when services began and ended."""

    def __init__(self):
        self.services = []

    def add(self, _request, start_ns, end_ns):
        self.services.append((start_ns, end_ns))


def test_a_full_batch_is_begun_while_the_one_before_is_computed_and_no_other():
    depths, model, kept, answered = [], Model(ahead=True, takes_s=0.002), Kept(), []
    queue = batcher(max_inputs=4, on_depth=depths.append)
    offered(queue, 4, 2, 2, 3)
    service = Service(queue, model, kept, lambda batch, *_: answered.append([one.token for one in batch]))

    assert [service.serve_next() for _ in range(3)] == [1, 2, 1]

    assert model.said == ["begin 4", "begin 4", "wait 4", "wait 4", "begin 3", "wait 3"]
    assert answered == [[0], [1, 2], [3]]
    assert depths == [1, 2, 3, 4, 3, 1, 0]
    ends = [end for _, end in kept.services]
    assert [start for start, _ in kept.services[1:3]] == [ends[0]] * 2, "the model was the first one's until then"
    assert queue.depth == 0


def test_what_is_begun_and_not_answered_is_turned_away_with_what_waits():
    queue = batcher(max_inputs=2)
    offered(queue, 2, 2, 1)
    Service(queue, Model(ahead=True), Kept(), lambda *_: None).serve_next()

    assert [request.token for request in queue.drop()] == [1, 2]
    assert queue.depth == 0


def test_latency_counts_from_the_intended_time_and_service_time_stands_beside_it(tmp_path):
    metrics = RequestMetrics(log=RecordLog(tmp_path / "latencies.bin"))
    ledger = BatchLedger(metrics, tmp_path)
    queue, model = batcher(), Model(takes_s=0.01)
    now_ns = time.perf_counter_ns()
    queue.offer(Pending(3, now_ns - 50 * MS, now_ns, None))

    assert Service(queue, model, ledger, lambda *_: None).serve_next() == 1
    for log in (metrics.log, ledger.service_log):
        log.close()
    latency, service = (np.fromfile(tmp_path / name, "<i8") for name in ("latencies.bin", "services.bin"))

    assert model.said == ["begin 3", "wait 3"]
    assert latency[1] >= 60 * MS
    assert 10 * MS <= service[1] < latency[1] - 45 * MS
    assert latency[0] + latency[1] == service[0] + service[1]
    assert metrics.requests == 1
    assert "inference_inputs_total 3\n" in metrics.render()
    assert f"inference_service_seconds_sum {service[1] / 1e9:.9f}" in metrics.render()


class Whole:
    """Serves whole batches only."""

    def __init__(self):
        self.passes = []

    def infer(self):
        self.passes.append("all")
        return 4


class Sized(Whole):
    def serve_up_to(self):
        def serve(inputs):
            self.passes.append(inputs)
            return inputs

        return serve


class Begins(Sized):
    def begin_up_to(self):
        def begin(inputs):
            self.passes.append(f"begin {inputs}")
            return lambda: self.passes.append(f"wait {inputs}")

        return begin


@pytest.mark.parametrize(
    ("workload", "batch_size", "inputs", "passes"),
    [
        (Whole(), 4, 3, ["all"]),
        (Whole(), 4, 9, ["all", "all", "all"]),
        (Sized(), 4, 9, [4, 4, 1]),
        (Sized(), 1, 2, ["all", "all"]),
        (Begins(), 4, 9, ["begin 4", "wait 4", "begin 4", "wait 4", "begin 1", "wait 1"]),
    ],
)
def test_inputs_are_served_in_as_few_passes_as_they_need(workload, batch_size, inputs, passes):
    serve = Passes(workload, batch_size)
    workload.passes.clear()

    serve(inputs)

    assert workload.passes == passes


def test_every_size_that_will_be_computed_was_computed_before_the_replica_is_ready():
    for batch_size in (1, 5, 64, 100):
        workload = Sized()
        serve = Passes(workload, batch_size)
        warmed = set(workload.passes)

        workload.passes.clear()
        for inputs in range(1, batch_size + 1):
            serve(inputs)

        assert set(workload.passes) <= warmed
    assert batch_sizes(100) == [1, 2, 4, 8, 16, 32, 64, 100]
