"""Looking at real processes."""

import time

import psutil

from harness.backends.local_replica import CAMPAIGN_VARIABLE

DRAINED_S = 60.0
"""For replicas to end in: most take a tenth of a second, and beside others on a busy machine seconds."""


def marked(campaign_id: str) -> list[psutil.Process]:
    """Processes of the campaign that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(CAMPAIGN_VARIABLE) == campaign_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def eventually(condition, timeout_s: float = 120.0) -> bool:
    """Whether ``condition`` comes true in time."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def wait_for(condition, timeout_s: float = 200.0) -> None:
    """Until ``condition`` comes true, which has to be in time."""
    assert eventually(condition, timeout_s), f"it did not happen within {timeout_s} s"
