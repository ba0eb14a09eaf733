"""Replicas as real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import supervisor
from harness.backends.base import KILLED_FOR_MEMORY, Backend, Deployment, ReplicaDeath, start_advice
from harness.backends.devices import device_environment, device_here, in_use, nvml_names_our_processes, used_gpus
from harness.backends.forked import ForkServer
from harness.backends.local_check import check_machine
from harness.backends.local_replica import (
    CAMPAIGN_VARIABLE,
    Lifeline,
    LocalReplica,
    ReplicaSlot,
    await_end,
    end_strays,
    import_paths,
    replica_slots,
    slots_with_cpus,
)
from harness.cgroup import Cgroup
from harness.clock import Clock, SystemClock
from harness.errors import BackendError, Issue, ReasonCode, ReplicaDiedError
from harness.metrics.nvml import NvmlGpus, gpu_facts
from harness.metrics.recorder import Recorder, ReplicaTarget
from harness.metrics.rows import RecordingRequest
from harness.metrics.telemetry import Telemetry, described
from harness.results import layout
from harness.results.manifest import Provenance
from harness.results.provenance import collect
from harness.sharing.mode import Notify, SharingSetup, ThisMachine, unheard
from harness.sharing.modes import MODES, mode_of
from harness.spec import Device, ExperimentSpec, Timing
from harness.spec.condition import crashing
from harness.spec.replica import OF_ITS_START, VARIABLE, ReplicaSpec

POLL_S = 0.1
ON_GPU_WITHIN_S = 10.0
"""A server that has answered a request has computed by then."""


class LocalBackend(Backend):
    """Starts one guarded process per replica, each with the campaign's mark; it takes a free port by itself."""

    name = "local"

    def __init__(self, campaign_id: str) -> None:
        self._campaign_id = campaign_id
        self._clock = SystemClock()
        self._fork_servers: dict[str, ForkServer] = {}

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Issue]:
        """Memory, GPU, factories and rivals for the experiments, looked at without starting anything."""
        return check_machine(experiments)

    def sweep(self) -> Sequence[str]:
        """End processes that carry this campaign's mark but have no harness."""
        ended = end_strays(self._campaign_id)
        for mode in MODES.values():
            mode.sweep(self._campaign_id)
        return ended

    def close(self) -> Sequence[str]:
        """End what forks replicas."""
        for server in self._fork_servers.values():
            server.close()
        self._fork_servers.clear()
        return ()

    def _forks(self, slot: ReplicaSlot, timing: Timing) -> ForkServer | None:
        """What forks this replica; None: it starts as a new process."""
        name = slot.workload.target
        if timing.start != "forked" or slot.layer is not None or not slot.workload.can_fork:
            return None
        if name not in self._fork_servers:
            environment = {"PYTHONPATH": import_paths(), CAMPAIGN_VARIABLE: self._campaign_id, **OF_ITS_START}
            self._fork_servers[name] = ForkServer(name, environment)
        server = self._fork_servers[name]
        return server if server.ready else None

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,  # noqa: ARG002 - nothing that it waits for comes from others
    ) -> LocalDeployment:
        """Start the replicas and return when each has served. See Backend.deploy."""
        return self._started(experiment, folder, abort, on_death, waiting=False)

    def start(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,  # noqa: ARG002 - as above
    ) -> LocalDeployment:
        """Start the replicas and return when each waits for a load. See Backend.start."""
        return self._started(experiment, folder, abort, on_death, waiting=True)

    def _started(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        *,
        waiting: bool,
    ) -> LocalDeployment:
        deployment = LocalDeployment(
            experiment, folder, self._campaign_id, clock=self._clock, forks=self._forks, waiting=waiting
        )
        try:
            deployment.wait_ready(timeout_s=experiment.timing.ready_timeout_s, abort=abort)
            deployment.refuse_what_was_not_asked_for()
        except BaseException:
            deployment.stop(timeout_s=experiment.drain_timeout_s)
            raise
        deployment.watch(on_death)
        return deployment


