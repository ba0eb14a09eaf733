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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import LoadError
from harness.spec.replica import read_environment
from harness.spec.server import OPEN_INFERENCE, Protocol, ServerSpec
from harness.spec.server_requests import LengthSpec, RequestsSpec, TensorSpec
from harness.traffic import arrivals
from harness.traffic.open_inference import TensorRequest
from harness.traffic.protocols import AUDIO, IMAGE, UNKNOWN, Question, body_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_WORDS = ("the", "sun", "on", "a", "red", "hill", "is", "low", "and", "we", "go", "home", "by", "sea", "with", "two")
"""Each is one token to most tokenizers."""
_FEWEST_WORDS = 2
_KEYS = ("prompt", "messages", "body")
_PROMPT = "{prompt}"
_PEOPLE = frozenset({"human", "user"})
SAMPLES_PER_S = 16_000
POOL = 8
_SAMPLE_BYTES = 2
_SQUARE = 4
"""Pixels; noise in squares of so many makes a PNG about as large as a photograph of as many pixels is as JPEG."""


class Texts:
    """Texts of words that count as one token each; by a tokenizer of exactly so many, without special ones and the model's template.

    ``path`` is ``tokenizer.json``, or the folder that holds it. Raises LoadError where there is no tokenizer, or none of
    whose tokens texts of a given length can be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._words: Sequence[str] = _WORDS
        self._between = " "
        self._tokenizer: Any = _read_tokenizer(path) if path else None
        if self._tokenizer is None:
            return
        for between, candidates in ((" ", _WORDS), (" ", self._vocabulary()), ("", self._vocabulary())):
            self._between = between
            self._words = self._that_stay_apart(candidates)
            if len(self._words) >= _FEWEST_WORDS:
                return
        raise LoadError(
            f"no text of a given number of tokens can be made with the tokenizer {path}: no two words stay one token each, side by "
            "side; leave requests.tokenizer out."
        )

    def make(self, tokens: int, chance: random.Random) -> str:
        """A text of so many tokens."""
        return self._between.join(chance.choices(self._words, k=tokens))

    def known(self, tokens: int) -> int:
        """How many tokens a text has that was made of so many; UNKNOWN without a tokenizer."""
        return UNKNOWN if self._tokenizer is None else tokens

    def count(self, text: str) -> int:
        """How many tokens a text has; UNKNOWN without a tokenizer."""
        return UNKNOWN if self._tokenizer is None else len(self._numbers(text))

    def _numbers(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _vocabulary(self) -> Iterator[str]:
        numbers = sorted(self._tokenizer.get_vocab().values())
        texts = (self._tokenizer.decode([number]).strip() for number in numbers)
        return (text for text in texts if text.isascii() and text.isalnum())

    def _that_stay_apart(self, candidates: Iterable[str]) -> list[str]:
        """A few words that are one token each wherever they stand: at the beginning, in the middle and at the end, after each other."""
        kept: list[str] = []
        for word in candidates:
            known = self._tokenizer.decode(self._numbers(word)).strip() == word
            if known and word not in kept and all(self._apart(word, other) for other in (word, *kept)):
                kept.append(word)
                if len(kept) == len(_WORDS):
                    break
        return kept

    def _apart(self, word: str, other: str) -> bool:
        """Two orders hold each of the two at the beginning, after the other, before it and at the end."""
        orders = ([word], [word, other, word, other], [other, word, other, word])
        return all(self.count(self._between.join(order)) == len(order) for order in orders)


def _read_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # an extra brings it

    file = path / _TOKENIZER_FILE if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(
            f"the tokenizer {file} cannot be read: {error.strerror}; give a folder with {_TOKENIZER_FILE}, or that file. Nothing is fetched."
        ) from error
    except Exception as error:  # the library raises no narrower one
        raise LoadError(f"{file} is no tokenizer as {_TOKENIZER_FILE} holds one: {error!s:.200}") from error
    tokenizer.no_truncation()  # a file may ask for both
    tokenizer.no_padding()
    return tokenizer


def questions(server: ServerSpec, seed: int) -> Iterator[Question]:
    """Endless, each with its whole body. Raises LoadError for a file that cannot be read, when the first one is taken."""
    chance = random.Random(seed)  # noqa: S311 - requests to repeat, not a secret
    tokenizer = server.requests.tokenizer
    made = Texts(Path(tokenizer) if tokenizer else None)
    if server.protocol in OPEN_INFERENCE:
        yield from _tensor_questions(server, made, chance)
    inputs = itertools.cycle(media_pool(server.requests, seed))
    for question, filled in zip(_text_questions(server, made, chance), inputs, strict=False):
        body = body_of(server, question)
        for place, data in filled.items():
            body = body.replace(place, data)
        yield replace(question, body=body)


def _text_questions(server: ServerSpec, made: Texts, chance: random.Random) -> Iterator[Question]:
    requests = server.requests
    inputs, outputs = requests.input_tokens, requests.output_tokens
    if server.trace:
        for request in itertools.cycle(arrivals.read_trace(Path(server.trace.file), server.trace.factor)):
            prompt, tokens = made.make(request.input_tokens, chance), made.known(request.input_tokens)
            yield Question(output_tokens=request.output_tokens, prompt=prompt, input_tokens=tokens)
    if requests.file:
        lines = read_file(Path(requests.file))
        start = chance.randrange(len(lines))  # replicas do not ask the same at the same time
        for line in itertools.islice(itertools.cycle(lines), start, None):
            prompt = line.get("prompt", "")
            yield Question(
                output_tokens=line.get("output_tokens") or _drawn(outputs, chance),
                prompt=prompt,
                input_tokens=made.count(prompt) if prompt and isinstance(prompt, str) else UNKNOWN,
                messages=line.get("messages"),
                body=line.get("body"),
            )
    while True:
        tokens = _drawn(inputs, chance)
        prompt = made.make(tokens, chance)
        yield Question(output_tokens=_drawn(outputs, chance), prompt=prompt, input_tokens=made.known(tokens))


def read_file(path: Path) -> list[dict[str, Any]]:
    """The requests of a JSONL file, or of a JSON file in ShareGPT's form. Raises LoadError with what is at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"the requests' file {path} cannot be read: {error}.") from error
    if path.suffix == ".json":
        return _conversations(path, text)
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not any(key in entry for key in _KEYS):
            raise LoadError(f"{path}:{number}: a line is a JSON object with `prompt`, `messages` or `body`.")
        entries.append(entry)
    if not entries:
        raise LoadError(f"the requests' file {path} holds no request.")
    return entries


