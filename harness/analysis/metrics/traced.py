"""What a run with ``trace: true`` says beside the metrics of every run: where the time of a request went, and what the GPU did.

Shares are of a request's time as it was without the profiler, which slows the host and not the GPU.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness.analysis.metrics.run import Run
from harness.analysis.read import ExperimentData, NotMeasuredError
from harness.results.files import storage_errors
from harness.results.layout import TELEMETRY

IDLE = ("launch", "sync", "host")
BUSY = ("kernel", "copy_in", "copy_out")


def shares_of(trace: Mapping[str, Any], request_s: float) -> dict[str, float]:
    """The time of a request divided: some kernel runs, only a copy does, or nothing does and the host launches, waits or works."""
    busy = {name: trace[f"{name}_s"] / request_s for name in BUSY}
    scale = max(sum(busy.values()), 1.0)  # of requests that differ in length, those traced may be the longer ones
    idle = {name: float(trace[f"{name}_s"]) for name in IDLE}
    left = max(1.0 - sum(busy.values()), 0.0) / (sum(idle.values()) or 1.0)
    shares = {"kernel_busy_share": busy["kernel"] / scale}
    shares |= {f"{name}_share": busy[name] / scale for name in BUSY[1:]}
    return shares | {f"idle_{name}_share": idle[name] * left for name in IDLE}


def _over_traces(figure: Callable[[Mapping[str, Any]], float], run: Run) -> float:
    """The mean over the replicas, of which each has to be traced."""
    traces = [
        replica.get("trace") or {"absent": "the replica ended before it was traced"}
        for replica in run.data.manifest.replicas
    ] or [{"absent": "no replica was traced"}]
    for trace in traces:
        if "absent" in trace:
            raise NotMeasuredError(trace["absent"])
    return sum(map(figure, traces)) / len(traces)


def _share(name: str, run: Run) -> float:
    request_s = float(run.data.requests.seconds("latency").mean())
    return _over_traces(lambda trace: shares_of(trace, request_s)[name], run)


def memory_peak_percent(data: ExperimentData) -> float:
    """Of the GPU that was the fullest, the most of its memory in use at one time. Without pandas, for which no run waits."""
    # Columns count the GPUs that were read; a GPU's own number counts those that CUDA_VISIBLE_DEVICES hides, too.
    manifest = data.manifest
    read = [device["uuid"] for device in manifest.telemetry.get("devices") or []]
    columns = read or [gpu.uuid for gpu in manifest.provenance.gpus]
    sizes = {
        f"gpu{columns.index(gpu.uuid)}_memory_bytes": gpu.memory_bytes
        for gpu in manifest.gpus
        if gpu.memory_bytes and gpu.uuid in columns
    }
    path, fullest = data.folder / TELEMETRY, 0.0
    if sizes and path.is_file():
        with storage_errors(path, "read"), path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                fullest = max(fullest, *(float(row[name]) / size for name, size in sizes.items() if row.get(name)), 0.0)
    if not fullest:
        raise NotMeasuredError(data.manifest.provenance.gpus_absent or "the GPU's memory was not read")
    return 100 * fullest


def _said(name: str, run: Run) -> float:
    """What the workload itself says at the end."""
    values = [float(replica[name]) for replica in run.data.manifest.replicas if replica.get(name) is not None]
    if not values:
        raise NotMeasuredError("the workload says nothing of it")
    return sum(values) / len(values)


def _telemetry(column: str, run: Run) -> float:
    return run.telemetry_mean(column)


TRACED: Mapping[str, tuple[str, str, str, Callable[[Run], float]]] = {
    "kernel_busy_share": ("Kernels", "ratio", "Share of a request's time in which some kernel ran.", partial(_share, "kernel_busy_share")),
    "copy_in_share": ("Copies in", "ratio", "Share in which only a copy to the GPU ran.", partial(_share, "copy_in_share")),
    "copy_out_share": ("Copies out", "ratio", "Share in which only a copy to the host ran.", partial(_share, "copy_out_share")),
    "idle_launch_share": ("Launching", "ratio", "Share in which the next kernel was on its way.", partial(_share, "idle_launch_share")),
    "idle_sync_share": ("Waiting for the GPU", "ratio", "Share in which the GPU had run dry while the host waited for it.", partial(_share, "idle_sync_share")),
    "idle_host_share": ("Host", "ratio", "Share in which the GPU waited and the host did something else.", partial(_share, "idle_host_share")),
    "kernels_per_request": ("Kernels per request", "kernels", "Kernels in a request.", partial(_over_traces, lambda trace: float(trace["kernels"]))),
    "kernel_mean_s": ("A kernel", "s", "Mean length of a kernel.", partial(_over_traces, lambda trace: trace["kernel_s"] / trace["kernels"])),
    "gpu_sm_occupancy_percent": ("SM occupancy", "%", "Resident warps of those that the SMs can hold.", partial(_telemetry, "sm_occupancy_percent")),
    "gpu_tensor_active_percent": ("Tensor cores active", "%", "Share of the time, mean over GPUs.", partial(_telemetry, "tensor_active_percent")),
    "gpu_dram_active_percent": ("DRAM active", "%", "Share of the memory's bandwidth in use.", partial(_telemetry, "dram_active_percent")),
    "gpu_pcie_received_bytes_per_s": ("PCIe received", "bytes/s", "From the host.", partial(_telemetry, "pcie_received_bytes_per_s")),
    "gpu_sm_clock_mhz": ("SM clock", "MHz", "Mean over the recording.", partial(_telemetry, "sm_clock_mhz")),
    "host_cpu_percent": ("CPU of the host", "%", "Share of all CPUs that was busy.", partial(_telemetry, "host_cpu_percent")),
    "gpu_memory_peak_percent": ("GPU memory, peak", "%", "The most that was in use, of the GPU that was the fullest.", lambda run: memory_peak_percent(run.data)),
    "loss_first": ("First loss", "nats", "Of the first training step.", partial(_said, "loss_first")),
    "loss": ("Loss", "nats", "On what was held out.", partial(_said, "loss")),
    "accuracy": ("Accuracy", "ratio", "On what was held out.", partial(_said, "accuracy")),
}  # fmt: skip
"""By name, in the order of tables: title, unit, how it is computed, and the computation."""
