import csv
import resource
from datetime import datetime

import pytest

from harness.clock import SystemClock
from harness.errors import StorageError
from harness.metrics.rows import Missing
from harness.metrics.telemetry import GPU_COLUMNS, Telemetry, columns, described
from tests.support.fake_metrics import FakeGpus

START_S = 1_800_000_000.0


class Readings:
    """Time that passes where it is waited for, or where the driver takes it; the wish to end is heard after some readings."""

    def __init__(self, number):
        self.at_s, self.left = START_S, number

    def now_s(self):
        return self.at_s

    def wait_until(self, deadline_s, wake):
        self.left -= 1
        if self.left < 0:
            return wake.wait()
        self.at_s = max(self.at_s, deadline_s)
        return False


def run(path, source, readings=6, clock=None):
    telemetry = Telemetry(path, interval_s=0.05, clock=clock or Readings(readings), source=source)
    telemetry.start()
    return telemetry.finish()


def read(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_row_every_interval_with_every_column(tmp_path):
    path, source = tmp_path / "telemetry.csv", FakeGpus(2)
    summary = run(path, source)
    rows = read(path)
    assert list(rows[0]) == columns(range(2))
    assert len(rows) == summary.rows == 6
    assert [float(row["elapsed_s"]) for row in rows] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
    assert rows[0]["gpu1_power_w"] == "100.0"
    energy_j = [float(row["gpu0_energy_j"]) for row in rows]
    assert energy_j == sorted(energy_j)
    assert datetime.fromisoformat(rows[0]["timestamp"]).timestamp() == pytest.approx(START_S + 0.05)
    assert all(row["host_cpu_percent"] == "" or 0 <= float(row["host_cpu_percent"]) <= 100 for row in rows)
    assert (summary.gpus, summary.gpu_absent, summary.missing) == (2, "", {})
    assert source.closed


def test_the_summary_has_each_gpus_idle_power_or_why_not(tmp_path):
    devices = described(["GPU-a", "GPU-b", "GPU-c"], {"GPU-a": 71.5, "GPU-b": Missing("process 7 computed on the GPU")})
    telemetry = Telemetry(tmp_path / "t.csv", interval_s=0.05, clock=Readings(2), source=FakeGpus(3), devices=devices)
    telemetry.start()
    assert telemetry.finish().to_dict()["devices"] == [
        {"uuid": "GPU-a", "idle_w": 71.5},
        {"uuid": "GPU-b", "idle_absent": "process 7 computed on the GPU"},
        {"uuid": "GPU-c", "idle_absent": "it was not read before the replicas started"},
    ]


def test_without_a_gpu_only_the_host_and_the_reason(tmp_path):
    summary = run(tmp_path / "t.csv", FakeGpus())
    assert list(read(tmp_path / "t.csv")[0]) == ["timestamp", "elapsed_s", "host_cpu_percent"]
    assert summary.gpu_absent == "no NVIDIA driver: libnvidia-ml.so.1 not found"


def test_what_the_driver_does_not_give_is_empty_with_its_reason(tmp_path):
    class NoEnergy(FakeGpus):
        def read_telemetry(self):
            reason = Missing("NVML: Not Supported")
            return [dict.fromkeys(GPU_COLUMNS, reason) | {"power_w": 100.0}]

    summary = run(tmp_path / "t.csv", NoEnergy(1))
    assert read(tmp_path / "t.csv")[0]["gpu0_energy_j"] == ""
    assert summary.missing["gpu0_energy_j"] == "NVML: Not Supported"


def test_a_driver_whose_library_fails_leaves_empty_cells_with_the_reason_and_the_series_goes_on(tmp_path):
    class Failing(FakeGpus):
        def read_telemetry(self):
            raise AttributeError("nvmlDeviceGetUtilizationRates")

    summary = run(tmp_path / "t.csv", Failing(2))
    rows = read(tmp_path / "t.csv")
    assert summary.rows == len(rows) == 6
    assert {row["gpu1_power_w"] for row in rows} == {""}
    assert (
        summary.missing["gpu1_energy_j"] == "the GPU could not be read: AttributeError: nvmlDeviceGetUtilizationRates"
    )


def test_a_slow_driver_skips_readings_instead_of_piling_up(tmp_path):
    clock = Readings(4)

    class Slow(FakeGpus):
        def read_telemetry(self):
            clock.at_s += 0.12
            return super().read_telemetry()

    summary = run(tmp_path / "t.csv", Slow(1), clock=clock)
    assert [float(row["elapsed_s"]) for row in read(tmp_path / "t.csv")] == pytest.approx([0.05, 0.2, 0.35, 0.5])
    assert (summary.rows, summary.skipped) == (4, 4 * 2)


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("precious")
    with pytest.raises(StorageError, match=r"t\.csv cannot be written: File exists"):
        Telemetry(path, interval_s=0.1, clock=SystemClock(), source=FakeGpus())
    assert path.read_text() == "precious"


def test_a_full_disk_is_told_at_the_end_and_keeps_what_was_written(tmp_path):
    import signal

    path = tmp_path / "t.csv"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    telemetry = Telemetry(path, interval_s=0.001, clock=SystemClock(), source=FakeGpus(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        telemetry.start()
        telemetry.join(10)
        with pytest.raises(StorageError, match="cannot be written: File too large"):
            telemetry.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.stat().st_size == 10_000


def test_finishing_before_the_start_leaves_no_thread(tmp_path):
    telemetry = Telemetry(tmp_path / "t.csv", interval_s=0.1, clock=SystemClock(), source=FakeGpus())
    assert telemetry.finish().rows == 0
