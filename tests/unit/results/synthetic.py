"""Result sets with known answers, written by the real writers: with and without a GPU, finished or not.

The model behind the numbers: one replica alone takes ``SERVICE_S`` a request; the device as a whole saturates
at ``CAPACITY`` times the rate of one replica. Replica i is ``FAIRNESS_STEP * i`` slower than its share.
Under MPS it saturates at ``MPS_CAPACITY`` times that rate.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.metrics.catalogue import STANDARD
from harness.metrics.rows import MetricRow
from harness.results.layout import attempt_folder, iso, replica_folder, replica_log
from harness.results.manifest import Gpu, Host, Manifest, Provenance, Software, Status, StepRecord, Verdict
from harness.results.requests import LATENCY
from harness.results.writers import ExperimentWriter, finalise
from harness.spec import (
    CampaignSpec,
    ConditionSpec,
    Device,
    ExperimentSpec,
    Limits,
    MpsLimits,
    MpsSpec,
    Sharing,
    Timing,
    WorkloadSpec,
)
from harness.spec.sharing import settings_under

METRICS = tuple(STANDARD)
GPU_METRICS = ("gpu_utilization", "gpu_memory", "gpu_power", "gpu_temperature")
SERVICE_S = {"resnet50": 0.0057, "distilbert": 0.0034, "whisper": 0.12}
CAPACITY = 2.1
MPS_CAPACITY = 4.2
FAIRNESS_STEP = 0.02
START_S = 1_790_000_000.0
NO_GPU = "no NVIDIA driver: libnvidia-ml.so.1 not found"
HOST = Host(
    hostname="bench",
    os="Ubuntu 24.04.3 LTS",
    kernel="6.14.0-37-generic",
    architecture="x86_64",
    cpu_model="Synthetic CPU",
    cpus=16,
    memory_bytes=64 * 2**30,
    cgroup_version=2,
    psi=True,
)
GPU = Gpu(
    index=0,
    name="Synthetic GPU",
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    memory_bytes=16 * 2**30,
    driver="580.95.05",
    cuda="13.0",
    clock_sm_max_mhz=1755,
    power_limit_w=62.5,
)
SOFTWARE = Software(
    harness="0.1.0", git_commit="0" * 40, git_dirty=False, python="3.12.3", packages={"torch": "2.13.0"}
)


@dataclass(frozen=True)
class Shape:
    """How one synthetic recording looks."""

    gpu: bool = True
    record_s: float = 60.0
    step_s: float = 1.0
    seed: int = 0
    noise: float = 0.02
    status: Status = Status.VALID
    scale: float = 1.0
    sharing: Sharing = Sharing.TIME_SLICING
    condition: ConditionSpec | None = None
    mps: MpsLimits | None = None
    driver: str = "580.95.05"
    utilization_alone: float = 98.0


def experiment_spec(workload: str, replicas: int, repeat: int, shape: Shape) -> ExperimentSpec:
    timing = Timing(step_s=shape.step_s, stabilise_s=10, record_s=shape.record_s, cooldown_s=5)
    return ExperimentSpec(
        workload=WorkloadSpec(name=workload, device=Device.CUDA if shape.gpu else Device.CPU),
        replicas=replicas,
        sharing=shape.sharing,
        condition=shape.condition,
        mps=shape.mps,
        repeat=repeat,
        timing=timing,
        metrics=list(METRICS),
        limits=Limits(),
    )


def rates(workload: str, replicas: int, shape: Shape) -> list[float]:
    """Requests per second of every replica, without noise."""
    alone = shape.scale / SERVICE_S[workload]
    shares = [1 - FAIRNESS_STEP * index for index in range(replicas)]
    capacity = MPS_CAPACITY if shape.sharing is Sharing.MPS else CAPACITY
    total = alone * (1 - math.exp(-replicas / capacity)) / (1 - math.exp(-1 / capacity))
    return [total * share / sum(shares) for share in shares]


def write_attempt(folder: Path, spec: ExperimentSpec, shape: Shape, start_s: float) -> Manifest:
    """Write everything a runner leaves in the attempt folder; returns the manifest to finalise it with."""
    mode = list(Sharing).index(shape.sharing)
    random = np.random.default_rng([shape.seed, spec.replicas, spec.repeat, *([mode] if mode != 1 else [])])
    name, rows = spec.workload.name, spec.timing.rows
    each = [rate * random.normal(1, shape.noise) for rate in rates(name, spec.replicas, shape)]
    with ExperimentWriter(
        folder, workload=name, replicas=spec.replicas, metrics=METRICS, start_s=start_s, step_s=shape.step_s
    ) as writer:
        for index in range(rows):
            writer.write(_tick(start_s + index * shape.step_s, index, each, shape, random))
    for replica, rate in enumerate(each):
        _write_replica(folder, replica, rate, start_s, shape, random)
    _write_telemetry(folder / "telemetry.csv", start_s, shape, random)
    return manifest_for(spec, shape, start_s)


def manifest_for(spec: ExperimentSpec, shape: Shape, start_s: float) -> Manifest:
    bad = shape.status is not Status.VALID
    steps = {}
    at_s = start_s - 25
    for step, seconds in (
        ("preflight", 0.2),
        ("deploy", 4.0),
        ("stabilise", 10.0),
        ("record", shape.record_s),
        ("export", 0.4),
        ("verify", 0.1),
        ("cleanup", 0.5),
        ("cooldown", 5.0),
    ):
        steps[step] = StepRecord(started_at=iso(at_s), seconds=seconds, ok=True)
        at_s += seconds
    return Manifest(
        experiment_id=spec.experiment_id,
        campaign="synthetic",
        attempt=1,
        experiment=spec,
        command=["harness", "run", "synthetic"],
        provenance=Provenance(
            host=HOST,
            gpus=[GPU.model_copy(update={"driver": shape.driver})] if shape.gpu else [],
            gpus_absent="" if shape.gpu else NO_GPU,
            software=SOFTWARE,
        ),
        replicas=[
            {"pid": 100 + index, "device": "cuda" if shape.gpu else "cpu", "phase": "serving", "parameters": 25557032}
            for index in range(spec.replicas)
        ],
        steps=steps,
        seeds={"order": 0, "workload": 0},
        start_s=start_s,
        rows=spec.timing.rows,
        absent_metrics={} if shape.gpu else dict.fromkeys(GPU_METRICS, NO_GPU),
        verdict=Verdict(
            status=shape.status,
            reasons=["replica-0 served nothing"] if bad else [],
            advice=["Read logs/replica-0.log."] if bad else [],
        ),
    )


def write_experiment(
    campaign: Path, workload: str, replicas: int, repeat: int = 1, shape: Shape | None = None, order: int = 0
) -> Path:
    """One finished experiment in the campaign's folder."""
    shape = shape or Shape()
    spec = experiment_spec(workload, replicas, repeat, shape)
    attempt = attempt_folder(campaign, spec.experiment_id, 1)
    manifest = write_attempt(attempt, spec, shape, START_S + order * 600)
    final = campaign / spec.experiment_id
    finalise(attempt, final, manifest)
    return final


