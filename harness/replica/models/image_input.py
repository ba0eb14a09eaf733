"""Images in host memory, as JPEGs or as the bytes that they decode to, on their way to a model on the device.

Each batch of bytes is copied into a page-locked buffer, from where it goes to the device on a stream of its own while the model
computes on the batches before; JPEGs are decoded there, by nvJPEG a whole batch at once, and by Pillow where there is no GPU.
One kernel makes normalised numbers of the bytes. A thread does so ahead of the model where all batches are known beforehand;
where requests come at times of their own, whoever serves them does, once they are there.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from harness.replica.errors import CannotBeMetError

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, in 0 to 1."""
SLOTS = 4
"""Buffers: one that is computed on, one that is next, one that is ready, one that is filled."""
QUALITY = 90
Step = Callable[[Tensor], Tensor]
"""A batch on the device -> what is computed of it, which may still be going on."""
Decode = Callable[[Sequence[Tensor]], Tensor]
"""JPEG files, each uint8 [bytes] in host memory -> images [B, H, W, 3], bytes on the device, there when it returns."""


class FromBytes(nn.Module):
    """Bytes [B, H, W, 3] -> normalised numbers [B, 3, pixels, pixels]; images of another size are resized, bilinear.

    The result lies in memory in ``layout``; channels last costs nothing, as the bytes lie so.
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
        numbers = torch.addcmul(self.shift, images.permute(0, 3, 1, 2), self.scale)
        if numbers.shape[-2:] != (self._pixels, self._pixels):
            numbers = interpolate(numbers, size=(self._pixels, self._pixels), mode="bilinear")
        return numbers.contiguous(memory_format=self._layout)


class Jpegs:
    """A batch of JPEG files, each uint8 [bytes] in host memory, in the place of the bytes [B, H, W, 3] that they decode to."""

    def __init__(self, files: Sequence[Tensor], shape: Sequence[int], decode: Decode) -> None:
        self.files = files
        self.shape = tuple(shape)
        self._decode = decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, part: slice) -> Jpegs:
        files = self.files[part]
        return Jpegs(files, (len(files), *self.shape[1:]), self._decode)

    def decoded(self) -> Tensor:
        """[B, H, W, 3], bytes on the device."""
        return self._decode(self.files)


def encoded(images: Tensor, decode: Decode) -> Jpegs:
    """Make files of images, bytes [B, H, W, 3] in host memory."""
    files = []
    for image in images.numpy():
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
        files.append(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8))
    return Jpegs(files, images.shape, decode)


def decoder(device: torch.device) -> Decode:
    """Return what decodes for a device.

    Raises CannotBeMetError where torchvision, through which nvJPEG is reached, is not here, of another torch, or without it.
    """
    if device.type != "cuda":
        return _by_pillow
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(files: Sequence[Tensor]) -> Tensor:
            images = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device)
            together = torch.stack(images).permute(0, 2, 3, 1)
            # The decoder's own stream writes into what is freed here, and does not wait for who still reads it.
            torch.cuda.current_stream(device).synchronize()
            return together

        decode(encoded(torch.zeros(1, 16, 16, 3, dtype=torch.uint8), _by_pillow).files)
    except (ImportError, RuntimeError) as error:  # torchvision of another torch raises RuntimeError at its import
        reason = str(error).partition("\n")[0]
        raise CannotBeMetError(
            f"WORKLOAD_OPTIONS: input jpeg decodes on the GPU by torchvision's nvJPEG, which torch {torch.__version__} cannot use here "
            f"({reason}): install the torchvision of this torch, or set input to host-uint8."
        ) from error
    return decode


def _by_pillow(files: Sequence[Tensor]) -> Tensor:
    images = [np.asarray(Image.open(io.BytesIO(file.numpy().tobytes())).convert("RGB")) for file in files]
    return torch.from_numpy(np.stack(images))


class Resident:
    """Batches that are on the device already, in turn."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._next = itertools.cycle(batches).__next__

    def through(self, step: Step, _inputs: int) -> Tensor:
        """Return what ``step`` makes of the next batch."""
        return step(self._next())


