"""What is asked, in an order that the seed repeats: synthetic texts, of a trace's lengths or others, or the lines of a file."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.replica.engine import trace
from harness.replica.engine.protocols import Question
from harness.replica.engine.settings import OIP, Engine, Length
from harness.replica.errors import CannotBeMetError

_WORDS = ("the", "sun", "on", "a", "red", "hill", "is", "low", "and", "we", "go", "home", "by", "sea", "with", "two")
"""Each is one token to most tokenizers."""
_KEYS = ("prompt", "messages", "body")
_PROMPT = "{prompt}"
_PEOPLE = frozenset({"human", "user"})


def questions(engine: Engine, seed: int) -> Iterator[Question]:
    """Endless. Raises CannotBeMetError for a file that cannot be read, when the first one is taken."""
    chance = random.Random(seed)  # noqa: S311 - requests to repeat, not a secret
    asked = engine.requests
    inputs, outputs = Length(**asked["input_tokens"]), Length(**asked["output_tokens"])
    if engine.protocol == OIP:
        yield from _tensor_questions(engine, inputs, chance)
    if engine.trace:
        for each in itertools.cycle(trace.read(Path(engine.trace["file"]), engine.trace["factor"])):
            yield Question(output_tokens=each.output_tokens, prompt=_words(each.input_tokens, chance))
    if asked.get("file"):
        lines = read_file(Path(asked["file"]))
        start = chance.randrange(len(lines))  # replicas do not ask the same at the same time
        for line in itertools.islice(itertools.cycle(lines), start, None):
            yield Question(
                output_tokens=line.get("output_tokens") or _drawn(outputs, chance),
                prompt=line.get("prompt", ""),
                messages=line.get("messages"),
                body=line.get("body"),
            )
    while True:
        words = _words(_drawn(inputs, chance), chance)
        yield Question(output_tokens=_drawn(outputs, chance), prompt=words)


def read_file(path: Path) -> list[dict[str, Any]]:
    """The requests of a JSONL file, or of a JSON file in ShareGPT's form. Raises CannotBeMetError with what is at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotBeMetError(f"the requests' file {path} cannot be read: {error}.") from error
    if path.suffix == ".json":
        return _conversations(path, text)
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not any(key in entry for key in _KEYS):
            raise CannotBeMetError(f"{path}:{number}: a line is a JSON object with `prompt`, `messages` or `body`.")
        found.append(entry)
    if not found:
        raise CannotBeMetError(f"the requests' file {path} holds no request.")
    return found


def _conversations(path: Path, text: str) -> list[dict[str, Any]]:
    """What people asked first in each conversation."""
    try:
        entries = [entry["conversations"] for entry in json.loads(text)]
        first = [turns[0] for turns in entries if turns]
        prompts = [turn["value"] for turn in first if turn["from"] in _PEOPLE and turn["value"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CannotBeMetError(
            f"the requests' file {path} is no JSON in ShareGPT's form: a list of objects with `conversations`, "
            f"whose turns have `from` and `value` ({type(error).__name__}: {error})."
        ) from error
    if not prompts:
        raise CannotBeMetError(f"the requests' file {path} holds no conversation that a human begins.")
    return [{"prompt": prompt} for prompt in prompts]


def _tensor_questions(engine: Engine, inputs: Length, chance: random.Random) -> Iterator[Question]:
    """Requests with tensors. Random elements are drawn once: what asks must not be slower than what answers."""
    tensors = [{**tensor, "data": tensor["data"] or _elements(tensor, chance)} for tensor in engine.tensors or ()]
    whole = json.dumps({"inputs": tensors})
    before, *after = whole.split(_PROMPT)
    while True:
        prompt = json.dumps(_words(_drawn(inputs, chance), chance))[1:-1] if after else ""
        yield Question(output_tokens=1, body=prompt.join([before, *after]).encode())


def _elements(tensor: Mapping[str, Any], chance: random.Random) -> list[Any]:
    size, datatype = math.prod(tensor["shape"]), tensor["datatype"]
    if datatype == "BYTES":
        return [_PROMPT] * size
    if datatype.startswith("FP"):
        return [round(chance.random(), 4) for _ in range(size)]
    return [bool(chance.getrandbits(1)) if datatype == "BOOL" else chance.randrange(100) for _ in range(size)]


def _words(count: int, chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=count))


def _drawn(length: Length, chance: random.Random) -> int:
    return min(max(round(chance.gauss(length.mean, length.stddev)), length.min), length.max)
