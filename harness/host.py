"""What a process sees of the machine below it: its facts and the container's limits, the signals that it handles, and locks against other harnesses."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from harness.cgroup import Cgroup
from harness.errors import DeviceInUseError

if TYPE_CHECKING:
    from harness.clock import Clock


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


LOCKS_VARIABLE = "HARNESS_LOCKS"
"""Environment: the folder of the machine's locks, where harnesses of one machine do not share /run/lock or /tmp."""
WAIT_S = 60.0
"""How long a campaign waits for another harness that measures on its GPU."""
POLL_S = 0.5
HOST = "host"
"""The lock of who measures on no GPU."""
_FLOCK = "hhqqi0q"
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""The kernel's ``struct flock`` of a write lock on everything; one of this kind belongs to the open file."""
_LOCK_NAME = "gpu-sharing-harness-{}.lock"
_open_locks: set[int] = set()


def _close_in_child() -> None:
    for descriptor in _open_locks:
        os.close(descriptor)  # a lock is its process' alone, also where a child lives longer
    _open_locks.clear()


os.register_at_fork(after_in_child=_close_in_child)


class FileLock:
    """A file that one process at a time holds; the kernel lets go of it when that process ends, however it does."""

    def __init__(self, path: Path, *, mode: int = 0o644) -> None:
        self.path, self._mode, self._descriptor = path, mode, -1

    def take(self) -> bool:
        """Take it, and name this process in it; False where somebody holds it. Raises OSError."""
        descriptor = self._open()
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        _open_locks.add(descriptor)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._descriptor in _open_locks:
            _open_locks.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1  # its number may be that of another lock by now

    def is_held(self) -> bool:
        """Whether a process holds it; asked without taking it, so that nobody who starts trips over that. Raises OSError."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            holder = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        finally:
            os.close(descriptor)
        return bool(struct.unpack(_FLOCK, holder)[0] != fcntl.F_UNLCK)

    @property
    def holder(self) -> str:
        """The id of the process that took it last."""
        try:
            return self.path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
        except OSError:
            return "unknown"

    def _open(self) -> int:
        """Without O_CREAT first: in a folder like /tmp the kernel denies that on files of other users."""
        try:
            return os.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, self._mode)
            with suppress(OSError):
                os.fchmod(descriptor, self._mode)  # whatever the umask
            return descriptor


class DeviceLocks:
    """The GPUs (by UUID) that one harness measures on, or the machine (``host``) where it needs none: nobody else measures there meanwhile."""

    def __init__(self, names: Iterable[str], *, folder: Path | None = None) -> None:
        self._folder = folder or _lock_folder()
        self._locks = {
            name: FileLock(self._folder / _LOCK_NAME.format(name), mode=0o666) for name in sorted(set(names))
        }

    def take(self, clock: Clock, wake: threading.Event, say: Callable[[str], None], wait_s: float = WAIT_S) -> None:
        """Wait for whoever holds one, for ``wait_s`` in all; returns early, with nothing held, where ``wake`` is set.

        Raises DeviceInUseError. Locks that cannot be made are said, and done without.
        """
        deadline_s, waiting = clock.now_s() + wait_s, False
        for name, lock in self._locks.items():
            try:
                while not lock.take():
                    place = "this machine" if name == HOST else name
                    holder = f"another harness (process {lock.holder}) measures on {place}"
                    if clock.now_s() >= deadline_s:
                        self.release()
                        raise DeviceInUseError(f"{holder}.", advice="Wait until it has ended, or choose another GPU.")
                    if not waiting:
                        say(f"waits up to {wait_s:g} s: {holder}.")
                        waiting = True
                    if clock.wait_until(min(clock.now_s() + POLL_S, deadline_s), wake):
                        self.release()
                        return
            except OSError as error:
                say(f"whether another harness measures here is unknown: {error.strerror} ({lock.path}).")

    def release(self) -> None:
        """Let go of all. Idempotent."""
        for lock in self._locks.values():
            lock.release()

    def beside(self) -> Iterator[str]:
        """Other harnesses that measure elsewhere on this machine, a sentence each."""
        before, after = _LOCK_NAME.split("{}")
        for path in sorted(self._folder.glob(_LOCK_NAME.format("*"))):
            name, lock = path.name.removeprefix(before).removesuffix(after), FileLock(path)
            with suppress(OSError):
                if name not in self._locks and lock.is_held():
                    place = "the CPUs" if name == HOST else name
                    yield f"note: another harness (process {lock.holder}) measures on {place} of this machine."


def _lock_folder() -> Path:
    """Where all users of the machine have their locks, if any such folder can be written."""
    named = os.environ.get(LOCKS_VARIABLE)
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named)
    folders = [Path("/run/lock"), Path("/tmp"), Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())]  # noqa: S108 - shared with other users on purpose
    return next((folder for folder in folders if os.access(folder, os.W_OK)), folders[-1])
