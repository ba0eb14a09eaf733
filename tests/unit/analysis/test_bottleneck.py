"""What holds a workload back is named from figures; missing ones are never taken for zero."""

import pytest

from harness.analysis.bottleneck import RULES, SAME_WITHIN, Cause, find

IDLE = {
    "kernel_busy_share": 0.05, "copy_in_share": 0.01, "copy_out_share": 0.01, "idle_launch_share": 0.03,
    "idle_sync_share": 0.03, "idle_host_share": 0.03, "kernels_per_request": 100.0, "kernel_mean_s": 5e-6,
    "gpu_sm_active": 4.0, "gpu_dram_active_percent": 1.0, "gpu_power_capped": 0.0, "cpu_usage": 1.0,
}  # fmt: skip
BUSY = IDLE | {"kernel_busy_share": 0.97, "gpu_sm_active": 95.0, "idle_launch_share": 0.0}
PLANTED = {
    Cause.HOST: IDLE | {"idle_host_share": 0.9},
    Cause.COPY: IDLE | {"copy_in_share": 0.9},
    Cause.LAUNCHES: IDLE | {"idle_launch_share": 0.5, "kernel_busy_share": 0.4, "gpu_sm_active": 1.0},
    Cause.MEMORY: BUSY | {"gpu_dram_active_percent": 88.0},
    Cause.COMPUTE: BUSY | {"gpu_dram_active_percent": 20.0},
    Cause.POWER: BUSY | {"gpu_dram_active_percent": 20.0, "gpu_power_capped": 98.0},
    Cause.SYNC: IDLE | {"idle_sync_share": 0.7, "copy_out_share": 0.15},
}
ON_THE_CPU = {"cpu_usage": 2.0, "host_cpu_percent": 99.0}


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_is_named_with_its_figures_and_what_to_change(cause):
    finding = find(PLANTED[cause], {})

    assert finding.causes == (cause,)
    assert finding.evidence[0].startswith(f"{cause}: ")
    assert any(character.isdigit() for character in finding.evidence[0])
    assert finding.following
    assert finding.missing == ()


def test_every_cause_has_one_rule():
    assert sorted(rule.cause for rule in RULES) == sorted(Cause)


def test_causes_that_differ_by_little_are_named_together():
    tied = IDLE | {"idle_host_share": 0.45, "copy_in_share": 0.45 - SAME_WITHIN / 2}

    finding = find(tied, {})

    assert set(finding.causes) == {Cause.HOST, Cause.COPY}
    assert len(finding.evidence) == len(finding.following) == 2
    assert "Bottlenecks: " in finding.sentence


def test_half_of_the_readings_at_the_power_cap_is_a_tie_of_compute_and_power():
    finding = find(PLANTED[Cause.POWER] | {"gpu_power_capped": 50.0}, {})

    assert set(finding.causes) == {Cause.COMPUTE, Cause.POWER}


def test_nothing_is_named_where_nothing_dominates():
    even = IDLE | {"kernel_busy_share": 0.2, "gpu_sm_active": 20.0, "gpu_dram_active_percent": 9.0}
    even |= {"idle_host_share": 0.2, "copy_in_share": 0.2, "idle_launch_share": 0.2, "idle_sync_share": 0.19}

    finding = find(even, {})

    assert finding.causes == ()
    assert finding.sentence.startswith("Nothing dominates")


def test_without_a_gpu_it_cannot_be_told_and_the_reasons_are_given():
    reasons = {"kernel_busy_share": "the workload ran without a GPU", "gpu_sm_active": "no driver"}

    finding = find(ON_THE_CPU, reasons)

    assert finding.causes == ()
    assert finding.sentence.startswith("The bottleneck is unknown")
    assert set(finding.shares.values()) == {None}
    told = " ".join(finding.missing)
    assert "the workload ran without a GPU" in told
    assert "no driver" in told


def test_a_busy_gpu_without_activity_figures_is_not_judged():
    figures = {name: value for name, value in PLANTED[Cause.COMPUTE].items() if "_active" not in name}

    finding = find(figures, {"gpu_sm_active": "this GPU has no performance monitoring"})

    assert finding.causes == ()
    assert any("no performance monitoring" in sentence for sentence in finding.missing)


def test_an_idle_gpu_is_judged_without_activity_figures_as_they_could_not_change_the_answer():
    figures = {name: value for name, value in PLANTED[Cause.HOST].items() if "_active" not in name}

    assert find(figures, {}).causes == (Cause.HOST,)


def test_a_full_gpu_is_judged_without_a_trace_as_it_could_not_change_the_answer():
    traced = {
        "kernel_busy_share",
        "copy_in_share",
        "copy_out_share",
        "idle_launch_share",
        "idle_sync_share",
        "idle_host_share",
    }
    figures = {name: value for name, value in PLANTED[Cause.MEMORY].items() if name not in traced}

    assert find(figures, {}).causes == (Cause.MEMORY,)


def test_a_missing_power_reading_leaves_compute_and_power_open():
    figures = {name: value for name, value in PLANTED[Cause.COMPUTE].items() if name != "gpu_power_capped"}

    finding = find(figures, {"gpu_power_capped": "the driver did not say"})

    assert finding.causes == ()
    assert finding.missing == ("At the power cap: the driver did not say.",)
