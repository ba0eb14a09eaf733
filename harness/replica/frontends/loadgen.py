"""MLPerf's LoadGen inside the replica: it makes the requests, times them, and judges its own test.

LoadGen runs in a thread of its own and hands over samples; the model runs in the main thread, as ever. What it
says is MLPerf-like and never an MLPerf result: the models, their weights and the durations are not MLPerf's.
One run is a settling test, the test that counts, and further ones of the same load until the replica is stopped.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen
import numpy as np

from harness.replica.frontends import Frontend
from harness.replica.frontends.batching import NS_PER_S, Batcher, BatchLedger, Passes, Pending, Service
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

SWITCH_INTERVAL_S = 0.0005
"""LoadGen's thread waits for the interpreter at most this long; Python's own 5 ms would be in every tail."""
MOST_OFFLINE_SAMPLES = 2_000_000
SAMPLES = 1024
_CHUNK = 4096
_KINDS = {
    "offline": loadgen.TestScenario.Offline,
    "server": loadgen.TestScenario.Server,
    "single-stream": loadgen.TestScenario.SingleStream,
    "multi-stream": loadgen.TestScenario.MultiStream,
}
_LOG_FILES = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
_USELESS_FILES = ("mlperf_log_accuracy.json", "mlperf_log_trace.json")


class LoadGenFrontend(Frontend):
    """Serves what LoadGen asks: load while the replica settles, then a test within the recording, then load as before.

    ``pass_s`` is what one full pass takes; LoadGen's own logs go into the replica's folder, where there is one.
    """

    def __init__(
        self,
        settings: Settings,
        scenario: ScenarioSpec,
        serve: Passes,
        ledger: BatchLedger,
        *,
        pass_s: float,
    ) -> None:
        times = settings.spec
        self._scenario, self._folder = scenario, settings.replica_dir
        self._serve, self._batch_size = serve, serve.batch_size
        self._ledger, self.service_log = ledger, ledger.service_log
        self._seed = settings.seed + settings.replica
        self._samples_per_s = serve.batch_size / pass_s
        self._settle_s = times.settle_s if times else 0.0
        self._test_s = scenario.test_s(times.record_s if times else 60.0)
        self._batcher = Batcher(serve.batch_size, (scenario.max_wait_ms or 0.0) / 1e3, None, ledger.on_depth)
        self._service = Service(self._batcher, serve, ledger, self._answer)
        self._offline: list[int] = []
        self._over = threading.Event()
        self._offsets_ns: Iterator[int] | None = None
        self._start_ns = 0
        self._round = ""
        self._issued = 0
        self._completed = 0
        self._results: dict[str, dict[str, Any]] = {}

    def facts(self) -> dict[str, object]:
        """How far it has come, and what LoadGen said of the tests that are over."""
        return {
            "kind": self._scenario.kind,
            "round": self._round,
            "issued": self._issued,
            "completed": self._completed,
            "waiting": self._batcher.depth,
            "rounds": self._results,
        }

    def run(self, stopping: threading.Event) -> None:
        """Serve test after test until ``stopping``."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for number, (name, duration_s) in enumerate(self._rounds()):
            if stopping.is_set():
                return
            self._round = name
            result = self._run_one(number, name, duration_s, stopping)
            if result and name in {"settle", "test"}:
                self._results[name] = result

    def close(self) -> None:
        """Nothing to close: what LoadGen still waits for is of no use to anybody, and its thread ends with the process."""

    def _rounds(self) -> Iterator[tuple[str, float]]:
        if self._settle_s > 0:
            yield "settle", self._settle_s
        yield "test", self._test_s
        yield from itertools.repeat(("after", self._test_s))

    def _run_one(self, number: int, name: str, duration_s: float, stopping: threading.Event) -> dict[str, Any]:
        """One test of LoadGen's; empty when it was stopped before its end."""
        self._over.clear()
        self._offline = []
        settings = self._settings(number, duration_s)
        if name == "settle":
            settings.min_query_count = self._batch_size  # nobody judges it, so it need not be long enough
        if self._scenario.kind == "server":
            self._offsets_ns = offsets_ns(settings.schedule_rng_seed, settings.server_target_qps)
            self._start_ns = sys.maxsize
        started_s = time.time()
        # In the replica's own folder where there is one: a killed replica leaves nothing in the machine's.
        with tempfile.TemporaryDirectory(prefix="loadgen-", dir=self._folder) as scratch:
            place = self._folder / "loadgen" / name if self._folder and name != "after" else Path(scratch)
            place.mkdir(parents=True, exist_ok=True)
            arguments = (settings, _log_settings(place))
            threading.Thread(target=self._run_loadgen, args=arguments, name="loadgen", daemon=True).start()
            begun_ns = time.perf_counter_ns()
            if self._scenario.kind == "offline":
                self._serve_offline(stopping)
            while not (stopping.is_set() or self._over.is_set()):
                self._service.serve_next()
            if not self._over.is_set():
                return {}
            elapsed_s = (time.perf_counter_ns() - begun_ns) / NS_PER_S
            for useless in _USELESS_FILES:
                (place / useless).unlink(missing_ok=True)
            return {"started_s": started_s, "duration_s": elapsed_s, **read_result(place)}

    def _run_loadgen(self, settings: Any, log: Any) -> None:
        # Samples are loaded already, and none is held back that could be flushed: the workload has its own inputs.
        library = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _samples: None, lambda _samples: None)
        # The fast one hands over numbers: 300,000 samples of Offline as objects hold up the interpreter, and the GPU, for 0.3 s.
        system = loadgen.ConstructFastSUT(self._issue, lambda: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, log, "")
        finally:
            loadgen.DestroyFastSUT(system)
            loadgen.DestroyQSL(library)
            self._over.set()
            self._batcher.nudge()

    def _issue(self, tokens: list[int], _indices: list[int]) -> None:
        """Called by LoadGen, from its own thread: take over the samples of one query, by what their answers are called."""
        now_ns = time.perf_counter_ns()
        self._issued += len(tokens)
        if self._scenario.kind == "offline":
            self._offline = tokens
            return
        self._batcher.offer(Pending(len(tokens), self._intended_ns(now_ns), now_ns, tokens))

    def _intended_ns(self, seen_ns: int) -> int:
        """Scheduled time of the next query, by the clock that it is seen with; the start is the earliest that any so far allows."""
        if self._offsets_ns is None:
            return seen_ns
        offset_ns = next(self._offsets_ns)
        self._start_ns = min(self._start_ns, seen_ns - offset_ns)  # a query is never seen before its time
        return self._start_ns + offset_ns

    def _serve_offline(self, stopping: threading.Event) -> None:
        """Serve all samples in full batches; the latency of one is its service time, as nobody waits for it.

        While LoadGen prepares its test or writes its log, full batches go on: they count for the recording, which would
        else measure LoadGen's pauses, and not for LoadGen's test.
        """
        first = begun_ns = 0
        while not (stopping.is_set() or self._over.is_set()):
            tokens = self._offline[first : first + self._batch_size]
            inputs = len(tokens) or self._batch_size
            self._ledger.on_depth(1)
            start_ns = time.perf_counter_ns()
            self._serve(inputs)
            end_ns = time.perf_counter_ns()
            self._ledger.on_depth(0)
            batch = Pending(inputs, start_ns, start_ns, tokens)
            if tokens:
                begun_ns = begun_ns or start_ns
                first += len(tokens)
                self._samples_per_s = first * NS_PER_S / (end_ns - begun_ns)
                self._answer([batch], start_ns, end_ns)
            self._ledger.add(batch, start_ns, end_ns)

    def _answer(self, batch: Sequence[Pending], _start_ns: int, _end_ns: int) -> None:
        tokens = [token for request in batch for token in request.token]  # type: ignore[attr-defined]
        self._completed += len(tokens)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(token, 0, 0) for token in tokens])

    def _settings(self, number: int, duration_s: float) -> Any:
        scenario, settings = self._scenario, loadgen.TestSettings()
        settings.scenario = _KINDS[scenario.kind]
        settings.mode = loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = max(1, round(duration_s * 1e3))
        settings.schedule_rng_seed = (self._seed * 1_000_003 + number) % 2**32
        settings.sample_index_rng_seed = settings.schedule_rng_seed
        if scenario.kind == "server":
            settings.server_target_qps = scenario.rate
            # LoadGen always has a limit; where the campaign has none, one that nothing breaks.
            limit_ms = scenario.latency_limit_ms or 3_600_000
            settings.server_target_latency_ns = round(limit_ms * 1e6)
        elif scenario.kind == "offline":
            most = MOST_OFFLINE_SAMPLES / 1.1 / duration_s
            settings.offline_expected_qps = min(self._samples_per_s, most)
            settings.min_query_count = self._batch_size
        else:
            expected_ns = scenario.inputs_per_query / self._samples_per_s * NS_PER_S
            settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = expected_ns
            settings.multi_stream_samples_per_query = scenario.inputs_per_query
        return settings


