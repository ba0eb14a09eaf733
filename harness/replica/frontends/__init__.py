"""The frontends of a replica that is not its own client: LoadGen's system under test, or an HTTP server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from harness.replica.custom_metrics import Histogram
from harness.replica.errors import CannotBeMetError
from harness.replica.frontends.batching import BatchLedger, Passes
from harness.replica.metrics import RequestMetrics
from harness.replica.registry import Workload
from harness.replica.settings import Settings
from harness.traffic.records import RecordLog

SERVICE_LOG_NAME = "services.bin"
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
    """Runs a frontend and hands its facts to ``report``, once a second and at the end, under their name in ``replica.json``."""

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
    """The frontend of the settings' scenario. Raises CannotBeMetError: no request can meet the latency limit, or the port is taken."""
    scenario, folder, batch_size = settings.scenario, settings.replica_dir, settings.batch_size
    assert scenario is not None  # noqa: S101 - the caller's promise
    serve = Passes(workload, batch_size)
    pass_s = serve.fastest_s(batch_size)
    service_ms = 1e3 * (serve.fastest_s(1) if batch_size > 1 else pass_s)
    if scenario.open_loop and scenario.latency_limit_ms is not None and service_ms > scenario.latency_limit_ms:
        raise CannotBeMetError(
            f"SCENARIO: latency_limit_ms {scenario.latency_limit_ms:g} is below one service time ({service_ms:.3g} ms measured); "
            "no request can meet it: raise the limit."
        )
    services = Histogram("inference_service_seconds", "Time that the model took for a request's batch.")
    metrics.publish(services)
    service_log = RecordLog(folder / SERVICE_LOG_NAME) if folder else None
    ledger = BatchLedger(metrics, services, latency_log, service_log)
    frontend: Frontend
    if scenario.kind == "http":
        from harness.replica.frontends.serving import HttpFrontend

        frontend = HttpFrontend(scenario, serve, ledger, host=settings.host, phase=phase)
    else:
        try:
            from harness.replica.frontends.loadgen import LoadGenFrontend
        except ModuleNotFoundError as error:
            raise CannotBeMetError(
                f"SCENARIO: {scenario.kind} needs LoadGen, and there is no module {error.name}; install mlcommons-loadgen."
            ) from error
        frontend = LoadGenFrontend(
            scenario,
            serve,
            ledger,
            seed=settings.seed + settings.replica,
            folder=folder,
            pass_s=pass_s,
            settle_s=settings.spec.settle_s if settings.spec else 0.0,
            record_s=settings.spec.record_s if settings.spec else 60.0,
        )
    return OpenFrontend(frontend, name="scenario", service_log=service_log, report=report)
