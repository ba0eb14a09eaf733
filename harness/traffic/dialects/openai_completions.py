"""OpenAI's completions: a prompt, and a text that follows it."""

from __future__ import annotations

from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import ModelDialect, Question
from harness.traffic.dialects.openai_chat import read_event, read_whole, streaming


def body(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    return {"max_tokens": question.output_tokens, "prompt": question.prompt, **streaming(server)}


DIALECT = ModelDialect("OpenAI's completions", body, read_event, read_whole)
