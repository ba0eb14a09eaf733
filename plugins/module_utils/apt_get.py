# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""apt-get without questions, patient with whoever else holds its locks."""

from __future__ import annotations

import re
import time
from typing import Any

FETCH_TIMEOUT_S = 30
POLL_S = 3.0


def lock_holder(words: str) -> str | None:
    """Who holds a lock, by what apt said; None when it did not speak of one."""
    if "Could not get lock" not in words and "Unable to acquire the dpkg frontend lock" not in words:
        return None
    match = re.search(r"held by process (\d+)(?: \(([^)]+)\))?", words)
    return f"process {match[1]} ({match[2] or 'unknown'})" if match else "another process"


def advice(verb: str, words: str, waited_s: float) -> str:
    """What went wrong and what to do next, by what apt said."""
    holder = lock_holder(words)
    if holder:
        return f"{holder} held the package lock for more than {waited_s:.0f} s. Let it finish and run again: {words}"
    if "is not signed" in words:
        return (
            f"apt-get {verb} met a repository that is not signed by the key of the fingerprint that inventory/group_vars/all/versions.yml"
            f" names. If it announced a new key, put its fingerprint there: {words}"
        )
    if "No space left" in words or "enough free space" in words:
        return f"apt-get {verb} ran out of disk space. Free some (apt-get clean) and run again: {words}"
    if "Failed to fetch" in words or "Could not connect" in words or "Unable to connect" in words:
        return (
            f"apt-get {verb} could not fetch what it needs. Check that the machine reaches the address and that the"
            f" mirror holds this, or name another mirror in inventory/group_vars/all/mirrors.yml: {words}"
        )
    return f"apt-get {verb} failed. Fix what it names and run again; finished packages are kept: {words}"


class AptGet:
    """Runs apt-get for a module.

    lock_timeout_s: how long another apt or dpkg is waited for, its index lock too, which apt itself never waits for.
    """

    def __init__(self, module: Any, lock_timeout_s: float) -> None:
        self.module = module
        self.lock_timeout_s = lock_timeout_s

    def run(self, verb: str, *arguments: str, settings: tuple[str, ...] = ()) -> None:
        """One apt-get verb; ends the module with reason and next step when it fails."""
        words = self._attempt(verb, *arguments, settings=settings)
        if words is not None:
            self.module.fail_json(msg=advice(verb, words, self.lock_timeout_s))

    def install(self, *arguments: str, settings: tuple[str, ...] = ()) -> None:
        """Install, once more with fresh indexes where that fails; ends the module when it fails again.

        A fresh machine has no index of the packages that the wanted ones depend on, or one older than its archive.
        """
        words = self._attempt("install", *arguments, settings=settings)
        if words is not None and lock_holder(words) is None:
            self._attempt("update")
            words = self._attempt("install", *arguments, settings=settings)
        if words is not None:
            self.module.fail_json(msg=advice("install", words, self.lock_timeout_s))

    def _attempt(self, verb: str, *arguments: str, settings: tuple[str, ...] = ()) -> str | None:
        """One apt-get verb; what apt said when it failed, None when it did not."""
        deadline_s = time.monotonic() + self.lock_timeout_s
        command = ["apt-get", "--yes", "--quiet=2", *self.options(settings), verb, *arguments]
        while True:
            code, out, err = self.module.run_command(command)
            if code == 0:
                return None
            words = str(err or out).strip()
            if lock_holder(words) is None or time.monotonic() > deadline_s:
                return words
            time.sleep(POLL_S)

    def options(self, settings: tuple[str, ...]) -> list[str]:
        """The settings of every call as options."""
        every = (
            f"DPkg::Lock::Timeout={self.lock_timeout_s:.0f}",
            "Dpkg::Options::=--force-confdef",
            "Dpkg::Options::=--force-confold",
            "APT::Install-Recommends=false",
            f"Acquire::http::Timeout={FETCH_TIMEOUT_S}",
            f"Acquire::https::Timeout={FETCH_TIMEOUT_S}",
            "Acquire::Retries=2",
        )
        return [part for one in (*every, *settings) for part in ("-o", one)]
