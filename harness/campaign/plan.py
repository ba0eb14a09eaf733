"""From a campaign file to the list of experiments, the hours and the disk they take."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import UsageError, duration
from harness.metrics.catalogue import CATALOGUE, PROCESS_SOURCES, REPLICA_SOURCES, Metric, select
from harness.metrics.nvml import gpu_facts
from harness.sharing.modes import mode_of
from harness.spec import (
    CampaignSpec,
    CellSpec,
    Device,
    ExperimentSpec,
    Order,
    ServerSpec,
    Sharing,
    WorkloadSpec,
)
from harness.spec.model import KUBERNETES
from harness.spec.sharing import ON_CPU
from harness.traffic.datasets import LoadFacts, load_facts

# What one experiment writes, measured on finished ones: bytes per row of a metric CSV and its share of the
# Parquet and wide tables, bytes per telemetry reading, bytes per request (latency log while running, Parquet after).
BYTES_PER_ROW = 90
BYTES_PER_TELEMETRY_ROW = 160
BYTES_PER_REQUEST = 24
ASSUMED_REQUESTS_PER_S = 500.0
FIXED_BYTES = 200_000
NODE_AND_DEVICE_SERIES = 2
# To start replicas and to end them on an H200, and for each replica more: 3.5 to 12 s for one to eight new processes in the
# published sets, 2 to 3 s for forked ones.
START_S = {"fresh": (4.0, 0.8), "forked": (2.0, 0.1)}


@dataclass(frozen=True, slots=True)
class CampaignCost:
    """What a campaign costs: its phases, roughly the starts and ends of replicas, and at most so many bytes on the disk."""

    duration_s: float
    starts_s: float
    disk_bytes: int
    starts: int

    @property
    def total_s(self) -> float:
        """Phases and starts: about the time on a clock."""
        return self.duration_s + self.starts_s


def expand(spec: CampaignSpec) -> list[ExperimentSpec]:
    """The experiments in the order they run, or of an open-ended campaign as many as it may come to. Raises UsageError for an unknown metric.

    ``listed`` runs all repeats of a cell in a row, ``interleaved`` one repeat of every cell and then the next, ``random`` shuffles
    within each repeat. The conditions of a cell always follow each other within a repeat: whatever drifts hits all of them alike.
    Where nodes have to be switched, cells of one mode follow each other, beginning with the mode of the repeat before.
    Loads that share a start follow each other in an order of their own, whatever the order of the starts.
    """
    if spec.stress is not None:
        repeats_of_last = range(2, spec.most_repeats + 1)
        at_most, grid = spec.stress.at_most(), spec.stress.grid()
        every_series = [
            [cell for cell, load in zip(cells, grid, strict=False) if load in at_most] for cells in spec.series()
        ]
        return [
            one_experiment(spec, cell, repeat)
            for cells in every_series
            for cell, repeat in [*((cell, 1) for cell in cells), *((cells[-1], repeat) for repeat in repeats_of_last)]
        ]
    if not spec.one_start:
        return _in_order(spec, spec.cells())
    loads: dict[str, list[CellSpec]] = {}
    for cell in spec.cells():
        loads.setdefault(cell.whatever_load(1), []).append(cell)
    return [
        one_experiment(spec, cell, first.repeat)
        for first in _in_order(spec, [cells[0] for cells in loads.values()])
        for cell in _shuffled(loads[first.cell.whatever_load(1)], f"{spec.seed} {first.start}")
    ]


def _shuffled(cells: Sequence[CellSpec], seed: str) -> list[CellSpec]:
    return random.Random(seed).sample(cells, len(cells))  # noqa: S311 - as below


def _in_order(spec: CampaignSpec, every_cell: Sequence[CellSpec]) -> list[ExperimentSpec]:
    """The repeats of these cells in the order of the campaign."""
    groups = [
        list(cells) for _, cells in itertools.groupby(every_cell, key=lambda cell: (*cell[:3], cell.mps, cell.turns))
    ]

    repeats = range(1, spec.most_repeats + 1)
    if spec.order is Order.LISTED:
        return [one_experiment(spec, cell, repeat) for cells in groups for repeat in repeats for cell in cells]
    shuffle = random.Random(spec.seed)  # noqa: S311 - an order to repeat, not a secret
    experiments: list[ExperimentSpec] = []
    for repeat in repeats:
        order = [list(cells) for cells in groups]
        if spec.order is Order.RANDOM:
            shuffle.shuffle(order)
            for cells in order:
                shuffle.shuffle(cells)
        if spec.switches_sharing:
            order = _in_blocks(order, experiments[-1].cell if experiments else order[0][0])
        experiments += [one_experiment(spec, cell, repeat) for cells in order for cell in cells]
    return experiments


def _in_blocks(order: Sequence[list[CellSpec]], before: CellSpec) -> list[list[CellSpec]]:
    """The same order, but each mode (and number of replicas under MPS, which sets their share) in one block, that of ``before`` first."""
    modes = list(dict.fromkeys([before.sharing, *(cells[0].sharing for cells in order)]))
    setups = list(dict.fromkeys([_setup(before), *(_setup(cells[0]) for cells in order)]))
    return sorted(order, key=lambda cells: (modes.index(cells[0].sharing), setups.index(_setup(cells[0]))))


def _setup(cell: CellSpec) -> tuple[Sharing, int]:
    return cell.sharing, cell.replicas if mode_of(cell.sharing).concurrent else 0


def planned_ids(spec: CampaignSpec) -> set[str]:
    """Ids of all experiments that the campaign may come to."""
    return {cell.experiment_id(repeat) for cell in spec.cells() for repeat in range(1, spec.most_repeats + 1)}


def one_experiment(spec: CampaignSpec, cell: CellSpec, repeat: int) -> ExperimentSpec:
    """One repeat of one cell, with everything needed to run it. Raises UsageError for an unknown metric."""
    fields = cell._asdict()
    turns = fields.pop("turns")
    return ExperimentSpec.model_validate(
        {
            **{name: getattr(spec, name) for name in ("gpus", "timing", "limits", "slo")},
            **fields,
            "time_slice": turns,
            "repeat": repeat,
            "metrics": _metrics(spec, cell),
            "one_start": spec.one_start,
        }
    )


def _metrics(spec: CampaignSpec, cell: CellSpec) -> list[str]:
    """Names of the metrics of one cell: those asked for, and with ``all`` whatever its workloads publish of their own."""
    wanted = "all" if spec.metrics == "all" else spec.metrics
    beside = cell.condition.neighbours if cell.condition else []
    targets = [cell.workload.target, *(neighbour.workload.target for neighbour in beside)]
    chosen = {metric.name: metric for target in targets for metric in select(wanted, workload=target)}
    unseen = [name for name, metric in chosen.items() if _is_unseen(metric, cell.workload)]
    if unseen and wanted != "all":
        raise UsageError(
            f"{unseen[0]} cannot be measured of {cell.workload.name}, a server that runs already.",
            advice="Leave it out of `metrics`: the harness knows only what its clients see, and the devices of this machine.",
        )
    return [name for name in CATALOGUE if name in chosen and name not in unseen]


def _is_unseen(metric: Metric, workload: WorkloadSpec) -> bool:
    """Whether it would be that of a process or a machine where the workload is not."""
    server = workload.server
    if server is None or not server.url:
        return False
    return metric.source in PROCESS_SOURCES or (server.elsewhere and metric.source not in REPLICA_SOURCES)


def certain(spec: CampaignSpec) -> list[ExperimentSpec]:
    """The experiments that will be run in any case: all, the first point of each series, or the repeats before the first look."""
    if spec.stress is None:
        looked_at = spec.until_known.first_look if spec.until_known else spec.most_repeats
        return [experiment for experiment in expand(spec) if experiment.repeat <= looked_at]
    return [one_experiment(spec, cells[0], 1) for cells in spec.series()]


def gives_gpus(spec: CampaignSpec) -> bool:
    """Whether replicas that may use a GPU will have one: of a cluster, or of this machine."""
    if spec.backend == KUBERNETES:
        return spec.kubernetes is None or spec.kubernetes.gpus_per_replica > 0
    return bool(gpu_facts()[0])


def planned_mode(cell: CellSpec, *, gpus: bool) -> str:
    """The sharing mode of a cell for people: ``CPU`` where its replicas will share no GPU."""
    on_cpu = cell.workload.device is Device.CPU or not gpus
    return ON_CPU if on_cpu and mode_of(cell.sharing).takes_turns else cell.mode


def titles(spec: CampaignSpec) -> dict[str, str]:
    """Of experiments that will share no GPU, by their ids: what to call them while they run."""
    gpus = gives_gpus(spec)
    return {
        experiment.experiment_id: experiment.cell.title(experiment.repeat, ON_CPU)
        for experiment in expand(spec)
        if planned_mode(experiment.cell, gpus=gpus) == ON_CPU
    }


def _ascending_loads(experiments: Sequence[ExperimentSpec]) -> list[ExperimentSpec]:
    """Workload by workload and mode by mode, the loads of a sweep ascending: a start serves them in random order."""
    groups = list(dict.fromkeys((it.workload.family, it.sharing) for it in experiments))
    return sorted(
        experiments,
        key=lambda it: (groups.index((it.workload.family, it.sharing)), it.load.value if it.load else 0.0),
    )


def matrix(experiments: Sequence[ExperimentSpec], *, gpus: bool = True) -> tuple[list[str], list[list[object]]]:
    """Titles and rows of a small table: a row for each workload, mode and condition, with its numbers of replicas, repeats and runs."""
    rows: dict[tuple[str, str, str], list[ExperimentSpec]] = {}
    for experiment in _ascending_loads(experiments):
        mode = planned_mode(experiment.cell, gpus=gpus)
        rows.setdefault((experiment.workload.name, mode, experiment.condition_name), []).append(experiment)
    named = any(condition for _, _, condition in rows)
    table: list[list[object]] = []
    for (workload, mode, condition), runs in rows.items():
        replicas = ", ".join(map(str, sorted({run.replicas for run in runs})))
        repeats = max(run.repeat for run in runs)
        table.append([workload, mode, *([condition] if named else []), replicas, repeats, len(runs)])
    return ["workload", "mode", *(["condition"] if named else []), "replicas", "repeats", "runs"], table


def estimate(experiments: Sequence[ExperimentSpec]) -> CampaignCost:
    """What the experiments cost together."""
    starts = {experiment.start: experiment for experiment in experiments}
    return CampaignCost(
        duration_s=sum(experiment.timing.phases_s for experiment in experiments),
        starts_s=sum(map(_start_s, starts.values())),
        disk_bytes=sum(_disk_bytes(experiment) for experiment in experiments),
        starts=len(starts),
    )


def _start_s(experiment: ExperimentSpec) -> float:
    layered = experiment.condition is not None and experiment.condition.layer is not None
    groups = [(experiment.workload.can_fork and not layered, experiment.replicas)]
    groups += [(neighbour.workload.can_fork, neighbour.replicas) for neighbour in experiment.neighbours]
    # They start side by side: the slowest group, and for each replica what it adds.
    slowest_s = added_s = 0.0
    for can_fork, replicas in groups:
        start_s, of_a_replica_s = START_S[experiment.timing.start if can_fork else "fresh"]
        slowest_s = max(slowest_s, start_s)
        added_s += of_a_replica_s * replicas
    return slowest_s + added_s


def most(spec: CampaignSpec) -> CampaignCost:
    """What a campaign costs at most: every experiment that it may come to, and no more time than its budget."""
    cost = estimate(expand(spec))
    budget_s = spec.until_known.budget_s if spec.until_known else math.inf
    part = min(1.0, budget_s / (cost.duration_s + cost.starts_s))
    return replace(cost, duration_s=part * cost.duration_s, starts_s=part * cost.starts_s)


def dearest_point(spec: CampaignSpec) -> CampaignCost:
    """What one point of a stress campaign costs at most: that with the most replicas."""
    return estimate([max(expand(spec), key=lambda experiment: experiment.cell.processes)])


def at_most_gb(size_bytes: float) -> str:
    """Rounded up, so that it is an upper limit and never 0: ``0.1 GB``."""
    return f"{math.ceil(size_bytes / 1e8) / 10:.1f} GB"


def _disk_bytes(experiment: ExperimentSpec) -> int:
    timing = experiment.timing
    processes = experiment.cell.processes
    series = processes + len(experiment.neighbours) + NODE_AND_DEVICE_SERIES
    rows = timing.rows * series * len(experiment.metrics) * BYTES_PER_ROW
    telemetry = timing.record_s / timing.telemetry_interval_s * BYTES_PER_TELEMETRY_ROW
    busy_s = timing.stabilise_s + timing.record_s
    requests = busy_s * ASSUMED_REQUESTS_PER_S * processes * BYTES_PER_REQUEST
    return round(FIXED_BYTES + rows + telemetry + requests)


def loads(experiments: Sequence[ExperimentSpec]) -> dict[str, LoadFacts]:
    """What the files that servers are asked from hold, by workload; without those that are not there. Raises LoadError."""
    workloads = {
        workload.name: workload
        for experiment in experiments
        for workload in (experiment.workload, *(neighbour.workload for neighbour in experiment.neighbours))
    }
    servers = {
        name: workload.server for name, workload in workloads.items() if workload.server and _is_there(workload.server)
    }
    facts = {name: load_facts(server) for name, server in servers.items()}
    return {name: load for name, load in facts.items() if load}


def _is_there(server: ServerSpec) -> bool:
    file = server.trace.file if server.trace else server.requests.file
    return file is not None and Path(file).is_file()


def check_limits(spec: CampaignSpec, cost: CampaignCost) -> None:
    """Hold the plan against the campaign's own limits and its budget. Raises UsageError."""
    wanted, least_s = spec.until_known, estimate(certain(spec)).total_s
    if wanted is not None and wanted.budget_s < least_s:
        raise UsageError(
            f"the budget of {wanted.budget} answers nothing: the {wanted.first_look} repeats before the first look take about "
            f"{duration(round(least_s))} with the starts of the replicas.",
            advice=f"Raise `repeats.until_known.budget` to {math.ceil(least_s / 10) * 10} s, or take shorter phases.",
        )
    limits = spec.limits
    for name, most_of_it, needed, unit in (
        ("max_hours", limits.max_hours, cost.total_s / 3600, "h"),
        ("max_disk_gb", limits.max_disk_gb, cost.disk_bytes / 1e9, "GB"),
    ):
        if most_of_it is not None and needed > most_of_it:
            raise UsageError(
                f"the campaign {spec.name} takes {needed:.1f} {unit}, more than its limits.{name} of {most_of_it:g}.",
                advice="Use fewer experiments or shorter phases, or raise the limit.",
            )
