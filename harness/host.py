"""What a process sees of the machine below it: the machine's facts and the container's limits; and signals that it handles."""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from harness.cgroup import Cgroup


def describe_host() -> dict[str, object]:
    """The facts about the machine, as JSON can have them; None: it cannot be seen from here. Only limits that are set are there."""
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


@contextmanager
def handled_signals(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals while this is open, in the main thread alone; one that is ignored (under nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
