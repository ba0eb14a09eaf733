"""The settings of one replica, read from its environment."""

from __future__ import annotations

import difflib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from harness.replica.errors import SettingError
from harness.replica.scenario import Scenario, parse_scenario

PRECISIONS = ("fp32", "fp16", "bf16")
EXECUTIONS = ("eager", "compiled", "cuda-graph")
DEVICES = ("auto", "cpu", "cuda")
STREAM_PRIORITIES = ("high", "low")

OptionValue = str | int | float | bool
T = TypeVar("T", str, int, bool)
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Settings:
    """What one replica runs; every field is an environment variable of the same name unless it says otherwise.

    Attributes:
        workload: built-in name, or ``module:factory``.
        batch_size: inputs in one request.
        precision: number format of weights and activations: fp32, fp16 or bf16.
        execution: eager, compiled (torch.compile) or cuda-graph.
        device: auto (a GPU where there is one), cpu, or cuda (demanded).
        stream_priority: high or low, of the CUDA stream that everything runs on; None: torch's default stream.
        seed: of random weights and synthetic inputs.
        checkpoint: folder or file with local weights; None: random weights from the seed.
        inference_sleep_s: pause between two requests, in seconds (``INFERENCE_SLEEP``).
        warmup_requests: requests before the replica counts; they are not measured.
        torch_threads: CPU threads; None: torch's own choice.
        shared_cpus: CPUs that all replicas share where there is no GPU; None: all that there are.
        options: JSON object, for the workload itself (``WORKLOAD_OPTIONS``).
        host: address that ``/metrics`` listens on.
        port: its port; 0: any free one.
        replica: index; it varies the synthetic inputs, never the weights. Unset, a number made of ``REPLICA_NAME``.
        cpus: that it pins itself to, of the machine's numbers (``REPLICA_CPUS``); None: any.
        replica_dir: folder of ``replica.json`` and ``latencies.bin``; None: neither is written.
        run_s: seconds to serve before it ends by itself (``RUN_SECONDS``); None: until a signal.
        linger_s: seconds it then stays to be asked for what it wrote, serving nothing (``LINGER_SECONDS``).
        scenario: JSON object, how requests come; None: in a closed loop.
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
    host: str = "0.0.0.0"  # noqa: S104 - a pod is scraped from outside; the local backend passes 127.0.0.1
    port: int = 8000
    replica: int = 0
    cpus: tuple[int, ...] | None = None
    replica_dir: Path | None = None
    run_s: float | None = None
    linger_s: float = 0.0
    scenario: Scenario | None = None

    def option(self, name: str, default: T) -> T:
        """Return option ``name``, of the kind of its default. Raises SettingError on another kind."""
        value = self.options.get(name, default)
        if type(value) is not type(default):
            raise SettingError(
                f"WORKLOAD_OPTIONS: {name} must be a {type(default).__name__}, e.g. {json.dumps(default)}, not {value!r}."
            )
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
                    f"WORKLOAD_OPTIONS: workload {self.workload} has no option {given!r}{_hint(given, names)}"
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
    """Settings that know which of them were read: a workload of somebody's own may ignore any.

    Args:
        settings: the same as these.
    """

    def __init__(self, settings: Settings) -> None:
        options = _ReadOptions(settings.options)
        for name, value in (("_given", settings), ("_read", set()), ("_options", options)):
            object.__setattr__(self, name, value)
        super().__init__(
            **{each.name: getattr(settings, each.name) for each in fields(settings)} | {"options": options}
        )

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._read.add(name)
        return super().__getattribute__(name)

    def ignored(self, described: Mapping[str, object]) -> dict[str, object]:
        """Facts for ``replica.json``: settings that were given and had no effect, and nothing said of what nobody knows.

        Args:
            described: what the workload says that it runs; it has the last word.
        """
        given, read = self._given, self._read | ({"batch_size"} if self._given.scenario else set())
        ignored = [
            in_file
            for name, in_file in _MAY_BE_IGNORED.items()
            if (value := getattr(given, name)) != getattr(_DEFAULT, name)
            and (described[name] != value if name in described else name not in read)
        ]
        ignored += [f"options.{name}" for name in given.options if name not in self._options.asked]
        unknown = [name for name in _FACTS if name not in read and name not in described]
        return {**dict.fromkeys(unknown), "ignored_settings": ignored}


class _ReadOptions(dict[str, OptionValue]):
    """Options that know which of them were asked for; whoever goes through all of them has seen all."""

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        super().__init__(options)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> OptionValue:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self.asked.update(self.keys())
        return super().__iter__()

    def items(self) -> Any:
        self.asked.update(self.keys())
        return super().items()


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings; an unset or empty variable takes its default. Raises SettingError."""
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    default = Settings()
    return Settings(
        workload=given.get("WORKLOAD", default.workload),
        batch_size=_integer(given, "BATCH_SIZE", default.batch_size, minimum=1),
        precision=_choice(given, "PRECISION", PRECISIONS, default.precision),
        execution=_choice(given, "EXECUTION", EXECUTIONS, default.execution),
        device=_choice(given, "DEVICE", DEVICES, default.device),
        stream_priority=_choice(given, "STREAM_PRIORITY", STREAM_PRIORITIES, "")
        if "STREAM_PRIORITY" in given
        else None,
        seed=_integer(given, "SEED", default.seed, maximum=2**63 - 1),
        checkpoint=_path(given, "CHECKPOINT"),
        inference_sleep_s=_seconds(given, "INFERENCE_SLEEP", default.inference_sleep_s),
        warmup_requests=_integer(given, "WARMUP_REQUESTS", default.warmup_requests),
        torch_threads=_integer(given, "TORCH_THREADS", 0, minimum=1) if "TORCH_THREADS" in given else None,
        shared_cpus=_integer(given, "SHARED_CPUS", 0, minimum=1) if "SHARED_CPUS" in given else None,
        options=_options(given),
        host=given.get("HOST", default.host),
        port=_integer(given, "PORT", default.port, maximum=65_535),
        replica=_integer(given, "REPLICA", _number_of(given.get("REPLICA_NAME", ""))),
        cpus=_numbers(given, "REPLICA_CPUS") if "REPLICA_CPUS" in given else None,
        replica_dir=_path(given, "REPLICA_DIR"),
        run_s=_seconds(given, "RUN_SECONDS", 0.0) if "RUN_SECONDS" in given else None,
        linger_s=_seconds(given, "LINGER_SECONDS", default.linger_s),
        scenario=_scenario(given, "SCENARIO"),
    )


