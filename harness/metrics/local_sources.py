"""The sources of this machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.metrics.nvml import NvmlGpus
from harness.metrics.pressure import KernelPressure
from harness.metrics.processes import ProcessTrees
from harness.metrics.scrape import Scraper
from harness.metrics.sources import ReplicaTarget, Sources


def real_sources(targets: Sequence[ReplicaTarget], used_gpus: Collection[str] | None = None) -> Sources:
    """What is read of these replicas and of the machine below them; of its GPUs those they use, None: all of them."""
    return Sources(
        replicas=Scraper([target.metrics_url for target in targets]),
        processes=ProcessTrees([target.pid for target in targets]),
        gpus=NvmlGpus(used=used_gpus),
        pressure=KernelPressure(),
    )
