"""Processes of a campaign whose harness is gone.

The guards end their replicas when the harness dies; this is the second net, for the case that
someone killed the guards too. Every process of a campaign carries its id in the environment.
"""

from __future__ import annotations

import os

import psutil

CAMPAIGN_VARIABLE = "HARNESS_CAMPAIGN_ID"
TERMINATE_S = 3.0


def end_strays(campaign_id: str) -> list[str]:
    """End every process that carries ``campaign_id``, this one and its children excepted.

    Call only while holding the campaign's lock: then no living harness owns any of them.

    Returns:
        A sentence for each process ended.
    """
    mine = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    strays = [
        process for process in psutil.process_iter() if process.pid not in mine and _carries(process, campaign_id)
    ]
    sentences = []
    for process in strays:
        sentences.append(f"ended stray process {process.pid} of an earlier run.")
        try:
            process.kill()
        except psutil.NoSuchProcess:
            sentences.pop()
    psutil.wait_procs(strays, timeout=TERMINATE_S)
    return sentences


def _carries(process: psutil.Process, campaign_id: str) -> bool:
    try:
        return process.environ().get(CAMPAIGN_VARIABLE) == campaign_id
    except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
        return False  # of another user, or gone: not ours to end
