from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.campaign.verify import verify_campaign
from harness.errors import ConflictError, ResultsPathError
from harness.results import requests
from harness.results.layout import metric_files
from harness.results.manifest import Manifest, Status, content_digest, read_manifest
from harness.results.published import condense
from harness.results.tables import read_cells
from harness.results.verification import verify_experiment
from harness.results.writers import finalise
from harness.traffic.records import NONE
from tests.unit.results.synthetic import (
    GPU_METRICS,
    METRICS,
    NO_GPU,
    START_S,
    Shape,
    experiment_spec,
    manifest_for,
    write_attempt,
    write_experiment,
)

SHAPE = Shape(record_s=20)
NAME = "resnet50_r3_time-slicing_rep1"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("campaign"), "resnet50", 3, shape=SHAPE)


@pytest.fixture
def experiment(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "campaign" / original.name)


def test_a_finished_experiment_verifies(original: Path) -> None:
    outcome = verify_experiment(original)
    assert outcome.ok
    assert not outcome.notes
    assert outcome.files == len([path for path in original.rglob("*") if path.is_file()]) - 1


def test_the_folder_holds_what_the_format_says(original: Path) -> None:
    assert set(metric_files(original)) == set(METRICS)
    assert (original / "requests.parquet").is_file()
    assert not list(original.rglob("*.bin"))
    assert not list(original.rglob("*.tmp"))
    assert not list((original.parent / "attempts").iterdir())


def test_the_manifest_counts_rows_and_carries_the_verdict(original: Path) -> None:
    manifest = read_manifest(original)
    assert manifest.rows == 21
    assert manifest.files["wide.csv"].rows == 21
    throughput = metric_files(original)["throughput"].name
    assert manifest.files[throughput].rows == 21 * 4
    table = requests.read(original)
    assert table.replicas == (0, 1, 2)
    assert manifest.files["requests.parquet"].rows == len(table.rows)
    assert manifest.verdict.status == "VALID"


def test_wide_is_the_table_for_model_training(original: Path) -> None:
    wide = pd.read_csv(original / "wide.csv")
    assert list(wide.columns) == ["timestamp", "cpu_util", "ram_usage", "gpu_util", "gpu_memory", "latency"]
    assert len(wide) == 21
    assert wide["cpu_util"].mean() == pytest.approx(100 * 3 / 16, rel=0.02)
    assert wide["ram_usage"].to_list() == [9.3e9] * 21
    average = pd.read_csv(metric_files(original)["latency_avg"]).query("series == 'all'")
    assert wide["latency"].to_list() == average["value"].to_list()
    assert wide["timestamp"].to_list() == average["timestamp"].to_list()


def test_parquet_holds_every_row_with_its_unit(original: Path) -> None:
    samples = pd.read_parquet(original / "samples.parquet")
    assert list(samples.columns) == ["timestamp", "metric", "series", "value", "reason", "unit"]
    for metric, file in metric_files(original).items():
        frame = pd.read_csv(file)
        part = samples[samples["metric"] == metric]
        assert part["value"].to_list() == frame["value"].to_list()
        assert part["series"].astype(str).to_list() == frame["series"].to_list()
    assert set(samples.loc[samples["metric"] == "gpu_power", "unit"].astype(str)) == {"watts"}
    assert str(samples["timestamp"].dtype) == "datetime64[ms, UTC]"


def test_without_a_gpu_the_files_are_there_with_the_reason(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path, "resnet50", 1, shape=Shape(gpu=False, record_s=20))
    assert verify_experiment(folder).ok
    for metric in GPU_METRICS:
        with metric_files(folder)[metric].open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 21
        assert {(row["series"], row["value"], row["reason"]) for row in rows} == {("gpu", "", NO_GPU)}
    wide = pd.read_csv(folder / "wide.csv")
    assert wide["gpu_util"].isna().all()
    assert wide["gpu_memory"].isna().all()
    assert wide["latency"].notna().all()


