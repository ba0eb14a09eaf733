"""The kernels behind FP8 convolutions, in Triton, which torch's builds for CUDA bring."""
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from harness.replica.models.fp8 import Fp8Convolution

_ELEMENTS = 4096


_NARROW, _EVEN, _DEEP, _WIDE = (
    {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "num_warps": warps, "num_stages": stages}
    for rows, columns, depth, warps, stages in (
        (128, 64, 64, 4, 4),
        (128, 128, 64, 4, 4),
        (128, 128, 128, 8, 3),
        (128, 256, 128, 8, 3),
    )
)
"""What one program computes at a time, and with how much."""


def convolve(layer: Fp8Convolution, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    """[B, in, H, W] -> [B, out, H / stride, W / stride], all in bytes and channels last."""
    batch, channels, height, width = x.shape
    out_channels = len(layer.weight)
    size = (batch, out_channels, (height - 1) // layer.stride + 1, (width - 1) // layer.stride + 1)
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows, tile = out.numel() // out_channels, _tile(layer, channels, out_channels, adds=shortcut is not None)
    _convolve[(triton.cdiv(rows, tile["ROWS"]) * (out_channels // tile["COLUMNS"]),)](
        x,
        layer.weight,
        layer.multiplier,
        layer.bias,
        x if shortcut is None else shortcut,
        layer.shortcut_multiplier,
        out,
        rows,
        height,
        width,
        channels,
        out_channels,
        *size[2:],
        SIDE=layer.side,
        STRIDE=layer.stride,
        ADDS=shortcut is not None,
        RELU=relu,
        **tile,
    )
    return out


def to_fp8(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """[B, C, H, W] -> the same in bytes of one scale, channels last."""
    x = x.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(x, dtype=dtype)
    grid = (triton.cdiv(x.numel(), _ELEMENTS),)
    _to_fp8[grid](x, out, x.numel(), 1 / scale, ELEMENTS=_ELEMENTS)
    return out


def _tile(layer: Fp8Convolution, channels: int, out_channels: int, *, adds: bool) -> dict[str, int]:
    """The fastest of ten tried on an H200 with each of ResNet-50's shapes."""
    depth = _DEEP["DEPTH"]
    if channels % depth or out_channels % _EVEN["COLUMNS"] or (adds and channels <= 2 * depth):
        return _NARROW
    if adds or (layer.side == 1 and layer.stride > 1):
        return _EVEN
    return _WIDE if layer.side > 1 and out_channels % _WIDE["COLUMNS"] == 0 else _DEEP


@triton.jit
def _convolve(
    x,
    weight,
    multiplier,
    bias,
    shortcut,
    shortcut_multiplier,
    out,
    rows,
    height,
    width,
    channels,
    out_channels,
    out_height,
    out_width,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    ADDS: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    # A matrix product: its rows are places of the result, its columns channels of it, and its sums run over the taps of the
    # filter and the channels of the input. What lies outside the image is 0.
    program = tl.program_id(0)
    columns = out_channels // COLUMNS
    row = program // columns * ROWS + tl.arange(0, ROWS)
    column = program % columns * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    image = row // (out_height * out_width)
    place = row % (out_height * out_width)
    top = place // out_width * STRIDE - SIDE // 2
    left = place % out_width * STRIDE - SIDE // 2
    first = ((image * height + top) * width + left) * channels
    weights = weight + column[None, :] * (SIDE * SIDE * channels) + depth[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    steps = channels // DEPTH
    for step in range(SIDE * SIDE * steps):
        if SIDE == 1:
            inside = row < rows
            start = first + step * DEPTH
        else:
            down = step // steps // SIDE
            right = step // steps % SIDE
            inside = (row < rows) & (top + down >= 0) & (top + down < height)
            inside = inside & (left + right >= 0) & (left + right < width)
            start = first + (down * width + right) * channels + step % steps * DEPTH
        taken = tl.load(x + start[:, None] + depth[None, :], mask=inside[:, None], other=0.0)
        sums = tl.dot(taken, tl.load(weights + step * DEPTH), sums)
    results = sums * tl.load(multiplier + column)[None, :] + tl.load(bias + column)[None, :]
    at = row[:, None] * out_channels + column[None, :]
    kept = (row < rows)[:, None]
    if ADDS:
        results += tl.load(shortcut + at, mask=kept, other=0.0).to(tl.float32) * shortcut_multiplier
    if RELU:
        results = tl.maximum(results, 0.0)
    tl.store(out + at, _rounded(results), mask=kept)


@triton.jit
def _to_fp8(x, out, elements, multiplier, ELEMENTS: tl.constexpr):
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    taken = tl.load(x + at, mask=at < elements, other=0.0).to(tl.float32)
    tl.store(out + at, _rounded(taken * multiplier), mask=at < elements)


@triton.jit
def _rounded(x):
    return tl.minimum(tl.maximum(x, -448.0), 448.0).to(tl.float8e4nv)
