"""Replicas as real processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends.base import Finding, RecordingRequest, ReplicaDeath
from harness.backends.devices import device_environment, gpu_facts
from harness.backends.environment import workload_environment
from harness.backends.guarded import Lifeline
from harness.backends.local_check import check_machine
from harness.backends.mps import MpsDaemon, sweep_pipes
from harness.backends.stray import CAMPAIGN_VARIABLE, end_strays
from harness.clock import Clock, SystemClock
from harness.errors import BackendError, ReplicaDiedError
from harness.metrics.recorder import Recorder
from harness.metrics.sources import ReplicaTarget
from harness.metrics.telemetry import Telemetry
from harness.results import layout
from harness.results.manifest import Provenance
from harness.results.provenance import collect
from harness.spec import Device, ExperimentSpec, Sharing

POLL_S = 0.1
HEALTH_TIMEOUT_S = 2.0
LAST_LINES = 5
LAST_LINES_BYTES = 4096


class LocalBackend:
    """Starts one guarded process per replica; each takes a free port by itself.

    Args:
        campaign_id: marks every process of the campaign, so that a later harness can find strays.
        clock: real time; replicas do not live in any other.
    """

    name = "local"

    def __init__(self, campaign_id: str, *, clock: Clock | None = None) -> None:
        self._campaign_id = campaign_id
        self._clock = clock or SystemClock()

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Finding]:
        """Memory, GPU, factories and rivals for the experiments, looked at without starting anything."""
        return check_machine(experiments)

    def sweep(self) -> Sequence[str]:
        """End processes that carry this campaign's mark but have no harness."""
        ended = end_strays(self._campaign_id)
        sweep_pipes(self._campaign_id)
        return ended

    def rehearse(
        self,
        experiment: ExperimentSpec,  # noqa: ARG002 - the protocol's
        folder: Path,  # noqa: ARG002
        *,
        abort: threading.Event,  # noqa: ARG002
    ) -> Sequence[Finding]:
        """Nothing: what a replica of this machine shows is seen when it is deployed."""
        return ()

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
    ) -> LocalDeployment:
        """Start the replicas and return when each has served. See Backend.deploy."""
        deployment = LocalDeployment(experiment, folder, self._campaign_id, clock=self._clock)
        try:
            deployment.wait_ready(timeout_s=experiment.timing.ready_timeout_s, abort=abort)
            _refuse_silent_cpu(experiment, deployment.statuses())
        except BaseException:
            deployment.stop(timeout_s=experiment.timing.drain_timeout_s)
            raise
        deployment.watch(on_death)
        return deployment


@dataclass(slots=True)
class _Replica:
    index: int
    folder: Path
    log: Path
    guard: subprocess.Popen[bytes]
    served: bool = False


