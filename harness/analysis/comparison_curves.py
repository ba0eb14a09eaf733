"""The curves of the comparison page: what every way of running does as replicas are added."""

from __future__ import annotations

from harness.analysis.comparison_model import Asked
from harness.analysis.comparison_plots import Row, by_workload
from harness.analysis.contrasts.comparison import Pool
from harness.analysis.figure_style import Picture
from harness.analysis.questions.max_replicas import laws
from harness.analysis.questions.price import cost_per_million, kwh_per_million


def curves(pool: Pool, asked: Asked) -> list[Picture]:
    """Speed first, then fairness and price; a column for each workload."""
    limit_s = asked.latency_limit_s
    limit = "" if limit_s is None else " with the limit (dotted)"
    speed = by_workload(
        pool,
        "speed",
        f"Throughput of all replicas together with the fitted laws (dashed), and p99 latency{limit}",
        [
            Row("throughput", "requests/s", curves=laws(pool)),
            Row("latency_p99_exact", "p99, ms", scale=1e3, logarithmic=True, line=limit_s),
        ],
    )
    priced = asked.price_per_gpu_hour is not None or asked.price_per_kwh is not None
    cost = Row("cost", f"cost, {asked.currency}".rstrip(", "), pick=lambda cell: cost_per_million(cell, asked))
    energy = Row("energy", "kWh", pick=kwh_per_million)
    share = by_workload(
        pool,
        "share",
        "Throughput of the slowest replica over that of the fastest (1 is fair), and "
        f"{'cost' if priced else 'energy'} of a million inferences",
        [Row("fairness", "slowest / fastest", line=1.0), cost if priced else energy],
    )
    return [picture for picture in (speed, share) if picture]
