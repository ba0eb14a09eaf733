"""Training ResNet-50 on images of CIFAR-10's shape: 32 x 32 pixels, 10 classes, 23,528,522 parameters.

The network of ``resnet50.py`` with ten outputs, trained by stochastic gradient descent with momentum. The images
are synthetic and can be learnt: each class has a pattern, and every image of it is that pattern in noise.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from harness.replica.models import checkpoint, execution, resnet50, training
from harness.replica.models.training import Training
from harness.replica.settings import Settings

CLASSES = 10
IMAGE_PIXELS = 32
PATTERN_PIXELS = 8
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
SIZES = {
    name: dataclasses.replace(shape, classes=CLASSES, image_pixels=IMAGE_PIXELS)
    for name, shape in resnet50.SIZES.items()
}


class SyntheticImages:
    """Labelled images: patterns from the seed, labels and noise from the generator."""

    def __init__(self, classes: int, seed: int, generator: torch.Generator) -> None:
        patterns = torch.randn(
            classes, 3, PATTERN_PIXELS, PATTERN_PIXELS, generator=torch.Generator().manual_seed(seed)
        )
        self._patterns = interpolate(patterns, size=IMAGE_PIXELS, mode="bilinear")
        self._generator = generator

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Return images [size, 3, 32, 32] and labels [size]."""
        labels = torch.randint(len(self._patterns), (size,), generator=self._generator)
        noise = torch.randn(size, 3, IMAGE_PIXELS, IMAGE_PIXELS, generator=self._generator)
        return self._patterns[labels] + noise, labels


def make(settings: Settings) -> Training:
    """Make the workload."""
    training.check(settings)
    shape = resnet50.shape_of(settings, SIZES)
    device = execution.prepare_device(settings)
    model = checkpoint.build_for_training(lambda: resnet50.ResNet(shape), settings, device)
    layout = torch.channels_last if settings.option("channels_last", default=False) else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.number("learning_rate", 0.05),
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
    )
    images = SyntheticImages(shape.classes, settings.seed, execution.input_generator(settings))

    def batch() -> tuple[Tensor, Tensor]:
        inputs, labels = images.batch(settings.batch_size)
        return inputs.contiguous(memory_format=layout), labels

    return Training(model, optimizer, execution.labelled_pool(batch, device), settings, device)
