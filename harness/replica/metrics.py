"""A replica's requests, counted for ``/metrics`` and logged; and with them what its workload counts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping

from harness.replica.custom_metrics import BUCKET_BOUNDS_NS, Activity, Counter, Histogram, head
from harness.traffic.records import RecordLog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUESTS_HEAD = head("inference_requests_total", "counter", "Requests served since the end of the warm-up.")
_INPUTS_HEAD = head("inference_inputs_total", "counter", "Inputs served, as the workload counts them.")
_QUEUE_HEAD = head(
    "inference_queue_depth", "gauge", "Requests waiting or in flight; in the closed loop 1 while one runs, else 0."
)
_INFO_HEAD = head("inference_info", "gauge", "What this replica runs.")


class RequestMetrics(Histogram):
    """Latency histogram, counters, queue depth and log of one replica's requests.

    ``in_flight`` is published as the queue depth. In the closed loop the next request is made when the last one is
    answered, so it is 1 while a request runs and 0 between requests (in a pause, before and after); in a scenario,
    requests that wait are counted, too. ``log`` is ``latencies.bin``, where there is one.
    """

    def __init__(self, info: Mapping[str, str] | None = None, log: RecordLog | None = None) -> None:
        super().__init__("inference_latency_seconds", "Time from a request's start until its result is on the host.")
        self.in_flight = self.requests = self._inputs = 0
        self.log = log
        # Anchored once: a step of the wall clock in mid-run must not reorder requests.
        self.epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._families: tuple[Counter | Histogram | Activity, ...] = ()
        self.set_info(info or {})

    def publish(self, *families: Counter | Histogram | Activity) -> None:
        """Publish what the workload has of its own, too."""
        self._families += families

    def forget_warm_up(self) -> None:
        """Let the workload's own families count from now on."""
        for family in self._families:
            family.reset()

    def begin_load(self, *families: Counter | Histogram | Activity) -> None:
        """Count from 0, with the clocks as they are now, and publish these families alone besides."""
        with self._lock:
            self._counts, self._sum_ns = [0] * len(self._counts), 0
            self.in_flight = self.requests = self._inputs = 0
        self.epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._families = families
        self.forget_warm_up()

    def set_info(self, info: Mapping[str, str]) -> None:
        """Publish ``inference_info`` with these labels."""
        escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
        pairs = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in info.items())
        self._info = f"{_INFO_HEAD}inference_info{{{pairs}}} 1\n"

    def observe(self, duration_ns: int, inputs: int = 1) -> None:
        """Count one request that took so long and served ``inputs`` inputs."""
        with self._lock:
            self._counts[bisect_left(BUCKET_BOUNDS_NS, duration_ns)] += 1
            self._sum_ns += duration_ns
            self._inputs += inputs
            self.requests += 1

    def book(self, start_ns: int, end_ns: int, inputs: int) -> None:
        """Count and log one request, whose times are of ``time.perf_counter_ns``. Raises the OSError of an earlier write."""
        self.observe(end_ns - start_ns, inputs)
        if self.log is not None:
            self.log.append(self.epoch_ns + start_ns, end_ns - start_ns)

    def served(self) -> dict[str, object]:
        """Requests and inputs of the same instant, for ``replica.json``."""
        with self._lock:
            return {"requests": self.requests, "inputs": self._inputs}

    def render(self) -> str:
        """Return all metrics as one scrape sees them: histogram and counters of the same instant."""
        with self._lock:
            counts, sum_ns, inputs = self._counts.copy(), self._sum_ns, self._inputs
        own = "".join(family.render() for family in self._families)
        return (
            f"{self._lines(counts, sum_ns)}"
            f"{_REQUESTS_HEAD}inference_requests_total {sum(counts)}\n"
            f"{_INPUTS_HEAD}inference_inputs_total {inputs}\n"
            f"{_QUEUE_HEAD}inference_queue_depth {self.in_flight}\n"
            f"{own}{self._info}"
        )
