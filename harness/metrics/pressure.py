"""Pressure stall information: how long the tasks of this node waited, from ``/proc/pressure``."""

from __future__ import annotations

from pathlib import Path

from harness.metrics.catalogue import PRESSURE_SOURCES, Source
from harness.metrics.scrape import Missing

_FILES = {Source.CPU_PRESSURE: "cpu", Source.MEMORY_PRESSURE: "memory", Source.IO_PRESSURE: "io"}
_US_PER_S = 1e6


class KernelPressure:
    """Reads ``/proc/pressure/{cpu,memory,io}``.

    Args:
        root: folder of the three files; another one in tests.
    """

    def __init__(self, root: Path = Path("/proc/pressure")) -> None:
        self._paths = {source: root / _FILES[source] for source in PRESSURE_SOURCES}

    def absent(self, source: Source) -> str:
        """Why this pressure cannot be read here; empty when it can."""
        try:
            _stalled_s(self._paths[source].read_text(encoding="ascii"))
        except FileNotFoundError:
            return f"no {self._paths[source]}: the kernel was built or started without PSI (boot with psi=1)"
        except (OSError, ValueError) as error:
            return f"{self._paths[source]} cannot be read: {_short(error)}"
        return ""

    def read(self, source: Source) -> float | Missing:
        """Seconds in which some task was stalled, since boot."""
        try:
            return _stalled_s(self._paths[source].read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            return Missing(f"{self._paths[source]} cannot be read: {_short(error)}")


def _stalled_s(text: str) -> float:
    for line in text.splitlines():
        if line.startswith("some "):
            return int(line.rpartition("total=")[2]) / _US_PER_S
    raise ValueError("it has no line `some`")


def _short(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
