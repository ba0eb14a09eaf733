"""The user's server as a workload: made when it has answered a real request, asked by a load of its own, ended cleanly."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sys
import threading
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from harness.replica.custom_metrics import Counter, Histogram
from harness.replica.engine.own_metrics import OwnMetrics
from harness.replica.engine.servers import RunningServer, ServerProcess, SidecarServer
from harness.replica.errors import SettingError, WorkloadError
from harness.replica.frontends import Frontend
from harness.replica.metrics import RequestMetrics
from harness.replica.registry import find_factory
from harness.replica.settings import Settings
from harness.spec.replica import VARIABLE, ReplicaSpec
from harness.spec.server import Protocol, ServerSpec
from harness.traffic.arrivals import of_server
from harness.traffic.clients import (
    HttpClient,
    OwnClient,
    ServerClient,
    UserClient,
    request_headers,
    server_key,
    without_key,
)
from harness.traffic.http_answer import BrokenAnswerError
from harness.traffic.http_page import fetch
from harness.traffic.loop import LoadLoop
from harness.traffic.open_inference import GrpcClient
from harness.traffic.protocols import Question
from harness.traffic.questions import questions
from harness.traffic.records import (
    ABANDONED,
    ANSWER_FIELDS,
    BAD_ANSWER,
    CANCELLED,
    CLIENT_FIELDS,
    NONE,
    NOT_SENT,
    OK,
    TURN_FIELDS,
    Exchange,
    RecordLog,
    TokenSource,
    nearest_rank,
)

_MOUNTED_DIR_VARIABLE = "GIVEN_DIR"
"""The folder with ``NAME.000``, ``NAME.001``, ... for every file of a pod; not set: files are where the campaign file says."""
FOLLOW_S = 10.0
"""How long the load goes on at its end, for the answers to what was asked before."""
RETRY_S = 0.5
REQUESTS_LOG, GAPS_LOG, ANSWERS_LOG, TURNS_LOG = "requests.bin", "gaps.bin", "answers.bin", "turns.bin"
P99 = 0.99
_SET_ASIDE = {CANCELLED: "cancelled", NOT_SENT: "not_sent"}
_MAY_PASS = frozenset({408, 425, 429})
_CLIENT_ERRORS = range(400, 500)
_REDIRECTIONS = range(300, 400)
_NOT_FOUND = 404
_MODELS_PATH, _MODELS_TIMEOUT_S, _MOST_MODELS = "/v1/models", 2.0, 5
_HINTS = {
    **dict.fromkeys((401, 403), "; name the variable that holds its key in `api_key_env`"),
    _NOT_FOUND: "; check `protocol`, `path` and `model`",
}


class ServerWorkload:
    """A server of one replica's own: started by it, in the container beside it, or running already.

    Raises CannotBeMetError where it cannot be started here, and WorkloadError where it ended, or refuses the request itself.
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
        self._process: RunningServer
        if spec.beside:
            self._process = SidecarServer(engine)
        elif engine.url:
            self._process = RunningServer(engine.url[settings.replica])
        else:
            self._process = ServerProcess(spec, engine, settings.replica, settings.replica_dir)
        self._end = ""
        self._process.wait_until_up()
        said = ""
        while not self._is_answered(exchange := self._ask(first)):
            if exchange.said != said:
                said = exchange.said
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
        exchange = self._ask(next(self._questions))
        if exchange.status != OK:
            self._process.require_alive()
            raise WorkloadError(f"a request of the warm-up failed: {exchange.said}")
        return 1

    def take_load(self, settings: Settings) -> None:
        """Ask as these settings say from the next load on; what the loads before asked is not asked again."""
        spec = settings.spec
        assert spec is not None and spec.workload.server is not None  # noqa: S101, PT018 - a load of the same server
        self._settings, self._spec, self._engine = settings, spec, spec.workload.server

    def load(self, metrics: RequestMetrics) -> ServerLoad:
        """The frontend that asks it."""
        return ServerLoad(
            self._engine,
            self._client(),
            # The lengths of a trace belong to its times: what the warm-up has asked of them is asked again.
            questions(self._engine, self._seed) if self._engine.trace else self._questions,
            ServerLedger(self._families, metrics, self._settings.replica_dir, sessions=self._engine.may_have_sessions),
            seed=self._seed,
            alive=self._process.require_alive,
            own_metrics=self._own_metrics(),
            settle_s=self._spec.settle_s,
            record_s=self._spec.record_s,
            empty_s=self._engine.request_timeout_s if self._settings.loads else 0.0,
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
        page, folder = self._engine.metrics, self._settings.replica_dir
        if page is None or folder is None:
            return nullcontext()
        server = self._process
        alone = self._spec.beside  # in a pod of its own no other replica has the same port
        port = server.port if page.port is None else page.port + (0 if alone else self._settings.replica)
        url = f"{'https' if server.tls else 'http'}://{server.host}:{port}{page.path}"
        return OwnMetrics(url, request_headers(self._engine), step_s=page.step_s, folder=folder)

    def _client(self) -> ServerClient:
        server, engine = self._process, self._engine
        if engine.protocol is Protocol.OIP_GRPC:
            return GrpcClient(engine, server.port, server.host, tls=server.tls)
        if engine.protocol is Protocol.OWN:
            return user_client(engine, server.port, server.host, tls=server.tls)
        return HttpClient(engine, server.port, server.host, tls=server.tls)

    def _ask(self, question: Question) -> Exchange:
        """One request, on a connection of its own."""

        async def ask() -> Exchange:
            client = self._client()
            try:
                return await client.ask(replace(question, cancel_after_s=None), Exchange(time.perf_counter_ns()))
            finally:
                await client.close()

        return asyncio.run(ask())

    def _is_answered(self, exchange: Exchange) -> bool:
        """Whether the first request was answered well; one that may be answered later is asked again."""
        if exchange.status == OK:
            return True
        self._process.require_alive()
        wrong = exchange.status == BAD_ANSWER or (
            exchange.status in _CLIENT_ERRORS and exchange.status not in _MAY_PASS
        )
        if wrong or exchange.status in _REDIRECTIONS:
            hint = _HINTS.get(exchange.status, "") + (self._models() if exchange.status == _NOT_FOUND else "")
            raise WorkloadError(f"the server is up and does not answer a request as it should: {exchange.said}{hint}")
        return False

    def _models(self) -> str:
        """Which models the server lists, where the one that is asked for is none of them."""
        server = self._process
        url = f"{'https' if server.tls else 'http'}://{server.host}:{server.port}{_MODELS_PATH}"
        models = listed_models(url, request_headers(self._engine))
        if not models or self._engine.model in models:
            return ""
        return f": it serves {', '.join(models[:_MOST_MODELS])}{', ...' if models[_MOST_MODELS:] else ''}"


def listed_models(url: str, headers: Mapping[str, str]) -> list[str]:
    """The models of a server's list in OpenAI's form; none where it has no such list."""
    try:
        _, page = fetch(url, headers, timeout_s=_MODELS_TIMEOUT_S)
        return [str(entry["id"]) for entry in json.loads(page)["data"]]
    except (OSError, BrokenAnswerError, ValueError, KeyError, TypeError):
        return []


class Families:
    """What /metrics shows of a server beside latencies and requests, all measured at the client."""

    def __init__(self, *, streams: bool) -> None:
        self.ttft = Histogram(
            "inference_client_ttft_seconds", "From the intended time of a request to its first token, at the client."
        )
        self.itl = Histogram("inference_client_itl_seconds", "Gap between two tokens of an answer, at the client.")
        self.tpot = Histogram(
            "inference_client_tpot_seconds", "Mean time of each token after the first one of an answer, at the client."
        )
        self.input_tokens = Counter("inference_client_input_tokens_total", "Tokens of the requests answered.")
        self.output_tokens = Counter("inference_client_output_tokens_total", "Tokens of the answers.")
        self.failed = Counter("inference_client_failed_requests_total", "Requests that got no proper answer.")
        of_tokens = (self.ttft, self.itl, self.tpot, self.input_tokens, self.output_tokens)
        self.published = (*(of_tokens if streams else ()), self.failed)


class ServerLedger:
    """Books the requests of the load, not those of the warm-up: on /metrics, and exactly on disk where there is a log or a folder.

    ``requests.bin`` has a record of CLIENT_FIELDS for each. ``gaps.bin``: the time of a token (nanoseconds since the epoch) and the gap
    to the next; after the last token of an answer that did not end well, to the end of its request. Requests that were answered well
    are in ``latencies.bin``, too, as every replica's are. ``answers.bin`` has a record of ANSWER_FIELDS for each request, ``turns.bin``
    its session and turn, where there may be some.
    """

    def __init__(
        self, families: Families, metrics: RequestMetrics, folder: Path | None, *, sessions: bool = False
    ) -> None:
        self.failures: Tally[str] = Tally()
        self.set_aside: Tally[str] = Tally()
        self.first_failure = ""
        self.repeated = 0
        """Requests that were sent again, as the server had closed the connection that was kept."""
        self._families = families
        self._metrics = metrics
        self._requests = RecordLog(folder / REQUESTS_LOG, fields=len(CLIENT_FIELDS)) if folder else None
        self._gaps = RecordLog(folder / GAPS_LOG) if folder else None
        self._answers = RecordLog(folder / ANSWERS_LOG, fields=len(ANSWER_FIELDS)) if folder else None
        self._turns = RecordLog(folder / TURNS_LOG, fields=len(TURN_FIELDS)) if folder and sessions else None
        self._epoch_ns = metrics.epoch_ns

    def on_depth(self, depth: int) -> None:
        """So many requests are in flight."""
        self._metrics.in_flight = depth

    def book(self, exchange: Exchange) -> None:
        """Count one request that ended or was abandoned. Raises OSError when a log cannot be written."""
        gaps_ns = exchange.gaps_ns
        self.repeated += exchange.repeated
        if exchange.status == OK:
            self._observe(exchange, gaps_ns)
        elif exchange.status in _SET_ASIDE:
            self.set_aside[_SET_ASIDE[exchange.status]] += 1
        elif exchange.status != ABANDONED:
            self._families.failed.add(1)
            self.failures[str(exchange.status)] += 1
            self.first_failure = self.first_failure or exchange.said
        if self._requests:
            self._requests.append(
                self._epoch_ns + exchange.intended_ns,
                exchange.send_error_ns,
                exchange.latency_ns,
                exchange.ttft_ns,
                p99(gaps_ns),
                exchange.input_tokens,
                exchange.output_tokens,
                exchange.status,
            )
        if self._answers:
            pieces = len(exchange.token_ns) or NONE
            self._answers.append(exchange.ttfo_ns, pieces, exchange.source, exchange.asked_tokens)
        if self._turns:
            self._turns.append(exchange.session, exchange.turn)
        if self._gaps:
            open_ns = [exchange.end_ns - exchange.token_ns[-1]] if exchange.token_ns and exchange.status != OK else []
            for begin_ns, gap_ns in zip(exchange.token_ns, gaps_ns + open_ns, strict=False):
                self._gaps.append(self._epoch_ns + begin_ns, gap_ns)

    def close(self) -> None:
        """Write what is pending. Raises OSError."""
        for log in (self._requests, self._gaps, self._answers, self._turns):
            if log:
                log.close()

    def _observe(self, exchange: Exchange, gaps_ns: list[int]) -> None:
        self._metrics.book(exchange.intended_ns, exchange.end_ns, 1)
        families = self._families
        families.input_tokens.add(max(exchange.input_tokens, 0))
        families.output_tokens.add(max(exchange.output_tokens, 0))
        if exchange.token_ns:
            families.ttft.observe(exchange.ttft_ns)
            for gap_ns in gaps_ns:
                families.itl.observe(gap_ns)
            if exchange.output_tokens > 1 and exchange.source != TokenSource.USAGE_WITH_HIDDEN:
                spent_ns = exchange.token_ns[-1] - exchange.token_ns[0]
                families.tpot.observe(spent_ns // (exchange.output_tokens - 1))


def p99(values: list[int]) -> int:
    """The smallest value that 99% do not exceed; NONE without any."""
    return sorted(values)[nearest_rank(len(values), P99) - 1] if values else NONE


class ServerLoad(LoadLoop, Frontend):
    """The load that goes with a server: a frontend of the replica.

    When it is stopped it goes on until what was asked before is answered, FOLLOW_S at most; what is under way then is booked as abandoned.
    """

    name = "load"

    def __init__(
        self,
        server: ServerSpec,
        client: ServerClient,
        asks: Iterator[Question],
        ledger: ServerLedger,
        *,
        seed: int,
        alive: Callable[[], None],
        own_metrics: AbstractContextManager[None] | None = None,
        settle_s: float = 0.0,
        record_s: float = 0.0,
        empty_s: float = 0.0,
    ) -> None:
        due = of_server(server, seed, settle_s=settle_s, record_s=record_s)
        super().__init__(
            client,
            asks,
            ledger.book,
            due=None if due is None else ((due_ns, 0) for due_ns in due),
            most=server.concurrency or 1 if due is None else server.max_in_flight,
            follow_s=FOLLOW_S,
            empty_s=empty_s,
            on_depth=ledger.on_depth,
            alive=alive,
        )
        self._ledger, self._own_metrics = ledger, own_metrics or nullcontext()
        self._says_idle = bool(empty_s)

    def run(self, stopping: threading.Event) -> None:
        """Ask until ``stopping``. Raises WorkloadError when the server has ended, OSError when a log cannot be written."""
        with self._own_metrics:
            super().run(stopping)

    def facts(self) -> Mapping[str, object]:
        """How far it has come, for ``replica.json``."""
        failed = {"failures": dict(self._ledger.failures), "first_failure": self._ledger.first_failure}
        return {
            "in_flight": self.in_flight,
            "abandoned": self.abandoned,
            "repeated": self._ledger.repeated,
            **failed,
            **self._ledger.set_aside,
            **({"idle": self.idle} if self._says_idle else {}),
        }

    def close(self) -> None:
        """Write the logs to their end. Raises OSError."""
        self._ledger.close()


def user_client(server: ServerSpec, port: int, host: str, *, tls: bool = False) -> UserClient:
    """The client of the user's own that the spec names. Raises WorkloadError where there is none."""
    factory: Callable[..., OwnClient] = find_factory(server.client or "", "`server.client`")  # type: ignore[assignment]
    try:
        client = factory(host=host, port=port, tls=tls, model=server.model, headers=request_headers(server))
    except Exception as error:
        said = without_key(f"{type(error).__name__}: {error}", server_key(server))
        raise WorkloadError(f"the client {server.client} cannot be made: {said}") from error
    if not all(callable(getattr(client, name, None)) for name in ("ask", "close")):
        raise WorkloadError(f"{server.client} returned a {type(client).__name__} without ask() and close().")
    return UserClient(server, client)


def _with_mounted_files(engine: ServerSpec, target: Path) -> ServerSpec:
    """The same, with its files put together of the parts that came with the pod, in ``target``. Raises OSError."""
    if _MOUNTED_DIR_VARIABLE not in os.environ:
        return engine
    parts = defaultdict(list)
    for path in sorted(Path(os.environ[_MOUNTED_DIR_VARIABLE]).glob("*.[0-9][0-9][0-9]")):
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
        engine = _with_mounted_files(engine, settings.replica_dir / "given")
    return ServerWorkload(settings, spec, engine)
