"""What a replica is told: the workload and its phases as one JSON variable, and what only the place where it runs knows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError

from harness.spec.model import Count, NotNegative, Positive, StrictModel, first_in_words, in_words
from harness.spec.workload import WorkloadSpec

if TYPE_CHECKING:
    from harness.spec.timing import Timing

VARIABLE = "REPLICA_SPEC"
BY_HAND = {
    "WORKLOAD": "model",
    "BATCH_SIZE": "batch_size",
    "PRECISION": "precision",
    "EXECUTION": "execution",
    "DEVICE": "device",
    "STREAM_PRIORITY": "stream_priority",
    "SEED": "seed",
    "CHECKPOINT": "checkpoint",
    "INFERENCE_SLEEP": "inference_sleep_s",
    "WARMUP_REQUESTS": "warmup_requests",
    "SHARED_CPUS": "shared_cpus",
    "TORCH_THREADS": "threads",
    "WORKLOAD_OPTIONS": "options",
    "SCENARIO": "scenario",
    "TRACE": "trace",
}
"""Variables of a replica that somebody starts by hand, by the field of the workload that they set; where VARIABLE is set they mean nothing."""
OF_THE_PLACE = {
    "HOST": "host",
    "PORT": "port",
    "REPLICA": "replica",
    "REPLICA_CPUS": "cpus",
    "REPLICA_DIR": "replica_dir",
    "REPLICA_LOADS": "loads",
    "REPLICA_SHARING": "sharing",
    "RUN_SECONDS": "run_s",
    "LINGER_SECONDS": "linger_s",
}
REPLICA_NAME = "REPLICA_NAME"
OF_ITS_START = {"PYTHONUNBUFFERED": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""Pydantic would look through every installed package for plugins: a tenth of a second in a large environment."""
VARIABLES = frozenset({VARIABLE, REPLICA_NAME, *BY_HAND, *OF_THE_PLACE, *OF_ITS_START})
_OF_JSON = frozenset({"WORKLOAD_OPTIONS", "SCENARIO"})


class ReplicaSpec(StrictModel):
    """What one replica runs, and when it is recorded."""

    workload: WorkloadSpec
    settle_s: NotNegative = Field(0.0, description="Seconds of load before the recording begins.")
    record_s: Positive = Field(60.0, description="Seconds recorded.")
    beside: bool = Field(False, description="The server runs in the container beside this one.")
    restore: dict[str, str | None] = Field(
        {}, description="Variables of the replica alone, with the server's; None: nothing."
    )
    replicas: Count | None = Field(None, description="Of the experiment, this one among them; None: irrelevant.")
    logger: list[str] = Field([], description="Command that passes the server's output on, up to a limit; []: none.")

    @classmethod
    def timed(cls, workload: WorkloadSpec, timing: Timing, **more: Any) -> Self:
        """Of an experiment: what LoadGen tests and a ramp of the rate lie within its recording."""
        settle_s = max(timing.stabilise_s, timing.window_s)
        return cls(workload=workload, settle_s=settle_s, record_s=timing.record_s, **more)

    def environment(self) -> dict[str, str]:
        """The variables that say it to ``python -m harness.replica``."""
        return {VARIABLE: self.model_dump_json(exclude_none=True), **OF_ITS_START}


Numbers = Annotated[
    tuple[int, ...], BeforeValidator(lambda given: sorted(set(given.split(","))) if isinstance(given, str) else given)
]
"""As a variable has them: ``0,2,5``."""


class NextLoad(StrictModel):
    """A load that a running replica is to serve next, as ``NEXT_LOAD`` in its folder says it."""

    spec: ReplicaSpec
    folder: Path = Field(description="Where it writes while it serves it.")


NEXT_LOAD = "next.json"


class ReplicaPlace(StrictModel):
    """What is known only where one replica runs; each field is a variable of OF_THE_PLACE."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod is scraped from outside; the local backend says 127.0.0.1
    port: int = Field(8000, ge=0, le=65_535)
    replica: int = Field(0, ge=0, lt=2**31)
    cpus: Numbers | None = None
    replica_dir: Path | None = None
    loads: bool = Field(False, description="It serves one load after another, each when it is told of it.")
    sharing: str | None = None
    run_s: NotNegative | None = Field(None)
    linger_s: NotNegative = Field(0.0)


def read_environment(environment: Mapping[str, str]) -> tuple[ReplicaSpec, ReplicaPlace]:
    """What the variables say; one that is unset or empty is its field's default. Raises ValueError that names a variable."""
    given = {name: value.strip() for name, value in environment.items() if value.strip()}
    place = {field: given[name] for name, field in OF_THE_PLACE.items() if name in given}
    if REPLICA_NAME in given:  # pods of one Deployment differ in name alone; their inputs shall differ, too
        place.setdefault("replica", str(zlib.crc32(given[REPLICA_NAME].encode()) % 2**31))
    try:
        if VARIABLE in given:
            return ReplicaSpec.model_validate_json(given[VARIABLE]), ReplicaPlace.model_validate(place)
        return ReplicaSpec(workload=_by_hand(given)), ReplicaPlace.model_validate(place)
    except ValidationError as error:
        raise ValueError(_in_words(error)) from None


def _by_hand(given: Mapping[str, str]) -> WorkloadSpec:
    fields: dict[str, Any] = {"name": "by-hand", "model": "resnet50"}
    for name, field in BY_HAND.items():
        if name in given:
            fields[field] = _parsed(name, given[name]) if name in _OF_JSON else given[name]
    if ":" in fields["model"]:
        fields["factory"] = fields.pop("model")
    return WorkloadSpec.model_validate(fields)


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error}): {text[:200]!r}.") from None


def _in_words(error: ValidationError) -> str:
    """The first fault, with the variable that it is about."""
    if error.title == ReplicaSpec.__name__:
        return f"{VARIABLE}: {first_in_words(error)}."
    first = error.errors()[0]
    field, *inner = first["loc"] or ("model",)
    variables = {field: name for name, field in (BY_HAND | OF_THE_PLACE).items()}
    shown = "" if isinstance(first["input"], dict | list) else f" (found {first['input']!r:.200})"
    return f"{variables.get(str(field), 'WORKLOAD')}: {f'{inner[0]} ' if inner else ''}{in_words(first['msg'])}{shown}."
