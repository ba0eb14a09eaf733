"""OpenAI's chat completions, as vLLM, SGLang, llama.cpp and most others speak them; the reading is that of completions, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.spec.server import ServerSpec
from harness.traffic.dialects.dialect import (
    AUDIO,
    IMAGE,
    Answer,
    BadAnswerError,
    Carries,
    ModelDialect,
    Question,
    carried_by,
    positive,
    with_messages,
)


def content_of(server: ServerSpec, prompt: str) -> str | list[dict[str, Any]]:
    """Of a message. What is filled in later is as large as an image, and JSON would look at each of its letters."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    if server.requests.image:
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}})
    if server.requests.audio:
        parts.append({"type": "input_audio", "input_audio": {"data": AUDIO, "format": "wav"}})
    return parts if len(parts) > 1 else prompt


def body(server: ServerSpec, question: Question) -> dict[str, Any]:
    """See ModelDialect."""
    return {
        "max_tokens": question.output_tokens,
        "messages": with_messages(server, question, content_of),
        **streaming(server),
    }


def streaming(server: ServerSpec) -> dict[str, Any]:
    """What asks for a stream that ends with the numbers of tokens."""
    return {"stream": True, "stream_options": {"include_usage": True}} if server.stream else {}


def read_event(answer: Answer, content: Mapping[str, Any], _name: str = "") -> Carries | None:
    """See ModelDialect."""
    _count(answer, content)
    choices = content.get("choices")
    if not isinstance(choices, list):
        return None if "choices" not in content and "usage" not in content else Carries.NOTHING
    carried = Carries.NOTHING
    for choice in choices:
        if isinstance(choice, dict):
            carried = max(carried, _read_choice(answer, choice))
    return carried


def read_whole(answer: Answer, content: Mapping[str, Any]) -> Carries | None:
    """See ModelDialect."""
    choices = content.get("choices")
    return read_event(answer, content) if isinstance(choices, list) and choices else None


def _read_choice(answer: Answer, choice: Mapping[str, Any]) -> Carries:
    """Any of those that were asked for."""
    if choice.get("error"):
        raise BadAnswerError(f"the stream holds an error: {choice['error']}")
    delta = choice.get("delta") or choice.get("message") or {}
    carried = (
        Carries.OUTPUT if choice.get("text") else carried_by(delta) if isinstance(delta, dict) else Carries.NOTHING
    )
    if carried and (tokens := _listed(choice)):
        answer.listed_pieces += 1
        answer.listed_tokens += tokens
    if "usage" in choice:
        answer.count(choice["usage"])
    return max(carried, answer.end(choice.get("finish_reason")))


def _listed(choice: Mapping[str, Any]) -> int:
    """How many tokens a piece names."""
    numbers, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if isinstance(numbers, list):
        return len(numbers)
    tokens = (logprobs.get("content") or logprobs.get("tokens")) if isinstance(logprobs, dict) else None
    return len(tokens) if isinstance(tokens, list) else 0


def _count(answer: Answer, content: Mapping[str, Any]) -> None:
    """Tokens as OpenAI says them, as Groq does, or as llama.cpp does without being asked."""
    answer.count(content.get("usage"))
    groq = content.get("x_groq")
    answer.count(groq.get("usage") if isinstance(groq, dict) else None)
    timings = content.get("timings")
    if isinstance(timings, dict) and not content.get("usage"):
        cached = positive(timings.get("cache_n"), 0)
        answer.count(
            {
                "prompt_tokens": positive(timings.get("prompt_n"), 0) + cached,
                "completion_tokens": timings.get("predicted_n"),
            }
        )


DIALECT = ModelDialect(
    "OpenAI's chat completions", body, read_event, read_whole, limits=("max_tokens", "max_completion_tokens")
)
