"""Ollama's own: a JSON object in each line, of a text that goes on or of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import IMAGE, Answer, Carries, ModelDialect, Question, carried_by


def _common(server: ServerSpec, question: Question) -> dict[str, Any]:
    """It streams unless it is told not to."""
    return {"stream": server.stream, "options": {"num_predict": question.output_tokens}}


def _images(server: ServerSpec) -> dict[str, Any]:
    return {"images": [IMAGE]} if server.requests.image else {}


def body_of_generate(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    return {"prompt": question.prompt, **_images(server), **_common(server, question)}


def body_of_chat(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    messages = question.messages or [{"role": "user", "content": question.prompt, **_images(server)}]
    return {"messages": messages, **_common(server, question)}


def read_event(answer: Answer, content: Mapping[str, Any], _name: str = "") -> Carries | None:
    """See ModelDialect."""
    if "done" not in content:
        return None
    message = content.get("message")
    carried = carried_by(message if isinstance(message, dict) else {**content, "content": content.get("response")})
    if content["done"]:
        answer.over = True
        answer.count(
            {"prompt_tokens": content.get("prompt_eval_count"), "completion_tokens": content.get("eval_count")}
        )
        carried = max(carried, answer.end(content.get("done_reason") or "stop"))
    return carried


GENERATE = ModelDialect("Ollama's generate", body_of_generate, read_event, read_event, limits=("options.num_predict",))
CHAT = ModelDialect("Ollama's chat", body_of_chat, read_event, read_event, limits=("options.num_predict",))
