"""A campaign that ran again agrees, differs, or leaves it open, cell by cell, with the environment said first."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import harness
from harness.analysis.campaign import analyse
from harness.analysis.contrasts.reproduction import (
    COMPARED,
    Reproduction,
    more_repeats,
    reproduction,
    together,
)
from harness.analysis.statistics import Outcome
from harness.campaign.folder import open_folder
from harness.campaign.planners import published_source, with_more_repeats
from harness.campaign.publish import publish
from harness.cli import app, publishing
from harness.errors import NotReproducedError, ResultsPathError, UsageError, VerificationError
from harness.results.manifest import Status
from harness.results.published import opened
from harness.spec import CampaignSpec
from tests.unit.results.synthetic import Shape, write_campaign, write_experiment

SHAPE = Shape(record_s=20)
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A campaign's folder, with an identity of its own."""

    def make(
        name: str,
        *,
        seed: int,
        replicas: tuple[int, ...] = (1, 3),
        repeats: int = 3,
        runs: Sequence[float] = (),
        **changes: Any,
    ) -> Path:
        shape = Shape(**{"record_s": 20, "seed": seed, **changes})
        made = write_campaign(tmp_path_factory.mktemp("r") / name, replicas=replicas, repeats=repeats, shape=shape)
        for repeat, factor in enumerate(runs, start=1):
            for path in made.glob(f"*_rep{repeat}"):
                shutil.rmtree(path)
            for count in replicas:
                write_experiment(made, "resnet50", count, repeat, replace(shape, scale=shape.scale * factor))
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


@pytest.fixture(scope="module")
def uneven(folder: Callable[..., Path]) -> Path:
    """Like the published one in the mean, with runs that scatter too much for three to tell."""
    return folder("uneven", seed=600, scale=0.93, runs=[1.0, 1.05, 1.1])


@pytest.fixture(scope="module")
def further(folder: Callable[..., Path]) -> Path:
    return folder("further", seed=700, repeats=9)


# What a test is given it only reads: each folder is analysed once.
analysed = functools.cache(analyse)


def held(one: Path, other: Path, *more: Path, **options: Any) -> Reproduction:
    return reproduction(analysed(one), analysed(other), more=[analysed(each) for each in more], **options)


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
    assert line.ratio.low < 0.7 < line.ratio.high < 1 / 1.1
    assert found.environment == ["GPU driver: 580.95.05 published, 590.01 here."]


def test_the_tolerance_decides(published: Path, slower: Path) -> None:
    assert held(published, slower, within=0.6).outcome is Outcome.AGREES
    ratio = held(published, slower).cells[0].lines[0].ratio
    (one, _) = held(published, slower, within=1 / ratio.mean - 1, measures=["throughput"]).cells
    assert (one.outcome, one.lines[0].why[:12]) == (Outcome.INCONCLUSIVE, "more repeats")


def test_single_runs_and_missing_cells_leave_it_open(published: Path, folder: Callable[..., Path]) -> None:
    single = held(published, folder("single", seed=300, replicas=(1,), repeats=1))
    one, three = single.cells
    assert {line.why for line in one.lines} == {"one run has no interval"}
    assert {line.why for line in three.lines} == {"it did not run here"}
    assert single.outcome is Outcome.INCONCLUSIVE


def test_a_measure_that_is_missing_here_leaves_it_open(published: Path, folder: Callable[..., Path]) -> None:
    lines = held(published, folder("cpu", seed=400, gpu=False)).cells[0].lines
    assert {line.measure: line.outcome for line in lines}["energy"] is Outcome.INCONCLUSIVE
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
    agrees, differs, open_ = Outcome.AGREES, Outcome.DIFFERS, Outcome.INCONCLUSIVE
    assert together(iter([agrees, open_, differs])) is differs
    assert together(iter([agrees, open_])) is open_
    assert together(iter([agrees, agrees])) is agrees
    assert together(iter([])) is open_


