"""Whether a GPU was held back while it was measured: by its power cap, by heat, or by the hardware."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity

POWER_CAP = 0x4
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's clock event reasons: hardware slowdown, heat by software and by hardware, power brake."""
TOLD_SHARE = 0.01
_COLUMN = "_throttle_reasons"


def held_back(telemetry: Path) -> Iterator[Finding]:
    """A finding for each GPU of ``telemetry.csv`` that was held back in more than 1 % of its readings; none without the file."""
    if not telemetry.is_file():
        return
    readings: dict[str, Counter[int]] = {}
    with telemetry.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for column, value in row.items():
                if column and column.endswith(_COLUMN) and value:
                    readings.setdefault(column.removesuffix(_COLUMN), Counter())[int(float(value))] += 1
    for gpu, masks in readings.items():
        slowed, capped = _share(masks, SLOWED), _share(masks, POWER_CAP)
        name = gpu.replace("gpu", "gpu-")
        if slowed > TOLD_SHARE:
            yield Finding(
                Severity.DEGRADED,
                ReasonCode.GPU_SLOWED,
                "",
                f"{name} was slowed by heat or by its hardware in {slowed:.0%} of the readings.",
                "Mend the cooling or the power supply, or let it cool down between experiments (timing.cooldown_gpu_celsius).",
            )
        if capped > TOLD_SHARE:
            yield Finding(
                Severity.INFO,
                ReasonCode.POWER_CAP,
                "",
                f"{name} ran at its power cap in {capped:.0%} of the readings: the cap set its clock.",
            )


def power_capped(masks: Iterable[float]) -> float:
    """Share of the readings of NVML's reasons, between 0 and 1, at which the power cap set the clock."""
    return _share(Counter(int(mask) for mask in masks), POWER_CAP)


def _share(masks: Counter[int], bits: int) -> float:
    return sum(count for mask, count in masks.items() if mask & bits) / masks.total()
