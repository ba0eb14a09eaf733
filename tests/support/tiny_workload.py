"""Workloads that start in a moment and misbehave on demand; none imports torch."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

SERVICE_S = 0.002


class Tiny:
    """Sleeps for a request; subclasses misbehave."""

    name = "tiny"

    def infer(self) -> int:
        time.sleep(SERVICE_S)
        return 1


def steady(settings):
    del settings
    return Tiny()


class _OnTheGpu(Tiny):
    def __init__(self) -> None:
        import torch

        self.one = torch.ones(1, device="cuda")

    def infer(self) -> int:
        self.one.add(1).cpu()
        return super().infer()


def on_the_gpu(settings):
    del settings
    return _OnTheGpu()


class _OnLentGpu(Tiny):
    def describe(self) -> dict[str, str]:
        return {"device": "cuda", "device_uuid": os.environ["NVIDIA_VISIBLE_DEVICES"]}


def on_lent_gpu(settings):
    """Says that it is on the GPU that the device plugin gave to its container."""
    del settings
    return _OnLentGpu()


class _DiesWhenTold(Tiny):
    def __init__(self, told: Path) -> None:
        self.told = told

    def infer(self) -> int:
        if self.told.exists():
            sys.stderr.write("out of luck\n")
            sys.stderr.flush()
            os._exit(7)
        return super().infer()


def dies_when_told(settings):
    """Option `told`: a file whose coming tells it; option `replica`: the only one that dies."""
    return (
        _DiesWhenTold(Path(settings.options["told"]))
        if settings.replica == int(settings.options["replica"])
        else Tiny()
    )


class _Hangs(Tiny):
    def __init__(self, after: int) -> None:
        self.left = after

    def infer(self) -> int:
        self.left -= 1
        if self.left < 0:
            time.sleep(3600)
        return super().infer()


def hangs(settings):
    """Option `after`: requests served before it hangs."""
    return _Hangs(int(settings.options.get("after", 0)))


def slow_to_load(settings):
    time.sleep(float(settings.options["load_s"]))
    return Tiny()


def with_children(settings):
    """Starts a child and a grandchild that ignore SIGTERM, and writes their pids beside its status."""
    script = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid(); pid = os.fork();"
        "open(sys.argv[1] + '/pid-' + str(os.getpid()), 'w').close(); time.sleep(3600)"
    )
    subprocess.Popen([sys.executable, "-c", script, str(settings.replica_dir)])
    while len(list(Path(settings.replica_dir).glob("pid-*"))) < 2:
        time.sleep(0.01)
    return Tiny()


class _Crowded(Tiny):
    """A device whose users get a share each: a request takes as many times longer as there are users.

    So long that a loaded machine, which is late to wake who sleeps, adds little to it.
    """

    def __init__(self, device: Path) -> None:
        device.mkdir(exist_ok=True)
        self.device = device
        self.seat = (device / str(os.getpid())).open("w")
        fcntl.flock(self.seat, fcntl.LOCK_EX)  # let go by whoever ends, however that is

    def infer(self) -> int:
        time.sleep(10 * SERVICE_S * sum(map(_taken, self.device.iterdir())))
        return 1


def _taken(seat: Path) -> bool:
    with seat.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def crowded(settings):
    """Option `device`: a folder that stands for it."""
    return _Crowded(Path(settings.options["device"]))


class _Shared(Tiny):
    """A device that serves one request at a time: latency grows with the replicas, throughput does not."""

    def __init__(self, service_s: float, replicas: Path) -> None:
        self.service_s = service_s
        self.replicas = replicas

    def infer(self) -> int:
        time.sleep(self.service_s * len(list(self.replicas.glob("replica-*"))))
        return 1


def shared_device(settings):
    """Option `service_s`: of one replica alone."""
    return _Shared(float(settings.options["service_s"]), Path(settings.replica_dir).parent)


def fills_memory(settings):
    """Option `room`: so many replicas fit, the others find no memory."""
    if settings.replica >= int(settings.options["room"]):
        raise MemoryError
    return Tiny()


class _Hungry(Tiny):
    def __init__(self, told: Path) -> None:
        self.told = told
        self.taken: list[bytes] = []

    def infer(self) -> int:
        if self.told.exists():
            self.taken.append(b"1" * (16 << 20))
        return super().infer()


def hungry(settings):
    """Option `told`: a file whose coming tells it to take memory with each request, until somebody kills it."""
    return _Hungry(Path(settings.options["told"]))
