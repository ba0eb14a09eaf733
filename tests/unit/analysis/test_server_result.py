"""What the clients of servers saw, from logs of known content."""

import json

import numpy as np
import pytest
from scipy import stats

from harness.analysis import objective
from harness.analysis.client_result import SERVER as SERVER_JSON
from harness.analysis.client_result import SLO, evaluate
from harness.analysis.objective import SLICES, in_sentences, share_interval
from harness.errors import ReasonCode, ResultsPathError
from harness.metrics.quality import Severity
from harness.results.requests import ANSWER, ANSWERS_LOG, CLIENT, CLIENT_LOG, GAP, GAPS_LOG, LATENCY, Window
from harness.spec import ConditionSpec, NeighbourSpec, Sharing, SloSpec, WorkloadSpec
from harness.spec.sweep import Per, SweepKind, SweptLoad
from harness.traffic.records import ABANDONED, CLIENT_FIELDS, NONE, TokenSource
from tests.support.experiments import experiment

MS = 1_000_000
WINDOW = Window(1000.0, 1010.0)
SERVER = {"command": ["serve", "{port}"], "protocol": "openai-chat"}


def replica(folder, index, rows, gaps=()):
    """Rows: end in seconds, latency, time to first token and own p99 of the gaps in ms, status; gaps: end, ms."""
    place = folder / "replicas" / f"replica-{index}"
    place.mkdir(parents=True)
    requests = np.zeros(len(rows), CLIENT)
    for number, (end_s, latency_ms, ttft_ms, itl_ms, status) in enumerate(rows):
        latency_ns = round(latency_ms * MS)
        requests[number] = (
            round(end_s * 1e9) - latency_ns, 0, latency_ns, round(ttft_ms * MS), round(itl_ms * MS), 10, 20, status
        )  # fmt: skip
    requests.tofile(place / CLIENT_LOG)
    records = np.zeros(len(gaps), GAP)
    for number, (end_s, gap_ms) in enumerate(gaps):
        records[number] = (round(end_s * 1e9) - round(gap_ms * MS), round(gap_ms * MS))
    records.tofile(place / GAPS_LOG)


def judged(folder, limits=None, statuses=(), **server):
    spec = experiment().model_copy(
        update={
            "workload": WorkloadSpec.model_validate({"name": "llm", "server": SERVER | server}),
            "slo": SloSpec.model_validate(limits) if limits else None,
        }
    )
    result = evaluate(spec, folder, WINDOW, statuses=statuses, provenance=None)
    return result.files[SERVER_JSON], result.findings


def ends(number, begin_s=1000.0, end_s=1010.0):
    return np.linspace(begin_s + 0.001, end_s - 0.001, number).tolist()


def test_it_reads_what_the_replicas_write():
    assert CLIENT.names == CLIENT_FIELDS


@pytest.mark.parametrize(("url", "whose"), [("http://localhost", "not theirs alone"), ("http://there", "not theirs")])
def test_of_servers_that_ran_already_no_place_and_no_mode_is_claimed(tmp_path, url, whose):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(200)])
    _, findings = judged(tmp_path, command=[], url=[url])
    (finding,) = [each for each in findings if each.code is ReasonCode.NOT_JUDGED]
    assert finding.severity is Severity.INFO
    assert "the harness set nothing of it" in finding.message
    assert finding.message.endswith(f"What is recorded of this machine is {whose}.")
    assert ReasonCode.NOT_JUDGED not in {each.code for each in judged(tmp_path)[1]}


def test_of_servers_in_pods_what_their_clients_could_not_see_is_said(tmp_path):
    seen = {"replica": 0, "device": "cuda", "mps_pipe_directory": ""}
    hidden = {"replica": 1, "device": "", "mps_pipe_directory": None}

    def said(*statuses):
        _, findings = judged(tmp_path, statuses=statuses, image="registry.example/engine:1")
        return [each.message for each in findings if each.code is ReasonCode.NOT_JUDGED]

    assert said(seen) == []
    assert [message.partition(", whose")[0] for message in said(seen, hidden)] == [
        "Not judged: whether it computes on a GPU, of the server of replica 1",
        "Not judged: whether it is a client of MPS, of the server of replica 1",
    ]


