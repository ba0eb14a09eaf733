"""What can go wrong between this machine and a node, as errors of the harness.

NodeError                   10
├── PlaybookError           10  Ansible could not begin: inventory, syntax, a missing file
├── TaskFailedError         10  a task failed on a host; carries the run's summary
├── NodeAccessError         10  sudo or ssh of a host lets nobody work there
├── NodeUnreachableError    10  a host did not answer
├── NodeTimeoutError        10  the run took longer than it was allowed to
├── NotConvergedError       10  a run changed something where nothing was left to change
└── NodeInterruptedError   130  stopped by SIGINT or SIGTERM; every process of the run has ended
"""

from __future__ import annotations

from harness.errors import NodeError


class PlaybookError(NodeError):
    """Ansible ended before it ran a task."""


class TaskFailedError(NodeError):
    """A task failed on a host."""


class NodeAccessError(NodeError):
    """A host's sudo or ssh stands in the way; see ``access``."""


class NodeUnreachableError(NodeError):
    """A host did not answer."""


class NodeTimeoutError(NodeError):
    """A run took longer than it was allowed to."""


class NotConvergedError(NodeError):
    """A run changed something where nothing was left to change."""


class NodeInterruptedError(NodeError):
    """A run was stopped by a signal."""

    exit_code = 130
