"""What the recorder reads of this machine beside its GPUs: the replicas' processes, and how long the kernel's tasks waited."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.metrics.catalogue import Source
from harness.metrics.rows import Missing

_STAT_BYTES = 4096
_US_PER_S = 1e6
_ENDED = Missing("the replica's process has ended")
_PRESSURE_FILES = {Source.CPU_PRESSURE: "cpu", Source.MEMORY_PRESSURE: "memory", Source.IO_PRESSURE: "io"}
CHILDREN_REFRESH_S = 5.0
"""Looking for children reads every process of the machine, so it is done once in this many seconds."""


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds used so far and resident bytes now, of one replica's processes."""

    cpu_s: float
    memory_bytes: float


class ProcessTrees:
    """CPU time and memory of replicas: of the process of each (in the order of ``pids``) and every child of it."""

    def __init__(self, pids: Sequence[int], refresh_s: float = CHILDREN_REFRESH_S) -> None:
        self._roots = [_open(pid) for pid in pids]
        self._children: list[list[psutil.Process]] = [[] for _ in pids]
        self._refresh_s = refresh_s
        self._refresh_at_s = 0.0

    def read(self) -> list[ProcessUsage | Missing]:
        """Usage of each replica, in order; a process that ended is missing."""
        if time.monotonic() >= self._refresh_at_s:
            self._find_children()
            self._refresh_at_s = time.monotonic() + self._refresh_s
        return [self._read(root, children) for root, children in zip(self._roots, self._children, strict=True)]

    def pids(self, index: int) -> frozenset[int]:
        """Process ids of one replica and its children, as last seen."""
        root = self._roots[index]
        return frozenset(process.pid for process in [root, *self._children[index]] if process is not None)

    def _read(self, root: psutil.Process | None, children: Sequence[psutil.Process]) -> ProcessUsage | Missing:
        if root is None:
            return _ENDED
        try:
            cpu_s, memory_bytes = _usage(root)
        except psutil.NoSuchProcess:
            return _ENDED
        except (psutil.Error, OSError):
            return Missing("the replica's process cannot be read")
        if not memory_bytes:  # the kernel takes a process's memory before it calls it a zombie
            return _ENDED
        for child in children:
            with suppress(psutil.Error, OSError):  # it ended; once it is waited for, its CPU time is in its parent's
                child_cpu_s, child_bytes = _usage(child)
                cpu_s, memory_bytes = cpu_s + child_cpu_s, memory_bytes + child_bytes
        return ProcessUsage(cpu_s, memory_bytes)

    def _find_children(self) -> None:
        children: dict[int, list[int]] = defaultdict(list)
        for pid, parent in _parents():
            children[parent].append(pid)
        for index, root in enumerate(self._roots):
            known = {process.pid: process for process in self._children[index]}
            pids = list(children[root.pid]) if root else []
            for pid in pids:  # which grows as it is read
                pids += children[pid]
            opened = [known.get(pid) or _open(pid) for pid in pids]
            self._children[index] = [process for process in opened if process is not None]


def _open(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except (psutil.Error, OSError):
        return None


def _usage(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds (with those of children already waited for) and resident bytes."""
    with process.oneshot():
        if process.status() == psutil.STATUS_ZOMBIE:
            raise psutil.NoSuchProcess(process.pid)
        times = process.cpu_times()
        memory_bytes = float(process.memory_info().rss)
    return times.user + times.system + times.children_user + times.children_system, memory_bytes


def _parents() -> Iterator[tuple[int, int]]:
    """Every process and its parent: by plain system calls, a sixth of what process objects cost, because it is in a tick."""
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - a thousand paths would be slow
        try:
            descriptor = os.open(f"/proc/{name}/stat", os.O_RDONLY)
        except OSError:
            continue  # it ended in between
        try:
            stat = os.read(descriptor, _STAT_BYTES)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
        # The command's name stands in parentheses and may hold anything; the parent is the second word after it.
        yield int(name), int(stat.rpartition(b")")[2].split(None, 2)[1])


class KernelPressure:
    """Pressure stall information, from ``/proc/pressure/{cpu,memory,io}``; ``root``: folder of the three files."""

    def __init__(self, root: Path = Path("/proc/pressure")) -> None:
        self._root = root

    def read(self, source: Source) -> float | Missing:
        """Seconds in which some task of this node was stalled, since boot."""
        path = self._root / _PRESSURE_FILES[source]
        try:
            text = path.read_text(encoding="ascii")
            some = next((line for line in text.splitlines() if line.startswith("some ")), "")
            return int(some.rpartition("total=")[2]) / _US_PER_S
        except FileNotFoundError:
            return Missing(f"no {path}: the kernel was built or started without PSI (boot with psi=1)")
        except OSError as error:
            return Missing(f"{path} cannot be read: {(error.strerror or str(error)).lower()}")
        except ValueError:
            return Missing(f"{path} cannot be read: it has no line `some` with a total")
