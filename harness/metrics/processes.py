"""CPU time and memory of a replica: its process and every child of it."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence

import psutil

from harness.metrics.scrape import Missing
from harness.metrics.sources import ProcessUsage

_STAT_BYTES = 4096

CHILDREN_REFRESH_S = 5.0
"""Looking for children reads every process of the machine, so it is done once in this many seconds."""


class ProcessTrees:
    """Reads the processes of the replicas.

    Args:
        pids: one process per replica, in the order of the results.
        refresh_s: seconds between two searches for children.
    """

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
        return [self._read_one(index) for index in range(len(self._roots))]

    def pids(self, index: int) -> frozenset[int]:
        """Process ids of one replica and its children, as last seen."""
        root = self._roots[index]
        return frozenset(process.pid for process in [root, *self._children[index]] if process is not None)

    def _read_one(self, index: int) -> ProcessUsage | Missing:
        root = self._roots[index]
        if root is None:
            return Missing("the replica's process has ended")
        try:
            cpu_s, memory_bytes = _usage(root)
        except psutil.NoSuchProcess:
            return Missing("the replica's process has ended")
        except (psutil.Error, OSError):
            return Missing("the replica's process cannot be read")
        if not memory_bytes:  # the kernel takes a process's memory before it calls it a zombie
            return Missing("the replica's process has ended")
        for child in self._children[index]:
            try:
                child_cpu_s, child_bytes = _usage(child)
            except (psutil.Error, OSError):
                continue  # it ended; once it is waited for, its CPU time is in its parent's
            cpu_s += child_cpu_s
            memory_bytes += child_bytes
        return ProcessUsage(cpu_s=cpu_s, memory_bytes=memory_bytes)

    def _find_children(self) -> None:
        children: dict[int, list[int]] = defaultdict(list)
        for pid, parent in _parents().items():
            children[parent].append(pid)
        for index, root in enumerate(self._roots):
            if root is None:
                continue
            found: list[int] = []
            frontier = list(children[root.pid])
            while frontier:
                pid = frontier.pop()
                found.append(pid)
                frontier += children[pid]
            known = {process.pid: process for process in self._children[index]}
            opened = [known.get(pid) or _open(pid) for pid in found]
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


def _parents() -> dict[int, int]:
    """Parent of every process: by plain system calls, a sixth of what process objects cost, because it is in a tick."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are wanted, a thousand paths would be slow
        if not name.isdigit():
            continue
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
        parents[int(name)] = int(stat.rpartition(b")")[2].split(None, 2)[1])
    return parents
