"""A campaign that ran again agrees, differs, or leaves it open, cell by cell, with the environment said first."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.analysis.campaign import analyse
from harness.analysis.reproduction import Outcome, Reproduction, reproduction, together
from harness.campaign.folder import open_folder
from harness.campaign.publish import publish
from harness.campaign.reproduce import published_source
from harness.cli.app import app
from harness.errors import NotReproducedError, ResultsPathError, UsageError, VerificationError
from harness.results.manifest import Status
from tests.unit.results.synthetic import Shape, write_campaign

SHAPE = Shape(record_s=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A campaign's folder, with an identity of its own."""

    def make(name: str, *, seed: int, replicas: tuple[int, ...] = (1, 3), repeats: int = 3, **changes: Any) -> Path:
        shape = Shape(**{"record_s": 20, "seed": seed, **changes})
        made = write_campaign(tmp_path_factory.mktemp("r") / name, replicas=replicas, repeats=repeats, shape=shape)
        identity = json.loads((made / "campaign.json").read_text())
        (made / "campaign.json").write_text(json.dumps(identity | {"campaign_id": f"{seed:032}"}))
        return made

    return make


@pytest.fixture(scope="module")
def published(folder: Callable[..., Path]) -> Path:
    return folder("published", seed=0)


@pytest.fixture(scope="module")
def alike(folder: Callable[..., Path]) -> Path:
    return folder("alike", seed=100)


@pytest.fixture(scope="module")
def slower(folder: Callable[..., Path]) -> Path:
    return folder("slower", seed=200, scale=0.7, driver="590.01")


