"""What the GPU and the host did during a few requests, from torch's profiler: the time of a request, divided by causes."""

from __future__ import annotations

import bisect
import gzip
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TRACE_FILE = "trace.json.gz"
SHORT_GAP_US = 50.0
"""Between two kernels: as much as launching the next one takes. The host spends what a gap is longer on other things."""
_TRACED_S = 0.5
_FEWEST, _MOST = 3, 30
_TOP = 12
"""Kernels that are listed, the longest."""
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_HOST = {"cuda_runtime", "cuda_driver"}

Span = tuple[float, float]


def trace(request: Callable[[], object], folder: Path) -> dict[str, Any]:
    """Trace a few requests, which are slower for it, into a file of ``folder``, to be opened in Perfetto.

    Returns what ``account`` makes of them, ``request_s`` (seconds per request while they were traced), ``allocated_peak_bytes``
    of the GPU and ``top``: name, calls and microseconds per request, mean microseconds and percent of the longest kernels
    (without a GPU operators); or ``absent``, the reason why there are no shares.
    """
    if "torch" not in sys.modules:
        return {"absent": "the workload does not use torch, whose profiler sees kernels"}
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    allocated = torch.cuda.max_memory_allocated() if gpu else None
    wait: Callable[[], object] = torch.cuda.synchronize if gpu else lambda: None
    wait()
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as profiler:
        wait()  # its end in the trace is where the first request begins
        begin_s = time.perf_counter()
        requests = 0
        while requests < _FEWEST or (requests < _MOST and time.perf_counter() - begin_s < _TRACED_S):
            request()
            requests += 1
        wait()
        wall_s = time.perf_counter() - begin_s
    profiler.export_chrome_trace(str(folder / TRACE_FILE))
    with gzip.open(folder / TRACE_FILE, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    # Without what they call; the longest first.
    operators = sorted(
        ((event.key, event.count, float(event.self_cpu_time_total)) for event in profiler.key_averages()),
        key=lambda row: -row[2],
    )
    top = _per_request(top_kernels(events) or operators, requests)
    facts = {"requests": requests, "request_s": wall_s / requests, "allocated_peak_bytes": allocated, "top": top}
    if not any(event.get("cat") == "kernel" for event in events):
        return {**facts, "absent": "the trace holds no kernel" if gpu else "the workload ran without a GPU"}
    return {**facts, **account(events, requests)}


def account(events: Iterable[Mapping[str, Any]], requests: int) -> dict[str, float]:
    """Divide the traced time by what the GPU did, and where it did nothing, by what the host did meanwhile.

    Takes the events of a Chrome trace, times in microseconds. Returns seconds per request: ``kernel_s`` some kernel ran;
    ``copy_in_s`` and ``copy_out_s`` only a copy from or to the host did; ``sync_s`` the GPU had run dry because the host
    waited for it; ``launch_s`` the next kernel was on its way; ``host_s`` the host did something else. And ``kernels`` and
    ``launches`` per request.
    """
    spans: dict[str, list[Span]] = defaultdict(list)
    launches = 0
    for event in events:
        category, name = str(event.get("cat", "")), str(event.get("name", ""))
        span = (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        if category in _DEVICE:
            copies = category == "gpu_memcpy" and "DtoD" not in name
            spans[("out" if "DtoH" in name else "in") if copies else "kernel"].append(span)
        elif category in _HOST:
            launches += "Launch" in name
            if "Synchronize" in name or (name.startswith("cudaMemcpy") and "Async" not in name):
                spans["sync"].append(span)
                if name == "cudaDeviceSynchronize":
                    spans["barrier"].append(span)
    kernels, incoming, outgoing = (merged(spans[name]) for name in ("kernel", "in", "out"))
    busy = merged([*kernels, *incoming, *outgoing])
    window = _window(busy, spans["barrier"])
    parts = {
        "kernel_s": _length(kernels),
        "copy_in_s": _length(merged([*kernels, *incoming])) - _length(kernels),
        "copy_out_s": _length(busy) - _length(merged([*kernels, *incoming])),
        **_idle(busy, merged(spans["sync"]), window),
    }
    return {name: value / 1e6 / requests for name, value in parts.items()} | {
        "kernels": len(spans["kernel"]) / requests,
        "launches": launches / requests,
    }


def _window(busy: Sequence[Span], barriers: Sequence[Span]) -> Span:
    """From the end of the wait before the first request to the end of the one after the last."""
    first, last = busy[0][0], busy[-1][1]
    begin = min((end for _, end in barriers if end <= first), default=first)
    return begin, min((end for _, end in barriers if end >= last), default=last)


def _idle(busy: Sequence[Span], waits: Sequence[Span], window: Span) -> dict[str, float]:
    edges = [window[0], *(edge for span in busy for edge in span), window[1]]
    starts = [start for start, _ in waits]
    idle = {"sync_s": 0.0, "launch_s": 0.0, "host_s": 0.0}
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        place = bisect.bisect_right(starts, begin) - 1
        waited = place >= 0 and waits[place][1] > begin
        returned = min(waits[place][1], end) if waited else begin
        short = min(max(end - returned, 0.0), SHORT_GAP_US)
        idle["sync_s" if waited else "launch_s"] += returned - begin + short
        idle["host_s"] += max(end - returned, 0.0) - short
    return idle


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times without overlaps, in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def top_kernels(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, float]]:
    """Name, calls and microseconds of everything that ran on the GPU, the longest first."""
    times_us: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _DEVICE:
            times_us[event["name"]].append(float(event["dur"]))
    return sorted(((name, len(times), sum(times)) for name, times in times_us.items()), key=lambda row: -row[2])


def _per_request(rows: Sequence[tuple[str, int, float]], requests: int) -> list[list[Any]]:
    total = sum(row[2] for row in rows) or 1.0
    return [
        [name, *(round(figure, 3) for figure in (calls / requests, us / requests, us / calls, 100 * us / total))]
        for name, calls, us in rows[:_TOP]
    ]
