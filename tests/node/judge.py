"""The project's own judgement of a machine: its command `node verify` and its testinfra suite, run as a user would."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.play import HOST, ROOT, Playbooks

WITHIN_S = 1800.0


@dataclass(frozen=True)
class Verdict:
    """What a judge said: exit status, the check's names that passed and failed, and everything it printed."""

    status: int
    passed: frozenset[str]
    failed: frozenset[str]
    output: str


def harness(playbooks: Playbooks, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the harness against the machine's inventory."""
    command = [sys.executable, "-m", "harness", *arguments, "--inventory", str(playbooks.inventory)]
    return _run(playbooks, command)


def document(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The one JSON document on standard output."""
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        said = f"{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        raise AssertionError(f"`{' '.join(done.args)}` exited {done.returncode} and printed no JSON: {said}") from error
    return found


def verdict(playbooks: Playbooks, *, wait_s: int = 60, only: Iterable[str] = ()) -> Verdict:
    """Ask `harness node verify` for its machine-readable verdict.

    wait_s: how long to judge again while it fails. only: areas of checks; none: all of them.
    """
    done = _ask(playbooks, wait_s, only)
    return read(document(done), done.returncode, done.stderr)


def verdicts(playbooks: Playbooks, *, wait_s: int = 60, only: Iterable[str] = ()) -> dict[str, Verdict]:
    """The same of every machine of the inventory, by its name there."""
    done = _ask(playbooks, wait_s, only)
    first = document(done)
    return {found["host"]: read(found, done.returncode, done.stderr) for found in (first, *first["others"])}


def _ask(playbooks: Playbooks, wait_s: int, only: Iterable[str]) -> "subprocess.CompletedProcess[str]":
    areas = [word for area in only for word in ("--only", area)]
    return harness(playbooks, "node", "verify", "--json", "--wait", str(wait_s), *areas)


def read(found: dict[str, Any], status: int, said: str) -> Verdict:
    """One machine's verdict in JSON, with the exit status and the messages of whoever printed it."""
    checks = found["checks"]
    passed = frozenset(check["name"] for check in checks if check["ok"])
    failed = [check for check in checks if not check["ok"]]
    output = json.dumps(failed, indent=1) + said[-1500:]
    return Verdict(status, passed, frozenset(check["name"] for check in failed), output)


def testinfra(playbooks: Playbooks) -> Verdict:
    """Run the testinfra suite in a pytest of its own."""
    hosts = ["--sudo", f"--hosts=ansible://{HOST}", f"--ansible-inventory={playbooks.inventory}"]
    quiet = ["-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    done = _run(playbooks, [sys.executable, "-m", "pytest", "tests/testinfra", *hosts, *quiet])
    names = {
        word: set(re.findall(rf"^{word} \S+\[ansible://{HOST}-(\S+?)\]", done.stdout, re.MULTILINE))
        for word in ("PASSED", "FAILED")
    }
    return Verdict(
        done.returncode,
        frozenset(names["PASSED"]),
        frozenset(names["FAILED"]),
        done.stdout[-6000:] + done.stderr[-1000:],
    )


def _run(playbooks: Playbooks, command: list[str]) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = playbooks.environment() | {"PATH": path}
    # An outer pytest's own options and workers are none of the inner one's business.
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
