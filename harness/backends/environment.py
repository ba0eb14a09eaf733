"""The settings of a replica that are the same wherever it runs."""

from __future__ import annotations

import json

from harness.spec import WorkloadSpec


def workload_environment(workload: WorkloadSpec) -> dict[str, str]:
    """What to run, as ``python -m harness.workloads`` reads it from its environment."""
    environment = {
        "WORKLOAD": workload.target,
        "BATCH_SIZE": str(workload.batch_size),
        "PRECISION": workload.precision.value,
        "EXECUTION": workload.execution.value,
        "DEVICE": workload.device.value,
        "SEED": str(workload.seed),
        "INFERENCE_SLEEP": repr(workload.inference_sleep_s),
        "WARMUP_REQUESTS": str(workload.warmup_requests),
        "WORKLOAD_OPTIONS": json.dumps(workload.options),
        "PYTHONUNBUFFERED": "1",
    }
    if workload.checkpoint is not None:
        environment["CHECKPOINT"] = workload.checkpoint
    if workload.threads is not None:
        environment["TORCH_THREADS"] = str(workload.threads)
    return environment
