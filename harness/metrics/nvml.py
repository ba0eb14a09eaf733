"""NVIDIA devices through NVML (``import pynvml``, package nvidia-ml-py), loaded only when asked for."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.metrics.catalogue import CATALOGUE
from harness.metrics.rows import Missing

T = TypeVar("T")
VISIBLE = "CUDA_VISIBLE_DEVICES"

GAUGES: dict[str, Callable[[Any, Any], float]] = {
    "utilization_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "temperature_celsius": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "throttle_reasons": lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
}
"""How each gauge is read of the ``pynvml`` module and a device; reasons are a bit mask, energy counts since the driver loaded.
All are columns of ``telemetry.csv``; those that the catalogue names are metrics, too.
"""

_BYTES_PER_MIB = 1048576.0
ACTIVITY = {
    "sm_active_percent": ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    "sm_occupancy_percent": ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    "tensor_active_percent": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    "dram_active_percent": ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    "pcie_sent_bytes_per_s": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", _BYTES_PER_MIB),
    "pcie_received_bytes_per_s": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", _BYTES_PER_MIB),
    "nvlink_sent_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _BYTES_PER_MIB),
    "nvlink_received_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _BYTES_PER_MIB),
}
"""What the GPU's processors really did since the reading before, from NVML's GPU performance monitoring (GPM), on Hopper and
newer, without root: NVML's name and what its value is multiplied by. "GPU utilisation" says only that some kernel ran.
SM active is the share of time x streaming multiprocessors (SMs) with work on them, occupancy the resident warps of those that
the SMs can hold, DRAM active the share of the memory's bandwidth in use; NVLink counts all links.
"""
_BITS = 64  # of one word of a CPU mask
MISMATCH_ADVICE = ": its library is of another version than the loaded driver; reboot"
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One reading of one device: its gauges by name, and memory by process id where the driver tells."""

    gauges: Mapping[str, float | Missing]
    process_memory_bytes: Mapping[int, int] | Missing


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU, as preflight needs it.

    Attributes:
        total_bytes: None, as ``free_bytes``: the driver does not say, as of a vGPU, or where GPU and CPU have one memory.
        uuid: what CUDA_VISIBLE_DEVICES may call it; means the same to every process, unlike its number.
        compute_mode: default, exclusive-process, prohibited; empty when the device does not tell.
        near_cpus: those of its NUMA node; none where the driver does not tell.
    """

    name: str
    total_bytes: int | None
    free_bytes: int | None
    uuid: str = ""
    compute_mode: str = ""
    mig: bool = False
    mig_uuids: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    near_cpus: tuple[int, ...] = ()
    driver: str = ""


class NvmlGpus:
    """The devices that replicas started from this environment would see; ``absent``: why there is none.

    ``used``: UUIDs of those that replicas use, the others being nobody's business; None: all of them. ``activity``:
    ``read_telemetry`` will be called, which keeps samples of each device's activity.
    """

    def __init__(self, library: Any = None, *, used: Collection[str] | None = None, activity: bool = False) -> None:
        self._nvml, handles, why = _opened(library)
        self._handles = [
            handle for handle in handles if used is None or str(self._nvml.nvmlDeviceGetUUID(handle)) in used
        ]
        self.absent = "" if self._handles else why
        if not self._handles and self._nvml is not None:
            self._nvml.nvmlShutdown()
            none_visible = why or f"the driver is loaded and lists no device that {VISIBLE} lets through"
            self.absent = f"no GPU: {none_visible if used is None else 'no replica uses one'}"
        self._activity = [_Activity(self._nvml, handle) for handle in self._handles if activity]

    @property
    def count(self) -> int:
        """How many devices are read."""
        return len(self._handles)

    def read(self) -> list[GpuUsage]:
        """What the recorder wants of every device."""
        names = [metric.gauge for metric in CATALOGUE.values() if metric.gauge]
        return [GpuUsage(self._gauges(names, handle), self._process_memory(handle)) for handle in self._handles]

    def read_telemetry(self) -> list[dict[str, float | Missing]]:
        """What the telemetry series wants of every device: ``GAUGES`` and ``ACTIVITY``."""
        pairs = zip(self._handles, self._activity, strict=True)
        return [self._gauges(GAUGES, handle) | activity.read() for handle, activity in pairs]

    def idle_power(self) -> dict[str, float | Missing]:
        """Watts of every device now, by UUID, where no process computes on it."""
        return {str(self._nvml.nvmlDeviceGetUUID(handle)): self._idle_power(handle) for handle in self._handles}

    @property
    def uuids(self) -> list[str]:
        """Of the devices that are read, in order."""
        return [str(self._nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles]

    def hottest_celsius(self) -> float:
        """Temperature of the hottest device now; infinite where there is none, or one does not tell."""
        readings = [self._gauges(["temperature_celsius"], handle)["temperature_celsius"] for handle in self._handles]
        return max((math.inf if isinstance(reading, Missing) else reading for reading in readings), default=math.inf)

    def close(self) -> None:
        """Let go of the driver."""
        for reader in self._activity:
            reader.close()
        self._activity = []
        if self._handles:
            self._handles = []
            self._nvml.nvmlShutdown()

    def _idle_power(self, handle: Any) -> float | Missing:
        if pids := _ask(self._nvml, lambda: [it.pid for it in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]):
            return Missing(f"process {pids[0]} computed on the GPU before the replicas started")
        return self._gauges(["power_w"], handle)["power_w"]

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

    def _gauges(self, names: Iterable[str], handle: Any) -> dict[str, float | Missing]:
        values: dict[str, float | Missing] = {}
        for name in names:
            try:
                values[name] = float(GAUGES[name](self._nvml, handle))
            except self._nvml.NVMLError as error:
                values[name] = Missing(f"NVML: {_clip(str(error))}")
        return values


class _Activity:
    """Reads the activity of one device; each reader has intervals of its own, the first since it was made."""

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml = nvml
        self._device = device
        self._samples: list[Any] = []
        """The interval's begin, then the one to be filled with its end."""
        self._absent = self._open()

    def read(self) -> dict[str, float | Missing]:
        """Averages since the last call."""
        if self._absent is not None:
            return dict.fromkeys(ACTIVITY, self._absent)
        begin, end = self._samples
        try:
            self._nvml.nvmlGpmSampleGet(self._device, end)
            activity = self._between(begin, end)
        except self._nvml.NVMLError as error:
            return dict.fromkeys(ACTIVITY, Missing(f"NVML: {error}"))
        self._samples = [end, begin]
        return activity

    def close(self) -> None:
        """Free the samples; before NVML is shut down."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []

    def _open(self) -> Missing | None:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                return Missing("NVML: this GPU has no performance monitoring (Hopper and newer have it)")
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(self._device, self._samples[0])
        except nvml.NVMLError as error:
            return Missing(f"NVML: {error}")
        return None

    def _between(self, begin: Any, end: Any) -> dict[str, float | Missing]:
        nvml = self._nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ACTIVITY)
        query.sample1, query.sample2 = begin, end
        for metric, (name, _) in zip(query.metrics, ACTIVITY.values(), strict=False):
            metric.metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(query)
        values: dict[str, float | Missing] = {}
        for metric, (name, (_, scale)) in zip(query.metrics, ACTIVITY.items(), strict=False):
            if metric.nvmlReturn != nvml.NVML_SUCCESS:
                values[name] = Missing("NVML: not on this GPU")
            elif not math.isfinite(metric.value):  # seen where several read the counters at once
                values[name] = Missing("NVML: no number")
            else:
                values[name] = six_digits(metric.value * scale)
        return values


def six_digits(value: float) -> float:
    """An average of ``ACTIVITY`` as it is kept: counters read over a fraction of a second tell no more, and noise cannot be packed."""
    return float(f"{value:.6g}")


def gpu_facts(library: Any = None) -> tuple[list[GpuFacts], str]:
    """The GPUs that NVML shows and CUDA_VISIBLE_DEVICES lets through, in its order; and why there is none, or one less."""
    facts, why = _of_each(_facts, library)
    return facts, why or ("" if facts else f"the driver shows no device that {VISIBLE} lets through")


def gpu_descriptions(library: Any = None) -> tuple[list[dict[str, Any]], str]:
    """The same GPUs as a manifest describes them (``Gpu``); the reason is empty where there is a driver without a GPU."""
    descriptions, why_none = _of_each(describe, library)
    return descriptions, "" if descriptions else why_none


def _of_each(read: Callable[[Any, Any], T], library: Any) -> tuple[list[T], str]:
    """What is read of each device, and what keeps one from being read."""
    nvml, handles, why = _opened(library)
    if nvml is None:
        return [], why
    read_of: list[T] = []
    try:
        for handle in handles:
            try:
                read_of.append(read(nvml, handle))
            except nvml.NVMLError as error:
                why = "; ".join(filter(None, (why, f"a GPU cannot be read: NVML says {_clip(str(error))}")))
    finally:
        nvml.nvmlShutdown()
    return read_of, why


def _opened(library: Any) -> tuple[Any, list[Any], str]:
    """The library, initialised, the devices that CUDA_VISIBLE_DEVICES lets through, and which GPU is broken; or None and why not."""
    nvml = library
    try:
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
    except ImportError:
        return None, [], "no NVML: the Python package nvidia-ml-py is not installed"
    except nvml.NVMLError as error:
        if "Shared Library Not Found" in str(error):
            return None, [], "no NVIDIA driver: libnvidia-ml.so.1 not found"
        mend = MISMATCH_ADVICE if "version mismatch" in str(error) else ""
        return None, [], f"no NVIDIA driver: NVML says {_clip(str(error))}{mend}"
    known: list[tuple[str, Any]] = []
    broken = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                known.append((str(nvml.nvmlDeviceGetUUID(handle)), handle))
            except nvml.NVMLError as error:
                broken.append(f"GPU {index} is broken: NVML says {_clip(str(error))}")
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        return None, [], f"no GPU: NVML says {_clip(str(error))}"
    return nvml, _visible(known), "; ".join(broken)


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    running = _ask(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
    return GpuFacts(
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        compute_mode=_COMPUTE_MODES.get(_ask(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)), ""),
        driver=_ask(nvml, lambda: str(nvml.nvmlSystemGetDriverVersion()), ""),
        mig=bool(_ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0)),
        mig_uuids=tuple(_mig_uuids(nvml, handle)),
        processes=tuple(process.pid for process in running),
        near_cpus=tuple(_near_cpus(nvml, handle)),
    )


def _near_cpus(nvml: Any, handle: Any) -> Iterator[int]:
    """None on a machine with one node, and in some virtual ones."""
    words = -(-(os.cpu_count() or 1) // _BITS)
    for place, mask in enumerate(_ask(nvml, lambda: nvml.nvmlDeviceGetCpuAffinity(handle, words), ())):
        yield from (place * _BITS + bit for bit in range(_BITS) if mask >> bit & 1)


def _mig_uuids(nvml: Any, handle: Any) -> Iterator[str]:
    for place in range(_ask(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)):
        with contextlib.suppress(nvml.NVMLError):  # no instance in this place
            yield str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)))


def describe(nvml: Any, handle: Any) -> dict[str, Any]:
    """One device as a manifest describes it; None for what it does not tell."""

    def ask(question: Callable[[], Any]) -> Any:
        return _ask(nvml, question)

    cuda = ask(nvml.nvmlSystemGetCudaDriverVersion)
    power_mw = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    mig = ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    mode = ask(lambda: nvml.nvmlDeviceGetComputeMode(handle))
    return {
        "index": nvml.nvmlDeviceGetIndex(handle),
        "name": str(nvml.nvmlDeviceGetName(handle)),
        "uuid": str(nvml.nvmlDeviceGetUUID(handle)),
        "memory_bytes": ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "driver": ask(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "clock_sm_max_mhz": ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "clock_memory_max_mhz": ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "clock_sm_applied_mhz": ask(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)),
        "power_limit_w": None if power_mw is None else power_mw / 1000,
        "compute_mode": None if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
        "mig": None if mig is None else bool(mig),
    }


def _ask(nvml: Any, question: Callable[[], Any], default: Any = None) -> Any:
    """Not every device answers every question, e.g. for clocks inside a container."""
    try:
        return question()
    except nvml.NVMLError:
        return default


def _visible(known: list[tuple[str, Any]]) -> list[Any]:
    """The devices that CUDA_VISIBLE_DEVICES leaves of those with these UUIDs, in its order; all of them when it is not set."""
    handles, wanted = [handle for _, handle in known], os.environ.get(VISIBLE)
    if wanted is None:
        return handles
    by_name = {str(index): handle for index, handle in enumerate(handles)}
    chosen: list[Any] = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        named = [by_name[name]] if name in by_name else [it for uuid, it in known if uuid.startswith(name)]
        if not named:
            # CUDA itself stops at the first name it does not know, but a MIG name stands for a slice of a device.
            if name.startswith("MIG-"):
                return handles
            break
        chosen.append(named[0])
    return chosen


def _clip(message: str) -> str:
    return message if len(message) <= 80 else message[:77] + "..."
