"""The telemetry of a cluster's GPUs, from the samples of a real Prometheus to the figures of a report."""

import contextlib
import csv
import json

import pytest

from harness.analysis.campaign import measure
from harness.analysis.read import read_experiment
from harness.errors import StorageError
from harness.metrics.catalogue import select
from harness.metrics.nvml import ACTIVITY
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import export
from harness.metrics.prometheus.series import BLANK
from harness.metrics.prometheus.telemetry import FIELDS, PrometheusTelemetry
from harness.metrics.promql import PrometheusSource
from harness.metrics.telemetry import GPU_COLUMNS, columns
from harness.results.from_prometheus import save_source
from harness.results.layout import TELEMETRY, attempt_folder
from harness.results.writers import finalise
from tests.integration.metrics.prometheus_server import NEEDED, backfill, prometheus
from tests.support import forked
from tests.support.fake_metrics import RowList
from tests.support.ports import free_port
from tests.unit.results.synthetic import START_S, Shape, experiment_spec, manifest_for, write_attempt

pytestmark = NEEDED

SHAPE = Shape(record_s=30.0)
SECONDS = range(-5, 40)
PODS = [f'namespace="inference",pod="resnet50-{name}"' for name in "ab"]


def lines():
    """Two nodes with a GPU each in use, whose exporters are read at other moments; one unused, one under MIG, one mixed up."""
    for second in SECONDS:
        for place, node in enumerate(("n1", "n2")):
            time_s = START_S + second + 0.1 + place / 2
            device = f'node="{node}",gpu="0",UUID="GPU-{node}",modelName="NVIDIA H200"'
            yield f"DCGM_FI_DEV_GPU_UTIL{{{device}}} 100 {time_s}"
            for pod in PODS:  # as where the exporter tells pods apart
                yield f"DCGM_FI_DEV_POWER_USAGE{{{device},{pod}}} {300 + 100 * place} {time_s}"
            yield f"DCGM_FI_DEV_FB_USED{{{device}}} 1024 {time_s}"
            yield f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{device}}} {4 * (second % 2)} {time_s}"
            yield f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{device}}} {(second + 100) * (300 + 100 * place) * 1000} {time_s}"
            yield f"DCGM_FI_PROF_SM_ACTIVE{{{device}}} {0.2 + 0.4 * place + second % 2 / 30} {time_s}"
            yield f"DCGM_FI_PROF_PCIE_TX_BYTES{{{device}}} {2e9 / 3} {time_s}"
        yield f'DCGM_FI_PROF_SM_ACTIVE{{node="n1",gpu="1",UUID="GPU-unused"}} 0.99 {START_S + second + 0.1}'
        yield f'DCGM_FI_DEV_GPU_TEMP{{node="n3",gpu="0",UUID="GPU-n3"}} 55 {START_S + second + 0.1}'
        instance = 'node="n3",gpu="0",UUID="GPU-n3",GPU_I_ID="7",GPU_I_PROFILE="1g.18gb"'
        yield f"DCGM_FI_PROF_SM_ACTIVE{{{instance}}} 0.5 {START_S + second + 0.1}"
        # What DCGM says where it has no value: an int32, an int64 and a double of it, and -1 as an unsigned number.
        broken, blank = 'node="n5",gpu="0",UUID="GPU-n5"', second % 2
        yield f"DCGM_FI_DEV_POWER_USAGE{{{broken}}} {(140737488355328.0, 250)[blank]} {START_S + second + 0.1}"
        yield f"DCGM_FI_DEV_GPU_TEMP{{{broken}}} {(2147483632, 50)[blank]} {START_S + second + 0.1}"
        yield f"DCGM_FI_DEV_GPU_UTIL{{{broken}}} {(4294967295, 808334905)[blank]} {START_S + second + 0.1}"
        yield f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{broken}}} 9223372036854775794 {START_S + second + 0.1}"
        for instance, mib in (("1", 1000), ("2", 200), ("3", 9223372036854775794)):
            of_mig = f'{broken},GPU_I_ID="{instance}",GPU_I_PROFILE="1g.18gb"'
            for pod in PODS:
                yield f"DCGM_FI_DEV_FB_USED{{{of_mig},{pod}}} {mib} {START_S + second + 0.1}"
        for uuid in ("GPU-n4", "GPU-other"):
            yield f'DCGM_FI_DEV_GPU_TEMP{{node="n4",gpu="0",UUID="{uuid}"}} 55 {START_S + second + 0.1}'


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with prometheus(
        folder, database=backfill(folder, sorted(lines(), key=lambda line: line.partition("{")[0]))
    ) as address:
        yield address


class Clock:
    """One that a test moves."""

    now = START_S

    def now_s(self):
        return self.now


