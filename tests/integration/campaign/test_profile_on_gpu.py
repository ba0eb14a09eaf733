"""On a GPU: what holds a workload back is named where it is known, and a batch fills the memory. Skipped where there is none."""

import json
import os
from pathlib import Path

import pytest
import torch

from harness.analysis.bottleneck import Cause
from tests.support import forked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

ROOT = Path(__file__).parents[3]
PLANTED = {
    "host": Cause.HOST,
    "copy": Cause.COPY,
    "launches": Cause.LAUNCHES,
    "memory": Cause.MEMORY,
    "compute": Cause.COMPUTE,
    "power": Cause.POWER,
    "sync": Cause.SYNC,
}


def settings(*words):
    done = forked.harness("profile", *map(str, words), "--json", cwd=ROOT, environment=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["settings"][0]


def test_every_planted_cause_is_named(tmp_path):
    own = ("tests.support.planted_bottlenecks:make", "--size", ",".join(PLANTED), "--batch", 1, "--seconds", 2)

    found = settings(*own, "--results", tmp_path)["settings"]

    assert {each["values"]["model_size"]: each["bottleneck"]["causes"] for each in found} == {
        name: [cause] for name, cause in PLANTED.items()
    }


def test_the_capacity_is_a_batch_that_fills_the_memory_to_85_percent(tmp_path):
    raised = ("--batch", 512, "--precision", "bf16", "--repeats", 1, "--seconds", 1, "--capacity", "memory")

    found = settings("bert-training", *raised, "--results", tmp_path)["settings"]

    peaks = [each["figures"]["gpu_memory_peak_percent"]["mean"] for each in found if each["figures"]]
    assert 82 <= max(peak for peak in peaks if peak <= 85) <= 85
