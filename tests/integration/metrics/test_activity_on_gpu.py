"""On a GPU: SM activity and occupancy are what a kernel was made to keep busy. Skipped where there is none."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from harness.metrics.nvml import NvmlGpus
from harness.replica.time_slices import Driver

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry stay(.param .u64 length)
{
    .reg .pred %go;
    .reg .u64 %until, %now;
    ld.param.u64 %until, [length];
    mov.u64 %now, %globaltimer;
    add.u64 %until, %until, %now;
staying:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %go, %now, %until;
    @%go bra staying;
    ret;
}
\0"""
KERNEL_S = 1.2
SETTLE_S = 0.2
WATCHED_S = 0.6
WARP = 32
MOST_THREADS = 1024
"""Of one block: half of the warps that a multiprocessor holds, so that two blocks fill it."""


@contextmanager
def staying(blocks: int, threads: int) -> Iterator[None]:
    """So many blocks of so many threads are on the GPU; the driver gives each a multiprocessor of its own while there is one."""
    driver, module, kernel = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuModuleLoadData", ctypes.byref(module), PTX)
    driver("cuModuleGetFunction", ctypes.byref(kernel), module, b"stay")
    length = ctypes.c_uint64(int(KERNEL_S * 1e9))
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
    begin_s = time.monotonic()
    driver("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, parameters, None)
    yield
    assert time.monotonic() - begin_s < KERNEL_S, "the kernel was over before it had been watched"
    torch.cuda.synchronize()
    driver("cuModuleUnload", module)


def watched(blocks: int, threads: int) -> dict[str, float]:
    """Activity in percent while that kernel runs, as telemetry reads it."""
    torch.zeros(1, device="cuda")  # a context
    torch.cuda.synchronize()
    gpus = NvmlGpus(used=[f"GPU-{torch.cuda.get_device_properties(0).uuid}"], activity=True)
    try:
        with staying(blocks, threads):
            time.sleep(SETTLE_S)
            gpus.read_telemetry()
            time.sleep(WATCHED_S)
            (found,) = gpus.read_telemetry()
    finally:
        gpus.close()
    return found


@pytest.mark.parametrize("planted_percent", [25, 50, 100])
def test_sm_activity_is_the_share_of_multiprocessors_with_work(planted_percent):
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    blocks = round(processors * planted_percent / 100)

    found = watched(blocks, MOST_THREADS)["sm_active_percent"]

    print(f"SM activity: {found:.1f}% of {100 * blocks / processors:.1f}% planted")
    assert found == pytest.approx(100 * blocks / processors, abs=5)


@pytest.mark.parametrize("planted_percent", [25, 50, 100])
def test_occupancy_is_the_share_of_warps_that_are_there(planted_percent):
    gpu = torch.cuda.get_device_properties(0)
    threads = gpu.max_threads_per_multi_processor * planted_percent // 100
    each = -(-threads // MOST_THREADS)  # blocks on a multiprocessor
    planted = 100 * each * (threads // each // WARP * WARP) / gpu.max_threads_per_multi_processor

    found = watched(gpu.multi_processor_count * each, threads // each)["sm_occupancy_percent"]

    print(f"occupancy: {found:.1f}% of {planted:.1f}% planted")
    assert found == pytest.approx(planted, abs=5)
