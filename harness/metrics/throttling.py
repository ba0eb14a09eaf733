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
    for gpu, masks in reasons(telemetry).items():
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


def reasons(telemetry: Path) -> dict[str, Counter[int]]:
    """How often each GPU, by its name in the columns, gave each mask of NVML's reasons; none without the file."""
    found: dict[str, Counter[int]] = {}
    if telemetry.is_file():
        with telemetry.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            columns = [(at, name) for at, name in enumerate(next(rows, ())) if name.endswith(_COLUMN)]
            for row in rows:
                for at, name in columns:
                    if row[at:] and row[at]:
                        found.setdefault(name.removesuffix(_COLUMN), Counter())[int(float(row[at]))] += 1
    return found


def _share(masks: Counter[int], bits: int) -> float:
    return sum(count for mask, count in masks.items() if mask & bits) / masks.total()
