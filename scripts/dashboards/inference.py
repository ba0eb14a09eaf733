"""The replicas: latency, throughput and queue, per model and per replica."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, Panel, Query, Variable
from scripts.dashboards.queries import REPLICAS, per_pod, per_workload, pooled, rate

_QUANTILES = (("latency_p50", "p50"), ("latency_p95", "p95"), ("latency_p99", "p99"))
_LATENCY_ABOUT = "Of all requests to the model's replicas, pooled from their buckets."
_RATE_ABOUT = "Requests that the model's replicas answered per second."
_HAS_MODEL = 'inference_info{namespace=~"$namespace"}'


def _column(query: Query, unit: str) -> Query:
    return Query(query.expr, "", unit)


INFERENCE_PERFORMANCE = Dashboard(
    uid="inference-performance",
    title="Inference Performance",
    about="Latency percentiles are interpolated inside buckets 8% wide and pooled from the replicas' buckets, never averaged.",
    variables=[
        Variable("namespace", "Namespace", "inference_info", "namespace"),
        Variable("workload", "Model", _HAS_MODEL, "workload"),
        Variable("pod", "Replica", 'inference_info{namespace=~"$namespace",workload=~"$workload"}', "pod"),
    ],
    rows={
        "Now": [
            Panel("Throughput", [per_workload("throughput")], "stat", "reqps", _RATE_ABOUT, width=6, height=5),
            Panel("Latency, p95", [per_workload("latency_p95")], "stat", "s", _LATENCY_ABOUT, width=6, height=5),
            Panel(
                "Replicas",
                [Query(f"count by (workload) (inference_info{{{REPLICAS}}})", "{{workload}}")],
                "stat",
                about="Replicas that were scraped.",
                width=6,
                height=5,
            ),
            Panel(
                "Queue",
                [Query(f"sum by (workload) (inference_queue_depth{{{REPLICAS}}})", "{{workload}}")],
                "stat",
                about="Requests in flight as a scrape finds them.",
                width=6,
                height=5,
            ),
        ],
        "Models": [
            *(
                Panel(f"Latency, {name}", [per_workload(metric)], unit="s", about=_LATENCY_ABOUT, width=8)
                for metric, name in _QUANTILES
            ),
            Panel(
                "Models compared",
                [per_workload(metric, f"{{{{workload}}}} {name}") for metric, name in _QUANTILES],
                "bargauge",
                "s",
                _LATENCY_ABOUT,
                width=12,
            ),
            Panel(
                "Throughput",
                [per_workload("throughput"), pooled("throughput", "all")],
                unit="reqps",
                about=_RATE_ABOUT,
                width=12,
            ),
            Panel(
                "Summary",
                [
                    _column(per_workload("throughput"), "reqps"),
                    _column(per_workload("latency_avg"), "s"),
                    *(_column(per_workload(metric), "s") for metric, _ in _QUANTILES),
                    Query(f"count by (workload) (inference_info{{{REPLICAS}}})", ""),
                ],
                "table",
                about="Figures of each model over the chosen replicas.",
                width=24,
                columns={
                    "workload": "Model",
                    "Value #A": "Throughput",
                    "Value #B": "Mean latency",
                    "Value #C": "p50",
                    "Value #D": "p95",
                    "Value #E": "p99",
                    "Value #F": "Replicas",
                },
            ),
        ],
        "Queue and processor": [
            Panel(
                "Queue depth",
                [Query(f"sum by (pod) (inference_queue_depth{{{REPLICAS}}})", "{{pod}}")],
                about="Requests in flight as a scrape finds them: 1 while one runs.",
            ),
            Panel(
                "Latency against CPU",
                [per_pod("latency_p95", "{{pod}} p95"), per_pod("cpu_usage", "{{pod}} cores", unit="short")],
                unit="s",
                about="Whether latency rises with the CPU that a replica takes, or while it takes none.",
            ),
            Panel(
                "Requests per core",
                [Query(f"{per_pod('throughput').expr} / {per_pod('cpu_usage').expr}", "{{pod}}")],
                unit="reqps",
                about="Requests that a replica answers for each CPU core it keeps busy.",
            ),
            Panel(
                "Inputs",
                [Query(f"sum by (workload) ({rate('inference_inputs_total', REPLICAS)})", "{{workload}}")],
                unit="short",
                about="Inputs (images, texts) per second: requests times what each held.",
            ),
        ],
        "Replica by replica": [
            Panel(
                "$pod",
                [
                    *(per_pod(metric, name) for metric, name in _QUANTILES),
                    per_pod("throughput", "requests/s", unit="reqps"),
                ],
                unit="s",
                about="Latency percentiles of one replica, and on the right its throughput.",
                width=6,
                repeat="pod",
            ),
        ],
    },
)
