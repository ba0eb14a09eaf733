"""DistilBERT text classification: 66,955,010 parameters, 128 tokens a text, 2 classes.

The encoder of Sanh et al. 2019 under a classification head. Tensors are named as in the `transformers`
library's ``DistilBertForSequenceClassification``, whose checkpoints load as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from harness.replica.errors import SettingError
from harness.replica.models import checkpoint, execution
from harness.replica.models.classifier import Classifier
from harness.replica.models.fp8 import use_fp8
from harness.replica.models.layers import Embedding, Linear
from harness.replica.settings import Settings

_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one model size."""

    width: int
    hidden: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    classes: int


SIZES = {
    "base": Shape(width=768, hidden=3072, heads=12, layers=6, vocabulary=30_522, positions=512, classes=2),
    # For tests and quick starts: the same code at a thousandth of the work.
    "tiny": Shape(width=32, hidden=64, heads=2, layers=2, vocabulary=1000, positions=512, classes=2),
}


class Embeddings(nn.Module):
    """Token and position tables."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word_embeddings = Embedding(shape.vocabulary, shape.width)
        self.position_embeddings = Embedding(shape.positions, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, width]."""
        positions = self.position_embeddings.weight[: tokens.shape[1]]
        out: Tensor = self.LayerNorm(self.word_embeddings(tokens) + positions)
        return out


class Attention(nn.Module):
    """Multi-head self-attention over the whole text."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_lin = Linear(shape.width, shape.width)
        self.k_lin = Linear(shape.width, shape.width)
        self.v_lin = Linear(shape.width, shape.width)
        self.out_lin = Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        query, key, value = (
            project(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for project in (self.q_lin, self.k_lin, self.v_lin)
        )
        mixed = scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out_lin(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two matrices and a GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.lin1 = Linear(shape.width, shape.hidden)
        self.lin2 = Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        out: Tensor = self.lin2(gelu(self.lin1(x)))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.sa_layer_norm = nn.LayerNorm(shape.width, eps=_EPSILON)
        self.ffn = FeedForward(shape)
        self.output_layer_norm = nn.LayerNorm(shape.width, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        x = self.sa_layer_norm(self.attention(x) + x)
        out: Tensor = self.output_layer_norm(self.ffn(x) + x)
        return out


class DistilBert(nn.Module):
    """The whole network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layers = nn.Sequential(*(Layer(shape) for _ in range(shape.layers)))
        self.distilbert = nn.Sequential()
        self.distilbert.add_module("embeddings", Embeddings(shape))
        self.distilbert.add_module("transformer", nn.Sequential())
        self.distilbert.get_submodule("transformer").add_module("layer", layers)
        self.pre_classifier = Linear(shape.width, shape.width)
        self.classifier = Linear(shape.width, shape.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> logits [B, classes], from the first token's state."""
        first = self.distilbert(tokens)[:, 0]
        logits: Tensor = self.classifier(torch.relu(self.pre_classifier(first)))
        return logits


class DistilBertWorkload(Classifier):
    """Classifies synthetic texts, one batch a request."""

    name = "distilbert"

    def __init__(self, settings: Settings) -> None:
        shape = shape_of(settings, SIZES)
        tokens = text_tokens(settings, shape)
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: DistilBert(shape), settings, device)
        facts = execution.describe(settings, device, model)
        if settings.option("fp8", default=False):
            facts["fp8_matrices"] = use_fp8(model, settings, device)
        size = (settings.batch_size, tokens)
        generator = execution.input_generator(settings)
        pool = execution.input_pool(lambda: torch.randint(shape.vocabulary, size, generator=generator), device)
        super().__init__(model, pool, settings, device)
        self._facts = facts


def shape_of(settings: Settings, sizes: Mapping[str, Shape]) -> Shape:
    """Return the numbers of the size that is asked for, and of the checkpoint's ``config.json`` where there is one."""
    shape = settings.choice_of("model_size", sizes, "base")
    config = checkpoint.read_config(settings)
    return Shape(
        width=checkpoint.config_int(config, "dim", shape.width),
        hidden=checkpoint.config_int(config, "hidden_dim", shape.hidden),
        heads=checkpoint.config_int(config, "n_heads", shape.heads),
        layers=checkpoint.config_int(config, "n_layers", shape.layers),
        vocabulary=checkpoint.config_int(config, "vocab_size", shape.vocabulary),
        positions=checkpoint.config_int(config, "max_position_embeddings", shape.positions),
        classes=checkpoint.config_classes(config, shape.classes),
    )


def text_tokens(settings: Settings, shape: Shape) -> int:
    """Return how long a text is. Raises SettingError when it is longer than the model can read."""
    tokens = settings.option("tokens", 128)
    if not 1 <= tokens <= shape.positions:
        raise SettingError(f"WORKLOAD_OPTIONS: tokens {tokens} is not between 1 and {shape.positions}.")
    return tokens


def make(settings: Settings) -> DistilBertWorkload:
    """Make the workload."""
    return DistilBertWorkload(settings)
