"""Every error this package raises on purpose, and the exit code each one ends the command with.

    HarnessError                 1   anything below; a bare one is an internal error
    ├── UsageError               2   the command or one of its arguments is wrong
    │   ├── CampaignFileError    2   the campaign file does not say what can be run
    │   ├── ResultsPathError     2   the path is not a results folder of ours
    │   └── UnlikeResultsError   2   results of unlike machines are not compared unless told
    ├── PreflightError           3   this machine cannot run what was asked
    ├── ExperimentsFailedError   4   the campaign ended, with INVALID experiments in it
    ├── ObjectiveMissedError    11   --fail-on slo: an objective is not met, or it cannot be decided
    ├── NotReproducedError      12   a campaign that ran again gives other figures than the published one
    ├── RegressionError         13   --fail-on regression: a cell is worse than the baseline, or none can be compared
    ├── DegradedError           14   --fail-on degraded: experiments are DEGRADED
    ├── VerificationError        5   files on disk are not what the manifest says
    ├── ConflictError            6   another harness holds the campaign, or it changed since it began
    ├── DeviceInUseError        15   another harness measures on the same GPU, or without one on the same machine
    ├── StorageError             7   the results folder cannot be written (rights, full disk)
    ├── LoadError                1   in a replica: what is to be asked cannot be read; it ends with 3
    ├── BackendError             8   replicas could not be started, watched or stopped
    │   ├── ReplicaDiedError     8   a replica ended by itself; carries its last log lines
    │   ├── ClusterError         8   the Kubernetes API was not reached, or refused
    │   ├── AwayError            8   what is needed may come back by itself: a campaign waits for it
    │   └── ImageError           8   a pod's image cannot be had: what needs it is still to be run, and not written off
    ├── MetricsError             9   a metric could not be read
    │   ├── PrometheusError      9   the server refused, timed out or answered with an error
    │   │   └── PrometheusUnavailableError 9 it did not answer at all; asking again later may help
    │   └── NoDataError          9   the query is right and nothing matches it
    ├── NodeError               10   provisioning or verifying the node failed
    │   ├── PlaybookError       10   Ansible could not begin: inventory, syntax, a missing file
    │   ├── TaskFailedError     10   a task failed on a host
    │   ├── NodeAccessError     10   sudo or ssh of a host lets nobody work there
    │   ├── NodeUnreachableError 10  a host did not answer
    │   ├── NodeTimeoutError    10   the run took longer than it was allowed to
    │   └── NodeInterruptedError 130 stopped by SIGINT or SIGTERM; every process of the run has ended
    └── CampaignInterruptedError 130 stopped by SIGINT or SIGTERM; the campaign can be resumed

A message is a full sentence that says what failed and where; ``advice`` says what to do next.
Foreign exceptions are chained (``raise ... from error``), never swallowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

EXIT_CODES = {
    0: "done",
    1: "internal error",
    2: "wrong command, campaign file or path; a file that is not written over",
    3: "preflight refused",
    4: "finished with INVALID experiments",
    5: "files are not what the manifest says",
    6: "in use by another harness, or changed since it began",
    7: "results folder cannot be written",
    8: "replicas failed",
    9: "a metric could not be read",
    10: "the node failed",
    11: "an objective is not met or inconclusive (--fail-on slo)",
    12: "a published campaign was not reproduced",
    13: "worse than the baseline, or none can be compared (--fail-on regression)",
    14: "DEGRADED experiments (--fail-on degraded)",
    15: "another harness measures on the same GPU",
    130: "interrupted (resume goes on)",
    141: "broken pipe: the reader closed it, as head does",
}
"""What the command ends with. Of what --fail-on asks for, the lowest that applies."""
_LAYOUT = "\n\t"
_BYTE = re.compile("[\udc80-\udcff]")
"""One of a file's name that is no text."""
_SEQUENCE = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]?")
"""A command to a terminal: a title, a colour, a move."""