def test_the_figures_are_those_of_the_requests_that_ended_in_the_recording(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in [999.0, *ends(200), 1011.0]], [(t, 9) for t in ends(400)])
    replica(tmp_path, 1, [(t, 200, 60, 9, 200) for t in ends(100)])

    content, findings = judged(tmp_path)

    results = content["results"]
    assert (results["requests"], results["achieved_per_s"]) == (300, 30)
    assert (results["latency_ms"]["p50"], results["latency_ms"]["p99"]) == (100, 200)
    assert (results["ttft_ms"]["p50"], results["itl_ms"]["p99"]) == (40, 9)
    assert results["input_tokens_per_s"] == 300
    # 300 answers of 20 tokens, of which the four that began before the recording brought 49.5 before it.
    assert results["output_tokens_per_s"] == pytest.approx((6000 - 49.48) / 10, rel=1e-6)
    assert [each["requests"] for each in content["by_server"].values()] == [200, 100]
    assert findings == []
    assert "slo" not in content


def test_a_token_counts_when_it_arrives_and_not_when_its_answer_ends(tmp_path):
    # Three answers of 20 tokens in 19 s: two lie half in the recording of 10 s, one begins before it and ends after it.
    long = [(1009.5, 19000, 0.001, 9, 200), (1019.5, 19000, 0.001, 9, 200), (1014.5, 19000, 0.001, 9, 200)]
    whole = [(1005.0, 500, -1e-6, -1e-6, 200)]  # no stream: all of it came at its end
    outside = [(999.0, 900, 0.001, 9, 200), (1005.0, 900, 0.001, 9, 500)]  # over before it, or failed
    replica(tmp_path, 0, [*long, *whole, *outside])

    results = judged(tmp_path)[0]["results"]

    assert results["output_tokens_per_s"] == pytest.approx((9.5 + 10.5 + 10 + 20) / 10, rel=1e-4)


def test_of_an_answer_that_the_client_left_the_pieces_count(tmp_path):
    # Both begin at 1000.5; one ends with 20 tokens in 10 pieces, the other has come to 30 pieces when it is left, 5 s after the recording.
    replica(tmp_path, 0, [(1009.5, 9000, 0.001, 9, 200), (1015.0, 14500, 0.001, 9, ABANDONED)])
    pieces = np.zeros(2, ANSWER)
    pieces["pieces"], pieces["token_source"] = (10, 30), (TokenSource.USAGE, NONE)
    pieces.tofile(tmp_path / "replicas" / "replica-0" / ANSWERS_LOG)

    arrived = 20 + 1 + 59 * 9.5 / 14.5

    assert judged(tmp_path)[0]["results"]["output_tokens_per_s"] == pytest.approx(arrived / 10, rel=1e-4)


@pytest.mark.parametrize("source", [TokenSource.USAGE_WITH_HIDDEN, TokenSource.USAGE])
def test_where_tokens_that_came_are_not_known_whole_answers_count_at_their_ends(tmp_path, source):
    replica(tmp_path, 0, [(1000.5, 9000, 0.001, 9, 200), (1015.0, 14500, 0.001, 9, ABANDONED)])
    if source is TokenSource.USAGE_WITH_HIDDEN:  # else an earlier version recorded it, which wrote no pieces
        pieces = np.zeros(2, ANSWER)
        pieces["pieces"], pieces["token_source"] = (10, 30), (source, NONE)
        pieces.tofile(tmp_path / "replicas" / "replica-0" / ANSWERS_LOG)
    assert judged(tmp_path)[0]["results"]["output_tokens_per_s"] == 2


def test_failures_are_counted_by_kind_and_degrade(tmp_path):
    rows = (
        [(t, 100, 40, 9, 200) for t in ends(90)]
        + [(t, 5, -1e-6, -1e-6, 500) for t in ends(9)]
        + [(1005.0, 900, -1e-6, -1e-6, -1)]
    )
    replica(tmp_path, 0, rows)

    content, (finding,) = judged(tmp_path, statuses=[{"load": {"first_failure": "HTTP 500: no memory"}}])

    assert content["results"]["failed"] == {"-1": 1, "500": 9}
    assert (finding.severity, finding.code) == (Severity.DEGRADED, ReasonCode.REQUESTS_FAILED)
    assert "10 of 100 requests failed (1 x -1, 9 x 500;" in finding.message
    assert "HTTP 500: no memory" in finding.message