class LocalDeployment(Deployment):
    """The processes of one experiment: the measured replicas, and its neighbours; ``waiting``: for one load after another."""

    def __init__(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        campaign_id: str,
        *,
        clock: Clock,
        forks: Callable[[ReplicaSlot, Timing], ForkServer | None],
        waiting: bool = False,
    ) -> None:
        self._experiment = experiment
        self._campaign_id = campaign_id
        self._clock = clock
        self._waiting = waiting
        self._deaths: list[ReplicaDeath] = []
        self._oom_kills = Cgroup().counters().oom_kills
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._lifeline = Lifeline()
        self._replicas: list[LocalReplica] = []
        self._sharing = SharingSetup()
        with closing(NvmlGpus()) as gpus:  # before anything of ours is on them
            self._idle_power = gpus.idle_power()
        try:
            self._sharing = mode_of(experiment.sharing).set_up(
                ThisMachine(campaign_id, self._lifeline, {CAMPAIGN_VARIABLE: campaign_id}, layout.mps_logs(folder)),
                gpus=used_gpus(experiment),
                limits=experiment.mps,
                replicas_per_gpu=experiment.replicas_per_gpu,
            )
            for position, slot in enumerate(slots_with_cpus(experiment, folder)):
                environment = {
                    **replica_environment(slot, experiment.timing),
                    **device_environment(experiment, position),
                    **self._sharing.environment(position),
                    CAMPAIGN_VARIABLE: campaign_id,
                    **({"REPLICA_LOADS": "1"} if waiting else {}),
                }
                forked_by = forks(slot, experiment.timing)
                self._replicas.append(LocalReplica(slot, environment, self._lifeline, forked_by))
        except OSError as error:
            self.stop(timeout_s=experiment.drain_timeout_s)
            raise BackendError(
                f"{replica_slots(experiment, folder)[len(self._replicas)].name} could not be started: {error}.",
                advice="Check the limits on processes and memory (ulimit -a).",
            ) from error
        except BackendError:
            self.stop(timeout_s=experiment.drain_timeout_s)
            raise

    @property
    def targets(self) -> Sequence[ReplicaTarget]:
        """Where each replica's metrics are read, neighbours included."""
        return [replica.target() for replica in self._replicas]

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far."""
        return tuple(self._deaths)

    def statuses(self) -> Sequence[Mapping[str, Any]]:
        """What each measured replica wrote of itself; empty for one that has not."""
        return [replica.status() for replica in self._replicas if not replica.slot.neighbour]

    def neighbour_statuses(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What the replicas of each neighbour wrote of themselves."""
        statuses: dict[str, list[Mapping[str, Any]]] = {}
        for replica in self._replicas:
            if replica.slot.neighbour:
                statuses.setdefault(replica.slot.neighbour, []).append(replica.status())
        return statuses

    def begin(self, experiment: ExperimentSpec, folder: Path, *, abort: threading.Event) -> None:
        """Have the replicas serve a load. See Deployment.begin."""
        self._experiment, self._waiting = experiment, False
        self._raise_if_dead()
        for replica in self._replicas:
            slot = replace(replica.slot, workload=experiment.workload, folder=folder)
            replica.begin(slot, ReplicaSpec.timed(experiment.workload, experiment.timing))
        self.wait_ready(timeout_s=experiment.timing.ready_timeout_s, abort=abort)

    def finish(self, *, timeout_s: float) -> str:
        """End the load. See Deployment.finish."""
        for replica in self._replicas:
            replica.finish()
        deadline_s = self._clock.now_s() + timeout_s
        while not self._deaths:
            unfinished = [replica for replica in self._replicas if replica.status().get("phase") != "finished"]
            if not unfinished:
                busy = [it.slot.name for it in self._replicas if not it.status().get("load", {}).get("idle", True)]
                return f"{busy[0]} did not answer all requests within {timeout_s:g} s" if busy else ""
            if self._clock.now_s() >= deadline_s:
                return f"{unfinished[0].slot.name} did not end its load within {timeout_s:g} s"
            self._clock.wait_until(self._clock.now_s() + POLL_S)
        return self._deaths[0].brief

    def recording(self, request: RecordingRequest) -> Recorder:
        """The embedded recorder, on this machine's sources."""
        return Recorder(self.targets, request, used_gpus=self._gpus_in_use())

    def telemetry(self, path: Path) -> Telemetry:
        """NVML, of the GPUs in use, and this machine's CPU."""
        source = NvmlGpus(used=self._gpus_in_use(), activity=True)
        interval_s = self._experiment.timing.telemetry_interval_s
        devices = described(source.uuids, self._idle_power)
        return Telemetry(path, interval_s=interval_s, clock=self._clock, source=source, devices=devices)

    def _gpus_in_use(self) -> frozenset[str]:
        """UUIDs of the GPUs that replicas and neighbours are on."""
        return in_use(self._experiment, [(device_here(it.slot.workload), it.status()) for it in self._replicas])

    def provenance(self) -> Provenance:
        """This machine."""
        return collect()

    def wait_ready(self, *, timeout_s: float, abort: threading.Event) -> None:
        """Return when every replica has served a request, or waits for a load. Raises ReplicaDiedError, BackendError."""
        deadline_s = self._clock.now_s() + timeout_s
        while True:
            self._raise_if_dead()
            for replica in self._replicas:
                replica.served = replica.served or (replica.waits() if self._waiting else replica.has_served())
            waiting = [replica for replica in self._replicas if not replica.served]
            if not waiting:
                self._sharing.require_clients([(replica.slot.name, replica.gpu_pids()) for replica in self._replicas])
                return
            if self._clock.now_s() >= deadline_s:
                raise BackendError(
                    _not_ready(waiting, timeout_s), advice="Raise timing.ready_timeout_s, or look into the log."
                )
            if self._clock.wait_until(self._clock.now_s() + POLL_S, abort):
                raise BackendError("deploying was stopped before every replica had served.")

    def refuse_what_was_not_asked_for(self) -> None:
        """Raise BackendError when a replica runs without its layer, or on the CPU where it should be on a GPU."""
        for replica in self._replicas:
            replica.require_layer()
            replica.require_cpus()
            _refuse_silent_cpu(replica)
            workload = replica.slot.workload
            # A client of MPS has been seen on the GPU already, and drivers do not agree how NVML lists it.
            if not self._sharing.seen_on_gpu and workload.server and workload.device is Device.CUDA:
                self._require_on_gpu(replica)

    def _require_on_gpu(self, replica: LocalReplica) -> None:
        """Raise BackendError for a server of which NVML shows no process; nothing where it cannot show any."""
        deadline_s = self._clock.now_s() + ON_GPU_WITHIN_S
        while nvml_names_our_processes():
            gpus, _ = gpu_facts()
            if not replica.gpu_pids().isdisjoint(pid for gpu in gpus for pid in gpu.processes):
                return
            if self._clock.now_s() >= deadline_s:
                raise BackendError(
                    f"the server of {replica.slot.name} answers requests, and none of its processes is on a GPU, although "
                    f"the workload {replica.slot.workload.name} asks for device cuda.",
                    advice=f"See why in {replica.log.parent}, or set device: cpu if this is wanted.",
                    code=ReasonCode.NOT_ON_GPU,
                )
            self._clock.wait_until(self._clock.now_s() + POLL_S)

    def watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        """From here on notice each death within a fraction of a second and report it."""
        self._watcher = threading.Thread(target=self._watch, args=(on_death,), name="replica-watch", daemon=True)
        self._watcher.start()

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """SIGTERM, wait for the drain, then SIGKILL what is left; a sentence for each unclean end."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        dead = {(death.neighbour, death.replica) for death in self._deaths}
        for replica in self._replicas:
            replica.terminate()
        deadline_s = self._clock.now_s() + timeout_s
        problems = []
        for replica in self._replicas:
            code = None
            with suppress(subprocess.TimeoutExpired):
                code = replica.guard.wait(timeout=max(deadline_s - self._clock.now_s(), 0.01))
            if code is None:
                problems.append(f"{replica.slot.name} did not drain within {timeout_s:g} s and was killed.")
            elif code != 0 and (replica.slot.neighbour, replica.slot.index) not in dead:
                death = self._death(replica, code)
                # One that was to crash took those with it who were noticed first.
                if death.neighbour in crashing(self._experiment.condition):
                    self._deaths.append(death)
                else:
                    problems.append(str(death))
        problems += self._sharing.put_back()
        self._lifeline.cut()
        codes = [await_end(replica.guard) for replica in self._replicas]
        if min(codes, default=0) < 0:
            end_strays(self._campaign_id)  # a guard that was killed itself has left what made a session of its own
        return problems

    def _watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        alive = list(self._replicas)
        while not self._stopping.wait(POLL_S):
            for replica in list(alive):
                code = replica.guard.poll()
                if code is not None:
                    alive.remove(replica)
                    self._deaths.append(self._death(replica, code))
                    on_death(self._deaths[-1])

    def _death(self, replica: LocalReplica, code: int) -> ReplicaDeath:
        slot, said, reason = replica.slot, tuple(replica.last_lines()), self._killed_for_memory(code)
        return ReplicaDeath(slot.index, self._clock.now_s(), code, said, reason, slot.neighbour)

    def _killed_for_memory(self, code: int) -> str:
        """Why, where the kernel has killed for want of memory since the last death; empty: it has not."""
        kills = Cgroup().counters().oom_kills
        killed = code in {-signal.SIGKILL, 128 + signal.SIGKILL} and (kills or 0) > (self._oom_kills or 0)
        self._oom_kills = kills
        limit = Cgroup().limits().memory_bytes
        whose = "memory of the machine" if limit is None else f"cgroup limit {limit / 1e9:.1f} GB"
        return f"{KILLED_FOR_MEMORY} ({whose})" if killed else ""

    def _raise_if_dead(self) -> None:
        for replica in self._replicas:
            code = replica.guard.poll()
            if code is not None:
                death = self._death(replica, code)
                raise ReplicaDiedError(
                    f"{death} (while starting; whole log: {replica.log}).",
                    advice=start_advice(code, "machine"),
                    code=death.code,
                )


def _refuse_silent_cpu(replica: LocalReplica) -> None:
    """A replica that should find the GPU by itself, and did not, would be measured for hours on the CPU."""
    workload = replica.slot.workload
    if workload.device is not Device.AUTO or workload.own or replica.status().get("device") != "cpu":
        return
    gpus, _ = gpu_facts()
    if gpus:
        raise BackendError(
            f"{replica.slot.name} runs on the CPU although this machine has a GPU ({gpus[0].name}).",
            advice="Check that torch sees it (python -c 'import torch; torch.cuda.init()'), or set device: cpu if this is wanted.",
        )


def replica_environment(slot: ReplicaSlot, timing: Timing) -> dict[str, str]:
    """The settings of one replica, as ``python -m harness.replica`` reads them."""
    place = {
        "HOST": "127.0.0.1",
        "PORT": "0",
        "REPLICA": str(slot.index),
        "REPLICA_DIR": str(layout.replica_folder(slot.folder, slot.index)),
        "PYTHONPATH": import_paths(),
        **({"REPLICA_CPUS": ",".join(map(str, slot.cpus))} if slot.cpus else {}),
    }
    if slot.workload.server is None:
        return {**place, **ReplicaSpec.timed(slot.workload, timing).environment()}
    # The server has the harness's own environment, and none of the replica's settings.
    restore = {name: os.environ.get(name) for name in (*place, VARIABLE, *OF_ITS_START)}
    logger = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.LOG]
    spec = ReplicaSpec.timed(slot.workload, timing, restore=restore, logger=logger, replicas=slot.replicas)
    return {**place, **spec.environment()}


def _not_ready(waiting: Sequence[LocalReplica], timeout_s: float) -> str:
    first = waiting[0]
    said = " | ".join(first.last_lines()) or "it printed nothing"
    phase = first.status().get("phase", "starting")
    others = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return f"{first.slot.name}{others} did not serve within {timeout_s:g} s (phase {phase}); last lines: {said}."
