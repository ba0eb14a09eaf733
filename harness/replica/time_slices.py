"""A process that watches the GPU's clock without pause, and so sees when it was taken off the GPU.

One thread of a kernel reads the GPU's nanosecond clock in a loop. A reading that comes much later than the one before means
that another process had its turn in between. All processes read the same clock, so that their turns can be put side by side.
Needs the driver's library alone: the kernel is PTX, which the driver compiles.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import time
from pathlib import Path

READY, GO, SLICES = "ready", "go", "slices.bin"
"""Files in the folder of a process, and beside the folders: it can begin; all may begin; when it ran."""
GAP_NS = 20_000
"""A longer time between two readings is a turn of somebody else: the clock's own steps are 1 us at most."""
MOST = 200_000
"""Slices that are kept."""
POLL_S = 0.001

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry watch(.param .u64 slices, .param .u64 most, .param .u64 length, .param .u64 gap)
{
    .reg .pred %taken, %full, %go;
    .reg .u64 %out, %most, %until, %gap, %n, %begin, %last, %now, %between;
    ld.param.u64 %out, [slices];
    ld.param.u64 %most, [most];
    ld.param.u64 %until, [length];
    ld.param.u64 %gap, [gap];
    cvta.to.global.u64 %out, %out;
    mov.u64 %begin, %globaltimer;
    mov.u64 %last, %begin;
    add.u64 %until, %until, %begin;
    mov.u64 %n, 1;
watching:
    mov.u64 %now, %globaltimer;
    sub.u64 %between, %now, %last;
    setp.gt.u64 %taken, %between, %gap;
    @!%taken bra same;
    st.global.u64 [%out], %begin;
    st.global.u64 [%out+8], %last;
    add.u64 %out, %out, 16;
    add.u64 %n, %n, 1;
    mov.u64 %begin, %now;
same:
    mov.u64 %last, %now;
    setp.ge.u64 %full, %n, %most;
    @%full bra done;
    setp.lt.u64 %go, %now, %until;
    @%go bra watching;
done:
    st.global.u64 [%out], %begin;
    st.global.u64 [%out+8], %last;
    ret;
}
\0"""


class CudaError(Exception):
    """A call of the driver failed."""


class Driver:
    """The few calls of the CUDA driver that are needed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: object) -> None:
        """Raises CudaError."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'?').decode()} ({code})")


def watch(folder: Path, seconds: float) -> None:
    """Say that we are ready, wait for all, watch for ``seconds``, and keep when we ran: pairs of begin and end in ns."""
    driver = Driver()
    device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory = ctypes.c_uint64()
    size = 16 * MOST
    driver("cuInit", 0)
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    driver("cuModuleLoadData", ctypes.byref(module), PTX)
    driver("cuModuleGetFunction", ctypes.byref(kernel), module, b"watch")
    driver("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    driver("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def launch(length_ns: int) -> None:
        values = [memory, ctypes.c_uint64(MOST), ctypes.c_uint64(length_ns), ctypes.c_uint64(GAP_NS)]
        parameters = (ctypes.c_void_p * 4)(*[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values])
        driver("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        driver("cuCtxSynchronize")

    launch(1_000)  # what is done once: not while others are watched
    (folder / READY).touch()
    while not (folder.parent / GO).exists():
        time.sleep(POLL_S)
    launch(int(seconds * 1e9))
    slices = ctypes.create_string_buffer(size)
    driver("cuMemcpyDtoH_v2", slices, memory, ctypes.c_size_t(size))
    pairs = [pair for pair in struct.iter_unpack("<QQ", slices.raw) if pair[0]]
    part = folder / f"{SLICES}.part"
    part.write_bytes(b"".join(struct.pack("<QQ", *pair) for pair in pairs))
    part.rename(folder / SLICES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    watch(**vars(parser.parse_args()))
