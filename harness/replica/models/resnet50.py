"""ResNet-50 image classification: 25,557,032 parameters, 224 x 224 images, 1,000 classes.

The architecture of He et al. 2015, with the stride in the 3 x 3 convolution (v1.5). Tensors are named as in
the `transformers` library's ``ResNetForImageClassification``, whose checkpoints load as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from harness.replica.errors import SettingError
from harness.replica.models import checkpoint, execution, fp8, jpeg
from harness.replica.models.classifier import Classifier
from harness.replica.models.folded import Folded
from harness.replica.models.image_input import Answers, Feed, FromBytes, OnDemand, Resident
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

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """The same, with ``shortcut`` added, and a ReLU."""
        out = self(x)
        return torch.relu(out if shortcut is None else out + shortcut)


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
        first, second, third = cast("Sequence[ConvNorm]", self.layer)
        return third.relu(second.relu(first.relu(x)), self.shortcut(x))


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


def fold_norms(model: nn.Module, *, fuse: bool) -> None:
    """Fold every normalisation into the convolution before it; ``fuse``: as of ``Folded``."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, ConvNorm):
                stem = name == "embedder"
                folded = Folded(child.convolution, child.normalization, fuse=fuse, activates=stem)
                setattr(parent, name, folded)
                if stem:
                    parent.activation = nn.Identity()


def use_fp8(model: ResNet, watch: Callable[[], object]) -> int:
    """Have the folded convolutions after the stem compute in FP8; returns how many they are."""
    stem, encoder = (cast("nn.Sequential", model.resnet.get_submodule(name)) for name in ("embedder", "encoder"))
    dtype, convolutions = next(model.parameters()).dtype, fp8.watched_convolutions(encoder)
    with torch.inference_mode():
        watch()
    for convolution in convolutions:
        convolution.quantise()
    stem.append(fp8.ToFp8(convolutions[0].scale_in))
    encoder.append(fp8.FromFp8(convolutions[-1].scale_out, dtype))
    return len(convolutions)


def _named(**modules: nn.Module) -> nn.Sequential:
    """Return a sequence whose steps have names, for tensors to be called what checkpoints call them."""
    return nn.Sequential(OrderedDict(modules))


HOST, DEVICE, HOST_UINT8, JPEG = INPUTS = ("host", "device", "host-uint8", "jpeg")
_FED = (HOST_UINT8, JPEG)
"""What a feed brings to the device."""
_DETAIL = 8
"""Pixels of one drawn colour in the images that become JPEGs: of noise, a file would be as large as its bytes."""
_WATCHED_IMAGES = 64
"""Whose largest numbers are those of all."""
_BATCHES = 4
"""Of bytes that are fed in turn: too many for the CPU's cache where batches are large."""