@pytest.mark.parametrize(
    ("options", "said"),
    [({"within": 0.0}, "a tolerance of 0%"), ({"within": 1.0}, "100%"), ({"measures": ["speed"]}, "not a metric")],
)
def test_what_cannot_be_asked_is_refused(published: Path, alike: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        held(published, alike, **options)


def test_another_campaign_is_refused(published: Path, tmp_path: Path) -> None:
    write_campaign(tmp_path / "other", workloads=["whisper"], replicas=[1], repeats=1, shape=SHAPE)
    with pytest.raises(UsageError, match="no cell of the published campaign"):
        held(published, tmp_path / "other")


def test_a_wide_spread_asks_for_more_repeats_and_a_narrow_one_for_none(
    published: Path, alike: Path, uneven: Path
) -> None:
    asked = [
        more_repeats(analysed(published), analysed(again), COMPARED, within=within, most=most)
        for again, within, most in ((alike, 0.1, 12), (uneven, 0.1, 12), (uneven, 0.1, 3), (uneven, 0.005, 12))
    ]
    assert asked[0] == {}
    assert {key.replicas: 1 <= more <= 9 for key, more in asked[1].items()} == {1: True, 3: True}
    assert asked[2:] == [{}, {}]  # no more may be run, and no number would do


def test_it_goes_on_with_as_many_repeats_as_the_spread_asks_for(
    archive: Path, uneven: Path, further: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int | object, list[int]]] = []

    def run_again(source: Any, *_: object, **__: object) -> Path:
        ran.append((source.spec.repeats, source.spec.replicas))
        return [uneven, further][len(ran) - 1]

    monkeypatch.setattr(publishing, "_run_again", run_again)
    found = json.loads(run(archive, "--json").stdout)
    assert (found["outcome"], found["campaign"], found["more"]) == ("agrees", str(uneven), [str(further)])
    assert ran[0] == (3, [1, 3])
    assert ran[1][1] == [1, 3]
    assert 1 <= int(str(ran[1][0])) <= 9

    by_hand = run(archive, "--against", uneven, "--against", further, "--json")
    assert json.loads(by_hand.stdout) == found
    ran.clear()
    few = json.loads(run(archive, "--max-repeats", "3", "--json").stdout)
    assert (few["outcome"], few["more"], len(ran)) == ("inconclusive", [], 1)
    assert "more repeats should settle" in few["cells"][0]["measures"][0]["why"]


def test_more_repeats_are_of_the_cells_that_need_them(published: Path) -> None:
    source = published_source(published, published)
    one = analyse(published).cells[0].key
    further = with_more_repeats(source, {one: 4})
    assert (further.spec.replicas, further.spec.repeats) == ([1], 4)
    assert further.spec.model_copy(update={"replicas": [1, 3], "repeats": 3}) == source.spec


def test_pods_of_an_older_harness_run_again_from_the_image_that_nodes_have_now() -> None:
    archive = EXAMPLES / "h200-cluster/h200-cluster-whisper-20261128T191557Z.tar.xz"
    with opened(archive) as folder:
        cluster = published_source(folder, archive).spec.kubernetes
        before = open_folder(folder).spec.kubernetes
    assert cluster
    assert before
    assert before.image == "localhost/gpu-sharing-harness/workload:0.1.0"
    assert cluster == before.model_copy(
        update={"image": f"localhost/gpu-sharing-harness/workload:{harness.__version__}"}
    )


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_what_an_archive_has_this_machine_run_is_shown_before(
    archive: Path, alike: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"command": ["serve", "--name", "a b", "{port}"], "ready": {"path": "/health"}, "path": "/infer"}
    text = {
        "name": "foreign",
        "workloads": [{"name": "mine", "server": server}, {"name": "other", "factory": "module:make"}],
        "replicas": [1],
    }
    shown = list(publishing._foreign_code(CampaignSpec.model_validate(text)))
    assert shown == ["runs the command of mine: serve --name 'a b' '{port}'", "imports the workload other: module:make"]
    text["backend"], text["kubernetes"] = "kubernetes", {}
    pods = [
        {
            "name": "pod",
            "server": {
                "command": server["command"],
                "ready": server["ready"],
                "image": "registry/serve:1",
                "protocol": "own",
                "client": "module:ask",
            },
        }
    ]
    assert list(publishing._foreign_code(CampaignSpec.model_validate({**text, "workloads": pods}))) == [
        "runs the image of pod: registry/serve:1 serve --name 'a b' '{port}'",
        "imports the client of pod: module:ask",
    ]

    text["workloads"] = [{"name": "resnet50"}]
    assert list(publishing._foreign_code(CampaignSpec.model_validate(text))) == []
    access = {"token_env": "SECRET"}
    text["kubernetes"] = {"image": "registry/ours:1", "prometheus_url": "https://there", "prometheus_access": access}
    assert list(publishing._foreign_code(CampaignSpec.model_validate(text))) == [
        "runs replicas from the image registry/ours:1",
        "sends the content of SECRET to https://there",
    ]
    asked = {"url": ["https://there"], "protocol": "openai-chat", "model": "m", "api_key_env": "SECRET", "rate": 1}
    keyed = {"name": "keyed", "workloads": [{"name": "api", "server": asked}], "replicas": [1]}
    assert list(publishing._foreign_code(CampaignSpec.model_validate(keyed))) == [
        "sends the content of SECRET to https://there"
    ]

    said: list[str] = []
    monkeypatch.setattr(publishing, "_foreign_code", lambda _spec: shown)
    monkeypatch.setattr(publishing.output, "note", said.append)
    monkeypatch.setattr(publishing, "_run_again", lambda *_, **__: said.append("runs") or alike)
    run(archive, "--max-repeats", "3", "--yes")
    assert said.index(shown[0]) < said.index("runs")

    said.clear()
    unseen = run(archive, "--max-repeats", "3")
    assert isinstance(unseen.exception, UsageError)
    assert unseen.exception.advice.endswith(f"harness reproduce {archive} --yes")
    assert said[-2:] == shown


