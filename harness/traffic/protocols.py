"""What a request's body is, and what its answer says, whatever the protocol: the dialects of language models, plain HTTP, tensors.

A piece of a stream that carries output counts as one token where neither the server nor the piece itself says how many there
were; times are always the client's.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import LoadError
from harness.spec.server import CHATS, LANGUAGE, Protocol, ServerSpec
from harness.traffic.dialects import anthropic, ollama, openai_chat, openai_completions, openai_responses, triton
from harness.traffic.dialects.dialect import (
    AUDIO,
    IMAGE,
    SHOWN_BYTES,
    UNKNOWN,
    Answer,
    BadAnswerError,
    Carries,
    Counts,
    ModelDialect,
    Question,
    error_in,
    parsed,
    positive,
)
from harness.traffic.dialects.recognised import foreign, recognised
from harness.traffic.framing import Event, Received
from harness.traffic.records import NONE, TokenSource

__all__ = [
    "AUDIO",
    "IMAGE",
    "UNKNOWN",
    "BadAnswerError",
    "Carries",
    "Counts",
    "EventStream",
    "Question",
    "body_of",
    "counted",
    "read_whole",
]

DIALECTS: Mapping[Protocol, ModelDialect] = {
    Protocol.OPENAI_CHAT: openai_chat.DIALECT,
    Protocol.OPENAI_COMPLETIONS: openai_completions.DIALECT,
    Protocol.OPENAI_RESPONSES: openai_responses.DIALECT,
    Protocol.ANTHROPIC: anthropic.DIALECT,
    Protocol.OLLAMA_GENERATE: ollama.GENERATE,
    Protocol.OLLAMA_CHAT: ollama.CHAT,
    Protocol.TRITON_GENERATE: triton.DIALECT,
}
_WITHOUT_MESSAGES = LANGUAGE - CHATS
_PROMPT, _OUTPUT_TOKENS = "{prompt}", "{output_tokens}"
_PLACEHOLDER = re.compile(r"\{(?:prompt|output_tokens)\}")
_DONE = b"[DONE]"


def counted(given: Mapping[str, Any], pieces: int) -> Counts:
    """Of a client of the user's own: ``input_tokens`` and ``output_tokens`` as it says them, else the pieces."""
    of_input, of_output = positive(given.get("input_tokens")), positive(given.get("output_tokens"))
    if of_output != UNKNOWN:
        return Counts(of_input, of_output, TokenSource.USAGE, pieces)
    return Counts(of_input, pieces, TokenSource.PIECES, pieces) if pieces else Counts(of_input)


def body_of(server: ServerSpec, question: Question) -> bytes:
    """The request's body. Raises LoadError where the protocol cannot send what is asked."""
    if isinstance(question.body, bytes):
        return question.body
    if question.body is not None:
        return json.dumps(question.body).encode()
    if server.protocol is Protocol.OWN:
        return b""  # its client makes it
    words = {_PROMPT: question.prompt, _OUTPUT_TOKENS: str(question.output_tokens)}
    if server.protocol is Protocol.HTTP:
        if isinstance(server.body, str):
            return _filled_text(server.body, words).encode()
        return b"" if server.body is None else json.dumps(_filled(server.body, words)).encode()
    if question.messages and server.protocol in _WITHOUT_MESSAGES:
        raise LoadError(
            f"a request has `messages`, and protocol {server.protocol.value} sends a prompt: use a protocol of a chat."
        )
    dialect = DIALECTS[server.protocol]
    body = dialect.body(server, question)
    if server.model is not None:
        body["model"] = server.model
    own = _filled(server.extra_body, words)
    for limit in dialect.limits[1:]:
        if own.get(limit) is not None:  # two limits in one request are refused
            body.pop(dialect.limits[0], None)
    return json.dumps(patched(body, own)).encode()


