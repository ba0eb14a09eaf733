"""On a GPU: what holds a workload back is named where it is known, and a batch fills the memory. Skipped where there is none."""

import pytest
import torch

from harness.analysis.bottleneck import Cause
from harness.analysis.profile import analyse_profile
from harness.campaign.profile import Profile, begin, new_plan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]

PLANTED = {
    "host": Cause.HOST,
    "copy": Cause.COPY,
    "launches": Cause.LAUNCHES,
    "memory": Cause.MEMORY,
    "compute": Cause.COMPUTE,
    "power": Cause.POWER,
    "sync": Cause.SYNC,
}
GIVEN = {
    "batches": [1],
    "precisions": ["fp32"],
    "executions": ["eager"],
    "repeats": 3,
    "seconds": 1.0,
    "most_batch": 1 << 20,
    "timeout_s": 300.0,
}


def analysed(folder, **changes):
    begin(folder, new_plan("p", ["harness", "profile"], **GIVEN | changes))
    Profile(folder, lambda _line: None).run()
    return analyse_profile(folder)


def test_every_planted_cause_is_named(tmp_path):
    workload = {"name": "profile", "factory": "tests.support.planted_bottlenecks:make"}

    found = analysed(tmp_path / "p", workload=workload, sizes=list(PLANTED))

    assert {cell.cell.size: cell.finding.causes for cell in found.cells} == {
        name: (cause,) for name, cause in PLANTED.items()
    }


def test_the_capacity_is_a_batch_that_fills_the_memory_to_85_percent(tmp_path):
    workload = {"name": "profile", "model": "bert-training", "warmup_requests": 2}

    found = analysed(
        tmp_path / "p", workload=workload, batches=[512], precisions=["bf16"], repeats=1, seconds=0.5, capacity="memory"
    )

    (curve,) = found.manifest.curves
    at = next(cell for cell in found.cells if cell.cell.batch_size == curve.batch_size)
    assert 83 <= at.mean("gpu_memory_peak_percent") <= 85
