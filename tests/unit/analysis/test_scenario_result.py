"""What a scenario's raw logs become: figures of known truth, findings, validity."""

import json

import numpy as np
import pytest

from harness.analysis.client_result import NOTE, SCENARIO, evaluate, read_scenarios
from harness.analysis.read import read_requests
from harness.errors import ResultsPathError
from harness.metrics.quality import Severity
from harness.results.manifest import Gpu, Host, Provenance, Software
from harness.results.requests import GENERATED, LATENCY, LOAD_LOG, Window, read
from harness.traffic.records import BROKEN, UNANSWERED
from tests.support.experiments import experiment

MS = 1_000_000
S = 1_000_000_000
WINDOW = Window(1000.0, 1010.0)
HOST = Host(
    hostname="h",
    os="o",
    kernel="k",
    architecture="x",
    cpu_model="c",
    cpus=2,
    memory_bytes=1,
    cgroup_version=2,
    psi=True,
)
MACHINE = Provenance(
    host=HOST,
    gpus=[Gpu(index=0, name="NVIDIA Test", uuid="GPU-1", memory_bytes=16 * 2**30, driver="580.1", cuda="13.0")],
    software=Software(harness="0", git_commit=None, python="3", packages={}),
)
TEST = {"validity": "VALID", "duration_s": 601.0}


def replica_log(folder, start_s, latency_ms, *, replica=0, name="latencies.bin"):
    place = folder / "replicas" / f"replica-{replica}"
    place.mkdir(parents=True, exist_ok=True)
    records = np.empty(len(start_s), LATENCY)
    records["start_ns"] = (np.asarray(start_s) * S).astype(np.int64)
    records["latency_ns"] = (np.asarray(latency_ms) * MS).astype(np.int64)
    records.tofile(place / name)


def load_log(folder, rows):
    (folder / LOAD_LOG).parent.mkdir(parents=True, exist_ok=True)
    records = np.array([tuple(row) for row in rows], dtype=GENERATED)
    records.tofile(folder / LOAD_LOG)


def http_rows(number, *, latency_ms=5, status=200, error_ms=0.1, begin_s=1000.0, seconds=9.9):
    times_s = begin_s + np.arange(number) * seconds / number
    return [(0, round(at * S), round(error_ms * MS), round(latency_ms * MS), status) for at in times_s]


def judged(folder, scenario, statuses=(), **wishes):
    spec = experiment(replicas=1, workload={"scenario": scenario, **wishes})
    result = evaluate(spec, folder, WINDOW, statuses=statuses, provenance=MACHINE)
    return result.files[SCENARIO], result.findings


def test_a_gpu_that_no_replica_is_on_is_not_told(tmp_path):
    other = Gpu(index=0, name="Another", uuid="GPU-0")
    machine = MACHINE.model_copy(update={"gpus": [other, *MACHINE.gpus]})
    spec = experiment(replicas=1, workload={"scenario": {"kind": "single-stream"}})
    replica_log(tmp_path, [1001.0], [5])
    for statuses, told in (([{"device_uuid": "GPU-1"}], ("NVIDIA Test", 1)), ([{}], ("Another", 2))):
        content = evaluate(spec, tmp_path, WINDOW, statuses=statuses, provenance=machine).files[SCENARIO]
        assert (content["gpu_name"], content["gpus"]) == told


def test_a_request_belongs_to_the_recording_in_which_it_ends(tmp_path):
    # Meant to be sent long before and answered in it; answered before it; not answered until after it.
    replica_log(tmp_path, [900.0, 900.0, 1009.9], [105_000, 50_000, 500])

    requests = read_requests(read(tmp_path), tmp_path, WINDOW)

    assert requests.seconds("latency").tolist() == [105]
    assert len(requests.under_way) == 1


def test_percentiles_are_those_of_the_sample_as_far_as_it_supports_them(tmp_path):
    values_ms = np.random.default_rng(0).permutation(np.arange(1, 1001))
    for folder, count in ((tmp_path / "many", 1000), (tmp_path / "few", 99), (tmp_path / "none", 0)):
        replica_log(folder, np.full(count, 1005.0), values_ms[:count])
    many, few, none = (
        read_requests(read(tmp_path / name), tmp_path / name, WINDOW).milliseconds("latency")
        for name in ("many", "few", "none")
    )

    assert many == {"mean": 500.5, "p50": 500.0, "p90": 900.0, "p95": 950.0, "p99": 990.0, "p99.9": 999.0}
    assert set(few) == {"mean", "p50", "p90", "p95"}
    assert none == {}


def test_percentiles_are_of_what_was_answered_and_the_limit_is_missed_by_what_was_not(tmp_path):
    load_log(
        tmp_path,
        [
            *http_rows(10),
            *http_rows(4, status=429, latency_ms=0.1),
            *http_rows(1, status=UNANSWERED, latency_ms=9000, seconds=1),
            *http_rows(1, status=BROKEN, latency_ms=1),
        ],
    )

    content, _ = judged(tmp_path, {"kind": "http", "rate": 100, "latency_limit_ms": 10})

    results = content["results"]
    assert (results["offered_per_s"], results["requests"]) == (1.6, 10)
    assert results["statuses"] == {"-1": 1, "0": 1, "200": 10, "429": 4}
    assert results["latency_ms"]["mean"] == 5
    assert results["within_limit"] == pytest.approx(10 / 12, abs=1e-6)


