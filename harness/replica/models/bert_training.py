"""Fine-tuning DistilBERT to tell two kinds of texts apart: 66,955,010 parameters, 128 tokens a text, AdamW.

The network of ``distilbert.py``, all of it trained. The texts are synthetic and can be learnt: half of a text's
tokens come from twenty words that are its class's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.replica.models import checkpoint, distilbert, execution, training
from harness.replica.models.training import Training
from harness.replica.settings import Settings

WEIGHT_DECAY = 0.01
CLASS_WORDS = 20
CLASS_WORD_SHARE = 1 / 2


class SyntheticTexts:
    """Labelled texts of a fixed length."""

    def __init__(self, classes: int, vocabulary: int, tokens: int, generator: torch.Generator) -> None:
        self._classes = classes
        self._vocabulary = vocabulary
        self._tokens = tokens
        self._generator = generator

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Return tokens [size, tokens] and labels [size]."""
        labels = torch.randint(self._classes, (size,), generator=self._generator)
        shape = (size, self._tokens)
        words = torch.randint(self._vocabulary, shape, generator=self._generator)
        own = labels[:, None] * CLASS_WORDS + torch.randint(CLASS_WORDS, shape, generator=self._generator)
        is_own = torch.rand(shape, generator=self._generator) < CLASS_WORD_SHARE
        return torch.where(is_own, own % self._vocabulary, words), labels


def make(settings: Settings) -> Training:
    """Make the workload."""
    training.check(settings)
    shape = distilbert.shape_of(settings, distilbert.SIZES)
    tokens = distilbert.text_tokens(settings, shape)
    device = execution.prepare_device(settings)
    model = checkpoint.build_for_training(lambda: distilbert.DistilBert(shape), settings, device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.number("learning_rate", 5e-5),
        weight_decay=WEIGHT_DECAY,
        capturable=settings.execution == "cuda-graph",
    )
    texts = SyntheticTexts(shape.classes, shape.vocabulary, tokens, execution.input_generator(settings))
    pool = execution.labelled_pool(lambda: texts.batch(settings.batch_size), device)
    return Training(model, optimizer, pool, settings, device)
