"""The client of servers that speak the Open Inference Protocol over gRPC: one channel, whose requests share a connection."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import grpc

from harness.spec.server import ServerSpec
from harness.traffic.clients import ServerClient, request_headers
from harness.traffic.open_inference import METHOD, has_outputs
from harness.traffic.protocols import BadAnswerError, Question, body_of
from harness.traffic.records import BROKEN, OK, Exchange

STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": BROKEN,
    "DEADLINE_EXCEEDED": 504,
}
"""gRPC's codes as those of HTTP that mean the same (google.rpc.Code); of a connection that breaks it says UNAVAILABLE."""
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Of this channel alone, and tried again soon: a request must not fail for what an earlier one met.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class GrpcClient(ServerClient):
    """Sends requests over one channel, over TLS or not."""

    def __init__(self, server: ServerSpec, port: int, host: str, *, tls: bool = False) -> None:
        super().__init__(server)
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._metadata = tuple((name.lower(), value) for name, value in request_headers(server).items())

    async def close(self) -> None:
        """Let go of what is under way, and end the connection."""
        await super().close()
        if self._channel is not None:
            await self._channel.close()

    async def _ask(self, question: Question, exchange: Exchange) -> None:
        body = body_of(self._server, question)
        infer = self._connected().unary_unary(METHOD)
        exchange.sent_ns = time.perf_counter_ns()
        try:
            answer = await infer(body, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            exchange.status = STATUSES.get(code, BROKEN)
            exchange.said = f"gRPC {code}: {error.details()}"
            return
        try:
            complete = has_outputs(answer)
        except ValueError as error:
            raise BadAnswerError(f"the answer is no ModelInferResponse: {error}") from error
        if not complete:
            raise BadAnswerError("the answer has no outputs")
        exchange.status = OK

    def _connected(self) -> grpc.aio.Channel:
        """The channel; it belongs to the event loop in which it is made."""
        if self._channel is None:
            made = grpc.aio.secure_channel if self._tls else grpc.aio.insecure_channel
            self._channel = made(self._address, *([_credentials()] if self._tls else []), options=_OPTIONS)
        return self._channel


def _credentials() -> grpc.ChannelCredentials:
    """The authorities that this machine trusts, as for HTTP; gRPC would take a list of its own."""
    paths = ssl.get_default_verify_paths()
    return grpc.ssl_channel_credentials(Path(paths.cafile).read_bytes() if paths.cafile else None)
