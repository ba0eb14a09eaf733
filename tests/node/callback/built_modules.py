"""Ansible callback: modules that were built for sending are kept for the next run, which would build them anew."""

import os
from pathlib import Path

from ansible import constants
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: built_modules
type: notification
short_description: Built modules outlive the run
description: Puts the folder that the environment variable BUILT_MODULES names where a run keeps what it has built.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Does so as the run begins."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "built_modules"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        kept = Path(os.environ["BUILT_MODULES"])
        kept.mkdir(exist_ok=True)
        Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(kept)