def test_requests_that_were_sent_once_more_are_said(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(200)])

    _, (finding,) = judged(tmp_path, statuses=[{"load": {"repeated": 2}}, {"load": {"repeated": 1}}, {}])

    assert finding.code == ReasonCode.REMARK
    assert "3 requests" in finding.message
    assert judged(tmp_path, statuses=[{"load": {"repeated": 0}}])[1] == []


def test_answers_that_are_longer_than_asked_for_are_said(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(200)])  # of 20 tokens

    _, (finding,) = judged(tmp_path, requests={"output_tokens": {"mean": 19}})

    assert (finding.severity, finding.code) == (Severity.DEGRADED, ReasonCode.SETTING_IGNORED)
    assert "200 of 200 answers have more tokens than the 19 that were asked for at most" in finding.message
    for asked in ({"mean": 20}, {"mean": 8, "stddev": 4}):
        assert judged(tmp_path, requests={"output_tokens": asked})[1] == []
    assert judged(tmp_path, requests={"output_tokens": {"mean": 19}}, extra_body={"max_tokens": 20})[1] == []


def test_a_rate_that_is_not_held_is_said(tmp_path):
    late = [(1020.0, 1e3 * (1020.0 - t), 40, 9, 200) for t in ends(200)]
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(100)] + late)

    _, (finding,) = judged(tmp_path, rate=30)

    assert finding.code is ReasonCode.RATE_NOT_HELD
    assert judged(tmp_path)[1] == [], "a closed loop has no rate to hold"


def test_the_objective_passes_fails_or_stays_open_by_its_interval(tmp_path):
    gaps = [(t, 9) for t in ends(2000)]
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)], gaps)
    limits = {"ttft_p99_ms": 50, "itl_p99_ms": 10, "latency_p99_ms": 150, "error_rate": 0.01}

    content, (finding,) = judged(tmp_path, limits)
    assert content["slo"]["outcome"] == "pass"
    assert content["slo"]["goodput_per_s"] == 100
    assert (finding.code, finding.severity) == (ReasonCode.SLO, Severity.INFO)
    assert finding.message == content["slo"]["said"]
    assert content["slo"]["parts"]["ttft_p99_ms"]["value"] == 40

    content, (finding,) = judged(tmp_path, limits | {"itl_p99_ms": 8})
    assert content["slo"]["outcome"] == "fail"
    assert content["slo"]["goodput_per_s"] == 0
    assert content["slo"]["parts"]["ttft_p99_ms"]["outcome"] == "pass"
    assert content["slo"]["parts"]["itl_p99_ms"]["missed_share"] == 1

    content, _ = judged(tmp_path, limits | {"error_rate": 0.0001})
    assert content["slo"]["outcome"] == "inconclusive", "1,000 requests without an error do not show 0.01%"


@pytest.mark.parametrize(
    ("limits", "outcome", "value"),
    [
        ({"latency_p50_ms": 101}, "pass", 100),
        ({"latency_p90_ms": 101}, "inconclusive", 100),
        ({"latency_p95_ms": 101}, "fail", 500),
        ({"ttft_p90_ms": 41}, "inconclusive", 40),
        ({"tpot_p50_ms": 3.2}, "pass", 60 / 19),
        ({"tpot_p95_ms": 3.2}, "fail", 460 / 19),
        ({"itl_p95_ms": 9}, "pass", 9),
    ],
)
def test_any_percentile_can_be_limited(tmp_path, limits, outcome, value):
    """A tenth of the answers is slow from its first token on, or its first token is."""
    slow = 440 if "ttft_p90_ms" in limits else 40
    rows = [(t, 100, 40, 9, 200) for t in ends(900)] + [(t, 500, slow, 9, 200) for t in ends(100)]
    replica(tmp_path, 0, rows, [(t, 9) for t in ends(1000)])

    content, _ = judged(tmp_path, limits)

    (part,) = content["slo"]["parts"].values()
    assert (part["outcome"], part["value"]) == (outcome, pytest.approx(value))


