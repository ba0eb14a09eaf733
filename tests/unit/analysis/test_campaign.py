from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from harness.analysis.campaign import CampaignAnalysis, Cell, LoadState, MeasuredRun, analyse, measure
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.read import read_experiment
from harness.errors import ResultsPathError
from harness.metrics.catalogue import CATALOGUE
from harness.results.files import atomic_write, sha256_of
from harness.results.layout import metric_files
from harness.results.manifest import FileEntry, Status, read_manifest
from harness.results.writers import finalise
from tests.unit.results.synthetic import (
    FAIRNESS_STEP,
    NO_GPU,
    SERVICE_S,
    START_S,
    Shape,
    experiment_spec,
    rates,
    write_attempt,
    write_campaign,
    write_experiment,
)

SHAPE = Shape(record_s=20, noise=0.005)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_campaign(tmp_path_factory.mktemp("results") / "synthetic", replicas=[1, 3], repeats=3, shape=SHAPE)


@pytest.fixture(scope="module")
def analysis(folder: Path) -> CampaignAnalysis:
    return analyse(folder)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "synthetic")


def cell(analysis: CampaignAnalysis, replicas: int) -> Cell:
    (found,) = [cell for cell in analysis.cells if cell.replicas == replicas]
    return found


def test_throughput_and_speed_up_are_those_of_the_model(analysis: CampaignAnalysis) -> None:
    one, three = cell(analysis, 1), cell(analysis, 3)
    truth = sum(rates("resnet50", 3, SHAPE))
    assert one.estimates["throughput"].mean == pytest.approx(1 / SERVICE_S["resnet50"], rel=0.02)
    assert three.estimates["throughput"].mean == pytest.approx(truth, rel=0.02)
    assert three.estimates["speed_up"].mean == pytest.approx(truth * SERVICE_S["resnet50"], rel=0.03)
    assert three.estimates["efficiency"].mean == pytest.approx(three.estimates["speed_up"].mean / 3)
    assert three.estimates["speed_up"].low is not None
    assert one.estimates["speed_up"].mean == 1


