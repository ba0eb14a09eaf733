"""One replica as a process of this machine, which cannot outlive the harness: every one has a guard as its parent.

Should somebody kill the guards, too, the next harness finds what is left by the mark of its campaign.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil

from harness import supervisor
from harness.backends.devices import deal_cpus
from harness.backends.forked import ForkedGuard, ForkServer
from harness.errors import BackendError, HarnessError
from harness.metrics.nvml import gpu_facts
from harness.metrics.recorder import ReplicaTarget
from harness.results import layout
from harness.results.files import atomic_write, read_object
from harness.spec import ExperimentSpec, LayerSpec, WorkloadSpec
from harness.spec.replica import NEXT_LOAD, NextLoad, ReplicaSpec
from harness.traffic.http_answer import BrokenAnswerError
from harness.traffic.http_page import fetch

CAMPAIGN_VARIABLE = "HARNESS_CAMPAIGN_ID"
"""In the environment of every process of a campaign: its id."""
TERMINATE_S = 3.0
END_S = 10.0
"""What a supervisor takes to end everything below it, and more."""
HEALTH_TIMEOUT_S = 2.0
LAST_LINES = 5
LAST_LINES_BYTES = 4096
WORKLOAD_COMMAND = (sys.executable, "-m", "harness.replica")


@dataclass(frozen=True, slots=True)
class ReplicaSlot:
    """Which of ``replicas`` of an experiment it is; ``folder``: of its workload's, ``cpus``: of its own, none: it may run on any."""

    workload: WorkloadSpec
    index: int
    folder: Path
    neighbour: str = ""
    layer: LayerSpec | None = None
    cpus: tuple[int, ...] = ()
    replicas: int = 1

    @property
    def name(self) -> str:
        """For sentences."""
        return f"replica {self.index}{f' of the neighbour {self.neighbour}' if self.neighbour else ''}"


def replica_slots(experiment: ExperimentSpec, folder: Path) -> list[ReplicaSlot]:
    """Every replica of an experiment: the measured ones first, then its neighbours in the order of the file."""
    layer = experiment.condition.layer if experiment.condition else None
    count = experiment.replicas
    slots = [ReplicaSlot(experiment.workload, index, folder, layer=layer, replicas=count) for index in range(count)]
    for neighbour in experiment.neighbours:
        name = neighbour.workload.name
        place = layout.neighbour_folder(folder, name)
        count = neighbour.replicas
        slots += [ReplicaSlot(neighbour.workload, index, place, name, replicas=count) for index in range(count)]
    return slots


def slots_with_cpus(experiment: ExperimentSpec, folder: Path) -> list[ReplicaSlot]:
    """The same, each with the CPUs of its own. Raises BackendError where there are too few."""
    every = replica_slots(experiment, folder)
    if not any(slot.workload.cpus_per_replica for slot in every):
        return every
    gpus, _ = gpu_facts()
    return [replace(slot, cpus=own) for slot, own in zip(every, deal_cpus(experiment, gpus), strict=True)]


