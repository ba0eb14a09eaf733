"""Whisper speech-to-text (the base size: 72,593,920 parameters) over synthetic clips of 3, 5 and 7 s.

The network of Radford et al. 2022. Tensors are named as in the `transformers` library's
``WhisperForConditionalGeneration``, whose checkpoints load as they are. One request is the whole way from sound
to tokens: log-mel front end, encoder, and a fixed number of greedily chosen tokens (the end-of-text token is
never chosen), so that every request is the same amount of work. Keys and values live in tensors of a fixed
size, so that the same code runs eagerly, compiled and as CUDA graphs.
"""

from __future__ import annotations

import itertools
import math
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import gelu

from harness.replica.models import checkpoint, execution
from harness.replica.models.checkpoint import ModelShape, Number
from harness.replica.models.layers import Attention, Conv1d, Embedding, Linear
from harness.replica.settings import Settings

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
CLIPS_S = (3, 5, 7)
# Start of transcript, English, transcribe, no timestamps.
_MULTILINGUAL_PROMPT = (50_258, 50_259, 50_359, 50_363)
_MULTILINGUAL_VOCABULARY = 51_865


class WhisperShape(ModelShape):
    """The numbers of one model size."""

    width: Number = Field(validation_alias="d_model")
    hidden: Number = Field(validation_alias="encoder_ffn_dim")
    heads: Number = Field(validation_alias="encoder_attention_heads")
    layers: Number = Field(validation_alias="encoder_layers")
    vocabulary: Number = Field(validation_alias="vocab_size")
    bands: Number = Field(validation_alias="num_mel_bins", default=80)
    positions: Number = Field(validation_alias="max_target_positions")
    prompt: tuple[int, ...]
    end_token: int = Field(validation_alias="eos_token_id", ge=0, strict=True)
    start_token: Number | None = Field(validation_alias="decoder_start_token_id", default=None)


SIZES = {
    "base": WhisperShape(
        width=512,
        hidden=2048,
        heads=8,
        layers=6,
        vocabulary=_MULTILINGUAL_VOCABULARY,
        positions=448,
        prompt=_MULTILINGUAL_PROMPT,
        end_token=50_257,
    ),
    # For tests and quick starts: the same code at a thousandth of the work; no size of the published models.
    "tiny": WhisperShape(
        width=32, hidden=64, heads=2, layers=2, vocabulary=1000, positions=64, prompt=(1, 2, 3, 4), end_token=0
    ),
}
_ATTENTION = {"key": "k_proj", "value": "v_proj", "query": "q_proj", "out": "out_proj"}


class WhisperLayer(nn.Module):
    """Attentions, each with its norm before it, and a feed-forward."""

    attentions: tuple[str, ...] = ("self_attn",)
    self_attn: Attention
    self_attn_layer_norm: nn.LayerNorm
    encoder_attn: Attention
    encoder_attn_layer_norm: nn.LayerNorm

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        for name in self.attentions:
            self.add_module(name, Attention(shape.width, shape.heads, _ATTENTION, key_bias=False))
            self.add_module(f"{name}_layer_norm", nn.LayerNorm(shape.width))
        self.fc1 = Linear(shape.width, shape.hidden)
        self.fc2 = Linear(shape.hidden, shape.width)
        self.final_layer_norm = nn.LayerNorm(shape.width)

    def fed(self, x: Tensor) -> Tensor:
        """What the feed-forward makes of [B, T, width], added to it."""
        return x + self.fc2(gelu(self.fc1(self.final_layer_norm(x))))


class EncoderLayer(WhisperLayer):
    """Self-attention over the whole clip, and a feed-forward."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1500, width] -> [B, 1500, width]."""
        return self.fed(x + self.self_attn(self.self_attn_layer_norm(x)))


