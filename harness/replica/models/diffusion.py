"""Generating images by diffusion: a transformer that takes the noise out of latents, step after step.

The network of Peebles & Xie 2023 (DiT, patches of 2 x 2) over latents of 4 x 32 x 32, which are images of 256 x 256
pixels; what decodes latents to pixels is no part of it. Tensors are named as in the authors' checkpoints. The schedule
is that of Song et al. 2021 (DDIM, nothing random after the first noise), the guidance that of Ho & Salimans 2022
(classifier-free): each step predicts the noise with and without the class, in one batch of twice the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from harness.replica.models import checkpoint, execution
from harness.replica.models.layers import Conv2d, Embedding, Linear, attend, named
from harness.replica.settings import Settings

CHANNELS = 4
CLASSES = 1000
"""The table of classes has one more row: no class at all."""
PATCH = 2
NOISE_LEVELS = 1000
_FIRST_BETA, _LAST_BETA = 1e-4, 0.02
_TIME_WAVES = 256
_LONGEST_WAVE = 10_000.0
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class DiTShape:
    """The numbers of one model size."""

    width: int
    heads: int
    layers: int
    latent_pixels: int = 32


SIZES = {
    "small": DiTShape(384, 6, 12),
    "medium": DiTShape(768, 12, 12),
    "large": DiTShape(1152, 16, 28),
    # For tests and quick starts: the same code at a thousandth of the work; no published size.
    "tiny": DiTShape(32, 2, 2, latent_pixels=8),
}
"""Those that the paper calls S/2, B/2 and XL/2."""


class PatchAttention(nn.Module):
    """Multi-head self-attention over all patches; one matrix for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(attend(query, key, value))


class Block(nn.Module):
    """Attention and feed-forward, each scaled, shifted and gated by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = PatchAttention(width, heads)
        self.mlp = named(fc1=Linear(width, 4 * width), gelu=nn.GELU("tanh"), fc2=Linear(4 * width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, T, width] under [B, 1, width] -> [B, T, width]."""
        shift, scale, gate, later_shift, later_scale, later_gate = self.adaLN_modulation(condition).chunk(6, -1)
        x = x + gate * self.attn(_modulated(x, shift, scale))
        return x + later_gate * self.mlp(_modulated(x, later_shift, later_scale))


class Head(nn.Module):
    """Tokens back to patches, of the noise and of its spread; the spread is not used here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(width, PATCH * PATCH * 2 * CHANNELS)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(width, 2 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, T, width] under [B, 1, width] -> [B, T, 2 x 2 x 8]."""
        return self.linear(_modulated(x, *self.adaLN_modulation(condition).chunk(2, -1)))


class DiT(nn.Module):
    """The whole network."""

    def __init__(self, shape: DiTShape) -> None:
        super().__init__()
        width = shape.width
        self.x_embedder = named(proj=Conv2d(CHANNELS, width, PATCH, PATCH))
        self.t_embedder = named(mlp=nn.Sequential(Linear(_TIME_WAVES, width), nn.SiLU(), Linear(width, width)))
        self.y_embedder = named(embedding_table=Embedding(CLASSES + 1, width))
        places = position_table(shape.latent_pixels // PATCH, width)
        self.pos_embed = nn.Parameter(places, requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, shape.heads) for _ in range(shape.layers))
        self.final_layer = Head(width)

    def forward(self, latents: Tensor, times: Tensor, classes: Tensor) -> Tensor:
        """Latents [B, 4, H, W] as noisy as times [B] of 0 to 999 say, of classes [B] -> the noise in them, [B, 4, H, W]."""
        x = (
            self.x_embedder(latents).flatten(2).transpose(1, 2) + self.pos_embed
        )  # a token for each patch, row after row
        angles = times.float()[:, None] * _frequencies(_TIME_WAVES // 2, times.device)
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(self.pos_embed.dtype)
        condition = (self.t_embedder(waves) + self.y_embedder(classes))[:, None]
        for block in self.blocks:
            x = block(x, condition)
        rows, columns = (pixels // PATCH for pixels in latents.shape[-2:])
        tokens = self.final_layer(x, condition)
        patches: Tensor = tokens.view(-1, rows, columns, PATCH, PATCH, 2 * CHANNELS).permute(0, 5, 1, 3, 2, 4)
        return patches.flatten(4, 5).flatten(2, 3)[:, :CHANNELS]


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], eps=_EPSILON) * (1 + scale) + shift


