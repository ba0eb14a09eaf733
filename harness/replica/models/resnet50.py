"""ResNet-50 image classification: 25,557,032 parameters, 224 x 224 images, 1,000 classes; its training, and sessions of it.

The architecture of He et al. 2015, with the stride in the 3 x 3 convolution (v1.5). Tensors are named as in
the `transformers` library's ``ResNetForImageClassification``, whose checkpoints load as they are. Training is on images of
CIFAR-10's shape, 32 x 32 pixels of 10 classes (23,528,522 parameters), by stochastic gradient descent with momentum.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import interpolate

from harness.replica.custom_metrics import Activity
from harness.replica.errors import SettingError
from harness.replica.models import checkpoint, execution, fp8, image_input
from harness.replica.models.checkpoint import ModelShape, Number
from harness.replica.models.layers import Conv2d, FoldedConvolution, Linear, named, replace
from harness.replica.models.training import LabelledBatch, Training, check, class_patterns
from harness.replica.settings import Settings


class ResNetShape(ModelShape):
    """The numbers of one model size."""

    stem: Number = Field(validation_alias="embedding_size")
    widths: tuple[Number, ...] = Field(validation_alias="hidden_sizes")
    depths: tuple[Number, ...]
    classes: Number
    image_pixels: Number


SIZES = {
    "base": ResNetShape(stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3), classes=1000, image_pixels=224),
    # For tests and quick starts: the same code at a thousandth of the work.
    "tiny": ResNetShape(stem=8, widths=(16, 32), depths=(1, 1), classes=10, image_pixels=32),
}
TRAINING_SIZES = {name: shape.model_copy(update={"classes": 10, "image_pixels": 32}) for name, shape in SIZES.items()}
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


class ConvNorm(nn.Module):
    """Convolution and batch normalisation."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)
        self.normalization = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H / stride, W / stride]."""
        return self.normalization(self.convolution(x))

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """The same, with ``shortcut`` added, and a ReLU."""
        out = self(x)
        return torch.relu(out if shortcut is None else out + shortcut)


class ResidualBlock(nn.Module):
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

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        stem = ConvNorm(3, shape.stem, 7, stride=2)
        pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        channels = (shape.stem, *shape.widths)
        stages = []
        for index, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
            first = ResidualBlock(channels[index], width, stride=1 if index == 0 else 2)
            rest = [ResidualBlock(width, width, stride=1) for _ in range(depth - 1)]
            stages.append(named(layers=nn.Sequential(first, *rest)))
        self.resnet = named(
            embedder=named(embedder=stem, activation=nn.ReLU(), pooler=pool),
            encoder=named(stages=nn.Sequential(*stages)),
            pooler=nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Sequential(nn.Flatten(), Linear(shape.widths[-1], shape.classes))

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> logits [B, classes]."""
        return self.classifier(self.resnet(images))


def fold_norms(model: ResNet, *, fuse: bool) -> int:
    """Fold every normalisation into the convolution before it; returns how many of those are fused (see ``FoldedConvolution``)."""
    stem = cast("nn.Sequential", model.resnet.get_submodule("embedder"))
    folded = {
        module: FoldedConvolution(module.convolution, module.normalization, fuse=fuse, activates=module is stem[0])
        for module in model.modules()
        if isinstance(module, ConvNorm)
    }
    replace(model, folded)
    stem.activation = nn.Identity()
    return sum(convolution.fused for convolution in folded.values())


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


HOST, DEVICE, HOST_UINT8, JPEG = INPUTS = ("host", "device", "host-uint8", "jpeg")
_FED = (HOST_UINT8, JPEG)
"""What a feed brings to the device."""
_DETAIL = 8
"""Pixels of one drawn colour in the images that become JPEGs: of noise, a file would be as large as its bytes."""
_WATCHED_IMAGES = 64
"""Whose largest numbers are those of all."""
_BATCHES = 4
"""Of bytes that are fed in turn: too many for the CPU's cache where batches are large."""


def _layout(settings: Settings) -> torch.memory_format:
    return torch.channels_last if settings.option("channels_last", default=False) else torch.contiguous_format


class ResNet50(execution.Classifier):
    """Classifies synthetic images, one batch a request."""

    def __init__(self, settings: Settings) -> None:
        shape = checkpoint.shape_of(settings, SIZES)
        device, layout = execution.prepare_device(settings), _layout(settings)
        in_fp8 = fp8.wants_fp8_convolutions(settings, device)
        torch.backends.cudnn.benchmark = settings.option("cudnn_benchmark", default=False)
        network = checkpoint.build(lambda: ResNet(shape), settings, device)
        network.to(memory_format=layout)  # type: ignore[call-overload]
        facts = execution.describe(settings, device, network)
        if settings.option("fold_norms", default=False):
            # torch.compile makes kernels of its own, and does not know cuDNN's fused ones.
            facts["fused_convolutions"] = fold_norms(network, fuse=settings.execution != "compiled")
        kind = settings.choice_of("input", dict(zip(INPUTS, INPUTS, strict=True)), HOST)
        facts["input"] = kind
        pool = _images(settings, shape.image_pixels, kind, device)
        model: nn.Module = network
        if kind in _FED:
            dtype = execution.DTYPES[settings.precision]
            model = nn.Sequential(image_input.FromBytes(shape.image_pixels, dtype, layout, device), network)
        if in_fp8:
            facts["fp8_convolutions"] = use_fp8(network, lambda: model(pool[0][:_WATCHED_IMAGES].to(device)))
        super().__init__(model, pool, settings, device, facts)
        # What comes at times of its own is not known before; all of Offline, and of the closed loop, is there from the start.
        ahead = settings.scenario is None or settings.scenario.kind == "offline"
        self._ahead = ahead and kind != HOST
        self._answers: image_input.AwaitedClasses | None = None
        brought: Sequence[Tensor] | Sequence[image_input.Jpegs] = pool
        if kind == JPEG:
            decode = image_input.decoder(device)
            brought = [image_input.encoded(batch, decode) for batch in pool]
            sizes = [len(file) for batch in brought for file in batch.files]
            facts["jpeg_mean_bytes"] = round(sum(sizes) / len(sizes))
        if kind in _FED or self._ahead:
            feed = image_input.Feed if ahead else image_input.OnDemand
            source = image_input.Resident(pool) if kind == DEVICE else feed(brought, device)
            self._answers = image_input.AwaitedClasses(source, settings.batch_size, device)

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


