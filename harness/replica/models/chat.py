"""Text generation as a chat service does it: GPT-2 (the smallest size: 124,439,808 parameters), token by token.

The decoder-only network of Radford et al. 2019. Tensors are named as in the `transformers` library's
``GPT2LMHeadModel``, whose checkpoints load as they are, and so do those of the bare network. One request reads a
batch of prompts at once and then chooses a fixed number of tokens greedily, each brought to the host as it is chosen,
for that is when a reader sees it. The end-of-text token is never chosen, so that every request is the same amount of work.
Keys and values live in tensors of a fixed size, so that the same code runs eagerly, compiled and as CUDA graphs.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from harness.replica.custom_metrics import Counter, Histogram
from harness.replica.errors import SettingError
from harness.replica.models import checkpoint, execution
from harness.replica.models.layers import Embedding, TransposedLinear
from harness.replica.settings import Settings

BARE_NETWORK = "transformer."


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one model size."""

    width: int
    hidden: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    end_token: int


SIZES = {
    "base": Shape(768, 3072, heads=12, layers=12, vocabulary=50_257, positions=1024, end_token=50_256),
    # For tests and quick starts: the same code at a thousandth of the work; no size of the published models.
    "tiny": Shape(32, 128, heads=2, layers=2, vocabulary=1000, positions=256, end_token=0),
}


