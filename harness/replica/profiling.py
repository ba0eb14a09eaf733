"""``python -m harness.replica.profiling``: one point of a profile, measured in a process of its own.

Configured as a replica is, and by ``PROFILE``, a JSON object; what it found stands in ``point.json`` in ``REPLICA_DIR``, or here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.replica import kernel_trace, registry
from harness.replica.errors import ExitCode, WorkloadError, translated
from harness.replica.registry import Workload
from harness.replica.settings import Settings, from_environment

FILE_NAME = "point.json"
FEWEST_REQUESTS = 3
WARMUP_S = 0.5
"""At least, beside WARMUP_REQUESTS: the clocks of an idle GPU take a while to rise."""


def main(environment: Mapping[str, str] = os.environ) -> ExitCode:
    """Measure one point; returns the exit code of a replica that ends in the same way."""
    try:
        settings = from_environment(environment)
        folder = settings.replica_dir or Path()
        found = measure(settings, folder, json.loads(environment.get("PROFILE", "{}")))
    except BaseException as error:  # noqa: BLE001 - also SystemExit must end as one line and a code
        return _report(translated(error))
    temporary = folder / f".{FILE_NAME}"
    temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / FILE_NAME)
    return ExitCode.STOPPED


def measure(settings: Settings, folder: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Load, warm up, serve for the time or the number of requests asked for, and trace a few requests after that.

    Args:
        settings: of the replica.
        folder: for the trace.
        plan: ``seconds`` to serve, or ``requests`` where that is given; ``trace``: keep the kernel trace.

    Returns:
        Plain data: latencies and times in seconds, the window in seconds since the epoch.
    """
    start_s = time.perf_counter()
    workload = registry.load(settings)
    load_s = time.perf_counter() - start_s
    facts = dict(_asked(workload, "describe"))
    with getattr(workload, "serving", contextlib.nullcontext)():
        start_s = time.perf_counter()
        _warm_up(workload, 0 if plan.get("requests") else settings.warmup_requests)
        found = {"described": facts, "load_s": load_s, "warmup_s": time.perf_counter() - start_s}
        found |= _timed(workload, float(plan.get("seconds", 1.0)), plan.get("requests"))
        found["memory"] = _memory()
        found["outcome"] = {**_asked(workload, "outcome"), **_asked(workload, "evaluate")}
        try:
            found["trace"] = kernel_trace.trace(workload.infer, folder, keep=bool(plan.get("trace")))
        except RuntimeError as error:  # also no memory for the trace: the point itself is measured
            found["trace"] = {"absent": f"torch's profiler failed: {str(error).partition(chr(10))[0]}"}
    _asked(workload, "close")
    return found


def _warm_up(workload: Workload, requests: int) -> None:
    """Serve what does not count; nothing where the requests are the whole work, as epochs of training are."""
    end_s = time.perf_counter() + WARMUP_S
    served = 0
    while requests and (served < requests or time.perf_counter() < end_s):
        workload.infer()
        served += 1
    gc.collect()
    gc.freeze()


def _timed(workload: Workload, seconds: float, requests: int | None) -> dict[str, Any]:
    _synchronize()
    latencies: list[float] = []
    inputs = 0
    epoch_s = time.time() - time.perf_counter()
    cpu_s = time.process_time()
    begin_s = now_s = time.perf_counter()
    while _goes_on(len(latencies), now_s - begin_s, seconds, requests):
        inputs += workload.infer()
        end_s = time.perf_counter()
        latencies.append(end_s - now_s)
        now_s = end_s
    _synchronize()
    end_s = time.perf_counter()
    return {
        "window_s": [epoch_s + begin_s, epoch_s + end_s],
        "wall_s": end_s - begin_s,
        "cpu_s": time.process_time() - cpu_s,
        "requests": len(latencies),
        "inputs": inputs,
        "latencies_s": latencies,
    }


def _goes_on(served: int, elapsed_s: float, seconds: float, requests: int | None) -> bool:
    if requests is not None:
        return served < requests
    return served < FEWEST_REQUESTS or elapsed_s < seconds


def _synchronize() -> None:
    if kernel_trace.on_gpu():
        import torch

        torch.cuda.synchronize()


def _memory() -> dict[str, int]:
    """Bytes of the GPU: at most allocated by tensors, in use on the device now, and all there are; empty without torch on a GPU."""
    if not kernel_trace.on_gpu():
        return {}
    import torch

    free, total = torch.cuda.mem_get_info()
    return {"allocated_peak": torch.cuda.max_memory_allocated(), "used": total - free, "total": total}


def _asked(workload: Workload, method: str) -> Mapping[str, Any]:
    """Return what an optional method of the workload says."""
    ask = getattr(workload, method, None)
    return (ask() if ask else None) or {}


def _report(error: BaseException) -> ExitCode:
    if isinstance(error, WorkloadError):
        message, code = str(error), error.exit_code
    else:
        traceback.print_exception(error)
        message, code = f"workload failed: {type(error).__name__}: {error}", ExitCode.FAILED
    sys.stderr.write(f"replica: {message}\n")
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
