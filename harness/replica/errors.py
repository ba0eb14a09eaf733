"""Why a replica ends, and the exit code that says so."""

from __future__ import annotations

import re
from enum import IntEnum

from harness.errors import LoadError


class ExitCode(IntEnum):
    """Exit codes of the replica process."""

    STOPPED = 0  # by SIGTERM or SIGINT
    FAILED = 1  # at import, while loading, or in a request
    BAD_SETTING = 2  # of the environment
    CANNOT_BE_MET = 3  # the settings are right, and there is no GPU, no such module, or the port is taken
    OUT_OF_MEMORY = 4  # on the GPU or on the host
    STUCK = 5  # the request in flight could not be stopped in time; all earlier ones are on disk


class WorkloadError(Exception):
    """Ends the replica. The message is one sentence: what failed, where, what to do."""

    exit_code = ExitCode.FAILED


class SettingError(WorkloadError):
    """A setting of the environment is wrong."""

    exit_code = ExitCode.BAD_SETTING


class CannotBeMetError(WorkloadError):
    """What was asked for does not exist on this machine."""

    exit_code = ExitCode.CANNOT_BE_MET


class OutOfMemoryError(WorkloadError):
    """The GPU or the host has too little memory for this replica."""

    exit_code = ExitCode.OUT_OF_MEMORY


_SAYS_NO_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")


def translated(error: BaseException) -> BaseException:
    """Return OutOfMemoryError for any library's way of saying that memory ran out, CannotBeMetError for a load's error, else ``error``.

    By type and text, because torch says it in four ways and a workload need not have imported torch.
    """
    if isinstance(error, LoadError):
        return CannotBeMetError(str(error))
    says_so = isinstance(error, RuntimeError) and _SAYS_NO_MEMORY.search(str(error))
    if not (isinstance(error, MemoryError) or says_so):
        return error
    first_line = str(error).partition("\n")[0] or "the host refused an allocation"
    translation = OutOfMemoryError(
        f"out of memory: {first_line} Use fewer replicas, a smaller BATCH_SIZE or PRECISION fp16."
    )
    translation.__cause__ = error
    return translation
