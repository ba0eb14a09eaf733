"""Traces and ramps: when requests are meant to be sent, and how long they are."""

import itertools
import json

import pytest

from harness.errors import LoadError
from harness.traffic import arrivals as times
from harness.traffic.arrivals import arrivals, ramped
from harness.traffic.questions import questions
from tests.unit.traffic.engines import engine

LENGTHS = {"input_tokens": {"mean": 4}, "output_tokens": {"mean": 3}}
MS = 1_000_000


def line(timestamp, asked=3, answered=2, **more):
    return json.dumps({"timestamp": timestamp, "input_length": asked, "output_length": answered, **more})


def written(path, *lines):
    path.write_text("\n".join(lines))
    return path


def test_a_trace_is_asked_at_its_times_with_its_lengths_and_then_again(tmp_path):
    lines = line(500, 3, 2, hash_ids=[0, 1]), line(500, 1, 9), "", line(1500.5, 4, 1)
    path = written(tmp_path / "trace.jsonl", *lines)
    read = times.read_trace(path, 2.0)
    assert [each.at_ms for each in read] == [0, 0, 500.25]
    mean_ms = 500.25 / 2
    assert list(itertools.islice(times.of_trace(read), 6)) == [
        round(ms * MS) for ms in (0, 0, 500.25, 500.25 + mean_ms, 500.25 + mean_ms, 1000.5 + mean_ms)
    ]
    settings = engine(protocol="openai-chat", requests={}, trace={"file": str(path), "factor": 2.0})
    asked = list(itertools.islice(questions(settings, 7), 4))
    assert [(len(each.prompt.split()), each.output_tokens) for each in asked] == [(3, 2), (1, 9), (4, 1), (3, 2)]
    assert asked == list(itertools.islice(questions(settings, 7), 4)), "the seed repeats the words"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "needs requests at two times or more, and has 0"),
        ([line(1)], "has 1 in all"),
        ([line(1), line(1)], "has 2 in all"),
        ([line(0), "timestamp,input_length"], r"trace\.jsonl:2: a line of a trace is a JSON object with timestamp, "),
        (["[1, 2, 3]"], "is a JSON object"),
        (['{"timestamp": 1, "input_length": 3}'], "is a JSON object with timestamp, input_length, output_length"),
        ([line(float("nan"))], r"`timestamp` is in milliseconds from 0 to 1e\+15, not nan"),
        ([line(float("inf"))], "not inf"),
        ([line(-1)], "not -1"),
        ([line(10**400)], "not 1000"),
        ([line("1")], "not '1'"),
        ([line(0), line(2), line(1)], r"trace\.jsonl:3: it came before the line above it"),
        ([line(0, 10**9)], "lengths are whole tokens from 1 to 1000000, not"),
        ([line(0, 1, 10**9)], "lengths are whole tokens"),
        ([line(0, 0)], "lengths are whole tokens"),
        ([line(0, True)], "lengths are whole tokens"),
        ([line(0, 1.5)], "lengths are whole tokens"),
        ([line(0), line(0.001)], r"2 requests in 0\.001 ms at factor 1, more than 100000 a second"),
        (["\udcff"], "cannot be read"),
    ],
)
def test_a_trace_that_is_none_is_said_with_its_line(tmp_path, lines, message):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines), errors="surrogateescape")
    with pytest.raises(LoadError, match=message):
        times.read_trace(path, 1.0)


def test_a_trace_that_is_missing_is_said(tmp_path):
    with pytest.raises(LoadError, match="cannot be read"):
        times.read_trace(tmp_path / "none.jsonl", 1.0)


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
