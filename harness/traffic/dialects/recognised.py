"""Which dialect an answer is of that was not asked for: the first thing to say to somebody whose server speaks another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.spec.server import Protocol
from harness.traffic.dialects.dialect import SHOWN_BYTES, parsed

_ANTHROPIC = frozenset({"message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"})
_COHERE = frozenset(
    {"message-start", "content-start", "content-delta", "content-end", "message-end", "tool-call-delta"}
)
_AS_OPENAI = "which is not spoken here; ask its OpenAI-compatible path (/v1/chat/completions)"

Content = Mapping[str, Any]


def _choices(content: Content, key: str) -> bool:
    choices = content.get("choices")
    return isinstance(choices, list) and any(isinstance(choice, dict) and key in choice for choice in choices)


_KNOWN: tuple[tuple[str, Protocol | str, Callable[[Content], bool]], ...] = (
    (
        "Anthropic's messages",
        Protocol.ANTHROPIC,
        lambda it: str(it.get("type")) in _ANTHROPIC or (it.get("type") == "message" and "content" in it),
    ),
    (
        "OpenAI's responses",
        Protocol.OPENAI_RESPONSES,
        lambda it: str(it.get("type")).startswith("response.") or it.get("object") == "response",
    ),
    (
        "OpenAI's completions",
        Protocol.OPENAI_COMPLETIONS,
        lambda it: it.get("object") == "text_completion" or _choices(it, "text"),
    ),
    ("OpenAI's chat completions", Protocol.OPENAI_CHAT, lambda it: _choices(it, "delta") or _choices(it, "message")),
    ("Ollama's chat", Protocol.OLLAMA_CHAT, lambda it: "done" in it and "message" in it),
    ("Ollama's generate", Protocol.OLLAMA_GENERATE, lambda it: "done" in it and "response" in it),
    ("Triton's generate", Protocol.TRITON_GENERATE, lambda it: "text_output" in it),
    ("the Open Inference Protocol", Protocol.OIP, lambda it: "outputs" in it and "model_name" in it),
    (
        "Text Generation Inference's own",
        _AS_OPENAI,
        lambda it: isinstance(it.get("token"), dict) or "generated_text" in it,
    ),
    ("Gemini's own", _AS_OPENAI, lambda it: "candidates" in it),
    ("Cohere's own", _AS_OPENAI, lambda it: str(it.get("type")) in _COHERE or "event_type" in it),
    ("SGLang's own generate", _AS_OPENAI, lambda it: "meta_info" in it and "text" in it),
    ("KoboldCpp's own", _AS_OPENAI, lambda it: isinstance(it.get("token"), str) or _results(it)),
    ("llama.cpp's own completion", _AS_OPENAI, lambda it: isinstance(it.get("content"), str) and "stop" in it),
    ("Bedrock's Converse", _AS_OPENAI, lambda it: "contentBlockDelta" in it or "messageStart" in it),
    ("text-generation-webui's old one", _AS_OPENAI, lambda it: it.get("event") == "text_stream"),
    ("LMDeploy's own generate", _AS_OPENAI, lambda it: "text" in it and "tokens" in it),
    ("vLLM's demonstration server", _AS_OPENAI, lambda it: isinstance(it.get("text"), list)),
    ("embeddings", "ask for them with protocol: http", lambda it: it.get("object") == "list" and "data" in it),
)
"""In the order in which they are tried: name, the protocol that speaks it or what to do, and what tells it."""


def _results(content: Content) -> bool:
    results = content.get("results")
    return isinstance(results, list) and bool(results) and isinstance(results[0], dict) and "text" in results[0]


def recognised(content: Content) -> tuple[str, Protocol | str] | None:
    """Name of the dialect that an object is of, and the protocol that speaks it, or what to do else."""
    return next(((name, advice) for name, advice, is_it in _KNOWN if is_it(content)), None)


def foreign(data: bytes, protocol: Protocol, kind: str) -> str:
    """What is said of an answer that is none of the protocol's: content type, how it begins, and which dialect it is."""
    begin = f"({kind or 'no content type'}) begins {data[:SHOWN_BYTES]!r}"
    try:
        named = recognised(parsed(data))
    except ValueError:
        return f"the answer is not a JSON object: it {begin}"
    if named is None:
        return f"the answer is not what protocol {protocol.value} says: it {begin}"
    name, advice = named
    if advice == protocol:
        return f"the answer is {name}, and no stream of it: it {begin}; set `stream: false`, or have the server stream"
    what = f"set `protocol: {advice.value}`" if isinstance(advice, Protocol) else advice
    return f"the answer is {name}: {what}. It {begin}"