class ReasonCode(StrEnum):
    """Why an experiment is not VALID, or what was remarked on it, for programs; the sentence beside it is for people."""

    REFUSED = "refused"
    """Preflight found something that speaks against running it."""
    OUT_OF_MEMORY = "out-of-memory"
    """Replicas need more memory than there is: seen before they started, or said by one that ended."""
    REPLICA_DIED = "replica-died"
    NEIGHBOUR_DIED = "neighbour-died"
    VICTIM_SURVIVED = "victim-survived"
    VICTIM_DIED = "victim-died"
    """What a neighbour's crash, which was wanted, did to the measured replicas."""
    NEIGHBOUR_APART = "neighbour-apart"
    """What should share a GPU with a neighbour does not, or does not show it."""
    UNCLEAN_END = "unclean-end"
    """Something had to be killed at the end, or ended with an error."""
    BACKEND = "backend"
    """Replicas could not be started, watched or stopped."""
    NOT_ON_GPU = "not-on-gpu"
    """A server that should be on a GPU answers requests, and no process of it is there."""
    METRICS = "metrics"
    STORAGE = "storage"
    VERIFICATION = "verification"
    STEP_FAILED = "step-failed"
    """A step failed for another reason."""
    ROWS = "rows"
    """Rows are missing, doubled or off the grid."""
    NO_VALUE = "no-value"
    MISSING_VALUES = "missing-values"
    IMPOSSIBLE_VALUE = "impossible-value"
    ZEROS = "zeros"
    IDLE_REPLICA = "idle-replica"
    STALLED_REPLICA = "stalled-replica"
    ABOVE_BUCKETS = "above-buckets"
    COUNTS_DISAGREE = "counts-disagree"
    UNSTEADY = "unsteady"
    STEADINESS_UNKNOWN = "steadiness-unknown"
    GPU_SLOWED = "gpu-slowed"
    POWER_CAP = "power-cap"
    CPU_THROTTLED = "cpu-throttled"
    """The cgroup's quota stopped processes."""
    LIMITS_CHANGED = "limits-changed"
    """Of the cgroup, while it was recorded."""
    HOST_SHARED = "host-shared"
    """Another harness measured on the machine at the same time: earlier versions let it."""
    GPU_SHARED = "gpu-shared"
    """A pod of somebody else was on the GPU, or memory that is not the experiment's."""
    RATE_NOT_HELD = "rate-not-held"
    REQUESTS_REFUSED = "requests-refused"
    REQUESTS_FAILED = "requests-failed"
    LATENCY_LIMIT = "latency-limit"
    GENERATOR_LATE = "generator-late"
    SLO = "slo"
    """Whether the objective is met; the verdict is about the measurement alone."""
    NOT_JUDGED = "not-judged"
    """What cannot be looked at was not; the sentence says what."""
    SETTING_IGNORED = "setting-ignored"
    TOKENS_NOT_SAID = "tokens-not-said"
    """A server does not say how many tokens its answers have, and pieces of the stream are counted."""
    TOKENS_HIDDEN = "tokens-hidden"
    """A server counts tokens of reasoning that it does not send: there is no time per token."""
    TOKENS_PER_PIECE = "tokens-per-piece"
    """Pieces of the stream hold several tokens: the gaps are between pieces."""
    STREAM_BUFFERED = "stream-buffered"
    """Pieces of a stream arrive all at once: their times are those of a proxy or of a server that waits."""
    TOKENIZER_DISAGREES = "tokenizer-disagrees"
    """A server counts other tokens of the prompts than the campaign's tokenizer."""
    REMARK = "remark"
    """Said in preflight or by a load generator; nothing is wrong."""
    UNKNOWN = "unknown"
    """Written by a version that kept no codes."""


class FailOn(StrEnum):
    """What a command may be told to fail on, with an exit code of its own."""

    SLO = "slo"
    REGRESSION = "regression"
    DEGRADED = "degraded"
    INVALID = "invalid"


class IssueLevel(StrEnum):
    """What an issue means for the run."""

    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Issue:
    """Something noticed before an hour is spent, and what to do about it: an error refuses the run, a warning is kept with it.

    ``away``: it may end by itself, so that a campaign waits for it between experiments.
    """

    severity: IssueLevel
    check: str
    message: str
    advice: str = ""
    code: ReasonCode = ReasonCode.REFUSED
    away: bool = False


def counted(number: int, what: str, verb: str = "") -> str:
    """A number of things for a sentence: ``1 replica needs``, ``1,200 replicas need``."""
    single = number == 1
    return f"{number:,} {what}{'' if single else 's'}" + (f" {verb}{'s' if single else ''}" if verb else "")


