"""What a request's body is, and what its answer says: plain HTTP, OpenAI's completions and chat, the Open Inference Protocol.

A piece of a stream that carries text counts as one token: servers send one a piece. Where the server says how many there
were (``usage``), its numbers are taken for the counts; times are always the client's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.spec.server import Protocol, ServerSpec
from harness.traffic.framing import Event, Received

UNKNOWN = -1
IMAGE, AUDIO = "{image}", "{audio}"
"""Where their base64 goes in a body."""


class BadAnswerError(Exception):
    """The answer came whole and is none: not what the protocol says, an error in it, or the success condition is not met."""


@dataclass(frozen=True, slots=True)
class Question:
    """What one request asks; ``output_tokens`` at most.

    ``messages`` are of a chat, in place of the prompt, ``body`` is whole, in place of all others, as an object or as it is sent.
    ``input_tokens`` are the prompt's, by a tokenizer of the client's own.
    """

    output_tokens: int
    prompt: str = ""
    messages: list[Any] | None = None
    body: Mapping[str, Any] | bytes | None = None
    input_tokens: int = UNKNOWN


Counts = tuple[int, int]
"""Tokens in and out of an answer, UNKNOWN where nobody says them."""


def counted(usage: object) -> Counts:
    """As the server counted them."""
    given = usage if isinstance(usage, dict) else {}
    of_input, of_output = (
        count if type(count) is int and count >= 0 else UNKNOWN
        for count in (given.get("prompt_tokens"), given.get("completion_tokens"))
    )
    return of_input, of_output


def body_of(engine: ServerSpec, question: Question) -> bytes:
    """The request's body."""
    if isinstance(question.body, bytes):
        return question.body
    if question.body is not None:
        return json.dumps(question.body).encode()
    if engine.protocol is Protocol.OWN:
        return b""  # its client makes it
    if engine.protocol is Protocol.HTTP:
        if engine.body is None:
            return b""
        words = {"{prompt}": question.prompt, "{output_tokens}": str(question.output_tokens)}
        filled = _filled(engine.body, words)
        return filled.encode() if isinstance(filled, str) else json.dumps(filled).encode()
    body: dict[str, Any] = {"max_tokens": question.output_tokens}
    if engine.model is not None:
        body["model"] = engine.model
    if engine.protocol is Protocol.OPENAI_CHAT:
        body["messages"] = question.messages or [{"role": "user", "content": _content(engine, question.prompt)}]
    else:
        body["prompt"] = question.prompt
    if engine.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body | dict(engine.extra_body)).encode()


def _content(engine: ServerSpec, prompt: str) -> str | list[dict[str, Any]]:
    """Of a chat's message. What is filled in later is as large as an image, and JSON would look at each of its letters."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    if engine.requests.image:
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}})
    if engine.requests.audio:
        parts.append({"type": "input_audio", "input_audio": {"data": AUDIO, "format": "wav"}})
    return parts if len(parts) > 1 else prompt


def read_whole(engine: ServerSpec, body: bytes) -> Counts:
    """An answer that does not stream. Raises BadAnswerError."""
    if engine.protocol is Protocol.HTTP:
        if engine.success.contains.encode() not in body:
            raise BadAnswerError(f"the answer does not contain {engine.success.contains!r}")
        return UNKNOWN, UNKNOWN
    content = _object(body)
    results = "outputs" if engine.protocol is Protocol.OIP else "choices"
    if not isinstance(content.get(results), list) or not content[results]:
        raise BadAnswerError(f"the answer has no {results}: {body[:80]!r}")
    return counted(content.get("usage"))


class EventStream:
    """The events of an answer of OpenAI's protocols."""

    def __init__(self) -> None:
        self._pieces = 0
        self._finished = False
        self._usage: dict[str, Any] = {}

    def take(self, event: Event) -> bool:
        """Whether the event carries text. Raises BadAnswerError."""
        if event.data == b"[DONE]":
            self._finished = True
            return False
        has_text = bool(event.data.strip()) and self._has_text(_object(event.data))
        self._pieces += has_text
        return has_text

    def end(self, received: Received) -> Counts:
        """The server's counts, else the pieces with text. Raises BadAnswerError when it was cut or held no text."""
        if not self._finished:
            cut = received.cut and f"its last event was complete: {received.cut[:80]!r}"
            raise BadAnswerError(f"the stream ended before {cut or 'it was finished'}")
        if not self._pieces:
            raise BadAnswerError("the stream held no text")
        of_input, of_output = counted(self._usage)
        return of_input, self._pieces if of_output == UNKNOWN else of_output

    def _has_text(self, event: Mapping[str, Any]) -> bool:
        if "error" in event:
            raise BadAnswerError(f"the stream holds an error: {json.dumps(event['error'])}")
        if isinstance(usage := event.get("usage"), dict):
            self._usage |= usage
        choices = event.get("choices") or [{}]
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        if choice.get("finish_reason"):
            self._finished = True
        delta = choice.get("delta") or {}
        return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content"))


def _object(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise BadAnswerError(f"the answer is no JSON: {data!r}") from error
    if not isinstance(content, dict):
        raise BadAnswerError(f"the answer is no JSON object: {data!r}")
    return content


def _filled(template: Any, words: Mapping[str, str]) -> Any:
    """The template with its placeholders filled in, in every text of it; one that is a whole text becomes a number where it is one."""
    if isinstance(template, dict):
        return {key: _filled(value, words) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, words) for value in template]
    if not isinstance(template, str):
        return template
    if template == "{output_tokens}":
        return int(words[template])
    for name, value in words.items():
        template = template.replace(name, value)
    return template
