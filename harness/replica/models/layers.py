"""torch's layers without their initial values: ours come from the seed or from a checkpoint.

Drawing numbers twice costs a start-up half a second per 100 million; doing without by way of torch's meta device
imports a computer algebra system, which costs as much.
"""

from __future__ import annotations

import math

import torch
from torch import nn


class Linear(nn.Linear):
    """A matrix and a bias, not yet filled."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Conv1d(nn.Conv1d):
    """A convolution over time, not yet filled."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Conv2d(nn.Conv2d):
    """A convolution over an image, not yet filled."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Embedding(nn.Embedding):
    """A table, not yet filled."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


def fill_randomly(model: nn.Module, seed: int) -> None:
    """Fill a model with seeded random weights under which activations keep their size.

    Matrices: normal, variance 1 / fan-in. Convolutions over an image: 2 / fan-in, as a ReLU halves it. Tables:
    normal, 0.02. Biases: 0. Norms are left at identity, where torch puts them. Numbers are drawn on the host, so
    that the same seed gives the same weights on every device.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (Linear, Conv1d, Conv2d)):
            gain = 2.0 if isinstance(module, Conv2d) else 1.0
            module.weight.normal_(0.0, math.sqrt(gain / module.weight[0].numel()), generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, Embedding):
            module.weight.normal_(0.0, 0.02, generator=generator)