def test_an_objective_of_a_model_of_our_own_is_judged_by_its_latencies(tmp_path):
    place = tmp_path / "replicas" / "replica-0"
    place.mkdir(parents=True)
    records = np.zeros(1000, LATENCY)
    records["start_ns"], records["latency_ns"] = (np.array(ends(1000, end_s=1009.9)) * 1e9).astype(np.int64), 7 * MS
    records.tofile(place / "latencies.bin")
    spec = experiment().model_copy(update={"slo": SloSpec(latency_p99_ms=8, error_rate=0.01)})

    result = evaluate(spec, tmp_path, WINDOW, statuses=[], provenance=None)

    assert result.files.keys() == {SLO}
    slo = result.files[SLO]["slo"]
    assert (slo["outcome"], slo["goodput_per_s"]) == ("pass", 100)
    assert slo["parts"]["latency_p99_ms"]["value"] == 7
    assert [finding.code for finding in result.findings] == [ReasonCode.SLO]
    tighter = spec.model_copy(update={"slo": SloSpec(latency_p50_ms=6)})
    failed = evaluate(tighter, tmp_path, WINDOW, statuses=[], provenance=None).files[SLO]["slo"]
    assert (failed["outcome"], failed["goodput_per_s"]) == ("fail", 0)


def answered(folder, ttfo_ms, source=TokenSource.USAGE):
    """What beside the requests of replica 0 says of their answers: the first token after reasoning, and who counted the tokens."""
    records = np.zeros(len(ttfo_ms), ANSWER)
    records["ttfo_ns"] = [NONE if value is None else round(value * MS) for value in ttfo_ms]
    records["pieces"], records["token_source"], records["tokenizer_tokens"] = 20, source, 10
    records.tofile(folder / "replicas" / "replica-0" / ANSWERS_LOG)


@pytest.mark.parametrize(
    ("ttfo_ms", "outcome", "value"),
    [
        ([80] * 1000, "pass", 80),
        ([*[80] * 9, 95] * 100, "fail", 95),
        ([*[80] * 9, None] * 100, "fail", 80),
        ([None] * 1000, "inconclusive", None),
    ],
    ids=["kept", "missed", "of-reasoning-alone", "never-told"],
)
def test_the_first_token_after_reasoning_is_limited_by_itself(tmp_path, ttfo_ms, outcome, value):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)])
    answered(tmp_path, ttfo_ms)

    content, _ = judged(tmp_path, {"ttft_p99_ms": 50, "ttfo_p99_ms": 90})

    parts = content["slo"]["parts"]
    assert parts["ttft_p99_ms"]["outcome"] == "pass"
    assert (parts["ttfo_p99_ms"]["outcome"], parts["ttfo_p99_ms"]["value"]) == (outcome, value)


def test_tokens_that_nobody_was_sent_decide_no_time_per_token(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)])
    answered(tmp_path, [80] * 1000, TokenSource.USAGE_WITH_HIDDEN)

    part = judged(tmp_path, {"tpot_p99_ms": 50})[0]["slo"]["parts"]["tpot_p99_ms"]

    assert (part["value"], part["outcome"], part["interval"]) == (None, "inconclusive", [0, 1])


def test_a_neighbour_is_held_to_its_own_objective(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)])
    replica(tmp_path / "neighbours" / "small", 0, [(t, 20, 4, 1, 200) for t in ends(1000)])
    server = WorkloadSpec.model_validate({"name": "small", "server": SERVER})

    def outcomes(limit_ms):
        beside = NeighbourSpec(workload=server, slo=SloSpec(ttft_p99_ms=limit_ms))
        spec = experiment(workload=server, condition=ConditionSpec(name="beside", neighbours=[beside]))
        spec = spec.model_copy(update={"slo": SloSpec(latency_p99_ms=150)})
        slo = evaluate(spec, tmp_path, WINDOW, statuses=[], provenance=None).files[SERVER_JSON]["slo"]
        return slo["outcome"], {name: part["outcome"] for name, part in slo["parts"].items()}, slo["goodput_per_s"]

    assert outcomes(5) == ("pass", {"latency_p99_ms": "pass", "small/ttft_p99_ms": "pass"}, 100)
    assert outcomes(3) == ("fail", {"latency_p99_ms": "pass", "small/ttft_p99_ms": "fail"}, 100)
    assert objective.title_of("small/ttft_p99_ms") == "small: first token p99"


