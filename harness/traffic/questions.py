"""What is asked, in an order that the seed repeats: synthetic texts, of a trace's lengths or others, or the lines of a file.

``python -m harness.traffic.questions``: can be read what a server would be asked? Starts and asks nothing; says why not.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import os
import random
import struct
import sys
import wave
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import LoadError
from harness.spec.replica import read_environment
from harness.spec.server import OPEN_INFERENCE, Protocol, ServerSpec
from harness.spec.server_requests import RequestsSpec, TensorSpec
from harness.traffic import conversations
from harness.traffic.conversations import drawn
from harness.traffic.dialects.dialect import AUDIO, AUDIO_FILE, IMAGE, IMAGE_FILE
from harness.traffic.open_inference import TensorRequest
from harness.traffic.protocols import Question, body_of
from harness.traffic.texts import Texts

_PROMPT = "{prompt}"
SAMPLES_PER_S = 16_000
POOL = 8
_SAMPLE_BYTES = 2
_SQUARE = 4
"""Pixels; noise in squares of so many makes a PNG about as large as a photograph of as many pixels is as JPEG."""


def questions(server: ServerSpec, seed: int) -> Iterator[Question]:
    """Endless, each with its whole body; of a session its first turn, which yields the others.

    Raises LoadError for a file that cannot be read, when the first one is taken.
    """
    chance = random.Random(seed)  # noqa: S311 - requests to repeat, not a secret
    tokenizer = server.requests.tokenizer
    made = Texts(Path(tokenizer) if tokenizer else None)
    if server.protocol in OPEN_INFERENCE:
        yield from _tensor_questions(server, made, chance)
    inputs = itertools.cycle(media_pool(server.requests, seed))
    for question, filled in zip(conversations.questions(server, made, chance, seed), inputs, strict=False):
        body = body_of(server, question)
        for place, data in filled.items():
            body = body.replace(place, data)
        yield replace(question, body=body, following=_whole(server, question.following))


def _whole(server: ServerSpec, turns: Iterator[Question]) -> Iterator[Question]:
    """With their bodies, which are made when they are taken."""
    return (replace(turn, body=body_of(server, turn)) for turn in turns)


def _tensor_questions(server: ServerSpec, made: Texts, chance: random.Random) -> Iterator[Question]:
    """Requests with tensors. Random elements are drawn once: what asks must not be slower than what answers."""
    inputs = server.requests.input_tokens
    tensors = [
        {**tensor.model_dump(mode="json"), "data": tensor.data or _elements(tensor, chance)}
        for tensor in server.tensors or ()
    ]
    if server.protocol is Protocol.OIP_GRPC:
        request = TensorRequest(server.model or "", tensors, _PROMPT)
        same = None if request.varies else request.encode("")
        while True:
            body = same or request.encode(made.make(drawn(inputs, chance), chance))
            yield Question(output_tokens=1, body=body)
    whole = json.dumps({"inputs": tensors})
    before, *after = whole.split(_PROMPT)
    while True:
        prompt = json.dumps(made.make(drawn(inputs, chance), chance))[1:-1] if after else ""
        yield Question(output_tokens=1, body=prompt.join([before, *after]).encode())


def _elements(tensor: TensorSpec, chance: random.Random) -> list[Any]:
    size, datatype = math.prod(tensor.shape), tensor.datatype
    if datatype == "BYTES":
        return [_PROMPT] * size
    if datatype.startswith("FP"):
        return [round(chance.random(), 4) for _ in range(size)]
    return [bool(chance.getrandbits(1)) if datatype == "BOOL" else chance.randrange(100) for _ in range(size)]


def media_pool(requests: RequestsSpec, seed: int) -> list[dict[bytes, bytes]]:
    """A few sets of what is filled into bodies, by what it is filled in for; of ``requests`` in the campaign file."""
    chance = random.Random(seed)  # noqa: S311 - noise to repeat, not a secret
    return [dict(_made(requests, chance)) for _ in range(POOL)]


def png(width: int, height: int, chance: random.Random) -> bytes:
    """An image in colour, so many pixels wide and high."""
    rows = []
    for top in range(0, height, _SQUARE):
        colours = chance.randbytes(3 * -(-width // _SQUARE))
        row = b"".join(colours[at : at + 3] * _SQUARE for at in range(0, len(colours), 3))[: 3 * width]
        same_again = b"\2" + bytes(len(row))  # filter 2: the difference to the row above
        rows.append(b"\0" + row + same_again * (min(_SQUARE, height - top) - 1))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue each
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def wav(seconds: float, chance: random.Random) -> bytes:
    """A sound of one channel, 16 bits and 16 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, _SAMPLE_BYTES, SAMPLES_PER_S, 0, "NONE", ""))
        sound.writeframes(chance.randbytes(round(seconds * SAMPLES_PER_S) * _SAMPLE_BYTES))
    return file.getvalue()


def _made(requests: RequestsSpec, chance: random.Random) -> Iterator[tuple[bytes, bytes]]:
    if requests.image:
        file = png(requests.image.width, requests.image.height, chance)
        yield from ((IMAGE.encode(), base64.b64encode(file)), (IMAGE_FILE.encode(), file))
    if requests.audio:
        file = wav(requests.audio.seconds, chance)
        yield from ((AUDIO.encode(), base64.b64encode(file)), (AUDIO_FILE.encode(), file))


if __name__ == "__main__":
    try:
        server_spec = read_environment(os.environ)[0].workload.server
        if server_spec:
            next(questions(server_spec, 0))
    except LoadError as error:
        sys.exit(str(error))
