"""What a dialect is: the body of a request, and what each event of its answer means.

Common to all of them is what carries output, what an error looks like, and where the numbers of tokens come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from harness.spec.server import ServerSpec
from harness.traffic.records import NONE, TokenSource

UNKNOWN = NONE
IMAGE, AUDIO = "{image}", "{audio}"
"""Where their base64 goes in a body."""
IMAGE_FILE, AUDIO_FILE = "{image_file}", "{audio_file}"
"""Where they go themselves, as bytes."""
SHOWN_BYTES = 80
_MOST_TOKENS = 1 << 40
_FAILED = re.compile(
    "abort|block|cancel|disconnect|error|evict|fail|filter|insufficient|interrupt|overload|preempt|prohibit|recitation|refus|safety"
    "|sensitive|time.?out|unload",
    re.IGNORECASE,
)
"""In a reason for the end of an answer. One that a filter ended is a failure, too: it is shorter than what was asked for, so that
a server which withholds answers would look fast."""
_CONTENTS = (
    "text",
    "thinking",
    "content",
    "summary",
    "arguments",
    "name",
    "data",
    "transcript",
    "function",
    "url",
    "image_url",
)
_REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking", "thought")
_OUTPUT = ("content", "tool_calls", "refusal", "function_call", "audio", "images")
_OF_ERRORS = frozenset(
    {
        "message",
        "msg",
        "detail",
        "code",
        "status",
        "status_code",
        "success",
        "type",
        "param",
        "object",
        "request_id",
        "id",
        "timestamp",
    }
)


class BadAnswerError(Exception):
    """The answer came whole and is none: not what the protocol says, an error in it, or the success condition is not met."""


@dataclass(frozen=True, slots=True)
class Question:
    """What one request asks; ``output_tokens`` at most.

    ``messages`` are of a chat, in place of the prompt, ``body`` is whole, in place of all others, as an object or as it is sent.
    ``input_tokens`` are the prompt's, by a tokenizer of the client's own. The client hangs up ``cancel_after_s`` after it began.
    ``turn`` is one of the ``turns`` of a ``session``: it is meant to be sent ``delay_s`` after the answer before it, and no earlier
    than ``offset_s`` after the first turn, whose ``following`` yields those after it.
    """

    output_tokens: int
    prompt: str = ""
    messages: list[Any] | None = None
    body: Mapping[str, Any] | bytes | None = None
    input_tokens: int = UNKNOWN
    cancel_after_s: float | None = None
    session: int = UNKNOWN
    turn: int = UNKNOWN
    turns: int = UNKNOWN
    delay_s: float = 0.0
    offset_s: float = 0.0
    following: Iterator[Question] = field(default=iter(()), compare=False, repr=False)

    @property
    def goes_on(self) -> bool:
        """More turns of its session follow."""
        return self.turn < self.turns


class Carries(IntEnum):
    """What an event carries."""

    NOTHING = 0
    END = 1
    """That the answer has ended."""
    REASONING = 2
    OUTPUT = 3


class Counts(NamedTuple):
    """Tokens of an answer, UNKNOWN where nobody says them, and where the number of those that came out is from."""

    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    source: int = NONE
    pieces: int = NONE


@dataclass(slots=True)
class Answer:
    """What an answer has said so far.

    Attributes:
        pieces: events that carried output.
        listed_pieces, listed_tokens: those of them that list their tokens, by log probabilities or numbers, and how many tokens that were.
        input_tokens, output_tokens: as the server counts them; zeros say nothing.
        hidden: the server counts tokens of reasoning that it does not send.
        reasoned: reasoning was sent.
        ended: the server has said that the answer is finished.
        over: nothing more comes.
    """

    pieces: int = 0
    listed_pieces: int = 0
    listed_tokens: int = 0
    input_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    hidden: bool = False
    reasoned: bool = False
    ended: bool = False
    over: bool = False

    def count(self, usage: object) -> None:
        """Take what a server says of its tokens, in any of the ways in which they name it."""
        if not isinstance(usage, dict):
            return
        before = self.input_tokens
        cached = sum(positive(usage.get(f"cache_{what}_input_tokens"), 0) for what in ("creation", "read"))
        given = positive(usage.get("prompt_tokens"), positive(usage.get("input_tokens")))
        self.input_tokens = before if given == UNKNOWN and not cached else max(given, 0) + cached
        given = positive(usage.get("completion_tokens"), positive(usage.get("output_tokens")))
        if given == UNKNOWN:
            return
        self.output_tokens = given
        details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
        unsent = positive(details.get("reasoning_tokens"), 0) if isinstance(details, dict) else 0
        beside = positive(usage.get("total_tokens"), 0) == max(self.input_tokens, 0) + given + unsent
        self.hidden |= unsent > 0 and not beside

    def end(self, reason: object) -> Carries:
        """Take a reason for the end, if there is one. Raises BadAnswerError for one that means a failure."""
        if not reason or reason == "null":
            return Carries.NOTHING
        if _FAILED.search(str(reason)):
            raise BadAnswerError(f"the server ended the answer with {str(reason)[:SHOWN_BYTES]!r}")
        self.ended = True
        return Carries.END

    def counts(self) -> Counts:
        """The server's, else those of the tokens that the pieces list, else the pieces."""
        if self.output_tokens != UNKNOWN:
            unseen = self.hidden and not self.reasoned
            source = TokenSource.USAGE_WITH_HIDDEN if unseen else TokenSource.USAGE
            return Counts(self.input_tokens, self.output_tokens, source, self.pieces)
        if self.listed_tokens and self.listed_pieces == self.pieces:
            return Counts(self.input_tokens, self.listed_tokens, TokenSource.LISTED, self.pieces)
        return Counts(self.input_tokens, self.pieces, TokenSource.PIECES, self.pieces)


