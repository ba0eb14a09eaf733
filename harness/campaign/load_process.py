"""The load generator beside an experiment whose replicas are HTTP servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.backends.orphans import CAMPAIGN_VARIABLE
from harness.backends.supervised import Lifeline, await_end
from harness.config import Arrivals, ExperimentSpec, ScenarioKind
from harness.errors import BackendError
from harness.results import layout
from harness.results.files import storage_errors
from harness.traffic.generator import LoadPlan
from harness.traffic.scenario_result import LOAD_LOG

STOP_S = 5.0
HOST = "127.0.0.1"
MAX_CLIENTS = 512
_ROOT = Path(__file__).resolve().parents[2]


class LoadProcess:
    """One generator, from the first request until it is stopped; it does not outlive the harness.

    Args:
        experiment: its scenario is http.
        folder: the attempt's.
        statuses: what each replica says of itself: it has the port of its server.
        campaign_id: marks the process, so that a later harness can find it.

    Raises:
        BackendError: a replica does not say where it serves, or the process cannot be started.
        StorageError: the plan cannot be written.
    """

    def __init__(
        self, experiment: ExperimentSpec, folder: Path, statuses: Sequence[Mapping[str, Any]], *, campaign_id: str
    ) -> None:
        scenario = experiment.workload.scenario
        assert scenario is not None  # noqa: S101 - needs_load
        assert scenario.rate is not None  # noqa: S101 - the campaign file's own check
        log = folder / LOAD_LOG
        plan = LoadPlan(
            targets=[(HOST, _port(status)) for status in statuses],
            rate=scenario.rate,
            log=str(log),
            arrivals=(scenario.arrivals or Arrivals.POISSON).value,
            seed=experiment.workload.seed * 1_000_003 + experiment.repeat,
            max_clients=scenario.max_clients or MAX_CLIENTS,
        )
        with storage_errors(log):
            log.parent.mkdir(exist_ok=True)
            path = log.with_name("plan.json")
            path.write_text(plan.to_json(), encoding="utf-8")
        self._lifeline = Lifeline()
        self._said = folder / layout.LOGS / "load-generator.log"
        try:
            self._guard = self._lifeline.start(
                [sys.executable, "-m", "harness.traffic", str(path)],
                log=self._said,
                environment={"PYTHONPATH": str(_ROOT), CAMPAIGN_VARIABLE: campaign_id},
            )
        except OSError as error:
            self._lifeline.cut()
            raise BackendError(
                f"the load generator could not be started: {error}.",
                advice="Check the limits on processes (ulimit -a).",
            ) from error

    def stop(self) -> list[str]:
        """End it and wait for its log; a sentence if it did not end well. Idempotent."""
        if self._guard.poll() is not None:
            code = self._guard.returncode
        else:
            self._guard.terminate()
            try:
                code = self._guard.wait(STOP_S)
            except subprocess.TimeoutExpired:
                code = None
        self._lifeline.cut()
        await_end(self._guard)
        if code == 0:
            return []
        try:
            said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:  # taken away with the folder
            said = []
        how = f"ended with {code}" if code is not None else f"did not end within {STOP_S:g} s"
        return [f"the load generator {how}: {said[-1] if said else 'it printed nothing'}."]


def needs_load(experiment: ExperimentSpec) -> bool:
    """Whether the replicas wait for requests from outside."""
    scenario = experiment.workload.scenario
    return scenario is not None and scenario.kind is ScenarioKind.HTTP


def _port(status: Mapping[str, Any]) -> int:
    port = status.get("scenario", {}).get("port")
    if not isinstance(port, int):
        raise BackendError(
            f"replica {status.get('replica')} does not say on which port it serves.",
            advice="Run scenario http with backend local.",
        )
    return port
