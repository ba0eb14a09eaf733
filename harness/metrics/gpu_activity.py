"""What a GPU's processors really did, from NVML's GPU performance monitoring (GPM): Hopper and newer, without root.

"GPU utilisation" says that some kernel ran. These say how much of the GPU it kept busy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from harness.metrics.scrape import Missing

_BYTES_PER_MIB = 1048576.0


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """Averages over the time since the reading before, or since the reader was made.

    Attributes:
        sm_active_percent: share of time x streaming multiprocessors (SMs) with work on them.
        sm_occupancy_percent: warps that were resident, of those that the SMs can hold.
        tensor_active_percent: share of time in which the tensor cores computed.
        dram_active_percent: share of the memory's bandwidth that was in use.
        pcie_sent_bytes_per_s: from the GPU to the host.
        pcie_received_bytes_per_s: from the host to the GPU.
    """

    sm_active_percent: float | Missing
    sm_occupancy_percent: float | Missing
    tensor_active_percent: float | Missing
    dram_active_percent: float | Missing
    pcie_sent_bytes_per_s: float | Missing
    pcie_received_bytes_per_s: float | Missing


_METRICS = (
    ("NVML_GPM_METRIC_SM_UTIL", 1.0),
    ("NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    ("NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", _BYTES_PER_MIB),
    ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", _BYTES_PER_MIB),
)
"""By field of ``GpuActivity``: NVML's name, and what its value is multiplied by."""


def unknown(reason: Missing) -> GpuActivity:
    """No value at all, for this reason."""
    return GpuActivity(*(reason for _ in fields(GpuActivity)))


class ActivityReader:
    """Reads one device; each reader has intervals of its own.

    Args:
        nvml: the ``pynvml`` module, initialised.
        device: NVML's handle.
    """

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml = nvml
        self._device = device
        self._samples: list[Any] = []
        """The interval's begin, then the one to be filled with its end."""
        self._absent = self._open()

    def read(self) -> GpuActivity:
        """Averages since the last call."""
        if self._absent is not None:
            return unknown(self._absent)
        begin, end = self._samples
        try:
            self._nvml.nvmlGpmSampleGet(self._device, end)
            activity = self._between(begin, end)
        except self._nvml.NVMLError as error:
            return unknown(Missing(f"NVML: {error}"))
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

    def _between(self, begin: Any, end: Any) -> GpuActivity:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        asked.sample1, asked.sample2 = begin, end
        for metric, (name, _) in zip(asked.metrics, _METRICS, strict=False):
            metric.metricId = getattr(nvml, name)
        nvml.nvmlGpmMetricsGet(asked)
        return GpuActivity(
            *(
                metric.value * scale if metric.nvmlReturn == nvml.NVML_SUCCESS else Missing("NVML: not on this GPU")
                for metric, (_, scale) in zip(asked.metrics, _METRICS, strict=False)
            )
        )