def _images(settings: Settings, model_pixels: int, kind: str, device: torch.device) -> list[Tensor]:
    """Batches of random images: numbers [B, 3, H, W] as the model reads them, or bytes [B, H, W, 3]."""
    generator, layout = execution.input_generator(settings), _layout(settings)
    pixels = settings.option("source_pixels", 0) or model_pixels
    if kind in _FED:
        size = (settings.batch_size, pixels, pixels, 3)
        return execution.input_pool(
            lambda: drawn_bytes(size, generator, detail=_DETAIL if kind == JPEG else 1),
            torch.device("cpu"),  # what brings them to the device has page-locked buffers of its own
            _BATCHES,
        )
    if pixels != model_pixels:
        raise SettingError(
            "WORKLOAD_OPTIONS: source_pixels is of images in bytes: set input to host-uint8 or jpeg, too."
        )
    size, dtype = (settings.batch_size, 3, pixels, pixels), execution.DTYPES[settings.precision]
    pool = execution.input_pool(lambda: torch.randn(size, generator=generator).to(dtype, memory_format=layout), device)
    return [batch.to(device) for batch in pool] if kind == DEVICE else pool


def drawn_bytes(size: tuple[int, int, int, int], generator: torch.Generator, *, detail: int) -> Tensor:
    """Images [B, H, W, 3] of random colours, one for every ``detail`` pixels in each direction, and smooth in between."""
    if detail == 1:
        return torch.randint(256, size, dtype=torch.uint8, generator=generator)
    images, height, width, colours = size
    few = torch.rand(images, colours, -(-height // detail), -(-width // detail), generator=generator)
    smooth = interpolate(few, size=(height, width), mode="bilinear").permute(0, 2, 3, 1)
    return (255 * smooth).to(torch.uint8, memory_format=torch.contiguous_format)


make = ResNet50
_OF_A_SESSION = ("burst_requests", "think_s")


class Notebook:
    """An interactive session, as in a notebook: bursts of work, and time to think in between, which is no latency.

    A burst has a random number of requests (geometric), a pause a random length (exponential); both come from the seed and the
    replica, so that sessions differ from each other and a session does not from run to run.
    """

    name = "notebook"

    def __init__(self, settings: Settings) -> None:
        self._mean_requests = settings.whole("burst_requests", 100, 1)
        self._mean_think_s = settings.number("think_s", 2.0)
        options = {name: value for name, value in settings.options.items() if name not in _OF_A_SESSION}
        self._work = ResNet50(dataclasses.replace(settings, options=options))
        self.model, self.pool = self._work.model, self._work.pool
        self.answer, self.serving, self.describe = self._work.answer, self._work.serving, self._work.describe
        seed = settings.seed * 1_000_003 + settings.replica
        self._random = random.Random(seed)  # noqa: S311 - a session to repeat, not a secret
        self._activity = Activity()

    def published(self) -> tuple[Activity]:
        """Return what ``/metrics`` shows besides latencies."""
        return (self._activity,)

    def outcome(self) -> dict[str, object]:
        """Return the seconds spent working and thinking since the warm-up."""
        return {f"{state}_seconds": round(spent_ns / 1e9, 6) for state, spent_ns in self._activity.spent_ns().items()}

    def think_s(self) -> float:
        """Return the pause before the next request, in seconds: 0 inside of a burst."""
        if self._random.random() * self._mean_requests >= 1.0:
            return 0.0
        return self._random.expovariate(1.0) * self._mean_think_s

    def infer(self) -> int:
        """Serve one batch; returns its size."""
        self._activity.enter("active")
        try:
            return self._work.infer()
        finally:
            self._activity.enter("idle")


def make_training(settings: Settings) -> Training:
    """Make the workload that trains."""
    check(settings)
    shape = checkpoint.shape_of(settings, TRAINING_SIZES)
    device, layout = execution.prepare_device(settings), _layout(settings)
    model = checkpoint.build(lambda: ResNet(shape), settings, device, training=True)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.number("learning_rate", 0.05), momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY
    )
    patterns = class_patterns(shape.classes, (3, shape.image_pixels, shape.image_pixels), settings.seed)
    generator = execution.input_generator(settings)

    def batch() -> LabelledBatch:
        """Images [B, 3, 32, 32] and labels [B], which can be learnt: the class's pattern in noise."""
        labels = torch.randint(len(patterns), (settings.batch_size,), generator=generator)
        noise = torch.randn(settings.batch_size, *patterns.shape[1:], generator=generator)
        return (patterns[labels] + noise).contiguous(memory_format=layout), labels

    return Training(model, optimizer, execution.input_pool(batch, device), settings, device)
