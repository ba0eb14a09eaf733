"""The settings of a replica that are the same wherever it runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import supervisor
from harness.spec import LayerSpec, ServerSpec, Timing, WorkloadSpec
from harness.spec.condition import PRELOAD_VARIABLE
from harness.spec.server import OF_A_CONTAINER

SERVER_FACTORY = "harness.replica.engine.workload:make"


def workload_environment(workload: WorkloadSpec) -> dict[str, str]:
    """What to run, as ``python -m harness.replica`` reads it from its environment."""
    environment = {
        "WORKLOAD": SERVER_FACTORY if workload.server else workload.target,
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
    if workload.stream_priority is not None:
        environment["STREAM_PRIORITY"] = workload.stream_priority.value
    if workload.checkpoint is not None:
        environment["CHECKPOINT"] = workload.checkpoint
    if workload.threads is not None:
        environment["TORCH_THREADS"] = str(workload.threads)
    if workload.shared_cpus is not None:
        environment["SHARED_CPUS"] = str(workload.shared_cpus)
    return environment


def layered(command: Sequence[str], layer: LayerSpec | None, *, here: bool = True) -> list[str]:
    """The command under a layer, whose library is for the replica alone.

    Args:
        command: of the replica.
        layer: None: nothing lies between.
        here: the library is a file of this machine, and not of an image.
    """
    if layer is None:
        return list(command)
    library = str(Path(layer.preload).resolve()) if layer.preload and here else layer.preload
    inside = ["env", f"{PRELOAD_VARIABLE}={library}"] if library else []
    return [*layer.prefix, *inside, *command]


def server_environment(workload: WorkloadSpec, replica: Mapping[str, str], timing: Timing) -> dict[str, str]:
    """The server that the replica starts and asks; empty where there is none.

    Args:
        workload: of the replica.
        replica: what is set for the replica alone, and which the server shall not see.
        timing: of the experiment: a ramp lies in the recording.
    """
    if workload.server is None:
        return {}
    restore = {name: os.environ.get(name) for name in (*replica, "SERVER")}
    logger = [sys.executable, "-I", "-S", supervisor.__file__, supervisor.LOG]
    return {"SERVER": json.dumps({**_asked(workload.server, timing), "restore": restore, "logger": logger})}


def client_settings(server: ServerSpec, timing: Timing) -> dict[str, Any]:
    """What the client in a pod is told of the server: in the container beside it, or running already."""
    beside = {"command": [], "env": {}, "port": server.pod_port, "beside": True} if server.image else {}
    return {**_asked(server, timing), **beside}


def _asked(server: ServerSpec, timing: Timing) -> dict[str, Any]:
    recording = {"settle_s": max(timing.stabilise_s, timing.window_s), "record_s": timing.record_s}
    return {**server.model_dump(mode="json", exclude=OF_A_CONTAINER), **recording}


def scenario_environment(workload: WorkloadSpec, timing: Timing) -> dict[str, str]:
    """How requests come to the replica; empty for the closed loop.

    LoadGen settles while the harness stabilises, so that its test lies within the recording.
    """
    scenario = workload.scenario
    if scenario is None:
        return {}
    values: dict[str, str | float | int | None] = {
        "kind": scenario.kind.value,
        "rate": scenario.rate,
        "latency_limit_ms": scenario.latency_limit_ms,
        "samples_per_query": scenario.samples_per_query,
        "max_wait_ms": scenario.max_wait_ms,
        "max_queue": scenario.max_queue,
        "settle_s": max(timing.stabilise_s, timing.window_s),
        "test_s": scenario.test_s(timing.record_s),
    }
    return {"SCENARIO": json.dumps({name: value for name, value in values.items() if value is not None})}
