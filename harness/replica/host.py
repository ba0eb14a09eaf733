"""What a replica sees of the machine below it: inside a container, too, these are the machine's and not the container's."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe_host() -> dict[str, object]:
    """Return the facts about the machine that ``replica.json`` carries; None: it cannot be seen from here."""
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "cpu_model": _field("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cgroup_version": _cgroup_version(),
        "psi": Path("/proc/pressure/cpu").exists(),
    }


def _cgroup_version() -> int | None:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return 2
    return 1 if (root / "cpu").exists() else None


def _field(path: str, name: str) -> str | None:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