def test_a_held_rate_within_its_limit_is_valid_and_in_the_published_shape(tmp_path):
    load_log(tmp_path, http_rows(1000))
    replica_log(tmp_path, 1000.0 + np.arange(1000) / 101, np.full(1000, 4.0), name="services.bin")

    content, findings = judged(tmp_path, {"kind": "http", "rate": 100, "latency_limit_ms": 10})

    assert findings == []
    assert content["validity"] == {"valid": True, "reasons": []}
    assert content["note"] == NOTE
    assert content["timestamp"] == "1970-01-01T00:16:40.000Z"
    assert (content["gpu_name"], content["cuda_version"], content["gpu_memory_bytes"]) == (
        "NVIDIA Test",
        "13.0",
        16 * 2**30,
    )
    results = content["results"]
    assert (results["intended_per_s"], results["offered_per_s"], results["achieved_per_s"]) == (100, 100, 100)
    assert results["latency_ms"]["p99"] == 5
    assert results["service_ms"]["p99"] == 4
    assert results["send_error_ms"]["p99"] == 0.1
    assert (results["within_limit"], results["limit_met"]) == (1.0, True)
    assert "NaN" not in json.dumps(content, allow_nan=False)


def test_a_rate_that_cannot_be_held_is_said_with_what_was_intended_and_answered(tmp_path):
    load_log(tmp_path, [*http_rows(500), *http_rows(500, status=429, latency_ms=0.1)])

    content, findings = judged(tmp_path, {"kind": "http", "rate": 100})

    assert [finding.severity for finding in findings] == [Severity.DEGRADED]
    assert "100 requests per second were intended and 50 answered; 500 were refused (429" in findings[0].message
    assert not content["validity"]["valid"]


def test_loadgen_says_how_many_it_would_have_sent_by_its_rate_alone(tmp_path):
    replica_log(tmp_path, 1000.0 + np.arange(500) / 50.1, np.full(500, 5.0))

    _, findings = judged(tmp_path, {"kind": "server", "rate": 100}, [{"scenario": {"rounds": {"test": TEST}}}])

    assert "100 requests per second were intended and 50 answered." in findings[0].message


def test_the_chance_of_poisson_arrivals_is_no_broken_rate(tmp_path):
    replica_log(tmp_path, 1000.0 + np.arange(90) / 9.1, np.full(90, 5.0))

    _, findings = judged(tmp_path, {"kind": "server", "rate": 10}, [{"scenario": {"rounds": {"test": TEST}}}])

    assert findings == []


def test_a_broken_limit_is_a_remark_on_good_data(tmp_path):
    load_log(tmp_path, [*http_rows(980), *http_rows(20, latency_ms=50)])

    content, findings = judged(tmp_path, {"kind": "http", "rate": 100, "latency_limit_ms": 10})

    assert [finding.severity for finding in findings] == [Severity.INFO]
    assert "98.00% of the requests were answered within 10 ms" in findings[0].message
    assert not content["results"]["limit_met"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (http_rows(3, status=500), "3 of 1003 requests failed"),
        (http_rows(3, status=BROKEN), "3 of 1003 requests failed"),
        (http_rows(30, error_ms=3.0), "The load generator itself was late: 3 ms at p99"),
    ],
)
def test_failures_and_a_late_generator_degrade(tmp_path, rows, said):
    load_log(tmp_path, [*http_rows(1000), *rows])

    _, findings = judged(tmp_path, {"kind": "http", "rate": 100})

    assert [finding.severity for finding in findings] == [Severity.DEGRADED]
    assert said in findings[0].message


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({}, "LoadGen's test in replica 0 had not ended when the recording did"),
        ({"validity": "VALID", "duration_s": 51.0}, "lasted 51.0 s; MLPerf's rules ask for 600"),
        (
            {"validity": "INVALID", "duration_s": 700.0, "invalid_reason": "Reduce target QPS to improve latency. "},
            "LoadGen in replica 0 says INVALID: Reduce target QPS to improve latency.",
        ),
    ],
)
def test_loadgens_own_verdict_and_ours_stand_in_the_validity_and_do_not_degrade(tmp_path, test, said):
    replica_log(tmp_path, 1000.0 + np.arange(1000) / 101, np.full(1000, 5.0))

    content, findings = judged(tmp_path, {"kind": "single-stream"}, [{"scenario": {"rounds": {"test": test}}}])

    assert not content["validity"]["valid"]
    assert said in content["validity"]["reasons"][0]
    assert {finding.severity for finding in findings} == {Severity.INFO}


@pytest.mark.parametrize(
    ("scenario", "batch_size", "samples"),
    [
        ({"kind": "offline"}, 8, 8),
        ({"kind": "multi-stream", "samples_per_query": 4}, 2, 4),
        ({"kind": "multi-stream"}, 1, 8),
    ],
)
def test_throughput_counts_samples(tmp_path, scenario, batch_size, samples):
    replica_log(tmp_path, 1000.0 + np.arange(100) / 10.1, np.full(100, 5.0))

    content, _ = judged(tmp_path, scenario, [{}], batch_size=batch_size)

    assert content["results"]["throughput_samples_per_s"] == 10 * samples


def test_reading_says_where_there_is_none(tmp_path):
    with pytest.raises(ResultsPathError, match="is not a folder"):
        read_scenarios(tmp_path / "absent")
    with pytest.raises(ResultsPathError, match="holds no experiment with a scenario"):
        read_scenarios(tmp_path)
