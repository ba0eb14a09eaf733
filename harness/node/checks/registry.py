"""How a check is written: a function that takes a ``Node``, looks, and returns an ``Observation``.

It raises ``NotApplicableError`` where this node cannot be judged by it, and ``CannotLookError`` where what it must look at
cannot be read: that is a failure, never a pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from harness.node.expected import Expected
from harness.node.machine import Machine

CONTROL_PLANE, WORKER = "control_plane", "worker"
HERE, EVERYWHERE = frozenset({CONTROL_PLANE}), frozenset({CONTROL_PLANE, WORKER})
_HOME_FIELD = 5


class NotApplicableError(Exception):
    """This node cannot be judged by this check; the message is the reason."""


class CannotLookError(Exception):
    """What the check must look at cannot be read; the message is what was found instead."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a check saw."""

    ok: bool
    expected: str
    found: str


def same(wanted: object, seen: object) -> Observation:
    """Well where both are the same."""
    return Observation(seen == wanted, str(wanted), str(seen))


def no(bad: Iterable[object], expected: str) -> Observation:
    """Well where nothing is on the list of what is wrong."""
    return Observation(not bad, expected, listed(bad))


def needs(condition: object, otherwise: str) -> None:
    """Raise NotApplicableError, with the reason, where a check's condition does not hold."""
    if not condition:
        raise NotApplicableError(otherwise)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what has not the form that it should have into a CannotLookError, which says ``what`` that is."""
    try:
        yield
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise CannotLookError(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and what is expected of it."""

    machine: Machine
    expected: Expected

    def text(self, path: str) -> str:
        """Text of a file that must be there."""
        text = self.machine.read(path)
        if text is None:
            raise CannotLookError(f"no readable {path}")
        return text

    def output(self, *arguments: str) -> str:
        """Standard output of a command that must succeed."""
        output = self.machine.command(*arguments)
        if output.exit_code != 0:
            said = (output.stderr or output.stdout).strip().splitlines()[-1:] or ["nothing"]
            shown = " ".join(argument for argument in arguments if not argument.startswith("--"))
            raise CannotLookError(f"`{shown}` ended with {output.exit_code} and said: {said[0]}")
        return output.stdout

    def kubectl(self, *arguments: str) -> str:
        """Standard output of kubectl as the cluster's administrator; on a worker as its kubelet, which sees itself only."""
        options = (f"--kubeconfig={self.expected.kubeconfig}", "--request-timeout=15s")
        return self.output("kubectl", *options, *arguments)

    def home(self, user: str) -> str:
        """Where a user of the machine is at home."""
        return self.output("getent", "passwd", user).split(":")[_HOME_FIELD]

    def executable(self, path: object) -> bool:
        """Whether there is a program at a path, if it is one."""
        state = self.machine.stat(str(path)) if path else None
        return state is not None and bool(state.mode & 0o111)

    def private(self, path: str, owner: str = "root") -> tuple[bool, str]:
        """Whether a file is its owner's alone (mode 0600), and path, mode and owner in words."""
        state = self.machine.stat(path)
        words = f"{path} {state.mode:04o} {state.owner}" if state else f"{path} absent"
        return state is not None and (state.mode, state.owner) == (0o600, owner), words

    def service(self, name: str) -> Observation:
        """A unit that has to run now, with the files that systemd knows, and at the next boot."""
        unit = self.machine.unit(name)
        good = unit.active == "active" and unit.enabled == "enabled" and not unit.needs_reload
        again = ", needs a daemon-reload" if unit.needs_reload else ""
        state = f"{unit.active} ({unit.sub}), {unit.enabled or unit.load}{again}"
        return Observation(good, "active and enabled", state)

    def objects(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Objects of one kind."""
        with reading(f"kubectl gave no list of {kind}"):
            items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *arguments, "--output=json"))["items"]
        return items


CheckFunction = Callable[[Node], Observation]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One check: ``area/subject``, the unit whose journal explains a failure, and ``when``, which lets other nodes through."""

    name: str
    function: CheckFunction
    advice: str
    unit: str
    kinds: frozenset[str]
    when: Callable[[Node], object] | None

    @property
    def area(self) -> str:
        """First part of the name."""
        return self.name.partition("/")[0]

    def look(self, node: Node) -> Observation:
        """What it sees. Raises NotApplicableError and CannotLookError."""
        needs(node.expected.kind in self.kinds, f"this node is a {node.expected.kind}")
        if self.when is not None:
            self.when(node)
        return self.function(node)


_checks: list[NodeCheck] = []


def check(
    name: str,
    advice: str,
    *,
    unit: str = "",
    kinds: frozenset[str] = EVERYWHERE,
    when: Callable[[Node], object] | None = None,
) -> Callable[[CheckFunction], CheckFunction]:
    """Put a function on the list of checks."""

    def register(function: CheckFunction) -> CheckFunction:
        _checks.append(NodeCheck(name, function, advice, unit, kinds, when))
        return function

    return register


def registered() -> tuple[NodeCheck, ...]:
    """Every check in the order in which it was written."""
    return tuple(_checks)


def listed(values: Iterable[object]) -> str:
    """A collection in words: sorted, comma-separated, ``none`` when empty."""
    return ", ".join(sorted(map(str, values))) or "none"
