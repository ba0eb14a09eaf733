"""What one replica runs; lists in a workload of the campaign file are one workload for every combination."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from harness.spec.model import KUBERNETES, Cpus, FactoryPath, Lacking, Positive, StrictModel, checked, nearest
from harness.spec.scenario import ScenarioKind, ScenarioSpec
from harness.spec.server import ServerSpec

BUILTIN_WORKLOADS = (
    "resnet50",
    "distilbert",
    "whisper",
    "diffusion",
    "notebook",
    "mnist",
    "mnist-training",
    "resnet50-training",
    "bert-training",
    "data-parallel-training",
)
CRASH, MEMORY_HOG = "crash", "memory-hog"
HOSTILE_WORKLOADS = {
    "dram-hog": "fills the memory bandwidth",
    "l2-hog": "fills the shared cache",
    "pcie-hog": "fills the link between host and GPU",
    "launch-storm": "launches tiny kernels without pause",
    MEMORY_HOG: "takes all free memory",
    CRASH: "crashes",
}
"""What wears out a machine for whoever else is on it, and is no model: name to what it does to who shares the GPU with it."""
_LAYERS = ("model_size", "channels_last")
_IMAGES = ("model_size", "image_shape", "samples", "images", "labels")
_EPOCHS = "epochs"
WORKLOAD_OPTIONS = {
    "resnet50": (*_LAYERS, "input", "source_pixels", "fold_norms", "cudnn_benchmark", "fp8"),
    "distilbert": ("model_size", "tokens", "fp8"),
    "whisper": ("model_size", "new_tokens"),
    "diffusion": ("model_size", "steps", "guidance"),
    "notebook": (*_LAYERS, "burst_requests", "think_s"),
    "mnist": _IMAGES,
    "mnist-training": (*_IMAGES, _EPOCHS, "learning_rate", "accumulation", "prefetch"),
    "resnet50-training": (*_LAYERS, "learning_rate", "accumulation"),
    "bert-training": ("model_size", "tokens", "learning_rate", "accumulation"),
    "data-parallel-training": (*_IMAGES, _EPOCHS, "learning_rate", "prefetch"),
    "dram-hog": ("megabytes",),
    "pcie-hog": ("megabytes",),
    MEMORY_HOG: ("after_s", "megabytes", "limit_gb", "when_full"),
    CRASH: ("after_s",),
}
"""What replicas know; what an option may be they say themselves."""
REMOVED_OPTIONS = {"int8": "`precision: fp16` with `options: {fp8: true}`, which is faster"}
"""What takes their place. They are no faults of the model, so that results that were measured with them stay readable."""
CLOSED_LOOP_ONLY = frozenset(
    {"notebook", "mnist-training", "resnet50-training", "bert-training", "data-parallel-training"}
)
MAX_BATCH = 2**20
RATE_IS_OF = "a `scenario` server or http has one, and a `server` with `rate` and without `ramp_to`."
SERVER, STREAMING_SERVER = "server", "streaming-server"
AXES = ("batch_size", "precision", "execution")
"""Fields that may be lists; and so may every one of ``options``."""
OPTIONS = "options"
_NOT_OF_THE_HOSTILE = (*AXES, "checkpoint", "scenario")
_OF_A_REPLICA = ("stream_priority", "inference_sleep_s", "threads", "shared_cpus", OPTIONS, "trace")
_NOT_OF_A_SERVER = (*_NOT_OF_THE_HOSTILE, *_OF_A_REPLICA)
_BEFORE_THE_VALUE = {
    "batch_size": "b",
    "epochs": "e",
    "samples": "s",
    "precision": "",
    "execution": "",
    "model_size": "",
}


def or_list(schema: dict[str, Any]) -> None:
    """For editors: the field may be a list of such values."""
    outer: dict[str, Any] = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    inner = dict(schema)
    schema.clear()
    schema.update(outer, anyOf=[inner, {"type": "array", "items": inner, "minItems": 1}])


Precision = Literal["fp32", "fp16", "bf16"]
"""Number format of weights and activations."""


class Execution(StrEnum):
    """How torch runs the model."""

    EAGER = "eager"
    COMPILED = "compiled"
    CUDA_GRAPH = "cuda-graph"


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class WorkloadSpec(StrictModel):
    """One workload of the campaign."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,80}$",
        description="Names the experiments: a built-in workload, or your own name with `model` or `factory`.",
    )
    model: str | None = Field(
        None,
        description=f"Built-in workload to run: {', '.join((*BUILTIN_WORKLOADS, *HOSTILE_WORKLOADS))}; null: `name`.",
    )
    variant_of: str | None = Field(None, description="Set by the harness.")
    factory: FactoryPath | None = Field(
        None,
        description="Your own workload as `module:callable`, importable from the harness's working folder.",
    )
    batch_size: int = Field(
        1,
        ge=1,
        le=MAX_BATCH,
        json_schema_extra=or_list,
        description="Inputs per request; a list (also of `precision`, `execution`, `options`) makes a workload of each value.",
    )
    precision: Precision = Field("fp32", json_schema_extra=or_list, description="Number format.")
    execution: Execution = Field(Execution.EAGER, json_schema_extra=or_list, description="How torch runs the model.")
    device: Device = Field(Device.AUTO, description="auto uses a GPU if there is one.")
    stream_priority: Literal["high", "low"] | None = Field(None, description="Priority of the CUDA stream.")
    seed: int = Field(0, ge=0, description="Seed of random weights and synthetic inputs.")
    checkpoint: str | None = Field(None, description="Folder or file with weights; null: random, from `seed`.")
    inference_sleep_s: float = Field(0.0, ge=0.0, le=3600.0, description="Pause between requests (INFERENCE_SLEEP).")
    warmup_requests: int = Field(5, ge=0, le=10_000, description="Requests before the measurement.")
    threads: Cpus | None = Field(None, description="CPU threads; null: torch's default, with a GPU at most 4.")
    cpus_per_replica: Annotated[
        Cpus | None,
        Lacking(
            KUBERNETES,
            "the kubelet pins pods, and only where its CPU manager's policy is static and whole CPUs are requested as limits",
            "Use backend local.",
        ),
    ] = Field(
        None,
        description="CPUs that each replica is pinned to, near its GPU; null: not pinned.",
    )
    shared_cpus: Cpus | None = Field(None, description="The last CPUs, which replicas without a GPU share; null: all.")
    memory_gb: Positive | None = Field(None, description="Memory of one replica, for preflight; null: estimated.")
    options: dict[str, str | int | float | bool] = Field(
        {}, description="Options of the workload, e.g. `model_size: tiny`."
    )
    trace: bool = Field(False, description="Trace the kernels of a few requests after the recording.")
    scenario: ScenarioSpec | None = Field(
        None,
        description="How requests arrive; null: a closed loop of requests. E.g. {kind: http, rate: 100, arrivals: poisson, "
        "latency_limit_ms: 50, max_wait_ms: 2, max_queue: 256, max_clients: 512}, {kind: offline, duration_s: "
        "600} or {samples_per_query: 8, kind: multi-stream}.",
    )
    server: ServerSpec | None = Field(
        None,
        description="Your own server, see docs/servers.md; e.g. {command: [vllm, serve, /models/llama, --port, '{port}'], "
        "ready: {path: /health}, protocol: openai-chat, model: /models/llama, concurrency: 8} or {url: "
        "'http://localhost:8000', protocol: openai-chat, model: llama, rate: 4}.",
    )

    @property
    def family(self) -> str:
        """Name in the campaign file, of which this may be one setting or one rate."""
        return self.variant_of or self.name

    @property
    def target(self) -> str:
        """What the replica loads: a built-in workload's name, ``module:callable``, or a server of the user's own."""
        if self.server is not None:
            return STREAMING_SERVER if self.server.streams else SERVER
        return self.factory or self.model or self.name

    @property
    def open_loop(self) -> bool:
        """Requests come at times of their own, however long answers take."""
        if self.server is not None:
            return self.server.open_loop
        return self.scenario is not None and self.scenario.open_loop

    @property
    def has_rate(self) -> bool:
        """There is one rate, which could be another."""
        if self.server is not None:
            return self.server.rate is not None and self.server.ramp_to is None
        return self.open_loop

    @property
    def in_flight(self) -> int:
        """Of a closed loop, the requests that each replica has at any time."""
        return (self.server.concurrency or 1) if self.server else 1

    @property
    def has_concurrency(self) -> bool:
        """A number of its requests is on its way at any time, which could be another."""
        return self.server is not None and not self.server.open_loop

    @property
    def inputs_per_request(self) -> int:
        """What one request holds: a batch of the closed loop and of offline, a query of multi-stream, else one input."""
        if self.scenario is None or self.scenario.kind is ScenarioKind.OFFLINE:
            return self.batch_size
        return self.scenario.inputs_per_query

    @property
    def own(self) -> bool:
        """It is the user's: a factory or a server, of which the harness knows no more than is said here."""
        return self.factory is not None or self.server is not None

    def at_rate(self, rate: float) -> WorkloadSpec:
        """The same workload, sent ``rate`` requests per second and replica. Raises ValueError without such a scenario."""
        if self.server is not None and self.has_rate:
            return self.model_copy(update={"server": self.server.model_copy(update={"rate": rate})})
        if self.scenario is None or not self.open_loop:
            raise ValueError(f"the workload {self.name} has no rate: {RATE_IS_OF}")
        return self.model_copy(update={"scenario": self.scenario.model_copy(update={"rate": rate})})

    def at_concurrency(self, requests: int) -> WorkloadSpec:
        """The same workload with so many requests in flight to each replica. Raises ValueError without a closed loop of a server."""
        if self.server is None or not self.has_concurrency:
            raise ValueError(
                f"the workload {self.name} has no concurrency: a `server` without `rate` and `trace` has one."
            )
        return self.model_copy(update={"server": self.server.model_copy(update={"concurrency": requests})})

    @checked
    def _server_alone(self) -> Iterator[str]:
        if self.server is None:
            return
        if self.factory is not None or self.model is not None:
            yield "`server` is a workload by itself: leave `model` and `factory` out."
        of_a_start = ("device", "cpus_per_replica") if self.server.url else ()
        if name := self.differs(*_NOT_OF_A_SERVER, *of_a_start):
            yield f"`{name}` has no effect on a server of your own: say it where the server is started."

    @checked
    def _known_or_own(self) -> Iterator[str]:
        if self.server is not None:
            return
        if self.factory is not None and self.model is not None:
            yield "`model` names a built-in workload and `factory` one of your own: keep one of them."
        if self.factory is None:
            yield from self._unknown()
        if self.shared_cpus and self.cpus_per_replica:
            yield "CPUs are shared (`shared_cpus`) or a replica's own (`cpus_per_replica`): keep one."
        if self.target in HOSTILE_WORKLOADS and (name := self.differs(*_NOT_OF_THE_HOSTILE)):
            yield f"`{name}` has no effect on {self.target}, which is not a model: leave it out."
        if self.target == "resnet50-training" and self.batch_size == 1:
            yield "resnet50-training needs `batch_size` 2 or more: batch normalisation compares images."
        if self.target == "data-parallel-training" and self.execution is Execution.CUDA_GRAPH:
            yield "data-parallel-training has no `execution` cuda-graph, for two processes: use eager or compiled."

    def _unknown(self) -> Iterator[str]:
        """A workload that is not built in, or an option that it has not."""
        if self.target == "chat":
            yield (
                "there is no built-in workload `chat`: text generation is measured with an engine of your own, e.g. server: "
                "{command: [transformers, serve, MODEL, --port, '{port}', --continuous-batching], protocol: openai-chat}; "
                "see docs/servers.md."
            )
        if self.target not in (known := (*BUILTIN_WORKLOADS, *HOSTILE_WORKLOADS)):
            yield f"unknown workload {self.target!r}: {nearest(self.target, known)} One of your own needs a `factory`."
        known = WORKLOAD_OPTIONS.get(self.target, ())
        unknown = next((name for name in self.options if name not in {*known, *REMOVED_OPTIONS}), None)
        if unknown is not None:
            yield f"`options`: {self.target} has no option {unknown!r}; {nearest(unknown, known)}"

    @property
    def can_fork(self) -> bool:
        """Whether its replicas can be forked: torch counts its threads by the CPUs that it may use when it is imported."""
        return self.target in BUILTIN_WORKLOADS and not self.cpus_per_replica

    @property
    def processes_per_replica(self) -> int:
        """That compute, each on a GPU of its own where there are enough."""
        return 2 if self.target == "data-parallel-training" else 1

    @checked
    def _has_the_gpu_it_needs(self) -> Iterator[str]:
        if self.execution is Execution.CUDA_GRAPH and self.device is Device.CPU:
            yield "execution cuda-graph needs a GPU; use eager or compiled with device cpu."
        if self.stream_priority is not None and self.device is Device.CPU:
            yield "`stream_priority` needs a GPU: leave it out with device cpu."
        if self.stream_priority is not None and self.target == "data-parallel-training":
            yield "data-parallel-training has no `stream_priority`: collectives have streams of their own."

    @checked
    def _scenario_can_be(self) -> Iterator[str]:
        if self.scenario is None:
            return
        if self.trace:
            yield "`trace` follows requests of the closed loop: remove it, or the `scenario`."
        if self.factory is None and self.target in CLOSED_LOOP_ONLY:
            yield f"{self.target} makes its own pace: it runs in the closed loop, without a `scenario`."
        if self.inference_sleep_s:
            yield "`inference_sleep_s` pauses the closed loop; a `scenario` has arrivals of its own."
        if self.scenario.kind is ScenarioKind.SINGLE_STREAM and self.batch_size != 1:
            yield "scenario single-stream sends one input at a time: leave `batch_size` at 1."


