"""What the models are made of. Layers come without torch's initial values: ours are from the seed or from a checkpoint.

Drawing numbers twice costs a start-up half a second per 100 million; doing without by way of torch's meta device
imports a computer algebra system, which costs as much.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, scaled_dot_product_attention

_TRIAL_PIXELS = 32


class _Unfilled:
    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Linear(_Unfilled, nn.Linear):
    """A matrix and a bias, not yet filled."""


class Conv1d(_Unfilled, nn.Conv1d):
    """A convolution over time, not yet filled."""


class Conv2d(_Unfilled, nn.Conv2d):
    """A convolution over an image, not yet filled."""


class Embedding(_Unfilled, nn.Embedding):
    """A table, not yet filled."""


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


def named(**modules: nn.Module) -> nn.Sequential:
    """A sequence whose steps have names, for tensors to be called what checkpoints call them."""
    return nn.Sequential(OrderedDict(modules))


def replace(model: nn.Module, replacements: Mapping[Any, nn.Module]) -> None:
    """Put other modules in the places of those that ``model`` has."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in replacements:
                setattr(parent, name, replacements[child])


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Each [B, heads, T, width / heads] -> [B, T, width]; mask [T, keys] is True where a query may look."""
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention in two steps, since keys and values may outlive a call.

    ``names``: what checkpoints call the matrices ``query``, ``key``, ``value`` and ``out``, in the order of their weights.
    """

    def __init__(self, width: int, heads: int, names: Mapping[str, str], *, key_bias: bool = True) -> None:
        super().__init__()
        self.heads, self._names = heads, names
        for part, name in names.items():
            self.add_module(name, Linear(width, width, bias=key_bias or part != "key"))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, width] -> keys and values, each [B, heads, T, width / heads]."""
        return self._split("key", x), self._split("value", x)

    def forward(self, x: Tensor, kept: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None) -> Tensor:
        """[B, T, width] -> [B, T, width], by keys and values that were kept, or those of ``x`` itself."""
        query = self._split("query", x)
        return getattr(self, self._names["out"])(attend(query, *(kept or self.keys_values(x)), mask))

    def _split(self, part: str, x: Tensor) -> Tensor:
        return getattr(self, self._names[part])(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class FoldedConvolution(nn.Module):
    """A convolution (without a bias) and the normalisation after it as one convolution with a bias, for inference.

    ``fuse``: on a GPU, have cuDNN add what ``relu`` adds and apply the ReLU in the same kernel, where it has such a one.
    ``activates``: a call ends with a ReLU.
    """

    def __init__(
        self, convolution: nn.Conv2d, normalization: nn.BatchNorm2d, *, fuse: bool, activates: bool = False
    ) -> None:
        super().__init__()
        mean, variance = cast("Tensor", normalization.running_mean), cast("Tensor", normalization.running_var)
        scale = normalization.weight.float() / torch.sqrt(variance.float() + normalization.eps)
        weight = (convolution.weight.float() * scale.view(-1, 1, 1, 1)).to(convolution.weight.dtype)
        bias = (normalization.bias.float() - mean.float() * scale).to(weight.dtype)
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), nn.Parameter(bias, requires_grad=False)
        self.stride, self.padding = convolution.stride, cast("tuple[int, ...]", convolution.padding)
        self._activates = activates
        self.fused = fuse and weight.is_cuda and self._has_kernel()

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride]."""
        return self.relu(x) if self._activates else conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """The same, with ``shortcut`` added, and a ReLU."""
        if not self.fused:
            results = conv2d(x, self.weight, self.bias, self.stride, self.padding)
            return torch.relu_(results if shortcut is None else results.add_(shortcut))
        if shortcut is None:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, (1, 1), 1)
        return torch.cudnn_convolution_add_relu(
            x, self.weight, shortcut, 1.0, self.bias, self.stride, self.padding, (1, 1), 1
        )

    def _has_kernel(self) -> bool:
        """Whether cuDNN fuses this convolution: not with every number of channels."""
        layout = torch.channels_last if self.weight.is_contiguous(memory_format=torch.channels_last) else None
        x = torch.zeros(1, self.weight.shape[1], _TRIAL_PIXELS, _TRIAL_PIXELS).to(self.weight)
        x = x if layout is None else x.contiguous(memory_format=layout)
        self.fused = True
        try:
            with torch.inference_mode():
                self.relu(x, torch.zeros_like(self.relu(x)))
        except RuntimeError:
            return False
        return True
