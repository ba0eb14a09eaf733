"""Convolutions with their batch normalisation folded into the weights, for inference."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

_TRIAL_PIXELS = 32


class Folded(nn.Module):
    """A convolution and the normalisation after it as one convolution with a bias.

    Args:
        convolution: without a bias.
        normalization: in its evaluation mode: what it has counted stays.
        fuse: on a GPU, have cuDNN add what ``relu`` adds and apply the ReLU in the same kernel, where it has such a one.
        activates: a call ends with a ReLU.
    """

    def __init__(
        self, convolution: nn.Conv2d, normalization: nn.BatchNorm2d, *, fuse: bool, activates: bool = False
    ) -> None:
        super().__init__()
        mean, variance = normalization.running_mean, normalization.running_var
        assert mean is not None and variance is not None  # noqa: S101, PT018 - it tracks both, as torch's default is
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
            found = conv2d(x, self.weight, self.bias, self.stride, self.padding)
            return torch.relu_(found if shortcut is None else found.add_(shortcut))
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
