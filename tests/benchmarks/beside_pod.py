"""A process with the weight of a pod: in a control group of its own beside the pod's, so that both get processors alike.

A pod competes within the control groups of its node's pods, and a process of the same machine with all of them as one. What weights
give is given on each processor by itself, among those that run there: so both are also put onto the same one. Control groups of
version 1 and 2, as a kubelet makes them with either driver; moving a process takes root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

_FILES = ("cpu.weight", "cpu.shares")
"""Of version 2, of version 1."""
WAIT_S = 120.0
LOOK_S = 0.2


class NoGroupError(Exception):
    """The weights could not be made equal; the sentence says why."""


class BesidePod:
    """A control group with the weight of a pod's, for as long as it is a context.

    Args:
        root: where control groups are, as this process sees them; of version 1, where ``cpu`` is.
        uid: of the pod.
    """

    def __init__(self, root: Path, uid: str) -> None:
        self._root, self._uid = root, uid
        self._pod = root

    def __enter__(self) -> Self:
        pod = self._pod = self._of_pod()
        self._file = next(name for name in _FILES if (pod / name).is_file())
        self.weight = int((pod / self._file).read_text())
        # A kubelet ends whatever it finds in a group whose name is one of a pod that is gone.
        self.path = pod.with_name(f"beside-{self._uid}")
        self.path.mkdir()
        (self.path / self._file).write_text(str(self.weight))
        return self

    def __exit__(self, *_: object) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while self._pids() and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        self.path.rmdir()

    def take(self, pids: Sequence[int], *, cpu: int) -> None:
        """Move processes into it, with all of their threads, and have them and the pod's run on this processor alone."""
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))
        if not set(pids) <= self._pids():
            raise NoGroupError(f"{self.path} holds {sorted(self._pids())} and not {sorted(pids)}.")
        in_pod = [int(pid) for file in self._pod.rglob("cgroup.procs") for pid in file.read_text().split()]
        for pid in (*pids, *in_pod):
            for thread in Path(f"/proc/{pid}/task").iterdir():  # those that they start inherit it
                os.sched_setaffinity(int(thread.name), {cpu})

    def _pids(self) -> set[int]:
        return set(map(int, (self.path / "cgroup.procs").read_text().split()))

    def _of_pod(self) -> Path:
        """The group of the pod, whose name holds its uid, with a driver's dashes or underscores."""
        place = self._root / "cpu" if (self._root / "cpu").is_dir() else self._root
        names = (self._uid, self._uid.replace("-", "_"))
        for folder, folders, _ in os.walk(place):
            for name in folders:
                if any(one in name for one in names):
                    return Path(folder) / name
        raise NoGroupError(f"No control group below {place} is that of pod {self._uid}: is this the cluster's node?")


def replica_of(campaign: psutil.Process) -> list[int]:
    """The processes of the replica that a campaign of this machine has at work. Raises NoGroupError."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        found = [one.pid for one in campaign.children(recursive=True) if one.cmdline()[1:] == ["-m", "harness.replica"]]
        if found:
            return found
        time.sleep(LOOK_S)
    raise NoGroupError("The campaign of this machine has started no replica.")
