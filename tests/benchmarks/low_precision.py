"""What FP8 gives DistilBERT: texts per second with its matrices in FP8, against all of it in fp16.

    python -m tests.benchmarks.low_precision --batch-size 64 --execution cuda-graph --seconds 2 --rounds 6

Both are loaded in one process and run in turn, in the order A B B A. Printed are texts per second, the ratio within each round with a
95% t-interval of its mean, and how far the logits are apart. Without a GPU: the tiny model, which says nothing about speed.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from harness.replica import registry
from harness.replica.settings import Settings
from tests.benchmarks.fed_fully import in_turn
from tests.benchmarks.loop_efficiency import summary


def main() -> None:
    """Measure both, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--precision", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--execution", default="cuda-graph", choices=("eager", "compiled", "cuda-graph"))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    made = [load(options, fp8=fp8) for fp8 in (False, True)]
    plain, fp8 = in_turn(made, seconds=options.seconds, rounds=options.rounds)
    with torch.inference_mode():
        logits = [one._forward(made[0].pool[0]).float().clone() for one in made]
    apart = float((logits[1] - logits[0]).pow(2).mean().sqrt() / logits[0].pow(2).mean().sqrt())
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{where}, torch {torch.__version__}, {options.execution}, batch {options.batch_size}")
    print(f"  {options.precision}  {statistics.median(plain):10,.0f} texts/s")
    print(f"  FP8   {statistics.median(fp8):10,.0f} texts/s, {made[1].describe()['fp8_matrices']} matrices")
    print(f"  FP8 / {options.precision}: {summary([two / one for one, two in zip(plain, fp8, strict=True)])}")
    print(f"  logits apart by {apart:.1%} of their size, classes alike in {agreement(logits):.1%}")


def load(options: argparse.Namespace, *, fp8: bool) -> Any:
    """One workload, warm."""
    gpu = torch.cuda.is_available()
    workload = registry.load(
        Settings(
            workload="distilbert",
            batch_size=options.batch_size,
            precision=options.precision,
            execution=options.execution if gpu else "eager",
            options={"model_size": "base" if gpu else "tiny", "fp8": fp8},
        )
    )
    with workload.serving():
        for _ in range(10):
            workload.infer()
    return workload


def agreement(logits: list[torch.Tensor]) -> float:
    """Share of texts that both put into the same class."""
    return float((logits[0].argmax(-1) == logits[1].argmax(-1)).float().mean())


if __name__ == "__main__":
    main()
