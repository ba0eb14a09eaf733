"""A condensed set: times rounded to what its manifests say, nothing else changed, and damage is seen as anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import harness
from harness.analysis.campaign import analyse
from harness.campaign.publish import publish
from harness.campaign.verify import verify_campaign
from harness.cli import app
from harness.errors import ResultsPathError, UsageError
from harness.results import requests
from harness.results.layout import attempt_folder, neighbour_folder, replica_folder
from harness.results.manifest import read_manifest
from harness.results.packed import pack_columns
from harness.results.published import condense, unpack
from harness.results.writers import finalise
from tests.unit.results.synthetic import START_S, Shape, experiment_spec, write_attempt, write_campaign

NAME = "condensed-20260131T000000Z"
US = 1_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / NAME
    return write_campaign(folder, replicas=[1, 3], repeats=2, shape=Shape(record_s=20))


@pytest.fixture(scope="module")
def condensed(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked; the archive lies beside its folder."""
    folder = tmp_path_factory.mktemp("published")
    return unpack(publish(recorded, folder / f"{NAME}.tar.xz", resolution_ns=US), folder)


def table_of(folder: Path) -> requests.RequestTable:
    table = requests.read(folder)
    assert table is not None
    return table


def rounded(at_ns: np.ndarray) -> np.ndarray:
    return (at_ns + US // 2) // US * US


def test_every_instant_is_the_nearest_and_every_duration_that_between_two(recorded: Path, condensed: Path) -> None:
    compared = 0
    for folder in condensed.glob("*_rep*"):
        before, after = table_of(recorded / folder.name), table_of(folder)
        assert after.replicas == before.replicas
        for name in ("intended_ns", "end_ns"):
            assert np.array_equal(after.rows[name], rounded(before.rows[name]))
        for name in set(requests.COLUMNS) - {"intended_ns", "end_ns"}:
            assert np.array_equal(after.rows[name], before.rows[name])
        compared += len(after.rows)
    assert compared > 1000


def test_no_figure_moves_by_more_than_the_resolution(recorded: Path, condensed: Path) -> None:
    moved = set()
    for before, after in zip(analyse(recorded).experiments, analyse(condensed).experiments, strict=True):
        assert not after.damage
        assert after.figures.keys() == before.figures.keys()
        for name, value in before.figures.items():
            if after.figures[name] != value:
                moved.add(name)
                assert abs(after.figures[name] - value) < US / 1e9
    assert {"latency_p50_exact", "latency_p99_exact"} <= moved
    assert all(name.startswith("latency_") for name in moved)


def test_the_manifests_keep_what_was_recorded_and_all_else_is_as_it_was(recorded: Path, condensed: Path) -> None:
    for folder in condensed.glob("*_rep*"):
        manifest, before = read_manifest(folder), read_manifest(recorded / folder.name)
        assert manifest.condensed.resolution_ns == US
        assert manifest.condensed.recorded_digest == before.digest
        taken = {"requests.parquet", "samples.parquet"}
        assert manifest.condensed.recorded == {name: before.files[name] for name in taken}
        kept = before.files.keys() - taken
        assert manifest.files.keys() - kept == {"requests.parquet"}
        assert manifest.files["requests.parquet"].rows == before.files["requests.parquet"].rows
        assert {name: manifest.files[name] for name in kept} == {name: before.files[name] for name in kept}
        same = {"files", "digest", "condensed"}
        assert manifest.model_dump(exclude=same) == before.model_dump(exclude=same)


def test_verify_says_that_it_checked_what_is_there(condensed: Path) -> None:
    outcome = verify_campaign(condensed)
    assert outcome.ok
    (note,) = (note for note in outcome.notes if "recorded" in note)
    assert "8 files are not as they were recorded: instants were rounded to 1000 ns" in note
    said = CliRunner().invoke(app, ["verify", str(condensed.parent.parent / f"{NAME}.tar.xz")])
    assert "rounded to 1000 ns" in said.output
    assert "rounded to 1000 ns" in (condensed / "ro-crate-metadata.json").read_text()


def test_a_damaged_log_is_a_problem(condensed: Path) -> None:
    path = next(condensed.glob("*/requests.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        (problem,) = verify_campaign(condensed).problems
        assert problem.path == path
        assert "the file was changed" in problem.message
    finally:
        path.write_bytes(content)


def test_the_api_gives_the_same_rows_of_every_metric(recorded: Path, condensed: Path) -> None:
    before, after = harness.load(recorded), harness.load(condensed)
    pd.testing.assert_frame_equal(after.samples(), before.samples())
    assert len(after.experiments[-1].latencies()) == len(before.experiments[-1].latencies())


def test_a_set_is_condensed_from_an_archive_as_from_its_folder_and_only_once(
    recorded: Path, condensed: Path, tmp_path: Path
) -> None:
    archive = condensed.parent.parent / f"{NAME}.tar.xz"
    exact = publish(recorded, tmp_path / f"{NAME}.tar.xz")
    again = tmp_path / "again.tar.xz"
    done = CliRunner().invoke(app, ["publish", str(exact), "--resolution", "1us", "--out", str(again)])
    assert done.exit_code == 0
    assert again.read_bytes() == archive.read_bytes()
    twice = unpack(publish(again, tmp_path / "twice.tar.xz", resolution_ns=US), tmp_path)
    for path in condensed.glob("*_rep*/**/*"):
        assert not path.is_file() or (twice / path.relative_to(condensed)).read_bytes() == path.read_bytes()
    with pytest.raises(UsageError, match="with a resolution of 1000 ns already"):
        publish(again, tmp_path / "coarser.tar.xz", resolution_ns=10 * US)


@pytest.mark.parametrize("said", ["0us", "2ms", "1", "-1us", "1.5us", "1s"])
def test_what_is_no_resolution_is_refused(said: str, recorded: Path) -> None:
    assert CliRunner().invoke(app, ["publish", str(recorded), "--resolution", said]).exit_code == 2


def test_the_requests_of_servers_and_neighbours_are_condensed_and_what_is_not_there_stays(tmp_path: Path) -> None:
    spec, shape = experiment_spec("resnet50", 1, 1, Shape(record_s=20)), Shape(record_s=20)
    attempt = attempt_folder(tmp_path, spec.experiment_id, 1)
    manifest = write_attempt(attempt, spec, shape, START_S)
    begin = int(START_S * 1e9) + 777
    asked = [[begin, 1_499, 5_000_501, -1, -1, 7, 0, -1], [begin + 9, 0, 1_000_000, 600_123, 2_000, 7, 32, 200]]
    gaps = [[begin + 600_132, 400_000], [begin + 1_000_132, 0]]
    beside = neighbour_folder(attempt, "whisper") / "replicas" / "replica-0"
    beside.mkdir(parents=True)
    of_server = replica_folder(attempt, 0)
    answers = [[-1, -1, -1, 6], [700_123, 30, 2, 7]]
    for path, rows in (
        (of_server / "requests.bin", asked),
        (of_server / "answers.bin", answers),
        (of_server / "gaps.bin", gaps),
        (beside / "latencies.bin", gaps),
    ):
        np.array(rows, "<i8").tofile(path)
    (of_server / "server.log").write_text("POST /v1/chat/completions: a prompt of a user\n")
    final = tmp_path / spec.experiment_id
    finalise(attempt, final, manifest)
    coarse = condense(final, tmp_path / "1us", US)
    failed, answered = table_of(tmp_path / "1us").rows

    at = rounded(np.array([begin, begin + 9]))
    begun_at, over_at = rounded(begin + 1_499), rounded(begin + 5_000_501)
    assert failed.tolist() == (0, at[0], begun_at, -1, over_at, -1, 7, 0, -1, -1, -1, -1, -1, -1, 6)
    first_token_ns, first_answer_ns = rounded(begin + 9 + 600_123), rounded(begin + 9 + 700_123)
    whole = (0, at[1], at[1], first_token_ns, rounded(begin + 1_000_009), 2_000, 7, 32, 200)
    assert answered.tolist() == (*whole, -1, -1, first_answer_ns, 30, 2, 7)
    assert "replicas/replica-0/gaps.bin" not in coarse
    printed, condensed = "replicas/replica-0/server.log", read_manifest(tmp_path / "1us")
    assert printed not in condensed.files.keys() | coarse.keys()
    assert condensed.condensed.recorded[printed] == read_manifest(final).files[printed]
    assert len(requests.gaps(tmp_path / "1us", 0)) == 2
    assert len(table_of(tmp_path / "1us/neighbours/whisper").rows) == 2
    condense(final, tmp_path / "1ns", 1)
    assert np.array_equal(table_of(tmp_path / "1ns").rows, table_of(final).rows)
    assert np.array_equal(requests.gaps(tmp_path / "1ns", 0), requests.gaps(final, 0))


@pytest.mark.parametrize("rows", [0, 1, 2, 250])
def test_any_integers_come_back(rows: int, tmp_path: Path) -> None:
    kind = np.dtype([(name, "<i8") for name in ("at", "b_ns", "c", "d")])
    table = np.random.default_rng(5).integers(-(2**60), 2**60, (250, 4))[:rows].view(kind)[:, 0]
    pack_columns(tmp_path / "t.parquet", {name: table[name] for name in kind.names}, 1)
    assert np.array_equal(requests.records_of(tmp_path / "t.parquet", kind), table)


def test_most_values_fit_into_one_byte_around_their_median(tmp_path: Path) -> None:
    latency = np.array([40_000, 40_100, 40_127, 40_050, 39_990])
    start = np.concatenate([[7], 7 + np.cumsum(latency[:-1] + 300)])
    path = tmp_path / "t.parquet"
    pack_columns(path, {"start_ns": start, "latency_ns": latency, "status": np.full(5, 200)}, 1)
    about = json.loads(pq.read_schema(path).metadata[b"harness.packed"])
    assert (about["middles"]["latency_ns"], about["after"]) == (40_050, ["start_ns", "latency_ns"])
    assert about["constants"] == {"status": 200}
    kind = np.dtype([(name, "<i8") for name in ("start_ns", "latency_ns", "status")])
    assert requests.records_of(path, kind).tolist() == [*zip(start, latency, [200] * 5, strict=True)]


def test_logs_of_sets_from_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "replica-0.times"
    about = {
        "rows": 2,
        "unit_ns": 1,
        "begin": 7,
        "after": ["start_ns"],
        "columns": [["start_ns", 1], ["latency_ns", 1]],
    }
    path.write_bytes(json.dumps(about).encode() + b"\n" + bytes([0, 20, 8, 6]))
    assert requests.records_of(path, requests.LATENCY).tolist() == [(7, 4), (17, 3)]
    about["columns"] = [["start_ns", 1], ["latency_ns", 1, 40_050]]
    path.write_bytes(json.dumps(about).encode() + b"\n" + bytes([0, 20, 8, 6]))
    assert requests.records_of(path, requests.LATENCY).tolist() == [(7, 40_054), (17, 40_053)]


@pytest.mark.parametrize(
    "content",
    [
        b"PAR1",
        b"[]\n",
        b'{"rows": -1, "columns": []}\n',
        b'{"rows": 9, "columns": [["a_ns", 9]], "after": []}\n',
        b"{}\n",
    ],
)
def test_what_is_no_log_of_times_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "replica-0.times"
    path.write_bytes(content)
    with pytest.raises(ResultsPathError, match=str(path)):
        requests.records_of(path, requests.LATENCY)
