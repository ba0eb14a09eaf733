"""The section `scenario` of a workload: what has an effect where, and what is refused."""

from pathlib import Path

import pytest

from harness.errors import CampaignFileError
from harness.replica.settings import from_environment
from harness.spec import ScenarioKind, Timing, WorkloadSpec
from harness.spec.load import parse_campaign
from harness.spec.replica import ReplicaSpec

FILE = """
name: mine
workloads:
  - name: resnet50
    scenario: {SCENARIO}
replicas: [1]
timing: {{record_s: 100, step_s: 1}}
"""


def parse(scenario, **replaced):
    text = FILE.replace("{{", "{").replace("}}", "}").replace("{SCENARIO}", scenario)
    for old, new in replaced.values():
        text = text.replace(old, new)
    return parse_campaign(text, origin="c.yaml")


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("{kind: sever, rate: 1}", "'offline', 'server', 'single-stream', 'multi-stream' or 'http' (found 'sever')"),
        ("{kind: server}", "c.yaml:5: `workloads.0.scenario`: scenario server needs `rate`"),
        ("{kind: server, rate: 0}", "greater than 0 (found 0)"),
        ("{kind: offline, rate: 5}", "`rate` has no effect with offline; it belongs to server and http."),
        ("{kind: server, rate: 5, max_queue: 5}", "`max_queue` has no effect with server; it belongs to http."),
        ("{kind: http, rate: 5, duration_s: 5}", "`duration_s` has no effect with http"),
        ("{kind: http, rate: 5, latency_limit_ms: -1}", "greater than 0 (found -1)"),
        ("{kind: offline, duration_s: 101}", "has duration_s 101, above timing.record_s"),
        ("{kind: offline, raet: 1}", "unknown key `workloads.0.scenario.raet`; did you mean `rate`?"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(scenario, expected):
    with pytest.raises(CampaignFileError) as caught:
        parse(scenario)

    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"name": "resnet50", "batch_size": 2, "scenario": {"kind": "single-stream"}}, "leave `batch_size` at 1"),
        ({"name": "resnet50", "inference_sleep_s": 1, "scenario": {"kind": "offline"}}, "pauses the closed loop"),
        ({"name": "notebook", "scenario": {"kind": "offline"}}, "notebook makes its own pace"),
        ({"name": "bert-training", "scenario": {"kind": "offline"}}, "makes its own pace"),
        ({"name": "data-parallel-training", "scenario": {"kind": "offline"}}, "makes its own pace"),
    ],
)
def test_a_workload_that_does_not_fit_is_refused(wishes, expected):
    with pytest.raises(ValueError, match=expected):
        WorkloadSpec(**wishes)


def test_the_replica_reads_what_the_file_says():
    scenario = {"kind": "server", "rate": 12.5, "latency_limit_ms": 15, "max_wait_ms": 2}
    workload = WorkloadSpec(name="resnet50", scenario=scenario)
    timing = Timing(step_s=1, stabilise_s=30, record_s=100)

    settings = from_environment(ReplicaSpec.timed(workload, timing).environment())

    assert settings.scenario == workload.scenario
    assert (settings.spec.settle_s, settings.spec.record_s) == (30, 100)
    assert workload.scenario.test_s(100) == 85


def test_loadgens_test_lies_within_the_recording():
    offline = WorkloadSpec(name="resnet50", scenario={"kind": "offline"})
    given = WorkloadSpec(name="resnet50", scenario={"kind": "offline", "duration_s": 7})

    # LoadGen adds a tenth to an offline test.
    assert 1.1 * offline.scenario.test_s(100) < 100
    assert given.scenario.test_s(100) == 7


def test_the_rate_can_be_raised_by_whoever_looks_for_the_breaking_point():
    workload = WorkloadSpec(name="resnet50", scenario={"kind": "http", "rate": 10, "max_queue": 5})

    assert workload.at_rate(250.0).scenario.rate == 250
    assert workload.at_rate(250.0).scenario.max_queue == 5
    assert workload.scenario.rate == 10
    with pytest.raises(ValueError, match="has no rate"):
        WorkloadSpec(name="resnet50", scenario={"kind": "offline"}).at_rate(5.0)


def test_the_campaign_on_the_page_is_valid():
    page = (Path(__file__).parents[3] / "docs/scenarios.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]

    kinds = {workload.scenario.kind for workload in parse_campaign(text, origin="docs/scenarios.md").workloads}

    assert kinds == set(ScenarioKind)
    assert all(f"| `{kind.value}` | " in page for kind in ScenarioKind)
