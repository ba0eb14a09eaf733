"""A profile of real processes: points, out of memory, going on after a kill, verification, report."""

import csv
import json
import os
from pathlib import Path

import pytest

from harness.analysis.profile import analyse_profile
from harness.analysis.profile_report import write_profile_report
from harness.campaign.profile import Profile, begin, new_plan
from harness.campaign.verify import verify_campaign
from harness.errors import ExperimentsFailedError, UsageError
from harness.results.profile import POINTS, POINTS_CSV, Outcome
from tests.support import forked
from tests.support.experiments import PROFILE

ROOT = Path(__file__).parents[3]


def made(folder, **changes):
    begin(folder, new_plan(folder.name, ["harness", "profile"], **PROFILE | changes))
    return folder


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = made(tmp_path_factory.mktemp("profiles") / "p", capacity="knee")
    Profile(folder, lambda _line: None).run()
    return folder


def test_out_of_memory_is_a_result_and_the_capacity_lies_below_it(profile):
    analysis = analyse_profile(profile)
    outcomes = {point.name: point.outcome for point in analysis.manifest.points}

    assert outcomes["b4-fp32-eager-1"] is Outcome.MEASURED
    assert outcomes["b64-fp32-eager-1"] is Outcome.OUT_OF_MEMORY
    assert analysis.manifest.curves[0].batch_size <= 16
    assert "out of memory" in next(cell for cell in analysis.cells if cell.cell.batch_size == 64).failure


def test_the_table_has_every_point_and_nothing_for_what_is_missing(profile):
    with (profile / POINTS_CSV).open(newline="") as file:
        rows = {(row["batch_size"], row["outcome"]): row for row in csv.DictReader(file)}

    good, bad = rows["4", "measured"], rows["64", "out of memory"]
    assert float(good["throughput_inputs_per_s"]) > 0
    assert good["gpu_sm_active_percent"] == ""
    assert bad["throughput_inputs_per_s"] == ""
    assert (bad["outcome"], "refused an allocation" in bad["message"]) == ("out of memory", True)


def test_the_report_says_what_cannot_be_told_and_why(profile):
    page = write_profile_report(analyse_profile(profile))
    told = page.with_name("report.md").read_text()

    assert "Cannot tell what holds it back" in told
    assert "the workload does not use torch" in told
    assert "accuracy is 50.0%" in told
    assert json.loads(page.with_name("summary.json").read_text())["cells"]
    assert (page.parent / "plots" / "curves.png").stat().st_size > 1000
    assert verify_campaign(profile).ok


def test_damage_is_found_and_a_lost_point_is_measured_again(tmp_path):
    folder = made(tmp_path / "p", batches=[4, 8])
    Profile(folder, lambda _line: None).run()
    kept = folder / POINTS / "b8-fp32-eager-1" / "figures.json"
    lost, before = folder / POINTS / "b4-fp32-eager-1", kept.stat().st_mtime_ns
    lost.rename(lost.with_name(f".{lost.name}"))  # as a kill leaves it

    assert not verify_campaign(folder).ok
    lines = []
    Profile(folder, lines.append).run()

    assert [line.split()[1] for line in lines] == ["b4-fp32-eager-1:"]
    assert kept.stat().st_mtime_ns == before
    assert verify_campaign(folder).ok


def test_a_profile_in_which_nothing_runs_says_why(tmp_path):
    folder = made(tmp_path / "p", batches=[64])

    with pytest.raises(ExperimentsFailedError, match="out of memory"):
        Profile(folder, lambda _line: None).run()


def test_a_folder_that_is_there_is_not_written_over(profile):
    with pytest.raises(UsageError, match="exists already"):
        made(profile)


def harness(*words):
    return forked.harness(*map(str, words), cwd=ROOT, environment={**os.environ, "COLUMNS": "120"})


def test_the_command_measures_reports_and_verifies_and_resume_repeats_nothing(tmp_path):
    own = (
        "tests.support.growing_workload:make",
        "--repeats",
        1,
        "--seconds",
        0.01,
        "--results",
        tmp_path,
        "--name",
        "p",
    )

    done = harness("profile", *own, "--batch", "8,32", "--warmup-requests", 1)

    assert done.returncode == 0, done.stderr
    assert "b8-fp32-eager" in done.stdout
    assert "out of memory" in done.stdout
    assert "missing: " in done.stdout
    assert harness("verify", tmp_path / "p").returncode == 0
    again = harness("resume", tmp_path / "p", "--json")
    assert again.stderr == "", "nothing was measured again"
    assert json.loads(again.stdout)["cells"][0]["figures"]["throughput_inputs_per_s"]["n"] == 1
    (tmp_path / "p" / "report.html").unlink()
    assert harness("report", tmp_path / "p").returncode == 0
    assert (tmp_path / "p" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resnet5"], "did you mean resnet50"),
        (["resnet50", "--batch", "x"], "no list of whole numbers"),
        (["resnet50", "--batch", "0"], "must be at least 1"),
        (["resnet50", "--batch", "0,2"], "whole numbers of 1 or more"),
        (["resnet50", "--precision", "int8"], "'fp32', 'fp16' or 'bf16'"),
        (["resnet50", "--epochs", "2"], "--epochs and --samples go together"),
        (
            ["mnist-training", "--epochs", "2", "--samples", "64", "--capacity", "knee"],
            "--capacity measures for a time",
        ),
        (["resnet50", "--option", "tiny"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(words, told, tmp_path):
    refused = harness("profile", *words, "--results", tmp_path)

    assert refused.returncode == 2
    assert told in refused.stderr
    assert list(tmp_path.iterdir()) == []
