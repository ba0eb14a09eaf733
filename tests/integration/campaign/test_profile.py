"""A profile is a campaign: settings from lists, traced, one that does not fit, the batch raised; gone on with, verified, reported."""

import json
import os
from pathlib import Path

import pytest
import yaml

from harness.results.manifest import Status, read_manifest
from tests.support import forked

ROOT = Path(__file__).parents[3]
OWN = ("tests.support.growing_workload:make", "--repeats", 1, "--seconds", 1)
RAISED = {"first": 4, "load": "batch", "most": 64, "precision": 0.25}


def harness(*words):
    return forked.harness(*map(str, words), cwd=ROOT, environment={**os.environ, "COLUMNS": "120"})


def test_a_batch_is_raised_to_what_fits_and_each_setting_is_measured_and_traced(tmp_path):
    raised = ("--batch", 4, "--capacity", "knee", "--most-batch", 64)

    done = harness("profile", *OWN, *raised, "--results", tmp_path, "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    settings = {one["values"]["batch_size"]: one for one in answer["settings"][0]["settings"]}
    assert (min(settings), settings[4]["figures"]["inputs"]["n"]) == (4, 1)
    assert settings[4]["figures"]["accuracy"]["mean"] == 0.5
    assert "does not use torch" in settings[4]["missing"]["kernel_busy_share"]
    [sentence] = answer["stress"]
    assert "The last good point is a batch of" in sentence
    assert max(batch for batch, one in settings.items() if not one["failure"]) <= 16 <= max(settings)
    # That one does not fit is an answer, though its experiment is INVALID.
    assert all(one["failure"].startswith("out-of-memory: ") for batch, one in settings.items() if batch > 16)
    folder = Path(answer["campaign"])
    manifest = read_manifest(folder / f"growing-workload-b{max(settings)}_r1_time-slicing_rep1")
    assert (manifest.verdict.status, manifest.experiment.workload.variant_of) == (Status.INVALID, "growing-workload")
    assert harness("verify", folder).returncode == 0
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*_rep*/manifest.json")}
    assert harness("resume", folder, "--no-report").returncode == 0
    assert written == {path: path.stat().st_mtime_ns for path in folder.glob("*_rep*/manifest.json")}


def test_the_file_that_it_would_run_can_be_written(tmp_path):
    file = tmp_path / "own.yaml"
    words = ("resnet50", "--batch", "4,8", "--capacity", "knee", "--most-batch", 64, "--precision", "fp32,fp16")

    assert harness("profile", *words, "--write", file, "--results", tmp_path).returncode == 0

    spec = yaml.safe_load(file.read_text())
    assert spec["stress"] == RAISED
    assert spec["workloads"][0]["precision"] == ["fp32", "fp16"]
    assert "batch_size" not in spec["workloads"][0]
    assert harness("validate", file).returncode == 0
    assert harness("profile", *words, "--write", file).returncode != 0, "never written over"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resnet5"], "did you mean `resnet50`"),
        (["resnet50", "--batch", "x"], "not a list of whole numbers"),
        (["resnet50", "--batch", "0"], "must be at least 1"),
        (["resnet50", "--precision", "int8"], "'fp32', 'fp16' or 'bf16'"),
        (["resnet50", "--epochs", "2"], "--epochs and --samples go together"),
        (["resnet50", "--option", "tiny"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(words, told, tmp_path):
    refused = harness("profile", *words, "--results", tmp_path)

    assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
    assert list(tmp_path.iterdir()) == []
