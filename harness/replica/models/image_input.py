"""Images as they are decoded, bytes in host memory, on their way to a model on the device.

A thread copies each batch into a page-locked buffer, from where it goes to the device on a stream of its own while the model
computes on the batches before; one kernel there makes normalised numbers of the bytes.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, in 0 to 1."""
SLOTS = 4
"""Buffers: one that is computed on, one that is next, one that is ready, one that is filled."""


class FromBytes(nn.Module):
    """Bytes [B, H, W, 3] -> normalised numbers [B, 3, pixels, pixels].

    Args:
        pixels: height and width that the model takes; other images are resized, bilinear.
        dtype: of the result.
        layout: of the result in memory; channels last costs nothing, as the bytes lie so.
        device: where it runs.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, pixels: int, dtype: torch.dtype, layout: torch.memory_format, device: torch.device) -> None:
        super().__init__()
        self._pixels, self._layout = pixels, layout
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
        self.register_buffer("scale", (1 / (255 * deviation)).to(device, dtype), persistent=False)
        self.register_buffer("shift", (-mean / deviation).to(device, dtype), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Convert, normalise and lay out in one kernel; resize in one more where it has to be."""
        found = torch.addcmul(self.shift, images.permute(0, 3, 1, 2), self.scale)
        if found.shape[-1] != self._pixels or found.shape[-2] != self._pixels:
            found = interpolate(found, size=(self._pixels, self._pixels), mode="bilinear")
        return found.contiguous(memory_format=self._layout)


class Resident:
    """Batches that are on the device already, in turn."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._next = itertools.cycle(batches).__next__

    def through(self, step: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what ``step`` makes of the next batch; it may still be computing."""
        return step(self._next())

    def close(self) -> None:
        """Nothing runs."""


class _Slot:
    """One buffer of the ring, on the host and on the device."""

    def __init__(self, batch: Tensor, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.host = torch.empty_like(batch, pin_memory=self.on_gpu)
        self.there = torch.empty_like(batch, device=device) if self.on_gpu else self.host
        if self.on_gpu:
            # Blocking: a thread that waits must not take a core from those that compute.
            self.arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self.used = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class Feed:
    """Brings batches to the device ahead of whoever computes on them.

    Args:
        batches: bytes in host memory, in turn; all of one shape.
        device: where they are needed.
    """

    def __init__(self, batches: Sequence[Tensor], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._free: queue.SimpleQueue[_Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Slot | BaseException] = queue.SimpleQueue()
        for _ in range(SLOTS):
            self._free.put(_Slot(batches[0], device))
        self._thread = threading.Thread(target=self._fill_all, name="image-feed", daemon=True)
        self._thread.start()

    def through(self, step: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what ``step`` makes of the next batch; it may still be computing. Raises what the feeding thread raised."""
        slot = self._ready.get()
        if isinstance(slot, BaseException):
            raise slot
        if slot.on_gpu:
            torch.cuda.current_stream(self._device).wait_event(slot.arrived)
        found = step(slot.there)
        if slot.on_gpu:
            slot.used.record(torch.cuda.current_stream(self._device))
        self._free.put(slot)
        return found

    def close(self) -> None:
        """End the thread."""
        self._free.put(None)
        self._thread.join()

    def _fill_all(self) -> None:
        try:
            stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
            for batch in itertools.cycle(self._batches):
                slot = self._free.get()
                if slot is None:
                    return
                self._fill(slot, batch, stream)
                self._ready.put(slot)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the batch
            self._ready.put(error)

    def _fill(self, slot: _Slot, batch: Tensor, stream: torch.cuda.Stream | None) -> None:
        if stream is None:
            slot.host.copy_(batch)
            return
        slot.used.synchronize()  # what was in it has been computed on
        slot.host.copy_(batch)
        with torch.cuda.stream(stream):
            slot.there.copy_(slot.host, non_blocking=True)
            slot.arrived.record(stream)


class Ahead:
    """Answers to batches that are known beforehand: the next one is computed while the answer to this one is read.

    Args:
        source: of the batches; closed with this.
        step: a batch on the device -> logits [B, classes].
        batch_size: B.
        device: where it computes.
    """

    def __init__(
        self, source: Feed | Resident, step: Callable[[Tensor], Tensor], batch_size: int, device: torch.device
    ) -> None:
        self._source, self._step = source, step
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        on_gpu = self._stream is not None
        self._answers = itertools.cycle(
            [
                (
                    torch.empty(batch_size, dtype=torch.int64, pin_memory=on_gpu),
                    torch.cuda.Event() if on_gpu else None,  # type: ignore[no-untyped-call]
                )
                for _ in range(2)
            ]
        )
        self._begun: tuple[Tensor, torch.cuda.Event | None] | None = None

    def answer(self) -> Tensor:
        """Return the classes [B] of the next batch, on the host, until they are overwritten two calls later."""
        classes, there = self._begun or self._begin()
        self._begun = self._begin()
        if there is not None:
            there.synchronize()
        return classes

    def close(self) -> None:
        """End the source."""
        self._source.close()

    def _begin(self) -> tuple[Tensor, torch.cuda.Event | None]:
        classes, there = next(self._answers)
        classes.copy_(self._source.through(self._step).argmax(-1), non_blocking=True)
        if there is not None:
            there.record(self._stream)
        return classes, there
