"""Small labelled images of the shape of MNIST or CIFAR-10: made from a seed, or real ones from IDX files."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import execution
from harness.replica.settings import Settings

CLASSES = 10
SHAPES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32)}
MADE_SAMPLES = 6000
HELD_OUT = 6
"""One image is held out for every so many that are trained on."""
_PATTERN_PIXELS = 8
_UBYTE = 0x08
_MOST_BYTES = 4 << 30


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