@pytest.fixture(scope="module")
def archive(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(published, tmp_path_factory.mktemp("published") / "published.tar.xz")


def held(one: Path, other: Path, **options: Any) -> Reproduction:
    return reproduction(analyse(one), analyse(other), **options)


def test_the_same_measured_again_agrees_in_every_cell(published: Path, alike: Path) -> None:
    found = held(published, alike)
    assert [(cell.key.replicas, cell.outcome) for cell in found.cells] == [(1, Outcome.AGREES), (3, Outcome.AGREES)]
    assert found.outcome is Outcome.AGREES
    assert found.environment == []
    assert [line.measure for line in found.cells[0].lines] == ["throughput", "latency_p50_exact", "energy"]


def test_other_figures_differ_and_the_machine_is_said(published: Path, slower: Path) -> None:
    found = held(published, slower)
    assert found.outcome is Outcome.DIFFERS
    line = found.cells[0].lines[0]
    assert line.ratio is not None
    assert line.ratio.low is not None
    assert line.ratio.high is not None
    assert line.ratio.low < 0.7 < line.ratio.high < 1 / 1.1
    assert found.environment == ["GPU driver: 580.95.05 published, 590.01 here."]


def test_the_tolerance_decides(published: Path, slower: Path) -> None:
    assert held(published, slower, within=0.6).outcome is Outcome.AGREES
    ratio = held(published, slower).cells[0].lines[0].ratio
    assert ratio is not None
    (one, _) = held(published, slower, within=1 / ratio.mean - 1, measures=["throughput"]).cells
    assert (one.outcome, one.lines[0].why[:12]) == (Outcome.UNDECIDED, "more repeats")


def test_single_runs_and_missing_cells_leave_it_open(published: Path, folder: Callable[..., Path]) -> None:
    single = held(published, folder("single", seed=300, replicas=(1,), repeats=1))
    one, three = single.cells
    assert {line.why for line in one.lines} == {"one run has no interval"}
    assert {line.why for line in three.lines} == {"it did not run here"}
    assert single.outcome is Outcome.UNDECIDED


def test_a_measure_that_is_missing_here_leaves_it_open(published: Path, folder: Callable[..., Path]) -> None:
    lines = held(published, folder("cpu", seed=400, gpu=False)).cells[0].lines
    assert {line.measure: line.outcome for line in lines}["energy"] is Outcome.UNDECIDED
    assert lines[-1].why


def test_a_cell_without_a_run_that_can_be_used_leaves_it_open(
    published: Path, alike: Path, folder: Callable[..., Path]
) -> None:
    broken = folder("broken", seed=500, repeats=1, status=Status.INVALID)
    assert {line.why for cell in held(broken, alike).cells for line in cell.lines} == {
        "not published: no run can be used"
    }
    assert {line.why for cell in held(published, broken).cells for line in cell.lines} == {"no run here can be used"}


def test_one_cell_that_differs_decides_and_an_open_one_stands_before_those_that_agree() -> None:
    agrees, differs, open_ = Outcome.AGREES, Outcome.DIFFERS, Outcome.UNDECIDED
    assert together(iter([agrees, open_, differs])) is differs
    assert together(iter([agrees, open_])) is open_
    assert together(iter([agrees, agrees])) is agrees
    assert together(iter([])) is open_


@pytest.mark.parametrize(
    ("options", "said"),
    [({"within": 0.0}, "a tolerance of 0 %"), ({"within": 1.0}, "100 %"), ({"measures": ["speed"]}, "no figure")],
)
def test_what_cannot_be_asked_is_refused(published: Path, alike: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        held(published, alike, **options)


def test_another_campaign_is_refused(published: Path, tmp_path: Path) -> None:
    write_campaign(tmp_path / "other", workloads=["whisper"], replicas=[1], repeats=1, shape=SHAPE)
    with pytest.raises(UsageError, match="no cell of the published campaign"):
        held(published, tmp_path / "other")


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_the_command_says_the_environment_first_and_exits_for_what_differs(
    archive: Path, alike: Path, slower: Path
) -> None:
    good, bad = run(archive, "--against", alike), run(archive, "--against", slower)
    assert good.exception is None, good.output
    assert good.stdout.splitlines()[-1] == "Cells within 10 %: agrees 2, differs 0, not decidable 0."
    assert isinstance(bad.exception, NotReproducedError)
    assert bad.exception.exit_code == 12
    assert bad.stdout.startswith("differs here: GPU driver: 580.95.05 published, 590.01 here.\n")
    assert "resnet50/time-slicing/1" in bad.exception.message


def test_the_command_gives_the_same_as_json(archive: Path, alike: Path) -> None:
    found = json.loads(run(archive, "--against", alike, "--json").stdout)
    assert found["outcome"] == "agrees"
    assert [cell["outcome"] for cell in found["cells"]] == ["agrees", "agrees"]
    assert found["cells"][0]["measures"][0]["ratio"].keys() == {"mean", "ci95_low", "ci95_high"}


def test_what_is_no_reproduction_is_refused(archive: Path, published: Path, tmp_path: Path) -> None:
    assert "is the published campaign itself" in str(run(archive, "--against", published).exception)
    bad = tmp_path / "bad.tar.xz"
    bad.write_bytes(b"nothing of ours")
    assert isinstance(run(bad).exception, ResultsPathError)
    assert isinstance(run(tmp_path / "nowhere.tar.xz").exception, ResultsPathError)


def test_it_runs_what_was_understood_then_whatever_the_file_says_today(published: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(published, tmp_path / "copy")
    (copy / "campaign.yaml").write_bytes(b"name: \xff")
    identity = json.loads((copy / "campaign.json").read_text())
    sha256 = hashlib.sha256(b"name: \xff").hexdigest()
    (copy / "campaign.json").write_text(json.dumps(identity | {"source_sha256": sha256}))
    source = published_source(copy, copy)
    assert source.spec == open_folder(published).spec
    assert source.text.startswith("name: ")


def test_what_does_not_verify_is_not_run(published: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(published, tmp_path / "copy")
    next(copy.glob("*_rep1/wide.csv")).write_text("changed")
    done = run(copy, "--results", tmp_path / "results")
    assert isinstance(done.exception, VerificationError)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--measure", "speed"], "speed is no figure of a report"),
        (["--within", "100"], "a tolerance of 100 % cannot be"),
        (["--measure", "throughput", "--measure", "ttft_p50"], "no ttft_p50 to compare with"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_hours_of_running(
    archive: Path, tmp_path: Path, asked: list[str], said: str
) -> None:
    done = run(archive, "--results", tmp_path / "results", *asked)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
    assert not (tmp_path / "results").exists()
