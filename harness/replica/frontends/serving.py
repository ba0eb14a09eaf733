"""The replica as an HTTP inference server: single and batch requests, dynamic batching, a bounded queue.

FastAPI under uvicorn in a thread; the model runs in the main thread, as ever. Inputs are the workload's own, so a
request carries none. A sender on the same machine may say in ``X-Intended-Ns`` when it meant to send (nanoseconds
since the epoch): latency then counts from there, as it does for LoadGen.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import fastapi
import pydantic
import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from harness.replica.errors import CannotBeMetError
from harness.replica.frontends import Frontend
from harness.replica.frontends.batching import NS_PER_S, Batcher, BatchLedger, Passes, Pending, Service
from harness.spec.scenario import ScenarioSpec

INTENDED_HEADER = "x-intended-ns"
MOST_EARLY_NS = 60 * NS_PER_S
"""An intended time further back than this is another clock's, and not believed."""
SWITCH_INTERVAL_S = 0.001
DRAIN_S = 0.6
"""How long requests that wait are still served after the signal: the answers have to be out before the deadline."""
GRACE_S = 0.25
KEEP_ALIVE_S = 3600
MOST_WAITING = 256
_RECENT = 1000
_PERCENT = (50, 90, 95, 99)


MOST_BODY_BYTES = 4096
_MOST_DIGITS = 19  # of a time in nanoseconds


class BatchRequest(pydantic.BaseModel):
    """Body of ``/infer/batch``."""

    inputs: int = pydantic.Field(ge=1, description="Inputs to serve, at most the largest batch.")


