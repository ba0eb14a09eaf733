"""Classifying small images, of MNIST's shape or CIFAR-10's, by convolutional networks of three sizes (and a tiny one).

The images are made from a seed, or real ones from IDX files. Training goes on epoch after epoch, each in an order of its own,
by AdamW; a batch is gathered on the host and made ready in the request, or ahead of it by a thread (``prefetch``).
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import checkpoint, execution
from harness.replica.models.layers import Conv2d, Linear
from harness.replica.models.training import LabelledBatch, Training, adam_w, check, class_patterns
from harness.replica.settings import Settings

_PLACES = 4
CLASSES = 10
SHAPES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32)}
MADE_SAMPLES = 6000
HELD_OUT = 6
"""One image is held out for every so many that are trained on."""
_UBYTE = 0x08
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class NetShape:
    """Channels of each stage, and convolutions in it."""

    widths: tuple[int, ...]
    depth: int


SIZES = {
    "tiny": NetShape((8,), 1),
    "small": NetShape((16, 32), 1),
    "medium": NetShape((32, 64, 128), 2),
    "large": NetShape((64, 128, 256), 4),
}


class SmallNet(nn.Module):
    """Stages of 3 x 3 convolutions with ReLU, each halved by its greatest values; means of 4 x 4 places; one matrix."""

    def __init__(self, shape: NetShape, channels: int) -> None:
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
        return self.classifier(self.features(images).flatten(1))


def network(settings: Settings) -> SmallNet:
    """The network that the settings name, not yet filled."""
    channels = settings.choice_of("image_shape", SHAPES, "mnist")[0]
    return SmallNet(settings.choice_of("model_size", SIZES, "small"), channels)


class LabelledImages:
    """Images [N, channels, height, width] of bytes and their labels [N], on the host: made, or read from IDX files.

    Raises SettingError where one file is given without the other, and CannotBeMetError for a file of something else.
    """

    def __init__(self, settings: Settings) -> None:
        shape = settings.choice_of("image_shape", SHAPES, "mnist")
        samples = settings.whole("samples", 0, 0)
        files = settings.option("images", ""), settings.option("labels", "")
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

    def batch(self, places: Tensor, dtype: torch.dtype = torch.float32) -> LabelledBatch:
        """The images at ``places`` [B], as a network reads them, and their labels."""
        return as_input(self.images[places]).to(dtype), self.labels[places]


def as_input(images: Tensor) -> Tensor:
    """Bytes [B, ...] -> numbers about 0, fp32."""
    return images.float().sub_(127.5).div_(64.0)


def _made(settings: Settings, shape: tuple[int, int, int], samples: int) -> tuple[Tensor, Tensor]:
    """Each class has a pattern from the seed, and every image of it is that pattern in noise."""
    patterns = class_patterns(CLASSES, shape, settings.seed)
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
            f"images: {images} holds an array of {tuple(pixels.shape)}; {('N', *shape)} is needed for image_shape."
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
        raise CannotBeMetError(f"{path} is not an IDX file of bytes: it begins with {data[:4].hex(' ') or 'nothing'}.")
    sizes = [int.from_bytes(data[4 + 4 * place : 8 + 4 * place], "big") for place in range(dimensions)]
    if len(data) - start != math.prod(sizes) or not math.prod(sizes):
        raise CannotBeMetError(
            f"{path} is not whole: {' x '.join(map(str, sizes))} bytes are announced and {len(data) - start} are there."
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(sizes)


class SmallImages(execution.Classifier):
    """Classifies batches of the images in turn."""

    def __init__(self, settings: Settings) -> None:
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: network(settings), settings, device)
        data = LabelledImages(settings)
        dtype = execution.DTYPES[settings.precision]
        order = torch.randperm(len(data.labels), generator=execution.input_generator(settings))
        chosen = torch.split(order.repeat(-(-settings.batch_size // len(order)) + 1), settings.batch_size)
        in_turn = itertools.cycle(chosen[:-1])  # the last one may be short
        batches = execution.input_pool(lambda: data.batch(next(in_turn), dtype), device)
        super().__init__(model, [images for images, _ in batches], settings, device)
        self._batches = batches
        self._facts["data"] = data.source

    def evaluate(self) -> dict[str, float]:
        """Accuracy and loss over the pool; of random weights they mean nothing."""
        return _judged(self._forward, self._batches)


def _judged(forward: execution.Step, batches: Iterable[LabelledBatch]) -> dict[str, float]:
    """Accuracy and mean loss of logits."""
    right, loss, count = 0, 0.0, 0
    for inputs, labels in batches:
        logits = forward(inputs).float().cpu()
        right += int((logits.argmax(-1) == labels).sum())
        loss += float(cross_entropy(logits, labels, reduction="sum"))
        count += len(labels)
    return {"accuracy": right / count, "loss": loss / count}


class ImageTraining(Training):
    """Steps over all images, in whole batches, and an evaluation on those held out; ``ranks`` processes train on a batch each, in turn."""

    def __init__(self, settings: Settings, device: torch.device, *, rank: int = 0, ranks: int = 1) -> None:
        model = checkpoint.build(lambda: network(settings), settings, device, training=True)
        optimizer = adam_w(model, settings, 3e-3)
        self._data = LabelledImages(settings)
        whole = settings.batch_size * ranks
        if whole > len(self._data.labels):
            raise SettingError(
                f"BATCH_SIZE: {whole} in a step is more than the {len(self._data.labels)} images that are trained on."
            )
        own = slice(rank * settings.batch_size, (rank + 1) * settings.batch_size)
        batches = self._in_turn(whole, own, execution.input_generator(settings), device)
        first = next(batches)
        super().__init__(model, optimizer, [first], settings, device)
        self._facts["data"] = self._data.source
        self._evaluate_after = settings.whole("epochs", 0, 0) * (len(self._data.labels) // whole)
        self._evaluated: dict[str, object] = {}
        depth = settings.whole("prefetch", 0, 0)
        all_batches = itertools.chain([first], batches)
        self._ahead = Prefetch(all_batches, depth) if depth else None
        self._next_batch = (self._ahead or all_batches).__next__

    def infer(self) -> int:
        """As of its parent; after the last of the epochs it evaluates, and trains on."""
        served = super().infer()
        if self.steps == self._evaluate_after:
            self._evaluated = {"evaluated_after_steps": self.steps, **self.evaluate()}
        return served

    def outcome(self) -> dict[str, object]:
        """As of its parent; and accuracy and loss after the epochs, once they are over."""
        return {**super().outcome(), **self._evaluated}

    def evaluate(self) -> dict[str, float]:
        """Accuracy and loss on the images that were held out, once the epochs are over."""
        while self.steps < self._evaluate_after:
            self.infer()
        parts = (torch.split(part, self._batch_size) for part in self._data.held_out)
        self.model.eval()
        with torch.no_grad():
            result = _judged(lambda images: self.model(as_input(images).to(self._device)), zip(*parts, strict=True))
        self.model.train()
        return result

    def close(self) -> None:
        """End the thread that prepares batches."""
        if self._ahead is not None:
            self._ahead.close()

    def _in_turn(
        self, size: int, own: slice, generator: torch.Generator, device: torch.device
    ) -> Iterator[LabelledBatch]:
        """Of every ``size`` images in turn, this process's ``own``."""
        while True:
            order = torch.randperm(len(self._data.labels), generator=generator)
            for places in torch.split(order[: len(order) // size * size], size):
                batch = self._data.batch(places[own])
                yield execution.page_locked(batch) if device.type == "cuda" else batch


class Prefetch(Iterator[LabelledBatch]):
    """The same batches in the same order, prepared ahead by a thread, at most ``depth`` of them; ``batches`` have no end."""

    def __init__(self, batches: Iterator[LabelledBatch], depth: int) -> None:
        self._batches = batches
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._ready = deque(self._thread.submit(next, batches) for _ in range(depth))

    def __next__(self) -> LabelledBatch:
        """Return the next batch. Raises what preparing it raised."""
        batch = self._ready.popleft()
        self._ready.append(self._thread.submit(next, self._batches))
        return batch.result()

    def close(self) -> None:
        """End the thread; no batch can be had afterwards."""
        self._thread.shutdown(cancel_futures=True)


make = SmallImages


def make_training(settings: Settings) -> ImageTraining:
    """Make the workload that trains."""
    check(settings)
    return ImageTraining(settings, execution.prepare_device(settings))
