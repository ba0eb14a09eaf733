"""Triton's generate and generate_stream: a text in, texts out; the stream ends when the server ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import Answer, Carries, ModelDialect, Question, holds


def body(server: ServerSpec, question: Question) -> dict[str, Any]:
    """As the models of TensorRT-LLM take it; those of vLLM take both in ``parameters``."""
    return {"text_input": question.prompt, "max_tokens": question.output_tokens, "stream": server.stream}


def read_event(answer: Answer, content: Mapping[str, Any], _name: str = "") -> Carries | None:
    """See ModelDialect. The numbers of tokens in an event are those of that event, and not every model sends them."""
    if "text_output" not in content:
        return None
    answer.count({"prompt_tokens": content.get("num_input_tokens")})
    return Carries.OUTPUT if holds(content["text_output"]) else Carries.NOTHING


def read_whole(answer: Answer, content: Mapping[str, Any]) -> Carries | None:
    """See ModelDialect."""
    answer.count({"completion_tokens": content.get("num_output_tokens")})
    return read_event(answer, content)


DIALECT = ModelDialect("Triton's generate", body, read_event, read_whole, ends_by_closing=True)