def late_by(folder, late_ms):
    """Every second request of replica 0 left that much after its intended time."""
    path = folder / "replicas" / "replica-0" / CLIENT_LOG
    requests = np.fromfile(path, CLIENT)
    requests["send_error_ns"][::2] = round(late_ms * MS)
    requests.tofile(path)


@pytest.mark.parametrize(
    ("late_ms", "limit_ms", "outcome", "from_sent"),
    [
        (15, 150, "inconclusive", {"value": 143, "outcome": "pass"}),
        (15, 140, "fail", None),
        (0, 150, "fail", None),
        (15, 160, "pass", None),
    ],
)
def test_lateness_that_decides_the_objective_is_no_verdict_on_the_servers(
    tmp_path, late_ms, limit_ms, outcome, from_sent
):
    replica(tmp_path, 0, [(t, 900, ttft, 9, 200) for t, ttft in zip(ends(2000), [158, 140] * 1000, strict=True)])
    late_by(tmp_path, late_ms)

    content, findings = judged(tmp_path, {"ttft_p99_ms": limit_ms})

    part = content["slo"]["parts"]["ttft_p99_ms"]
    assert (content["slo"]["outcome"], part["outcome"]) == (outcome, outcome)
    assert part.get("from_sent") == from_sent
    late = [finding for finding in findings if finding.code is ReasonCode.GENERATOR_LATE]
    assert [finding.severity for finding in late] == ([Severity.DEGRADED] if late_ms else [])


def test_lateness_is_measured_against_the_first_token_and_the_limits(tmp_path):
    replica(tmp_path, 0, [(t, 4000, 100, 9, 200) for t in ends(200)])
    late_by(tmp_path, 4)

    assert judged(tmp_path)[1] == [], "4 of 100 ms"
    assert [finding.code for finding in judged(tmp_path, {"ttft_p50_ms": 70})[1]][:1] == [ReasonCode.GENERATOR_LATE]


def test_what_failed_has_met_no_limit(tmp_path):
    rows = [(t, 100, 40, -1e-6, 200) for t in ends(300)] + [(t, 1, -1e-6, -1e-6, 500) for t in ends(300)]
    replica(tmp_path, 0, rows)

    content, _ = judged(tmp_path, {"latency_p99_ms": 150})

    part = content["slo"]["parts"]["latency_p99_ms"]
    assert (part["value"], part["missed_share"], part["outcome"]) == (100, 0.5, "fail")
    assert content["slo"]["goodput_per_s"] == 30


HUNG = (1050.0, 45_000, -1e-6, -1e-6, -3)


def test_a_server_that_hangs_does_not_pass_by_what_it_answered_before(tmp_path):
    """Half of the recording: a closed loop asks nothing else meanwhile, and the survivors are all within the limits."""
    replica(tmp_path, 0, [(t, 10, 5, 1, 200) for t in ends(5000, end_s=1005.0)] + [HUNG] * 10)
    limits = {"ttft_p99_ms": 50, "latency_p99_ms": 150}

    content, (failed, _) = judged(tmp_path, limits)

    assert {name: part["outcome"] for name, part in content["slo"]["parts"].items()} == dict.fromkeys(limits, "fail")
    assert content["slo"]["parts"]["latency_p99_ms"]["missed_share"] == pytest.approx(0.5)
    assert content["results"]["abandoned"] == 10
    assert failed.code is ReasonCode.REQUESTS_FAILED
    assert "10 of 5010 requests failed (10 x -3;" in failed.message


