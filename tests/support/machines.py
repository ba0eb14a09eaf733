"""GPUs as preflight sees them."""

from dataclasses import replace

from harness.metrics.nvml import GpuFacts

GPU = GpuFacts("NVIDIA H200", 150_000_000_000, 149_000_000_000, compute_mode="default")


def gpu(**changes):
    return replace(GPU, **changes)
