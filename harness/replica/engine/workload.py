"""The user's server as a workload: made when it has answered a real request, asked by a load of its own, ended cleanly."""

from __future__ import annotations

import asyncio
import gzip
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from harness.replica.custom_metrics import Counter, Histogram
from harness.replica.engine.asking import BAD_ANSWER, OK, Asker, HttpAsker, Outcome, OwnAsker
from harness.replica.engine.beside import ServerBeside
from harness.replica.engine.ledger import Families, Ledger
from harness.replica.engine.load import Load
from harness.replica.engine.own_metrics import OwnMetrics
from harness.replica.engine.process import RunningServer, ServerProcess
from harness.replica.engine.protocols import Question
from harness.replica.engine.questions import questions
from harness.replica.engine.settings import request_headers
from harness.replica.errors import SettingError, WorkloadError
from harness.replica.latency_log import LatencyLog
from harness.replica.metrics import RequestMetrics
from harness.replica.settings import Settings
from harness.spec.replica import VARIABLE, ReplicaSpec
from harness.spec.server import Protocol, ServerSpec

_GIVEN_DIR_VARIABLE = "GIVEN_DIR"
"""The folder with ``NAME.000``, ``NAME.001``, ... for every file of a pod; not set: files are where the campaign file says."""
RETRY_S = 0.5
_MAY_PASS = frozenset({408, 425, 429})
_CLIENT_ERRORS = range(400, 500)
_REDIRECTIONS = range(300, 400)
_HINTS = {
    **dict.fromkeys((401, 403), "; name the variable that holds its key in `api_key_env`"),
    404: "; check `protocol`, `path` and `model`",
}


