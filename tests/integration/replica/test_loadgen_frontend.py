"""A replica under the real LoadGen: its scenarios, its own percentiles against our log, its end."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from harness.replica.frontends.batching import BatchLedger, Passes
from harness.replica.frontends.loadgen import LoadGenFrontend, offsets_ns
from harness.replica.metrics import RequestMetrics
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

pytestmark = pytest.mark.long

SERVED = "inference_service_seconds_count"


@pytest.fixture
def under(start, own_source):
    """Start a replica under a scenario."""

    def start_replica(infer="time.sleep(0.002)", batch_size=1, settle_s=0.2, **scenario):
        workload = {"factory": "own:make", "device": "cpu", "threads": 1, "batch_size": batch_size}
        spec = {
            "workload": {"name": "own", **workload, "scenario": {"duration_s": 0.5, **scenario}},
            "settle_s": settle_s,
        }
        return start(own_source(infer), REPLICA_SPEC=json.dumps(spec))

    return start_replica


def result_of(replica):
    """LoadGen's word on the test, once it has ended."""
    replica.wait_for(lambda: "test" in replica.status.get("scenario", {}).get("rounds", {}))
    return replica.status["scenario"]["rounds"]["test"]


@pytest.mark.parametrize(
    ("scenario", "batch_size", "rate_key"),
    [
        ({"kind": "offline"}, 1, "samples_per_second"),
        ({"kind": "offline"}, 8, "samples_per_second"),
        ({"kind": "single-stream"}, 1, "qps_with_loadgen_overhead"),
        ({"kind": "multi-stream", "samples_per_query": 4}, 2, "99.00_percentile_per_query_latency_ns"),
        ({"kind": "server", "rate": 100.0, "latency_limit_ms": 1000.0}, 1, "completed_samples_per_sec"),
    ],
    ids=["offline", "offline batch 8", "single-stream", "multi-stream", "server"],
)
def test_every_scenario_runs_under_the_real_loadgen(under, scenario, batch_size, rate_key):
    replica = under(batch_size=batch_size, **scenario)

    test = result_of(replica)
    # A scrape may come between the two counts of one answer; of many scrapes one does not.
    replica.wait_for(lambda: (seen := replica.metrics())[SERVED] == seen["inference_requests_total"])
    metrics = replica.metrics()
    code = replica.stop()

    assert test["validity"] in {"VALID", "INVALID"}
    assert test[rate_key] > 0
    assert test["min_queries_met"] is True
    assert metrics["inference_requests_total"] > 5
    assert (replica.folder / "loadgen/test/mlperf_log_summary.txt").read_text().startswith("=====")
    assert code == 0


def test_offline_goes_on_while_loadgen_prepares_its_test_and_writes_its_log(tmp_path):
    recorded = []
    ledger = BatchLedger(RequestMetrics(), None)
    ledger.add = lambda batch, *_times: recorded.append(batch)
    scenario = ScenarioSpec(kind="offline", duration_s=0.1)
    serve = Passes(SimpleNamespace(infer=lambda: 4), 4)
    frontend = LoadGenFrontend(Settings(replica_dir=tmp_path), scenario, serve, ledger, pass_s=0.001)

    test = frontend._run_one(0, "test", 0.1, threading.Event())

    of_the_test = [batch for batch in recorded if batch.token]
    assert test["min_queries_met"] is True
    assert sum(batch.inputs for batch in of_the_test) == frontend.facts()["completed"] == frontend.facts()["issued"]
    between = [batch for batch in recorded if not batch.token]
    assert between
    assert {batch.inputs for batch in between} == {4}


def test_our_log_counts_from_loadgens_own_schedule(under):
    """A request of a random length, so that queues form: our percentiles are LoadGen's to a few microseconds."""
    replica = under(
        "import random; time.sleep(random.uniform(0.0005, 0.006))",
        kind="server",
        rate=200.0,
        settle_s=0.0,
        duration_s=1.5,
    )

    test = result_of(replica)
    replica.stop()

    latencies_ns = np.sort(np.array(replica.latencies)[: test["query_count"], 1])
    # A busy machine comes between our stamp of an answer and LoadGen's, of few of them.
    for percent, name, within in ((50, "50.00", 0.03), (90, "90.00", 0.1), (99, "99.00", 0.5)):
        ours_ns = latencies_ns[int(np.ceil(len(latencies_ns) * percent / 100)) - 1]
        assert ours_ns == pytest.approx(test[f"{name}_percentile_latency_ns"], rel=within, abs=300_000)
    services_ns = np.fromfile(replica.folder / "services.bin", "<i8").reshape(-1, 2)[:, 1]
    assert np.median(latencies_ns) > np.median(services_ns)


def test_the_schedule_is_loadgens_for_any_seed_and_rate():
    """Figures taken from LoadGen 6.0.17 itself: scheduled offsets of its first queries."""
    first = [offset for offset, _ in zip(offsets_ns(12345, 500.0), range(100_000), strict=False)]

    gaps_s = np.diff(first) / 1e9
    assert first[0] == 0
    assert gaps_s.mean() == pytest.approx(1 / 500, rel=0.02)
    assert gaps_s.var() == pytest.approx(1 / 500**2, rel=0.05)
    assert first[:50] != [offset for offset, _ in zip(offsets_ns(12346, 500.0), range(50), strict=False)]


def test_under_an_offered_load_that_no_replica_holds_it_still_ends_in_time(under):
    replica = under("time.sleep(0.01)", kind="server", rate=1000.0)
    replica.wait_for(lambda: replica.status.get("scenario", {}).get("waiting", 0) > 50)

    assert replica.metrics()["inference_queue_depth"] > 50
    code = replica.stop()

    assert code == 0
    assert "test" not in replica.status["scenario"]["rounds"]
    assert len(replica.latencies) > 10


@pytest.mark.parametrize("kind", ["offline", "single-stream"])
def test_a_request_that_hangs_is_abandoned(under, kind):
    replica = under(
        "while __import__('os').path.exists('hold'): open('held', 'w').close(); time.sleep(0.001)\n        time.sleep(0.002)",
        kind=kind,
    )
    replica.wait_for_phase("serving")
    (replica.folder / "hold").touch()
    replica.wait_for((replica.folder / "held").exists)

    code = replica.stop()

    assert code == 0
    assert replica.status["abandoned_requests"] == 1


def test_a_limit_below_one_service_time_is_refused(under):
    replica = under(kind="server", rate=10.0, latency_limit_ms=1.0)

    assert replica.process.wait(120) == 3
    assert "latency_limit_ms 1 is below one service time (" in replica.last_line
