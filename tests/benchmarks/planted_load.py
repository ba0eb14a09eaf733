"""A process that makes known work on the GPU when it is told to: a load whose share of all work is known.

It reads one JSON object a line and answers each with another. ``{"init": true}`` takes the GPU; an order to run names
``kind``, ``units`` of one request, ``rate`` of requests per second (null: one after another), ``begin_ns`` and ``end_ns``
(monotonic clock), ``seed``, and whether to ``trace`` the kernels. The answer holds when each request ended and the
milliseconds between its two CUDA events; of a trace, the busy time and a digest of each kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KINDS = ("gemm", "memory", "resnet50")
SPIN_NS = 200_000


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    dry = "--dry" in sys.argv

    def answer(values: Mapping[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    import torch  # noqa: F401 - before the first order, because it takes seconds

    answer({"imported": True})
    load: PlantedLoad | None = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if load is None:
                load = PlantedLoad(dry=dry)
            answer({"pid": os.getpid()} if "init" in order else load.run(order))
        except Exception as error:  # noqa: BLE001 - one order that fails must not cost those after it
            answer({"error": f"{type(error).__name__}: {error}"[:500]})


class PlantedLoad:
    """The kinds of work, each warmed up once."""

    def __init__(self, *, dry: bool) -> None:
        import torch

        self.torch, self.dry = torch, dry
        torch.set_grad_enabled(mode=False)
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        device = "cpu" if dry else "cuda"
        side, length = (128, 1 << 16) if dry else (2048, 1 << 28)
        torch.manual_seed(1)
        left, right = (torch.randn(side, side, device=device) for _ in range(2))
        product = torch.empty_like(left)
        source = torch.zeros(length, device=device)
        target = torch.empty_like(source)
        model = resnet50(torch, 8 if dry else 64).to(device).eval()
        picture = torch.randn(1, 3, 32 if dry else 224, 32 if dry else 224, device=device)

        def gemm() -> None:
            torch.mm(left, right, out=product)
            torch.mm(left, right, out=product)

        self.units: dict[str, Callable[[], object]] = {
            "gemm": gemm,
            "memory": lambda: torch.add(source, 1.0, out=target),
            "resnet50": lambda: model(picture),
        }
        for unit in self.units.values():
            for _ in range(2 if dry else 20):
                unit()
        self._synchronize()
        with contextlib.suppress(RuntimeError), self._profiler():  # the first one takes a second
            gemm()
            self._synchronize()

    def run(self, order: Mapping[str, Any]) -> dict[str, Any]:
        unit, units, rate = self.units[order["kind"]], int(order["units"]), order.get("rate")
        if order.get("trace"):
            profiler = self._profiler()
            profiler.start()
            ends_ns, spans_ms = self._serve(unit, units, rate, order)
            self._synchronize()
            profiler.stop()
            return {**digest(profiler, len(ends_ns)), "ends_ns": ends_ns, "spans_ms": spans_ms}
        ends_ns, spans_ms = self._serve(unit, units, rate, order)
        return {"ends_ns": ends_ns, "spans_ms": spans_ms}

    def _serve(
        self, unit: Callable[[], object], units: int, rate: float | None, order: Mapping[str, Any]
    ) -> tuple[list[int], list[float]]:
        """Requests until the end; those of a rate come at random, and wait while one is served."""
        arrivals = random.Random(order["seed"])
        end_ns, due_ns = int(order["end_ns"]), int(order["begin_ns"])
        ends_ns: list[int] = []
        spans_ms: list[float] = []
        wait_until(due_ns)
        while time.monotonic_ns() < end_ns:
            if rate:
                due_ns += int(arrivals.expovariate(rate) * 1e9)
                if due_ns >= end_ns:
                    break
                wait_until(due_ns)
            spans_ms.append(self._request(unit, units))
            ends_ns.append(time.monotonic_ns())
        return ends_ns, spans_ms

    def _request(self, unit: Callable[[], object], units: int) -> float:
        if self.dry:
            begin_ns = time.monotonic_ns()
            for _ in range(units):
                unit()
            return (time.monotonic_ns() - begin_ns) / 1e6
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(units):
            unit()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last))

    def _profiler(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        return profile(activities=[ProfilerActivity.CPU if self.dry else ProfilerActivity.CUDA])

    def _synchronize(self) -> None:
        if not self.dry:
            self.torch.cuda.synchronize()


def wait_until(due_ns: int) -> None:
    while (left_ns := due_ns - time.monotonic_ns()) > 0:
        if left_ns > SPIN_NS:
            time.sleep((left_ns - SPIN_NS) / 1e9)


def digest(profiler: Any, requests: int) -> dict[str, Any]:
    """``busy_us`` in which some kernel of this process ran, and each kernel: count, sum, median, tenth percentile, blocks per SM."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    wanted = {"kernel", "gpu_memcpy", "gpu_memset", "cpu_op"}
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") in wanted]
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    blocks: dict[tuple[str, str], float] = {}
    for event in spans:
        facts = event.get("args", {})
        key = (event["name"], str(facts.get("grid")) + str(facts.get("block")))
        durations[key].append(float(event["dur"]))
        blocks[key] = float(facts.get("blocks per SM", 0.0))
    busy_us, reached = 0.0, 0.0
    for begin, length in sorted((float(event["ts"]), float(event["dur"])) for event in spans):
        busy_us += max(begin + length - max(begin, reached), 0.0)
        reached = max(reached, begin + length)
    kernels = [
        {
            "name": key[0][:60],
            "count": len(times),
            "sum_us": sum(times),
            "median_us": statistics.median(times),
            "low_us": sorted(times)[len(times) // 10],
            "blocks_per_sm": blocks[key],
        }
        for key, times in durations.items()
    ]
    return {"busy_us": busy_us, "requests": requests, "kernels": kernels}


def resnet50(torch: Any, width: int) -> Any:
    """The usual network, by hand: 16 bottlenecks in four stages, random weights."""
    nn = torch.nn

    def convolution(inner: int, outer: int, size: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(inner, outer, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(outer),
        )

    class Bottleneck(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, middle: int, stride: int) -> None:
            super().__init__()
            outer = middle * 4
            self.path = nn.Sequential(
                convolution(inner, middle, 1),
                nn.ReLU(),
                convolution(middle, middle, 3, stride),
                nn.ReLU(),
                convolution(middle, outer, 1),
            )
            self.beside = convolution(inner, outer, 1, stride) if stride > 1 or inner != outer else nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.path(x) + self.beside(x))

    stages = []
    inner = width
    for stage, depth in enumerate((3, 4, 6, 3)):
        middle = width << stage
        for place in range(depth):
            stages.append(Bottleneck(inner, middle, 2 if place == 0 and stage else 1))
            inner = middle * 4
    return nn.Sequential(
        convolution(3, width, 7, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inner, 1000),
    )


if __name__ == "__main__":
    main()
