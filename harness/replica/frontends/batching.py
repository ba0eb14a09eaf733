"""Requests that wait, and the batches made of them: where an open loop of arrivals meets one model."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.replica.custom_metrics import Histogram
from harness.replica.metrics import RequestMetrics
from harness.replica.registry import Workload
from harness.traffic.records import RecordLog

SERVICE_LOG_NAME = "services.bin"
IDLE_S = 0.1
PROBES = 3
EVERY_SIZE_UP_TO = 64
NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Pending:
    """One request; times are of ``time.perf_counter_ns``."""

    inputs: int
    intended_ns: int
    arrived_ns: int
    token: object


class Batcher:
    """A queue that hands out batches: as many requests as fit, as soon as there is no reason to wait longer.

    A single request with more than ``max_inputs`` is a batch by itself; of ``max_queue`` inputs that may wait, None is no limit.
    """

    def __init__(
        self, max_inputs: int, max_wait_s: float, max_queue: int | None, on_depth: Callable[[int], None]
    ) -> None:
        self._max_inputs = max_inputs
        self._max_wait_ns = round(max_wait_s * NS_PER_S)
        self._max_queue = max_queue
        self._on_depth = on_depth
        self._queue: deque[Pending] = deque()
        self._inputs = 0
        self._serving: deque[list[Pending]] = deque()
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def depth(self) -> int:
        """Requests that wait or are being served."""
        return len(self._queue) + sum(map(len, self._serving))

    def offer(self, request: Pending) -> bool:
        """Queue a request, from any thread; False when the queue is full or closed."""
        with self._changed:
            if self._closed or (self._max_queue is not None and self._inputs + request.inputs > self._max_queue):
                return False
            self._queue.append(request)
            self._inputs += request.inputs
            self._on_depth(self.depth)
            self._changed.notify()
            return True

    def take(self) -> Sequence[Pending]:
        """Wait for the next batch, which ``done`` must follow; empty after a tenth of a second, or a ``nudge``."""
        with self._changed:
            if not self._queue:
                self._changed.wait(IDLE_S)
            if not self._queue:
                return ()
            full_ns = self._queue[0].arrived_ns + self._max_wait_ns
            while self._inputs < self._max_inputs and not self._closed:
                left_ns = full_ns - time.perf_counter_ns()
                if left_ns <= 0 or not self._changed.wait(left_ns / NS_PER_S):
                    break
            return self._pop()

    def take_full(self) -> Sequence[Pending]:
        """Return the next batch, which another ``done`` must follow, if a full one waits; empty otherwise."""
        with self._changed:
            return self._pop() if self._queue and self._inputs >= self._max_inputs else ()

    def _pop(self) -> list[Pending]:
        batch = [self._queue.popleft()]
        inputs = batch[0].inputs
        while self._queue and inputs + self._queue[0].inputs <= self._max_inputs:
            batch.append(self._queue.popleft())
            inputs += batch[-1].inputs
        self._inputs -= inputs
        self._serving.append(batch)
        return batch

    def done(self) -> None:
        """The batch first taken is served."""
        with self._changed:
            self._serving.popleft()
            self._on_depth(self.depth)

    def nudge(self) -> None:
        """Let ``take`` return, for its caller to look around."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more requests; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drop(self) -> Sequence[Pending]:
        """Close, and return what was not served: the batches taken and not done, and what still waits."""
        with self._changed:
            self._closed = True
            dropped = [*itertools.chain(*self._serving), *self._queue]
            self._serving, self._queue, self._inputs = deque(), deque(), 0
            return dropped


def batch_sizes(largest: int) -> list[int]:
    """Sizes of batches that are formed: every one, and powers of two where there would be too many to warm up."""
    if largest <= EVERY_SIZE_UP_TO:
        return list(range(1, largest + 1))
    return sorted({min(2**power, largest) for power in range(largest.bit_length() + 1)})


