"""Every panel of every dashboard asks a real Prometheus and gets an answer: "No data" is a failure."""

import math
import re
import time

import pytest

from tests.support import grafana
from tests.support.monitoring import DASHBOARD_FILES
from tests.support.processes import eventually

WITHIN_S = 60
"""What a busy machine scrapes late is missing until the next time."""


def values_of(cluster, dashboard):
    def ask(selector, label):
        return list(cluster.get(f"label/{label}/values", **{"match[]": selector, "start": time.time() - 60}))

    return grafana.variables(dashboard, ask)


def answer(cluster, expression):
    """Series over the last seconds that have a finite value."""
    now_s = time.time()
    found = cluster.get("query_range", query=expression, start=now_s - 2, end=now_s, step=1)["result"]
    return [one for one in found if any(math.isfinite(float(value)) for _, value in one["values"])]


@pytest.mark.parametrize("path", DASHBOARD_FILES, ids=lambda path: path.stem)
def test_every_query_returns_data(watched, path):
    dashboard = grafana.named(path)
    values = values_of(watched, dashboard)
    assert [name for name, found in values.items() if not found] == []
    asked = list(grafana.queries(dashboard, values))

    def without():
        return [name for name, expression in asked if not answer(watched, expression)]

    assert eventually(lambda: without() == [], WITHIN_S), without()
    assert len(asked) >= len(grafana.data_panels(dashboard))


@pytest.mark.parametrize("path", DASHBOARD_FILES, ids=lambda path: path.stem)
def test_an_experiment_is_annotated_while_its_replicas_are_scraped(watched, path):
    (annotation,) = grafana.named(path)["annotations"]["list"]
    workloads = {pod.split("-")[0] for pod in watched.pods}
    wanted = {(("experiment", "e1"), ("namespace", "inference"), ("workload", name)) for name in workloads}

    def found():
        return {tuple(sorted(one["metric"].items())) for one in answer(watched, annotation["expr"])}

    assert eventually(lambda: found() == wanted, WITHIN_S), found()


@pytest.mark.parametrize(
    ("name", "title", "wanted"),
    [
        ("system-resources", "CPU in total", 60.0),
        ("system-resources", "Memory in percent", 34.4),
        ("system-resources", "Disks", 39.0),
        ("system-pressure", "Score", 31.0),
        ("gpu-performance", "Memory in percent", 22.4),
        ("gpu-performance", "Load", 97.0),
        ("gpu-performance", "SM activity", 62.0),
    ],
)
def test_what_rules_record_for_us_is_computed_by_the_panel_itself(watched, name, title, wanted):
    (path,) = [one for one in DASHBOARD_FILES if one.stem == name]
    dashboard = grafana.named(path)
    (expression,) = [
        one for shown, one in grafana.queries(dashboard, values_of(watched, dashboard)) if shown == f"{title} A"
    ]

    def first():
        found = sorted(watched.now(expression), key=lambda one: one["metric"].get("mountpoint", ""))
        return float(found[0]["value"][1]) if found else math.nan  # no rate across two scrapes that were late

    # A scrape that came late bends the rate across it.
    assert eventually(lambda: first() == pytest.approx(wanted, rel=0.02), WITHIN_S), first()


def series_labels(cluster, name, title, label, ref="A"):
    (path,) = [one for one in DASHBOARD_FILES if one.stem == name]
    dashboard = grafana.named(path)
    values = values_of(cluster, dashboard)
    found = []
    for shown, expression in grafana.queries(dashboard, values):
        if re.fullmatch(rf"{title} {ref}", shown):
            found += [one["metric"][label] for one in answer(cluster, expression)]
    return sorted(found)


@pytest.mark.parametrize("title", ["Load", "Memory in use", "SM clock", r"GPU \d+", "Energy"])
def test_there_is_one_series_per_gpu(watched, title):
    def found():
        return set(series_labels(watched, "gpu-performance", title, "gpu"))

    assert eventually(lambda: found() == set(watched.gpus), WITHIN_S), found()


@pytest.mark.parametrize(
    ("name", "title", "ref"),
    [
        ("inference-performance", "Queue depth", "A"),
        ("inference-performance", r"\w+-6b5f7c9d4-\d+", "C"),
        ("inference-performance", "Latency against CPU", "A"),
        ("inference-performance", "Latency against CPU", "B"),
        ("container-metrics", "Memory", "A"),
        ("container-metrics", "Network", "A"),
        ("container-metrics", "State", "A"),
    ],
)
def test_there_is_one_series_per_replica(watched, name, title, ref):
    def found():
        return set(series_labels(watched, name, title, "pod", ref)) & set(watched.pods)

    assert eventually(lambda: found() == set(watched.pods), WITHIN_S), found()


def test_there_is_a_panel_for_every_gpu_and_for_every_replica(watched):
    for name, variable, wanted in (
        ("gpu-performance", "gpu", watched.gpus),
        ("inference-performance", "pod", watched.pods),
    ):
        (path,) = [one for one in DASHBOARD_FILES if one.stem == name]
        dashboard = grafana.named(path)
        values = values_of(watched, dashboard)
        (panel,) = [one for one in grafana.data_panels(dashboard) if one.get("repeat") == variable]
        titles = [title for title, _ in grafana.shown(panel, values)]
        assert titles == [panel["title"].replace(f"${variable}", value) for value in sorted(wanted)]


def test_a_container_s_memory_is_counted_once(watched):
    """Its own control group and the sandbox count the same again."""
    expression = 'sum by (pod) (container_memory_working_set_bytes{namespace=~"inference",pod=~".+",container!="",container!="POD"})'
    for one in watched.now(expression):
        assert float(one["value"][1]) == 1.5 * 2**30


def test_a_metric_that_nobody_exports_is_seen(watched):
    assert answer(watched, "DCGM_FI_DEV_GPU_UTILISATION") == []
