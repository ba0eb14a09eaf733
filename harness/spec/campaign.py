"""The campaign: which experiments, in which order, how long, within which limits."""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness.spec.axes import settings_of
from harness.spec.condition import ConditionSpec, Replicas
from harness.spec.experiment import CellSpec, Limits
from harness.spec.kubernetes import KubernetesSpec
from harness.spec.model import LOCAL, Lacking, StrictModel
from harness.spec.scenario import ScenarioKind
from harness.spec.sharing import (
    Interval,
    Mode,
    MpsSpec,
    Sharing,
    settings_under,
)
from harness.spec.slo import SloSpec
from harness.spec.stopping import FIRST_LOOK, Repeats, RepeatsOrNumber, UntilKnown
from harness.spec.stress import StressLoad, StressSpec
from harness.spec.timing import PRESETS, Timing, short_by_scrapes
from harness.spec.workload import WorkloadSpec

MAX_EXPERIMENTS = 10_000


class Order(StrEnum):
    """In which order the experiments run."""

    LISTED = "listed"
    INTERLEAVED = "interleaved"
    RANDOM = "random"


class MetricSelection(StrEnum):
    """Shorthand for a list of metrics."""

    ALL = "all"


class CampaignSpec(StrictModel):
    """One campaign file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$", description="Names the results folder.")
    description: str = Field(default="", description="One line for the report.")
    backend: Literal["local", "kubernetes"] = Field(
        default="local",
        description="Where replicas live: local (processes of this machine) or kubernetes (pods of a cluster).",
    )
    kubernetes: Annotated[
        KubernetesSpec | None,
        Lacking(LOCAL, "replicas are processes of this machine", "Say `backend: kubernetes`, or remove it."),
    ] = Field(default=None, description="The cluster, for backend kubernetes; {} takes every default.")
    sharing: list[Sharing] = Field(
        default=[Sharing.TIME_SLICING],
        min_length=1,
        description="Sharing modes to compare: exclusive, time-slicing, mps, mig. Servers that run already have as-found, and no other.",
    )
    gpus: int = Field(
        default=1,
        ge=1,
        le=64,
        description="GPUs to use, in turn; exclusive gives each replica one of its own, so larger replica counts are left out of it.",
    )
    mps: MpsSpec | None = Field(default=None, description="Limits of each replica under mps; null means none.")
    time_slice: list[Interval] = Field(
        default_factory=list,
        description="How long a process has the GPU under time-slicing before the next one, one or several: default, short, "
        "medium, long, e.g. [short, long]; [] leaves it as it is. Needs `kubernetes.sharing_by: dra`.",
    )
    workloads: list[WorkloadSpec] = Field(min_length=1, description="What the replicas run.")
    replicas: list[Replicas] = Field(min_length=1, description="Replica counts to compare, e.g. [1, 3, 8].")
    slo: SloSpec | None = Field(
        default=None,
        description="Objective, decided from each experiment: ttft, itl and tpot of streams, latency of any workload, each at p50, "
        "p90, p95 or p99, in milliseconds, and the error_rate; null means none. E.g. "
        "{ttft_p99_ms: 200, itl_p99_ms: 50, latency_p99_ms: 5000, error_rate: 0.001}.",
    )
    stress: StressSpec | None = Field(
        default=None,
        description="Raise the load until something breaks, in place of comparing, with `harness stress`: "
        "{load: replicas, first: 1, most: 64, factor: 2, step: null, price_per_kwh: null, latency_limit_ms: {p99: 50}, "
        "precision: null, price_per_gpu_hour: null, least_gain_percent: 5, memory_limit_percent: 85}.",
    )
    conditions: list[ConditionSpec] = Field(
        default_factory=list,
        description="Conditions to compare, the first being the baseline of all others; [] is one without a name. "
        "E.g. [{name: alone}, {name: beside, neighbours: [{workload: {name: whisper}, replicas: 2}]}, "
        "{name: hooked, layer: {prefix: [taskset, -c, 0-3], environment: {HOOK_LOG: off}, preload: ./libhook.so}}]; "
        "on Kubernetes also {preload: /opt/lib/libhook.so, preload_image: registry.example/hook:1.2}.",
    )
    overhead_limit_percent: float = Field(
        default=5.0,
        gt=0,
        le=1000,
        description="Overhead that a condition may have against the first one, percent; the report says whether it is kept.",
    )
    repeats: RepeatsOrNumber = Field(
        default=1,
        description="How often every experiment is run, 3 or more giving intervals; or {until_known: "
        "{compare: [throughput, latency_p99], within: 0.05, decide: 0.95, max: 30, budget: 2 h}}.",
    )
    order: Order = Field(
        default=Order.INTERLEAVED,
        description="interleaved (one repeat of everything, then the next), random (from `seed`) or listed (drift looks like a difference).",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the random order.")
    timing: Timing = Field(default_factory=Timing, description="Seconds of every phase; left out, 30, 120 and 10.")
    metrics: MetricSelection | list[str] = Field(
        default=MetricSelection.ALL, description="`all`, or a list of names of the catalogue."
    )
    limits: Limits = Field(default_factory=Limits, description="Where to stop.")

    @model_validator(mode="after")
    def _can_be_counted(self) -> CampaignSpec:
        """Before anything makes the matrix."""
        points = len(self.replicas) * (len(self.stress.grid()) if self.stress else max(1, len(self.conditions)))
        count = len(self.workloads) * len(self._modes()) * points * self.most_repeats
        if count > MAX_EXPERIMENTS:
            raise ValueError(
                f"this is a plan of {count:,} experiments, more than {MAX_EXPERIMENTS:,}: "
                "take fewer workloads, replica counts, conditions or repeats, or split it into several files."
            )
        return self

    @model_validator(mode="after")
    def _objective_can_be_judged(self) -> CampaignSpec:
        if self.slo is None:
            return self
        for workload in self.workloads:
            if self.slo.of_tokens and (workload.server is None or not workload.server.streams):
                raise ValueError(f"`slo` limits times of tokens, and answers of {workload.name} are no streams.")
        return self

    @model_validator(mode="after")
    def _cluster_where_it_is_used(self) -> CampaignSpec:
        if self.backend == "kubernetes" and self.kubernetes is None:
            raise ValueError(
                "backend kubernetes needs a section `kubernetes`; `kubernetes: {}` takes the current context and every default."
            )
        return self

    @model_validator(mode="after")
    def _known_while_recording(self) -> CampaignSpec:
        timed = [
            workload.name
            for workload in self.workloads
            if workload.scenario is not None and workload.scenario.kind is not ScenarioKind.HTTP
        ]
        if timed and self.timing.stop_when_known is not None:
            raise ValueError(
                f"`timing.stop_when_known` would cut LoadGen's test of {timed[0]} short: remove one of the two."
            )
        ramped = [
            workload.name
            for workload in self.workloads
            if workload.server is not None and workload.server.ramp_to is not None
        ]
        if ramped and self.timing.stop_when_known is not None:
            raise ValueError(
                f"`timing.stop_when_known` takes the rate of {ramped[0]} to stay what it is, and `ramp_to` changes it: "
                "remove one of the two."
            )
        return self

    @model_validator(mode="after")
    def _scenarios_can_be(self) -> CampaignSpec:
        for workload in self.workloads:
            scenario = workload.scenario
            if scenario is None:
                continue
            if scenario.duration_s is not None and scenario.duration_s > self.timing.record_s:
                raise ValueError(
                    f"the scenario of {workload.name} lasts {scenario.duration_s:g} s (duration_s), longer than "
                    f"the recording that it must lie in ({self.timing.record_s:g} s, timing.record_s)."
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _found_where_nothing_is_started(cls, given: Any) -> Any:
        """Servers that run already share a GPU as they do, and the file need not say so."""
        workloads = given.get("workloads") if isinstance(given, dict) else None
        if isinstance(workloads, list) and workloads and "sharing" not in given and all(map(_runs_already, workloads)):
            return {**given, "sharing": [Sharing.AS_FOUND]}
        return given

    @model_validator(mode="before")
    @classmethod
    def _short_where_repeats_decide(cls, given: Any) -> Any:
        """Repeats until known are many and short, where the file gives no phase: runs differ more than the time within them."""
        repeats, timing = (given.get("repeats"), given.get("timing") or {}) if isinstance(given, dict) else (None, {})
        if not isinstance(timing, dict):
            return given
        phases = {"preset", "stop_when_known", *PRESETS["short"]}
        preset = "short" if isinstance(repeats, dict) and not timing.keys() & phases else timing.get("preset")
        if preset != "short":
            return given
        return {**given, "timing": {**_short_by_scrapes(given), **timing, "preset": "short"}}

    @model_validator(mode="before")
    @classmethod
    def _replicas_of_stress(cls, given: Any) -> Any:
        """A stress campaign that raises the replicas begins with its first point, and need not say so twice."""
        stress = given.get("stress") if isinstance(given, dict) else None
        if isinstance(stress, dict) and stress.get("load", "replicas") == "replicas" and "replicas" not in given:
            first = stress.get("first", 1)
            return {**given, "replicas": [int(first) if isinstance(first, float | int) else first]}
        return given

    @model_validator(mode="after")
    def _stress_can_be(self) -> CampaignSpec:
        if self.stress is None:
            return self
        if self.conditions:
            raise ValueError("`stress` raises one load and compares no `conditions`: remove one of the two.")
        if self.stress.load is StressLoad.REPLICAS and self.replicas != [self.stress.first]:
            raise ValueError("`stress` raises the replicas itself: leave `replicas` out.")
        if self.slo is None and (self.stress.price_per_gpu_hour, self.stress.price_per_kwh) != (None, None):
            raise ValueError("`stress` has prices for the tokens of servers within an objective: give the `slo`.")
        if self.stress.load is StressLoad.BATCH:
            fixed = next((workload.name for workload in self.workloads if workload.server or workload.scenario), None)
            if fixed is not None:
                raise ValueError(f"the workload {fixed} has no batch to raise: that is of a model in the closed loop.")
        if self.stress.load is StressLoad.RATE:
            without = next((workload.name for workload in self.workloads if not workload.has_rate), None)
            if without is not None:
                raise ValueError(
                    f"the workload {without} has no rate to raise: give it a `scenario` server or http, or its `server` a "
                    "`rate` without `ramp_to`."
                )
        return self

    @model_validator(mode="after")
    def _sharing_can_be(self) -> CampaignSpec:
        if self.mps is not None and Sharing.MPS not in self.sharing:
            raise ValueError(
                "`mps` has no effect without mps among the sharing modes: add it to `sharing`, or remove `mps`."
            )
        if self.time_slice and Sharing.TIME_SLICING not in self.sharing:
            raise ValueError(
                "`time_slice` has no effect without time-slicing among the sharing modes: add it to `sharing`, or remove it."
            )
        if Sharing.EXCLUSIVE in self.sharing and not any(cell.sharing is Sharing.EXCLUSIVE for cell in self.cells()):
            raise ValueError(
                f"sharing exclusive needs a GPU per replica: no replica count is as low as `gpus` ({self.gpus})."
            )
        return self

    @model_validator(mode="after")
    def _shared_as_the_backend_can(self) -> CampaignSpec:
        shared = [mode.value for mode in self.sharing if mode in {Sharing.TIME_SLICING, Sharing.MPS}]
        if self.time_slice and not self.by_claims:
            raise ValueError("`time_slice` is set by claims alone: say `kubernetes.sharing_by: dra`, or leave it out.")
        if self.backend == LOCAL:
            return self
        if len(self.sharing) > 1 and not self.switches_sharing and not self.by_claims:
            raise ValueError(
                "`sharing` has several modes, and a cluster's device plugin shares the GPUs for all campaigns alike: name its "
                "configurations in `kubernetes.device_plugin_configs`, say `kubernetes.sharing_by: dra`, or run a campaign for each."
            )
        if shared and self.kubernetes and self.kubernetes.gpus_per_replica > 1:
            raise ValueError(
                f"`kubernetes.gpus_per_replica` above 1 under {shared[0]}: two slices may be of one GPU, and NVIDIA's device plugin "
                "refuses a pod more than one of them. Take whole GPUs (`sharing: [exclusive]`), or leave it at 1."
            )
        layered = [condition.name for condition in self.conditions if condition.layer]
        imaged = [workload.name for workload in self.workloads if workload.server and workload.server.image]
        if layered and imaged:
            raise ValueError(
                f"`conditions`: {layered[0]} has a layer, and the command of the image of {imaged[0]} is not known: put the layer into "
                "`server.command`."
            )
        return self

    @model_validator(mode="after")
    def _servers_that_run_already(self) -> CampaignSpec:
        running = [workload.name for workload in self.workloads if workload.server and workload.server.url]
        modes = [mode.value for mode in self.sharing if mode is not Sharing.AS_FOUND]
        if running and modes:
            raise ValueError(
                f"`sharing` {' and '.join(modes)}: {running[0]} runs already, and how it shares a GPU is as it was found. Leave "
                "`sharing` out; other workloads go into a campaign of their own."
            )
        if running and self.conditions:
            raise ValueError(
                f"`conditions`: {running[0]} runs already, and nothing can be put between it and the machine. Run a campaign under each "
                "condition, and compare them: harness compare"
            )
        for cell in self.cells():
            urls = cell.workload.server.url if cell.workload.server else []
            if cell.sharing is Sharing.AS_FOUND and not urls:
                raise ValueError(f"sharing as-found is of servers that run already, and {cell.workload.name} is none.")
            if urls and cell.replicas > len(urls):
                raise ValueError(
                    f"{cell.replicas} replicas of {cell.workload.name} are as many servers, and its `url` names {len(urls)}: "
                    "name one for each, or take fewer replicas."
                )
        return self

    @model_validator(mode="after")
    def _repeats_can_be(self) -> CampaignSpec:
        wanted = self.until_known
        if wanted is None:
            return self
        if self.stress is not None:
            raise ValueError(
                "`stress` takes a number of `repeats`, of its last good point: `until_known` has no use there."
            )
        if self.order is Order.LISTED:
            raise ValueError(
                "`repeats.until_known` judges after one repeat of every cell: `order` must be interleaved or random."
            )
        cells, timing = len(self.cells()), self.timing
        least_s = FIRST_LOOK * cells * (timing.stabilise_s + timing.record_s + timing.cooldown_s)
        if wanted.budget_s < least_s:
            raise ValueError(
                f"`repeats.until_known.budget` of {wanted.budget} is too short to know anything: the {FIRST_LOOK} repeats of "
                f"{cells} cells before the first look take {least_s:g} s of phases. Raise it, or take shorter phases."
            )
        return self

    @property
    def until_known(self) -> UntilKnown | None:
        """What has to be known before the repeats end; None: their number is given."""
        return self.repeats.until_known if isinstance(self.repeats, Repeats) else None

    @property
    def most_repeats(self) -> int:
        """Repeats of a cell, at most."""
        return self.repeats.until_known.max if isinstance(self.repeats, Repeats) else self.repeats

    @property
    def open_ended(self) -> bool:
        """Whether the plan follows from the results, so that only the most that it may come to is known before."""
        return self.stress is not None or self.until_known is not None

    @property
    def switches_sharing(self) -> bool:
        """Whether experiments of several modes have a cluster's nodes switched between them."""
        cluster = self.kubernetes
        return cluster is not None and cluster.device_plugin_configs is not None and len(self.sharing) > 1

    @property
    def by_claims(self) -> bool:
        """Whether replicas get their GPUs by claims, each of which says how its GPU is shared."""
        return self.kubernetes is not None and self.kubernetes.by_claims

    def cells(self) -> list[CellSpec]:
        """The matrix as listed, limits of MPS, time slices and conditions in a row; without exclusive where replicas outnumber GPUs."""
        if self.stress is not None:
            return [cell for cells in self.series() for cell in cells]
        conditions: list[ConditionSpec | None] = [*self.conditions] or [None]
        matrix = itertools.product(self.workloads, self.sharing, self.replicas)
        cells = [
            CellSpec(*place, condition, *setting)
            for place in matrix
            for setting in settings_under(place[1], self.mps, self.time_slice)
            for condition in conditions
        ]
        return [cell for cell in cells if cell.sharing is not Sharing.EXCLUSIVE or cell.processes <= self.gpus]

    def series(self) -> list[list[CellSpec]]:
        """What a stress campaign may measure, by workload, sharing mode and number of replicas whose rate is raised, in ascending order."""
        if self.stress is None:
            return []
        points = [
            [self._point(workload, mode, load, replicas) for load in self.stress.grid()]
            for workload, mode, replicas in itertools.product(self.workloads, self._modes(), self.replicas)
        ]
        fitting = [
            [cell for cell in cells if cell.sharing is not Sharing.EXCLUSIVE or cell.replicas <= self.gpus]
            for cells in points
        ]
        return [cells for cells in fitting if cells]

    def _point(self, workload: WorkloadSpec, mode: Mode, load: float, replicas: int) -> CellSpec:
        assert self.stress is not None  # noqa: S101 - asked for the points of one
        raised = self.stress.load is StressLoad.REPLICAS
        sharing, limits, turns = mode
        return CellSpec(self.stress.at(workload, load), sharing, int(load) if raised else replicas, None, limits, turns)

    def _modes(self) -> list[Mode]:
        return [
            (sharing, *setting)
            for sharing in self.sharing
            for setting in settings_under(sharing, self.mps, self.time_slice)
        ]

    @field_validator("workloads", mode="before")
    @classmethod
    def _lists_taken_apart(cls, given: Any) -> Any:
        return settings_of(given)

    @field_validator("time_slice", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @field_validator("replicas", "sharing", "time_slice")
    @classmethod
    def _no_duplicates(cls, values: list[object]) -> list[object]:
        if len(set(values)) != len(values):
            raise ValueError("the same value is listed twice; use `repeats` to run an experiment more than once.")
        return values

    @field_validator("conditions")
    @classmethod
    def _unique_conditions(cls, conditions: list[ConditionSpec]) -> list[ConditionSpec]:
        names = [condition.name for condition in conditions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two conditions are called {twice!r}: their experiments could not be told apart.")
        return conditions

    @field_validator("workloads")
    @classmethod
    def _unique_names(cls, workloads: list[WorkloadSpec]) -> list[WorkloadSpec]:
        names = [workload.name for workload in workloads]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"two workloads are called {twice[0]!r}; give variants names of their own and say what they run with `model`."
            )
        return workloads


def _short_by_scrapes(given: dict[str, Any]) -> dict[str, float]:
    """What the preset short means on a cluster; nothing on this machine, nor where the interval is none."""
    if given.get("backend") != "kubernetes" or not isinstance(given.get("kubernetes"), dict):
        return {}
    interval_s = given["kubernetes"].get("scrape_interval_s", KubernetesSpec.model_fields["scrape_interval_s"].default)
    usable = isinstance(interval_s, int | float) and interval_s > 0
    return short_by_scrapes(interval_s) if usable else {}


def _runs_already(workload: Any) -> bool:
    """Whether it is a server with `url`; a workload as checked, or as the file gives it."""
    given = workload.model_dump() if isinstance(workload, WorkloadSpec) else workload
    server = given.get("server") if isinstance(given, dict) else None
    return isinstance(server, dict) and bool(server.get("url"))