class LocalDeployment:
    """The processes of one experiment."""

    def __init__(self, experiment: ExperimentSpec, folder: Path, campaign_id: str, *, clock: Clock) -> None:
        self._clock = clock
        self._deaths: list[ReplicaDeath] = []
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._lifeline = Lifeline()
        self._replicas: list[_Replica] = []
        self._mps: MpsDaemon | None = None
        try:
            self._mps = self._start_mps(experiment, folder, campaign_id)
            shared = self._mps.replica_environment() if self._mps else {}
            for index in range(experiment.replicas):
                self._replicas.append(_start(experiment, index, folder, campaign_id, shared, self._lifeline))
        except OSError as error:
            self.stop(timeout_s=experiment.timing.drain_timeout_s)
            raise BackendError(
                f"replica {len(self._replicas)} could not be started: {error}.",
                advice="Check the limits on processes and memory (ulimit -a).",
            ) from error
        except BackendError:
            self.stop(timeout_s=experiment.timing.drain_timeout_s)
            raise

    def _start_mps(self, experiment: ExperimentSpec, folder: Path, campaign_id: str) -> MpsDaemon | None:
        if experiment.sharing is not Sharing.MPS:
            return None
        logs = layout.mps_logs(folder)
        return MpsDaemon(
            campaign_id, lifeline=self._lifeline, logs=logs, limits=experiment.mps, replicas=experiment.replicas
        )

    @property
    def targets(self) -> Sequence[ReplicaTarget]:
        """Where each replica's metrics are read."""
        return [
            ReplicaTarget(
                replica=index, pid=int(status["pid"]), metrics_url=f"http://127.0.0.1:{status['port']}/metrics"
            )
            for index, status in enumerate(self.statuses())
        ]

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far."""
        return tuple(self._deaths)

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What each replica wrote of itself; empty for one that has not."""
        return [_status(replica) for replica in self._replicas]

    def recording(self, request: RecordingRequest) -> Recorder:
        """The embedded recorder, on this machine's sources."""
        return Recorder(
            self.targets,
            metrics=request.metrics,
            step_s=request.timing.step_s,
            window_s=request.timing.window_s,
            sink=request.sink,
            clock=request.clock,
            wake=request.wake,
            on_tick=request.on_tick,
        )

    def telemetry(self, path: Path, *, interval_s: float) -> Telemetry:
        """NVML and this machine's CPU."""
        return Telemetry(path, interval_s=interval_s, clock=self._clock)

    def provenance(self) -> Provenance:
        """This machine."""
        return collect()

    def wait_ready(self, *, timeout_s: float, abort: threading.Event) -> None:
        """Return when every replica has served a request.

        Raises:
            ReplicaDiedError: one ended by itself.
            BackendError: one did not serve in time, or ``abort`` was set.
        """
        deadline_s = self._clock.now_s() + timeout_s
        while True:
            self._raise_if_dead()
            for replica in self._replicas:
                replica.served = replica.served or _has_served(replica)
            waiting = [replica for replica in self._replicas if not replica.served]
            if not waiting:
                if self._mps is not None:
                    self._mps.require_clients([target.pid for target in self.targets])
                return
            if self._clock.now_s() >= deadline_s:
                raise BackendError(
                    _not_ready(waiting, timeout_s), advice="Raise timing.ready_timeout_s, or look into the log."
                )
            if self._clock.wait_until(self._clock.now_s() + POLL_S, abort):
                raise BackendError("deploying was stopped before every replica had served.")

    def watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        """From here on notice each death within a fraction of a second and report it."""
        self._watcher = threading.Thread(target=self._watch, args=(on_death,), name="replica-watch", daemon=True)
        self._watcher.start()

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """SIGTERM, wait for the drain, then SIGKILL what is left; a sentence for each unclean end."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        dead = {death.replica for death in self._deaths}
        for replica in self._replicas:
            if replica.guard.poll() is None:
                replica.guard.terminate()
        deadline_s = self._clock.now_s() + timeout_s
        problems = []
        for replica in self._replicas:
            code = self._await_end(replica, deadline_s)
            if code is None:
                problems.append(f"replica {replica.index} did not drain within {timeout_s:g} s and was killed.")
            elif code != 0 and replica.index not in dead:
                problems.append(str(self._death(replica, code)))
        if self._mps is not None:
            problems += self._mps.stop()
            self._mps = None
        self._lifeline.cut()
        for replica in self._replicas:
            replica.guard.wait()
        return problems

    def _await_end(self, replica: _Replica, deadline_s: float) -> int | None:
        try:
            return replica.guard.wait(timeout=max(deadline_s - self._clock.now_s(), 0.01))
        except subprocess.TimeoutExpired:
            return None

    def _watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        known: set[int] = set()
        while not self._stopping.wait(POLL_S):
            for replica in self._replicas:
                code = replica.guard.poll()
                if code is not None and replica.index not in known:
                    known.add(replica.index)
                    self._deaths.append(self._death(replica, code))
                    on_death(self._deaths[-1])

    def _death(self, replica: _Replica, code: int) -> ReplicaDeath:
        return ReplicaDeath(replica.index, self._clock.now_s(), code, tuple(_last_lines(replica.log)))

    def _raise_if_dead(self) -> None:
        for replica in self._replicas:
            code = replica.guard.poll()
            if code is not None:
                raise ReplicaDiedError(
                    f"{self._death(replica, code)} (while starting; whole log: {replica.log}).",
                    advice=_START_ADVICE.get(
                        code, "Run the workload by itself to see why: python -m harness.workloads"
                    ),
                )


def _refuse_silent_cpu(experiment: ExperimentSpec, statuses: Sequence[Mapping[str, Any]]) -> None:
    """A replica that should find the GPU by itself, and did not, would be measured for hours on the CPU."""
    if experiment.workload.device is not Device.AUTO or experiment.workload.factory is not None:
        return
    gpus, _ = gpu_facts()
    on_cpu = [index for index, status in enumerate(statuses) if status.get("device") == "cpu"]
    if gpus and on_cpu:
        raise BackendError(
            f"replica {on_cpu[0]} runs on the CPU although this machine has a GPU ({gpus[0].name}).",
            advice="Check that torch sees it (python -c 'import torch; torch.cuda.init()'), or set device: cpu if this is wanted.",
        )


_START_ADVICE = {
    3: "Change the workload's device, factory or settings in the campaign file as the message says.",
    4: "Use fewer replicas, a smaller batch, or a machine with more memory.",
}


def _start(
    experiment: ExperimentSpec,
    index: int,
    folder: Path,
    campaign_id: str,
    shared: Mapping[str, str],
    lifeline: Lifeline,
) -> _Replica:
    own_folder = layout.replica_folder(folder, index)
    own_folder.mkdir(parents=True)
    log = layout.replica_log(folder, index)
    own = replica_environment(experiment, index, own_folder)
    environment = {**own, **device_environment(experiment, index), **shared, CAMPAIGN_VARIABLE: campaign_id}
    guard = lifeline.start([sys.executable, "-m", "harness.workloads"], log=log, environment=environment)
    return _Replica(index, own_folder, log, guard)


def replica_environment(experiment: ExperimentSpec, index: int, folder: Path) -> dict[str, str]:
    """The settings of one replica, as ``python -m harness.workloads`` reads them."""
    return {
        **workload_environment(experiment.workload),
        "HOST": "127.0.0.1",
        "PORT": "0",
        "REPLICA": str(index),
        "REPLICA_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(_import_paths()),
    }


def _import_paths() -> list[str]:
    """The harness itself first, then the folder it was started in (for a user's own workloads)."""
    own = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys(path for path in [own, str(Path.cwd()), *given] if path))


def _status(replica: _Replica) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((replica.folder / "replica.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return status


def _has_served(replica: _Replica) -> bool:
    status = _status(replica)
    if status.get("phase") != "serving":
        return False
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{status['port']}/health", timeout=HEALTH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False  # 503 until it has served, or not listening yet: asked again until the deadline


def _not_ready(waiting: Sequence[_Replica], timeout_s: float) -> str:
    first = waiting[0]
    said = " | ".join(_last_lines(first.log)) or "it printed nothing"
    phase = _status(first).get("phase", "starting")
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return f"replica {first.index}{others} did not serve within {timeout_s:g} s (phase {phase}); last lines: {said}."


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LAST_LINES_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()][-LAST_LINES:]
