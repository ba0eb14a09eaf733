"""The settings of one replica, as its workload is given them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from harness.replica.errors import SettingError
from harness.spec.model import nearest
from harness.spec.replica import ReplicaPlace, ReplicaSpec, read_environment
from harness.spec.scenario import ScenarioSpec

OptionValue = str | int | float | bool
T = TypeVar("T", str, int, bool)
C = TypeVar("C")
_SERVER = "harness.replica.engine.workload:make"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one replica runs, flat, for workloads of anybody's own, too; what each of it means says ``harness.spec.replica``.

    ``replica`` is an index; it varies the synthetic inputs, never the weights.
    """

    workload: str = "resnet50"
    batch_size: int = 1
    precision: str = "fp32"
    execution: str = "eager"
    device: str = "auto"
    stream_priority: str | None = None
    seed: int = 0
    checkpoint: Path | None = None
    inference_sleep_s: float = 0.0
    warmup_requests: int = 5
    torch_threads: int | None = None
    shared_cpus: int | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    scenario: ScenarioSpec | None = None
    trace: bool = False
    host: str = ReplicaPlace().host
    port: int = 8000
    replica: int = 0
    cpus: tuple[int, ...] | None = None
    replica_dir: Path | None = None
    loads: bool = False
    sharing: str | None = None
    run_s: float | None = None
    linger_s: float = 0.0
    spec: ReplicaSpec | None = None

    def option(self, name: str, default: T) -> T:
        """Return option ``name``, of the kind of its default. Raises SettingError on another kind."""
        value = self.options.get(name, default)
        if type(value) is not type(default):
            raise SettingError(
                f"WORKLOAD_OPTIONS: {name} must be a {type(default).__name__}, e.g. {json.dumps(default)}, not {value!r}."
            )
        return value

    def whole(self, name: str, default: int, least: int, most: int | None = None) -> int:
        """Return option ``name``, a whole number in a range. Raises SettingError for anything else."""
        value = self.option(name, default)
        if value < least or (most is not None and value > most):
            wanted = f"{least} or more" if most is None else f"between {least} and {most}"
            raise SettingError(f"WORKLOAD_OPTIONS: {name} {value} is not {wanted}.")
        return value

    def number(self, name: str, default: float) -> float:
        """Return option ``name``, a number that is not negative. Raises SettingError for anything else."""
        value = self.options.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise SettingError(f"WORKLOAD_OPTIONS: {name} must be a number, e.g. {default:g}, not {value!r}.")
        return float(value)

    def choice_of(self, name: str, choices: Mapping[str, C], default: str) -> C:
        """Return what option ``name`` chooses. Raises SettingError when it is none of the choices."""
        value = self.option(name, default)
        if value not in choices:
            raise SettingError(f"WORKLOAD_OPTIONS: {name} {value!r} is not one of {', '.join(choices)}.")
        return choices[value]

    def known_options(self, *names: str) -> None:
        """Raise SettingError when an option is none of ``names``."""
        for given in self.options:
            if given not in names:
                raise SettingError(
                    f"WORKLOAD_OPTIONS: workload {self.workload} has no option {given!r}; {nearest(given, names)}"
                )


_DEFAULT = Settings()
_FACTS = ("batch_size", "precision", "execution")
_MAY_BE_IGNORED = {
    **{name: name for name in (*_FACTS, "stream_priority", "seed", "checkpoint")},
    "torch_threads": "threads",
    "shared_cpus": "shared_cpus",
}
"""By attribute, the campaign file's name."""


class ReadSettings(Settings):
    """Settings that know which of them were read: a workload of somebody's own may ignore any."""

    def __init__(self, settings: Settings) -> None:
        options = _ReadOptions(settings.options)
        for name, value in (("_given", settings), ("_read", set()), ("_options", options)):
            object.__setattr__(self, name, value)
        super().__init__(**{own.name: getattr(settings, own.name) for own in fields(settings)} | {"options": options})

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._read.add(name)
        return super().__getattribute__(name)

    def ignored(self, described: Mapping[str, object]) -> dict[str, object]:
        """Facts for ``replica.json``: settings that were given and had no effect, and null for what nobody knows.

        What the workload ``described`` as running has the last word.
        """
        given, read = self._given, self._read | ({"batch_size"} if self._given.scenario else set())
        ignored = [
            in_file
            for name, in_file in _MAY_BE_IGNORED.items()
            if (value := getattr(given, name)) != getattr(_DEFAULT, name)
            and (described[name] != value if name in described else name not in read)
        ]
        ignored += [f"options.{name}" for name in given.options if name not in self._options.read]
        unknown = [name for name in _FACTS if name not in read and name not in described]
        return {**dict.fromkeys(unknown), "ignored_settings": ignored}


class _ReadOptions(dict[str, OptionValue]):
    """Options that know which of them were read; whoever goes through all of them has read all."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        super().__init__(options)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> OptionValue:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.keys())
        return super().__iter__()

    def items(self) -> Any:
        self.read.update(self.keys())
        return super().items()


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings; an unset or empty variable takes its default. Raises SettingError."""
    try:
        spec, place = read_environment(environment)
    except ValueError as error:
        raise SettingError(str(error)) from None
    workload = spec.workload
    named_alike = {
        setting.name: getattr(model, setting.name)
        for model in (workload, place)
        for setting in fields(Settings)
        if setting.name in type(model).model_fields
    }
    return Settings(
        **named_alike
        | {
            "workload": _SERVER if workload.server else workload.target,
            "checkpoint": Path(workload.checkpoint) if workload.checkpoint else None,
            "torch_threads": workload.threads,
            "spec": spec,
        }
    )
