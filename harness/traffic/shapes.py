"""What one record of a data file asks, in each of the shapes in which data is published.

Keys decide, record by record: files mix them. What cannot be read raises UnusableError, and is dropped and counted; what can
be read and would mean something else than it says raises WrongValueError, which refuses the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from harness.traffic.files import CsvCell
from harness.traffic.protocols import UNKNOWN

MOST_TOKENS = 1_000_000
MOST_MS = 1e15
"""Beyond any clock, those from 1970 on among them; a larger whole number may be no float."""
FAILED, NO_QUESTION, UNREADABLE = "failed", "no-question", "unreadable"
"""Why records are dropped: a request of 0 tokens, which failed where it was logged; nobody asks anything; it is no record."""
EPOCH_S = 1_000_000_000
"""A time of this century in seconds since 1970 is no less."""
BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16
_TEXT = ("prompt", "text", "text_input", "instruction", "question", "input")
_TEXTS = frozenset(_TEXT)
_INPUT = ("input_length", "input_tokens", "prompt_tokens_count", "ContextTokens", "Request tokens")
_OUTPUT = ("output_tokens", "output_length", "output_tokens_count", "GeneratedTokens", "Response tokens")
_AT = ("timestamp", "TIMESTAMP", "Timestamp")
_MEDIA = frozenset({"image", "images", "audio", "audios", "video", "videos"})
_PEOPLE, _SYSTEM = frozenset({"human", "user"}), frozenset({"system"})


class UnusableError(Exception):
    """A record that is dropped: its reason, and what is at fault."""

    def __init__(self, reason: str, fault: str = "") -> None:
        super().__init__(fault or reason)
        self.reason = reason


class WrongValueError(Exception):
    """A value that would mean something else than it says."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as a file has it: a text, messages or a whole body, or the lengths of a synthetic text.

    ``at`` is in the file's unit; ``delay_ms`` counts from the end of the answer before; ``answer`` is the recorded one;
    ``extra`` are more fields of the body.
    """

    prompt: Any = ""
    system: str = ""
    messages: list[Any] | None = None
    body: Mapping[str, Any] | None = None
    url: str = ""
    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    hash_ids: Sequence[int] = ()
    extra: Mapping[str, Any] | None = None
    answer: str = ""
    at: float | None = None
    delay_ms: float | None = None

    @property
    def has_content(self) -> bool:
        """It says what is asked, and not only how long that is."""
        return bool(self.prompt) or self.messages is not None or self.body is not None


class Shape(NamedTuple):
    """Whose form a file has.

    ``unit``: of its times, empty where it does not say; ``block_tokens``: of each of ``hash_ids``; ``sessions``: its conversations
    are to be asked as such.
    """

    name: str
    unit: str = ""
    block_tokens: int = BLOCK_TOKENS
    sessions: bool = False


_SHAPES = (
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), Shape("Azure LLM inference trace", "ms")),
    (("Timestamp", "Request tokens", "Response tokens"), Shape("BurstGPT", "s")),
    (("chat_id", "timestamp"), Shape("Qwen-Bailian", "s", BAILIAN_BLOCK_TOKENS)),
    (("turns",), Shape("AIPerf multi-turn", "ms", sessions=True)),
    (("conversations",), Shape("ShareGPT")),
    (("conversation",), Shape("ShareGPT")),
    (("custom_id", "body"), Shape("OpenAI batch")),
    (("body",), Shape("bodies")),
    (("session_id",), Shape("AIPerf trace with sessions", "ms", sessions=True)),
    (("messages",), Shape("messages")),
    (("text",), Shape("AIPerf single-turn", "ms")),
    (("text_input",), Shape("AIPerf trace with texts", "ms")),
    (("prompt_tokens_count",), Shape("guidellm")),
    (("output_tokens_count",), Shape("guidellm")),
    *(((key,), Shape("prompts")) for key in ("prompt", "instruction", "question", "input")),
)
"""By the keys that a record has, the first that fits."""


def shape_of(record: Mapping[str, Any]) -> Shape:
    """The shape of a file, by its first record.

    Mooncake's and AIPerf's milliseconds are whole numbers that begin near 0: others write the same keys with seconds.
    """
    shape = next((shape for keys, shape in _SHAPES if record.keys() >= set(keys)), None)
    shape = shape or (Shape("Mooncake", "ms") if "hash_ids" in record else Shape("lengths"))
    turns = record.get("turns")
    begins = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], Mapping) else record
    at = begins.get("timestamp", 0)
    certain = shape.unit != "ms" or (type(at) is int and at < EPOCH_S)
    return shape if certain else shape._replace(unit="")


def turns_of(record: Mapping[str, Any]) -> list[Turn]:
    """The requests of one record, several where it is a conversation. Raises UnusableError, WrongValueError."""
    if not isinstance(record, Mapping):
        raise UnusableError(UNREADABLE, "it must be an object")
    if "turns" in record:
        return list(_of_aiperf(record))
    for key in ("conversations", "conversation"):
        if key in record:
            return list(_of_sharegpt(record[key], record))
    return [_one_turn(record)]


def _one_turn(record: Mapping[str, Any]) -> Turn:
    turn = Turn(
        input_tokens=_count(record, _INPUT),
        output_tokens=_count(record, _OUTPUT),
        hash_ids=_hash_ids(record),
        at=_time(record),
        delay_ms=_time(record, ("delay",)),
        extra=_of_kind(record, "extra", dict, "an object") if record.get("extra") else None,
    )
    if not _MEDIA.isdisjoint(record):
        raise WrongValueError("images and sounds of a file are read in `messages` or `body` alone: put them there")
    return _with_content(turn, record)


def _with_content(turn: Turn, record: Mapping[str, Any]) -> Turn:
    """With what a record asks; of lengths alone, both are needed."""
    if "body" in record:
        body = _of_kind(record, "body", dict, "an object")
        return replace(turn, body=body, url=str(record.get("url") or "") if _is_batch(record) else "")
    if "messages" in record:
        if record.get("message_mode") == "delta":
            raise WrongValueError(
                "message_mode delta needs the answers of the server, which are not kept: write the history out"
            )
        return replace(turn, messages=_of_kind(record, "messages", list, "a list of messages that is not empty"))
    key = None if _TEXTS.isdisjoint(record) else next(key for key in _TEXT if key in record)
    if key is not None:
        prompt = record[key]
        if prompt == "":
            raise UnusableError(NO_QUESTION, f"`{key}` is empty")
        if not isinstance(prompt, str | list) or not prompt:
            raise WrongValueError(f"`{key}` is {_shown(prompt)}, and must be a text")
        return replace(turn, prompt=prompt)
    if 0 in {turn.input_tokens, turn.output_tokens}:
        raise UnusableError(FAILED)
    for name, tokens in ((_INPUT[0], turn.input_tokens), (_OUTPUT[1], turn.output_tokens)):
        if tokens == UNKNOWN:
            raise UnusableError(UNREADABLE, f"{name} is missing")
    return turn


def _of_aiperf(record: Mapping[str, Any]) -> Iterator[Turn]:
    """Each turn has a ``text``; a system turn that leads is that of the whole conversation."""
    turns = _of_kind(record, "turns", list, "a list of turns that is not empty")
    leads = isinstance(turns[0], dict) and turns[0].get("role") == "system" and len(turns) > 1
    system = str(turns[0].get("text", "")) if leads else ""
    for entry in turns[1:] if leads else turns:
        if not isinstance(entry, dict):
            raise UnusableError(UNREADABLE, "a turn must be an object")
        yield replace(_one_turn(entry), system=system)
        system = ""


def _of_sharegpt(conversation: Any, record: Mapping[str, Any]) -> Iterator[Turn]:
    """What people said, each with the answer after it; a system turn may lead."""
    if not isinstance(conversation, list):
        raise UnusableError(UNREADABLE, "`conversations` must be a list of turns")
    turns, system = list(map(_speaker_and_text, conversation)), ""
    if turns and turns[0][0] in _SYSTEM:
        (_, system), *turns = turns
    if not turns or turns[0][0] not in _PEOPLE or not turns[0][1]:
        raise UnusableError(NO_QUESTION, "no conversation that a human begins")
    timed = Turn(at=_time(record), output_tokens=_count(record, _OUTPUT))
    for number, (speaker, text) in enumerate(turns):
        if speaker in _PEOPLE and text:
            following = turns[number + 1] if number + 1 < len(turns) else ("", "")
            answer = "" if following[0] in _PEOPLE else following[1]
            yield replace(timed, prompt=text, system=system, answer=answer)
            timed, system = Turn(), ""


def _speaker_and_text(turn: Any) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise UnusableError(UNREADABLE, "a turn must be an object")
    speaker, text = (turn.get(key, turn.get(other)) for key, other in (("from", "role"), ("value", "content")))
    if not isinstance(speaker, str) or not isinstance(text, str):
        raise UnusableError(UNREADABLE, "a turn needs `from` and `value`")
    return speaker, text


def _is_batch(record: Mapping[str, Any]) -> bool:
    return "custom_id" in record or "url" in record


def _of_kind(record: Mapping[str, Any], key: str, kind: type, words: str) -> Any:
    value = record[key]
    if not isinstance(value, kind) or not value:
        raise WrongValueError(f"`{key}` is {_shown(value)}, and must be {words}")
    return value


def _given(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of the names that the record has."""
    for name in names:
        if record.get(name) is not None:
            return name
    return None