@pytest.mark.parametrize(("answer", "runs"), [(True, True), (False, False), (None, False)])
def test_at_a_terminal_it_is_asked_and_only_a_yes_runs_it(
    archive: Path, alike: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | None, runs: bool
) -> None:
    ran: list[Path] = []

    def asked(*_: object, **__: object) -> bool:
        if answer is None:
            raise typer.Abort
        return answer

    monkeypatch.setattr(publishing, "_foreign_code", lambda _spec: ["imports the workload other: module:make"])
    monkeypatch.setattr(publishing, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(publishing.typer, "confirm", asked)
    monkeypatch.setattr(publishing, "_run_again", lambda *_, **__: ran.append(alike) or alike)
    done = run(archive, "--max-repeats", "3")

    assert bool(ran) is runs
    assert runs or (isinstance(done.exception, UsageError) and done.exception.message == "nothing was run.")


def test_the_command_says_the_environment_first_and_exits_for_what_differs(
    archive: Path, alike: Path, slower: Path
) -> None:
    good, bad = run(archive, "--against", alike), run(archive, "--against", slower)
    assert good.exception is None, good.output
    assert good.stdout.splitlines()[-1] == "Configurations within 10%: agrees 2, differs 0, inconclusive 0."
    assert isinstance(bad.exception, NotReproducedError)
    assert bad.exception.exit_code == 12
    assert bad.stdout.startswith("differs here: GPU driver: 580.95.05 published, 590.01 here.\n")
    assert "resnet50/time-slicing/1" in bad.exception.message


def test_what_agrees_nowhere_is_not_reproduced(archive: Path, folder: Callable[..., Path]) -> None:
    done = run(archive, "--against", folder("undecided", seed=300, repeats=1), "--json")
    assert json.loads(done.stdout)["outcome"] == "inconclusive"
    assert isinstance(done.exception, NotReproducedError)


@pytest.mark.parametrize("beside", [["--force"], ["--results", "results"], ["--max-repeats", "9"]])
def test_what_has_no_effect_beside_against_is_refused(archive: Path, alike: Path, beside: list[str]) -> None:
    done = run(archive, "--against", alike, *beside)
    assert isinstance(done.exception, UsageError)
    assert "--results, --force and --max-repeats have no effect" in done.exception.message


def test_what_is_no_reproduction_is_refused(archive: Path, published: Path, alike: Path, tmp_path: Path) -> None:
    assert "is the campaign that it is to be compared with" in str(run(archive, "--against", published).exception)
    assert "is given twice" in str(run(archive, "--against", alike, "--against", alike).exception)
    bad = tmp_path / "bad.tar.xz"
    bad.write_bytes(b"nothing of ours")
    assert isinstance(run(bad).exception, ResultsPathError)
    missing = run(tmp_path / "nowhere.tar.xz").exception
    assert isinstance(missing, ResultsPathError)
    assert missing.message == f"there is no file and no folder {tmp_path / 'nowhere.tar.xz'}."


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
        (["--measure", "speed"], "speed is not a metric of a report"),
        (["--within", "100"], "a tolerance of 100% cannot be"),
        (["--measure", "throughput", "--measure", "client_ttft_p50"], "no client_ttft_p50 to compare with"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_hours_of_running(
    archive: Path, tmp_path: Path, asked: list[str], said: str
) -> None:
    done = run(archive, "--results", tmp_path / "results", *asked)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
    assert not (tmp_path / "results").exists()


def test_cells_that_ran_without_a_gpu_are_called_those_of_the_cpu(published: Path, alike: Path) -> None:
    before = analyse(published)
    on_cpu = replace(before, cells=[replace(cell, on_cpu=True) for cell in before.cells])
    assert {cell.mode for cell in reproduction(on_cpu, analyse(alike)).cells} == {"CPU"}
    assert {cell.mode for cell in reproduction(before, analyse(alike)).cells} == {"time-slicing"}