def duration(seconds: float) -> str:
    """E.g. ``45 s``, ``4 min 05 s``, ``10 h 03 min``."""
    whole = round(seconds)
    if seconds < 10 and whole != seconds:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clipped(text: str, length: int = 300) -> str:
    """One line of at most ``length`` characters, for lists where the whole story stands elsewhere."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def printable(text: str) -> str:
    """The text without what moves a terminal's cursor, colours it, or turns its reading direction; lines stay lines."""
    if text.isprintable():
        return text
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return "".join(sign if sign.isprintable() or sign in _LAYOUT or _BYTE.match(sign) else " " for sign in text)


class HarnessError(Exception):
    """Base of every error raised on purpose: what failed and where, and what to do next, a sentence each."""

    exit_code: ClassVar[int] = 1
    code: ReasonCode = ReasonCode.STEP_FAILED

    def __init__(self, message: str, *, advice: str = "", code: ReasonCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.code = code or self.code

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()


class UsageError(HarnessError):
    """The command or one of its arguments is wrong."""

    exit_code = 2


class CampaignFileError(UsageError):
    """The campaign file does not say what can be run."""


class ResultsPathError(UsageError):
    """The path is not a results folder of ours."""


class UnlikeResultsError(UsageError):
    """Results of unlike machines are not compared unless told."""


class PreflightError(HarnessError):
    """This machine cannot run what was asked."""

    exit_code = 3
    code = ReasonCode.REFUSED


class ExperimentsFailedError(HarnessError):
    """The campaign ended with INVALID experiments in it."""

    exit_code = 4


class ObjectiveMissedError(HarnessError):
    """A service level objective is not met, or it cannot be decided whether it is."""

    exit_code = 11


class NotReproducedError(HarnessError):
    """A campaign that ran again gives other figures than the published one."""

    exit_code = 12


class RegressionError(HarnessError):
    """A figure is worse than the baseline's, or none can be compared with it."""

    exit_code = 13


class DegradedError(HarnessError):
    """Experiments are DEGRADED, and that was said to be a failure."""

    exit_code = 14


class VerificationError(HarnessError):
    """Files on disk are not what the manifest says."""

    exit_code = 5
    code = ReasonCode.VERIFICATION


class ConflictError(HarnessError):
    """Another harness holds the campaign, or its file changed since it began."""

    exit_code = 6


class DeviceInUseError(HarnessError):
    """Another harness measures on the same GPU, or without one on the same machine."""

    exit_code = 15


class StorageError(HarnessError):
    """The results folder cannot be written."""

    exit_code = 7
    code = ReasonCode.STORAGE


class BackendError(HarnessError):
    """Replicas could not be started, watched or stopped."""

    exit_code = 8
    code = ReasonCode.BACKEND


class LoadError(HarnessError):
    """What is to be asked cannot be read, or nobody can be asked with it."""


class ReplicaDiedError(BackendError):
    """A replica ended by itself."""

    code = ReasonCode.REPLICA_DIED


class ClusterError(BackendError):
    """The Kubernetes API was not reached (``status`` is None), or refused with that status."""

    def __init__(self, message: str, *, advice: str = "", status: int | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


class AwayError(BackendError):
    """What is needed is away and may come back by itself: a Prometheus, a node, an image's registry."""


class ImageError(BackendError):
    """A pod's image cannot be had, so that no experiment that needs it could run either."""


class MetricsError(HarnessError):
    """A metric could not be read."""

    exit_code = 9
    code = ReasonCode.METRICS


class PrometheusError(MetricsError):
    """The Prometheus server refused, timed out or answered with an error."""


class PrometheusUnavailableError(PrometheusError):
    """The Prometheus server is down, starting, or too slow: asking again later may help."""


class NoDataError(MetricsError):
    """The query is right and no series matches it."""


class NodeError(HarnessError):
    """Provisioning or verifying the node failed."""

    exit_code = 10


class PlaybookError(NodeError):
    """Ansible ended before it ran a task."""


class TaskFailedError(NodeError):
    """A task failed on a host."""


class NodeAccessError(NodeError):
    """A host's sudo or ssh stands in the way; see ``harness.node.events.OBSTACLES``."""


class NodeUnreachableError(NodeError):
    """A host did not answer."""


class NodeTimeoutError(NodeError):
    """A run took longer than it was allowed to."""


class NodeInterruptedError(NodeError):
    """A run was stopped by a signal."""

    exit_code = 130


class CampaignInterruptedError(HarnessError):
    """Stopped by a signal; the campaign can be resumed."""

    exit_code = 130
