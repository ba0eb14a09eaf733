"""Whether images in host memory can keep a GPU as busy as images that are on it already, and how many images a second that is.

    python -m tests.benchmarks.fed_fully --batch-size 256 --seconds 3 --rounds 6 [--fp8] [--http] [--input jpeg]

ResNet-50, each workload once with its input on the device and once in host memory (`input: host-uint8` or `jpeg`), loaded in one
process and run in turn for `--seconds`, in the order A B B A, so that the card's clocks and its power cap meet both alike. Printed
are images per second, the median of the rounds, and the ratio within each round with a 95% t-interval of its mean. With ``--http`` the
bytes are asked for over HTTP on loopback, by four clients that send one whole batch after the other, from a process of their own. Without a GPU: the tiny model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.replica import registry
from harness.replica.frontends.batching import BatchLedger, Passes
from harness.replica.frontends.serving import HttpFrontend
from harness.replica.metrics import RequestMetrics
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec
from tests.benchmarks.loop_efficiency import summary

BAR_RATIO, BAR_IMAGES_PER_S = 0.97, 30_000
CLIENTS = 4
HTTP = ScenarioSpec(kind="http", rate=1)

Rate = Callable[[Any, float], float]
"""Of a workload, in inputs per second, over so many seconds."""


def main() -> None:
    """Measure each way to run the model that was asked for."""
    options = parse_arguments()
    gpu = torch.cuda.is_available()
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}, torch {torch.__version__}, batch {options.batch_size}")
    for execution in options.executions if gpu else ["eager"]:
        for benchmark in [False, True] if execution == "cuda-graph" else [False]:
            measure(options, execution, cudnn_benchmark=benchmark)


def measure(options: argparse.Namespace, execution: str, *, cudnn_benchmark: bool) -> None:
    """Print what one way to run it gives."""
    gpu = torch.cuda.is_available()
    made = [load(options, execution, kind, cudnn_benchmark=cudnn_benchmark) for kind in ("device", options.input)]
    ways: list[Rate] = [inputs_per_s, over_http(made[1], options.batch_size) if options.http else inputs_per_s]
    rates = in_turn(made, seconds=options.seconds, rounds=options.rounds, ways=ways)
    fused = made[0].describe()["fused_convolutions"]
    for workload in made:
        workload.close()
    device, host = map(statistics.median, rates)
    ratios = [of_host / of_device for of_device, of_host in zip(*rates, strict=True)]
    low = "".join(f", {key} {value}" for key, value in made[0].describe().items() if key.endswith("8_convolutions"))
    print(f"{execution}, cudnn_benchmark {cudnn_benchmark}, {fused} fused convolutions{low}:")
    print(f"  input on the device     {device:10,.0f} images/s, best round {max(rates[0]):,.0f}")
    print(
        f"  {made[1].describe()['input']} in host memory{' (HTTP)' if options.http else ''}    {host:10,.0f} images/s, best round {max(rates[1]):,.0f} (bar {BAR_IMAGES_PER_S:,})"
    )
    print(f"  host / device: {summary(ratios)} (bar {BAR_RATIO})", flush=True)
    del made, workload
    if gpu:
        torch.cuda.empty_cache()


def load(options: argparse.Namespace, execution: str, kind: str, *, cudnn_benchmark: bool) -> Any:
    """One workload, warm."""
    gpu = torch.cuda.is_available()
    own = {"model_size": "base" if gpu else "tiny", "input": kind, "channels_last": True, "fold_norms": True}
    own |= {"fp8": True} if options.fp8 else {}
    workload = registry.load(
        Settings(
            workload="resnet50",
            batch_size=options.batch_size,
            precision=options.precision if gpu else "fp32",
            execution=execution,
            torch_threads=options.threads,
            options=own | {"cudnn_benchmark": cudnn_benchmark},
            scenario=HTTP if options.http and kind != "device" else None,
        )
    )
    with workload.serving():
        for _ in range(10):
            workload.infer()
    return workload


def in_turn(
    two: Sequence[Any], *, seconds: float, rounds: int, ways: Sequence[Rate] | None = None
) -> list[list[float]]:
    """Inputs per second of each of two workloads, by round; in the order A B B A."""
    rates: list[list[float]] = [[], []]
    measured = ways or [inputs_per_s] * 2
    with two[0].serving():
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                rates[which].append(measured[which](two[which], seconds))
    return rates


def over_http(workload: Any, batch_size: int) -> Rate:
    """Return what measures a workload behind HTTP."""
    with workload.serving():
        serve = Passes(workload, batch_size)

    def rate(_workload: Any, seconds: float) -> float:
        stopping = threading.Event()
        frontend = HttpFrontend(
            HTTP,
            serve,
            BatchLedger(RequestMetrics(), None),
            host="127.0.0.1",
            phase=lambda: "draining" if stopping.is_set() else "serving",
        )
        served: list[tuple[float, int]] = []

        def watch() -> None:
            while not frontend.facts()["served"]:
                time.sleep(0.01)
            for wait_s in (0.3, seconds):
                time.sleep(wait_s)
                served.append((time.perf_counter(), int(frontend.facts()["served"])))  # type: ignore[call-overload]
            stopping.set()

        # A process of their own: they are to share neither the interpreter nor its lock with what is measured.
        clients = multiprocessing.get_context("spawn").Process(
            target=ask, args=(frontend.port, batch_size), daemon=True
        )
        clients.start()
        threading.Thread(target=watch).start()
        frontend.run(stopping)
        clients.terminate()
        clients.join()
        frontend.close()
        (begin_s, before), (end_s, after) = served
        return (after - before) * batch_size / (end_s - begin_s)

    return rate


def ask(port: int, batch_size: int) -> None:
    """Have each client send one batch after the other until the process is ended."""

    def one() -> None:
        body, connection = json.dumps({"inputs": batch_size}), http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            connection.request("POST", "/infer/batch", body)
            connection.getresponse().read()

    for _ in range(CLIENTS):
        threading.Thread(target=one).start()


def inputs_per_s(workload: Any, seconds: float) -> float:
    """Inputs that were answered, over the time from one answer to the last."""
    workload.infer()  # what was in flight when it was last stopped
    workload.infer()
    begun_s = time.perf_counter()
    served = 0
    while (now_s := time.perf_counter()) < begun_s + seconds:
        served += workload.infer()
    return served / (now_s - begun_s)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--fp8", action="store_true", help="compute the convolutions in FP8")
    parser.add_argument("--input", default="host-uint8", choices=("host-uint8", "jpeg"), help="in host memory")
    parser.add_argument("--http", action="store_true", help="ask for it over HTTP")
    parser.add_argument("--executions", nargs="+", default=["cuda-graph"], choices=("eager", "compiled", "cuda-graph"))
    parser.add_argument("--threads", type=int, help="CPU threads (default: the workload's own choice)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