def write_campaign(
    folder: Path,
    *,
    workloads: Sequence[str] = ("resnet50",),
    replicas: Sequence[int] = (1, 3),
    repeats: int = 3,
    shape: Shape | None = None,
    finished: int | None = None,
    sharing: Sequence[Sharing] = (Sharing.TIME_SLICING,),
    conditions: Sequence[ConditionSpec] = (),
    mps: MpsSpec | None = None,
) -> Path:
    """A campaign's folder; only the first ``finished`` experiments are there when that is given."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    plan = [
        (w, r, k, m, limits, c)
        for w in workloads
        for m in sharing
        for limits, _turns in settings_under(m, mps, [])
        for r in replicas
        for c in conditions or (None,)
        for k in range(1, repeats + 1)
        if m is not Sharing.EXCLUSIVE or r == 1
    ]
    campaign = CampaignSpec(
        name="synthetic",
        description="Made-up numbers with known answers.",
        workloads=[experiment_spec(w, 1, 1, shape).workload for w in workloads],
        replicas=list(replicas),
        repeats=repeats,
        sharing=list(sharing),
        conditions=list(conditions),
        mps=mps,
        timing=experiment_spec(workloads[0], 1, 1, shape).timing,
    )
    document = {"format": 1, "campaign_id": f"{shape.seed:032}", "source": "synthetic.yaml"}
    document |= {"created_at": iso(START_S), "spec": campaign.model_dump(mode="json")}
    document |= {"source_sha256": hashlib.sha256(b"name: synthetic\n").hexdigest()}
    (folder / "campaign.yaml").write_text("name: synthetic\n")
    (folder / "campaign.json").write_text(json.dumps(document, indent=2))
    for order, (workload, count, repeat, mode, limits, condition) in enumerate(plan[:finished]):
        own = replace(shape, sharing=mode, mps=limits, condition=condition)
        write_experiment(folder, workload, count, repeat, own, order)
    return folder


def _tick(
    time_s: float, index: int, each: Sequence[float], shape: Shape, random: np.random.Generator
) -> list[MetricRow]:
    wobble = float(random.normal(1, shape.noise / 4))
    total = sum(each) * wobble
    rows = []
    for replica, rate in enumerate(each):
        rows += _latency_rows(f"replica-{replica}", time_s, 1 / rate * wobble)
        rows += [
            MetricRow("throughput", f"replica-{replica}", time_s, rate * wobble),
            MetricRow("total_count", f"replica-{replica}", time_s, float(round(rate * index * shape.step_s))),
            MetricRow("cpu_usage", f"replica-{replica}", time_s, 1.0 * wobble),
            MetricRow("memory_usage", f"replica-{replica}", time_s, 3.1e9),
        ]
    rows += _latency_rows("all", time_s, len(each) / total)
    rows += [
        MetricRow("throughput", "all", time_s, total),
        MetricRow("total_count", "all", time_s, float(round(sum(each) * index * shape.step_s))),
        MetricRow("cpu_usage", "all", time_s, len(each) * wobble),
        MetricRow("memory_usage", "all", time_s, 3.1e9 * len(each)),
        MetricRow("cpu_psi", "node", time_s, min(100.0, 2.5 * len(each) * wobble)),
        MetricRow("memory_psi", "node", time_s, 0.0),
        MetricRow("io_psi", "node", time_s, 0.4),
    ]
    if shape.gpu:
        rows += [
            MetricRow(
                "gpu_utilization", "gpu-0", time_s, min(100.0, shape.utilization_alone + (len(each) - 1) * wobble)
            ),
            MetricRow("gpu_memory", "gpu-0", time_s, 6e8 + 9.7e8 * len(each)),
            MetricRow("gpu_power", "gpu-0", time_s, 55 + 2 * wobble),
            MetricRow("gpu_temperature", "gpu-0", time_s, 60 + 8 * (1 - math.exp(-index / 20))),
        ]
    return rows


def _latency_rows(series: str, time_s: float, mean_s: float) -> list[MetricRow]:
    factors = {"latency_avg": 1.0, "latency_p50": 0.97, "latency_p95": 1.2, "latency_p99": 1.4}
    return [MetricRow(metric, series, time_s, mean_s * factor) for metric, factor in factors.items()]


def _write_replica(
    folder: Path, replica: int, rate: float, start_s: float, shape: Shape, random: np.random.Generator
) -> None:
    home = replica_folder(folder, replica)
    home.mkdir(parents=True)
    requests = int(rate * (shape.record_s + 10))
    latency_s = random.gamma(400, 1 / rate / 400, size=requests)
    records = np.empty(requests, dtype=LATENCY)
    records["latency_ns"] = latency_s * 1e9
    ends_s = np.cumsum(latency_s) - 10  # The first ten seconds are the stabilise phase.
    records["start_ns"] = ((start_s + ends_s - latency_s) * 1e9).astype(np.int64)
    records.tofile(home / "latencies.bin")
    (home / "replica.json").write_text(json.dumps({"pid": 100 + replica, "phase": "stopped"}))
    log = replica_log(folder, replica)
    log.parent.mkdir(exist_ok=True)
    log.write_text("serving\n")


def _write_telemetry(path: Path, start_s: float, shape: Shape, random: np.random.Generator) -> None:
    columns = ["timestamp", "elapsed_s"]
    if shape.gpu:
        columns += [
            "gpu0_utilization_percent",
            "gpu0_power_w",
            "gpu0_energy_j",
            "gpu0_sm_active_percent",
            "gpu0_throttle_reasons",
        ]
    columns += ["host_cpu_percent"]
    lines = [",".join(columns)]
    for index in range(int(shape.record_s / 0.25) + 1):
        elapsed_s = index * 0.25
        cells = [iso(start_s + elapsed_s), repr(elapsed_s)]
        if shape.gpu:
            cells += ["99", repr(57.0), repr(1000.0 + 57.0 * elapsed_s), "62.5", "4.0" if index % 4 == 0 else "0.0"]
        cells.append(f"{random.normal(20, 2):.1f}")
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")


def row_of_everything(time_s: float) -> list[MetricRow]:
    """One row of each metric at one time."""
    return [MetricRow(metric, "node", time_s, 0.1 + index) for index, metric in enumerate(METRICS)]
