import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.errors import UsageError
from harness.metrics.catalogue import (
    CATALOGUE,
    PUBLISHED_COUNTERS,
    PUBLISHED_HISTOGRAMS,
    REPLICA_SOURCES,
    STANDARD,
    Kind,
    Level,
    Source,
    select,
)
from harness.metrics.promql import cluster, local, quote, render

GOLDEN = Path(__file__).parents[2] / "golden" / "promql"
DIALECTS = {
    "cluster": cluster("inference", "resnet50-.*", gpus='Hostname="node-1"', node='instance=~"node-1.*"'),
    "local": local("replicas"),
}


FIFTEEN = """
    cpu_usage memory_usage gpu_utilization gpu_memory gpu_power gpu_temperature cpu_psi memory_psi io_psi
    latency_avg latency_p50 latency_p95 latency_p99 throughput total_count
"""


def test_the_fifteen_metrics_in_their_order():
    assert list(STANDARD) == list(CATALOGUE)[:15] == FIFTEEN.split()


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=str)
def test_every_record_is_whole(metric):
    assert metric.title
    assert metric.unit
    assert metric.description.endswith(".")
    assert (metric.quantile is not None) == (metric.kind is Kind.QUANTILE)
    assert metric.pooled == (metric.level is Level.REPLICA)
    assert bool(metric.promql) != (metric.kind is Kind.COUNTER)
    assert (metric.kind in {Kind.RATE, Kind.MEAN, Kind.QUANTILE, Kind.SHARE}) == ("$window" in metric.promql)


def test_a_workload_has_the_metrics_that_it_publishes_and_the_fifteen():
    def own(workload):
        return [metric.name for metric in select("all", workload=workload)][15:]

    assert own("resnet50") == own("own_module:make") == []
    assert own("bert-training") == own("data-parallel-training") == ["inputs_per_second"]
    assert own("notebook") == ["active_share"]
    assert [metric.name for metric in select(["active_share", "throughput"])] == ["throughput", "active_share"]


def test_what_some_workloads_publish_says_what_it_is_made_of():
    for metric in CATALOGUE.values():
        assert (metric.source is Source.PUBLISHED) == (metric.name not in STANDARD)
        assert bool(metric.families) == (metric.source in REPLICA_SOURCES and metric.kind is not Kind.COUNTER)
        assert all(family in metric.promql for family in metric.families)
        assert all(family.startswith("inference_") for family in metric.families), "the parser reads no other lines"
    assert not PUBLISHED_COUNTERS & PUBLISHED_HISTOGRAMS
    assert all(family.endswith("_total") for family in PUBLISHED_COUNTERS)


def test_selection_keeps_the_catalogues_order():
    assert [metric.name for metric in select("all")] == list(STANDARD)
    assert [metric.name for metric in select(["throughput", "cpu_usage"])] == ["cpu_usage", "throughput"]


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["latency_p90"], "Did you mean latency_p99?"),
        (["cpu_usages"], "Did you mean cpu_usage?"),
        (["bananas"], "Known are cpu_usage"),
        ([], "empty"),
        ("everything", "`all` or a list"),
    ],
)
def test_a_wrong_name_is_told_with_a_right_one(names, hint):
    with pytest.raises(UsageError) as caught:
        select(names)
    assert hint in str(caught.value)


def rendered(dialect):
    lines = []
    for metric in CATALOGUE.values():
        queries = render(metric, dialect, 20)
        lines += [
            f"# {metric.name}",
            *(
                f"{kind}: {text}"
                for kind, text in zip(
                    ("each", "pooled", "raw"), (queries.each, queries.pooled, queries.raw), strict=True
                )
                if text
            ),
            "",
        ]
    narrow = render(CATALOGUE["latency_p95"], dialect, 20, bounds=["0.005", "1e-05", "+Inf"], merge=False)
    return "\n".join([*lines, "# latency_p95, narrowed", f"each: {narrow.each}", f"pooled: {narrow.pooled}", ""])


@pytest.mark.parametrize("name", DIALECTS)
def test_promql_is_as_it_was(name):
    """After a change that is meant: write ``rendered(...)`` to the golden file and read the difference."""
    assert rendered(DIALECTS[name]) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus is not installed")
@pytest.mark.parametrize("name", DIALECTS)
def test_promql_is_promql(name, tmp_path):
    queries = [line.partition(": ")[2] for line in rendered(DIALECTS[name]).splitlines() if ": " in line]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "catalogue", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(queries)} rules found" in checked.stdout


def test_literals_are_quoted():
    assert quote('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
