"""Data-parallel training: two processes train one network of ``mnist.py``, each on images of its own.

Both hold the same weights. Each computes the gradients of its batch; their mean, which torch's DistributedDataParallel
makes while the backward pass still runs, is what both take their step with. So a step is that of one process at twice
the batch. They exchange it by NCCL where the replica sees two GPUs, one for each process, and else by gloo, through the
host: on a CPU, and on a single GPU, of which NCCL lets only one process of a group have a part.

The replica is the first of the two; ``python -m`` this module is the second. It is told each step, watched, and ends with
the replica, whatever ends that. (torch's own multiprocessing would start a third process, which tracks resources.)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.replica.errors import CannotBeMetError, ExitCode, OutOfMemoryError, WorkloadError, translated
from harness.replica.graceful_shutdown import STOP_SIGNALS
from harness.replica.models import execution, training
from harness.replica.models.mnist import ImageTraining
from harness.replica.settings import Settings

RANKS = 2
HOST = "127.0.0.1"
_LOOPBACK = "lo"
MOMENT_S = 2.0
"""A process whose connection is gone has ended by then, if it was that."""
NOTICE_S = 3.0
"""The main thread has noticed by then, unless it pauses, or waits for the other one on a GPU."""
GONE_S = 0.3
"""Of the time that a replica has to end once it was asked to."""
_PR_SET_PDEATHSIG = 1
_STEP = b"."


class RankTraining(ImageTraining):
    """What either process does; the batch of the settings is that of one process."""

    def __init__(self, settings: Settings, rank: int) -> None:
        device = execution.prepare_device(settings)
        self.collectives = "gloo"
        if device.type == "cuda" and torch.cuda.device_count() >= RANKS and dist.is_nccl_available():
            self.collectives, device = "nccl", torch.device("cuda", rank)
            torch.cuda.set_device(device)
        self._rank = rank
        super().__init__(settings, device, rank=rank, ranks=RANKS)

    def join(self, port: int, listener: int | None = None) -> None:
        """Meet the other process at ``port`` of this machine, where ``listener`` (of one of both) listens; returns when both are there."""
        store = dist.TCPStore(  # type: ignore[attr-defined]
            HOST, port, RANKS, is_master=listener is not None, wait_for_workers=False, master_listen_fd=listener
        )
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", _LOOPBACK)  # nobody else need be able to reach it
        dist.init_process_group(self.collectives, store=store, rank=self._rank, world_size=RANKS)
        self._forward = DistributedDataParallel(self.model)

    def _step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss is that of both batches."""
        loss = super()._step(inputs, labels) / RANKS
        dist.all_reduce(loss)
        return loss


class DataParallelTraining(RankTraining):
    """The replica's part, which starts the second process and tells it each step."""

    def __init__(self, settings: Settings) -> None:
        training.check(settings)
        super().__init__(settings, rank=0)
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        self.second = SecondProcess(__name__, settings, port)
        try:
            self.join(port, listener.detach())
        except RuntimeError:
            self.second.require_alive()
            raise
        self._facts |= {"processes": RANKS, "collectives": self.collectives, "second_pid": self.second.pid}
        if self.collectives == "nccl":
            self._facts["second_device_uuid"] = f"GPU-{torch.cuda.get_device_properties(1).uuid}"

    def infer(self) -> int:
        """Train one step in both; returns the images of both. Raises WorkloadError when the second has ended, too."""
        try:
            self.second.step()
            return super().infer() * RANKS
        except RuntimeError:  # as a lost connection is raised, among others
            self.second.require_alive()
            raise

    def close(self) -> None:
        """End the second process; their group ends with this one."""
        super().close()
        self.second.close()


make = DataParallelTraining


class SecondProcess:
    """The replica's side of the second process: ``module`` is run, calls ``live``, and meets the replica at ``port``."""

    def __init__(self, module: str, settings: Settings, port: int) -> None:
        self._noticed = threading.Event()
        command = [sys.executable, "-m", module, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        self.pid = self._process.pid
        self._tell(pickle.dumps((settings, port)))
        threading.Thread(target=self._watch, name="second-process", daemon=True).start()

    def step(self) -> None:
        """Let it do one step. Raises WorkloadError when it has ended."""
        self._tell(_STEP)

    def require_alive(self) -> None:
        """Raise WorkloadError when it has ended, or does within a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(MOMENT_S)
            self._noticed.set()
            raise _error_of(code)

    def close(self) -> None:
        """End it: it has nothing to save. One with much memory to give back may take a moment longer than this."""
        self._noticed.set()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_S)
        if self._process.stdin:
            self._process.stdin.close()

    def _tell(self, data: bytes) -> None:
        try:
            if self._process.stdin:
                self._process.stdin.write(data)
        except OSError:
            self.require_alive()
            raise

    def _watch(self) -> None:
        """End the replica with it, where the main thread is somewhere that it cannot notice."""
        error = _error_of(self._process.wait())
        if not self._noticed.wait(NOTICE_S):
            sys.stderr.write(f"replica: {error}\n")
            sys.stderr.flush()
            os._exit(error.exit_code)


def _error_of(code: int) -> WorkloadError:
    kinds: dict[int, type[WorkloadError]] = {kind.exit_code: kind for kind in (CannotBeMetError, OutOfMemoryError)}
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}, see its own words above"
    hint = "; if no user did that, the host was out of memory" if code == -signal.SIGKILL else ""
    return kinds.get(code, WorkloadError)(f"the second process {how}, and the replica ends with it{hint}.")


def live(join: Callable[[Settings, int], Callable[[], object]]) -> NoReturn:
    """Be the second process until the replica is gone; ``join`` meets it at the port, and returns what does a step."""
    # In the middle of a step nobody reads the pipe: the kernel kills this process when its parent ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the line above
        os._exit(ExitCode.STOPPED)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches both; the replica ends this one
    code = ExitCode.STOPPED
    try:
        settings, port = pickle.load(sys.stdin.buffer)  # noqa: S301 - the replica wrote it
        step = join(settings, port)
        while sys.stdin.buffer.read(len(_STEP)):
            step()
    except BaseException as error:  # noqa: BLE001 - whatever it is ends as a line and a code
        code = _report(translated(error))
    os._exit(code)


def _report(error: BaseException) -> ExitCode:
    """The last words, unless the replica is gone: then that is why, and it has said its own."""
    with contextlib.suppress(OSError):
        if select.select([sys.stdin], [], [], MOMENT_S / 4)[0] and not os.read(sys.stdin.fileno(), 1):
            return ExitCode.STOPPED
    code = error.exit_code if isinstance(error, WorkloadError) else ExitCode.FAILED
    if code is ExitCode.FAILED:
        traceback.print_exception(error)
    sys.stderr.write(f"replica: its second process failed: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    return code


def _second(settings: Settings, port: int) -> Callable[[], None]:
    work = RankTraining(settings, rank=1)
    work.join(port)

    def step() -> None:
        with contextlib.suppress(WorkloadError):  # both have the same loss, and the replica judges it
            work.infer()

    return step


if __name__ == "__main__":
    live(_second)
