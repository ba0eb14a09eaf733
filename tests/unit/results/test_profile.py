"""Figures of a point come from its window alone; what is missing has a reason."""

import pytest

from harness.results.layout import iso
from harness.results.manifest import Gpu, Host, Provenance, Software
from harness.results.profile import figures_of

START_S = 1_800_000_000.0
TRACE = {
    "requests": 5, "request_s": 0.02, "kernel_s": 0.004, "copy_in_s": 0.001, "copy_out_s": 0.0,
    "sync_s": 0.005, "launch_s": 0.01, "host_s": 0.0, "kernels": 100.0, "launches": 100.0,
}  # fmt: skip


def provenance(gpus=("GPU-a",)):
    host = Host(
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
    software = Software(harness="0", git_commit=None, python="3", packages={})
    found = [Gpu(index=index, name="G", uuid=uuid) for index, uuid in enumerate(gpus)]
    return Provenance(host=host, gpus=found, gpus_absent="" if gpus else "no driver", software=software)


def measured(**changes):
    return {
        "wall_s": 1.0, "cpu_s": 0.5, "requests": 100, "inputs": 800, "latencies_s": [0.01] * 100,
        "window_s": [START_S + 1, START_S + 2], "load_s": 2.0, "warmup_s": 1.0, "outcome": {"loss": 0.5},
        "described": {"device": "cuda", "device_uuid": "GPU-a"},
        "memory": {"used": 50, "total": 200, "allocated_peak": 40}, "trace": TRACE,
    } | changes  # fmt: skip


@pytest.fixture
def telemetry(tmp_path):
    path = tmp_path / "telemetry.csv"
    lines = ["timestamp,elapsed_s,gpu0_sm_active_percent,gpu0_throttle_reasons,gpu1_sm_active_percent,host_cpu_percent"]
    for tenth in range(31):
        inside = 10 < tenth <= 20
        lines.append(
            f"{iso(START_S + tenth / 10)},{tenth / 10},{80.0 if inside else 1.0},{4 if inside else 1},7.0,{50.0 if inside else 1.0}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_only_readings_of_the_window_count(telemetry):
    figures, missing = figures_of(measured(), telemetry, provenance(), {"gpu0_dram_active_percent": "NVML: too old"})

    assert figures["gpu_sm_active_percent"] == 80.0
    assert figures["host_cpu_percent"] == 50.0
    assert figures["gpu_power_cap_share"] == 1.0
    assert (figures["throughput_inputs_per_s"], figures["process_cpu_cores"]) == (800.0, 0.5)
    assert figures["gpu_memory_peak_percent"] == 25.0
    assert missing["gpu_dram_active_percent"] == "NVML: too old"
    assert missing["gpu_power_w"] == "no reading lies within the 1 s that were measured"
    assert not missing.keys() & figures.keys()


def test_the_gpu_is_the_one_that_the_workload_names(telemetry):
    figures, _ = figures_of(
        measured(described={"device": "cuda", "device_uuid": "GPU-b"}), telemetry, provenance(("GPU-a", "GPU-b")), {}
    )

    assert figures["gpu_sm_active_percent"] == 7.0


def test_of_two_gpus_none_is_guessed(telemetry):
    figures, missing = figures_of(measured(described={}), telemetry, provenance(("GPU-a", "GPU-b")), {})

    assert "gpu_sm_active_percent" not in figures
    assert "device_uuid" in missing["gpu_sm_active_percent"]


def test_idle_time_is_that_of_requests_without_the_profiler(telemetry):
    figures, _ = figures_of(measured(), telemetry, provenance(), {})

    assert figures["kernel_busy_share"] == pytest.approx(0.4)
    assert figures["copy_in_share"] == pytest.approx(0.1)
    assert figures["idle_launch_share"] == pytest.approx(0.5 * 10 / 15)
    assert figures["idle_sync_share"] == pytest.approx(0.5 * 5 / 15)


def test_without_a_gpu_everything_about_it_is_missing_with_its_reason(telemetry):
    on_cpu = measured(described={"device": "cpu"}, memory={}, trace={"absent": "no kernels"})

    figures, missing = figures_of(on_cpu, telemetry, provenance(()), {})

    assert not [name for name in figures if name.startswith(("gpu_", "kernel", "idle"))]
    assert missing["gpu_sm_active_percent"] == "the workload ran on the CPU"
    assert missing["idle_host_share"] == "no kernels"


def test_a_percentile_that_the_sample_cannot_support_is_missing(telemetry):
    figures, missing = figures_of(measured(requests=99, latencies_s=[0.01] * 99), telemetry, provenance(), {})

    assert "latency_p99_s" not in figures
    assert missing["latency_p99_s"] == "it takes 100 requests, and there were 99"
