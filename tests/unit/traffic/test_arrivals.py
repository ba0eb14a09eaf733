"""When requests are meant to be sent: at a rate, at one that changes, and as a trace says."""

import itertools
import json
import statistics

import numpy as np
import pytest
from scipy import stats

from harness.errors import LoadError
from harness.traffic.arrivals import NS_PER_S, arrivals, of_targets, of_trace, ramped
from harness.traffic.datasets import load_facts
from harness.traffic.questions import questions
from tests.unit.traffic.engines import engine

MS = 1_000_000


def take(arrivals, number):
    found = list(itertools.islice(arrivals, number))
    return np.array([at for at, _ in found]), np.array([target for _, target in found])


def test_poisson_arrivals_have_exponential_gaps_of_the_rate_at_every_target():
    at_ns, targets = take(of_targets(50.0, "poisson", 3, seed=7), 30_000)

    for target in range(3):
        gaps_s = np.diff(at_ns[targets == target]) / NS_PER_S
        assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.04)
        assert stats.kstest(gaps_s, "expon", args=(0, 1 / 50)).pvalue > 0.001


def test_poisson_arrivals_are_those_of_the_seed():
    same = [take(of_targets(10.0, "poisson", 2, seed), 100) for seed in (1, 1, 2)]

    assert (same[0][0] == same[1][0]).all()
    assert (same[0][1] == same[1][1]).all()
    assert (same[0][0] != same[2][0]).any()


def test_constant_arrivals_are_evenly_spaced_and_take_turns():
    at_ns, targets = take(of_targets(100.0, "constant", 2, seed=0), 1000)

    assert np.abs(np.diff(at_ns) - NS_PER_S / 200).max() <= 1
    assert at_ns[-1] == 5 * NS_PER_S
    assert targets[:4].tolist() == [0, 1, 0, 1]


def test_arrivals_have_their_rate_and_repeat_with_the_seed():
    assert list(itertools.islice(arrivals(4, "constant", 0), 3)) == [250_000_000, 500_000_000, 750_000_000]
    first = [list(itertools.islice(arrivals(100, kind, 1), 100)) for kind in (None, "poisson", "gamma")]
    assert first[0] == first[1] == first[2], "Poisson is what is not said to be another"


@pytest.mark.parametrize("burstiness", [0.25, 1, 16])
def test_gamma_arrivals_have_their_rate_and_come_in_bursts(burstiness):
    times_s = [each / 1e9 for each in itertools.islice(arrivals(100, "gamma", 1, burstiness), 8000)]
    assert times_s == [each / 1e9 for each in itertools.islice(arrivals(100, "gamma", 1, burstiness), 8000)]
    intervals_s = [later - earlier for earlier, later in itertools.pairwise([0.0, *times_s])]
    mean_s = statistics.fmean(intervals_s)
    assert mean_s == pytest.approx(0.01, rel=0.1)
    assert statistics.stdev(intervals_s) / mean_s == pytest.approx(burstiness**-0.5, rel=0.1), (
        "coefficient of variation"
    )


def line(timestamp, asked=3, answered=2, **more):
    return json.dumps({"timestamp": timestamp, "input_length": asked, "output_length": answered, **more})


def written(path, *lines):
    path.write_text("\n".join(lines))
    return path


def traced(path, **trace):
    trace = {"file": str(path), "unit": "ms", **trace}
    return engine(protocol="openai-chat", requests={}, trace=trace)


def test_a_trace_is_asked_at_its_times_with_its_lengths_and_then_again(tmp_path):
    lines = line(500, 3, 2, hash_ids=[0, 1]), line(500, 1, 9), "", line(1500.5, 4, 1)
    path = written(tmp_path / "trace.jsonl", *lines)
    settings = traced(path, factor=2.0)
    mean_ms = 500.25 / 2
    assert list(itertools.islice(of_trace(settings.trace), 6)) == [
        round(ms * MS) for ms in (0, 0, 500.25, 500.25 + mean_ms, 500.25 + mean_ms, 1000.5 + mean_ms)
    ]
    asked = list(itertools.islice(questions(settings, 7), 4))
    assert [(len(each.prompt.split()), each.output_tokens) for each in asked] == [(3, 2), (1, 9), (4, 1), (3, 2)]
    assert asked == list(itertools.islice(questions(settings, 7), 4)), "the seed repeats the words"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line(1)], "has 1 in all"),
        ([line(1), line(1)], "has 2 in all"),
        ([line(0), "timestamp,input_length"], r"trace\.jsonl:2: it is not JSON"),
        (["[1, 2, 3]"], "it must be an object"),
        (['{"timestamp": 1, "input_length": 3}'], "output_length is missing"),
        ([line(float("nan"))], "timestamp must be a finite number"),
        ([line(float("inf"))], "timestamp must be a finite number"),
        ([line(-1)], "timestamp must be at least 0"),
        ([line(10**400)], "timestamp must"),
        ([line("1")], "timestamp must be a number"),
        ([line(0, 10**9)], "input_length must be 0 to 1000000"),
        ([line(0, 1, 10**9)], "output_length must be 0 to"),
        ([line(0, 0)], "holds no request: all are dropped as failed"),
        ([line(0, True)], "input_length must be a number"),
        ([line(0, 1.5)], "input_length must be a whole number"),
        ([line(0), line(0.001)], r"2 requests in 0\.001 ms at factor 1, more than 100000 a second"),
        (["\udcff"], "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_trace_that_is_none_is_said_with_its_line(tmp_path, lines, message):
    path = tmp_path / "trace.jsonl"
    if lines is not None:
        path.write_text("\n".join(lines), errors="surrogateescape")
    with pytest.raises(LoadError, match=message):
        load_facts(traced(path))


@pytest.mark.parametrize(("rate", "to"), [(10.0, 40.0), (40.0, 10.0), (10.0, 10.0)])
def test_a_ramp_has_the_one_rate_before_the_other_after_and_their_mean_within(rate, to):
    due = ramped(arrivals(rate, "constant", 0), rate, to, begin_s=2.0, within_s=8.0)
    times_s = [due_ns / 1e9 for due_ns in itertools.takewhile(lambda due_ns: due_ns <= 13_000_000_001, due)]
    assert times_s == sorted(times_s)

    def between(begin_s, end_s):
        return sum(begin_s + 1e-6 < each <= end_s + 1e-6 for each in times_s)

    assert between(0, 2) == 2 * rate
    assert between(2, 10) == 8 * (rate + to) / 2
    assert between(10, 13) == 3 * to
    assert between(2, 6) == pytest.approx(4 * (rate + (to - rate) / 4), abs=1), "its rate changes evenly"
