"""What each replica took of a GPU of 57 W that was planted: the parts are the whole, idle stands apart, and what is absent has a reason."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.analysis import campaign_table
from harness.analysis.campaign import analyse
from harness.analysis.metrics.attribution import GpuUse, divide, gpu_use
from harness.analysis.metrics.run import Run
from harness.analysis.read import NotMeasuredError, read_experiment
from harness.analysis.report import report_of
from harness.results.manifest import read_manifest
from harness.sharing.modes import MODES
from harness.spec import ConditionSpec, NeighbourSpec, Sharing, WorkloadSpec
from tests.unit.analysis.test_campaign import edit_then_seal
from tests.unit.results.synthetic import NO_GPU, Shape, write_experiment

WATTS, IDLE_W, SM_ACTIVE = 57.0, 20.0, 62.5
SHAPE = Shape(record_s=20, noise=0.0)
BESIDE = ConditionSpec(name="beside", neighbours=[NeighbourSpec(workload=WorkloadSpec(name="whisper"))])


def planted(folder: Path, replicas: int = 3, idle: object = IDLE_W, shape: Shape = SHAPE, **changes: Any) -> Path:
    """An experiment whose GPU had been read before the replicas started."""
    path = write_experiment(folder, "resnet50", replicas, shape=shape)
    device = {"uuid": "GPU-a", **({"idle_w": idle} if isinstance(idle, float) else {"idle_absent": idle})}
    edit_then_seal(path, **{"telemetry": {"devices": [device]}, **changes})
    return path


def own(path: Path) -> Path:
    """The same, of a workload of the user's own."""
    experiment = read_manifest(path).experiment
    workload = experiment.workload.model_copy(update={"factory": "mine:make"})
    edit_then_seal(path, experiment=experiment.model_copy(update={"workload": workload}))
    return path


def use_of(path: Path, rates: list[float] | None = None) -> GpuUse:
    run = Run(read_experiment(path))
    if rates is not None:
        run.__dict__["replica_rates"] = rates
    return gpu_use(run)