class Passes:
    """Serves any number of inputs in passes of at most ``batch_size``.

    A workload that cannot serve part of a batch serves a whole one: it is padded. So is a batch of a size that is not
    among ``batch_sizes``, to the next one.
    """

    def __init__(self, workload: Workload, batch_size: int) -> None:
        self.batch_size = batch_size
        self._sizes = batch_sizes(batch_size)
        begins: Callable[[], Callable[[int], Callable[[], object]] | None] | None
        begins = getattr(workload, "begin_up_to", None)
        sized: Callable[[], Callable[[int], int]] | None = getattr(workload, "serve_up_to", None)
        begin = begins() if begins else None
        self._begin: Callable[[int], Callable[[], object]]
        self.ahead = begin is not None
        """Whether ``begin`` returns while the model still computes."""
        if begin is not None:
            self._begin = begin
        elif batch_size > 1 and sized is not None:
            one_pass = sized()
            self._begin = lambda inputs: functools.partial(one_pass, inputs)
        else:
            self._begin = lambda _inputs: workload.infer
        if sized is not None:  # the largest first: on a GPU the first of each costs tens of ms
            for inputs in reversed(self._sizes):
                self(inputs)

    def begin(self, inputs: int) -> Callable[[], object]:
        """Serve all passes but the last, and begin that; what is returned waits for it."""
        while inputs > self.batch_size:
            self._begin(self.batch_size)()
            inputs -= self.batch_size
        return self._begin(self._sizes[bisect_left(self._sizes, inputs)])

    def __call__(self, inputs: int) -> None:
        """Return when the results are there."""
        self.begin(inputs)()

    def fastest_s(self, inputs: int) -> float:
        """Seconds that so many inputs take, of a few tries the quickest."""
        durations_s = []
        for _ in range(PROBES):
            begun_s = time.perf_counter()
            self(inputs)
            durations_s.append(time.perf_counter() - begun_s)
        return min(durations_s)


class BatchLedger:
    """Books what was served: latency from the intended time, and beside it the time of the service from its beginning.

    ``services.bin`` in ``folder``, where there is one, is of the same form as ``latencies.bin``.
    """

    def __init__(self, metrics: RequestMetrics, folder: Path | None) -> None:
        self.metrics = metrics
        self.service_log = RecordLog(folder / SERVICE_LOG_NAME) if folder else None
        self._services = Histogram("inference_service_seconds", "Time that the model took for a request's batch.")
        metrics.publish(self._services)

    def on_depth(self, depth: int) -> None:
        """So many requests wait or are being served."""
        self.metrics.in_flight = depth

    def add(self, request: Pending, start_ns: int, end_ns: int) -> None:
        """Take one request that was served from ``start_ns`` to ``end_ns`` of ``time.perf_counter_ns``."""
        self.metrics.book(request.intended_ns, end_ns, request.inputs)
        self._services.observe(end_ns - start_ns)
        if self.service_log is not None:
            self.service_log.append(self.metrics.epoch_ns + start_ns, end_ns - start_ns)


Begun = tuple[Sequence[Pending], int, Callable[[], object]]
"""A batch that is being computed, since when, and what waits for it."""


class Service:
    """Serves what waits, batch after batch; where the model allows it, a full one is begun while the one before is computed."""

    def __init__(
        self,
        batcher: Batcher,
        serve: Passes,
        ledger: BatchLedger,
        answer: Callable[[Sequence[Pending], int, int], None],
    ) -> None:
        self._batcher, self._serve, self._ledger, self._answer = batcher, serve, ledger, answer
        self._begun: Begun | None = None
        self._last_end_ns = 0

    def serve_next(self) -> int:
        """Serve the next batch, if one comes soon; returns how many requests it had."""
        begun = self._begun or self._begin(self._batcher.take())
        if begun is None:
            return 0
        self._begun = self._begin(self._batcher.take_full()) if self._serve.ahead else None
        batch, begun_ns, wait = begun
        wait()
        end_ns = time.perf_counter_ns()
        # The model was the one before's until that was answered.
        start_ns, self._last_end_ns = max(begun_ns, self._last_end_ns), end_ns
        self._answer(batch, start_ns, end_ns)
        for request in batch:
            self._ledger.add(request, start_ns, end_ns)
        self._batcher.done()
        return len(batch)

    def _begin(self, batch: Sequence[Pending]) -> Begun | None:
        if not batch:
            return None
        start_ns = time.perf_counter_ns()
        return batch, start_ns, self._serve.begin(sum(request.inputs for request in batch))