def test_an_attempt_that_recorded_nothing_still_says_so_in_every_file(tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    reasons = dict.fromkeys(METRICS, "not recorded: deploy: the replica died")
    manifest = manifest_for(spec, replace(SHAPE, status=Status.INVALID), START_S)
    manifest = manifest.model_copy(update={"absent_metrics": reasons})
    (tmp_path / "attempt").mkdir()
    final = tmp_path / spec.experiment_id
    finalise(tmp_path / "attempt", final, manifest)
    assert verify_experiment(final).ok
    for metric, file in metric_files(final).items():
        assert {reason for *_, reason in read_cells(file, metric)} == {reasons[metric]}
    assert len(metric_files(final)) == len(METRICS)


def test_a_long_reason_is_cut_in_the_tables_and_whole_in_the_manifest(tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    story = "the replica died; its last lines: " + "Traceback " * 1000
    manifest = manifest_for(spec, replace(SHAPE, status=Status.INVALID), START_S)
    manifest = manifest.model_copy(update={"absent_metrics": dict.fromkeys(METRICS, story)})
    (tmp_path / "attempt").mkdir()
    final = tmp_path / spec.experiment_id
    finalise(tmp_path / "attempt", final, manifest)
    (reason,) = {reason for *_, reason in read_cells(metric_files(final)["io_psi"], "io_psi")}
    assert len(reason) == 240
    assert story.startswith(reason.removesuffix("..."))
    assert read_manifest(final).absent_metrics["io_psi"] == story


def test_an_existing_experiment_is_left_alone(original: Path, tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 3, 1, SHAPE)
    manifest = write_attempt(tmp_path / "attempt", spec, SHAPE, START_S)
    before = (original / "manifest.json").read_bytes()
    with pytest.raises(ConflictError, match="never overwritten"):
        finalise(tmp_path / "attempt", original, manifest)
    assert (original / "manifest.json").read_bytes() == before
    assert (tmp_path / "attempt" / "replicas" / "replica-0" / "latencies.bin").exists()


def test_a_hand_edited_csv_is_named_with_both_hashes(experiment: Path) -> None:
    path = metric_files(experiment)["throughput"]
    expected = read_manifest(experiment).files[path.name].sha256
    path.write_text(path.read_text().replace(",replica-1,1", ",replica-1,9", 1))
    outcome = verify_campaign(experiment.parent)
    assert not outcome.ok
    (problem,) = outcome.problems
    assert problem.path == path
    assert expected in problem.expected
    assert expected not in problem.found
    assert "changed" in problem.message
    assert "resume" in problem.advice
    assert str(path) in str(problem)


def with_a_better_gpu(manifest: str) -> str:
    content = json.loads(manifest)
    content["provenance"]["gpus"][0]["name"] = "A better GPU"
    return json.dumps(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_a_better_gpu, "manifest was changed"),
        (lambda _manifest: "{}", "not a manifest"),
        (lambda manifest: json.dumps(json.loads(manifest) | {"schema_version": 3}), "must be at most 2"),
    ],
)
def test_a_manifest_that_is_not_as_it_was_written_is_a_problem(
    experiment: Path, damage: Callable[[str], str], message: str
) -> None:
    path = experiment / "manifest.json"
    path.write_text(damage(path.read_text()))
    (problem,) = verify_experiment(experiment).problems
    assert problem.path == path
    assert message in problem.message


def test_a_missing_file_is_named(experiment: Path) -> None:
    (experiment / "requests.parquet").unlink()
    (problem,) = verify_experiment(experiment).problems
    assert problem.path.name == "requests.parquet"
    assert "missing" in problem.message


def test_a_manifest_of_the_version_before_is_read_as_it_is_and_what_is_made_of_it_is_of_this_one(
    experiment: Path, tmp_path: Path
) -> None:
    path = experiment / "manifest.json"
    content = json.loads(path.read_text()) | {"schema_version": 1}
    path.write_text(json.dumps(content | {"digest": content_digest(content)}))
    assert verify_experiment(experiment).ok
    condense(experiment, tmp_path / "condensed", 1_000)
    written = [json.loads((folder / "manifest.json").read_text()) for folder in (experiment, tmp_path / "condensed")]
    assert [document["schema_version"] for document in written] == [1, 2]


def test_a_file_that_was_added_is_a_note(experiment: Path) -> None:
    (experiment / "notes.txt").write_text("mine")
    outcome = verify_experiment(experiment)
    assert outcome.ok
    assert "notes.txt" in outcome.notes[0]