def patched(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the user's fields laid over it, as JSON Merge Patch (RFC 7396) says: null takes a key out, objects are merged."""
    result = dict(body)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = patched(before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def read_whole(server: ServerSpec, body: bytes, content_type: str = "") -> Counts:
    """An answer that does not stream. Raises BadAnswerError."""
    if server.protocol is Protocol.HTTP:
        return _read_plain(server, body)
    try:
        content = parsed(body)
    except ValueError as error:
        raise BadAnswerError(foreign(body, server.protocol, content_type)) from error
    _refuse_error(content, "answer")
    if server.protocol is Protocol.OIP:
        if not isinstance(content.get("outputs"), list) or not content["outputs"]:
            raise BadAnswerError(f"the answer has no outputs: {body[:SHOWN_BYTES]!r}")
        return Counts()
    answer = Answer()
    carried = DIALECTS[server.protocol].whole(answer, content)
    if carried is None:
        raise BadAnswerError(foreign(body, server.protocol, content_type))
    if carried <= Carries.END:
        raise BadAnswerError(f"the answer held no output: {body[:SHOWN_BYTES]!r}")
    counts = answer.counts()
    if counts.source == TokenSource.PIECES:  # it came in none
        return Counts(counts.input_tokens)
    return counts._replace(pieces=NONE)


class EventStream:
    """The events of one answer, as they arrive; ``clean`` takes out of it what must not be quoted, before it is cut short."""

    def __init__(self, server: ServerSpec, clean: Callable[[bytes], bytes] = bytes) -> None:
        self._clean = clean
        self._protocol = server.protocol
        self._dialect = DIALECTS[server.protocol]
        self._answer = Answer()
        self._refused = self._last = b""

    @property
    def over(self) -> bool:
        """The server has said that nothing more comes."""
        return self._answer.over

    def take(self, event: Event) -> Carries:
        """What the event carries. Raises BadAnswerError for an error, or an end that is a failure."""
        data, answer = event.data, self._answer
        if data == _DONE:
            answer.over = True
            before, answer.ended = answer.ended, True
            return Carries.NOTHING if before else Carries.END
        if not data.strip() or self._refused:
            return Carries.NOTHING
        self._last = data
        try:
            content = parsed(data)
        except ValueError:
            if event.name == "error":
                raise BadAnswerError(f"the stream holds an error: {self._clean(data)[:SHOWN_BYTES]!r}") from None
            self._refused = data
            return Carries.NOTHING
        if event.name == "error":
            raise BadAnswerError(f"the stream holds an error: {json.dumps(content)}")
        _refuse_error(content, "stream")
        carried = self._dialect.event(answer, content, event.name)
        if carried is None:
            named = recognised(content)  # what nobody knows is no harm
            self._refused = data if named and named[1] != self._protocol else b""
            return Carries.NOTHING
        if carried > Carries.END:
            answer.pieces += 1
            answer.reasoned |= carried is Carries.REASONING and self._protocol is not Protocol.OPENAI_RESPONSES
        return carried

    def end(self, received: Received) -> Counts:
        """The numbers of tokens. Raises BadAnswerError where it was cut, held no output, or is of another dialect."""
        kind = received.head.content_type
        if self._refused or received.kind == "whole":
            raise BadAnswerError(foreign(self._clean(self._refused or self._last), self._protocol, kind))
        answer = self._answer
        if not (answer.ended or (self._dialect.ends_by_closing and answer.pieces and not received.cut)):
            cut = received.cut and f"its last event was complete: {received.cut[:SHOWN_BYTES]!r}"
            begun = "" if answer.pieces else f"; it ({kind or 'no content type'}) begins {received.begin!r}"
            raise BadAnswerError(f"the stream ended before {cut or 'it was finished'}{begun}")
        if not answer.pieces:
            raise BadAnswerError(
                "the stream held no output: neither text nor reasoning, a refusal, sound or a call of a tool"
            )
        return answer.counts()


def _refuse_error(content: Mapping[str, Any], what: str) -> None:
    if ("choices" not in content or "error" in content) and (error := error_in(content)):
        raise BadAnswerError(f"the {what} holds an error: {json.dumps(error)}")


def _read_plain(server: ServerSpec, body: bytes) -> Counts:
    contains = server.success.contains.encode()
    if contains not in body:
        raise BadAnswerError(f"the answer does not contain {server.success.contains!r}")
    if not contains and b'"error"' in body:
        try:
            error = parsed(body).get("error")
        except ValueError:
            return Counts()
        if error:
            raise BadAnswerError(
                f"the answer holds an error: {json.dumps(error)}; say in `success` what an answer contains"
            )
    return Counts()


def _filled(template: Any, words: Mapping[str, str]) -> Any:
    """The template with its placeholders filled in, in every text of it; one that is a whole text becomes a number where it is one."""
    if isinstance(template, Mapping):
        return {key: _filled(value, words) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, words) for value in template]
    if not isinstance(template, str):
        return template
    if template == _OUTPUT_TOKENS:
        return int(words[template])
    return _PLACEHOLDER.sub(lambda place: words[place[0]], template)


def _filled_text(template: str, words: Mapping[str, str]) -> str:
    """In JSON, a prompt is written as JSON writes it."""
    if _is_json(template):
        words = {**words, _PROMPT: json.dumps(words[_PROMPT])[1:-1]}
    return _PLACEHOLDER.sub(lambda place: words[place[0]], template)


@functools.lru_cache(maxsize=16)
def _is_json(template: str) -> bool:
    try:
        return isinstance(json.loads(_PLACEHOLDER.sub("0", template)), dict | list | str)
    except ValueError:
        return False
