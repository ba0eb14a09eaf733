"""A daemon of NVIDIA's Multi-Process Service of our own, in a private pipe directory.

A process whose pipe directory has no daemon runs beside MPS without a word, so the daemon's own list of
clients is asked whether every replica is among them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from harness.backends.orphans import CAMPAIGN_VARIABLE
from harness.backends.supervised import Lifeline, await_end
from harness.errors import BackendError
from harness.metrics.nvml import VISIBLE
from harness.spec import MpsLimits

CONTROL = "nvidia-cuda-mps-control"
START_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
QUIT_TIMEOUT_S = 2.0
POLL_S = 0.05
_PREFIX = "harness-mps-"


class MpsDaemon:
    """A running control daemon; its server starts with the first client.

    Args:
        campaign_id: marks the processes and the pipe directory.
        lifeline: ends the daemon with the harness.
        logs: folder for what daemon and server log; must not exist.
        limits: what each replica may use; None: everything.
        replicas: how many will share a GPU.
        gpus: UUIDs of those that it serves; none: every one that it sees. A number would mean another GPU to the
            clients of a daemon that serves only some.

    Raises:
        BackendError: it does not start; nothing is left running.
    """

    def __init__(
        self,
        campaign_id: str,
        *,
        lifeline: Lifeline,
        logs: Path,
        limits: MpsLimits | None,
        replicas: int,
        gpus: Sequence[str],
    ) -> None:
        self._limits = limits or MpsLimits()
        self._replicas = replicas
        self._logs = logs
        logs.mkdir(parents=True)
        # Below the temporary folder: the path of a socket may hold 107 characters, results may lie deep.
        self._pipes = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{campaign_id}-"))
        self._environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
            CAMPAIGN_VARIABLE: campaign_id,
        }
        own = {**self._environment, VISIBLE: ",".join(gpus)} if gpus else self._environment
        try:
            self._guard = lifeline.start([CONTROL, "-f"], log=logs / "daemon.log", environment=own)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def replica_environment(self) -> dict[str, str]:
        """What makes a process a client, within the limits."""
        return {**self._environment, **limits_environment(self._limits, self._replicas)}

    def require_clients(self, replicas: Mapping[str, Collection[int]]) -> None:
        """Raise BackendError when a replica has no process that runs under this daemon.

        Args:
            replicas: process ids of each, by its name.
        """
        clients = {
            client for server in self._ask("get_server_list") for client in self._ask(f"get_client_list {server}")
        }
        beside = [name for name, pids in replicas.items() if clients.isdisjoint(pids)]
        if beside:
            raise BackendError(
                f"{beside[0]} runs beside MPS and not under it: the daemon's clients are {sorted(clients)}.",
                advice=f"See {self._logs}; a replica on the CPU can be no client.",
            )

    def stop(self) -> Sequence[str]:
        """End daemon and server; a sentence when the daemon had ended by itself. Idempotent."""
        guard = getattr(self, "_guard", None)
        problems = []
        if guard is not None:
            if guard.poll() is not None:
                problems.append(f"the MPS daemon ended by itself with {guard.returncode}; see {self._logs.name}/.")
            else:
                self._quit()
                guard.terminate()
                await_end(guard)  # it ends the server, too
            del self._guard
        shutil.rmtree(self._pipes, ignore_errors=True)
        return problems

    def _quit(self) -> None:
        try:
            self._control(f"quit -t {QUIT_TIMEOUT_S:g}")
        except BackendError:
            return  # whoever does not listen is ended by the guard

    def _wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            done = self._control("get_server_list")
            if done.returncode == 0:
                return
            ended = self._guard.poll()
            if ended is not None or time.monotonic() > deadline_s:
                said = " ".join((self._logs / "daemon.log").read_text(encoding="utf-8", errors="replace").split())
                how = "does not answer" if ended is None else f"ended with {ended}"
                raise BackendError(
                    f"the MPS daemon {how}: {said or done.stderr.strip() or 'it printed nothing'}.",
                    advice=f"See {self._logs}/control.log; MPS needs a GPU in compute mode default or exclusive-process.",
                )
            time.sleep(POLL_S)

    def _ask(self, question: str) -> list[int]:
        done = self._control(question)
        if done.returncode != 0:
            raise BackendError(
                f"the MPS daemon does not answer {question!r}: {(done.stderr or done.stdout).strip()}.",
                advice=f"See {self._logs}/control.log.",
            )
        return [int(word) for word in done.stdout.split()]

    def _control(self, command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env={**os.environ, **self._environment},
                capture_output=True,
                text=True,
                timeout=ANSWER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(
                f"{CONTROL} cannot be asked: {error}.", advice="Install the NVIDIA driver's tools."
            ) from error


def limits_environment(limits: MpsLimits | None, replicas: int) -> dict[str, str]:
    """The variables by which a client of MPS limits itself, as one of ``replicas`` on a GPU."""
    environment = {}
    percentage = limits.percentage(replicas) if limits else None
    if percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{percentage:g}"
    if limits and limits.pinned_memory_gb is not None:
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={round(limits.pinned_memory_gb * 1000)}M"
    return environment


def foreign_daemons(gpus: Sequence[str]) -> list[int]:
    """Process ids of the MPS daemons and servers of this machine that may serve one of these GPUs.

    Args:
        gpus: UUIDs.
    """
    return [
        process.pid
        for process in psutil.process_iter(["name"])
        if str(process.info["name"]).startswith("nvidia-cuda-mps")  # as much of the name as the kernel keeps
        and _may_serve(process, gpus)
    ]


def _may_serve(process: psutil.Process, gpus: Sequence[str]) -> bool:
    try:
        environment = process.environ()
        if not environment:  # it may be about to end: then its memory is gone, and it serves nobody
            time.sleep(POLL_S)
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            environment = process.environ()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    served = environment.get(VISIBLE, "")
    names = [name.strip() for name in served.split(",")]
    return not all(name.startswith("GPU-") for name in names) or any(
        uuid.startswith(name) for uuid in gpus for name in names
    )


def sweep_pipes(campaign_id: str) -> None:
    """Remove pipe directories that a killed harness left of this campaign; call once its processes are ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{campaign_id}-*"):
        shutil.rmtree(folder, ignore_errors=True)