def read_result(folder: Path) -> dict[str, Any]:
    """What LoadGen's log says of a test: validity, reasons, rates and percentiles, under LoadGen's names."""
    results: dict[str, Any] = {}
    for line in (folder / _LOG_FILES[1]).read_text(encoding="utf-8").splitlines():
        if not line.startswith(":::MLLOG "):
            continue
        entry = json.loads(line.removeprefix(":::MLLOG "))
        if entry["key"].startswith(("result_", "early_stopping")):
            results[entry["key"].removeprefix("result_")] = entry["value"]
        elif entry["metadata"].get("is_error"):
            results.setdefault("errors", []).append(str(entry["value"]))
    return results


def _log_settings(folder: Path) -> Any:
    settings = loadgen.LogSettings()
    settings.log_output.outdir = str(folder)
    settings.log_output.copy_summary_to_stdout = False
    settings.enable_trace = False
    return settings


def offsets_ns(seed: int, rate: float) -> Iterator[int]:
    """When LoadGen means to send each query of its Server scenario, nanoseconds after the start of the test.

    It counts latency from those times and does not tell them to the system that serves. They follow from its seed:
    intervals of ``std::exponential_distribution`` over ``std::mt19937``, in whole nanoseconds, the first query at 0.
    """
    twister = np.random.RandomState(seed)  # LoadGen's generator, not a newer one
    at_ns = 0
    while True:
        words = twister.randint(0, 2**32, size=2 * _CHUNK, dtype=np.uint32).astype(np.float64)
        uniform = (words[0::2] + words[1::2] * 2.0**32) / 2.0**64
        for interval_ns in (-np.log(1.0 - uniform) / rate * NS_PER_S).astype(np.int64).tolist():
            yield at_ns
            at_ns += interval_ns