def test_what_is_not_of_a_metrics_rows_bears_no_metrics_name(copy: Path) -> None:
    """``latency_p99`` is a CSV of the histogram's estimates, so the exact one, of the raw log, is called otherwise."""
    experiment = next(path for path in copy.glob("resnet50_r3_*") if path.is_dir())
    whole = measure(read_experiment(experiment)).figures
    for metric in ("latency_avg", "latency_p50", "latency_p95", "latency_p99"):
        metric_files(experiment)[metric].unlink()
    assert measure(read_experiment(experiment)).figures == whole

    (experiment / "requests.parquet").unlink()
    (experiment / "telemetry.csv").unlink()
    rest = measure(read_experiment(experiment)).figures
    changed = {name for name in whole if rest.get(name) != whole[name]}
    assert {"latency_mean", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact"} < changed
    assert not changed & set(CATALOGUE)
    titles = {metric.title for metric in CATALOGUE.values()}
    assert not titles & {METRICS[name].title for name in changed}


def test_percentiles_come_from_every_request(analysis: CampaignAnalysis) -> None:
    one = cell(analysis, 1)
    assert one.estimates["latency_p50_exact"].mean == pytest.approx(SERVICE_S["resnet50"], rel=0.02)
    assert one.estimates["latency_p99_exact"].mean == pytest.approx(SERVICE_S["resnet50"] * 1.119, rel=0.02)
    assert one.estimates["requests"].mean == pytest.approx(20 / SERVICE_S["resnet50"], rel=0.02)


def test_fairness_energy_and_memory(analysis: CampaignAnalysis) -> None:
    three = cell(analysis, 3)
    assert three.estimates["fairness"].mean == pytest.approx(1 - 2 * FAIRNESS_STEP, abs=0.02)
    assert three.estimates["energy"].mean == pytest.approx(57 / sum(rates("resnet50", 3, SHAPE)), rel=0.02)
    assert three.estimates["gpu_memory"].mean == pytest.approx(6e8 + 9.7e8 * 3)
    assert "shares with no other" in cell(analysis, 1).absent["fairness"]


def test_intervals_and_loads(analysis: CampaignAnalysis) -> None:
    experiment = cell(analysis, 3).experiments[0]
    assert experiment.within.n == 5
    assert experiment.loads == {
        "node pressure": LoadState.EMPTY,
        "node CPU": LoadState.MODEST,
        "GPU": LoadState.CRITICAL,
    }
    assert cell(analysis, 3).estimates["throughput"].n == 3
    assert cell(analysis, 3).estimates["gpu_sm_active"].mean == 62.5
    assert cell(analysis, 3).estimates["gpu_power_capped"].mean == pytest.approx(100 * 21 / 81)  # readings


def test_without_a_gpu_every_gpu_figure_is_absent_with_the_reason(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, shape=Shape(gpu=False, record_s=20))
    (only,) = analyse(tmp_path).cells
    for name in ("energy", "gpu_memory", "gpu_power", "gpu_utilization", "gpu_temperature", "gpu_sm_active"):
        assert name not in only.estimates
        assert only.absent[name] == NO_GPU
    assert only.planned is None


def test_a_driver_without_performance_monitoring_leaves_sm_activity_out(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path, "resnet50", 1)
    telemetry = pd.read_csv(folder / "telemetry.csv").assign(gpu0_sm_active_percent=None)
    telemetry.to_csv(folder / "telemetry.csv", index=False)
    edit_then_seal(folder)
    (only,) = analyse(tmp_path).cells
    assert only.absent["gpu_sm_active"] == "the telemetry has no reading of sm_active_percent"
    assert "gpu_utilization" in only.estimates


def edit_then_seal(folder: Path, **changes: object) -> None:
    """Make a changed experiment whole again, as if it had been recorded so."""
    manifest = read_manifest(folder)
    entries = {
        name: FileEntry(sha256=sha256_of(folder / name), bytes=(folder / name).stat().st_size, rows=entry.rows)
        for name, entry in manifest.files.items()
        if (folder / name).exists()
    }
    sealed = manifest.model_copy(update={"files": entries, **changes}).sealed()
    atomic_write(folder / "manifest.json", sealed.to_json(), replace=True)


def only_experiment(folder: Path) -> MeasuredRun:
    (only,) = analyse(folder).experiments
    assert not only.damage
    return only


def energy_of(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> MeasuredRun:
    """What is measured of an experiment whose telemetry is another."""
    change(pd.read_csv(folder / "telemetry.csv")).to_csv(folder / "telemetry.csv", index=False)
    edit_then_seal(folder)
    return only_experiment(folder.parent)


def without(*columns: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda telemetry: telemetry.drop(columns=list(columns))


def blank(column: str, begin: int, end: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Of the 81 readings, those from ``begin`` to ``end`` without a value."""
    return lambda telemetry: telemetry.assign(
        **{column: telemetry[column].mask(telemetry.index.isin(range(begin, end)))}
    )


def reset(telemetry: pd.DataFrame) -> pd.DataFrame:
    telemetry.loc[40:, "gpu0_energy_j"] -= 1500
    return telemetry


def second_gpu(telemetry: pd.DataFrame) -> pd.DataFrame:
    """Beside one of 57 W, one of 114 W without a counter."""
    return telemetry.assign(gpu1_power_w=114.0, gpu1_energy_j=float("nan"))


def power_in_two_halves(telemetry: pd.DataFrame) -> pd.DataFrame:
    """57 W in the mean; the second half of it in readings twice as near to each other."""
    half = len(telemetry) // 2
    telemetry["gpu0_power_w"] = [30.0 if row < half else 84.0 for row in range(len(telemetry))]
    return telemetry.drop(columns="gpu0_energy_j").drop(index=range(0, half, 2))


@pytest.mark.parametrize(
    ("change", "gpus", "source"),
    [
        (without(), 1, "the energy counter of gpu-0"),
        (without("gpu0_energy_j"), 1, "the power over time of gpu-0"),
        (without("gpu0_energy_j", "gpu0_power_w"), 1, "the power over time of gpu-0"),
        (reset, 1, "the power over time of gpu-0"),
        (blank("gpu0_energy_j", 10, 20), 1, "the energy counter of gpu-0"),
        (second_gpu, 3, "the energy counter of gpu-0 and the power over time of gpu-1"),
        (power_in_two_halves, 1, "the power over time of gpu-0"),
    ],
)
def test_energy_is_of_every_gpu_by_its_counter_or_its_power(
    change: Callable[[pd.DataFrame], pd.DataFrame], gpus: int, source: str, tmp_path: Path
) -> None:
    measured = energy_of(write_experiment(tmp_path, "resnet50", 1, shape=SHAPE), change)
    assert f"Energy from {source}." in measured.notes
    assert measured.figures["energy"] == pytest.approx(gpus * 57 * SERVICE_S["resnet50"], rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda telemetry: telemetry.assign(gpu0_energy_j=1000.0), "stood still for 20 s of 20 s at 57 W"),
        (lambda telemetry: second_gpu(telemetry).drop(columns="gpu1_power_w"), "gpu-1 has no reading"),
        (blank("gpu0_energy_j", 40, 81), r"gpu-0 has its energy counter read over \d+ s of \d+ s only"),
        (
            lambda telemetry: blank("gpu0_power_w", 20, 50)(telemetry).drop(columns="gpu0_energy_j"),
            r"gpu-0 has its power read over \d+ s of \d+ s only",
        ),
    ],
)
def test_energy_that_is_not_known_is_missing(
    change: Callable[[pd.DataFrame], pd.DataFrame], reason: str, tmp_path: Path
) -> None:
    measured = energy_of(write_experiment(tmp_path, "resnet50", 1, shape=SHAPE), change)
    assert "energy" not in measured.figures
    assert re.search(reason, measured.absent["energy"])


def test_energy_of_fewer_gpus_than_the_replicas_ran_on_is_missing(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path, "resnet50", 1, shape=SHAPE)
    manifest = read_manifest(folder)
    [gpu] = manifest.provenance.gpus
    gpus = [gpu, *(gpu.model_copy(update={"index": index, "uuid": f"GPU-{index}"}) for index in (1, 2))]
    [replica] = manifest.replicas
    edit_then_seal(
        folder,
        provenance=manifest.provenance.model_copy(update={"gpus": gpus}),
        replicas=[replica | {"device_uuid": gpu.uuid, "second_device_uuid": "GPU-1"}],
    )
    measured = only_experiment(folder.parent)
    assert measured.absent["energy"] == "the replicas ran on 2 GPUs, of which 1 were read"


def test_without_counters_the_logs_give_the_throughput(tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 3, 1, SHAPE).model_copy(update={"metrics": ["latency_avg", "throughput"]})
    manifest = write_attempt(tmp_path / "attempts" / "one", spec, SHAPE, START_S)
    for path in (tmp_path / "attempts" / "one").glob("*total_count*"):
        path.unlink()
    finalise(tmp_path / "attempts" / "one", tmp_path / spec.experiment_id, manifest)
    measured = only_experiment(tmp_path)
    assert measured.figures["throughput"] == pytest.approx(sum(rates("resnet50", 3, SHAPE)), rel=0.02)
    assert len(measured.replica_throughput) == 3
    assert "raw latency logs" in measured.notes[0]
    assert measured.within is None


def unread(experiment: Path, replica: str, between_s: tuple[float, float]) -> None:
    """The replica's counter was not read in these rows, in which the pooled one stands where it stood."""
    path = metric_files(experiment)["total_count"]
    table = pd.read_csv(path, dtype={"reason": object})
    lost = (table["series"] == replica) & table["elapsed_s"].between(*between_s)
    table.loc[lost, "value"] = float("nan")
    table.loc[lost, "reason"] = "no answer in time"
    each = table.pivot_table(index="elapsed_s", columns="series", values="value").drop(columns="all")
    pooled = table["series"] == "all"
    table.loc[pooled, "value"] = table.loc[pooled, "elapsed_s"].map(each.ffill().sum(axis=1))
    table.to_csv(path, index=False)


@pytest.mark.parametrize("between_s", [(15.0, 20.0), (0.0, 4.0), (0.0, 20.0)], ids=["end", "beginning", "always"])
def test_what_a_replica_served_while_its_counter_could_not_be_read_is_in_its_log(
    copy: Path, between_s: tuple[float, float]
) -> None:
    experiment = copy / "resnet50_r3_time-slicing_rep1"
    whole = measure(read_experiment(experiment))
    unread(experiment, "replica-1", between_s)

    found = measure(read_experiment(experiment))

    assert found.figures["throughput"] == pytest.approx(whole.figures["throughput"], rel=0.01)
    assert found.replica_throughput == pytest.approx(whole.replica_throughput, rel=0.01)
    assert found.figures["fairness"] == pytest.approx(whole.figures["fairness"], rel=0.01)
    assert "Throughput with the raw latency logs: the counter of replica-1 was not read" in found.notes[0]
    assert found.within is None


def test_without_its_log_the_throughput_says_what_it_lacks(copy: Path) -> None:
    experiment = copy / "resnet50_r3_time-slicing_rep1"
    unread(experiment, "replica-1", (15.0, 20.0))
    (experiment / "requests.parquet").unlink()

    found = measure(read_experiment(experiment))

    truth = rates("resnet50", 3, SHAPE)
    assert found.figures["throughput"] == pytest.approx(sum(truth) - truth[1] * 6 / 20, rel=0.02)
    assert found.notes[0].startswith(
        "Throughput without what replica-1 served before the first or after the last reading"
    )
    assert "0 of 1 logs of requests are there" in found.notes[0]
    assert found.absent["fairness"] == "0 of 1 logs of requests are there"


def test_a_replica_that_serves_alone_is_counted_by_its_log_where_it_could_not_be_read(copy: Path) -> None:
    experiment = copy / "resnet50_r1_time-slicing_rep1"
    whole = measure(read_experiment(experiment))
    unread(experiment, "replica-0", (10.0, 20.0))

    found = measure(read_experiment(experiment))

    assert found.figures["throughput"] == pytest.approx(whole.figures["throughput"], rel=0.01)
    assert "of replica-0 was not read" in found.notes[0]


def test_a_reading_that_was_missed_within_the_recording_takes_nothing_from_the_throughput(copy: Path) -> None:
    experiment = copy / "resnet50_r3_time-slicing_rep1"
    whole = measure(read_experiment(experiment))
    unread(experiment, "replica-1", (5.0, 9.0))

    found = measure(read_experiment(experiment))

    assert found.figures["throughput"] == pytest.approx(whole.figures["throughput"], rel=0.001)
    assert found.notes == whole.notes


def test_a_percentile_without_support_is_absent(tmp_path: Path) -> None:
    write_experiment(tmp_path, "whisper", 1, shape=Shape(record_s=8))
    (only,) = analyse(tmp_path).cells
    assert "latency_p95_exact" in only.estimates
    assert "latency_p99_exact" not in only.estimates
    assert "at least 100 requests, there are fewer" in only.absent["latency_p99_exact"]


def test_invalid_runs_never_enter_the_averages(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, 1, Shape(record_s=20, noise=0))
    write_experiment(tmp_path, "resnet50", 1, 2, Shape(record_s=20, noise=0, scale=0.1, status=Status.INVALID))
    write_experiment(tmp_path, "resnet50", 3, 1, Shape(record_s=20, status=Status.INVALID))
    one, three = analyse(tmp_path).cells
    assert one.estimates["throughput"].n == 1
    assert one.estimates["throughput"].mean == pytest.approx(1 / SERVICE_S["resnet50"], rel=0.02)
    assert one.badge == "VALID"
    assert three.badge == "INVALID"
    assert "speed_up" not in three.estimates
    assert "can be used" in three.absent["speed_up"]


def test_degraded_runs_count_and_show(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, 1, Shape(record_s=20, status=Status.DEGRADED))
    (only,) = analyse(tmp_path).cells
    assert only.badge == "DEGRADED"
    assert only.estimates["throughput"].n == 1


def test_a_damaged_experiment_is_not_used(copy: Path) -> None:
    victim = copy / "resnet50_r1_time-slicing_rep2"
    path = metric_files(victim)["total_count"]
    path.write_text(path.read_text() + "garbage")
    found = analyse(copy)
    (damaged,) = [experiment for experiment in found.experiments if experiment.damage]
    assert path.name in damaged.damage[0]
    assert not damaged.used
    assert cell(found, 1).estimates["throughput"].n == 2
    assert found.count(Status.VALID) == 5


def test_latencies_left_behind_cost_the_percentiles_only(copy: Path) -> None:
    for folder in copy.glob("*/requests.parquet"):
        folder.unlink()
    found = analyse(copy)
    assert not any(experiment.damage for experiment in found.experiments)
    assert cell(found, 1).absent["latency_p50_exact"] == "0 of 1 logs of requests are there"
    assert cell(found, 1).estimates["throughput"].n == 3


def test_what_is_missing_is_said_with_how_far_it_came(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", replicas=[1, 3], repeats=2, shape=SHAPE, finished=2)
    events = [
        {"event": "step-begins", "experiment": "resnet50_r3_time-slicing_rep1", "attempt": 1, "step": "record"},
        {"event": "step-begins", "experiment": "resnet50_r1_time-slicing_rep1", "attempt": 1, "step": "record"},
    ]
    (folder / "state.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"torn')
    found = analyse(folder)
    assert found.planned == 4
    assert [(item.name, item.reason) for item in found.unfinished] == [
        ("resnet50_r3_time-slicing_rep1", "attempt 1 was stopped in the step record"),
        ("resnet50_r3_time-slicing_rep2", "not begun yet"),
    ]
    assert cell(found, 3).badge == "MISSING"
    assert cell(found, 3).absent["speed_up"]


def test_no_campaign_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsPathError, match="holds no campaign"):
        analyse(tmp_path)
    with pytest.raises(ResultsPathError, match="not a folder"):
        analyse(tmp_path / "absent")
    (tmp_path / "campaign.json").write_text("{}")
    with pytest.raises(ResultsPathError, match="damaged"):
        analyse(tmp_path)


@pytest.mark.parametrize(
    ("counted", "expected"),
    [({"requests": 100, "inputs": 100}, 1.0), ({"requests": 100, "inputs": 250}, 2.5), ({}, None)],
)
def test_inputs_of_a_workload_of_ones_own_are_those_that_it_counted(
    tmp_path: Path, counted: dict[str, int], expected: float | None
) -> None:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    own = spec.workload.model_copy(update={"name": "own", "factory": "own:make", "batch_size": 8})
    attempt, folder = tmp_path / "attempt", tmp_path / spec.experiment_id
    manifest = write_attempt(attempt, spec, SHAPE, START_S)
    replicas = [{**each, **counted} for each in manifest.replicas]
    changed = {"experiment": spec.model_copy(update={"workload": own}), "replicas": replicas}
    finalise(attempt, folder, manifest.model_copy(update=changed))

    data = read_experiment(folder)
    found = measure(data)

    assert data.manifest.inputs_per_request == expected
    if expected is None:
        assert found.absent["inputs"] == "the replicas did not say how many inputs they served"
    else:
        assert found.figures["inputs"] == pytest.approx(found.figures["throughput"] * expected)
