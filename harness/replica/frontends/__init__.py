"""Where the requests of a replica that is not its own client come from: LoadGen, an HTTP server, or the load of a user's server."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from harness.replica.errors import CannotBeMetError
from harness.replica.frontends.batching import BatchLedger, Passes
from harness.replica.metrics import RequestMetrics
from harness.replica.registry import Workload
from harness.replica.settings import Settings
from harness.traffic.records import RecordLog

REPORT_INTERVAL_S = 1.0


class Frontend(ABC):
    """Where requests come from."""

    name = "scenario"
    """Of its facts in ``replica.json``."""
    service_log: RecordLog | None = None

    @abstractmethod
    def run(self, stopping: threading.Event) -> None:
        """Serve, in the main thread, until ``stopping`` is set."""

    def hurry(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Told from any thread that the replica ends, so that nothing but what was asked before is waited for."""

    @abstractmethod
    def facts(self) -> Mapping[str, object]:
        """How far it has come, for ``replica.json``; called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Called once, after ``run``, however that ended."""

    def run_and_report(self, stopping: threading.Event, report: Callable[..., None]) -> None:
        """``run``, and its facts to ``report`` by their name, once a second and at the end; the logs are closed whatever happens."""
        over = threading.Event()

        def report_until_over() -> None:
            while not over.wait(REPORT_INTERVAL_S):
                report(**{self.name: self.facts()})

        reporter = threading.Thread(target=report_until_over, name="frontend-report", daemon=True)
        reporter.start()
        try:
            self.run(stopping)
        finally:
            over.set()
            reporter.join()  # it must not write any more where the load's results are taken away
            self.close()
            report(**{self.name: self.facts()})
            if self.service_log:
                self.service_log.close()


def of_scenario(
    settings: Settings, workload: Workload, metrics: RequestMetrics, phase: Callable[[], str]
) -> Frontend | None:
    """The frontend of the settings' scenario; None: the replica asks itself, in a closed loop.

    Raises CannotBeMetError: no request can meet the latency limit, the port is taken, or LoadGen is not there.
    """
    scenario, batch_size = settings.scenario, settings.batch_size
    if scenario is None:
        return None
    serve = Passes(workload, batch_size)
    pass_s = serve.fastest_s(batch_size)
    service_ms = 1e3 * (serve.fastest_s(1) if batch_size > 1 else pass_s)
    if scenario.open_loop and scenario.latency_limit_ms is not None and service_ms > scenario.latency_limit_ms:
        raise CannotBeMetError(
            f"SCENARIO: latency_limit_ms {scenario.latency_limit_ms:g} is below one service time ({service_ms:.3g} ms measured); "
            "no request can meet it: raise the limit."
        )
    ledger = BatchLedger(metrics, settings.replica_dir)
    if scenario.kind == "http":
        from harness.replica.frontends.serving import HttpFrontend

        return HttpFrontend(scenario, serve, ledger, host=settings.host, phase=phase)
    try:
        from harness.replica.frontends.loadgen import LoadGenFrontend
    except ModuleNotFoundError as error:
        raise CannotBeMetError(
            f"SCENARIO: {scenario.kind} needs LoadGen, and there is no module {error.name}; install mlcommons-loadgen."
        ) from error
    return LoadGenFrontend(settings, scenario, serve, ledger, pass_s=pass_s)
