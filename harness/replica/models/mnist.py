"""Classifying small images, of MNIST's shape or CIFAR-10's, by convolutional networks of three sizes (and a tiny one)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness.replica.models import checkpoint, execution
from harness.replica.models.classifier import Classifier
from harness.replica.models.labelled_images import CLASSES, SHAPES, LabelledImages, as_input
from harness.replica.models.layers import Conv2d, Linear
from harness.replica.settings import Settings

_PLACES = 4


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


def make(settings: Settings) -> SmallImages:
    """Make the workload."""
    return SmallImages(settings)