class HttpFrontend(Frontend):
    """Serves whoever asks on a port of its own. Raises CannotBeMetError where the address is none of this machine's."""

    def __init__(
        self,
        scenario: ScenarioSpec,
        serve: Passes,
        ledger: BatchLedger,
        *,
        host: str,
        phase: Callable[[], str],
    ) -> None:
        self._batch_size = serve.batch_size
        self._epoch_ns, self.service_log = ledger.metrics.epoch_ns, ledger.service_log
        self._phase = phase
        self._batcher = Batcher(
            serve.batch_size,
            (scenario.max_wait_ms or 0.0) / 1e3,
            scenario.max_queue or MOST_WAITING,
            ledger.on_depth,
        )
        self._service = Service(self._batcher, serve, ledger, self._answer)
        self._accepted = self._refused = self._served = self._inputs = self._batches = 0
        self._recent_ns: deque[int] = deque(maxlen=_RECENT)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = _listen(host)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            self._app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="http-server", daemon=True
        )

    def facts(self) -> dict[str, object]:
        """How much it has served so far."""
        return {
            "kind": "http",
            "port": self.port,
            "accepted": self._accepted,
            "refused": self._refused,
            "served": self._served,
            "waiting": self._batcher.depth,
            "batches": self._batches,
            "mean_batch": round(self._inputs / self._batches, 3) if self._batches else None,
        }

    def run(self, stopping: threading.Event) -> None:
        """Serve until ``stopping``, then what waits and can be served in time."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()
        while not stopping.is_set():
            self._service.serve_next()
        self._batcher.close()
        end_s = time.monotonic() + DRAIN_S
        while self._batcher.depth and time.monotonic() < end_s:
            self._service.serve_next()

    def close(self) -> None:
        """Turn away what still waits, and stop listening once the answers are out."""
        self._resolve(self._batcher.drop(), None)
        self._server.should_exit = True
        self._thread.join(GRACE_S)
        self._socket.close()

    def _answer(self, batch: Sequence[Pending], start_ns: int, end_ns: int) -> None:
        inputs = sum(request.inputs for request in batch)
        self._batches += 1
        self._served += len(batch)
        self._inputs += inputs
        self._recent_ns.extend(end_ns - request.intended_ns for request in batch)
        self._resolve(batch, {"batch": inputs, "service_ms": (end_ns - start_ns) / 1e6})

    def _resolve(self, batch: Sequence[Pending], outcome: dict[str, Any] | None) -> None:
        """Let the server's thread answer; None: turned away."""
        loop = self._loop
        if batch and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it every client
                loop.call_soon_threadsafe(_set_results, batch, outcome)

    def _app(self) -> fastapi.FastAPI:
        app = fastapi.FastAPI(title="replica", docs_url=None, redoc_url=None)
        app.add_api_route("/health", self._health, methods=["GET"])
        app.add_api_route("/ready", self._ready, methods=["GET"])
        app.add_api_route("/stats", self._stats, methods=["GET"])
        # Plain routes: FastAPI's parsing of parameters would double the cost of a request that has none, and reads any body.
        app.add_route("/infer/batch", self._infer_batch, methods=["POST"])
        app.add_route("/infer", self._serve_one, methods=["POST"])
        return app

    async def _health(self) -> dict[str, str]:
        """The process is alive, whatever it is doing."""
        return {"phase": self._phase()}

    async def _ready(self) -> JSONResponse:
        """200 while requests are taken."""
        phase = self._phase()
        return JSONResponse({"phase": phase}, 200 if phase == "serving" else 503)

    async def _stats(self) -> dict[str, object]:
        recent_ns = sorted(self._recent_ns)
        latency_ms = {
            f"p{percent}": recent_ns[min(len(recent_ns) * percent // 100, len(recent_ns) - 1)] / 1e6
            for percent in _PERCENT
            if len(recent_ns) * (100 - percent) >= 100
        }
        return {**self.facts(), "recent_requests": len(recent_ns), "recent_latency_ms": latency_ms}

    async def _infer_batch(self, request: Request) -> Response:
        text = bytearray()
        try:
            async for piece in request.stream():
                text += piece
                if len(text) > MOST_BODY_BYTES:
                    return JSONResponse(
                        {"error": f"a body has at most {MOST_BODY_BYTES} bytes"}, 413, {"Connection": "close"}
                    )
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it: the client went away within its body
        try:
            body = BatchRequest.model_validate_json(bytes(text))
        except pydantic.ValidationError as error:
            return JSONResponse(
                {"error": error.errors(include_url=False, include_context=False, include_input=False)}, 422
            )
        if body.inputs > self._batch_size:
            problem = f"{body.inputs} inputs are more than the largest batch of {self._batch_size}"
            return JSONResponse({"error": problem}, 413)
        return await self._serve_one(request, body.inputs)

    async def _serve_one(self, request: Request, inputs: int = 1) -> Response:
        arrived_ns = time.perf_counter_ns()
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        intended_ns = self._intended_ns(request, arrived_ns)
        if not self._batcher.offer(Pending(inputs, intended_ns, arrived_ns, future)):
            if self._phase() != "serving":
                return _turned_away()
            self._refused += 1
            return JSONResponse({"error": "the queue is full"}, 429, {"Retry-After": "1"})
        self._accepted += 1
        outcome = await future
        if outcome is None:
            return _turned_away()
        waited_ms = (time.perf_counter_ns() - arrived_ns) / 1e6 - outcome["service_ms"]
        body = f'{{"inputs": {inputs}, "batch": {outcome["batch"]}, "service_ms": {outcome["service_ms"]:.6f}, "waited_ms": {waited_ms:.6f}}}'
        return Response(body, media_type="application/json")

    def _intended_ns(self, request: Request, arrived_ns: int) -> int:
        """When the request was meant to be sent, by our clock; its arrival when that is not said or not credible."""
        said = request.headers.get(INTENDED_HEADER, "")
        if not said.isdecimal() or len(said) > _MOST_DIGITS:
            return arrived_ns
        intended_ns = int(said) - self._epoch_ns
        return intended_ns if arrived_ns - MOST_EARLY_NS < intended_ns < arrived_ns else arrived_ns


def _set_results(batch: Sequence[Pending], outcome: dict[str, Any] | None) -> None:
    for request in batch:
        future: asyncio.Future[dict[str, Any] | None] = request.token  # type: ignore[assignment]
        if not future.done():  # its client went away
            future.set_result(outcome)


def _turned_away() -> JSONResponse:
    return JSONResponse({"error": "the replica is stopping"}, 503, {"Connection": "close"})


def _listen(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, 0))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CannotBeMetError(f"cannot listen on {host}: {error.strerror}; choose another HOST.") from error
    return listener
