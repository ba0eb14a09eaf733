"""Hostile neighbours: each wears out what those who share a GPU have in common, takes it away, or brings it down.

They are workloads like the others. On a CPU they do the like to the host's memory, where that means anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from harness.replica.errors import CannotBeMetError, OutOfMemoryError, WorkloadError, translated
from harness.replica.models import execution
from harness.replica.settings import Settings
from harness.replica.time_slices import CudaError, Driver

MIB = 2**20
WAIT_S = 0.05  # between two requests of one that waits for its time, or for memory
_COPIES, _PASSES, _KERNELS = 4, 32, 1000
_CPU_CACHE_MIB = 32  # where Linux does not tell the size of the last cache
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

FAULT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .u64 %nowhere;
    .reg .u32 %zero;
    mov.u64 %nowhere, 16;
    mov.u32 %zero, 0;
    st.global.u32 [%nowhere], %zero;
    ret;
}
\0"""
"""PTX of a kernel that writes where there is no memory."""


Wearing = tuple[Callable[[], None], dict[str, object]]
"""One request's work, or its beginning on the GPU, and what it is."""


class CrashedAsAskedError(WorkloadError):
    """What ``crash`` is for."""


class Hostile:
    """Requests after requests, each one the same wear: what ``begin`` returns."""

    def __init__(self, settings: Settings, begin: Callable[[Settings, torch.device], Wearing]) -> None:
        self.name = settings.workload
        self.device = execution.prepare_device(settings)
        self._on_gpu = self.device.type == "cuda"
        self._wear, facts = begin(settings, self.device)
        self._facts = execution.describe_device(self.device) | facts

    def describe(self) -> dict[str, object]:
        """Return what runs where, and what one request does."""
        return self._facts

    def infer(self) -> int:
        """Do one request's wear; returns 1."""
        self._wear()
        if self._on_gpu:
            torch.cuda.synchronize()
        return 1


def _dram_hog(settings: Settings, device: torch.device) -> Wearing:
    """Bandwidth of the device's memory: copies between buffers that no cache holds."""
    source = torch.ones(settings.whole("megabytes", 256, 1) * MIB, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source)

    return copy, {"bytes_per_request": 2 * _COPIES * source.nbytes}


