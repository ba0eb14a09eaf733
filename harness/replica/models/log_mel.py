"""Whisper's front end: sound to log-mel spectrogram, equal to the `transformers` feature extractor's.

16 kHz, windows of 25 ms every 10 ms, mel bands on Slaney's scale (Auditory Toolbox, 1998), 30 s a clip.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SAMPLE_RATE_HZ = 16_000
CLIP_SAMPLES = 30 * SAMPLE_RATE_HZ
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
CLIP_FRAMES = CLIP_SAMPLES // HOP_SAMPLES

# Slaney's scale: linear to 1 kHz (15 mel), then logarithmic with 27 steps to a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27.0


class LogMel:
    """Turns batches of sound into what Whisper's encoder reads, on one device."""

    def __init__(self, bands: int, device: torch.device) -> None:
        self._filters = mel_filters(bands).to(device)
        self._window = torch.hann_window(WINDOW_SAMPLES, periodic=True, device=device)

    def __call__(self, sound: Tensor) -> Tensor:
        """[B, samples] at 16 kHz, at most 30 s, float32 -> [B, bands, 3000], float32."""
        padded = torch.nn.functional.pad(sound, (0, CLIP_SAMPLES - sound.shape[-1]))
        spectrum = torch.stft(
            padded, WINDOW_SAMPLES, HOP_SAMPLES, window=self._window, center=True, return_complex=True
        )
        power = spectrum[..., :-1].abs().square()
        levels = (self._filters @ power).clamp_min(1e-10).log10()
        floor = levels.amax(dim=(-2, -1), keepdim=True) - 8.0
        return (levels.maximum(floor) + 4.0) / 4.0


def mel_filters(bands: int) -> Tensor:
    """Return triangular filters of equal area, [bands, 201] over 0 to 8 kHz, float32."""
    bins_hz = torch.linspace(0, SAMPLE_RATE_HZ / 2, WINDOW_SAMPLES // 2 + 1, dtype=torch.float64)
    edges_mel = torch.linspace(0.0, _mel(SAMPLE_RATE_HZ / 2), bands + 2, dtype=torch.float64)
    edges_hz = torch.tensor([_hz(mel) for mel in edges_mel.tolist()], dtype=torch.float64)
    low, centre, high = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    triangles = rising.minimum(falling).clamp_min(0.0)
    return (triangles * 2.0 / (high - low)).float()


def _mel(frequency_hz: float) -> float:
    if frequency_hz < _LOG_FROM_HZ:
        return frequency_hz / _LINEAR_HZ_PER_MEL
    return _LOG_FROM_MEL + math.log(frequency_hz / _LOG_FROM_HZ) / _LOG_STEP


def _hz(mel: float) -> float:
    if mel < _LOG_FROM_MEL:
        return mel * _LINEAR_HZ_PER_MEL
    return _LOG_FROM_HZ * math.exp(_LOG_STEP * (mel - _LOG_FROM_MEL))