def collected(path, url, *, nodes=("n1", "n2"), gpus=("GPU-n1", "GPU-n2"), before_s=0.0, seconds=30.0):
    """The summary of what a recording of so many seconds leaves in ``path``, begun ``before_s`` earlier."""
    clock = Clock()
    clock.now -= before_s

    @contextlib.contextmanager
    def where():
        with PrometheusServer(url, timeout_s=30) as server:
            yield server, PrometheusSource(url, "inference", ("resnet50-a",), nodes, gpus=gpus).dialect()

    telemetry = PrometheusTelemetry(path, interval_s=1.0, clock=clock, where=where)
    telemetry.start()
    clock.now += seconds
    return telemetry.finish()


def rows_of(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_sample_of_the_gpus_in_use_is_a_reading_of_its_own(url, tmp_path):
    summary = collected(tmp_path / TELEMETRY, url)
    rows = rows_of(tmp_path / TELEMETRY)

    assert (summary.rows, summary.gpus, summary.gpu_absent, summary.interval_s) == (60, 2, "", 1.0)
    assert list(rows[0]) == columns(range(2))
    first, second = rows[:2]  # of n1, and half a second later of n2
    assert (first["elapsed_s"], second["elapsed_s"]) == ("0.100", "0.600")
    assert (first["gpu0_power_w"], first["gpu1_power_w"]) == ("300.0", "")
    assert (second["gpu0_power_w"], second["gpu1_power_w"]) == ("", "400.0")
    assert first["gpu0_memory_bytes"] == repr(1024.0 * 2**20)
    assert first["gpu0_energy_j"] == "30000.0"
    assert rows[2]["gpu0_throttle_reasons"] == "4.0"
    assert rows[2]["gpu0_sm_active_percent"] == "23.3333"  # six digits, as beside the GPU
    assert first["gpu0_pcie_sent_bytes_per_s"] == "666667000.0"
    assert summary.missing["gpu1_sm_clock_mhz"] == "Prometheus has no sample of DCGM_FI_DEV_SM_CLOCK"
    assert not any(name.endswith(("_power_w", "_sm_active_percent")) for name in summary.missing)


def measured(folder, url, **devices):
    """What the analysis finds in an experiment with the telemetry of these devices."""
    spec = experiment_spec("resnet50", 2, 1, SHAPE)
    attempt = attempt_folder(folder, spec.experiment_id, 1)
    write_attempt(attempt, spec, SHAPE, START_S)
    (attempt / TELEMETRY).unlink()
    summary = collected(attempt / TELEMETRY, url, **devices)
    manifest = manifest_for(spec, SHAPE, START_S).model_copy(update={"telemetry": summary.to_dict()})
    finalise(attempt, folder / spec.experiment_id, manifest)
    return measure(read_experiment(folder / spec.experiment_id))


def test_the_report_has_sm_activity_the_power_cap_and_counted_energy_of_a_cluster(url, tmp_path):
    found = measured(tmp_path, url)

    assert found.figures["gpu_sm_active"] == pytest.approx(100 * (0.2 + 0.6 + 1 / 30) / 2, rel=1e-5)
    assert found.figures["gpu_power_capped"] == 50.0
    assert found.figures["energy"] * found.figures["throughput"] == pytest.approx(700.0, rel=1e-6)
    assert any("Energy from the energy counter of gpu-0, gpu-1" in note for note in found.notes)


def test_an_exporter_without_the_right_to_profile_is_the_reason_for_no_sm_activity(url, tmp_path):
    assert measured(tmp_path, url, nodes=("n4",), gpus=("GPU-n4",)).absent["gpu_sm_active"] == (
        "the telemetry has no reading of sm_active_percent: Prometheus has no sample of DCGM_FI_PROF_SM_ACTIVE"
    )


@pytest.fixture
def experiment(url, tmp_path):
    """Makes one as a campaign leaves it, whose telemetry began before its first row and went on after the last."""

    def making(**origin):
        spec = experiment_spec("resnet50", 2, 1, SHAPE)
        attempt = attempt_folder(tmp_path, spec.experiment_id, 1)
        write_attempt(attempt, spec, SHAPE, START_S)
        (attempt / TELEMETRY).unlink()
        save_source(attempt, PrometheusSource(url, "inference", ("resnet50-a",), **origin))
        summary = collected(attempt / TELEMETRY, url, **origin, before_s=3.0, seconds=38.0) if origin["gpus"] else None
        manifest = manifest_for(spec, SHAPE, START_S)
        kept = manifest.model_copy(update={"telemetry": summary.to_dict() if summary else {}})
        finalise(attempt, tmp_path / spec.experiment_id, kept)
        return tmp_path / spec.experiment_id

    return making


def test_a_recording_that_is_collected_again_has_the_same_telemetry(experiment, tmp_path):
    recorded = experiment(nodes=("n1", "n2"), gpus=("GPU-n1", "GPU-n2"))

    done = forked.harness("export", tmp_path / "again", "--from", recorded)

    assert done.returncode == 0, done.stderr
    again, before = rows_of(tmp_path / "again" / TELEMETRY), rows_of(recorded / TELEMETRY)
    assert (len(before), len(again)) == (76, 60)
    assert [one | {"elapsed_s": ""} for one in again] == [one | {"elapsed_s": ""} for one in before[6:66]]
    assert (again[0]["elapsed_s"], before[6]["elapsed_s"]) == ("0.100", "3.100")  # of the first row, of the telemetry
    told = json.loads((tmp_path / "again" / "export.json").read_text())["telemetry"]
    assert told == read_experiment(recorded).manifest.telemetry | {"rows": 60, "interval_s": SHAPE.step_s}


@pytest.mark.parametrize(
    ("node", "gpus", "said"),
    [
        ("n9", ("GPU-n9",), "telemetry.csv is absent: Prometheus has no sample of a GPU in use"),
        ("n1", (), ""),  # replicas without a GPU have none of their nodes
    ],
)
def test_without_a_sample_of_the_replicas_gpus_there_is_no_telemetry(experiment, tmp_path, node, gpus, said):
    done = forked.harness("export", tmp_path / "again", "--from", experiment(nodes=(node,), gpus=gpus))

    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert ("telemetry" in json.loads((tmp_path / "again" / "export.json").read_text())) == bool(gpus)
    assert not (tmp_path / "again" / TELEMETRY).exists()


def test_what_an_exporter_says_of_instances_is_not_the_gpus(url, tmp_path):
    summary = collected(tmp_path / TELEMETRY, url, nodes=("n3",), gpus=())

    assert rows_of(tmp_path / TELEMETRY)[0]["gpu0_temperature_celsius"] == "55.0"
    assert rows_of(tmp_path / TELEMETRY)[0]["gpu0_sm_active_percent"] == ""
    assert summary.missing["gpu0_sm_active_percent"].startswith("the exporter reports it for each MIG instance")


def test_what_dcgm_says_where_it_has_no_value_is_none_and_the_memory_of_instances_is_added_up(url, tmp_path):
    summary = collected(tmp_path / TELEMETRY, url, nodes=("n5",), gpus=())
    rows = rows_of(tmp_path / TELEMETRY)
    assert {row["gpu0_power_w"] for row in rows} == {"", "250.0"}
    assert {row["gpu0_temperature_celsius"] for row in rows} == {"", "50.0"}
    assert {row["gpu0_memory_bytes"] for row in rows} == {repr(1200.0 * 2**20)}
    assert summary.missing.keys() >= {"gpu0_utilization_percent", "gpu0_energy_j"}

    kept = RowList()
    with PrometheusServer(url, timeout_s=30) as server:
        source = PrometheusSource(url, "inference", ("resnet50-a",), ("n5",))
        asking = {"metrics": select(["gpu_memory", "gpu_power", "gpu_utilization"]), "dialect": source.dialect()}
        export(server, **asking, start_s=START_S, rows=30, step_s=1.0, window_s=4.0, sink=kept, replicas=["resnet50-a"])
    values = {
        metric: [row.value for row in kept.rows if row.metric == metric] for metric in ("gpu_memory", "gpu_power")
    }
    assert set(values["gpu_memory"]) == {1200.0 * 2**20}
    assert values["gpu_power"] == [250.0, None] * 15 or values["gpu_power"] == [None, 250.0] * 15
    assert {row.reason for row in kept.rows if row.value is None} == {BLANK}


def test_two_gpus_under_one_name_are_not_mixed(url, tmp_path):
    summary = collected(tmp_path / TELEMETRY, url, nodes=("n4",), gpus=())

    assert {row["gpu0_temperature_celsius"] for row in rows_of(tmp_path / TELEMETRY)} == {""}
    assert "one device under two names at once" in summary.missing["gpu0_temperature_celsius"]


def test_a_server_that_is_away_or_knows_no_gpu_leaves_the_reason_and_no_file(url, tmp_path):
    away = collected(tmp_path / TELEMETRY, f"http://127.0.0.1:{free_port()}")
    unknown = collected(tmp_path / TELEMETRY, url, nodes=("n9",))

    assert (away.gpus, away.rows, "cannot be reached" in away.gpu_absent) == (0, 0, True)
    assert (unknown.gpus, unknown.gpu_absent) == (0, "Prometheus has no sample of a GPU in use")
    assert not (tmp_path / TELEMETRY).exists()
    assert json.dumps(away.to_dict())


def test_nothing_is_overwritten(url, tmp_path):
    (tmp_path / TELEMETRY).write_text("precious")

    with pytest.raises(StorageError, match=r"telemetry\.csv cannot be written: File exists"):
        collected(tmp_path / TELEMETRY, url)
    assert (tmp_path / TELEMETRY).read_text() == "precious"


def test_every_column_has_its_fields():
    assert set(FIELDS) == set(GPU_COLUMNS)
    assert {column for column, (names, _) in FIELDS.items() if "_PROF_" in names[0]} == set(ACTIVITY)
