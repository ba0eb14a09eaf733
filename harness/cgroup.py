"""What the kernel's control groups allow a process: CPU time, CPUs, memory and processes; and what they did to it.

A container, a systemd unit and a batch job are one each. Groups are nested, and the tightest limit on the way up counts.
A controller is in version 1 or 2 of the interface, each by itself on a machine that mounts both. Inside a cgroup namespace
the way up ends at the namespace's root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

_NO_LIMIT = 1 << 60
"""Version 1 writes a number of bytes about as large as can be where there is no limit."""
_MOST_MEMORY = ("memory.max", "memory.limit_in_bytes")
T = TypeVar("T")
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limits on the way up; None: there is none. Above ``memory_high_bytes`` processes are slowed down, not killed."""

    cpus: float | None = None
    cpuset_cpus: int | None = None
    memory_bytes: int | None = None
    memory_high_bytes: int | None = None
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupCounters:
    """Since the groups were made: periods of each level's quota and how many throttled, from the own group up; kills for want of memory."""

    periods: tuple[tuple[int, int], ...] = ()
    oom_kills: int | None = None

    def throttled_share(self, before: CgroupCounters) -> float | None:
        """Of the quota's periods since ``before``, at the level that throttled most; None: there was no period."""
        pairs = zip(self.periods, before.periods, strict=False)
        since = [(now[0] - then[0], now[1] - then[1]) for now, then in pairs]
        return max((throttled / periods for periods, throttled in since if periods > 0), default=None)


class Cgroup:
    """The control groups of one process, as they are at each reading."""

    def __init__(self, pid: int | str = "self", *, proc: Path = Path("/proc")) -> None:
        self._process = proc / str(pid)

    @property
    def version(self) -> int | None:
        """Of the interface by which CPU time is limited; None: there is none."""
        folders, version = self._way_up("cpu")
        return version if folders else None

    def limits(self) -> CgroupLimits:
        """The tightest limits on the way up."""
        return CgroupLimits(
            cpus=_tightest(self._each("cpu", _quota)),
            cpuset_cpus=_first(self._each("cpuset", _cpuset)),
            memory_bytes=_tightest(self._each("memory", partial(_number, *_MOST_MEMORY))),
            memory_high_bytes=_tightest(self._each("memory", partial(_number, "memory.high"))),
            pids=_tightest(self._each("pids", partial(_number, "pids.max"))),
        )

    def counters(self) -> CgroupCounters:
        """Throttled periods of every level, and processes killed for want of memory in the groups of this process."""
        kills = _first(self._each("memory", _kills))
        if kills is None:
            kills = _words(self._process.parent / "vmstat").get("oom_kill")  # of the whole machine
        periods = [counted for counted in self._each("cpu", _periods) if counted is not None]
        return CgroupCounters(tuple(periods), kills)

    def memory_free_bytes(self) -> int | None:
        """What is left below the tightest limit, caches counted as free; None: there is no limit."""
        return _tightest(self._each("memory", _free))

    def _each(self, controller: str, read: Callable[..., T]) -> list[T]:
        """What is read at every level, from the process's own group up; files of both versions have names of their own."""
        return [read(folder=folder) for folder in self._way_up(controller)[0]]

    def _way_up(self, controller: str) -> tuple[list[Path], int]:
        """Folders of the groups that have a controller, the process's own first, and the version of their interface."""
        paths = dict(self._paths())
        mounts = list(self._mounts())
        for version, key in ((1, controller), (2, "")):
            for kind, root, place, options in mounts:
                if kind != ("cgroup2" if version == 2 else "cgroup") or key not in paths:
                    continue
                if version == 1 and controller not in options:
                    continue
                own = os.path.normpath(os.path.relpath(paths[key], root))
                below = [] if own == "." or own.startswith("..") else own.split("/")
                folders = [place.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]
                if version == 1 or any(_controls(folder, controller) for folder in folders):
                    return folders, version
        return [], 0

    def _paths(self) -> Iterator[tuple[str, str]]:
        """Path of the process's group by controller of version 1; of version 2 by the empty name."""
        for line in _text(self._process / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                yield controller, path

    def _mounts(self) -> Iterator[tuple[str, str, Path, set[str]]]:
        """Kind of file system, group that is mounted, where, and options of the hierarchy."""
        for line in _text(self._process / "mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            fields, (kind, *_, options) = before.split(), after.split()
            if kind in {"cgroup", "cgroup2"}:
                yield kind, fields[3], Path(fields[4]), set(options.split(","))


def _controls(folder: Path, controller: str) -> bool:
    """Whether a group of version 2 has the files of a controller; the hierarchy's root has none of them."""
    return controller in _text(folder / "cgroup.controllers").split() or any(folder.glob(f"{controller}.m*"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the group is gone, or is not ours to read: nothing is known of it


def _words(path: Path) -> dict[str, int]:
    """``name number`` lines."""
    pairs = [line.split() for line in _text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(*names: str, folder: Path) -> int | None:
    """Of the first of these files that has one below what stands for no limit."""
    texts = [_text(folder / name).strip() for name in names]
    return next((int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT), None)


def _quota(folder: Path) -> float | None:
    in_v1 = f"{_text(folder / 'cpu.cfs_quota_us').strip()} {_text(folder / 'cpu.cfs_period_us')}"
    quota, _, period = (_text(folder / "cpu.max") or in_v1).strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None  # "max" and -1: none


def _periods(folder: Path) -> tuple[int, int] | None:
    counted = _words(folder / "cpu.stat")
    return (counted["nr_periods"], counted.get("nr_throttled", 0)) if "nr_periods" in counted else None


def _cpuset(folder: Path) -> int | None:
    text = _text(folder / "cpuset.cpus.effective") or _text(folder / "cpuset.effective_cpus")
    text = (text or _text(folder / "cpuset.cpus")).strip()
    if not text:
        return None
    ends = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _kills(folder: Path) -> int | None:
    return (_words(folder / "memory.oom_control") | _words(folder / "memory.events")).get("oom_kill")


def _free(folder: Path) -> int | None:
    most = _number(*_MOST_MEMORY, folder=folder)
    used = _number("memory.current", "memory.usage_in_bytes", folder=folder)
    if most is None or used is None:
        return None
    counted = _words(folder / "memory.stat")
    return max(most - used + counted.get("total_inactive_file", counted.get("inactive_file", 0)), 0)


def _tightest(limits: list[N | None]) -> N | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _first(limits: list[int | None]) -> int | None:
    return next((limit for limit in limits if limit is not None), None)
