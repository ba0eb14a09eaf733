"""PromQL for panels: the catalogue's own, with Grafana's variables for pods, nodes and windows."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.metrics.catalogue import CATALOGUE
from harness.metrics.promql import Dialect, Queries, cluster, render
from scripts.dashboards.model import RATE_WINDOW, Query

NODE = 'node=~"$node"'
DEVICE = f'{NODE},gpu=~"$gpu"'
PODS = 'namespace=~"$namespace",pod=~"$pod"'
CONTAINERS = f'{PODS},container!="",container!="POD"'
WORKLOADS = 'namespace=~"$namespace",workload=~"$workload"'
REPLICAS = f'{WORKLOADS},pod=~"$pod"'

BY_POD = cluster("$namespace", "$pod", gpus=DEVICE, node=NODE)
"""One series per replica; several namespaces may be chosen, so the matcher is a pattern."""
_WINDOW = re.compile(r"\[\d+ms\]")
_ONE_NAMESPACE = 'namespace="$namespace"'


def _asked(metric: str, dialect: Dialect) -> Queries:
    queries = render(CATALOGUE[metric], dialect, window_s=20)
    texts = (
        _WINDOW.sub(f"[{RATE_WINDOW}]", text).replace(_ONE_NAMESPACE, 'namespace=~"$namespace"')
        for text in (queries.each, queries.pooled, queries.raw)
    )
    return Queries(*texts)


def per_pod(metric: str, legend: str = "{{pod}}", *, unit: str = "") -> Query:
    """One series per replica."""
    return Query(_asked(metric, BY_POD).each, legend, unit)


def pooled(metric: str, legend: str) -> Query:
    """The pool of the chosen replicas."""
    return Query(_asked(metric, BY_POD).pooled, legend)


def per_workload(metric: str, legend: str = "{{workload}}") -> Query:
    """One series per model, pooled over its replicas as the campaigns pool them."""
    dialect = replace(BY_POD, by="workload", replicas=f'{WORKLOADS},pod=~"$pod"')
    return Query(_asked(metric, dialect).each, legend)


def per_device(metric: str, legend: str = "{{node}} GPU {{gpu}}", *, unit: str = "") -> Query:
    """One series per GPU."""
    return Query(_asked(metric, BY_POD).each, legend, unit)


def per_node(metric: str, legend: str = "{{node}}") -> Query:
    """One series per node."""
    return Query(_asked(metric, BY_POD).each, legend)


def rate(counter: str, matchers: str) -> str:
    """Per-second rate of a counter over the panel's window."""
    return f"rate({counter}{{{matchers}}}[{RATE_WINDOW}])"
