"""The load of an experiment whose replicas are HTTP servers: a process beside the harness, or pods of the cluster."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.backends.base import Backend, RunningLoad
from harness.backends.local_replica import CAMPAIGN_VARIABLE, Lifeline, await_end
from harness.errors import BackendError
from harness.results import layout
from harness.results.files import storage_errors
from harness.results.requests import LOAD_LOG
from harness.spec import ExperimentSpec, ScenarioKind
from harness.traffic.generator import LoadPlan

STOP_S = 5.0
HOST = "127.0.0.1"
MAX_CLIENTS = 512
_ROOT = Path(__file__).resolve().parents[2]


def begin_load(
    backend: Backend,
    experiment: ExperimentSpec,
    folder: Path,
    statuses: Sequence[Mapping[str, Any]],
    *,
    campaign_id: str,
    abort: threading.Event,
) -> RunningLoad:
    """Have requests sent to the ports that the statuses name, until ``stop`` of what is returned. Raises BackendError and StorageError."""
    scenario = experiment.workload.scenario
    assert scenario is not None  # noqa: S101 - needs_load
    assert scenario.rate is not None  # noqa: S101 - the campaign file's own check
    there = any(status.get("pod_ip") for status in statuses)
    plan = LoadPlan(
        targets=[(str(status.get("pod_ip") or HOST), _port(status)) for status in statuses],
        rate=scenario.rate,
        log=str(folder / LOAD_LOG),
        arrivals=scenario.arrivals or "poisson",
        seed=experiment.workload.seed * 1_000_003 + experiment.repeat,
        max_clients=scenario.max_clients or MAX_CLIENTS,
        one_clock=not there,
    )
    with storage_errors(folder / LOAD_LOG):
        (folder / LOAD_LOG).parent.mkdir(parents=True, exist_ok=True)
        path = (folder / LOAD_LOG).with_name("plan.json")
        path.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    pods = backend.load_pods(experiment, folder, plan.model_dump_json(), abort=abort)
    return pods or LoadProcess(path, folder, campaign_id=campaign_id)


class LoadProcess:
    """One generator, from the first request until it is stopped; it does not outlive the harness. Raises BackendError."""

    def __init__(self, path: Path, folder: Path, *, campaign_id: str) -> None:
        self._lifeline, self._said = Lifeline(), folder / layout.LOGS / "load-generator.log"
        command = [sys.executable, "-m", "harness.traffic.generator", str(path)]
        # By the mark of the campaign a later harness finds it.
        environment = {"PYTHONPATH": str(_ROOT), CAMPAIGN_VARIABLE: campaign_id}
        try:
            self._guard = self._lifeline.start(command, log=self._said, environment=environment)
        except OSError as error:
            self._lifeline.cut()
            raise BackendError(
                f"the load generator could not be started: {error}.",
                advice="Check the limits on processes (ulimit -a).",
            ) from error

    def stop(self) -> list[str]:
        """End it and wait for its log; a sentence if it did not end well. Idempotent."""
        code: int | None = None
        if self._guard.poll() is None:
            self._guard.terminate()
        with suppress(subprocess.TimeoutExpired):
            code = self._guard.wait(STOP_S)
        self._lifeline.cut()
        await_end(self._guard)
        if code == 0:
            return []
        said = []
        with suppress(OSError):  # taken away with the folder
            said = self._said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
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
            advice="Its log shows more; a workload of your own has to leave the scenario to the replica.",
        )
    return port
