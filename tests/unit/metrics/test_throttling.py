"""Whether a GPU was held back, from the telemetry of its recording."""

from types import SimpleNamespace

import pytest

from harness.campaign.verdict import give_verdict, judge_data
from harness.metrics.quality import Severity
from harness.metrics.telemetry import held_back
from harness.results.manifest import Status
from tests.support.experiments import experiment


def telemetry(path, *masks):
    rows = [f"2026-01-01T00:00:00.000Z,{index},{mask},{index}" for index, mask in enumerate(masks)]
    path.write_text("\n".join(["timestamp,elapsed_s,gpu0_throttle_reasons,gpu0_energy_j", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("masks", "severity", "said"),
    [
        ([0, 4.0, 4.0, 4.0], Severity.INFO, "gpu-0 ran at its power cap in 75% of the readings"),
        ([0, 0, 0x20, 0x40], Severity.DEGRADED, "gpu-0 was slowed by heat or by its hardware in 50% of the readings"),
    ],
)
def test_a_gpu_that_is_held_back_is_named_with_its_share(tmp_path, masks, severity, said):
    (finding,) = held_back(telemetry(tmp_path / "telemetry.csv", *masks))

    assert finding.severity is severity
    assert finding.message.startswith(said)


def test_heat_degrades_a_run_and_the_power_cap_does_not(tmp_path):
    def status(mask):
        found = list(held_back(telemetry(tmp_path / "telemetry.csv", mask)))
        return give_verdict(found, failures=[], deaths=[], unclean_ends=[], replicas=1).status

    assert status(0x4) is Status.VALID
    assert status(0x40) is Status.DEGRADED


@pytest.mark.parametrize("masks", [[], [""], ["", 0, 1], [0] * 200 + [4]])
def test_a_gpu_that_runs_free_or_tells_nothing_is_not_named(tmp_path, masks):
    assert not list(held_back(telemetry(tmp_path / "telemetry.csv", *masks)))
    assert not list(held_back(tmp_path / "none.csv"))


def test_the_telemetry_of_an_attempt_is_judged_with_its_data(tmp_path):
    telemetry(tmp_path / "telemetry.csv", 0x40)
    summary = SimpleNamespace(start_s=0.0, end_s=1.0, rows=2, answered_within_s=0.0)

    assert any("slowed by heat" in finding.message for finding in judge_data(tmp_path, summary, experiment()))
