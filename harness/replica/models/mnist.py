"""Classifying small images, of MNIST's shape or CIFAR-10's, by convolutional networks of three sizes (and a tiny one).

The images are made from a seed, or real ones from IDX files.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import checkpoint, execution
from harness.replica.models.classifier import Classifier
from harness.replica.models.layers import Conv2d, Linear
from harness.replica.settings import Settings

_PLACES = 4
CLASSES = 10
SHAPES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32)}
MADE_SAMPLES = 6000
HELD_OUT = 6
"""One image is held out for every so many that are trained on."""
_PATTERN_PIXELS = 8
_UBYTE = 0x08
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """Channels of each stage, and convolutions in it."""

    widths: tuple[int, ...]
    depth: int


SIZES = {
    "tiny": Shape((8,), 1),
    "small": Shape((16, 32), 1),
    "medium": Shape((32, 64, 128), 2),
    "large": Shape((64, 128, 256), 4),
}


class SmallNet(nn.Module):
    """Stages of 3 x 3 convolutions with ReLU, each halved by its greatest values; means of 4 x 4 places; one matrix."""

    def __init__(self, shape: Shape, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in shape.widths:
            for _ in range(shape.depth):
                layers += [Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(_PLACES))
        self.classifier = Linear(channels * _PLACES**2, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """[B, channels, H, W] -> logits [B, 10]."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits


def network(settings: Settings) -> SmallNet:
    """The network that the settings name, not yet filled."""
    channels = settings.choice_of("image_shape", SHAPES, "mnist")[0]
    return SmallNet(settings.choice_of("model_size", SIZES, "small"), channels)


class SmallImages(Classifier):
    """Classifies batches of the images in turn."""

    name = "mnist"

    def __init__(self, settings: Settings) -> None:
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: network(settings), settings, device)
        data = LabelledImages(settings)
        dtype = execution.DTYPES[settings.precision]
        labels: list[Tensor] = []
        order = torch.randperm(len(data.labels), generator=execution.input_generator(settings))
        chosen = torch.split(order.repeat(-(-settings.batch_size // len(order)) + 1), settings.batch_size)

        def batch() -> Tensor:
            places = chosen[len(labels) % (len(chosen) - 1)]  # the last one may be short
            labels.append(data.labels[places])
            return as_input(data.images[places]).to(dtype)

        pool = execution.input_pool(batch, device)
        super().__init__(model, pool, settings, device)
        self._labels = labels
        self._facts["data"] = data.source

    def evaluate(self) -> dict[str, float]:
        """Accuracy and loss over the pool; of random weights they mean nothing."""
        right, loss, count = 0, 0.0, 0
        for inputs, labels in zip(self.pool, self._labels, strict=True):
            logits = self._forward(inputs).float().cpu()
            right += int((logits.argmax(-1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
            count += len(labels)
        return {"accuracy": right / count, "loss": loss / count}


class LabelledImages:
    """Images [N, channels, height, width] of bytes and their labels [N], on the host.

    Args:
        settings: options ``image_shape``; ``samples``, 0 for all; and ``images`` and ``labels``, IDX files, which may end in ``.gz``.

    Raises:
        SettingError: one file is given without the other.
        CannotBeMetError: a file is no IDX file of such images or labels.
    """

    def __init__(self, settings: Settings) -> None:
        shape = settings.choice_of("image_shape", SHAPES, "mnist")
        samples = settings.option("samples", 0)
        files = settings.option("images", ""), settings.option("labels", "")
        if samples < 0:
            raise SettingError(f"WORKLOAD_OPTIONS: samples {samples} is not 0 (all) or more.")
        if bool(files[0]) != bool(files[1]):
            raise SettingError("WORKLOAD_OPTIONS: images and labels go together: both are paths of IDX files.")
        if files[0]:
            images, labels = _from_files(Path(files[0]), Path(files[1]), shape)
        else:
            images, labels = _made(settings, shape, samples or MADE_SAMPLES)
        samples = samples or len(labels) * HELD_OUT // (HELD_OUT + 1)
        held_out = max(samples // HELD_OUT, 1)
        if samples < 1 or samples + held_out > len(labels):
            raise CannotBeMetError(
                f"WORKLOAD_OPTIONS: {len(labels)} images are too few for samples {samples} and {held_out} held out."
            )
        self.images, self.labels = images[:samples], labels[:samples]
        self.held_out = images[samples : samples + held_out], labels[samples : samples + held_out]
        self.source = files[0] or f"made from seed {settings.seed}"


def as_input(images: Tensor) -> Tensor:
    """Bytes [B, ...] -> numbers about 0, fp32."""
    return images.float().sub_(127.5).div_(64.0)


def _made(settings: Settings, shape: tuple[int, int, int], samples: int) -> tuple[Tensor, Tensor]:
    """Each class has a pattern from the seed, and every image of it is that pattern in noise."""
    channels, height, width = shape
    patterns = torch.randn(
        CLASSES, channels, _PATTERN_PIXELS, _PATTERN_PIXELS, generator=torch.Generator().manual_seed(settings.seed)
    )
    patterns = interpolate(patterns, size=(height, width), mode="bilinear")
    generator = execution.input_generator(settings)
    count = samples + max(samples // HELD_OUT, 1)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randn(count, *shape, generator=generator).add_(patterns[labels])
    return images.mul_(32.0).add_(127.5).clamp_(0, 255).to(torch.uint8), labels


def _from_files(images: Path, labels: Path, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    pixels, classes = read_idx(images), read_idx(labels)
    pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels
    if tuple(pixels.shape[1:]) != shape:
        raise CannotBeMetError(
            f"images: {images} holds an array of {tuple(pixels.shape)}; {('N', *shape)} or, of one channel, {('N', *shape[1:])} "
            f"is needed for image_shape."
        )
    if classes.dim() != 1 or len(classes) != len(pixels) or not len(classes):
        raise CannotBeMetError(
            f"labels: {labels} holds {tuple(classes.shape)} labels for {len(pixels)} images of {images}."
        )
    if int(classes.max()) >= CLASSES:
        raise CannotBeMetError(f"labels: {labels} holds the class {int(classes.max())}; 0 to {CLASSES - 1} are known.")
    return pixels, classes.long()


def read_idx(path: Path) -> Tensor:
    """The array of bytes in an IDX file, as MNIST is published. Raises CannotBeMetError when it is none, or not whole."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except (OSError, EOFError) as error:
        raise CannotBeMetError(f"{path} cannot be read: {error}.") from error
    dimensions = data[3] if len(data) > 4 else 0
    start = 4 + 4 * dimensions
    if data[:3] != bytes((0, 0, _UBYTE)) or not 1 <= dimensions <= 4 or len(data) < start:
        raise CannotBeMetError(f"{path} is no IDX file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}.")
    sizes = [int.from_bytes(data[4 + 4 * place : 8 + 4 * place], "big") for place in range(dimensions)]
    if len(data) - start != math.prod(sizes) or not math.prod(sizes):
        raise CannotBeMetError(
            f"{path} is not whole: {' x '.join(map(str, sizes))} bytes are announced and {len(data) - start} are there."
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(sizes)


def make(settings: Settings) -> SmallImages:
    """Make the workload."""
    return SmallImages(settings)
