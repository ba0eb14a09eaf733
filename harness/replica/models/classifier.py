"""What the workloads that classify have in common: a batch of inputs goes in, the class of each comes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from harness.replica.models import execution
from harness.replica.settings import Settings


class Classifier:
    """Classifies synthetic inputs, one batch a request.

    Args:
        model: inputs [B, ...] -> logits [B, classes], on the device.
    """

    def __init__(self, model: nn.Module, pool: Sequence[Tensor], settings: Settings, device: torch.device) -> None:
        self.model = model
        self.pool = pool
        self._facts = execution.describe(settings, device, model)
        self._forward = execution.accelerate(model, (pool[0],), settings, device)
        self._next_batch = itertools.cycle(pool).__next__
        self._batch_size = settings.batch_size
        self._settings = settings
        self._device = device

    def describe(self) -> dict[str, object]:
        """Return what runs where."""
        return self._facts

    def serving(self) -> torch.inference_mode:
        """Entered once around all requests: entering it for each costs an eager request 1 %."""
        return torch.inference_mode()

    def classify(self, inputs: Tensor) -> Tensor:
        """[B, ...] on the host -> classes [B] on the host."""
        return self._forward(inputs).argmax(-1).cpu()

    def infer(self) -> int:
        """Serve one batch; returns its size."""
        self.classify(self._next_batch())
        return self._batch_size

    def serve_up_to(self) -> Callable[[int], int]:
        """Return what serves any number of inputs up to the batch size in one pass; for dynamic batching."""
        step = execution.accelerate_up_to(self.model, self.pool[0], self._settings, self._device)

        def serve(inputs: int) -> int:
            step(self._next_batch(), inputs).argmax(-1).cpu()
            return inputs

        return serve
