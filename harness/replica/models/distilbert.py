"""DistilBERT text classification, and its fine-tuning: 66,955,010 parameters, 128 tokens a text, 2 classes.

The encoder of Sanh et al. 2019 under a classification head. Tensors are named as in the `transformers`
library's ``DistilBertForSequenceClassification``, whose checkpoints load as they are. Training is of all weights, by AdamW.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from harness.replica.models import checkpoint, execution
from harness.replica.models.checkpoint import ModelShape, Number
from harness.replica.models.fp8 import use_fp8
from harness.replica.models.layers import Attention, Embedding, Linear, named
from harness.replica.models.training import LabelledBatch, Training, adam_w, check
from harness.replica.settings import Settings

_EPSILON = 1e-12
CLASS_WORDS = 20
_CLASS_WORD_SHARE = 1 / 2


class BertShape(ModelShape):
    """The numbers of one model size."""

    width: Number = Field(validation_alias="dim")
    hidden: Number = Field(validation_alias="hidden_dim")
    heads: Number = Field(validation_alias="n_heads")
    layers: Number = Field(validation_alias="n_layers")
    vocabulary: Number = Field(validation_alias="vocab_size")
    positions: Number = Field(validation_alias="max_position_embeddings")
    classes: Number = 2


SIZES = {
    "base": BertShape(width=768, hidden=3072, heads=12, layers=6, vocabulary=30_522, positions=512),
    # For tests and quick starts: the same code at a thousandth of the work.
    "tiny": BertShape(width=32, hidden=64, heads=2, layers=2, vocabulary=1000, positions=512),
}
_ATTENTION = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "out": "out_lin"}


class Embeddings(nn.Module):
    """Token and position tables."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.word_embeddings = Embedding(shape.vocabulary, shape.width)
        self.position_embeddings = Embedding(shape.positions, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> [B, T, width]."""
        positions = self.position_embeddings.weight[: tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + positions)


class BertLayer(nn.Module):
    """Attention and feed-forward, each added to its input and normalised."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.attention = Attention(shape.width, shape.heads, _ATTENTION)
        self.sa_layer_norm = nn.LayerNorm(shape.width, eps=_EPSILON)
        self.ffn = named(lin1=Linear(shape.width, shape.hidden), gelu=nn.GELU(), lin2=Linear(shape.hidden, shape.width))
        self.output_layer_norm = nn.LayerNorm(shape.width, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        x = self.sa_layer_norm(self.attention(x) + x)
        return self.output_layer_norm(self.ffn(x) + x)


class DistilBert(nn.Module):
    """The whole network."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        layers = nn.Sequential(*(BertLayer(shape) for _ in range(shape.layers)))
        self.distilbert = named(embeddings=Embeddings(shape), transformer=named(layer=layers))
        self.pre_classifier = Linear(shape.width, shape.width)
        self.classifier = Linear(shape.width, shape.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> logits [B, classes], from the first token's state."""
        first = self.distilbert(tokens)[:, 0]
        return self.classifier(torch.relu(self.pre_classifier(first)))


def _sizes(settings: Settings) -> tuple[BertShape, int]:
    """The model's numbers, and how long a text is. Raises SettingError when that is longer than the model can read."""
    shape = checkpoint.shape_of(settings, SIZES)
    return shape, settings.whole("tokens", 128, 1, shape.positions)


def make(settings: Settings) -> execution.Classifier:
    """Make the workload that classifies."""
    shape, tokens = _sizes(settings)
    device = execution.prepare_device(settings)
    model = checkpoint.build(lambda: DistilBert(shape), settings, device)
    facts = execution.describe(settings, device, model)
    if settings.option("fp8", default=False):
        facts["fp8_matrices"] = use_fp8(model, settings, device)
    size = (settings.batch_size, tokens)
    generator = execution.input_generator(settings)
    pool = execution.input_pool(lambda: torch.randint(shape.vocabulary, size, generator=generator), device)
    return execution.Classifier(model, pool, settings, device, facts)


def labelled_texts(size: tuple[int, int], classes: int, vocabulary: int, generator: torch.Generator) -> LabelledBatch:
    """Return tokens [texts, tokens] and labels [texts], which can be learnt: half of the tokens are from 20 words of the class."""
    labels = torch.randint(classes, size[:1], generator=generator)
    words = torch.randint(vocabulary, size, generator=generator)
    own = labels[:, None] * CLASS_WORDS + torch.randint(CLASS_WORDS, size, generator=generator)
    is_own = torch.rand(size, generator=generator) < _CLASS_WORD_SHARE
    return torch.where(is_own, own % vocabulary, words), labels


def make_training(settings: Settings) -> Training:
    """Make the workload that trains."""
    check(settings)
    shape, tokens = _sizes(settings)
    device = execution.prepare_device(settings)
    model = checkpoint.build(lambda: DistilBert(shape), settings, device, training=True)
    size, generator = (settings.batch_size, tokens), execution.input_generator(settings)
    pool = execution.input_pool(lambda: labelled_texts(size, shape.classes, shape.vocabulary, generator), device)
    return Training(model, adam_w(model, settings, 5e-5), pool, settings, device)
