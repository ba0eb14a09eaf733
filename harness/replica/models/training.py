"""Training as a workload: one request is one step of the optimiser on one batch.

Weights and the optimiser's state stay in fp32; ``PRECISION`` is that of the arithmetic (automatic mixed precision),
with a scaled loss for fp16. There is no dropout, so that a step is the same work and the same result every time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from harness.replica.errors import SettingError, WorkloadError
from harness.replica.models import execution
from harness.replica.settings import Settings

LabelledBatch = tuple[Tensor, Tensor]
"""Inputs [B, ...] and labels [B], on the host."""
_PATTERN_PIXELS = 8


def check(settings: Settings) -> None:
    """Raise SettingError for what cannot be trained with."""
    parts = settings.option("accumulation", 1)
    if parts < 1 or settings.batch_size % parts:
        raise SettingError(
            f"WORKLOAD_OPTIONS: accumulation {parts} must divide BATCH_SIZE {settings.batch_size}: it is computed in so many parts."
        )
    if settings.execution == "cuda-graph" and settings.precision == "fp16":
        raise SettingError(
            "PRECISION: fp16 scales its loss by what the last step overflowed, which a CUDA graph cannot look at; use bf16 or fp32."
        )


def adam_w(model: nn.Module, settings: Settings, rate: float) -> torch.optim.Optimizer:
    """AdamW over all weights at the settings' learning rate; ``rate``: unless they say one."""
    captured = settings.execution == "cuda-graph"
    return torch.optim.AdamW(model.parameters(), lr=settings.number("learning_rate", rate), capturable=captured)


def class_patterns(classes: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Return [classes, *shape]: a smooth image of each class, which its images are in noise."""
    few = torch.randn(
        classes, shape[0], _PATTERN_PIXELS, _PATTERN_PIXELS, generator=torch.Generator().manual_seed(seed)
    )
    return interpolate(few, size=shape[1:], mode="bilinear")


class Training(execution.PoolModel):
    """Steps over a pool of labelled batches, in turn; the model, in training mode, maps [B, ...] to logits [B, classes]."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        pool: list[LabelledBatch],
        settings: Settings,
        device: torch.device,
    ) -> None:
        super().__init__(model, pool, settings, device)
        self.steps = 0
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self._forward = model
        self._optimizer = optimizer
        self._mixed = settings.precision != "fp32"
        self._dtype = execution.DTYPES[settings.precision]
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self._part = settings.batch_size // settings.option("accumulation", 1)
        self._loss_of = execution.compiled(self._loss) if settings.execution == "compiled" else self._loss
        captured = settings.execution == "cuda-graph"
        self._train = execution.Captured(self._step, pool[0], device, training=True) if captured else self._step
        if device.type == "cpu":
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_let_signals_in)  # type: ignore[no-untyped-call]

    def outcome(self) -> dict[str, object]:
        """Return how far it has come: steps, those of the warm-up included, and the first and the last one's loss."""
        return {"training_steps": self.steps, "loss_first": self.first_loss, "loss_last": self.last_loss}

    def infer(self) -> int:
        """Train one step, until its loss is on the host; returns the batch size.

        Raises WorkloadError when the loss is no number any more: what follows would be no training.
        """
        loss = self._train(*self._next_batch()).item()
        self.steps += 1
        self.last_loss = loss
        self.first_loss = loss if self.first_loss is None else self.first_loss
        if not math.isfinite(loss):
            raise WorkloadError(
                f"the loss of training step {self.steps} is {loss}; use a lower learning_rate, or PRECISION fp32 or bf16."
            )
        return self._batch_size

    def _step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One step on inputs [B, ...] and labels [B], from the host or the device -> their loss before it, a scalar."""
        inputs, labels = (tensor.to(self._device, non_blocking=True) for tensor in (inputs, labels))
        self._optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._device)
        for part in zip(torch.split(inputs, self._part), torch.split(labels, self._part), strict=True):
            loss = self._loss_of(*part) * (self._part / self._batch_size)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return total

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._mixed):
            logits = self._forward(inputs)
        return cross_entropy(logits.float(), labels)


def _let_signals_in(_parameter: Tensor) -> None:
    """Let Python look for signals: on a CPU a backward pass is one long call, which a drain must be able to end."""