def _count(record: Mapping[str, Any], names: Sequence[str]) -> int:
    """A number of tokens, 10.0 for 10 too; UNKNOWN where the record has none."""
    name = _given(record, names)
    if name is None:
        return UNKNOWN
    value = record[name]
    if type(value) is int and 0 <= value <= MOST_TOKENS:  # nearly all of millions
        return value
    value = _number(record, name)
    if value != int(value):
        raise WrongValueError(f"{name} must be a whole number, and is {_shown(record[name])}")
    if not 0 <= value <= MOST_TOKENS:
        raise WrongValueError(f"{name} must be 0 to {MOST_TOKENS}, and is {_shown(record[name])}")
    return int(value)


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, CsvCell):
        try:
            value = float(value)
        except ValueError:
            raise UnusableError(UNREADABLE, f"{name} is {_shown(value)}, and no number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongValueError(f"{name} must be a number, and is {_shown(value)}")
    if not -MOST_MS <= value <= MOST_MS:  # which is also false for NaN
        raise WrongValueError(f"{name} must be a finite number up to {MOST_MS:g}, and is {_shown(value)}")
    return value


def _time(record: Mapping[str, Any], names: Sequence[str] = _AT) -> float | None:
    name = _given(record, names)
    if name is None:
        return None
    if name == "TIMESTAMP":  # Azure's dates
        try:
            date = datetime.fromisoformat(str(record[name]))
        except ValueError:
            raise UnusableError(UNREADABLE, f"{name} is {_shown(record[name])}, and no date") from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000
    value = _number(record, name)
    if value < 0:
        raise WrongValueError(f"{name} must be at least 0, and is {_shown(record[name])}")
    return value


def _hash_ids(record: Mapping[str, Any]) -> Sequence[int]:
    value = record.get("hash_ids")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise WrongValueError(f"hash_ids must be a list of whole numbers, and is {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value!r:.60}"
