"""The Open Inference Protocol over gRPC: ModelInferRequest and ModelInferResponse of package inference, and the client.

A request is put together from its parts, which are encoded once, and of an answer it is read whether it has outputs: no
message is ever an object. Numbers of fields are those of the protocol's grpc_predict_v2.proto. Every tensor is sent in
raw_input_contents: little-endian elements, and texts with their length before them.
"""

from __future__ import annotations

import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import LoadError
from harness.spec.server import ServerSpec
from harness.traffic.clients import ServerClient, request_headers
from harness.traffic.protocols import BadAnswerError, Question, body_of
from harness.traffic.records import BROKEN, OK, Exchange

if TYPE_CHECKING:
    import grpc

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_FORMATS = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_BYTES = "BYTES"
_MODEL, _INPUTS, _RAW_INPUTS = 1, 5, 7
_NAME, _DATATYPE, _SHAPE = 1, 2, 3
_OUTPUTS = 5
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5
_WIDTHS = {_EIGHT: 8, _FOUR: 4}
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
    ("grpc.enable_http_proxy", 0),
    # Of this channel alone, and tried again soon: a request must not fail for what an earlier one met.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class GrpcClient(ServerClient):
    """Sends requests over one channel, over TLS or not."""

    def __init__(self, server: ServerSpec, port: int, host: str, *, tls: bool = False) -> None:
        import grpc  # an extra brings it

        super().__init__(server)
        self._grpc = grpc
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
        except self._grpc.aio.AioRpcError as error:
            code = error.code().name
            exchange.status = STATUSES.get(code, BROKEN)
            exchange.said = f"gRPC {code}: {error.details()}"
            return
        try:
            complete = has_outputs(answer)
        except ValueError as error:
            raise BadAnswerError(f"the answer is not a ModelInferResponse: {error}") from error
        if not complete:
            raise BadAnswerError("the answer has no outputs")
        exchange.status = OK

    def _connected(self) -> grpc.aio.Channel:
        """The channel; it belongs to the event loop in which it is made."""
        if self._channel is None:
            aio = self._grpc.aio
            if self._tls:
                # The authorities that this machine trusts, as for HTTP; gRPC would take a list of its own.
                file = ssl.get_default_verify_paths().cafile
                trusted = self._grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)
                self._channel = aio.secure_channel(self._address, trusted, options=_OPTIONS)
            else:
                self._channel = aio.insecure_channel(self._address, options=_OPTIONS)
        return self._channel


class TensorRequest:
    """Requests with the same tensors, as in the campaign file; in elements of BYTES a request's text replaces the placeholder.

    Raises LoadError where an element does not fit its datatype.
    """

    def __init__(self, model: str, tensors: Sequence[Mapping[str, Any]], placeholder: str) -> None:
        self._head = _field(_MODEL, model.encode()) + b"".join(
            _field(_INPUTS, _described(tensor)) for tensor in tensors
        )
        self._placeholder = placeholder
        self._raw: list[bytes | list[str]] = [self._encoded(tensor) for tensor in tensors]
        self.varies = any(isinstance(content, list) for content in self._raw)

    def encode(self, text: str) -> bytes:
        """The request that asks with this text."""
        filled = (data if isinstance(data, bytes) else self._texts(data, text) for data in self._raw)
        return b"".join([self._head, *(_field(_RAW_INPUTS, content) for content in filled)])

    def _encoded(self, tensor: Mapping[str, Any]) -> bytes | list[str]:
        data, datatype = tensor["data"], tensor["datatype"]
        try:
            if datatype != _BYTES:
                return struct.pack(f"<{len(data)}{_FORMATS[datatype]}", *data)
            return data if any(self._placeholder in element for element in data) else self._texts(data, "")
        except (struct.error, OverflowError, TypeError) as error:
            raise LoadError(f"an element of tensor {tensor['name']} is no {datatype}: {error}.") from error

    def _texts(self, data: Sequence[str], text: str) -> bytes:
        encoded = [element.replace(self._placeholder, text).encode() for element in data]
        return b"".join(struct.pack("<I", len(element)) + element for element in encoded)


def has_outputs(answer: bytes) -> bool:
    """Whether a ModelInferResponse has an output. Raises ValueError where it is none."""
    at, has_output = 0, False
    while at < len(answer):
        tag, at = _read_varint(answer, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _read_varint(answer, at)
        elif kind in _WIDTHS:
            at += _WIDTHS[kind]
        elif kind == _DELIMITED:
            size, at = _read_varint(answer, at)
            at += size
            has_output |= tag >> 3 == _OUTPUTS
        else:
            raise ValueError(f"wire type {kind}")
    if at != len(answer):
        raise ValueError("a field is longer than what holds it")
    return has_output


def _described(tensor: Mapping[str, Any]) -> bytes:
    shape = b"".join(_varint(size) for size in tensor["shape"])
    return (
        _field(_NAME, tensor["name"].encode()) + _field(_DATATYPE, tensor["datatype"].encode()) + _field(_SHAPE, shape)
    )


def _field(number: int, content: bytes) -> bytes:
    return b"".join((_varint(number << 3 | _DELIMITED), _varint(len(content)), content))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("it ends within a number")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