class _Slot:
    """One buffer of the ring, on the host and on the device."""

    def __init__(self, batch: Tensor | Jpegs, device: torch.device) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._there = torch.empty(batch.shape, dtype=torch.uint8, device=device)
        if self._on_gpu and isinstance(batch, Tensor):
            self._host = torch.empty_like(batch, pin_memory=True)
        if self._on_gpu:
            # Blocking: a thread that waits must not take a core from those that compute.
            self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._used = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def fill(self, batch: Tensor | Jpegs, stream: torch.cuda.Stream | None) -> None:
        """Take so many inputs as ``batch`` has, by ``stream`` where there is a GPU, once what was there has been computed on."""
        there = self._there[: len(batch)]
        if stream is None:
            there.copy_(batch if isinstance(batch, Tensor) else batch.decoded())
            return
        self._used.synchronize()
        with torch.cuda.stream(stream):
            if isinstance(batch, Tensor):
                there.copy_(self._host[: len(batch)].copy_(batch), non_blocking=True)
            else:
                there.copy_(batch.decoded())
            self._arrived.record(stream)

    def through(self, step: Step) -> Tensor:
        """Return what ``step`` makes of it."""
        if self._on_gpu:
            torch.cuda.current_stream(self._device).wait_event(self._arrived)
        results = step(self._there)
        if self._on_gpu:
            self._used.record(torch.cuda.current_stream(self._device))
        return results


class OnDemand:
    """Brings a batch to the device when it is asked for, while the model may still compute on the one before."""

    slots = 2

    def __init__(self, batches: Sequence[Tensor] | Sequence[Jpegs], device: torch.device) -> None:
        self._in_turn: Iterator[Tensor | Jpegs] = itertools.cycle(batches)
        self._slots = deque(_Slot(batches[0], device) for _ in range(self.slots))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def through(self, step: Step, inputs: int) -> Tensor:
        """Return what ``step`` makes of a batch whose first ``inputs`` are new."""
        slot = self._slots[0]
        self._slots.rotate(-1)
        slot.fill(next(self._in_turn)[:inputs], self._stream)
        return slot.through(step)


class Feed(OnDemand):
    """Brings batches to the device ahead of whoever computes on them, by a thread."""

    slots = SLOTS

    def __init__(self, batches: Sequence[Tensor] | Sequence[Jpegs], device: torch.device) -> None:
        super().__init__(batches, device)
        self._thread = ThreadPoolExecutor(1, "image-feed")
        self._filled = deque(self._thread.submit(self._fill, slot) for slot in self._slots)

    def through(self, step: Step, _inputs: int) -> Tensor:
        """Return what ``step`` makes of the next batch. Raises what the feeding thread raised."""
        slot = self._filled.popleft().result()
        results = slot.through(step)
        self._filled.append(self._thread.submit(self._fill, slot))
        return results

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _fill(self, slot: _Slot) -> _Slot:
        slot.fill(next(self._in_turn), self._stream)
        return slot


class AwaitedClasses:
    """Classes of batches, which are awaited while the next one is computed; ``source`` is closed with this."""

    def __init__(self, source: Resident | OnDemand, batch_size: int, device: torch.device) -> None:
        self._source = source
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        on_gpu = self._stream is not None
        classes = [torch.empty(batch_size, dtype=torch.int64, pin_memory=on_gpu) for _ in range(2)]
        events = [torch.cuda.Event() if on_gpu else None for _ in classes]  # type: ignore[no-untyped-call]
        self._buffers = itertools.cycle(zip(classes, events, strict=True))
        self._begun: Callable[[], Tensor] | None = None

    def begin(self, step: Step, inputs: int) -> Callable[[], Tensor]:
        """Begin to compute the logits [B, classes] of the next batch.

        Returns what waits for its classes [B] on the host, which are overwritten by the second batch after it.
        """
        classes, there = next(self._buffers)
        computed = self._source.through(step, inputs).argmax(-1)
        classes[: len(computed)].copy_(computed, non_blocking=True)
        if there is not None:
            there.record(self._stream)

        def wait() -> Tensor:
            if there is not None:
                there.synchronize()
            return classes

        return wait

    def next(self, step: Step, inputs: int) -> Tensor:
        """Return the classes of the next batch, as ``begin``; the one after it is begun before."""
        wait = self._begun or self.begin(step, inputs)
        self._begun = self.begin(step, inputs)
        return wait()

    def close(self) -> None:
        """End the thread of a feed."""
        if isinstance(self._source, Feed):
            self._source.close()