def _number_of(name: str) -> int:
    """Pods of one Deployment share their settings and differ in name alone; their inputs shall differ, too."""
    return zlib.crc32(name.encode()) % 2**31


def _hint(given: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; it takes {', '.join(known) or 'none'}."


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in choices:
        raise SettingError(f"{name}: {value!r} is not one of {', '.join(choices)}.")
    return value


def _integer(given: Mapping[str, str], name: str, default: int, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    text = given.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        raise SettingError(f"{name}: {text!r} is not a whole number.") from None
    if name in given and not minimum <= value <= maximum:
        raise SettingError(f"{name}: {value} is not between {minimum} and {maximum}.")
    return value


def _numbers(given: Mapping[str, str], name: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(text) for text in given[name].split(",")}))
    except ValueError:
        raise SettingError(f"{name}: {given[name]!r} is not a list of numbers, e.g. 0,1,8.") from None


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        raise SettingError(f"{name}: {text!r} is not a number of seconds.") from None
    if not (math.isfinite(value) and value >= 0):
        raise SettingError(f"{name}: {text} is not a number of seconds, 0 or more.")
    return value


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]) if name in given else None


def _scenario(given: Mapping[str, str], name: str) -> Scenario | None:
    return parse_scenario(given[name]) if name in given else None


def _options(given: Mapping[str, str]) -> dict[str, OptionValue]:
    text = given.get("WORKLOAD_OPTIONS", "{}")
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingError(f"WORKLOAD_OPTIONS is not JSON ({error}): {text[:200]!r}") from None
    if not isinstance(options, dict):
        raise SettingError(
            f'WORKLOAD_OPTIONS must be a JSON object, e.g. {{"model_size": "tiny"}}, not {text[:200]!r}.'
        )
    for name, value in options.items():
        if not isinstance(value, OptionValue):
            raise SettingError(f"WORKLOAD_OPTIONS: {name} must be a string, a number or a boolean, not {value!r}.")
    return options
