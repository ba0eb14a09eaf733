"""OpenAI's responses: typed events, of which the deltas carry output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import IMAGE, Answer, BadAnswerError, Carries, ModelDialect, Question, holds

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_SUMMARY = "response.reasoning_summary"
"""Of reasoning that is not sent itself: its tokens are others."""


def body(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    text: Any = question.messages or question.prompt
    if server.requests.image:
        parts = [
            {"type": "input_text", "text": question.prompt},
            {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"},
        ]
        text = [{"role": "user", "content": parts}]
    return {"max_output_tokens": question.output_tokens, "input": text, **({"stream": True} if server.stream else {})}


def read_event(answer: Answer, content: Mapping[str, Any], name: str) -> Carries | None:
    """See ModelDialect."""
    kind = str(content.get("type") or name)
    if not kind.startswith("response."):
        return None
    if kind.endswith(".delta"):
        return _read_delta(answer, kind, content.get("delta"))
    if kind == "response.output_item.added":  # the name of a call is a token like any other
        item = content.get("item")
        return Carries.OUTPUT if isinstance(item, dict) and item.get("name") else Carries.NOTHING
    if kind in _ENDS:
        response = content.get("response")
        return _end(answer, response if isinstance(response, dict) else {"status": kind.removeprefix("response.")})
    return Carries.NOTHING


def _read_delta(answer: Answer, kind: str, delta: object) -> Carries:
    if not holds(delta):
        return Carries.NOTHING
    if "reasoning" not in kind:
        return Carries.OUTPUT
    answer.reasoned |= not kind.startswith(_SUMMARY)
    return Carries.REASONING


def read_whole(answer: Answer, content: Mapping[str, Any]) -> Carries | None:
    """See ModelDialect."""
    output = content.get("output")
    if not isinstance(output, list):
        return None
    carried = _end(answer, content)
    items = [item for item in output if isinstance(item, dict)]
    answer.reasoned = any(item.get("type") == "reasoning" and holds(item.get("content")) for item in items)
    if any(holds(item) for item in items if item.get("type") != "reasoning"):
        return Carries.OUTPUT
    return Carries.REASONING if answer.reasoned else carried


def _end(answer: Answer, response: Mapping[str, Any]) -> Carries:
    answer.count(response.get("usage"))
    if response.get("error"):
        raise BadAnswerError(f"the answer holds an error: {json.dumps(response['error'])}")
    details = response.get("incomplete_details")
    answer.over = True
    return max(
        answer.end(response.get("status") or "completed"),
        answer.end(details.get("reason") if isinstance(details, dict) else None),
    )


DIALECT = ModelDialect("OpenAI's responses", body, read_event, read_whole, limits=("max_output_tokens",))