def _conversations(path: Path, text: str) -> list[dict[str, Any]]:
    """What people asked first in each conversation."""
    try:
        entries = [entry["conversations"] for entry in json.loads(text)]
        first = [turns[0] for turns in entries if turns]
        prompts = [turn["value"] for turn in first if turn["from"] in _PEOPLE and turn["value"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LoadError(
            f"the requests' file {path} is no JSON in ShareGPT's form: a list of objects with `conversations`, "
            f"whose turns have `from` and `value` ({type(error).__name__}: {error})."
        ) from error
    if not prompts:
        raise LoadError(f"the requests' file {path} holds no conversation that a human begins.")
    return [{"prompt": prompt} for prompt in prompts]


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
            body = same or request.encode(made.make(_drawn(inputs, chance), chance))
            yield Question(output_tokens=1, body=body)
    whole = json.dumps({"inputs": tensors})
    before, *after = whole.split(_PROMPT)
    while True:
        prompt = json.dumps(made.make(_drawn(inputs, chance), chance))[1:-1] if after else ""
        yield Question(output_tokens=1, body=prompt.join([before, *after]).encode())


def _elements(tensor: TensorSpec, chance: random.Random) -> list[Any]:
    size, datatype = math.prod(tensor.shape), tensor.datatype
    if datatype == "BYTES":
        return [_PROMPT] * size
    if datatype.startswith("FP"):
        return [round(chance.random(), 4) for _ in range(size)]
    return [bool(chance.getrandbits(1)) if datatype == "BOOL" else chance.randrange(100) for _ in range(size)]


def _drawn(length: LengthSpec, chance: random.Random) -> int:
    return min(max(round(chance.gauss(length.mean, length.stddev)), length.min), length.max)


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
        yield IMAGE.encode(), base64.b64encode(png(requests.image.width, requests.image.height, chance))
    if requests.audio:
        yield AUDIO.encode(), base64.b64encode(wav(requests.audio.seconds, chance))


if __name__ == "__main__":
    try:
        server_spec = read_environment(os.environ)[0].workload.server
        if server_spec:
            next(questions(server_spec, 0))
    except LoadError as error:
        sys.exit(str(error))
