"""Weights: from a local checkpoint, or random ones from a seed. Nothing is ever downloaded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from harness.replica.errors import CannotBeMetError
from harness.replica.models.execution import DTYPES
from harness.replica.models.layers import fill_randomly
from harness.replica.settings import Settings

_FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_NAMED_AT_MOST = 4

M = TypeVar("M", bound=nn.Module)


def build(make_model: Callable[[], M], settings: Settings, device: torch.device) -> M:
    """Return the model on ``device`` in the settings' precision, ready for inference.

    Args:
        make_model: makes it of the layers of ``harness.replica.models.layers``.
        settings: seed or checkpoint, and precision.
        device: where it goes.

    Raises:
        CannotBeMetError: the checkpoint is not one of this model.
    """
    model = _filled(make_model, settings)
    return model.eval().requires_grad_(requires_grad=False).to(device=device, dtype=DTYPES[settings.precision])


def build_for_training(make_model: Callable[[], M], settings: Settings, device: torch.device) -> M:
    """Return the model on ``device`` with fp32 weights, ready to be trained. Raises as ``build`` does."""
    return _filled(make_model, settings).train().to(device)


@torch.no_grad()
def _filled(make_model: Callable[[], M], settings: Settings) -> M:
    model = make_model()
    if settings.checkpoint:
        _load_into(model, read_state(settings.checkpoint), settings.checkpoint)
    else:
        fill_randomly(model, settings.seed)
    return model


def read_config(settings: Settings) -> Mapping[str, object]:
    """Return ``config.json`` of a checkpoint folder; empty for a single file and without a checkpoint."""
    if not settings.checkpoint or not (settings.checkpoint / "config.json").is_file():
        return {}
    path = settings.checkpoint / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotBeMetError(f"CHECKPOINT: cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CannotBeMetError(f"CHECKPOINT: {path} holds no JSON object.")
    return config


def config_int(config: Mapping[str, object], name: str, default: int) -> int:
    """Return a whole number of ``config.json``. Raises CannotBeMetError when it is something else."""
    value = config.get(name, default)
    if type(value) is not int or value < 1:
        raise CannotBeMetError(f"CHECKPOINT: config.json says {name} = {value!r}; a positive whole number is needed.")
    return value


def config_ints(config: Mapping[str, object], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of whole numbers of ``config.json``. Raises CannotBeMetError when it is something else."""
    values = config.get(name, list(default))
    if not isinstance(values, list) or not all(type(value) is int and value > 0 for value in values):
        raise CannotBeMetError(f"CHECKPOINT: config.json says {name} = {values!r}; positive whole numbers are needed.")
    return tuple(values)


def config_classes(config: Mapping[str, object], default: int) -> int:
    """Return how many classes ``config.json`` names."""
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, dict) else default


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a folder, a ``.safetensors`` file or a file of ``torch.save``; no code in it is run."""
    file = path
    if path.is_dir():
        file = next((path / name for name in _FOLDER_FILES if (path / name).is_file()), path)
        if file == path:
            raise CannotBeMetError(f"CHECKPOINT: folder {path} holds none of {', '.join(_FOLDER_FILES)}.")
    if not file.is_file():
        raise CannotBeMetError(f"CHECKPOINT: there is no file or folder {path}.")
    try:
        state = _read(file)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        first_line = str(error).partition("\n")[0]
        raise CannotBeMetError(f"CHECKPOINT: {file} is not a readable checkpoint: {first_line}") from error
    for wrapper in _WRAPPERS:
        inner = state.get(wrapper)
        if isinstance(inner, dict):
            state = inner
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _read(file: Path) -> dict[str, object]:
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(file))
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, not a state dict")  # noqa: TRY004 - bad data, no bug
    return state


def _load_into(model: nn.Module, state: dict[str, Tensor], source: Path) -> None:
    expected = model.state_dict()
    # Counters of training steps; some savers keep them, and inference reads none.
    needed = {name for name in expected if not name.endswith("num_batches_tracked")}
    missing = sorted(needed - state.keys())
    wrong = sorted(name for name in needed & state.keys() if state[name].shape != expected[name].shape)
    if missing or wrong:
        problems = [f"lacks {len(missing)} tensors ({', '.join(missing[:_NAMED_AT_MOST])})"] if missing else []
        problems += [
            f"{name} is {tuple(state[name].shape)}, not {tuple(expected[name].shape)}"
            for name in wrong[:_NAMED_AT_MOST]
        ]
        raise CannotBeMetError(f"CHECKPOINT: {source} is not one of this model: it {'; '.join(problems)}.")
    model.load_state_dict({name: state[name] for name in needed}, strict=False)