class LocalReplica:
    """A running replica, below its guard, with these settings beside the harness's own environment. Raises OSError.

    ``forks``: what forks it; None: it is a new process.
    """

    def __init__(
        self, slot: ReplicaSlot, environment: Mapping[str, str], lifeline: Lifeline, forks: ForkServer | None = None
    ) -> None:
        self.slot = slot
        self.served = False
        self.log = layout.replica_log(slot.folder, slot.index)
        self._folder = self._home = layout.replica_folder(slot.folder, slot.index)
        self._folder.mkdir(parents=True)
        self.guard: subprocess.Popen[bytes] | ForkedGuard
        if forks is not None:
            self.guard = forks.start(lifeline.read_end, log=self.log, environment=environment)
            return
        self.guard = lifeline.start(
            slot.layer.around(WORKLOAD_COMMAND) if slot.layer else WORKLOAD_COMMAND,
            log=self.log,
            # Not on the command line, where every user of the machine can read it.
            environment={**environment, **(slot.layer.environment if slot.layer else {})},
        )

    def status(self) -> dict[str, Any]:
        """What it wrote of itself; empty while it has not, or where that is not to be read."""
        try:
            return read_object(self._folder / "replica.json")
        except HarnessError:
            return {}

    def _known_status(self) -> dict[str, Any]:
        """The same of a replica that has served. Raises BackendError where the file says no process any more."""
        status = self.status()
        if not {"pid", "port"} <= status.keys():
            raise BackendError(
                f"{self.slot.name} has served, and {self._folder / 'replica.json'} does not say its process and port.",
                advice="Nothing else may write to a campaign's folder while it runs; check the disk (dmesg, df -h).",
            )
        return status

    def target(self) -> ReplicaTarget:
        """Where its metrics are read. What a command prefix of its layer uses counts as part of it."""
        status = self._known_status()
        pid = int(status.get("server_pid", status["pid"]))  # what the asking costs is no part of a server
        if self.slot.layer is not None and self.slot.layer.prefix and "server_pid" not in status:
            with suppress(psutil.Error):
                pid = next((child.pid for child in psutil.Process(self.guard.pid).children()), pid)
        url = f"http://127.0.0.1:{status['port']}/metrics"
        return ReplicaTarget(self.slot.index, pid, url, self.slot.neighbour)

    def gpu_pids(self) -> set[int]:
        """The processes that may be on the GPU: the replica's own, or its server's with all below it."""
        status = self._known_status()
        if "server_pid" not in status:
            return {int(status["pid"])}
        pids = {int(status["server_pid"])}
        with suppress(psutil.Error):
            pids |= {child.pid for child in psutil.Process(int(status["server_pid"])).children(recursive=True)}
        return pids

    def has_served(self) -> bool:
        """Whether it has answered a request."""
        status = self.status()
        if status.get("phase") != "serving":
            return False
        try:
            head, _ = fetch(f"http://127.0.0.1:{status['port']}/health", {}, timeout_s=HEALTH_TIMEOUT_S)
        except (OSError, BrokenAnswerError):
            return False  # not listening yet: asked again until the deadline
        return head.status == HTTPStatus.OK  # 503 until it has served

    def waits(self) -> bool:
        """Whether it can be told of a load."""
        return bool(self.status().get("phase") == "waiting")

    def begin(self, slot: ReplicaSlot, spec: ReplicaSpec) -> None:
        """Have it serve a load whose results lie in the slot's folder. Raises BackendError where it cannot be told."""
        self.slot, self.served, self._folder = slot, False, self._home
        port = self._known_status()["port"]
        self._folder = layout.replica_folder(slot.folder, slot.index)
        try:
            self._folder.mkdir(parents=True)
            load = NextLoad(spec=spec, folder=self._folder)
            atomic_write(self._home / NEXT_LOAD, load.model_dump_json(exclude_none=True), replace=True)
            fetch(f"http://127.0.0.1:{port}/next", {}, timeout_s=HEALTH_TIMEOUT_S)
        except (OSError, BrokenAnswerError) as error:
            raise BackendError(f"{slot.name} could not be told of its next load: {error}.") from error

    def finish(self) -> None:
        """Have it serve no more; nothing of one that has ended."""
        with suppress(OSError, BrokenAnswerError):
            fetch(f"http://127.0.0.1:{self.status().get('port')}/finish", {}, timeout_s=HEALTH_TIMEOUT_S)

    def require_layer(self) -> None:
        """Raise BackendError when it runs without the library of its layer, which the loader leaves out with a mere remark."""
        preload = self.slot.layer.preload if self.slot.layer else None
        if preload is None:
            return
        library = str(Path(preload).resolve())
        if not any(library in _maps(process) for process in self._descendants()):
            raise BackendError(
                f"{self.slot.name} runs without the layer's library {library}: the loader did not load it.",
                advice=f"See what the loader says in {self.log}; the library must be built for this machine.",
            )

    def require_cpus(self) -> None:
        """Raise BackendError when Linux has it on other CPUs than those of its own."""
        cpus = self.status().get("cpus")
        if self.slot.cpus and cpus != list(self.slot.cpus):
            raise BackendError(f"{self.slot.name} should run on the CPUs {list(self.slot.cpus)}, and says {cpus}.")

    def terminate(self) -> None:
        """Ask it to drain. A prefix that stays its parent may not pass signals on, so the replica itself gets it."""
        if self.guard.poll() is not None:
            return
        own = self.status().get("pid")
        wrapped = [process for process in self._descendants()[1:] if process.pid == own]
        try:
            for process in wrapped:
                process.send_signal(signal.SIGTERM)
        except psutil.Error:
            wrapped = []
        if not wrapped:
            self.guard.terminate()

    def last_lines(self) -> list[str]:
        """The end of its log; empty when somebody took that away."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.log.stat().st_size - LAST_LINES_BYTES, 0))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line.strip() for line in lines if line.strip()][-LAST_LINES:]

    def _descendants(self) -> list[psutil.Process]:
        """Its processes, the one that the guard started first."""
        try:
            return psutil.Process(self.guard.pid).children(recursive=True)
        except psutil.Error:
            return []


def _maps(process: psutil.Process) -> set[str]:
    """Files that a process has mapped."""
    try:
        return {Path(region.path).as_posix() for region in process.memory_maps()}
    except (psutil.Error, OSError):
        return set()


def import_paths() -> str:
    """The harness itself first, then the folder it was started in (for a user's own workloads), as PYTHONPATH."""
    own = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in [own, str(Path.cwd()), *given] if path))


class Lifeline:
    """A pipe whose one end only this process holds: its end is the guards' signal that we are gone."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def start(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start ``command`` under a guard; it ends when the lifeline is cut. Its output goes to ``log``. Raises OSError."""
        log.parent.mkdir(exist_ok=True)
        guard = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.LIFELINE, str(self.read_end), *command]
        with log.open("wb") as output:
            return subprocess.Popen(
                guard,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=(self.read_end,),
                start_new_session=True,
            )

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Have a guard end what is below it; the exit code."""
        process.terminate()
        return await_end(process)

    def cut(self) -> None:
        """End whatever still runs on it. Idempotent."""
        if self._write_end >= 0:
            os.close(self._write_end)
            os.close(self.read_end)
            self._write_end = -1


def await_end(process: subprocess.Popen[bytes] | ForkedGuard, timeout_s: float = END_S) -> int:
    """The exit code of a supervisor that was asked to end; one that does not, as it was stopped, is killed with all below it."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        for pid in [process.pid, *supervisor.descendants(process.pid)]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return process.wait()


def end_strays(campaign_id: str) -> list[str]:
    """End every process that carries ``campaign_id``, this one and its children excepted; a sentence for each.

    Call only while holding the campaign's lock: then no living harness owns any of them.
    """
    mine = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    strays = [
        process for process in psutil.process_iter() if process.pid not in mine and _carries(process, campaign_id)
    ]
    sentences = []
    for process in strays:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            sentences.append(f"ended stray process {process.pid} of an earlier run.")
    psutil.wait_procs(strays, timeout=TERMINATE_S)
    return sentences


def _carries(process: psutil.Process, campaign_id: str) -> bool:
    try:
        return process.environ().get(CAMPAIGN_VARIABLE) == campaign_id
    except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
        return False  # of another user, or gone: not ours to end