def _frequencies(count: int, device: torch.device | None = None) -> Tensor:
    return torch.exp(torch.arange(count, device=device) * (-math.log(_LONGEST_WAVE) / count))


def position_table(side: int, width: int) -> Tensor:
    """Return [1, side x side, width]: sines and cosines of each place's column, then of its row."""
    angles = torch.arange(side)[:, None] * _frequencies(width // 4)
    waves = torch.cat([angles.sin(), angles.cos()], -1)
    by_column, by_row = waves.expand(side, side, -1), waves[:, None].expand(side, side, -1)
    return torch.cat([by_column, by_row], -1).reshape(1, side * side, width)


def schedule(steps: int) -> tuple[Tensor, Tensor]:
    """Return the noise levels of so many steps, [steps], the noisiest first, and what each leaves of the image, [steps + 1].

    The latter is a share of the variance; the last one, after all steps, is 1.
    """
    kept = torch.cumprod(1 - torch.linspace(_FIRST_BETA, _LAST_BETA, NOISE_LEVELS, dtype=torch.float64), 0)
    times = torch.linspace(NOISE_LEVELS - 1, 0, steps).round().long()
    return times, torch.cat([kept[times], torch.ones(1)]).float()


class Diffusion(execution.PoolWorkload):
    """Makes latents of noise, one batch a request."""

    def __init__(self, settings: Settings) -> None:
        shape = settings.choice_of("model_size", SIZES, "small")
        steps = settings.whole("steps", 20, 1, NOISE_LEVELS)
        self._guidance = settings.number("guidance", 4.0)
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: DiT(shape), settings, device)
        generator = execution.input_generator(settings)
        size = (settings.batch_size, CHANNELS, shape.latent_pixels, shape.latent_pixels)
        pool = execution.input_pool(lambda: torch.randn(size, generator=generator), device)
        super().__init__(model, pool, settings, device)
        self.classes = torch.randint(CLASSES, size[:1], generator=generator).to(device)
        self._no_classes = torch.full_like(self.classes, CLASSES)
        self._dtype = execution.DTYPES[settings.precision]
        self._times, self._kept = (table.to(device) for table in schedule(steps))
        self._places = list(torch.arange(steps, device=device)[:, None])
        self._cleaner = execution.accelerate(self._step, (pool[0], self._places[0]), settings, device)

    def answer(self, inputs: Tensor) -> Tensor:
        """Noise [B, 4, H, W] on the host -> latents of images, the same, on the host."""
        latents = inputs
        for place in self._places:
            latents = self._cleaner(latents, place)
        return latents.cpu()

    def _step(self, latents: Tensor, place: Tensor) -> Tensor:
        """Latents [B, 4, H, W] before the step at ``place`` [1] -> after it, in fp32."""
        noise = self._noise(latents.to(self._dtype), self._times[place]).float()
        kept, kept_after = self._kept[place], self._kept[place + 1]
        image = (latents - (1 - kept).sqrt() * noise) / kept.sqrt()
        return kept_after.sqrt() * image + (1 - kept_after).sqrt() * noise

    def _noise(self, latents: Tensor, time: Tensor) -> Tensor:
        """The noise in latents [B, 4, H, W] that are all as noisy as ``time`` [1], with guidance."""
        if self._guidance == 1:
            return self.model(latents, time.expand(len(latents)), self.classes)
        classes = torch.cat([self.classes, self._no_classes])
        of_class, of_none = self.model(latents.repeat(2, 1, 1, 1), time.expand(len(classes)), classes).chunk(2)
        return torch.lerp(of_none, of_class, self._guidance)


make = Diffusion
