"""Multiprocessors of a replica's own: one group of the driver's split of the GPU, as a CUDA green context.

Every kernel runs in the context of its stream. Torch makes the streams of its pool at once, when the first is wanted, in the
context that is current then: the green one, if that happens here. So the replica's own stream, those of its other threads, and
those that CUDA graphs are captured on all are the group's; a backward pass runs on the stream of its forward pass. Memory, modules
and the current context stay those of torch. Torch's default stream alone has the whole GPU, and nothing here is left on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import Any, NamedTuple

from harness.replica.errors import CannotBeMetError
from harness.replica.time_slices import CudaError, Driver
from harness.spec.sharing import SM_GROUP

OLDEST_CUDA = 12_040
_SM_RESOURCE, _WITH_DEFAULT_STREAM = 1, 1


class _Resource(ctypes.Structure):
    """CUdevResource; of all that the driver keeps in it, only the number is read."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("_of_driver", ctypes.c_ubyte * 92),
        ("multiprocessors", ctypes.c_uint),
        ("_more_of_driver", ctypes.c_ubyte * 44),
    )


class Split(NamedTuple):
    """The driver's resources of one GPU, divided: the first so many groups are alike and share no multiprocessor."""

    whole: Any
    groups: Any

    def sizes(self) -> list[int]:
        """Multiprocessors of the whole, and of each group."""
        return [self.whole.multiprocessors, *(group.multiprocessors for group in self.groups)]


def split(driver: Driver, groups: int) -> Split:
    """The GPU in ``groups`` alike, as large as the driver makes them; in fewer where it cannot. Raises CudaError.

    It rounds a size up to what the GPU's architecture allows, and then has room for fewer groups: a smaller one is asked for next.
    """
    version, device, whole = ctypes.c_int(), ctypes.c_int(), _Resource()
    driver("cuInit", 0)
    driver("cuDriverGetVersion", ctypes.byref(version))
    if version.value < OLDEST_CUDA:
        raise CudaError(
            f"the driver is of CUDA {_dotted(version.value)}, and they need {_dotted(OLDEST_CUDA)} or newer"
        )
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDeviceGetDevResource", device, ctypes.byref(whole), _SM_RESOURCE)
    parts, count = (_Resource * groups)(), 0
    for size in range(whole.multiprocessors // groups, 0, -1):
        made = ctypes.c_uint(groups)
        with contextlib.suppress(CudaError):  # rounded up, it is more than the whole
            driver("cuDevSmResourceSplitByCount", parts, ctypes.byref(made), ctypes.byref(whole), None, 0, size)
            count = made.value
        if count == groups:
            break
    return Split(whole, parts[:count])


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def join() -> dict[str, object]:
    """Take the group that the environment gives this process for all that torch will run. Raises CannotBeMetError."""
    index, groups = map(int, os.environ[SM_GROUP].split("/"))
    import torch

    if not torch.cuda.is_available():
        raise CannotBeMetError(f"{SM_GROUP}: torch {torch.__version__} sees no GPU that could have groups.")
    torch.cuda.synchronize()  # its context exists from here on
    try:
        multiprocessors = _enter(Driver(), index, groups)
    except (CudaError, OSError) as error:
        raise CannotBeMetError(
            f"{SM_GROUP}: no group {index} of {groups} of the GPU's multiprocessors: {error}."
        ) from error
    return {"multiprocessors": multiprocessors, "multiprocessor_group": f"{index} of {groups}"}


def _enter(driver: Driver, index: int, groups: int) -> int:
    """Have torch make its streams in the group, and use one; how many multiprocessors it has."""
    import torch

    made = split(driver, groups).groups
    if len(made) < groups:
        raise CudaError(f"the driver makes {len(made)} at most")
    device, green = ctypes.c_int(), ctypes.c_void_p()
    description, as_context, before = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(made[index]), 1)
    driver("cuGreenCtxCreate", ctypes.byref(green), description, device, _WITH_DEFAULT_STREAM)
    driver("cuCtxFromGreenCtx", ctypes.byref(as_context), green)
    driver("cuCtxGetCurrent", ctypes.byref(before))
    driver("cuCtxSetCurrent", as_context)
    try:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    finally:
        driver("cuCtxSetCurrent", before)
    torch.cuda.set_stream(stream)
    later = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]  # of the same pool, as those that graphs are captured on
    multiprocessors_of(driver, later.cuda_stream)
    return multiprocessors_of(driver, stream.cuda_stream)


def multiprocessors_of(driver: Driver, stream: int) -> int:
    """How many a stream of this process may use. Raises CudaError where those are not of a group."""
    green, has = ctypes.c_void_p(), _Resource()
    driver("cuStreamGetGreenCtx", ctypes.c_void_p(stream), ctypes.byref(green))
    if not green:
        raise CudaError("torch makes its streams at another time, and they use the whole GPU")
    driver("cuGreenCtxGetDevResource", green, ctypes.byref(has), _SM_RESOURCE)
    return int(has.multiprocessors)


def main() -> None:
    """Say what would be given, for whoever has no context and wants none: the sizes, or why there are none."""
    try:
        sizes = split(Driver(), int(sys.argv[1])).sizes()
    except (CudaError, OSError) as error:
        sys.exit(str(error))
    json.dump(sizes, sys.stdout)


if __name__ == "__main__":
    main()
