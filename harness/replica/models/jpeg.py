"""Images as JPEG files in host memory: decoded on the GPU by nvJPEG, a whole batch at once, and by Pillow where there is no GPU."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from harness.replica.errors import CannotBeMetError

QUALITY = 90
Decode = Callable[[Sequence[Tensor]], Tensor]
"""JPEG files, each uint8 [bytes] in host memory -> images [B, H, W, 3], bytes on the device, there when it returns."""


class Jpegs:
    """A batch of JPEG files in the place of its bytes.

    Args:
        files: each uint8 [bytes] in host memory; all of images of one size.
        shape: of what they decode to, [B, H, W, 3].
    """

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

    Raises:
        CannotBeMetError: for a GPU nvJPEG is reached through torchvision, which is not here, is of another torch, or is built without it.
    """
    if device.type != "cuda":
        return _by_pillow
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(files: Sequence[Tensor]) -> Tensor:
            images = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device)
            found = torch.stack(images).permute(0, 2, 3, 1)
            # The decoder's own stream writes into what is freed here, and does not wait for who still reads it.
            torch.cuda.current_stream(device).synchronize()
            return found

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
