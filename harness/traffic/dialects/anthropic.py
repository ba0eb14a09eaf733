"""Anthropic's messages: named events, blocks of text, thinking and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import IMAGE, Answer, Carries, ModelDialect, Question, holds, with_messages

_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    }
)
_OUTPUT = ("text", "partial_json", "citation")
_THINKING = frozenset({"thinking", "redacted_thinking"})


def _content_of(server: ServerSpec, prompt: str) -> str | list[dict[str, Any]]:
    if not server.requests.image:
        return prompt
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    return [{"type": "image", "source": source}, {"type": "text", "text": prompt}]


def body(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    messages = with_messages(server, question, _content_of)
    return {
        "max_tokens": question.output_tokens,
        "messages": messages,
        **({"stream": True} if server.stream else {}),
    }


def read_event(answer: Answer, content: Mapping[str, Any], name: str) -> Carries | None:
    """See ModelDialect."""
    kind = str(content.get("type") or name)
    if kind not in _EVENTS:
        return None
    if kind == "content_block_delta":
        return _read_delta(answer, content.get("delta"))
    if kind == "message_stop":
        answer.over = True
        return answer.end("end_turn")
    if kind == "content_block_start":
        return _read_start(answer, content.get("content_block"))
    message = content.get("message") if kind == "message_start" else content
    answer.count(message.get("usage") if isinstance(message, dict) else None)
    if kind == "message_delta" and isinstance(delta := content.get("delta"), dict):
        return answer.end(delta.get("stop_reason"))
    return Carries.NOTHING


def read_whole(answer: Answer, content: Mapping[str, Any]) -> Carries | None:
    """See ModelDialect."""
    blocks = content.get("content")
    if content.get("type") != "message" or not isinstance(blocks, list):
        return None
    answer.count(content.get("usage"))
    carried = [answer.end(content.get("stop_reason")), *(_read_start(answer, block) for block in blocks)]
    return max(carried)


def _read_start(answer: Answer, block: object) -> Carries:
    """A block begins, or is whole."""
    if not isinstance(block, dict):
        return Carries.NOTHING
    if str(block.get("type")) in _THINKING:
        answer.hidden = True  # unless it is sent
        answer.reasoned |= bool(block.get("thinking"))
        return Carries.REASONING if block.get("thinking") else Carries.NOTHING
    return Carries.OUTPUT if holds(block) else Carries.NOTHING


def _read_delta(answer: Answer, delta: object) -> Carries:
    if not isinstance(delta, dict):
        return Carries.NOTHING
    if delta.get("thinking"):
        answer.reasoned = True
        return Carries.REASONING
    return Carries.OUTPUT if any(delta.get(key) for key in _OUTPUT) else Carries.NOTHING


DIALECT = ModelDialect(
    "Anthropic's messages", body, read_event, read_whole, headers={"anthropic-version": "2023-06-01"}
)
