"""Which multiprocessors the kernels of a replica's process really use, by every way in which torch starts one.

    python -m tests.support.read_multiprocessors RESULT LOCK

A kernel of many blocks writes down the number of the multiprocessor (%smid) under each. It is started before the process takes
its group, then on the stream that the group's replica has, on another stream of torch's, from a CUDA graph, in a backward pass,
which has a thread of its own, and on the default stream of a new thread. A matrix product of cuBLAS is timed before and after;
LOCK keeps the others quiet meanwhile; and once by all at the same time.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from harness.replica.green_contexts import join
from harness.replica.time_slices import Driver
from harness.spec.sharing import SM_GROUP

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry where(.param .u64 seen)
{
    .reg .pred %go;
    .reg .u32 %number, %one;
    .reg .u64 %place, %offset, %now, %until;
    ld.param.u64 %place, [seen];
    cvta.to.global.u64 %place, %place;
    mov.u32 %number, %smid;
    mul.wide.u32 %offset, %number, 4;
    add.u64 %place, %place, %offset;
    mov.u32 %one, 1;
    st.global.u32 [%place], %one;
    mov.u64 %until, %globaltimer;
    add.u64 %until, %until, 100000;
waiting:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %go, %now, %until;
    @%go bra waiting;
    ret;
}
\0"""
BLOCKS, THREADS, MOST = 1056, 1024, 256
SIZE, PRODUCTS = 8192, 5


class Reader:
    """Starts the kernel, and says where it ran."""

    def __init__(self) -> None:
        self.seen = torch.zeros(MOST, dtype=torch.int32, device="cuda")  # torch makes the context
        self.driver, library, module = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel, self.of_module = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver("cuLibraryLoadData", ctypes.byref(library), PTX, None, None, 0, None, None, 0)
        self.driver("cuLibraryGetKernel", ctypes.byref(self.kernel), library, b"where")
        self.driver("cuModuleLoadData", ctypes.byref(module), PTX)
        self.driver("cuModuleGetFunction", ctypes.byref(self.of_module), module, b"where")

    def launch(self, function: ctypes.c_void_p | None = None) -> None:
        """On the stream that torch would use here."""
        place = ctypes.c_uint64(self.seen.data_ptr())
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.driver("cuLaunchKernel", function or self.kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, None)

    def used(self, start: Callable[[], object]) -> list[int] | str:
        """The multiprocessors, or what went wrong."""
        self.seen.zero_()
        torch.cuda.synchronize()
        try:
            start()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - each way is of interest by itself
            return f"{type(error).__name__}: {error}"
        return [int(number) for number in self.seen.nonzero()]


def ways(reader: Reader) -> dict[str, list[int] | str]:
    """Where each way of starting a kernel leads."""

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(_context, given):
            return given.clone()

        @staticmethod
        def backward(_context, gradient):
            reader.launch()
            return gradient

    def on_another_stream() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            reader.launch()

    def in_a_graph() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            reader.launch()
        graph.replay()

    def in_a_backward_pass() -> None:
        Backward.apply(torch.ones(1, device="cuda", requires_grad=True)).sum().backward()

    def in_a_new_thread() -> None:
        def start() -> None:
            torch.ones(1, device="cuda")
            reader.launch()

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()

    return {
        "own stream": reader.used(reader.launch),
        "module": reader.used(lambda: reader.launch(reader.of_module)),
        "another stream": reader.used(on_another_stream),
        "graph": reader.used(in_a_graph),
        "backward": reader.used(in_a_backward_pass),
        "default stream of a thread": reader.used(in_a_new_thread),
    }


def product_ms() -> float:
    """How long cuBLAS takes for one matrix product."""
    left = torch.randn(SIZE, SIZE, dtype=torch.float16, device="cuda")
    left @ left
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(PRODUCTS):
        left @ left
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start_s) / PRODUCTS


def alone_ms(lock: Path) -> float:
    """The same while the others wait."""
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return product_ms()


def together_ms(folder: Path, processes: int) -> float:
    """The same while all of so many processes do it, from the moment at which the last is ready."""
    (folder / f"{os.getpid()}.ready").touch()
    while len(list(folder.glob("*.ready"))) < processes:
        time.sleep(0.001)
    return product_ms()


def main() -> None:
    """Read, and write it down."""
    result, lock = map(Path, sys.argv[1:])
    reader = Reader()
    whole, whole_ms = reader.used(reader.launch), alone_ms(lock)
    facts = join()
    times = {"whole_ms": whole_ms, "own_ms": alone_ms(lock)}
    times["together_ms"] = together_ms(result.parent, int(os.environ[SM_GROUP].partition("/")[2]))
    result.write_text(json.dumps({**facts, **times, "whole": whole, "ways": ways(reader)}))


if __name__ == "__main__":
    main()
