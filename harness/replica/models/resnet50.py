"""ResNet-50 image classification: 25,557,032 parameters, 224 x 224 images, 1,000 classes.

The architecture of He et al. 2015, with the stride in the 3 x 3 convolution (v1.5). Tensors are named as in
the `transformers` library's ``ResNetForImageClassification``, whose checkpoints load as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.replica.models import checkpoint, execution
from harness.replica.models.classifier import Classifier
from harness.replica.models.layers import Conv2d, Linear
from harness.replica.settings import Settings


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one model size."""

    stem: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    classes: int
    image_pixels: int


SIZES = {
    "base": Shape(stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3), classes=1000, image_pixels=224),
    # For tests and quick starts: the same code at a thousandth of the work.
    "tiny": Shape(stem=8, widths=(16, 32), depths=(1, 1), classes=10, image_pixels=32),
}


class ConvNorm(nn.Module):
    """Convolution and batch normalisation."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)
        self.normalization = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride]."""
        out: Tensor = self.normalization(self.convolution(x))
        return out


class Bottleneck(nn.Module):
    """1 x 1 down to a quarter of the width, 3 x 3, 1 x 1 back up, and the shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        narrow = width // 4
        changes = channels_in != width or stride != 1
        self.shortcut = ConvNorm(channels_in, width, 1, stride) if changes else nn.Identity()
        self.layer = nn.Sequential(
            ConvNorm(channels_in, narrow, 1), ConvNorm(narrow, narrow, 3, stride), ConvNorm(narrow, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, width, H / stride, W / stride]."""
        out = torch.relu(self.layer[0](x))
        out = torch.relu(self.layer[1](out))
        return torch.relu(self.layer[2](out) + self.shortcut(x))


class ResNet(nn.Module):
    """The whole network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        stem = ConvNorm(3, shape.stem, 7, stride=2)
        pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        channels = (shape.stem, *shape.widths)
        stages = []
        for index, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
            first = Bottleneck(channels[index], width, stride=1 if index == 0 else 2)
            rest = [Bottleneck(width, width, stride=1) for _ in range(depth - 1)]
            stages.append(_named(layers=nn.Sequential(first, *rest)))
        self.resnet = _named(
            embedder=_named(embedder=stem, activation=nn.ReLU(), pooler=pool),
            encoder=_named(stages=nn.Sequential(*stages)),
            pooler=nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Sequential(nn.Flatten(), Linear(shape.widths[-1], shape.classes))

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> logits [B, classes]."""
        logits: Tensor = self.classifier(self.resnet(images))
        return logits


def _named(**modules: nn.Module) -> nn.Sequential:
    """Return a sequence whose steps have names, for tensors to be called what checkpoints call them."""
    return nn.Sequential(OrderedDict(modules))


class ResNet50(Classifier):
    """Classifies synthetic images, one batch a request."""

    name = "resnet50"

    def __init__(self, settings: Settings) -> None:
        settings.known_options("model_size", "channels_last")
        shape = shape_of(settings, SIZES)
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: ResNet(shape), settings, device)
        layout = torch.channels_last if settings.option("channels_last", default=False) else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        size = (settings.batch_size, 3, shape.image_pixels, shape.image_pixels)
        dtype = execution.DTYPES[settings.precision]
        generator = execution.input_generator(settings)
        pool = execution.input_pool(
            lambda: torch.randn(size, generator=generator).to(dtype, memory_format=layout), device
        )
        super().__init__(model, pool, settings, device)


def shape_of(settings: Settings, sizes: Mapping[str, Shape]) -> Shape:
    """Return the numbers of the size that is asked for, and of the checkpoint's ``config.json`` where there is one."""
    shape = settings.choice_of("model_size", sizes, "base")
    config = checkpoint.read_config(settings)
    return Shape(
        stem=checkpoint.config_int(config, "embedding_size", shape.stem),
        widths=checkpoint.config_ints(config, "hidden_sizes", shape.widths),
        depths=checkpoint.config_ints(config, "depths", shape.depths),
        classes=checkpoint.config_classes(config, shape.classes),
        image_pixels=shape.image_pixels,
    )


def make(settings: Settings) -> ResNet50:
    """Make the workload."""
    return ResNet50(settings)