def test_a_renamed_folder_is_noticed(experiment: Path) -> None:
    moved = experiment.rename(experiment.with_name("resnet50_r8_time-slicing_rep1"))
    (problem,) = verify_experiment(moved).problems
    assert problem.expected == NAME


Damage = Callable[[list[str]], list[str]]


def damaged_attempt(folder: Path, damage: Damage) -> tuple[Path, Manifest]:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    manifest = write_attempt(folder, spec, SHAPE, START_S)
    path = metric_files(folder)["io_psi"]
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n")
    return path, manifest


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda lines: lines[:-1], "number of rows"),
        (lambda lines: [*lines, lines[-1]], "off the grid"),
        (lambda lines: [lines[0], *lines[2:]], "off the grid"),
        (lambda lines: [*lines[:-1], lines[-1].replace(",0.4,", ",inf,")], "not a number"),
    ],
)
def test_rows_are_checked_even_when_the_hashes_fit(tmp_path: Path, damage: Damage, complaint: str) -> None:
    # A defect of a writer, not of a hand: the damage is in the file before it is hashed.
    _, manifest = damaged_attempt(tmp_path / "attempt", damage)
    final = tmp_path / manifest.experiment_id
    finalise(tmp_path / "attempt", final, manifest)
    (problem,) = verify_experiment(final).problems
    assert complaint in problem.message


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda lines: [*lines[:-1], lines[-1].partition(",")[0]], "line 22"),
        (lambda lines: [*lines[:-1], lines[-1].replace(",0.4,", ",,")], "line 22: a row has either"),
        (lambda lines: [*lines[:-1], lines[-1].replace(",0.4,", ",many,")], "line 22"),
        (lambda lines: ["time,value", *lines[1:]], "line 1: the columns must be"),
    ],
)
def test_a_line_that_is_not_ours_is_named(tmp_path: Path, damage: Damage, complaint: str) -> None:
    path, _ = damaged_attempt(tmp_path / "attempt", damage)
    with pytest.raises(ResultsPathError, match=complaint) as caught:
        list(read_cells(path, "io_psi"))
    assert path.name in str(caught.value)


def test_an_attempt_with_a_broken_table_is_refused_by_name(tmp_path: Path) -> None:
    path, manifest = damaged_attempt(tmp_path / "attempt", lambda lines: [*lines[:-1], "torn"])
    with pytest.raises(ResultsPathError, match=path.name):
        finalise(tmp_path / "attempt", tmp_path / manifest.experiment_id, manifest)
    assert not (tmp_path / manifest.experiment_id).exists()


def test_a_verdict_better_than_the_data_is_a_problem(tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    reasons = dict.fromkeys(METRICS, "the replica never answered")
    manifest = manifest_for(spec, SHAPE, START_S).model_copy(update={"absent_metrics": reasons})
    (tmp_path / "attempt").mkdir()
    final = tmp_path / spec.experiment_id
    finalise(tmp_path / "attempt", final, manifest)
    problems = verify_experiment(final).problems
    assert problems
    assert "never answered" in problems[0].message
    assert problems[0].found == "verdict VALID"


def test_a_log_that_disagrees_with_the_counter_is_noted(tmp_path: Path) -> None:
    spec = experiment_spec("resnet50", 1, 1, SHAPE)
    manifest = write_attempt(tmp_path / "attempt", spec, SHAPE, START_S)
    log = tmp_path / "attempt" / "replicas" / "replica-0" / "latencies.bin"
    log.write_bytes(log.read_bytes()[: 16 * 2500])
    finalise(tmp_path / "attempt", tmp_path / spec.experiment_id, manifest)
    outcome = verify_experiment(tmp_path / spec.experiment_id)
    assert outcome.ok
    assert "counted" in outcome.notes[0]
    assert "logged" in outcome.notes[0]


def test_requests_are_counted_when_they_finish(tmp_path: Path) -> None:
    records = np.zeros(4, dtype=requests.LATENCY)
    records["start_ns"] = [0, 1_000_000_000, 2_000_000_000, 3_000_000_000]
    records["latency_ns"] = 1_000_000_000
    (tmp_path / "replicas" / "replica-7").mkdir(parents=True)
    (tmp_path / "replicas" / "replica-7" / "latencies.bin").write_bytes(records.tobytes())
    window = requests.Window(1, 3)
    assert requests.requests_within(tmp_path, window) == {"replica-7": 2}
    assert window.holds(np.array([999_999_999, 1_000_000_000, 2_999_999_999, 3_000_000_000])).tolist() == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("rows_s", "late_s", "counts"),
    [
        ((2.5, 3.5), 0.0, (1, 1)),
        ((1.0, 1.5), 0.0, (0, 1)),
        ((2.5, 3.5), 0.6, (0, 2)),
        ((1.0, 3.0), 0.9, (1, 3)),
    ],
)
def test_a_log_says_by_how_much_a_counter_can_have_grown_between_two_readings(
    tmp_path: Path, rows_s: tuple[float, float], late_s: float, counts: tuple[int, int]
) -> None:
    records = np.zeros(4, dtype=requests.LATENCY)
    records["start_ns"] = 1_000_000_000 * np.arange(100, 104)
    records["latency_ns"] = 1_000_000_000
    for name in ("replica-7", "replica-8"):
        (tmp_path / "replicas" / name).mkdir(parents=True)
        (tmp_path / "replicas" / name / "latencies.bin").write_bytes(records.tobytes())
    found = requests.requests_between_readings(
        tmp_path, {"replica-7": rows_s, "replica-9": (0.0, 1.0)}, start_s=100.0, step_s=1.0, late_s=late_s
    )
    assert found == {"replica-7": counts}


