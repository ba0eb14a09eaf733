"""A campaign as whoever runs one has it: a file, a folder of results, commands and signals."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.campaign.journal import read_events
from harness.campaign.verify import verify_campaign
from harness.errors import ReasonCode
from harness.results.manifest import Manifest, Status, read_manifest
from harness.results.verification import Verification
from tests.support import forked
from tests.support.processes import eventually, marked

BUSY = {
    *(ReasonCode.ROWS, ReasonCode.NO_VALUE, ReasonCode.MISSING_VALUES, ReasonCode.ZEROS, ReasonCode.UNSTEADY),
    *(ReasonCode.IDLE_REPLICA, ReasonCode.STALLED_REPLICA, ReasonCode.IMPOSSIBLE_VALUE, ReasonCode.CPU_THROTTLED),
    *(ReasonCode.RATE_NOT_HELD, ReasonCode.LATENCY_LIMIT, ReasonCode.GENERATOR_LATE),
}
"""What a machine that is busy with something else makes of a recording of a second."""
INVALID_CODE = 4


class Campaign:
    """Driven by commands and signals alone; each begins it, or goes on with it.

    Args:
        folder: of the file and the results; made where there is none.
        spec: the file.
        options: of `harness run`, and of ``resume``.
        force: begin it whatever preflight says.
    """

    def __init__(
        self,
        folder: Path,
        spec: str | Mapping[str, Any],
        *,
        options: Sequence[str] = ("--no-report",),
        force: bool = True,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.file, self.results, self.log = folder / "campaign.yaml", folder / "results", folder / "said"
        self.file.write_text(spec if isinstance(spec, str) else json.dumps(spec))
        self._begin = ["run", self.file, "--results", self.results, *(["--force"] if force else [])]
        self._options = options

    @property
    def begun(self) -> bool:
        """Whether it has a folder."""
        return self.results.is_dir() and any(self.results.glob("[!.]*"))

    @property
    def path(self) -> Path:
        """Its folder."""
        [path] = self.results.glob("[!.]*")
        return path

    @property
    def words(self) -> list[object]:
        """Of the command that begins it, or goes on with it."""
        return [*(["resume", self.path] if self.begun else self._begin), *self._options]

    def start(self, *more: str) -> forked.Command:
        """Without waiting for its end."""
        return forked.commands().start(*self.words, *more, log=self.log)

    def started(self, step: str, experiment: str = "") -> forked.Command:
        """Now in this step of an experiment whose name holds the word."""
        known = len(self.events()) if self.begun else 0
        command = self.start()
        assert eventually(lambda: self.begun and self.in_step(step, experiment, after=known)), command.end(1)
        return command

    def run(self, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """To its end, which has this exit code, or that of INVALID experiments where a busy machine made them so."""
        done = forked.harness(*self.words, *more)
        self.check(done.returncode, done.stderr, code=code)
        return done

    def check(self, returncode: int | None, said: str, *, code: int = 0) -> None:
        """That a command ended so."""
        assert "Traceback" not in said, said
        assert returncode == code or ((returncode, code) == (INVALID_CODE, 0) and self.starved()), said

    def measured(self, *more: str) -> subprocess.CompletedProcess[str]:
        """To its end, and again whatever a busy machine made INVALID."""
        done = self.run(*more)
        for _ in range(4):
            if not done.returncode:
                break
            done = self.run(*more, "--retry-invalid")
        assert done.returncode == 0, done.stderr
        return done

    def kill(self, command: forked.Command) -> None:
        """As ``kill -9`` does; nothing of the campaign outlives it."""
        command.kill()
        assert not self.begun or eventually(lambda: not self.processes()), self.processes()

    def processes(self) -> list[psutil.Process]:
        """That run for it."""
        return marked(json.loads((self.path / "campaign.json").read_text())["campaign_id"])

    def events(self) -> list[Mapping[str, Any]]:
        """Of its journal."""
        return list(read_events(self.path / "state.jsonl"))

    def in_step(self, step: str, experiment: str = "", *, after: int = 0) -> bool:
        """Whether the step has begun, in the events after the first ``after``."""
        begun = (event for event in self.events()[after:] if event["event"] == "step-begins")
        return any(event["step"] == step and experiment in event["experiment"] for event in begun)

    def manifest(self, experiment: str) -> Manifest:
        return read_manifest(self.path / experiment)

    def manifests(self) -> dict[str, Manifest]:
        """Of what is finished, by name."""
        return {path.parent.name: read_manifest(path.parent) for path in self.path.glob("*/manifest.json")}

    def starved(self) -> bool:
        """Whether nothing is INVALID but what a busy machine made so."""
        invalid = [one.verdict for one in self.manifests().values() if one.verdict.status is Status.INVALID]
        return all(set(verdict.codes) <= BUSY for verdict in invalid)

    def verified(self) -> Verification:
        """It is whole, and nothing runs on."""
        outcome = verify_campaign(self.path)
        assert outcome.ok, outcome.problems
        assert self.processes() == []
        return outcome
