"""What the driver says of a replica's whole GPU, by NVML through ctypes: under MPS, CUDA knows no more than the replica's share."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores of one SM by compute capability, where they are not 128."""
_SM_CLOCK, _MEMORY_CLOCK = 1, 2


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def whole_gpu(uuid: str, library: Any = None) -> Mapping[str, object]:
    """Facts as a manifest names them (``Gpu``), and ``multiprocessors`` of the whole; those that the driver does not tell are left out."""
    try:
        nvml = library or ctypes.CDLL(LIBRARY)
        if nvml.nvmlInit_v2() != 0:
            return {}
    except OSError:
        return {}
    try:
        return {key: value for key, value in _facts(nvml, uuid).items() if value}
    except AttributeError:  # a library that is older than one of these functions
        return {}
    finally:
        nvml.nvmlShutdown()


def _facts(nvml: Any, uuid: str) -> dict[str, object]:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return {}

    def number(function: Any, *before: object) -> int:
        value = ctypes.c_uint()
        return value.value if function(*before, ctypes.byref(value)) == 0 else 0

    version, memory = ctypes.create_string_buffer(96), _Memory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda = number(nvml.nvmlSystemGetCudaDriverVersion)
    cores = number(nvml.nvmlDeviceGetNumGpuCores, handle)
    known = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
    has_memory = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return {
        "driver": version.value.decode() if nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0 else "",
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        "memory_bytes": memory.total if has_memory else 0,
        "power_limit_w": number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle) / 1000,
        "clock_sm_max_mhz": number(nvml.nvmlDeviceGetMaxClockInfo, handle, _SM_CLOCK),
        "clock_memory_max_mhz": number(nvml.nvmlDeviceGetMaxClockInfo, handle, _MEMORY_CLOCK),
        "multiprocessors": cores // _CORES.get((major.value, minor.value), 128) if known else 0,
    }
