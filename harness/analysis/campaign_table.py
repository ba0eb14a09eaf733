"""``campaign.parquet``: all experiments of a campaign in one table, a row each, units in the names and a dictionary inside."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from harness.analysis.campaign import CampaignAnalysis, MeasuredRun
from harness.analysis.comparability import MACHINE
from harness.analysis.metrics.attribution import ReplicaUse
from harness.analysis.metrics.catalogue import ALL, OF_REPLICAS, ResultMetric
from harness.results.manifest import Manifest
from harness.sharing.modes import mode_of
from harness.spec import ExperimentSpec, SweptLoad

DICTIONARY = "data_dictionary"
REASONS = "missing_reasons"
_TIME = "timestamp[ms, tz=UTC]"
_NOT_ASKED = "it was not recorded: the workload does not give it, or the campaign did not ask for it"


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """One column: name with the unit at its end, Arrow type, unit (empty for words), what it is, and its value of an experiment."""

    name: str
    kind: str
    unit: str
    description: str
    value: Callable[[MeasuredRun], Any]


def _figure(metric: ResultMetric) -> ParquetColumn:
    about = f"{metric.title}. {metric.how}"
    return ParquetColumn(metric.column, "double", metric.unit, about, lambda run: run.figures.get(metric.name))


def _missing(run: MeasuredRun) -> str:
    """As a JSON object: column to the reason why it is null; empty when none is."""
    damage = "; ".join(run.damage)
    absent = [name for name in ALL if name not in run.figures]
    reasons = {ALL[name].column: damage or run.absent.get(name, _NOT_ASKED) for name in absent}
    if not run.gpu_use:
        reasons |= {column.name: damage or run.gpu_use_absent for column in _OF_REPLICAS}
    return json.dumps(reasons, ensure_ascii=False)


def _about(name: str, kind: str, unit: str, description: str, value: str | Callable[[Manifest], Any]) -> ParquetColumn:
    """One that the manifest gives: by a path of attributes, or by a function."""
    of_manifest = attrgetter(value) if isinstance(value, str) else value
    return ParquetColumn(name, kind, unit, description, lambda run: of_manifest(run.data.manifest))


def _word(name: str, description: str, value: str | Callable[[Manifest], Any]) -> ParquetColumn:
    return _about(name, "string", "", description, value)


def _lowest_of_gpus(field: str, manifest: Manifest) -> float | None:
    return _lowest(getattr(gpu, field) for gpu in manifest.gpus)


def _lowest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _share_percent(experiment: ExperimentSpec) -> float | None:
    if not mode_of(experiment.sharing).takes_limits:
        return None
    limited = experiment.mps.percentage(experiment.replicas_per_gpu) if experiment.mps else None
    return 100.0 if limited is None else limited


def _load(part: Callable[[SweptLoad], Any]) -> Callable[[Manifest], Any]:
    return lambda manifest: manifest.experiment.load and part(manifest.experiment.load)


_ABOUT = (
    _word("campaign", "Name of its folder.", "campaign"),
    _word("experiment", "Its id, and the name of its folder.", "experiment_id"),
    _word("workload", "Name of the workload.", "experiment.workload.name"),
    _about("replicas", "int64", "", "Replicas that ran at the same time.", "experiment.replicas"),
    _word("sharing", "Sharing mode.", "experiment.sharing.value"),
    _word("condition", "Empty where the campaign names none.", "experiment.condition_name"),
    _word(
        "mps_limits",
        "Limits of each replica under MPS: share of the SMs, memory; empty without.",
        "experiment.cell.mps_limits",
    ),
    _word(
        "time_slice",
        "Length of the time slice; empty where the campaign sets none.",
        "experiment.cell.time_slice",
    ),
    _about(
        "load",
        "double",
        "",
        "Load of the sweep, in load_unit; null without one.",
        _load(attrgetter("value")),
    ),
    _word("load_unit", "E.g. resident requests per GPU; null without a sweep.", _load(attrgetter("unit"))),
    _about(
        "mps_share_percent",
        "double",
        "%",
        "The share as a percentage; null under other modes.",
        lambda made: _share_percent(made.experiment),
    ),
    _about(
        "multiprocessors",
        "int64",
        "",
        "SMs that a replica had (the fewest); null where none says.",
        lambda made: _lowest(replica.get("multiprocessors") for replica in made.replicas),
    ),
    _about(
        "gpu_slices",
        "int64",
        "",
        "Slices of each GPU on a cluster.",
        lambda made: _lowest(replica.get("gpu_slices") for replica in made.replicas),
    ),
    _about("repeat", "int64", "", "Which repeat, from 1.", "experiment.repeat"),
    _word("verdict", "VALID, DEGRADED or INVALID.", "verdict.status.value"),
    _word("verdict_reasons", "Why it is not VALID.", lambda made: "; ".join(made.verdict.reasons)),
    ParquetColumn("used", "bool", "", "Whether it enters averages: neither INVALID nor damaged.", attrgetter("used")),
    _about("recording_start", _TIME, "UTC", "First row of the recording.", lambda made: round(made.start_s * 1000)),
    ParquetColumn(
        "recording_seconds", "double", "s", "From the first row to the last.", lambda run: max(0, run.data.duration_s)
    ),
    _about("batch_size", "int64", "", "Inputs in one request.", "experiment.workload.batch_size"),
    *(
        _word(name, description, MACHINE[key])
        for name, key, description in (
            ("gpu_models", "GPU", "GPUs that the replicas ran on; none on a CPU."),
            ("gpu_driver", "GPU driver", "Version of their driver."),
            ("cpu_model", "CPU", "Model of the machine's CPU."),
            ("torch", "torch", "Version in the replicas."),
        )
    ),
    _about(
        "gpu_power_limit_watts", "double", "W", "The lowest of those GPUs.", partial(_lowest_of_gpus, "power_limit_w")
    ),
    _about(
        "gpu_clock_max_mhz", "double", "MHz", "The lowest of those GPUs.", partial(_lowest_of_gpus, "clock_sm_max_mhz")
    ),
    _about("cpus", "int64", "", "CPUs that the harness may use.", "provenance.host.cpus"),
    _about("host_memory_bytes", "int64", "bytes", "Memory of the machine.", "provenance.host.memory_bytes"),
    _word("kernel", "Of the machine.", "provenance.host.kernel"),
    _word("harness_version", "Of this harness.", "provenance.software.harness"),
    _word("git_commit", "Of its checkout; null without one.", "provenance.software.git_commit"),
)


def _of_replicas(name: str, value: Callable[[ReplicaUse], float | None]) -> ParquetColumn:
    metric = OF_REPLICAS[name]
    about = f"{metric.title}, a list in the order of the replicas. {metric.how}"
    return ParquetColumn(
        metric.column,
        "list<element: double>",
        metric.unit,
        about,
        lambda run: [value(replica) for replica in run.gpu_use.replicas] if run.gpu_use else None,
    )


_OF_REPLICAS = (
    _of_replicas("replica_power", lambda replica: replica.power_w),
    _of_replicas("replica_energy", lambda replica: replica.energy_j),
    _of_replicas("replica_sm_active", lambda replica: replica.sm_active_percent),
    ParquetColumn(
        "gpu_idle_power_watts",
        "double",
        "W",
        "Of the replicas' GPUs together, read before the replicas started.",
        lambda run: run.gpu_use.idle_w if run.gpu_use else None,
    ),
)

COLUMNS: tuple[ParquetColumn, ...] = (
    *_ABOUT,
    *_OF_REPLICAS,
    *map(_figure, ALL.values()),
    ParquetColumn(REASONS, "string", "", "JSON object: each metric that is null, and why.", _missing),
)


def dictionary() -> list[dict[str, str]]:
    """Every column: ``name``, ``type``, ``unit`` and ``description``."""
    return [
        {"name": column.name, "type": column.kind, "unit": column.unit, "description": column.description}
        for column in COLUMNS
    ]


def to_parquet(analysis: CampaignAnalysis) -> bytes:
    """The file's content: a row for each finished experiment, by start of recording."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    types["list<element: double>"] = pa.list_(pa.float64())
    schema = pa.schema(
        [(column.name, types.get(column.kind, pa.timestamp("ms", "UTC"))) for column in COLUMNS],
        metadata={DICTIONARY: json.dumps(dictionary(), ensure_ascii=False)},
    )
    rows = [{column.name: column.value(run) for column in COLUMNS} for run in analysis.experiments]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), content, compression="zstd")
    return content.getvalue()
