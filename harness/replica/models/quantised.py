"""Convolutions in FP8 or INT8: half of fp16's bytes, and twice its rate on tensor cores.

torch convolves in neither on a GPU; a kernel in Triton does, which multiplies, adds the bias and the shortcut, applies the ReLU and
rounds, so that only bytes go through the device's memory between two convolutions. Without a GPU the same is computed by torch in fp32.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models.folded import Folded
from harness.replica.settings import Settings

FORMATS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
LEAST_CAPABILITY = {"fp8": (8, 9), "int8": (8, 0)}
MULTIPLE = 64
"""Of which the kernel takes channels."""


class QuantisedConvolution(nn.Module):
    """A folded convolution whose inputs, weights and results are bytes.

    It first computes as it did, and watches how large its numbers become; ``quantise`` then takes its scales from that: one for
    each channel of the weights, one for all inputs and one for all results.

    Args:
        folded: what it takes the place of.
    """

    multiplier: Tensor
    bias: Tensor
    weight: Tensor

    def __init__(self, folded: Folded) -> None:
        super().__init__()
        self.folded: Folded | None = folded
        self.side, self.stride = folded.weight.shape[-1], int(folded.stride[0])
        self.largest_in = self.largest_out = self.largest_shortcut = torch.finfo(torch.float32).tiny
        self.scale_in = self.scale_out = self.shortcut_multiplier = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride], channels last."""
        return self._watched(self.folded, x, None, relu=False) if self.folded else self._convolved(x, None, relu=False)

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """The same, with ``shortcut`` added, and a ReLU."""
        if self.folded:
            return self._watched(self.folded, x, shortcut, relu=True)
        return self._convolved(x, shortcut, relu=True)

    def quantise(self, dtype: torch.dtype) -> None:
        """Compute in bytes from now on. Raises SettingError where the kernel does not take the number of channels."""
        assert self.folded is not None  # noqa: S101 - called once
        if self.folded.weight.is_cuda and any(channels % MULTIPLE for channels in self.folded.weight.shape[:2]):
            raise SettingError(
                f"WORKLOAD_OPTIONS: on a GPU {MULTIPLE} must divide all channels: take the base model_size."
            )
        most, weight = LARGEST[dtype], self.folded.weight.float()
        scale = weight.abs().amax((1, 2, 3)).clamp_min(torch.finfo(torch.float32).tiny) / most
        rounded = to_bytes(weight / scale.view(-1, 1, 1, 1), dtype)
        self.scale_in, self.scale_out = self.largest_in / most, self.largest_out / most
        self.shortcut_multiplier = self.largest_shortcut / self.largest_out
        self.register_buffer("weight", rounded.permute(0, 2, 3, 1).contiguous())
        self.register_buffer("multiplier", scale * (self.scale_in / self.scale_out))
        self.register_buffer("bias", self.folded.bias.float() / self.scale_out)
        self.folded = None

    def _watched(self, folded: Folded, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
        found = folded.relu(x, shortcut) if relu else folded(x)
        self.largest_in = max(self.largest_in, float(x.abs().max()))
        self.largest_out = max(self.largest_out, float(found.abs().max()))
        if shortcut is not None:
            self.largest_shortcut = max(self.largest_shortcut, float(shortcut.abs().max()))
        return found

    def _convolved(self, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
        if x.is_cuda:
            from harness.replica.models import quantised_kernel

            return quantised_kernel.convolve(self, x, shortcut, relu=relu)
        weight = self.weight.float().permute(0, 3, 1, 2)
        found = conv2d(x.float(), weight, None, self.stride, self.side // 2) * self.multiplier.view(1, -1, 1, 1)
        found += self.bias.view(1, -1, 1, 1)
        if shortcut is not None:
            found += shortcut.float() * self.shortcut_multiplier
        return to_bytes(found.relu() if relu else found, x.dtype).contiguous(memory_format=torch.channels_last)


class ToBytes(nn.Module):
    """Numbers -> bytes of one scale, channels last."""

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self._scale, self._dtype = scale, dtype

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same in bytes."""
        if x.is_cuda:
            from harness.replica.models import quantised_kernel

            return quantised_kernel.to_bytes(x, self._scale, self._dtype)
        return to_bytes(x.float() / self._scale, self._dtype).contiguous(memory_format=torch.channels_last)


class FromBytes(nn.Module):
    """Bytes of one scale -> numbers."""

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self._scale, self._dtype = scale, dtype

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same in numbers."""
        return (x.float() * self._scale).to(self._dtype)


def to_bytes(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest; what is beyond the largest number becomes that."""
    most = LARGEST[dtype]
    x = x.clamp(-most, most)
    return (torch.floor(x + 0.5) if dtype is torch.int8 else x).to(dtype)


def asked_format(settings: Settings, device: torch.device) -> str | None:
    """Return which format the options ask for; None: neither.

    Raises:
        SettingError: with other settings that it does not go with.
        CannotBeMetError: this GPU, or what is installed, cannot compute it.
    """
    asked = [name for name in FORMATS if settings.option(name, default=False)]
    if not asked:
        return None
    name = asked[0]
    if len(asked) > 1:
        raise SettingError("WORKLOAD_OPTIONS: fp8 and int8 are two formats of the same convolutions; take one.")
    if settings.precision == "fp32" or settings.execution == "compiled":
        raise SettingError(
            f"WORKLOAD_OPTIONS: {name} goes with PRECISION fp16 or bf16, of all that is no convolution, "
            "and with EXECUTION eager or cuda-graph."
        )
    if not all(settings.option(other, default=False) for other in ("fold_norms", "channels_last")):
        raise SettingError(f"WORKLOAD_OPTIONS: {name} needs fold_norms and channels_last, too: set both to true.")
    if device.type == "cuda":
        _refuse_what_the_gpu_lacks(name, device)
    return name


def replace(model: nn.Module) -> list[QuantisedConvolution]:
    """Have every folded convolution of ``model`` watch its numbers; returns them, a block's shortcut before its others."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Folded):
                setattr(parent, name, QuantisedConvolution(child))
    return [module for module in model.modules() if isinstance(module, QuantisedConvolution)]


def _refuse_what_the_gpu_lacks(name: str, device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY[name]:
        major, minor = LEAST_CAPABILITY[name]
        raise CannotBeMetError(
            f"WORKLOAD_OPTIONS: {name} needs a GPU of compute capability {major}.{minor} or more; "
            f"{torch.cuda.get_device_name(device)} has less."
        )
    if importlib.util.find_spec("triton") is None:
        raise CannotBeMetError(
            f"WORKLOAD_OPTIONS: {name} is computed by Triton, which is not installed; torch's builds for CUDA bring it."
        )