@dataclass(frozen=True)
class ModelDialect:
    """A way to ask, and to answer.

    Attributes:
        name: in a sentence, e.g. ``OpenAI's chat``.
        body: of a request, before the user's own fields are laid over it.
        event: takes one event of a stream, and the name that it has as a server-sent one; None where it is none of this dialect.
        whole: takes an answer that does not stream; None where it is none of this dialect.
        headers: of every request, unless the user has others.
        ends_by_closing: no event says that a stream is finished.
        limits: fields that say how long an answer may be; the user's own replaces ours.
    """

    name: str
    body: Callable[[ServerSpec, Question], dict[str, Any]]
    event: Callable[[Answer, Mapping[str, Any], str], Carries | None]
    whole: Callable[[Answer, Mapping[str, Any]], Carries | None]
    headers: Mapping[str, str] = field(default_factory=dict)
    ends_by_closing: bool = False
    limits: tuple[str, ...] = ("max_tokens",)


def positive(value: object, otherwise: int = UNKNOWN) -> int:
    """A number of tokens that says something."""
    return value if type(value) is int and 0 < value < _MOST_TOKENS else otherwise


def holds(value: object) -> bool:
    """Whether a value of a delta holds anything that came out of a model, however it is wrapped."""
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, list):
        return any(map(holds, value))
    return isinstance(value, dict) and any(holds(value.get(key)) for key in _CONTENTS)


def carried_by(delta: Mapping[str, Any]) -> Carries:
    """What a delta, or a whole message, carries: an answer in words, calls of tools, a refusal or sound; reasoning; or nothing."""
    content = delta.get("content")
    if content and isinstance(content, str):
        return Carries.OUTPUT
    if isinstance(content, list):  # parts, of which some may be reasoning
        parts = [part for part in content if holds(part)]
        if parts and all(
            isinstance(part, dict) and str(part.get("type")) in {"thinking", "reasoning"} for part in parts
        ):
            return Carries.REASONING
    if any(holds(value) for key in _OUTPUT if (value := delta.get(key))):
        return Carries.OUTPUT
    return (
        Carries.REASONING if any(holds(value) for key in _REASONING if (value := delta.get(key))) else Carries.NOTHING
    )


def error_in(content: Mapping[str, Any]) -> object:
    """The error that an object holds or is; false where there is none. ``error: null`` is none."""
    if error := content.get("error"):
        return error
    if any(value for key, value in content.items() if key.startswith("error")):
        return dict(content)
    if "error" in (content.get("object"), content.get("type"), content.get("status")):
        return {key: value for key, value in content.items() if value and key not in {"object", "type"}} or dict(
            content
        )
    if _OF_ERRORS.issuperset(content) and any(
        isinstance(content.get(key), str | list) for key in ("message", "msg", "detail")
    ):
        return dict(content)
    return None


def parsed(data: bytes) -> dict[str, Any]:
    """The object of an event, or of an answer. Raises ValueError where it is none."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("too deep") from None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict) and error_in(content[0]):
        return content[0]  # as Gemini wraps errors
    if not isinstance(content, dict):
        raise ValueError("no object")  # noqa: TRY004 - as json raises it
    return content


def with_messages(server: ServerSpec, question: Question, content: Callable[[ServerSpec, str], Any]) -> list[Any]:
    """The messages of a chat: the question's own, or one with its prompt."""
    return question.messages or [{"role": "user", "content": content(server, question.prompt)}]
