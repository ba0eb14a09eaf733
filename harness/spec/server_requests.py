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

    mean: float = Field(ge=1, le=1_000_000, description="Mean, before the bounds.")
    stddev: float = Field(0.0, ge=0, le=1_000_000, description="Standard deviation.")
    min: int = Field(1, ge=1, le=1_000_000, description="Lower bound.")
    max: int = Field(1_000_000, ge=1, le=1_000_000, description="Upper bound.")

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

    seconds: float = Field(ge=0.01, le=120, description="Length, at 16 kHz.")


class SharedPrefixSpec(StrictModel):
    """A common beginning of synthetic texts, such as a system prompt."""

    tokens: int = Field(ge=1, le=1_000_000, description="Length of each prefix; `input_tokens` follow.")
    groups: int = Field(1, ge=1, le=100_000, description="Number of prefixes.")


class SessionsSpec(StrictModel):
    """Requests that follow each other, each with the conversation so far."""

    turns: UpTo4096 = Field(description="Turns of each session; of a conversation in a file at most.")
    delay_s: UpToADay = Field(0.0, description="From an answer to the next turn, unless the file says.")


class CancelSpec(StrictModel):
    """Requests that the client cancels."""

    percent: float = Field(gt=0, le=100, description="Share of the requests, drawn from the seed.")
    after_s: WithinADay = Field(description="Since the request began; a shorter answer counts as usual.")


class RequestsSpec(StrictModel):
    """The requests."""

    file: str | None = Field(
        None,
        description="Data file, used in turn: JSON lines with `prompt`, `messages` or `body`, or another format, see "
        "docs/servers.md#data-that-is-read.",
    )
    input_tokens: LengthSpec = Field(
        LengthSpec(mean=128), description="Lengths of synthetic inputs; in words without `tokenizer`."
    )
    output_tokens: LengthSpec = Field(LengthSpec(mean=64), description="max_tokens, unless the file says.")
    shared_prefix: SharedPrefixSpec | None = Field(
        None, description="Common prefixes of synthetic texts, e.g. {tokens: 512, groups: 8}."
    )
    sessions: SessionsSpec | None = Field(
        None,
        description="Conversations, synthetic or of the file; `rate` and `concurrency` then count sessions; e.g. {turns: 4, delay_s: 2}.",
    )
    cancel: CancelSpec | None = Field(
        None,
        description="The client cancels some requests, which count neither as good nor as failed; e.g. {percent: 5, after_s: 1}.",
    )
    tokenizer: Text | None = Field(
        None,
        description="Folder with tokenizer.json, or that file: synthetic texts get exact lengths. null: one short word per "
        "token.",
    )
    image: ImageSpec | None = Field(
        None,
        description="A PNG of noise with each request (http: where the body has {image}); e.g. {width: 640, height: 480}.",
    )
    audio: AudioSpec | None = Field(
        None,
        description="A WAV of noise with each request (http: where the body has {audio}); e.g. {seconds: 5}.",
    )


class TraceSpec(StrictModel):
    """Recorded requests to replay."""

    file: Text = Field(
        description="Trace with timestamps, and texts or lengths, see docs/servers.md#data-that-is-read."
    )
    unit: Literal["s", "ms"] | None = Field(
        None,
        description="Unit of its timestamps; null: that of its format, if known.",
    )
    block_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="Tokens per block of `hash_ids`; null: 512, of Qwen-Bailian 16."
    )
    factor: Load = Field(1.0, description="Replay this many times as fast.")


Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
"""Of a tensor's elements; the Open Inference Protocol's own names."""


class TensorSpec(StrictModel):
    """One input of a model behind the Open Inference Protocol."""

    name: Text = Field(description="Name of the input.")
    shape: list[Count] = Field(min_length=1, description="E.g. [1, 3, 224, 224], batch included.")
    datatype: Datatype = Field(description="Type of the elements; BYTES are texts.")
    data: list[bool | int | float | str] | None = Field(
        None,
        description="Elements, row by row; null: random from the seed (0 to 1, integers 0 to 99), BYTES: the request's text. "
        "{prompt} is filled in.",
    )

    @checked
    def _as_many_as_the_shape_says(self) -> Iterator[str]:
        size = math.prod(self.shape)
        if size > MOST_ELEMENTS:
            yield f"tensor {self.name} has {size} elements; {MOST_ELEMENTS} are the most of one request."
        if self.data is not None and len(self.data) != size:
            yield f"tensor {self.name} has {len(self.data)} elements in `data`, and its shape takes {size}."


class SuccessSpec(StrictModel):
    """Which answer is good."""

    status: int = Field(200, ge=100, le=599, description="HTTP status.")
    contains: str = Field("", description="Text in the body; empty: any body.")


class OwnMetricsSpec(StrictModel):
    """Where the server publishes its own metrics, in Prometheus's format."""

    path: UrlPath = Field("/metrics", description="Path of the page.")
    port: Port | None = Field(None, description="Port of replica 0, the others follow; null: that of the requests.")
    step_s: float = Field(5.0, ge=0.5, le=3600, description="Seconds between two readings.")