def _cache_hog(_settings: Settings, device: torch.device) -> Wearing:
    """The cache that all share: a buffer of its size, changed again and again, leaves nobody else's data in it."""
    buffer = torch.zeros(_cache_bytes(device) // 4, device=device)

    def change() -> None:
        for _ in range(_PASSES):
            buffer.add_(1)

    return change, {"bytes_per_request": 2 * _PASSES * buffer.nbytes, "cache_bytes": buffer.nbytes}


def _pcie_hog(settings: Settings, device: torch.device) -> Wearing:
    """The link between host and GPU, both ways at once, from and to page-locked memory."""
    if device.type != "cuda":
        raise CannotBeMetError("pcie-hog fills the link to a GPU, and there is none; on a CPU use dram-hog.")
    size = settings.whole("megabytes", 64, 1) * MIB
    ways = []
    for down in (False, True):
        host = torch.ones(size, dtype=torch.uint8, pin_memory=True)
        on_device = torch.ones(size, dtype=torch.uint8, device=device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        ways.append((stream, host, on_device) if down else (stream, on_device, host))
    torch.cuda.synchronize()

    def copy() -> None:
        for stream, target, source in ways:
            with torch.cuda.stream(stream):
                for _ in range(_COPIES):
                    target.copy_(source, non_blocking=True)

    return copy, {"bytes_per_request": 2 * _COPIES * size}


def _launch_storm(_settings: Settings, device: torch.device) -> Wearing:
    """Launches: kernels of one number each, as fast as the host can ask for them."""
    add = torch.zeros(1, device=device).add_

    def launch() -> None:
        for _ in range(_KERNELS):
            add(1)

    return launch, {"kernels_per_request": _KERNELS}


class Later(Hostile):
    """Does nothing until ``after_s`` seconds after its first request, so that all others are there first."""

    def __init__(self, settings: Settings, after_s: float) -> None:
        super().__init__(settings, lambda *_: (self._strike_when_due, {}))
        self._after_s = settings.number("after_s", after_s)
        self._due_s: float | None = None
        self.waits = True

    def think_s(self) -> float:
        """Return the pause before the next request, in seconds."""
        return WAIT_S if self.waits else 0.0

    def _strike_when_due(self) -> None:
        now_s = time.monotonic()
        self._due_s = now_s + self._after_s if self._due_s is None else self._due_s
        if now_s >= self._due_s:
            self._strike()

    def _strike(self) -> None:
        """Do what was put off."""
        raise NotImplementedError


class MemoryHog(Later):
    """Memory: takes all that there is, to the last ``_LEAST`` bytes, then holds it and asks for more, or frees it and begins again."""

    _LEAST = 2 * MIB

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 10.0)
        self._frees = settings.choice_of("when_full", {"hold": False, "free": True}, "hold")
        self._limit = round(settings.number("limit_gb", 0.0) * 1e9)
        if not self._on_gpu and not self._limit:
            raise CannotBeMetError(
                "memory-hog would fill the host's memory until Linux kills processes; set its option limit_gb, or use a GPU."
            )
        self._whole = self._part = settings.whole("megabytes", 256, 1) * MIB
        self._blocks: list[Tensor] = []
        self._held = self._most = self._refusals = 0

    def _strike(self) -> None:
        """Take one block more; where there is no room for it, try a smaller one."""
        try:
            self._take()
        except (MemoryError, RuntimeError, OutOfMemoryError) as error:
            if not isinstance(translated(error), OutOfMemoryError):
                raise
            self._be_refused()

    def _take(self) -> None:
        if self._limit and self._held + self._part > self._limit:
            raise OutOfMemoryError("limit_gb is reached.")
        self._blocks.append(torch.ones(self._part, dtype=torch.uint8, device=self.device))
        self._held += self._part
        self._most = max(self._most, self._held)
        self.waits = False

    def _be_refused(self) -> None:
        if self._part > self._LEAST:
            self._part //= 2
            return
        self._refusals += 1
        self.waits = True
        if self._frees:
            self._blocks.clear()
            self._held, self._part = 0, self._whole
            if self._on_gpu:
                torch.cuda.empty_cache()

    def outcome(self) -> dict[str, object]:
        """Return the most bytes held at once, and how often there were no more."""
        return {"held_bytes_most": self._most, "memory_refusals": self._refusals}


class Crash(Later):
    """A kernel that writes where there is no memory, which ends this process, and whom else?"""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, 30.0)
        self._number = torch.zeros(1, device=self.device)

    def _strike(self) -> None:
        message = f"crashed as asked, {self._after_s:g} s after its first request"
        if not self._on_gpu:
            raise CrashedAsAskedError(f"{message}; on a CPU a process that faults ends alone.")
        sys.stderr.write("replica: launches a kernel that writes to address 16, as asked\n")
        try:
            _fault()
        except CudaError as error:
            raise CrashedAsAskedError(f"{message}: {error}.") from error
        raise WorkloadError(
            "a kernel wrote to address 16 and nothing happened; this GPU or driver cannot be crashed so."
        )


def _fault() -> None:
    """Run the kernel in torch's own context. Raises CudaError."""
    import ctypes

    driver, module, kernel = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuModuleLoadData", ctypes.byref(module), FAULT)
    driver("cuModuleGetFunction", ctypes.byref(kernel), module, b"fault")
    driver("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    driver("cuCtxSynchronize")


def _cache_bytes(device: torch.device) -> int:
    """Size of the last cache before the memory, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [int(path.read_text().strip().rstrip("K")) * 1024 for path in _CACHES.glob("index*/size")]
    return max(sizes, default=_CPU_CACHE_MIB * MIB)


KINDS: dict[str, Callable[[Settings], Hostile]] = {
    "dram-hog": partial(Hostile, begin=_dram_hog),
    "l2-hog": partial(Hostile, begin=_cache_hog),
    "pcie-hog": partial(Hostile, begin=_pcie_hog),
    "launch-storm": partial(Hostile, begin=_launch_storm),
    "memory-hog": MemoryHog,
    "crash": Crash,
}


def make(settings: Settings) -> Hostile:
    """Make the kind that ``settings.workload`` names."""
    return KINDS[settings.workload](settings)