def settings_of(workloads: Any) -> Any:
    """The workloads as the file gives them, those with lists taken apart. Raises ValueError for a list of nothing, or of a value twice."""
    if not isinstance(workloads, list):
        return workloads
    return [setting for workload in workloads for setting in _taken_apart(workload)]


def _taken_apart(workload: Any) -> list[Any]:
    if not isinstance(workload, dict):
        return [workload]
    options = workload.get(OPTIONS)
    fields: dict[tuple[str, ...], Any] = {(name,): workload.get(name) for name in AXES}
    fields |= {(OPTIONS, name): value for name, value in (options if isinstance(options, dict) else {}).items()}
    lists = {path: value for path, value in fields.items() if isinstance(value, list)}
    for path, values in lists.items():
        if not values or len({repr(value) for value in values}) < len(values):
            raise ValueError(f"`{'.'.join(path)}` lists {'a value twice' if values else 'no value'}.")
    return [
        _setting(workload, dict(zip(lists, values, strict=True))) if lists else workload
        for values in itertools.product(*lists.values())
    ]


def _setting(workload: Mapping[str, Any], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The workload with one value of each list, named after them: ``resnet50-b8-fp16``."""
    name = str(workload.get("name", ""))
    own = any(workload.get(key) for key in ("factory", "server", "model"))
    setting = {**workload, **({} if own else {"model": name}), "variant_of": name}
    setting[OPTIONS] = {**(workload.get(OPTIONS) or {}), **{path[1]: values[path] for path in values if path[1:]}}
    setting |= {path[0]: values[path] for path in values if not path[1:]}
    setting["name"] = "-".join([name, *(_named(path[-1], value) for path, value in values.items())])
    return setting


def _named(axis: str, value: Any) -> str:
    readable = re.sub(r"[^a-z0-9]+", "-", f"{value}".lower()).strip("-")
    return f"{_BEFORE_THE_VALUE.get(axis, f'{axis}-'.replace('_', '-'))}{readable}"


def values_of(workload: WorkloadSpec) -> dict[str, Any]:
    """What a workload has on every axis, by field or option."""
    return {**{name: getattr(workload, name) for name in AXES}, **workload.options}


def axes_of(workloads: Sequence[WorkloadSpec]) -> list[str]:
    """The axes on which workloads of one family differ, in the order of the file."""
    settings = [values_of(workload) for workload in workloads]
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if len({repr(values.get(name)) for values in settings}) > 1]
