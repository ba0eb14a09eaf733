"""Stands in for AnsibleModule: parameters given, commands answered from a script, the end raised."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Answer = tuple[int, str, str]


class Failed(Exception):  # noqa: N818 - what a module calls its end
    """fail_json was called; `str` is its message."""


class FakeModule:
    """`answer` gets the words of each command; what it does not know succeeds silently."""

    def __init__(
        self, answer: Callable[[Sequence[str]], Answer | None] | None = None, *, check_mode: bool = False, **params: Any
    ) -> None:
        self.params = params
        self.check_mode = check_mode
        self.commands: list[list[str]] = []
        self.given: list[str | None] = []
        self.tmpdir = None
        self._answer = answer or (lambda _words: None)

    def run_command(self, command: Sequence[str], data: str | None = None) -> Answer:
        self.commands.append(list(command))
        self.given.append(data)
        return self._answer(command) or (0, "", "")

    def fail_json(self, *, msg: str, **_: Any) -> None:
        raise Failed(msg)

    def exit_json(self, **result: Any) -> None:
        raise SystemExit(result)

    def get_bin_path(self, name: str) -> str | None:
        return name


def ended(monkeypatch: pytest.MonkeyPatch, module: Any, fake: FakeModule) -> Any:
    """What a module's main exits with."""
    monkeypatch.setattr(module, "documented", lambda *_, **__: fake)
    with pytest.raises(SystemExit) as end:
        module.main()
    return end.value.code