class ResNet50(Classifier):
    """Classifies synthetic images, one batch a request."""

    name = "resnet50"

    def __init__(self, settings: Settings) -> None:
        shape = shape_of(settings, SIZES)
        device = execution.prepare_device(settings)
        in_fp8 = fp8.wants_fp8_convolutions(settings, device)
        torch.backends.cudnn.benchmark = settings.option("cudnn_benchmark", default=False)
        network = checkpoint.build(lambda: ResNet(shape), settings, device)
        model: nn.Module = network
        layout = torch.channels_last if settings.option("channels_last", default=False) else torch.contiguous_format
        model.to(memory_format=layout)  # type: ignore[call-overload]
        facts = execution.describe(settings, device, model)
        if settings.option("fold_norms", default=False):
            # torch.compile makes kernels of its own, and does not know cuDNN's fused ones.
            fold_norms(model, fuse=settings.execution != "compiled")
            facts["fused_convolutions"] = sum(isinstance(one, Folded) and one.fused for one in model.modules())
        dtype = execution.DTYPES[settings.precision]
        kind = settings.choice_of("input", dict(zip(INPUTS, INPUTS, strict=True)), HOST)
        pixels = settings.option("source_pixels", 0) or shape.image_pixels
        if pixels != shape.image_pixels and kind not in _FED:
            raise SettingError(
                "WORKLOAD_OPTIONS: source_pixels is of images in bytes: set input to host-uint8 or jpeg, too."
            )
        generator = execution.input_generator(settings)
        # What comes at times of its own is not known before; all of Offline, and of the closed loop, is there from the start.
        ahead = settings.scenario is None or settings.scenario.kind == "offline"
        if kind in _FED:
            model = nn.Sequential(FromBytes(shape.image_pixels, dtype, layout, device), model)
            size = (settings.batch_size, pixels, pixels, 3)
            pool = execution.input_pool(
                lambda: drawn_bytes(size, generator, detail=_DETAIL if kind == JPEG else 1),
                torch.device("cpu"),  # what brings them to the device has page-locked buffers of its own
                _BATCHES,
            )
        else:
            size = (settings.batch_size, 3, pixels, pixels)
            pool = execution.input_pool(
                lambda: torch.randn(size, generator=generator).to(dtype, memory_format=layout), device
            )
            pool = [batch.to(device) for batch in pool] if kind == DEVICE else pool
        if in_fp8:
            facts["fp8_convolutions"] = use_fp8(network, lambda: model(pool[0][:_WATCHED_IMAGES].to(device)))
        super().__init__(model, pool, settings, device)
        self._facts = facts | {"input": kind}
        self._ahead = ahead and kind != HOST
        self._answers: Answers | None = None
        brought: Sequence[Tensor] | Sequence[jpeg.Jpegs] = pool
        if kind == JPEG:
            decode = jpeg.decoder(device)
            brought = [jpeg.encoded(batch, decode) for batch in pool]
            sizes = [len(file) for batch in brought for file in batch.files]
            self._facts["jpeg_mean_bytes"] = round(sum(sizes) / len(sizes))
        if kind in _FED or self._ahead:
            source = Resident(pool) if kind == DEVICE else Feed(brought, device) if ahead else OnDemand(brought, device)
            self._answers = Answers(source, settings.batch_size, device)

    def infer(self) -> int:
        """Serve one batch; returns its size."""
        if self._answers is None:
            return super().infer()
        if self._ahead:
            self._answers.next(self._forward, self._batch_size)
        else:
            self._answers.begin(self._forward, self._batch_size)()
        return self._batch_size

    def serve_up_to(self) -> Callable[[int], int]:
        """Return what serves any number of inputs up to the batch size in one pass; of those known beforehand a whole batch."""
        return (lambda inputs: min(inputs, self.infer())) if self._ahead else super().serve_up_to()

    def begin_up_to(self) -> Callable[[int], Callable[[], object]] | None:
        """Return what begins such a pass and returns what waits for it; None: nothing is gained by that."""
        answers = self._answers
        if answers is None or self._ahead:
            return None
        step = execution.accelerate_up_to(self.model, self.pool[0], self._settings, self._device)
        return lambda inputs: answers.begin(lambda batch: step(batch, inputs), inputs)

    def close(self) -> None:
        """End what brings the images."""
        if self._answers is not None:
            self._answers.close()


def drawn_bytes(size: tuple[int, int, int, int], generator: torch.Generator, *, detail: int) -> Tensor:
    """Images [B, H, W, 3] of random colours, one for every ``detail`` pixels in each direction, and smooth in between."""
    if detail == 1:
        return torch.randint(256, size, dtype=torch.uint8, generator=generator)
    images, height, width, colours = size
    few = torch.rand(images, colours, -(-height // detail), -(-width // detail), generator=generator)
    smooth = interpolate(few, size=(height, width), mode="bilinear").permute(0, 2, 3, 1)
    return (255 * smooth).to(torch.uint8, memory_format=torch.contiguous_format)


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
