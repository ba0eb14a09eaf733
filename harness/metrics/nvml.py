"""NVIDIA devices through NVML (``import pynvml``, package nvidia-ml-py), loaded only when asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from harness.metrics.gpu_activity import ActivityReader, GpuActivity
from harness.metrics.scrape import Missing
from harness.metrics.sources import GpuUsage

VISIBLE = "CUDA_VISIBLE_DEVICES"
_MW_PER_W = 1000.0
_MJ_PER_J = 1000.0


@dataclass(frozen=True, slots=True)
class GpuTelemetry:
    """One fast reading of one device; throttle reasons as NVML's bit mask, energy since the driver loaded."""

    utilization_percent: float | Missing
    memory_bytes: float | Missing
    power_w: float | Missing
    temperature_celsius: float | Missing
    sm_clock_mhz: float | Missing
    memory_clock_mhz: float | Missing
    throttle_reasons: float | Missing
    energy_j: float | Missing
    activity: GpuActivity


class NvmlGpus:
    """The devices that replicas started from this environment would see.

    Args:
        library: stands in for the ``pynvml`` module in tests.
        used: UUIDs of those that replicas use, the others being nobody's business; None: all of them.
    """

    def __init__(self, library: Any = None, *, used: Collection[str] | None = None) -> None:
        self._nvml: Any = library
        self._used = used
        self._handles: list[Any] = []
        self.absent = self._open()
        self._activity = [ActivityReader(self._nvml, handle) for handle in self._handles]

    @property
    def count(self) -> int:
        """How many devices are read."""
        return len(self._handles)

    def read(self) -> list[GpuUsage]:
        """What the recorder wants of every device."""
        return [
            GpuUsage(
                utilization_percent=self._get(self._utilization, handle),
                memory_bytes=self._get(self._memory, handle),
                power_w=self._get(self._power, handle),
                temperature_celsius=self._get(self._temperature, handle),
                process_memory_bytes=self._process_memory(handle),
            )
            for handle in self._handles
        ]

    def read_telemetry(self) -> list[GpuTelemetry]:
        """What the telemetry series wants of every device."""
        nvml = self._nvml
        return [
            GpuTelemetry(
                utilization_percent=self._get(self._utilization, handle),
                memory_bytes=self._get(self._memory, handle),
                power_w=self._get(self._power, handle),
                temperature_celsius=self._get(self._temperature, handle),
                sm_clock_mhz=self._get(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
                memory_clock_mhz=self._get(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
                throttle_reasons=self._get(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
                energy_j=self._get(self._energy, handle),
                activity=activity.read(),
            )
            for handle, activity in zip(self._handles, self._activity, strict=True)
        ]

    def close(self) -> None:
        """Let go of the driver."""
        for reader in self._activity:
            reader.close()
        self._activity = []
        if self._handles:
            self._handles = []
            self._nvml.nvmlShutdown()

    def _open(self) -> str:
        """Open the library and the devices; the reason why there is none, or nothing."""
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
        except ImportError:
            return "no NVML: the Python package nvidia-ml-py is not installed"
        except self._nvml.NVMLError as error:
            return _no_driver(str(error))
        try:
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
            self._handles = [handle for handle in visible(self._nvml, handles) if self._is_used(handle)]
        except self._nvml.NVMLError as error:
            self._nvml.nvmlShutdown()
            return f"no GPU: NVML says {_clip(str(error))}"
        if not self._handles:
            self._nvml.nvmlShutdown()
            if self._used is not None:
                return "no GPU: no replica uses one"
            return "no GPU: the driver is loaded and lists no device that CUDA_VISIBLE_DEVICES lets through"
        return ""

    def _is_used(self, handle: Any) -> bool:
        return self._used is None or str(self._nvml.nvmlDeviceGetUUID(handle)) in self._used

    def _utilization(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)

    def _memory(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def _power(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(handle)) / _MW_PER_W

    def _temperature(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def _energy(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / _MJ_PER_J

    def _process_memory(self, handle: Any) -> dict[int, int] | Missing:
        nvml = self._nvml
        memory: dict[int, int] = {}
        try:
            running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except nvml.NVMLError as error:
            return Missing(f"NVML: {_clip(str(error))}")
        # Older drivers do not tell MPS clients apart; then the first list is all there is.
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            running += nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        for process in running:
            if process.usedGpuMemory is None:
                return Missing("NVML does not give memory per process here")
            memory[process.pid] = int(process.usedGpuMemory)
        return memory

    def _get(self, call: Callable[..., float], *arguments: Any) -> float | Missing:
        try:
            return float(call(*arguments))
        except self._nvml.NVMLError as error:
            return Missing(f"NVML: {_clip(str(error))}")


def visible(nvml: Any, handles: list[Any]) -> list[Any]:
    """The devices that CUDA_VISIBLE_DEVICES leaves of all there are, in its order; all of them when it is not set."""
    wanted = os.environ.get(VISIBLE)
    if wanted is None:
        return handles
    by_name: dict[str, Any] = {str(index): handle for index, handle in enumerate(handles)}
    uuids = [(str(nvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]
    chosen: list[Any] = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        found = [by_name[name]] if name in by_name else [handle for uuid, handle in uuids if uuid.startswith(name)]
        if not found:
            # CUDA itself stops at the first name it does not know, but a MIG name stands for a slice of a device.
            if name.startswith("MIG-"):
                return handles
            break
        chosen.append(found[0])
    return chosen


def _no_driver(message: str) -> str:
    if "Shared Library Not Found" in message:
        return "no NVIDIA driver: libnvidia-ml.so.1 not found"
    return f"no NVIDIA driver: NVML says {_clip(message)}"


def _clip(message: str, limit: int = 80) -> str:
    return message if len(message) <= limit else message[: limit - 3] + "..."
