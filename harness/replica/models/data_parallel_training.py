"""Data-parallel training: two processes train one network of ``mnist.py``, each on images of its own.

Both hold the same weights. Each computes the gradients of its batch; their mean, which torch's DistributedDataParallel
makes while the backward pass still runs, is what both take their step with. So a step is that of one process at twice
the batch. They exchange it by NCCL where the replica sees two GPUs, one for each process, and else by gloo, through the
host: on a CPU, and on a single GPU, of which NCCL lets only one process of a group have a part.

The replica is the first of the two; ``python -m`` this module is the second.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from harness.replica.errors import WorkloadError
from harness.replica.models import execution, training
from harness.replica.models.mnist_training import ImageTraining
from harness.replica.models.second_process import SecondProcess, live
from harness.replica.settings import Settings

RANKS = 2
HOST = "127.0.0.1"
_LOOPBACK = "lo"


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
        """Meet the other process; returns when both are there.

        Args:
            port: of this machine, where both meet.
            listener: a socket's descriptor that listens there; None: the other process has it.
        """
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


def make(settings: Settings) -> DataParallelTraining:
    """Make the workload."""
    training.check(settings)
    return DataParallelTraining(settings)


def _second(settings: Settings, port: int) -> Callable[[], None]:
    work = RankTraining(settings, rank=1)
    work.join(port)

    def step() -> None:
        with contextlib.suppress(WorkloadError):  # both have the same loss, and the replica judges it
            work.infer()

    return step


if __name__ == "__main__":
    live(_second)
