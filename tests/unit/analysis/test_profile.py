"""The report of a profile says first what matters, with intervals, and draws where the time goes."""

import pytest

from harness.analysis.profile import ProfileAnalysis, analyse_profile
from harness.analysis.profile_report import write_profile_report
from harness.results.manifest import Host, Provenance, Software
from harness.results.profile import POINTS, Curve, Outcome, Plan, Point, write_manifest
from harness.spec.profile import ProfileCell, ProfileSpec
from tests.unit.analysis.test_bottleneck import PLANTED, Cause

HOST = Host(
    hostname="h",
    os="o",
    kernel="k",
    architecture="a",
    cpu_model="c",
    cpus=2,
    memory_bytes=1,
    cgroup_version=2,
    psi=True,
)
SPEC = ProfileSpec(
    workload={"name": "profile", "model": "resnet50"}, batches=[1, 64], precisions=["fp16"], executions=["eager"],
    repeats=3, seconds=1.0, most_batch=128, timeout_s=60.0,
)  # fmt: skip
CAUSES = {1: Cause.LAUNCHES, 64: Cause.POWER}


def points():
    for batch, cause in CAUSES.items():
        cell = ProfileCell(batch_size=batch, precision="fp16", execution="eager")
        for repeat in (1, 2, 3):
            rate = 100.0 * batch + repeat
            figures = PLANTED[cause] | {"throughput_inputs_per_s": rate, "latency_mean_s": batch / rate}
            yield Point(
                cell=cell, repeat=repeat, outcome=Outcome.MEASURED, figures=figures | {"gpu_memory_peak_percent": 9.0}
            )
    cell = ProfileCell(batch_size=128, precision="fp16", execution="eager")
    yield Point(cell=cell, repeat=1, outcome=Outcome.OUT_OF_MEMORY, message="out of memory: 1 GiB")


@pytest.fixture
def analysis(tmp_path) -> ProfileAnalysis:
    found = list(points())
    for point in found:
        (tmp_path / POINTS / point.name).mkdir(parents=True)
    software = Software(harness="0", git_commit=None, python="3", packages={})
    plan = Plan(
        name="p", spec=SPEC, provenance=Provenance(host=HOST, gpus=[], software=software), command=["harness", "profile"],
        started_at="2026-01-01T00:00:00.000Z",
    )  # fmt: skip
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    curve = Curve(series="fp16-eager", batch_size=64, sentence="The knee lies at a batch of 64.", tried=[64, 128])
    write_manifest(tmp_path, plan, found, [curve])
    return analyse_profile(tmp_path)


def test_the_answer_names_the_fastest_setting_its_cause_and_the_capacity(analysis):
    best, there, curve = analysis.answers()

    assert best.startswith("The fastest setting is b64-fp16-eager: 6,402 ± 2 inputs/s")
    assert there.startswith("At this setting: held back by power cap (")
    assert curve == "fp16-eager: The knee lies at a batch of 64."


def test_each_setting_has_its_own_cause_and_a_failure_its_reason(analysis):
    found = {cell.cell.batch_size: cell for cell in analysis.cells}

    assert {batch: found[batch].finding.causes for batch in CAUSES} == {
        batch: (cause,) for batch, cause in CAUSES.items()
    }
    assert found[128].finding is None
    assert found[128].failure == "out of memory: out of memory: 1 GiB"


def test_the_page_has_both_pictures_and_what_to_change(analysis):
    page = write_profile_report(analysis).read_text()

    assert page.count("<figure ") == page.count('role="img"') == 2
    assert "Where the time goes" in page
    assert page.count("<b>Next:</b>") == 2
    assert (analysis.folder / "plots" / "time.png").is_file()