class ServerWorkload:
    """A server of one replica's own: started by it, in the container beside it, or running already.

    Args:
        settings: the replica's.
        spec: what they were made of.
        engine: the server to start and ask.

    Raises:
        WorkloadError: it ended, or it says that the request itself is wrong.
        CannotBeMetError: it cannot be started here.
    """

    name = "server"

    def __init__(self, settings: Settings, spec: ReplicaSpec, engine: ServerSpec) -> None:
        self._settings = settings
        self._spec = spec
        self._engine = engine
        self._families = Families(streams=engine.streams)
        self._seed = settings.seed * 1_000_003 + settings.replica
        self._questions = questions(engine, self._seed)
        first = next(self._questions)  # a file that cannot be read is said before anything starts
        request_headers(engine)
        self._process = _server(settings, spec, engine)
        self._end = ""
        self._process.wait_until_up()
        said = ""
        while not self._is_answered(outcome := self._ask(first)):
            if outcome.said != said:
                said = outcome.said
                sys.stderr.write(f"replica: the server does not answer yet: {said}\n")
            time.sleep(RETRY_S)

    def describe(self) -> Mapping[str, object]:
        """Facts for ``replica.json``."""
        return {
            "workload": self.name,
            "device": "" if self._settings.device == "auto" else self._settings.device,
            **self._process.facts(),
            "protocol": self._engine.protocol,
        }

    def outcome(self) -> Mapping[str, object]:
        """How it ended, once it has."""
        return {"server_end": self._end} if self._end else {}

    def published(self) -> Sequence[Histogram | Counter]:
        """What /metrics shows besides."""
        return self._families.published

    def infer(self) -> int:
        """Send one request of the warm-up. Raises WorkloadError when it fails."""
        outcome = self._ask(next(self._questions))
        if outcome.status != OK:
            self._process.require_alive()
            raise WorkloadError(f"a request of the warm-up failed: {outcome.said}")
        return 1

    def load(self, metrics: RequestMetrics, latency_log: LatencyLog | None) -> Load:
        """The frontend that asks it."""

        def on_depth(depth: int) -> None:
            metrics.in_flight = depth

        return Load(
            self._engine,
            self._asker(),
            # The lengths of a trace belong to its times: what the warm-up has asked of them is asked again.
            questions(self._engine, self._seed) if self._engine.trace else self._questions,
            Ledger(self._families, metrics, latency_log, self._settings.replica_dir),
            seed=self._seed,
            on_depth=on_depth,
            alive=self._process.require_alive,
            beside=self._own_metrics(),
            settle_s=self._spec.settle_s,
            record_s=self._spec.record_s,
        )

    def close(self) -> None:
        """End the server. Raises WorkloadError where it had to be killed."""
        self._end = self._process.stop()
        if self._end == "killed":
            raise WorkloadError(
                f"the server did not end within {self._engine.stop_timeout_s:g} s of SIGTERM and was killed; "
                "raise server.stop_timeout_s."
            )

    def _own_metrics(self) -> AbstractContextManager[None]:
        """Reads what the engine says of itself, where that was asked for. Raises WorkloadError where it says nothing."""
        asked, folder = self._engine.metrics, self._settings.replica_dir
        if asked is None or folder is None:
            return nullcontext()
        server = self._process
        alone = self._spec.beside  # in a pod of its own no other replica has the same port
        port = server.port if asked.port is None else asked.port + (0 if alone else self._settings.replica)
        url = f"{'https' if server.tls else 'http'}://{server.host}:{port}{asked.path}"
        return OwnMetrics(url, request_headers(self._engine), step_s=asked.step_s, folder=folder)

    def _asker(self) -> Asker:
        server = self._process
        if self._engine.protocol is Protocol.OIP_GRPC:
            from harness.replica.engine.grpc_client import GrpcAsker  # an extra brings what it needs

            return GrpcAsker(self._engine, server.port, server.host, tls=server.tls)
        if self._engine.protocol is Protocol.OWN:
            return OwnAsker(self._engine, server.port, server.host, tls=server.tls)
        return HttpAsker(self._engine, server.port, server.host, tls=server.tls)

    def _ask(self, question: Question) -> Outcome:
        """One request, on a connection of its own."""

        async def ask() -> Outcome:
            asker = self._asker()
            try:
                return await asker.ask(question, Outcome(time.perf_counter_ns()))
            finally:
                await asker.close()

        return asyncio.run(ask())

    def _is_answered(self, outcome: Outcome) -> bool:
        """Whether the first request was answered well; one that may be answered later is asked again."""
        if outcome.status == OK:
            return True
        self._process.require_alive()
        wrong = outcome.status == BAD_ANSWER or (outcome.status in _CLIENT_ERRORS and outcome.status not in _MAY_PASS)
        if wrong or outcome.status in _REDIRECTIONS:
            hint = _HINTS.get(outcome.status, "")
            raise WorkloadError(f"the server is up and does not answer a request as it should: {outcome.said}{hint}")
        return False


def _server(settings: Settings, spec: ReplicaSpec, engine: ServerSpec) -> ServerProcess | RunningServer | ServerBeside:
    if spec.beside:
        return ServerBeside(engine)
    if engine.url:
        return RunningServer(engine.url[settings.replica])
    return ServerProcess(spec, engine, settings.replica, settings.replica_dir)


def _with_given_files(engine: ServerSpec, target: Path) -> ServerSpec:
    """The same, with its files put together of the parts that came with the pod, in ``target``. Raises OSError."""
    if _GIVEN_DIR_VARIABLE not in os.environ:
        return engine
    parts = defaultdict(list)
    for path in sorted(Path(os.environ[_GIVEN_DIR_VARIABLE]).glob("*.[0-9][0-9][0-9]")):
        parts[path.stem].append(path.read_bytes())
    target.mkdir(parents=True, exist_ok=True)
    for name, data in parts.items():
        (target / name).write_bytes(gzip.decompress(b"".join(data)))
    return engine.with_files(lambda name: str(target / name))


def make(settings: Settings) -> ServerWorkload:
    """Start the server that the environment names, and return when it has answered a request."""
    spec = settings.spec
    if spec is None or spec.workload.server is None:
        raise SettingError(f"{VARIABLE} says nothing of a server.")
    engine = spec.workload.server
    if settings.replica_dir is not None:
        engine = _with_given_files(engine, settings.replica_dir / "given")
    return ServerWorkload(settings, spec, engine)