def test_the_parts_relate_as_the_weights_and_are_the_whole() -> None:
    assert divide(10.0, [1, 2, 0, 1]) == [2.5, 5.0, 0.0, 2.5]
    assert sum(divide(0.1, [0.1] * 7)) == pytest.approx(0.1, rel=1e-12)
    for nothing in ([0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(NotMeasuredError):
            divide(10.0, nothing)


def test_replicas_and_idle_are_what_the_gpu_drew(tmp_path: Path) -> None:
    use = use_of(planted(tmp_path), [30.0, 20.0, 10.0])
    assert use.idle_w == IDLE_W
    assert sum(replica.power_w for replica in use.replicas) + use.idle_w == pytest.approx(WATTS)
    assert [replica.power_w for replica in use.replicas] == pytest.approx([37 / 2, 37 / 3, 37 / 6])
    assert [replica.energy_j for replica in use.replicas] == pytest.approx([37 / 60] * 3)
    assert sum(replica.sm_active_percent or 0 for replica in use.replicas) == pytest.approx(SM_ACTIVE)
    assert use.how == "divided among the replicas by requests"


def test_a_replica_that_made_nothing_took_nothing_and_has_no_energy_per_request(tmp_path: Path) -> None:
    idle, busy = use_of(planted(tmp_path, 2), [0.0, 10.0]).replicas
    assert (idle.power_w, idle.energy_j, idle.sm_active_percent) == (0.0, None, 0.0)
    assert (busy.power_w, busy.energy_j) == (pytest.approx(37), pytest.approx(3.7))
    with pytest.raises(NotMeasuredError, match="nothing was served"):
        use_of(tmp_path / "resnet50_r2_time-slicing_rep1", [0.0, 0.0])


def test_a_counter_that_was_reset_gives_way_to_the_power(tmp_path: Path) -> None:
    path = planted(tmp_path)
    telemetry = pd.read_csv(path / "telemetry.csv")
    telemetry.loc[40:, "gpu0_energy_j"] -= 1500
    telemetry.drop(columns="gpu0_sm_active_percent").to_csv(path / "telemetry.csv", index=False)
    edit_then_seal(path)
    use = use_of(path)
    assert sum(replica.power_w for replica in use.replicas) + use.idle_w == pytest.approx(WATTS, rel=0.01)
    assert {replica.sm_active_percent for replica in use.replicas} == {None}


@pytest.mark.parametrize("sharing", [Sharing.TIME_SLICING, Sharing.MPS, Sharing.MIG, Sharing.EXCLUSIVE])
def test_a_replica_alone_on_its_gpu_has_all_of_it_under_every_mode(tmp_path: Path, sharing: Sharing) -> None:
    use = use_of(planted(tmp_path, 1, shape=Shape(record_s=20, sharing=sharing)))
    (only,) = use.replicas
    assert (only.power_w, only.sm_active_percent) == (pytest.approx(WATTS - IDLE_W), SM_ACTIVE)
    assert use.how == "each replica has its GPU to itself"


def test_each_of_two_gpus_is_that_of_the_replica_on_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "resnet50", 2, shape=SHAPE)
    telemetry = pd.read_csv(path / "telemetry.csv")
    telemetry.assign(gpu1_power_w=114.0, gpu1_energy_j=2 * telemetry["gpu0_energy_j"]).to_csv(
        path / "telemetry.csv", index=False
    )
    devices = [{"uuid": "GPU-a", "idle_w": IDLE_W}, {"uuid": "GPU-b", "idle_w": 30.0}]
    replicas = [{"device": "cuda", "device_uuid": uuid} for uuid in ("GPU-b", "GPU-a")]
    edit_then_seal(path, telemetry={"devices": devices}, replicas=replicas)
    use = use_of(path)
    assert [replica.power_w for replica in use.replicas] == pytest.approx([84.0, 37.0])
    assert use.idle_w == 50.0

    edit_then_seal(path, replicas=[{"device": "cuda"}, {"device": "cuda"}])
    with pytest.raises(NotMeasuredError, match="which GPU"):
        use_of(path)


@pytest.mark.parametrize("sharing", [mode for mode in Sharing if MODES[mode].attribution is None])
def test_a_mode_without_a_measured_way_says_why_nothing_is_divided(tmp_path: Path, sharing: Sharing) -> None:
    path = planted(tmp_path, 2, shape=Shape(record_s=20, sharing=sharing))
    with pytest.raises(NotMeasuredError) as refused:
        use_of(path)
    assert str(refused.value) == f"{MODES[sharing].unattributed} ({sharing.value})"


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (lambda folder: write_experiment(folder, "resnet50", 3, shape=SHAPE), "idle power was not read"),
        (lambda folder: planted(folder, idle="process 7 computed on the GPU"), "process 7"),
        (lambda folder: planted(folder, idle=60.0), "that was not idle"),
        (lambda folder: write_experiment(folder, "resnet50", 3, shape=Shape(gpu=False, record_s=20)), NO_GPU),
        (
            lambda folder: planted(
                folder,
                shape=Shape(record_s=20, condition=BESIDE),
                neighbours={"whisper": [{"device": "cuda", "device_uuid": "GPU-a"}]},
            ),
            "whisper is on the same GPU",
        ),
        (lambda folder: own(planted(folder)), "a workload of your own"),
    ],
)
def test_what_is_not_known_is_absent_with_its_reason(
    tmp_path: Path, plant: Callable[[Path], Path], reason: str
) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        use_of(plant(tmp_path))


def test_the_report_the_summary_and_the_table_of_the_campaign_have_it(tmp_path: Path) -> None:
    path = planted(tmp_path)
    analysis = analyse(tmp_path)
    page = report_of(analysis, tmp_path).read_text()
    assert "GPU, idle" in page
    use = json.loads((tmp_path / "summary.json").read_text())["experiments"][0]["gpu_use"]
    row = pd.read_parquet(io.BytesIO(campaign_table.to_parquet(analysis))).iloc[0]
    assert list(row["replica_power_watts"]) == [replica["power_w"] for replica in use["replicas"]]
    assert sum(row["replica_power_watts"]) + row["gpu_idle_power_watts"] == pytest.approx(WATTS)
    assert len(row["replica_energy_joules_per_request"]) == len(row["replica_sm_active_percent"]) == 3
    assert "replica_power_watts" not in json.loads(row["missing_reasons"])

    edit_then_seal(path, telemetry={})
    page = html.unescape(report_of(analyse(tmp_path), tmp_path).read_text())
    reason = json.loads((tmp_path / "summary.json").read_text())["experiments"][0]["gpu_use"]["absent"]
    assert reason in page
    assert "GPU, idle" not in page
    row = pd.read_parquet(tmp_path / "campaign.parquet").iloc[0]
    assert row["replica_power_watts"] is None
    assert json.loads(row["missing_reasons"])["replica_power_watts"] == reason
    assert read_manifest(path).telemetry == {}
