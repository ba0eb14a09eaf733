"""What a server of one's own is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from harness.spec.model import Count, Load, Port, StrictModel, Text, UpTo4096, UpToADay, UrlPath, WithinADay, checked

MOST_ELEMENTS = 10_000_000


class LengthSpec(StrictModel):
    """Lengths of synthetic texts: normally distributed, rounded, within bounds."""

    mean: float = Field(ge=1, le=1_000_000, description="Tokens on average, before the bounds.")
    stddev: float = Field(0.0, ge=0, le=1_000_000, description="Standard deviation, tokens; 0: all alike.")
    min: int = Field(1, ge=1, le=1_000_000, description="No text is shorter, tokens.")
    max: int = Field(1_000_000, ge=1, le=1_000_000, description="No text is longer, tokens.")

    @checked
    def _bounds_in_order(self) -> Iterator[str]:
        if not self.min <= self.mean <= self.max:
            yield f"`mean` {self.mean:g} must lie between `min` {self.min} and `max` {self.max}."


class ImageSpec(StrictModel):
    """A synthetic image."""

    width: UpTo4096 = Field(description="Pixels.")
    height: UpTo4096 = Field(description="Pixels.")


class AudioSpec(StrictModel):
    """A synthetic sound."""

    seconds: float = Field(ge=0.01, le=120, description="How long it is, at 16 kHz.")


class SharedPrefixSpec(StrictModel):
    """A beginning that synthetic texts have in common, as a system prompt is."""

    tokens: int = Field(ge=1, le=1_000_000, description="Of each prefix; those of `input_tokens` come after it.")
    groups: int = Field(
        1, ge=1, le=100_000, description="How many prefixes there are; each text begins with one of them."
    )


class SessionsSpec(StrictModel):
    """Requests that follow each other, each with what was said before."""

    turns: UpTo4096 = Field(description="Of each session; of a conversation in a file at most so many.")
    delay_s: UpToADay = Field(0.0, description="From the end of an answer to the next turn, where the file says none.")


class CancelSpec(StrictModel):
    """Requests whose client hangs up."""

    percent: float = Field(gt=0, le=100, description="Share of the requests, drawn by the seed.")
    after_s: WithinADay = Field(
        description="After a request began, connecting included; an answer that ends earlier counts as any other."
    )


class RequestsSpec(StrictModel):
    """What is asked."""

    file: str | None = Field(
        None,
        description="Data file, taken in turn: JSON lines with `prompt`, `messages` or `body` (and `output_tokens`), ShareGPT, AIPerf, "
        "OpenAI batch, guidellm, or a trace, whose lengths are taken; see docs/servers.md. null means synthetic texts.",
    )
    input_tokens: LengthSpec = Field(
        LengthSpec(mean=128), description="Of synthetic inputs; without `tokenizer` in words."
    )
    output_tokens: LengthSpec = Field(LengthSpec(mean=64), description="max_tokens, where the file does not say it.")
    shared_prefix: SharedPrefixSpec | None = Field(
        None, description="Synthetic texts that begin alike, e.g. {tokens: 512, groups: 8}; null: none do."
    )
    sessions: SessionsSpec | None = Field(
        None,
        description="openai: conversations of several turns, synthetic or of the file, e.g. {turns: 4, delay_s: 2}; `rate` and "
        "`concurrency` count sessions. null: one request each, but for files of sessions.",
    )
    cancel: CancelSpec | None = Field(
        None, description="The client hangs up on some, e.g. {percent: 5, after_s: 1}; neither successes nor failures."
    )
    tokenizer: Text | None = Field(
        None,
        description="Folder with tokenizer.json, or that file, on this machine: synthetic texts have exactly the drawn number of its "
        "tokens. null means that one short word counts as one token.",
    )
    image: ImageSpec | None = Field(
        None,
        description="openai-chat: a PNG of noise beside the text; http: its base64, where the body says {image}. E.g. {width: 640, "
        "height: 480}; null: none.",
    )
    audio: AudioSpec | None = Field(
        None,
        description="openai-chat: a WAV of noise beside the text; http: its base64, where the body says {audio}. E.g. {seconds: 5}; "
        "null: none.",
    )


class TraceSpec(StrictModel):
    """Requests that came somewhere, to come again."""

    file: Text = Field(
        description="Requests with timestamps, and texts or lengths in tokens: Mooncake, Qwen-Bailian, Azure (CSV), BurstGPT (CSV), AIPerf; "
        "see docs/servers.md."
    )
    unit: Literal["s", "ms"] | None = Field(
        None,
        description="Of its timestamps; null: as its form says, and the file is refused where that does not say it.",
    )
    block_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="Tokens of a block of `hash_ids`; null: 512, in Qwen-Bailian's form 16."
    )
    factor: Load = Field(1.0, description="How many times as fast as it was.")


Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
"""Of a tensor's elements; the Open Inference Protocol's own names."""


class TensorSpec(StrictModel):
    """One input of a model behind the Open Inference Protocol."""

    name: Text = Field(description="As the model calls it.")
    shape: list[Count] = Field(min_length=1, description="E.g. [1, 3, 224, 224], batch included.")
    datatype: Datatype = Field(description="FP32, INT64, BYTES, ...; BYTES are texts.")
    data: list[bool | int | float | str] | None = Field(
        None,
        description="Its elements, row by row; null means random ones from the seed (0 to 1, whole numbers 0 to 99), and for "
        "BYTES the text of the request. {prompt} is filled in.",
    )

    @checked
    def _as_many_as_the_shape_says(self) -> Iterator[str]:
        size = math.prod(self.shape)
        if size > MOST_ELEMENTS:
            yield f"tensor {self.name} has {size} elements; {MOST_ELEMENTS} are the most of one request."
        if self.data is not None and len(self.data) != size:
            yield f"tensor {self.name} has {len(self.data)} elements in `data`, and its shape takes {size}."


class SuccessSpec(StrictModel):
    """Which answer counts as one."""

    status: int = Field(200, ge=100, le=599, description="HTTP status.")
    contains: str = Field("", description="Text that the body must hold; empty: any body.")


class OwnMetricsSpec(StrictModel):
    """Where the server publishes metrics of its own, in Prometheus's text format."""

    path: UrlPath = Field("/metrics", description="Path of the page.")
    port: Port | None = Field(None, description="Port of replica 0's, the others follow; null: that of the requests.")
    step_s: float = Field(5.0, ge=0.5, le=3600, description="Seconds from one reading to the next.")
