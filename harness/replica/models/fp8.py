"""Matrices and convolutions in FP8 (e4m3), for GPUs whose tensor cores multiply it: twice the rate of fp16, half of its bytes.

torch has no FP8 convolution on a GPU. A kernel in Triton multiplies, adds the bias and the shortcut, applies the ReLU and
rounds, so that only bytes go through the device's memory between two convolutions. Without a GPU torch computes the same in fp32.
"""

from __future__ import annotations

import importlib.util
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models.layers import FoldedConvolution, replace
from harness.replica.settings import Settings

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
LEAST_CAPABILITY = (8, 9)
_MULTIPLE = 16
"""Of which both dimensions of a matrix must be."""
_CHANNELS = 64
"""Of which the convolution's kernel takes channels."""


class Fp8Linear(nn.Module):
    """A matrix in FP8 (e4m3) with one scale, and activations that are cast as they are; sums are in fp32."""

    weight: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.float()
        scale = weight.abs().max() / LARGEST
        self.bias = linear.bias
        self.register_buffer("weight", to_fp8(weight / scale))
        self.register_buffer("scale", scale)
        self.register_buffer("unit", torch.ones_like(scale))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], of the precision that came."""
        rows = to_fp8(x.flatten(0, -2))
        results = torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
            rows, self.weight.t(), scale_a=self.unit, scale_b=self.scale, bias=self.bias, out_dtype=x.dtype
        )
        return results.view(*x.shape[:-1], -1)


class Fp8Convolution(nn.Module):
    """A folded convolution whose inputs, weights and results are FP8.

    It first computes as it did, and watches how large its numbers become; ``quantise`` then takes its scales from that: one for
    each channel of the weights, one for all inputs and one for all results.
    """

    multiplier: Tensor
    bias: Tensor
    weight: Tensor

    def __init__(self, folded: FoldedConvolution) -> None:
        super().__init__()
        self.folded: FoldedConvolution | None = folded
        self.side, self.stride = folded.weight.shape[-1], int(folded.stride[0])
        self.largest_in = self.largest_out = self.largest_shortcut = torch.finfo(torch.float32).tiny
        self.scale_in = self.scale_out = self.shortcut_multiplier = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride], channels last."""
        return self._results(x, None, relu=False)

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """The same, with ``shortcut`` added, and a ReLU."""
        return self._results(x, shortcut, relu=True)

    def quantise(self) -> None:
        """Compute in FP8 from now on. Raises SettingError where the kernel does not take the number of channels."""
        assert self.folded is not None  # noqa: S101 - called once
        if self.folded.weight.is_cuda and any(channels % _CHANNELS for channels in self.folded.weight.shape[:2]):
            raise SettingError(
                f"WORKLOAD_OPTIONS: on a GPU {_CHANNELS} must divide all channels: use the base model_size."
            )
        weight = self.folded.weight.float()
        scale = weight.abs().amax((1, 2, 3)).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
        rounded = to_fp8(weight / scale.view(-1, 1, 1, 1))
        self.scale_in, self.scale_out = self.largest_in / LARGEST, self.largest_out / LARGEST
        self.shortcut_multiplier = self.largest_shortcut / self.largest_out
        self.register_buffer("weight", rounded.permute(0, 2, 3, 1).contiguous())
        self.register_buffer("multiplier", scale * (self.scale_in / self.scale_out))
        self.register_buffer("bias", self.folded.bias.float() / self.scale_out)
        self.folded = None

    def _results(self, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
        if self.folded:
            results = self.folded.relu(x, shortcut) if relu else self.folded(x)
            self.largest_in = max(self.largest_in, float(x.abs().max()))
            self.largest_out = max(self.largest_out, float(results.abs().max()))
            if shortcut is not None:
                self.largest_shortcut = max(self.largest_shortcut, float(shortcut.abs().max()))
            return cast("Tensor", results)
        if x.is_cuda:
            from harness.replica.models import fp8_kernel

            return fp8_kernel.convolve(self, x, shortcut, relu=relu)
        weight = self.weight.float().permute(0, 3, 1, 2)
        results = conv2d(x.float(), weight, None, self.stride, self.side // 2) * self.multiplier.view(1, -1, 1, 1)
        results += self.bias.view(1, -1, 1, 1)
        if shortcut is not None:
            results += shortcut.float() * self.shortcut_multiplier
        return to_fp8(results.relu() if relu else results).contiguous(memory_format=torch.channels_last)


class ToFp8(nn.Module):
    """Numbers -> FP8 of one scale, channels last."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same in FP8."""
        if x.is_cuda:
            from harness.replica.models import fp8_kernel

            return fp8_kernel.to_fp8(x, self._scale, DTYPE)
        return to_fp8(x.float() / self._scale).contiguous(memory_format=torch.channels_last)


class FromFp8(nn.Module):
    """FP8 of one scale -> numbers."""

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self._scale, self._dtype = scale, dtype

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same in numbers."""
        return (x.float() * self._scale).to(self._dtype)


def to_fp8(x: Tensor) -> Tensor:
    """Round to the nearest; what is beyond the largest number becomes that."""
    return x.clamp(-LARGEST, LARGEST).to(DTYPE)


def use_fp8(model: nn.Module, settings: Settings, device: torch.device) -> int:
    """Put every matrix of ``model`` that FP8 can hold into it; returns how many.

    Raises SettingError where everything else is fp32, and CannotBeMetError where the GPU is older than FP8.
    """
    if settings.precision == "fp32":
        raise SettingError("WORKLOAD_OPTIONS: fp8 needs PRECISION fp16 or bf16 for everything but the matrices.")
    _require_capability(device)
    linears = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and not any(size % _MULTIPLE for size in module.weight.shape)
    ]
    replace(model, {linear: Fp8Linear(linear) for linear in linears})
    return len(linears)


def wants_fp8_convolutions(settings: Settings, device: torch.device) -> bool:
    """Whether the options ask for them.

    Raises SettingError where they do not go with others, and CannotBeMetError where GPU or libraries cannot compute them.
    """
    if not settings.option("fp8", default=False):
        return False
    if settings.precision == "fp32" or settings.execution == "compiled":
        raise SettingError(
            "WORKLOAD_OPTIONS: fp8 needs PRECISION fp16 or bf16 for everything but the convolutions, "
            "and EXECUTION eager or cuda-graph."
        )
    if not all(settings.option(other, default=False) for other in ("fold_norms", "channels_last")):
        raise SettingError("WORKLOAD_OPTIONS: fp8 needs fold_norms and channels_last, too: set both to true.")
    _require_capability(device)
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise CannotBeMetError(
            "WORKLOAD_OPTIONS: fp8 is computed by Triton, which is not installed; torch's builds for CUDA bring it."
        )
    return True


def watched_convolutions(model: nn.Module) -> list[Fp8Convolution]:
    """Have every folded convolution of ``model`` watch its numbers; returns them, a block's shortcut before its others."""
    convolutions = {
        module: Fp8Convolution(module) for module in model.modules() if isinstance(module, FoldedConvolution)
    }
    replace(model, convolutions)
    return list(convolutions.values())


def _require_capability(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        raise CannotBeMetError(
            f"WORKLOAD_OPTIONS: fp8 needs a GPU of compute capability 8.9 or more; {torch.cuda.get_device_name(device)} has less."
        )