def test_verify_refuses_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(ResultsPathError, match="holds no experiment"):
        verify_campaign(tmp_path)
    with pytest.raises(ResultsPathError, match="not a folder"):
        verify_campaign(tmp_path / "absent")
    (tmp_path / "attempts").mkdir()
    assert verify_campaign(tmp_path).ok


@pytest.mark.parametrize("count", [0, 1, 2, 3, 700_000])
def test_requests_survive_the_change_to_a_table_and_a_torn_one_is_dropped(tmp_path: Path, count: int) -> None:
    random = np.random.default_rng(1)
    records = np.zeros(count, dtype=requests.LATENCY)
    records["start_ns"] = random.integers(0, 2**62, size=count)
    records["latency_ns"] = random.integers(0, 2**40, size=count)
    (tmp_path / "replicas/replica-4").mkdir(parents=True)
    (tmp_path / "replicas/replica-4/latencies.bin").write_bytes(records.tobytes() + b"\x01" * 15)
    logged = requests.read(tmp_path)
    requests.write(tmp_path, tmp_path / "requests.parquet")
    assert requests.count(tmp_path / "requests.parquet") == count
    table = requests.read(tmp_path)
    assert table.replicas == logged.replicas == (4,)
    assert np.array_equal(table.rows, logged.rows)
    assert np.array_equal(table.rows["intended_ns"], records["start_ns"])
    assert np.array_equal(requests.latency_ns(table.rows), records["latency_ns"])
    assert set(table.rows["sent_ns"].tolist()) <= {NONE}


def test_what_the_load_generator_saw_is_the_table_and_what_its_replicas_logged_is_counted(tmp_path: Path) -> None:
    (tmp_path / "load").mkdir()
    sent = [(1, 5, 0, 20, 200), (0, 6, 1, 30, 200), (1, 7, 1, 40, 429)]
    np.array(sent, requests.GENERATED).tofile(tmp_path / "load/requests.bin")
    for replica, starts in ((0, [6]), (1, [5, 8])):
        home = tmp_path / f"replicas/replica-{replica}"
        home.mkdir(parents=True)
        np.array([(start, 10) for start in starts], requests.LATENCY).tofile(home / "latencies.bin")
    assert requests.logs_of(tmp_path) == [tmp_path / "load/requests.bin"]
    requests.write(tmp_path, tmp_path / "requests.parquet")
    table = requests.read(tmp_path)
    assert table.rows[["replica", "intended_ns", "sent_ns", "end_ns", "status"]].tolist() == [
        (1, 5, 5, 25, 200),
        (0, 6, 7, 36, 200),
        (1, 7, 8, 47, 429),
    ]
    assert {name: ends.tolist() for name, ends in requests.served(tmp_path)} == {
        "replica-0": [16],
        "replica-1": [15, 18],
    }


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requests.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ResultsPathError, match="is not a log of this harness"):
        requests.read(tmp_path)
