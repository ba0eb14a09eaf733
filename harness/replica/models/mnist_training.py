"""Training a network of ``mnist.py`` on labelled images, epoch after epoch, each in an order of its own; AdamW.

A batch is gathered on the host and made ready in the request, or ahead of it by a thread (``prefetch``).
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.replica.errors import SettingError
from harness.replica.models import checkpoint, execution, training
from harness.replica.models.mnist import LabelledImages, as_input, network
from harness.replica.models.training import Training
from harness.replica.settings import Settings

Batch = tuple[Tensor, Tensor]


class ImageTraining(Training):
    """Steps over all images, in whole batches, and an evaluation on those held out; ``ranks`` processes train on a batch each, in turn."""

    def __init__(self, settings: Settings, device: torch.device, *, rank: int = 0, ranks: int = 1) -> None:
        model = checkpoint.build_for_training(lambda: network(settings), settings, device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.number("learning_rate", 3e-3),
            capturable=settings.execution == "cuda-graph",
        )
        self._data = LabelledImages(settings)
        whole = settings.batch_size * ranks
        if whole > len(self._data.labels):
            raise SettingError(
                f"BATCH_SIZE: {whole} in a step is more than the {len(self._data.labels)} images that are trained on."
            )
        own = slice(rank * settings.batch_size, (rank + 1) * settings.batch_size)
        batches = self._batches(whole, own, execution.input_generator(settings), device)
        first = next(batches)
        super().__init__(model, optimizer, [first], settings, device)
        self._facts["data"] = self._data.source
        epochs = settings.option("epochs", 0)
        if epochs < 0:
            raise SettingError(f"WORKLOAD_OPTIONS: epochs {epochs} is not a number of epochs, 0 or more.")
        self._evaluate_after = epochs * (len(self._data.labels) // whole)
        self._evaluated: dict[str, object] = {}
        depth = settings.option("prefetch", 0)
        if depth < 0:
            raise SettingError(f"WORKLOAD_OPTIONS: prefetch {depth} is not a number of batches, 0 or more.")
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
        right, loss = 0, 0.0
        self.model.eval()
        with torch.no_grad():
            for images, labels in zip(
                *(torch.split(part, self._batch_size) for part in self._data.held_out), strict=True
            ):
                logits = self.model(as_input(images).to(self._device)).float().cpu()
                right += int((logits.argmax(-1) == labels).sum())
                loss += float(cross_entropy(logits, labels, reduction="sum"))
        self.model.train()
        count = len(self._data.held_out[1])
        return {"accuracy": right / count, "loss": loss / count}

    def close(self) -> None:
        """End the thread that prepares batches."""
        if self._ahead is not None:
            self._ahead.close()

    def _batches(self, size: int, own: slice, generator: torch.Generator, device: torch.device) -> Iterator[Batch]:
        """Of every ``size`` images in turn, this process's ``own``."""
        while True:
            order = torch.randperm(len(self._data.labels), generator=generator)
            for places in torch.split(order[: len(order) // size * size], size):
                mine = places[own]
                images, labels = as_input(self._data.images[mine]), self._data.labels[mine]
                yield (images.pin_memory(), labels.pin_memory()) if device.type == "cuda" else (images, labels)


class Prefetch(Iterator[Batch]):
    """The same batches in the same order, prepared ahead by a thread, at most ``depth`` of them; ``batches`` have no end."""

    def __init__(self, batches: Iterator[Batch], depth: int) -> None:
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(depth)
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(batches,), name="prefetch", daemon=True)
        self._thread.start()

    def __next__(self) -> Batch:
        """Return the next batch. Raises what preparing it raised."""
        batch = self._ready.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self) -> None:
        """End the thread; no batch can be had afterwards."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.01)
            except queue.Empty:
                continue

    def _fill(self, batches: Iterator[Batch]) -> None:
        try:
            while not self._closed:
                self._ready.put(next(batches))
        except Exception as error:  # noqa: BLE001 - whoever takes the next batch raises it
            self._ready.put(error)


def make(settings: Settings) -> ImageTraining:
    """Make the workload."""
    training.check(settings)
    return ImageTraining(settings, execution.prepare_device(settings))
