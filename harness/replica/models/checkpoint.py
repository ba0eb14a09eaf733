"""Weights: from a local checkpoint, or random ones from a seed. Nothing is ever downloaded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from harness.replica.errors import CannotBeMetError
from harness.replica.models.execution import DTYPES
from harness.replica.models.layers import fill_randomly
from harness.replica.settings import Settings

_FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_NAMED_AT_MOST = 4

M = TypeVar("M", bound=nn.Module)
Number = Annotated[int, Field(gt=0, strict=True)]


class ModelShape(BaseModel):
    """The numbers of one model size; an alias is what ``config.json`` calls one."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


S = TypeVar("S", bound=ModelShape)


def build(make_model: Callable[[], M], settings: Settings, device: torch.device, *, training: bool = False) -> M:
    """Return the model on ``device``: ready for inference in the settings' precision, or ready to be trained in fp32.

    ``make_model`` makes it of the layers of ``harness.replica.models.layers``. Raises CannotBeMetError when the
    checkpoint is not one of this model.
    """
    with torch.no_grad():
        model = make_model()
        if settings.checkpoint:
            _load_into(model, read_state(settings.checkpoint), settings.checkpoint)
        else:
            fill_randomly(model, settings.seed)
    if training:
        return model.train().to(device)
    return model.eval().requires_grad_(requires_grad=False).to(device=device, dtype=DTYPES[settings.precision])


def shape_of(settings: Settings, sizes: Mapping[str, S]) -> S:
    """Return the numbers of the ``model_size`` asked for, or of the checkpoint's ``config.json`` where there is one.

    Raises CannotBeMetError when ``config.json`` cannot be read, or says something else than positive whole numbers.
    """
    shape = settings.choice_of("model_size", sizes, "base")
    config = dict(_read_config(settings.checkpoint))
    if isinstance(labels := config.get("id2label"), dict):
        config["classes"] = len(labels)
    try:
        return type(shape).model_validate({**shape.model_dump(), **config})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise CannotBeMetError(
            f"CHECKPOINT: config.json says {name} = {config.get(name)!r}; positive whole numbers are needed."
        ) from None


def _read_config(source: Path | None) -> Mapping[str, Any]:
    """``config.json`` of a checkpoint's folder; empty for a single file and without a checkpoint."""
    if not source or not (source / "config.json").is_file():
        return {}
    path = source / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotBeMetError(f"CHECKPOINT: cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CannotBeMetError(f"CHECKPOINT: {path} holds no JSON object.")
    return config


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a folder, a ``.safetensors`` file or a file of ``torch.save``; no code in it is run."""
    file = next((path / name for name in _FOLDER_FILES if (path / name).is_file()), path)
    if file.is_dir():
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
