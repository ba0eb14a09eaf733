"""On a GPU: processes take turns under time-slicing, and none under MPS. Skipped where there is none."""

import pytest
import torch

from harness.analysis.questions.time_slices import time_slices
from harness.campaign.probe import gpu_to_probe, probe
from harness.spec import Sharing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("processes", [2, 4])
def test_time_slicing_gives_turns_one_after_the_other(processes):
    gpu = gpu_to_probe(Sharing.TIME_SLICING)
    found = time_slices(
        probe(gpu, Sharing.TIME_SLICING, processes=processes, seconds=0.5, repeats=2, say=lambda _line: None)
    )

    assert found.switches > 20
    assert found.together_percent.mean == 0
    assert found.slice_s is not None
    assert 1e-4 < found.slice_s.mean < 0.1
    assert found.switch_s is not None
    assert 1e-5 < found.switch_s.mean < 0.01


def test_mps_gives_none():
    gpu = gpu_to_probe(Sharing.MPS)
    found = time_slices(probe(gpu, Sharing.MPS, processes=2, seconds=0.5, repeats=2, say=lambda _line: None))

    assert found.switches == 0
    assert found.together_percent.mean == 100
