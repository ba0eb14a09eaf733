"""The frontends of a replica that is not its own client: LoadGen's system under test, or an HTTP server."""

from __future__ import annotations

import functools
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from harness.replica.custom_metrics import Histogram
from harness.replica.errors import CannotBeMetError
from harness.replica.frontends.batching import BatchLedger, Serve
from harness.replica.metrics import RequestMetrics
from harness.replica.registry import Workload
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec
from harness.traffic.records import RecordLog

SERVICE_LOG_NAME = "services.bin"
PROBES = 3
EVERY_SIZE_UP_TO = 64
REPORT_INTERVAL_S = 1.0


class Frontend(Protocol):
    """Where requests come from."""

    def run(self, stopping: threading.Event) -> None:
        """Serve, in the main thread, until ``stopping`` is set."""
        ...

    def facts(self) -> Mapping[str, object]:
        """How far it has come, for ``replica.json``; called from any thread."""
        ...

    def close(self) -> None:
        """Called once, after ``run``, however that ended."""
        ...


class OpenFrontend:
    """A frontend whose requests do not come from the replica's own loop, and who reports it.

    Args:
        name: of its facts in ``replica.json``.
        service_log: times of the model alone; None: not kept.
        report: takes the facts, once a second and at the end.
    """

    def __init__(
        self,
        frontend: Frontend,
        *,
        name: str,
        service_log: RecordLog | None,
        report: Callable[[Mapping[str, object]], None],
    ) -> None:
        self.service_log = service_log
        self._frontend = frontend
        self._name = name
        self._report = report
        self._over = threading.Event()

    def facts(self) -> dict[str, object]:
        """How far it has come."""
        return {self._name: self._frontend.facts()}

    def run(self, stopping: threading.Event) -> None:
        """Serve until ``stopping``; the logs are closed whatever happens."""
        reporter = threading.Thread(target=self._report_until_over, name="frontend-report", daemon=True)
        reporter.start()
        try:
            self._frontend.run(stopping)
        finally:
            self._over.set()
            self._frontend.close()
            self._report(self.facts())
            if self.service_log:
                self.service_log.close()

    def _report_until_over(self) -> None:
        while not self._over.wait(REPORT_INTERVAL_S):
            self._report(self.facts())


def of_scenario(
    settings: Settings,
    workload: Workload,
    *,
    metrics: RequestMetrics,
    latency_log: RecordLog | None,
    phase: Callable[[], str],
    report: Callable[[Mapping[str, object]], None],
) -> OpenFrontend:
    """The frontend of the settings' scenario, with the model in passes and the logs.

    Raises:
        CannotBeMetError: the latency limit is below one service time, or the port is taken.
    """
    assert settings.scenario is not None  # noqa: S101 - the caller's promise
    serve = Passes(workload, settings.batch_size)
    warm_up(workload, serve, settings.batch_size)
    pass_s = _fastest_pass_s(serve, settings.batch_size)
    _refuse_hopeless(settings.scenario, _fastest_pass_s(serve, 1) if settings.batch_size > 1 else pass_s)
    services = Histogram("inference_service_seconds", "Time that the model took for a request's batch.")
    metrics.publish(services)
    folder = settings.replica_dir
    service_log = RecordLog(folder / SERVICE_LOG_NAME) if folder else None
    ledger = BatchLedger(metrics, services, latency_log, service_log)
    frontend = _make(settings, settings.scenario, serve, ledger, metrics, pass_s, phase, folder)
    return OpenFrontend(frontend, name="scenario", service_log=service_log, report=report)


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
        self._sizes, self._batch_size = batch_sizes(batch_size), batch_size
        begins: Callable[[], Callable[[int], Callable[[], object]] | None] | None
        begins = getattr(workload, "begin_up_to", None)
        sized: Callable[[], Callable[[int], int]] | None = getattr(workload, "serve_up_to", None)
        begin = begins() if begins else None
        self._begin: Callable[[int], Callable[[], object]]
        self.ahead = begin is not None
        if begin is not None:
            self._begin = begin
        elif batch_size > 1 and sized is not None:
            one_pass = sized()
            self._begin = lambda inputs: functools.partial(one_pass, inputs)
        else:
            self._begin = lambda _inputs: workload.infer

    def begin(self, inputs: int) -> Callable[[], object]:
        """Serve all passes but the last, and begin that; what is returned waits for it."""
        while inputs > self._batch_size:
            self._begin(self._batch_size)()
            inputs -= self._batch_size
        return self._begin(self._sizes[bisect_left(self._sizes, inputs)])

    def __call__(self, inputs: int) -> None:
        """Serve."""
        self.begin(inputs)()


def warm_up(workload: Workload, serve: Serve, batch_size: int) -> None:
    """Serve one batch of every size that will be computed, the largest first: on a GPU the first of each costs tens of ms."""
    if hasattr(workload, "serve_up_to"):
        for inputs in reversed(batch_sizes(batch_size)):
            serve(inputs)


def _fastest_pass_s(serve: Serve, inputs: int) -> float:
    durations_s = []
    for _ in range(PROBES):
        begun_s = time.perf_counter()
        serve(inputs)
        durations_s.append(time.perf_counter() - begun_s)
    return min(durations_s)


def _refuse_hopeless(scenario: ScenarioSpec, service_s: float) -> None:
    limit_ms = scenario.latency_limit_ms
    if scenario.open_loop and limit_ms is not None and service_s * 1e3 > limit_ms:
        raise CannotBeMetError(
            f"SCENARIO: latency_limit_ms {limit_ms:g} is below one service time ({service_s * 1e3:.3g} ms measured); "
            "no request can meet it: raise the limit."
        )


def _make(
    settings: Settings,
    scenario: ScenarioSpec,
    serve: Serve,
    ledger: BatchLedger,
    metrics: RequestMetrics,
    pass_s: float,
    phase: Callable[[], str],
    folder: Path | None,
) -> Frontend:
    def on_depth(depth: int) -> None:
        metrics.in_flight = depth

    if scenario.kind == "http":
        from harness.replica.frontends.serving import HttpFrontend

        return HttpFrontend(
            scenario,
            serve,
            batch_size=settings.batch_size,
            ledger=ledger,
            on_depth=on_depth,
            host=settings.host,
            phase=phase,
        )
    try:
        from harness.replica.frontends.loadgen import LoadGenFrontend
    except ModuleNotFoundError as error:
        raise CannotBeMetError(
            f"SCENARIO: {scenario.kind} needs LoadGen, and there is no module {error.name}; install mlcommons-loadgen."
        ) from error
    return LoadGenFrontend(
        scenario,
        serve,
        batch_size=settings.batch_size,
        ledger=ledger,
        on_depth=on_depth,
        seed=settings.seed + settings.replica,
        folder=folder,
        pass_s=pass_s,
        settle_s=settings.spec.settle_s if settings.spec else 0.0,
        record_s=settings.spec.record_s if settings.spec else 60.0,
    )
