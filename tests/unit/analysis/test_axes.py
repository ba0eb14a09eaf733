"""Settings side by side: what is fastest, what holds each back, and what an earlier version's profile says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.axes import families, family_of_old
from harness.analysis.campaign import CampaignAnalysis, analyse
from harness.analysis.metrics.traced import memory_peak_percent, shares_of
from harness.analysis.report import report_of, report_of_old_profile
from harness.campaign.verify import verify_campaign
from harness.errors import ResultsPathError, UsageError
from harness.results import layout
from harness.results.manifest import read_manifest
from harness.results.old_profile import MANIFEST, read_old_profile, refuse_to_resume
from tests.unit.results.synthetic import Shape, write_campaign

OLD = Path(__file__).parents[2] / "golden" / "profiles" / "capacity.tar.xz"
TRACE = {
    "requests": 5, "request_s": 0.02, "kernel_s": 0.004, "copy_in_s": 0.001, "copy_out_s": 0.0,
    "sync_s": 0.005, "launch_s": 0.01, "host_s": 0.0, "kernels": 100.0, "launches": 100.0,
    "top": [["gemm", 50.0, 3000.0, 60.0, 75.0]], "allocated_peak_bytes": 40,
}  # fmt: skip


def traced(folder: Path, trace: dict[str, Any] | None) -> CampaignAnalysis:
    """Two workloads that are settings of one, traced like this."""
    write_campaign(folder, workloads=["resnet50", "distilbert"], replicas=[1], repeats=2, shape=Shape(record_s=20))
    for path in folder.glob("*_rep*/manifest.json"):
        manifest = read_manifest(path.parent)
        batch = 8 if manifest.experiment.workload.name == "distilbert" else 1
        workload = manifest.experiment.workload.model_copy(
            update={"trace": True, "variant_of": "model", "batch_size": batch}
        )
        replicas = [
            {**replica, "batch_size": batch, **({"trace": trace} if trace else {})} for replica in manifest.replicas
        ]
        experiment = manifest.experiment.model_copy(update={"workload": workload})
        path.write_text(manifest.model_copy(update={"experiment": experiment, "replicas": replicas}).sealed().to_json())
    return analyse(folder)


def test_a_trace_is_divided_as_the_request_went_without_the_profiler() -> None:
    shares = shares_of(TRACE, 0.01)

    assert shares["kernel_busy_share"] == pytest.approx(0.4)
    assert shares["copy_in_share"] == pytest.approx(0.1)
    assert shares["idle_launch_share"] == pytest.approx(0.5 * 10 / 15)
    assert shares["idle_sync_share"] == pytest.approx(0.5 * 5 / 15)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> CampaignAnalysis:
    return traced(tmp_path_factory.mktemp("traced") / "c", TRACE)


def test_shares_are_metrics_of_a_traced_run(analysis: CampaignAnalysis) -> None:
    cell = analysis.cells[0]

    request_s = cell.estimates["latency_mean"].mean
    assert cell.estimates["kernel_busy_share"].mean == pytest.approx(0.004 / request_s, rel=0.01)
    assert cell.estimates["kernels_per_request"].mean == 100
    assert cell.absent["accuracy"] == "the workload says nothing of it"
    assert cell.absent["gpu_memory_peak_percent"] == "the GPU's memory was not read"


def test_the_report_has_the_settings_their_causes_and_curves(analysis: CampaignAnalysis, tmp_path: Path) -> None:
    [family] = families(analysis)

    assert (family.title, family.axes) == ("model", ["batch_size"])
    assert [variant.values["batch_size"] for variant in family.variants] == [1, 8]
    assert all(variant.finding is not None for variant in family.variants)
    assert family.answers()[0].startswith("The fastest setting of model is distilbert: ")
    page = report_of(analysis, tmp_path).read_text()
    assert "Every setting of model" in page
    assert "gemm" in page
    assert (tmp_path / "plots" / "batch-model.png").is_file()
    assert json.loads((tmp_path / "summary.json").read_text())["settings"][0]["axes"] == ["batch_size"]


def test_a_run_that_was_not_traced_says_why(tmp_path: Path) -> None:
    cell = traced(tmp_path / "c", None).cells[0]

    assert cell.absent["idle_host_share"] == "the replica ended before it was traced"
    assert "kernel_busy_share" not in cell.estimates


def test_untraced_workloads_of_one_setting_are_no_family(tmp_path: Path) -> None:
    write_campaign(tmp_path / "c", replicas=[1], repeats=1, shape=Shape(record_s=20))

    assert families(analyse(tmp_path / "c")) == []


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.unpack_archive(OLD, tmp_path)
    return tmp_path / "old-capacity"


def test_a_profile_of_an_earlier_version_is_read_under_the_names_of_now(old: Path) -> None:
    before = read_old_profile(old)
    family = family_of_old(before)

    assert family.axes == ["batch_size"]
    fastest = family.variants[1]
    assert fastest.name == "b16-fp32-eager"
    assert fastest.mean("inputs") == pytest.approx(16 * (fastest.mean("throughput") or 0))
    assert family.variants[-1].held_back == "out of memory"
    assert family.capacity == [
        "fp32-eager: The knee lies at a batch of 8: 23,193,663 inputs/s, 95% or more of the most that any batch reached."
    ]
    assert "the workload ran on the CPU" in fastest.missing["gpu_sm_active"]
    assert family.to_dict()["settings"][0]["figures"]["inputs"]["n"] == 2


def test_it_verifies_and_its_report_can_be_written_again(old: Path) -> None:
    assert verify_campaign(old).ok
    page = report_of_old_profile(read_old_profile(old))
    assert "The knee lies at a batch of 8" in page.read_text()
    assert verify_campaign(old).ok
    next(old.glob("points/*/point.json")).write_text("{}")
    assert not verify_campaign(old).ok


@pytest.mark.parametrize("content", ["{}", '{"plan": 3}', '{"plan": {"spec": {"workload": {}}}}', "[]"])
def test_one_that_is_odd_is_refused_in_a_sentence(old: Path, content: str) -> None:
    (old / MANIFEST).write_text(content)
    for read in (read_old_profile, verify_campaign):
        with pytest.raises(ResultsPathError):
            read(old)


def test_it_is_not_gone_on_with(old: Path) -> None:
    with pytest.raises(UsageError, match="profile of an earlier version"):
        refuse_to_resume(old)


def test_the_memory_is_that_of_the_fullest_gpu_at_its_peak(tmp_path: Path) -> None:
    write_campaign(tmp_path / "c", replicas=[1], repeats=1, shape=Shape(record_s=20))
    data = analyse(tmp_path / "c").experiments[0].data
    size = data.manifest.gpus[0].memory_bytes or 0
    rows = [f"2026-01-01T00:00:0{index}.000Z,{index},{share * size}" for index, share in enumerate((0.25, 0.5, 0.1))]
    (data.folder / "telemetry.csv").write_text(
        "\n".join(["timestamp,elapsed_s,gpu0_memory_bytes", *rows, "t,3,"]) + "\n"
    )

    assert memory_peak_percent(data) == pytest.approx(50)
    path = data.folder / layout.MANIFEST
    path.write_text(path.read_text().replace('"index": 0', '"index": 2'))  # the only one read, the third of the machine
    data = analyse(tmp_path / "c").experiments[0].data
    assert data.manifest.gpus[0].index == 2
    assert memory_peak_percent(data) == pytest.approx(50)
    (data.folder / "telemetry.csv").unlink()
    with pytest.raises(ValueError, match="memory was not read"):
        memory_peak_percent(data)