def test_what_was_under_way_and_younger_than_the_limit_is_undecided(tmp_path):
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)] + [(1010.05, 120, 40, -1e-6, -3)] * 30)

    content, (finding,) = judged(tmp_path, {"ttft_p99_ms": 50, "latency_p99_ms": 150, "error_rate": 0.02}, rate=100)

    parts = content["slo"]["parts"]
    assert (parts["ttft_p99_ms"]["outcome"], parts["ttft_p99_ms"]["undecided"]) == ("pass", 0), "its token has come"
    for name in ("latency_p99_ms", "error_rate"):
        assert (parts[name]["outcome"], parts[name]["undecided"]) == ("inconclusive", 30)
        assert parts[name]["missed_share"] == 0
        assert parts[name]["interval"][1] > 30 / 1030
    assert finding.code is ReasonCode.SLO, "young ones are no failures"
    assert "30 undecided at the end" in finding.message


def test_an_answer_after_the_end_decides(tmp_path):
    after = [(1010.5, 600, 580, 9, 200)] * 100
    replica(tmp_path, 0, [(t, 100, 40, 9, 200) for t in ends(1000)] + after)

    content, _ = judged(tmp_path, {"latency_p99_ms": 150})

    assert content["results"]["requests"] == 1000
    assert content["slo"]["parts"]["latency_p99_ms"]["missed_share"] == pytest.approx(1 / 11)


@pytest.mark.parametrize(("age_ms", "outcome", "undecided"), [(45_000, "fail", 0), (20, "inconclusive", 40)])
def test_a_stream_that_stops_is_a_gap_that_does_not_end(tmp_path, age_ms, outcome, undecided):
    begin_s = 1005.0 if age_ms > 1000 else 1009.99
    streams = [(begin_s + age_ms / 1e3, age_ms + 30, 20, 10, -3)] * 40
    replica(tmp_path, 0, streams, [(t, 9) for t in ends(1000)] + [(begin_s + age_ms / 1e3, age_ms)] * 40)

    content, _ = judged(tmp_path, {"itl_p99_ms": 50})

    part = content["slo"]["parts"]["itl_p99_ms"]
    assert (part["outcome"], part["undecided"]) == (outcome, undecided)
    assert content["results"]["itl_ms"]["p99"] == 9, "it is no gap between two tokens"


def test_without_a_request_nothing_is_decided(tmp_path):
    replica(tmp_path, 0, [])
    content, _ = judged(tmp_path, {"latency_p99_ms": 150, "itl_p99_ms": 5})
    assert content["slo"]["outcome"] == "inconclusive"
    assert content["slo"]["parts"]["latency_p99_ms"]["interval"] == [0, 1]


