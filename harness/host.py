"""What a process sees of the machine below it: inside a container these are the machine's facts, and the container's limits."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path

from harness.cgroup import Cgroup


def describe_host() -> dict[str, object]:
    """Return the facts about the machine, as JSON can have them; None: it cannot be seen from here.

    ``limits`` are those of the control groups that this process is in; one that is not set is left out.
    """
    group = Cgroup()
    memory = _field("/proc/meminfo", "MemTotal")
    return {
        "cpu_model": _field("/proc/cpuinfo", "model name") or platform.processor() or None,
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cgroup_version": group.version,
        "psi": Path("/proc/pressure/cpu").exists(),
        "limits": {name: limit for name, limit in asdict(group.limits()).items() if limit is not None},
    }


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
