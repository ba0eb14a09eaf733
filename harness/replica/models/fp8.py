"""Matrices of a model in FP8, for GPUs whose tensor cores multiply it: twice the rate of fp16, half of its bytes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.settings import Settings

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
LEAST_CAPABILITY = (8, 9)
_MULTIPLE = 16
"""Of which both dimensions of a matrix must be."""


class Fp8Linear(nn.Module):
    """A matrix in FP8 (e4m3) with one scale, and activations that are cast as they are; sums are in fp32.

    Args:
        linear: with a bias.
    """

    weight: Tensor
    scale: Tensor
    one: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.float()
        scale = weight.abs().max() / LARGEST
        self.bias = linear.bias
        self.register_buffer("weight", (weight / scale).clamp(-LARGEST, LARGEST).to(DTYPE))
        self.register_buffer("scale", scale)
        self.register_buffer("one", torch.ones_like(scale))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], of the precision that came."""
        # What is beyond the largest number would become none.
        rows = x.flatten(0, -2).clamp(-LARGEST, LARGEST).to(DTYPE)
        found = torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
            rows, self.weight.t(), scale_a=self.one, scale_b=self.scale, bias=self.bias, out_dtype=x.dtype
        )
        return found.view(*x.shape[:-1], -1)


def use_fp8(model: nn.Module, settings: Settings, device: torch.device) -> int:
    """Put every matrix of ``model`` that FP8 can hold into it; returns how many. Raises where it cannot be computed.

    Raises:
        SettingError: the precision of everything else is fp32.
        CannotBeMetError: the GPU is older than FP8.
    """
    if settings.precision == "fp32":
        raise SettingError("WORKLOAD_OPTIONS: fp8 goes with PRECISION fp16 or bf16, of all that is no matrix.")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        raise CannotBeMetError(
            f"WORKLOAD_OPTIONS: fp8 needs a GPU of compute capability 8.9 or more; {torch.cuda.get_device_name(device)} has less."
        )
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not any(size % _MULTIPLE for size in child.weight.shape):
                setattr(parent, name, Fp8Linear(child))
                count += 1
    return count
