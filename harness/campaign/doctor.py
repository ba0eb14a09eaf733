"""What can be measured on this machine, what cannot, and why."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.backends.devices import gpu_facts
from harness.extras import EXTRA_OF, absent, advice_on


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.

    Attributes:
        ok: it is as a full measurement wants it.
        required: without it nothing can be run; otherwise only some metrics are absent.
    """

    name: str
    ok: bool
    required: bool
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def examine() -> list[Check]:
    """Every check, in the order a reader wants them. Starts nothing."""
    checks: list[Callable[[], Check]] = [_python, _packages, _cpus, _memory, _gpu, _pressure, _swap, _load]
    return [check() for check in checks]


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check("python", ok, True, platform.python_version(), "" if ok else "Use Python 3.11 or newer.")


def _packages() -> Check:
    missing = absent(*EXTRA_OF)
    found = f"missing: {', '.join(missing)}" if missing else "all there"
    advice = " or ".join(dict.fromkeys(advice_on(name) for name in missing))
    return Check("packages", not missing, False, found, advice)


def _cpus() -> Check:
    usable = len(os.sched_getaffinity(0))
    advice = "" if usable >= 4 else "Replicas on the CPU will compete with each other and with the recorder."
    return Check("cpus", usable >= 4, False, f"{usable} usable", advice)


def _memory() -> Check:
    free = psutil.virtual_memory().available
    return Check(
        "memory", free > 4e9, False, f"{free / 1e9:.1f} GB available", "" if free > 4e9 else "Large models may not fit."
    )


def _gpu() -> Check:
    gpus, reason = gpu_facts()
    if not gpus:
        return Check(
            "gpu",
            False,
            False,
            f"none: {reason}",
            "Replicas run on the CPU; gpu_* metrics will be absent with this reason.",
        )
    found = ", ".join(f"{gpu.name} ({gpu.free_bytes / 1e9:.0f} of {gpu.total_bytes / 1e9:.0f} GB free)" for gpu in gpus)
    return Check("gpu", True, False, found)


def _pressure() -> Check:
    missing = [name for name in ("cpu", "memory", "io") if not _readable(Path("/proc/pressure") / name)]
    if missing:
        advice = "Boot with psi=1 (kernel 4.20 or newer); until then *_psi metrics are absent with this reason."
        return Check("psi", False, False, f"/proc/pressure/{missing[0]} cannot be read", advice)
    return Check("psi", True, False, "/proc/pressure is there")


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _swap() -> Check:
    swap = psutil.swap_memory()
    ok = swap.total == 0
    return Check(
        "swap",
        ok,
        False,
        "off" if ok else f"{swap.total / 1e9:.1f} GB on",
        "" if ok else "Swapping distorts latencies; swapoff -a, or the node playbook.",
    )


def _load() -> Check:
    load_1min, usable = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load_1min > 0.5 * usable
    return Check(
        "load",
        not busy,
        False,
        f"{load_1min:.1f} on {usable} CPUs",
        "Other work runs here and will be measured with yours." if busy else "",
    )
