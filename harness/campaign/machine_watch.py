"""What this machine does to a recording beside the replicas: its control groups' limits, and a second harness."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from harness.cgroup import Cgroup
from harness.clock import Clock
from harness.errors import ReasonCode
from harness.metrics.nvml import gpu_facts
from harness.metrics.quality import Finding, Severity
from harness.spec import Device, ExperimentSpec

LOCKS_VARIABLE = "HARNESS_LOCKS"
"""Environment: the folder of the locks, where harnesses of one machine do not share /run/lock or the temporary folder."""
WAIT_S = 60.0
"""How long an experiment waits for another harness that measures here."""
POLL_S = 0.5
THROTTLED_SHARE = 0.05
"""Of the quota's periods; with more, what is measured is the quota."""
_ALONE = "Let one harness measure on a machine, or on a GPU, at a time."


class GroupWatch:
    """The limits of this process's control groups over a recording."""

    def __init__(self, group: Cgroup | None = None) -> None:
        self._group = group or Cgroup()
        self._limits, self._counters = self._group.limits(), self._group.counters()

    def findings(self) -> Iterator[Finding]:
        """What the limits did since this was made."""
        limits = self._group.limits()
        changes = [
            f"{name} from {_words(before)} to {_words(asdict(limits)[name])}"
            for name, before in asdict(self._limits).items()
            if asdict(limits)[name] != before
        ]
        if changes:
            message = f"The limits of the cgroup changed while it was recorded: {', '.join(changes)}."
            advice = "Leave the limits as they are while a campaign runs."
            yield Finding(Severity.DEGRADED, ReasonCode.LIMITS_CHANGED, "", message, advice)
        share = self._group.counters().throttled_share(self._counters)
        if share is not None and share > THROTTLED_SHARE:
            quota = "its CPU quota" if limits.cpus is None else f"its quota of {limits.cpus:g} CPUs"
            message = f"The cgroup stopped its processes in {100 * share:.0f} % of the periods of {quota}."
            advice = (
                "Raise the quota, or give the replicas less work, so that the machine is measured and not the quota."
            )
            yield Finding(Severity.DEGRADED, ReasonCode.CPU_THROTTLED, "", message, advice)


class MachineLock:
    """Says whether another harness measures on the same GPUs, or where there are none on the same machine.

    Whoever measures holds a shared lock of each. Who comes second waits; if that takes too long it measures as well, and
    leaves a mark by which the first one knows.

    Args:
        names: of what is measured on: UUIDs of GPUs, or ``host``.
        folder: of the locks; None: the machine's.
    """

    def __init__(self, names: Sequence[str], *, folder: Path | None = None) -> None:
        self._paths = [(folder or _folder()) / f"gpu-sharing-harness-{name}.lock" for name in names]
        self._held: list[tuple[int, float]] = []
        self._contested = False
        self._problem = ""

    def acquire(self, clock: Clock, wake: threading.Event, say: Callable[[str], None], wait_s: float = WAIT_S) -> None:
        """Wait until nobody else measures, or ``wait_s`` are over, or ``wake`` is set; it is held afterwards in any case."""
        deadline_s, announced = clock.now_s() + wait_s, False
        try:
            for path in self._paths:
                descriptor = _open(path)
                while not _lock(descriptor, fcntl.LOCK_EX):
                    if not announced:
                        say(f"waits up to {wait_s:g} s for another harness that measures on this machine ({path}).")
                        announced = True
                    if clock.now_s() >= deadline_s or clock.wait_until(clock.now_s() + POLL_S, wake):
                        self._contested = True
                        with suppress(OSError):
                            os.utime(path)
                        break
                _lock(descriptor, fcntl.LOCK_SH)
                self._held.append((descriptor, os.fstat(descriptor).st_mtime_ns))
        except OSError as error:
            self._problem = f"{error.strerror} ({error.filename or self._paths[0]})"

    def release(self) -> Iterator[Finding]:
        """Let go; whether somebody else measured in the meantime. Idempotent."""
        held, self._held = self._held, []
        for descriptor, since_ns in held:
            self._contested |= os.fstat(descriptor).st_mtime_ns != since_ns
            os.close(descriptor)
        if held and self._contested:
            message = "Another harness measured on this machine at the same time, and was measured with it."
            yield Finding(Severity.DEGRADED, ReasonCode.HOST_SHARED, "", message, _ALONE)
        if self._problem:
            message = f"Whether another harness measured here at the same time is not known: {self._problem}."
            self._problem = ""
            yield Finding(Severity.INFO, ReasonCode.NOT_JUDGED, "", message)


class MachineWatch:
    """What is found about this machine while one attempt measures; of a cluster's nodes it knows nothing."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._here = False

    @contextmanager
    def alone(
        self, experiment: ExperimentSpec, clock: Clock, wake: threading.Event, say: Callable[[str], None], *, here: bool
    ) -> Iterator[None]:
        """Around all that an attempt starts: hold the locks of what it is measured on; ``wake`` ends the wait for them.

        ``here``: replicas run on this machine, in the control groups of this process.
        """
        self._here = here
        lock = MachineLock(measured_on(experiment) if here else [])
        lock.acquire(clock, wake, say)
        try:
            yield
        finally:
            self.findings += lock.release()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Around the recording: see what the limits do."""
        groups = GroupWatch()
        yield
        self.findings += groups.findings() if self._here else ()


def measured_on(experiment: ExperimentSpec) -> list[str]:
    """Names of the locks of an experiment on this machine."""
    gpus = [] if experiment.workload.device is Device.CPU else gpu_facts()[0]
    return [gpu.uuid for gpu in gpus[: experiment.gpus]] or ["host"]


def _folder() -> Path:
    named = os.environ.get(LOCKS_VARIABLE)
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named)
    shared = Path("/run/lock")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _open(path: Path) -> int:
    """A descriptor to lock; of another user's file one to read. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666)  # whatever the umask: others lock and mark it, too
    return descriptor


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _words(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"
