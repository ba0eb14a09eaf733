"""The campaign: which experiments, in which order, how long, within which limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from harness.spec.condition import ConditionSpec, Replicas
from harness.spec.experiment import CellSpec, ExcludeSpec, Limits
from harness.spec.kubernetes import KubernetesSpec
from harness.spec.model import KUBERNETES, LOCAL, Apart, Lacking, OneOrSeveral, StrictModel, checked
from harness.spec.scenario import ScenarioKind
from harness.spec.sharing import Interval, Mode, Modes, MpsSpec, Sharing, settings_under
from harness.spec.slo import SloSpec
from harness.spec.stress import StressLoad, StressSpec
from harness.spec.sweep import Per, SweepSpec, SweptLoad
from harness.spec.timing import (
    PRESETS,
    KnownMetric,
    Repeats,
    RepeatsOrNumber,
    Timing,
    UntilKnown,
    short_by_scrapes,
)
from harness.spec.workload import RATE_IS_OF, WorkloadSpec, settings_of

MAX_EXPERIMENTS = 10_000


class Order(StrEnum):
    """In which order the experiments run."""

    LISTED = "listed"
    INTERLEAVED = "interleaved"
    RANDOM = "random"


class CampaignSpec(StrictModel):
    """One campaign file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$", description="Names the results folder.")
    description: str = Field("", description="One line for the report.")
    backend: Literal["local", "kubernetes"] = Field(
        "local", description="Processes of this machine (local), or pods of a cluster (kubernetes)."
    )
    kubernetes: Annotated[
        KubernetesSpec | None,
        Lacking(LOCAL, "replicas are processes of this machine", "Say `backend: kubernetes`, or remove it."),
    ] = Field(None, description="The cluster; {} means every default.")
    sharing: Modes = Field(
        [Sharing.TIME_SLICING],
        min_length=1,
        description="Sharing modes to compare; servers that already run have as-found.",
    )
    gpus: int = Field(
        1,
        ge=1,
        le=64,
        description="GPUs to use; exclusive gives each replica its own and skips larger replica counts.",
    )
    mps: MpsSpec | None = Field(None, description="Limits of each replica under mps.")
    time_slice: Annotated[list[Interval], OneOrSeveral, Apart] = Field(
        [],
        description="Lengths of the time slice, one or several, e.g. [short, long]; [] leaves it as it is. Needs "
        "`kubernetes.sharing_by: dra`.",
    )
    workloads: Annotated[list[WorkloadSpec], BeforeValidator(settings_of), Apart] = Field(
        min_length=1, description="What the replicas run."
    )
    replicas: Annotated[list[Replicas], Apart] = Field(
        min_length=1, description="Replica counts to compare, e.g. [1, 3, 8]."
    )
    exclude: list[ExcludeSpec] = Field(
        [],
        description="Configurations that are not run, e.g. [{sharing: mps, replicas: 1}, {share: 2/N, replicas: 2}].",
    )
    slo: SloSpec | None = Field(
        None,
        description="Objective, judged in each run: limits of ttft, ttfo, itl, tpot (streams) and latency, at p50, p90, p95 or p99, "
        "e.g. {ttft_p99_ms: 200, itl_p99_ms: 50, latency_p99_ms: 5000, error_rate: 0.001}.",
    )
    stress: StressSpec | None = Field(
        None,
        description="Raise the load until a limit breaks: {load: replicas, first: 1, most: 64, "
        "factor: 2, step: null, price_per_kwh: null, latency_limit_ms: {p99: 50}, precision: null, "
        "price_per_gpu_hour: null, least_gain_percent: 5, memory_limit_percent: 85}.",
    )
    sweep: SweepSpec | None = Field(
        None,
        description="Measure every configuration under several loads, e.g. {per: gpu, one_start: true, concurrency: [4, 8, "
        "16, 32]} or {rate: [2, 4, 8]}.",
    )
    conditions: Annotated[list[ConditionSpec], Apart] = Field(
        [],
        description="Conditions to compare; the first is the baseline. E.g. [{name: alone}, {name: beside, neighbours: "
        "[{workload: {name: whisper}, replicas: 2}]}, {name: hooked, layer: {prefix: [taskset, -c, 0-3], "
        "environment: {HOOK_LOG: off}, preload: ./libhook.so}}]; on Kubernetes also {preload: "
        "/opt/lib/libhook.so, preload_image: registry.example/hook:1.2}.",
    )
    overhead_limit_percent: float = Field(
        5.0,
        gt=0,
        le=1000,
        description="Overhead that a condition may have against the first; the report judges it.",
    )
    repeats: RepeatsOrNumber = Field(
        1,
        description="Runs of every configuration; intervals need 3 or more. Or {until_known: {compare: [throughput, "
        "latency_p99], question: each, within: 0.05, decide: 0.95, max: 30, budget: 2 h}}.",
    )
    order: Order = Field(
        Order.INTERLEAVED,
        description="interleaved (one repeat of everything, then the next), random (from `seed`) or listed (drift looks like "
        "a difference).",
    )
    seed: int = Field(0, ge=0, description="Seed of the random order.")
    timing: Timing = Field(default_factory=Timing, description="Seconds of every phase.")
    metrics: Literal["all"] | list[str] = Field("all", description="`all`, or names of metrics.")
    limits: Limits = Field(default_factory=Limits, description="Limits of the campaign.")

    @checked
    def _can_be_counted(self) -> Iterator[str]:
        """Before anything makes the matrix."""
        points = len(self.replicas) * (len(self.stress.grid()) if self.stress else max(1, len(self.conditions)))
        loads = len(self._loads())
        count = len(self.workloads) * loads * len(self._modes()) * points * self.most_repeats
        if count > MAX_EXPERIMENTS:
            yield f"this is a plan of {count:,} experiments, more than {MAX_EXPERIMENTS:,}: split it into several files."

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, given: Any) -> Any:
        """What follows from the rest of the file, and need not be said twice."""
        if not isinstance(given, dict):
            return given
        implied: dict[str, Any] = {}
        workloads, stress = given.get("workloads"), given.get("stress")
        if isinstance(workloads, list) and workloads and all(map(_runs_already, workloads)):
            implied["sharing"] = [Sharing.AS_FOUND]
        if isinstance(stress, dict) and stress.get("load", "replicas") == "replicas":
            first = stress.get("first", 1)
            implied["replicas"] = [int(first) if isinstance(first, float | int) else first]
        return {**implied, **given, **_short_phases(given)}

    @checked
    def _workloads_can_be(self) -> Iterator[str]:
        for workload in self.workloads:
            name, server, scenario, known = (
                workload.name,
                workload.server,
                workload.scenario,
                self.timing.stop_when_known,
            )
            if self.slo is not None and self.slo.of_tokens and (server is None or not server.streams):
                yield f"`slo` limits times of tokens, and answers of {name} are no streams."
            if known is not None and scenario is not None and scenario.kind is not ScenarioKind.HTTP:
                yield f"`timing.stop_when_known` would cut LoadGen's test of {name} short: remove one."
            if known is not None and server is not None and server.ramp_to is not None:
                yield f"`timing.stop_when_known` needs a rate that stays, and `ramp_to` of {name} changes it: remove one."
            test_s = (scenario.duration_s if scenario else None) or 0.0
            if test_s > self.timing.record_s:
                yield f"the scenario of {name} has duration_s {test_s:g}, above timing.record_s {self.timing.record_s:g}."

    @checked
    def _neighbours_can_be(self) -> Iterator[str]:
        for neighbour in (neighbour for condition in self.conditions for neighbour in condition.neighbours):
            if neighbour.slo and self.slo is None:
                yield f"`conditions`: {neighbour.name} has an objective, and the measured workloads have none: give the campaign's `slo`."
            if neighbour.workload.server and self.backend != LOCAL:
                yield f"`conditions`: {neighbour.name} is a server of your own, which runs beside others on this machine alone (backend local)."

    @checked
    def _objective_can_be_waited_for(self) -> Iterator[str]:
        known = self.timing.stop_when_known
        if known is None or KnownMetric.OBJECTIVE not in known.metrics:
            return
        if self.slo is None:
            yield "`timing.stop_when_known` waits for the objective: give the `slo`, or leave that out."
        if self.backend != LOCAL:
            yield "`timing.stop_when_known` cannot wait for the objective on a cluster, whose tables are fetched at the end."

    @checked
    def _stress_can_be(self) -> Iterator[str]:
        if self.stress is None:
            return
        if self.conditions:
            yield "`stress` raises one load and compares no `conditions`: remove one of the two."
        if self.stress.load is StressLoad.REPLICAS and self.replicas != [self.stress.first]:
            yield "`stress` raises the replicas itself: leave `replicas` out."
        if self.slo is None and (self.stress.price_per_gpu_hour, self.stress.price_per_kwh) != (None, None):
            yield "`stress` has prices for the tokens of servers within an objective: give the `slo`."
        for workload in self.workloads:
            if self.stress.load is StressLoad.BATCH and (workload.server or workload.scenario):
                yield f"the workload {workload.name} has no batch to raise: only a closed loop has."
            if self.stress.load is StressLoad.RATE and not workload.has_rate:
                yield f"the workload {workload.name} has no rate to raise: {RATE_IS_OF}"

    @checked
    def _sweep_can_be(self) -> Iterator[str]:
        if self.sweep is None:
            return
        if self.stress is not None:
            yield "`stress` raises the load itself: remove it, or the `sweep`."
        if self.sweep.per is Per.GPU and self.kubernetes and self.kubernetes.gpus_per_replica > 1:
            yield "`sweep.per` gpu divides a GPU's load among its replicas, and here a replica has several: say `per: replica`."
        beside = [condition.name for condition in self.conditions if condition.neighbours]
        if self.one_start and beside:
            yield f"`sweep.one_start`: {beside[0]} has neighbours, which are started with each load: remove it."
        for workload, replicas in itertools.product(self.workloads, self.replicas):
            yield from (f"`sweep`: {fault}" for fault in self.sweep.faults(workload, replicas, self.gpus))

    @checked
    def _left_out_can_be(self) -> Iterator[str]:
        if not self.exclude:
            return
        every_cell = self.model_copy(update={"exclude": []}).cells()
        for number, left_out in enumerate(self.exclude, 1):
            if not any(left_out.matches(cell) for cell in every_cell):
                yield f"entry {number} of `exclude` matches no cell of the matrix: correct it, or leave it out."
        if not self.cells():
            yield "`exclude` leaves no cell of the matrix."

    @checked
    def _sharing_can_be(self) -> Iterator[str]:
        for name, mode in (("mps", Sharing.MPS), ("time_slice", Sharing.TIME_SLICING)):
            if getattr(self, name) and mode not in self.sharing:
                yield f"`{name}` has no effect without {mode.value} in `sharing`: add that, or remove `{name}`."
        if Sharing.EXCLUSIVE in self.sharing and not any(cell.sharing is Sharing.EXCLUSIVE for cell in self.cells()):
            yield f"sharing exclusive needs a GPU per replica: no count is as low as `gpus` ({self.gpus})."
        if self.time_slice and not self.by_claims:
            yield "`time_slice` is set by claims alone: say `kubernetes.sharing_by: dra`, or leave it out."

    @checked
    def _cluster_can(self) -> Iterator[str]:
        if self.backend == LOCAL:
            return
        if self.kubernetes is None:
            yield "backend kubernetes needs a section `kubernetes`; `kubernetes: {}` takes every default."
            return
        if len(self.sharing) > 1 and not self.switches_sharing and not self.by_claims:
            yield (
                "`sharing` has several modes, and a cluster's device plugin shares the GPUs for all campaigns alike: name its "
                "configurations in `kubernetes.device_plugin_configs`, say `kubernetes.sharing_by: dra`, or run a campaign for each."
            )
        shared = [mode.value for mode in self.sharing if mode in {Sharing.TIME_SLICING, Sharing.MPS}]
        if shared and self.kubernetes.gpus_per_replica > 1:
            yield (
                f"`kubernetes.gpus_per_replica` above 1 under {shared[0]}: two slices may be of one GPU, and NVIDIA's device plugin "
                "refuses a pod more than one of them. Use whole GPUs (`sharing: [exclusive]`), or leave it at 1."
            )
        layered = [condition.name for condition in self.conditions if condition.layer]
        imaged = [workload.name for workload in self.workloads if workload.server and workload.server.image]
        if layered and imaged:
            yield f"`conditions`: the layer of {layered[0]} needs a command, and {imaged[0]} has an image: use `server.command`."

    @checked
    def _servers_that_run_already(self) -> Iterator[str]:
        running = [workload.name for workload in self.workloads if workload.server and workload.server.url]
        modes = [mode.value for mode in self.sharing if mode is not Sharing.AS_FOUND]
        if running and modes:
            yield f"`sharing` {' and '.join(modes)}: {running[0]} runs already, and shares as it was found: leave `sharing` out."
        if running and self.conditions:
            yield f"`conditions`: {running[0]} runs already: run a campaign under each, and compare them: harness compare"
        for cell in self.cells():
            urls = cell.workload.server.url if cell.workload.server else []
            if cell.sharing is Sharing.AS_FOUND and not urls:
                yield f"sharing as-found is of servers that run already, and {cell.workload.name} is none."
            if urls and cell.replicas > len(urls):
                yield f"{cell.replicas} replicas of {cell.workload.name} need as many servers, and `url` names {len(urls)}."

    @checked
    def _repeats_can_be(self) -> Iterator[str]:
        wanted = self.until_known
        if wanted is None:
            return
        if self.stress is not None:
            yield "`stress` takes a number of `repeats`, of its last good point, and no `until_known`."
        if self.order is Order.LISTED:
            yield "`repeats.until_known` judges block by block: `order` must be interleaved or random."
        cells = len(self.cells())
        least_s = wanted.first_look * cells * self.timing.phases_s
        if wanted.budget_s < least_s and not wanted.best_mode:  # which is fitted to its budget
            yield (
                f"`repeats.until_known.budget` of {wanted.budget} is too short to know anything: the {wanted.first_look} repeats of "
                f"{cells} cells before the first look take {least_s:g} s of phases. Raise it, or take shorter phases."
            )

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
    def one_start(self) -> bool:
        """Whether one start of the replicas serves all loads of a sweep."""
        return self.sweep is not None and self.sweep.one_start

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
        matrix = itertools.product(self.workloads, self._loads(), self.sharing, self.replicas)
        cells = [
            CellSpec(
                load.at(workload, replicas, self.gpus) if load else workload,
                sharing,
                replicas,
                condition,
                *setting,
                load,
            )
            for workload, load, sharing, replicas in matrix
            for setting in settings_under(sharing, self.mps, self.time_slice)
            for condition in conditions
        ]
        return [cell for cell in cells if self._fits(cell)]

    def without_what_has_no_effect(self) -> CampaignSpec:
        """The same, of which axes were cut, without limits of modes that it no longer has, and exclusions of cells that it no longer has."""
        every_cell = self.model_copy(update={"exclude": []}).cells()
        return self.model_copy(
            update={
                "mps": self.mps if Sharing.MPS in self.sharing else None,
                "time_slice": self.time_slice if Sharing.TIME_SLICING in self.sharing else [],
                "exclude": [left_out for left_out in self.exclude if any(map(left_out.matches, every_cell))],
            }
        )

    def _loads(self) -> list[SweptLoad | None]:
        return [*self.sweep.loads()] if self.sweep else [None]

    def series(self) -> list[list[CellSpec]]:
        """What a stress campaign may measure, by workload, sharing mode and number of replicas whose rate is raised, in ascending order."""
        if self.stress is None:
            return []
        stress, raised = self.stress, self.stress.load is StressLoad.REPLICAS
        series = [
            [
                CellSpec(stress.at(workload, load), mode[0], int(load) if raised else replicas, None, *mode[1:])
                for load in stress.grid()
            ]
            for workload, mode, replicas in itertools.product(self.workloads, self._modes(), self.replicas)
        ]
        fitting = [[cell for cell in cells if self._fits(cell)] for cells in series]
        return [cells for cells in fitting if cells]

    def _fits(self, cell: CellSpec) -> bool:
        if any(left_out.matches(cell) for left_out in self.exclude):
            return False
        if cell.sharing is Sharing.EXCLUSIVE:
            return cell.processes <= self.gpus
        # Which mode is best at sharing is not asked of a replica that shares with nobody, where `exclusive` measures it.
        alone = cell.replicas == 1 and Sharing.EXCLUSIVE in self.sharing
        return not (alone and self.until_known is not None and self.until_known.best_mode)

    def _modes(self) -> list[Mode]:
        return [
            (sharing, *setting)
            for sharing in self.sharing
            for setting in settings_under(sharing, self.mps, self.time_slice)
        ]