def test_what_is_slow_in_one_burst_widens_the_interval():
    at_ns = (np.array(ends(2000)) * 1e9).astype(np.int64)
    spread = np.zeros(2000, bool)
    spread[:: 2000 // 20] = True
    burst = np.zeros(2000, bool)
    burst[:20] = True

    low, high = share_interval(spread, at_ns, WINDOW)
    assert low < 0.01 < high < 0.02
    assert share_interval(burst, at_ns, WINDOW)[1] > high
    assert share_interval(np.ones(50, bool), at_ns[:50], WINDOW) == (pytest.approx(0.928, abs=0.003), 1.0)


def test_the_interval_covers_the_truth():
    """Of independent requests, in at least 95 of 100 recordings less chance."""
    chance = np.random.default_rng(0)
    at_ns = (np.array(ends(1500)) * 1e9).astype(np.int64)
    covered = 0
    for _ in range(400):
        low, high = share_interval(chance.random(1500) < 0.01, at_ns, WINDOW)
        covered += low <= 0.01 <= high
    assert covered >= 0.95 * 400
    assert pytest.approx(stats.norm.ppf(0.975), rel=1e-6) == objective.NORMAL
    assert pytest.approx(stats.t.ppf(0.975, SLICES - 1), rel=1e-6) == objective.STUDENT


def test_an_outcome_of_an_older_version_has_its_name_of_today(tmp_path):
    part = {"outcome": "not decidable", "value": None, "limit": 0.1, "missed_share": 0.0, "interval": [0, 0.2]}
    part["undecided"] = 0
    said = {"outcome": "not decidable", "said": "Objective: not decidable. Goodput 3", "parts": {"error_rate": part}}
    (tmp_path / SERVER_JSON).write_text(json.dumps({"slo": said}))

    read = objective.read_objective(tmp_path)

    assert (read["outcome"], read["parts"]["error_rate"]["outcome"]) == ("inconclusive", "inconclusive")
    assert read["said"] == "Objective: inconclusive. Goodput 3"
    assert read["parts"]["error_rate"]["value"] is None


@pytest.mark.parametrize(
    "slo",
    [
        *([], "pass", 3, {"outcome": "pass"}, {"outcome": "good", "said": "", "parts": {}}),
        {"outcome": "pass", "said": "", "parts": []},
        {"outcome": "pass", "said": "", "parts": {"error_rate": {"outcome": "pass"}}},
        {"outcome": "pass", "said": "", "parts": {"speed_p99_ms": {"interval": [0, 1], "undecided": 0}}},
    ],
)
def test_an_objective_that_is_damaged_is_named_with_its_file(tmp_path, slo):
    (tmp_path / SERVER_JSON).write_text(json.dumps({"slo": slo}))

    with pytest.raises(ResultsPathError, match=r"server\.json is damaged: its `slo`"):
        objective.read_objective(tmp_path)


def test_many_runs_are_counted_by_outcome_the_gravest_first():
    def run(workload, sharing, replicas, repeat, outcome, part="error_rate"):
        spec = experiment().model_copy(
            update={
                "workload": experiment().workload.model_copy(update={"name": workload}),
                "sharing": Sharing(sharing),
                "replicas": replicas,
                "repeat": repeat,
            }
        )
        judged = {"outcome": outcome, "interval": [0.002 * repeat, 0.03 * repeat], "allowed_share": 0.01}
        return spec, {"outcome": outcome, "said": f"Objective: {outcome}.", "parts": {part: judged}}

    runs = [
        run("llm", sharing, count, repeat, "pass" if sharing == "mps" else "inconclusive")
        for sharing in ("time-slicing", "mps")
        for count in (1, 2)
        for repeat in (1, 2)
    ]
    runs.append(run("big", "mps", 4, 1, "fail", "ttft_p99_ms"))

    assert in_sentences(runs) == [
        "Objective: fail in 1 of 9 runs (big_r4_mps); first token p99 in 1 (0.2 to 3% missed, 1% allowed).",
        "Objective: inconclusive in 4 of 9 runs (llm_r1_time-slicing, llm_r2_time-slicing); errors in 4 (0.2 to 6% missed, 1% allowed).",
        "Objective: pass in 4 of 9 runs (llm_r1_mps, llm_r2_mps).",
    ]
    assert in_sentences(runs[:4]) == [
        f"llm_r{n}_time-slicing_rep{k}: Objective: inconclusive." for n in (1, 2) for k in (1, 2)
    ]
    assert in_sentences(runs[4:8] * 2) == ["Objective: pass in 8 of 8 runs."]


def test_a_sweep_says_the_highest_load_that_meets_the_objective_in_every_repeat():
    def run(replicas, load, repeat, outcome):
        swept = SweptLoad(kind=SweepKind.CONCURRENCY, value=load, per=Per.REPLICA)
        workload = experiment().workload.model_copy(update={"name": f"llm-c{load}", "variant_of": "llm"})
        changes = {"workload": workload, "sharing": Sharing.MPS, "replicas": replicas, "repeat": repeat, "load": swept}
        judged = {"outcome": outcome, "said": "", "parts": {}}
        return experiment().model_copy(update=changes), judged

    runs = [
        *(run(1, load, repeat, "pass") for load in (32, 4) for repeat in (1, 2)),
        *(run(2, 4, repeat, "inconclusive") for repeat in (1, 2)),  # too few requests, no reason to stop
        *(run(2, 8, repeat, "pass") for repeat in (1, 2)),
        *(run(2, 16, repeat, outcome) for repeat, outcome in enumerate(("pass", "fail"), 1)),
        *(run(2, 32, repeat, "pass") for repeat in (1, 2)),
        *(run(4, 4, repeat, "fail") for repeat in (1, 2)),
    ]

    assert in_sentences(runs)[:3] == [
        "llm, mps, 1 replica: meets the objective up to 32 resident requests per replica (the highest measured).",
        "llm, mps, 2 replicas: meets the objective up to 8 resident requests per replica (16: fail).",
        "llm, mps, 4 replicas: no load meets the objective in every repeat (lowest: 4 resident requests per replica, fail).",
    ]