class Encoder(nn.Module):
    """Log-mel frames to states, half as many."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.conv1 = Conv1d(shape.bands, shape.width, kernel_size=3, padding=1)
        self.conv2 = Conv1d(shape.width, shape.width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = Embedding(CLIP_FRAMES // 2, shape.width)
        self.layers = nn.Sequential(*(EncoderLayer(shape) for _ in range(shape.layers)))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, bands, 3000] -> [B, 1500, width]."""
        x = gelu(self.conv2(gelu(self.conv1(mel)))).transpose(1, 2)
        return self.layer_norm(self.layers(x + self.embed_positions.weight))


class Memory:
    """Keys and values of every decoder layer: of the text so far, and of the clip."""

    def __init__(self, shape: WhisperShape, batch_size: int, text_tokens: int, model: nn.Module) -> None:
        like = next(model.parameters())
        heads = (shape.layers, 2, batch_size, shape.heads)
        self.text = like.new_zeros(*heads, text_tokens, shape.width // shape.heads)
        self.clip = like.new_zeros(*heads, CLIP_FRAMES // 2, shape.width // shape.heads)
        self.positions = torch.arange(text_tokens, device=like.device)


class DecoderLayer(WhisperLayer):
    """Attention to the text so far and to the clip, and a feed-forward."""

    attentions = ("self_attn", "encoder_attn")

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, text: Tensor, clip: Tensor) -> Tensor:
        """[B, T, width] -> [B, T, width]; writes the keys and values of ``positions`` [T] into ``text``."""
        normal = self.self_attn_layer_norm(x)
        for kept, new in zip(text, self.self_attn.keys_values(normal), strict=True):
            kept.index_copy_(2, positions, new)
        x = x + self.self_attn(normal, (text[0], text[1]), mask)
        return self.fed(x + self.encoder_attn(self.encoder_attn_layer_norm(x), (clip[0], clip[1])))


class Decoder(nn.Module):
    """Tokens so far, and the clip, to states."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.embed_tokens = Embedding(shape.vocabulary, shape.width)
        self.embed_positions = Embedding(shape.positions, shape.width)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """[B, T] at positions [T] -> [B, T, width]."""
        x = self.embed_tokens(tokens) + self.embed_positions(positions)
        mask = memory.positions <= positions[:, None]
        for index, layer in enumerate(self.layers):
            x = layer(x, positions, mask, memory.text[index], memory.clip[index])
        return self.layer_norm(x)


class EncoderDecoder(nn.Module):
    """Both halves, under the name that checkpoints give them."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape)


class Whisper(nn.Module):
    """The whole network; the output matrix is the table of tokens."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.model = EncoderDecoder(shape)
        self.end_token = shape.end_token

    def listen(self, mel: Tensor, memory: Memory) -> Tensor:
        """[B, bands, 3000] -> [B, 1500, width]; writes the clip's keys and values into ``memory``."""
        states: Tensor = self.model.encoder(mel)
        for layer, clip in zip(cast("list[DecoderLayer]", self.model.decoder.layers), memory.clip, strict=True):
            for kept, new in zip(clip, layer.encoder_attn.keys_values(states), strict=True):
                kept.copy_(new)
        return states

    def next_token(self, tokens: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """[B, T] at positions [T] -> the likeliest token after the last one, [B]."""
        last = self.model.decoder(tokens, positions, memory)[:, -1]
        logits = last @ self.model.decoder.embed_tokens.weight.T
        logits[:, self.end_token] = -math.inf
        return logits.argmax(-1)


class WhisperWorkload(execution.PoolWorkload):
    """Transcribes synthetic sound, one batch of clips of the same length a request."""

    def __init__(self, settings: Settings) -> None:
        shape = _shape(settings)
        new_tokens = settings.whole("new_tokens", 24, 1, shape.positions - len(shape.prompt))
        device = execution.prepare_device(settings)
        model = checkpoint.build(lambda: Whisper(shape), settings, device)
        generator, clips_s = execution.input_generator(settings), itertools.cycle(CLIPS_S)
        pool = execution.input_pool(
            lambda: synthetic_speech(settings.batch_size, next(clips_s), generator), device, batches=len(CLIPS_S)
        )
        super().__init__(model, pool, settings, device)
        self._log_mel = LogMel(shape.bands, device)
        self._dtype = execution.DTYPES[settings.precision]
        self._prompt = torch.tensor([shape.prompt] * settings.batch_size, device=device)
        positions = torch.arange(len(shape.prompt) + new_tokens, device=device)
        self._prompt_positions = positions[: len(shape.prompt)]
        self._positions = list(positions[len(shape.prompt) :, None])
        self._tokens = torch.zeros(settings.batch_size, new_tokens, dtype=torch.long, device=device)
        memory = Memory(shape, settings.batch_size, len(positions), model)
        mel = torch.zeros(settings.batch_size, shape.bands, CLIP_FRAMES, device=device, dtype=self._dtype)
        step = (self._tokens[:, :1], self._positions[0])

        def listen(mel: Tensor) -> Tensor:
            return model.listen(mel, memory)

        def next_token(tokens: Tensor, positions: Tensor) -> Tensor:
            return model.next_token(tokens, positions, memory)

        self._listen = execution.accelerate(listen, (mel,), settings, device)
        self._first_token = execution.accelerate(next_token, (self._prompt, self._prompt_positions), settings, device)
        self._next_token = execution.accelerate(next_token, step, settings, device)

    def answer(self, inputs: Tensor) -> Tensor:
        """Sound [B, samples] on the host -> tokens [B, new_tokens] on the host."""
        mel = self._log_mel(inputs.to(self._device, non_blocking=True))
        self._listen(mel.to(self._dtype))
        tokens = self._tokens
        tokens[:, 0] = self._first_token(self._prompt, self._prompt_positions)
        for index in range(1, tokens.shape[1]):
            tokens[:, index] = self._next_token(tokens[:, index - 1 : index], self._positions[index - 1])
        return tokens.cpu()


def synthetic_speech(batch_size: int, duration_s: int, generator: torch.Generator) -> Tensor:
    """Return [B, duration x 16,000]: a voice's harmonics that swell like syllables, in a little noise."""
    time_s = torch.arange(duration_s * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    pitch_hz = 90 + 130 * torch.rand(batch_size, 1, generator=generator)
    harmonics = torch.arange(1, 9).view(-1, 1, 1)
    voice = (torch.sin(2 * math.pi * pitch_hz * harmonics * time_s) / harmonics).sum(0)
    syllables = torch.sin(2 * math.pi * 2.0 * time_s).clamp_min(0.0)
    return 0.1 * voice * syllables + 0.003 * torch.randn(batch_size, len(time_s), generator=generator)


def _shape(settings: Settings) -> WhisperShape:
    """A checkpoint of another vocabulary, or of one language, begins its text with its own start token alone."""
    shape = checkpoint.shape_of(settings, SIZES)
    if shape.start_token and shape.vocabulary != _MULTILINGUAL_VOCABULARY:
        return shape.model_copy(update={"prompt": (shape.start_token,)})
    return shape


class LogMel:
    """Turns batches of sound into what Whisper's encoder reads, equal to the `transformers` feature extractor's.

    16 kHz, windows of 25 ms every 10 ms, mel bands on Slaney's scale (Auditory Toolbox, 1998), 30 s a clip.
    """

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
    last_mel = _LOG_FROM_MEL + math.log(SAMPLE_RATE_HZ / 2 / _LOG_FROM_HZ) / _LOG_STEP
    edges_mel = torch.linspace(0.0, last_mel, bands + 2, dtype=torch.float64)
    edges_hz = torch.tensor([_hz(mel) for mel in edges_mel.tolist()], dtype=torch.float64)
    low, centre, high = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising = (bins_hz - low) / (centre - low)
    falling = (high - bins_hz) / (high - centre)
    triangles = rising.minimum(falling).clamp_min(0.0)
    return (triangles * 2.0 / (high - low)).float()


def _hz(mel: float) -> float:
    if mel < _LOG_FROM_MEL:
        return mel * _LINEAR_HZ_PER_MEL
    return _LOG_FROM_HZ * math.exp(_LOG_STEP * (mel - _LOG_FROM_MEL))


make = WhisperWorkload
