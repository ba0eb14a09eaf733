"""Images and sounds of requests: noise from the seed, made before the load and asked in turn."""

from __future__ import annotations

import base64
import io
import random
import struct
import wave
import zlib
from collections.abc import Iterator

from harness.spec.server_requests import RequestsSpec

IMAGE, AUDIO = "{image}", "{audio}"
"""Where their base64 goes in a body."""
SAMPLES_PER_S = 16_000
POOL = 8
_SAMPLE_BYTES = 2
_SQUARE = 4
"""Pixels; noise in squares of so many makes a PNG about as large as a photograph of as many pixels is as JPEG."""


def pool(requests: RequestsSpec, seed: int) -> list[dict[bytes, bytes]]:
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
        yield IMAGE.encode(), base64.b64encode(png(requests.image.width, requests.image.height, chance))
    if requests.audio:
        yield AUDIO.encode(), base64.b64encode(wav(requests.audio.seconds, chance))