def _short_phases(given: dict[str, Any]) -> dict[str, Any]:
    """The preset short, where repeats until known are many and the file gives no phase: runs differ more than the time within them.

    On a cluster it follows the scrapes.
    """
    timing, cluster = given.get("timing") or {}, given.get("kubernetes")
    if not isinstance(timing, dict):
        return {}
    phases = {"preset", "stop_when_known", *PRESETS["short"]}
    chosen = isinstance(given.get("repeats"), dict) and not timing.keys() & phases
    if not chosen and timing.get("preset") != "short":
        return {}
    interval_s = None
    if given.get("backend") == KUBERNETES and isinstance(cluster, dict):
        interval_s = cluster.get("scrape_interval_s", KubernetesSpec.model_fields["scrape_interval_s"].default)
    by_scrapes = short_by_scrapes(interval_s) if isinstance(interval_s, int | float) and interval_s > 0 else {}
    return {"timing": {**by_scrapes, **timing, "preset": "short"}}


def _runs_already(workload: Any) -> bool:
    """Whether it is a server with `url`; a workload as checked, or as the file gives it."""
    given = workload.model_dump() if isinstance(workload, WorkloadSpec) else workload
    server = given.get("server") if isinstance(given, dict) else None
    return isinstance(server, dict) and bool(server.get("url"))