class Memory:
    """Keys and values of every layer for the text so far."""

    def __init__(self, shape: Shape, batch_size: int, tokens: int, model: nn.Module) -> None:
        like = next(model.parameters())
        size = (shape.layers, 2, batch_size, shape.heads, tokens, shape.width // shape.heads)
        self.text = like.new_zeros(size)
        self.positions = torch.arange(tokens, device=like.device)


class Attention(nn.Module):
    """Multi-head attention to the text so far."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.c_attn = TransposedLinear(shape.width, 3 * shape.width)
        self.c_proj = TransposedLinear(shape.width, shape.width)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, text: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]; writes the keys and values of ``positions`` [T] into ``text``."""
        query, *new = (
            part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        for kept, states in zip(text, new, strict=True):
            kept.index_copy_(2, positions, states)
        mixed = scaled_dot_product_attention(query, text[0], text[1], attn_mask=mask)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two matrices and a GELU, in its tanh form."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.c_fc = TransposedLinear(shape.width, shape.hidden)
        self.c_proj = TransposedLinear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        out: Tensor = self.c_proj(gelu(self.c_fc(x), approximate="tanh"))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each on its normalised input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, text: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]; see ``Attention``."""
        x = x + self.attn(self.ln_1(x), positions, mask, text)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """Tokens to states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wte = Embedding(shape.vocabulary, shape.width)
        self.wpe = Embedding(shape.positions, shape.width)
        self.h = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """[B, T] at positions [T] -> [B, T, width]."""
        x = self.wte(tokens) + self.wpe(positions)
        mask = memory.positions <= positions[:, None]
        for layer, text in zip(self.h, memory.text, strict=True):
            x = layer(x, positions, mask, text)
        out: Tensor = self.ln_f(x)
        return out


class GPT2(nn.Module):
    """The whole network; the output matrix is the table of tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.transformer = Transformer(shape)
        self.end_token = shape.end_token

    def next_token(self, tokens: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """[B, T] at positions [T] -> the likeliest token after the last one, [B]."""
        last = self.transformer(tokens, positions, memory)[:, -1]
        logits = last @ self.transformer.wte.weight.T
        logits[:, self.end_token] = -math.inf
        token: Tensor = logits.argmax(-1)
        return token


class Chat:
    """Answers synthetic prompts, one batch a request."""

    name = "chat"

    def __init__(self, settings: Settings) -> None:
        settings.known_options("model_size", "prompt_tokens", "new_tokens")
        shape = _shape(settings)
        prompt_tokens, self.new_tokens = _lengths(settings, shape)
        device = execution.prepare_device(settings)
        model = self.model = checkpoint.build(lambda: GPT2(shape), settings, device, prefix=BARE_NETWORK)
        size = (settings.batch_size, prompt_tokens)
        generator = execution.input_generator(settings)
        self.pool = execution.input_pool(lambda: torch.randint(shape.vocabulary, size, generator=generator), device)
        self._facts = execution.describe(settings, device, model)
        positions = torch.arange(prompt_tokens + self.new_tokens, device=device)
        self._prompt_positions = positions[:prompt_tokens]
        self._positions = list(positions[prompt_tokens:, None])
        memory = Memory(shape, settings.batch_size, len(positions), model)

        def next_token(tokens: Tensor, positions: Tensor) -> Tensor:
            return model.next_token(tokens, positions, memory)

        prompt, one = self.pool[0], self.pool[0][:, :1]
        self._first_token = execution.accelerate(next_token, (prompt, self._prompt_positions), settings, device)
        self._next_token = execution.accelerate(next_token, (one, self._positions[0]), settings, device)
        self._next_batch = itertools.cycle(self.pool).__next__
        self._batch_size = settings.batch_size
        self._tokens = Counter("inference_tokens_total", "Tokens generated, over all texts of a batch.")
        self._ttft = Histogram(
            "inference_time_to_first_token_seconds", "Time from a request's start until its first token is on the host."
        )
        self._tpot = Histogram(
            "inference_time_per_output_token_seconds", "Mean time of a request's tokens after the first."
        )

    def describe(self) -> dict[str, object]:
        """Return what runs where."""
        return self._facts

    def published(self) -> tuple[Counter, Histogram, Histogram]:
        """Return what ``/metrics`` shows besides latencies."""
        return (self._tokens, self._ttft, self._tpot)

    def outcome(self) -> dict[str, object]:
        """Return how many tokens were generated since the warm-up."""
        return {"tokens": self._tokens.count}

    def serving(self) -> torch.inference_mode:
        """Entered once around all requests: entering it for each costs an eager request 1 %."""
        return torch.inference_mode()

    def stream(self, prompts: Tensor) -> Iterator[Tensor]:
        """Prompts [B, prompt_tokens] on the host -> token after token [B] on the host, as they are chosen."""
        token = self._first_token(prompts, self._prompt_positions)
        yield token.cpu()
        for position in self._positions[:-1]:
            token = self._next_token(token[:, None], position)
            yield token.cpu()

    def generate(self, prompts: Tensor) -> Tensor:
        """Prompts [B, prompt_tokens] on the host -> tokens [B, new_tokens] on the host."""
        return torch.stack(list(self.stream(prompts)), dim=1)

    def infer(self) -> int:
        """Answer one batch of prompts; returns its size."""
        begun_ns = time.perf_counter_ns()
        tokens = self.stream(self._next_batch())
        next(tokens)
        first_ns = time.perf_counter_ns()
        deque(tokens, maxlen=0)
        ended_ns = time.perf_counter_ns()
        self._ttft.observe(first_ns - begun_ns)
        if self.new_tokens > 1:
            self._tpot.observe((ended_ns - first_ns) // (self.new_tokens - 1))
        self._tokens.add(self._batch_size * self.new_tokens)
        return self._batch_size


def _lengths(settings: Settings, shape: Shape) -> tuple[int, int]:
    """Tokens of a prompt and of an answer. Raises SettingError when the model cannot hold both."""
    prompt_tokens, new_tokens = settings.option("prompt_tokens", 128), settings.option("new_tokens", 64)
    if prompt_tokens < 1 or new_tokens < 1 or prompt_tokens + new_tokens > shape.positions:
        raise SettingError(
            f"WORKLOAD_OPTIONS: prompt_tokens {prompt_tokens} and new_tokens {new_tokens} must be 1 or more, "
            f"and together {shape.positions} at most."
        )
    return prompt_tokens, new_tokens


def _shape(settings: Settings) -> Shape:
    shape = settings.choice_of("model_size", SIZES, "base")
    config = checkpoint.read_config(settings)
    if not config:
        return shape
    width = checkpoint.config_int(config, "n_embd", shape.width)
    inner = config if config.get("n_inner") is not None else {}
    return Shape(
        width=width,
        hidden=checkpoint.config_int(inner, "n_inner", 4 * width),
        heads=checkpoint.config_int(config, "n_head", shape.heads),
        layers=checkpoint.config_int(config, "n_layer", shape.layers),
        vocabulary=checkpoint.config_int(config, "vocab_size", shape.vocabulary),
        positions=checkpoint.config_int(config, "n_positions", shape.positions),
        end_token=checkpoint.config_int(config, "eos_token_id", shape.end_token),
    )


def make(settings: Settings) -> Chat:
    """Make the workload."""
    return Chat(settings)
