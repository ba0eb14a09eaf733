"""Sessions: each turn a delay after the answer before it, with what was said; a failed one ends its session."""

import asyncio
import itertools
import json
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.client_result import _figures
from harness.analysis.read import read_requests
from harness.replica.engine import workload
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.results import requests
from harness.results.requests import NS_PER_S, Window
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import body_of
from harness.traffic.questions import questions
from harness.traffic.records import ABANDONED, CANCELLED, NONE, NOT_SENT, OK, UNANSWERED
from tests.support.fake_streaming_server import Server
from tests.unit.traffic.engines import HOST, chat, engine

SAMPLES = Path(__file__).parent / "samples"
DELAY_S = 0.03
FIRST_S, GAP_S = 0.01, 0.005
LENGTHS = {"input_tokens": {"mean": 4}, "output_tokens": {"mean": 3}}
LATE_NS = 15_000_000
"""Half of the delay: a busy machine is late, and still no turn is sent as if there were none."""


class Book(ServerLedger):
    """Stops the load after so many requests."""

    def __init__(self, folder, stopping, number):
        super().__init__(Families(streams=True), RequestMetrics(), folder, sessions=True)
        self.rows, self._stopping, self._number = [], stopping, number

    def book(self, exchange):
        super().book(exchange)
        self.rows.append(exchange)
        if len(self.rows) >= self._number:
            self._stopping.set()


def rows_of(folder, settings, server, number):
    """The request table of a load that has asked a server until it had booked so many requests."""
    place = folder / "replicas" / "replica-0"
    place.mkdir(parents=True)
    stopping = threading.Event()
    book = Book(place, stopping, number)

    async def run():
        async with await server.serve() as listening:
            client = HttpClient(settings, listening.sockets[0].getsockname()[1], HOST)
            await ServerLoad(settings, client, questions(settings, 0), book, seed=1, alive=lambda: None).ask_until(
                stopping
            )

    asyncio.run(run())
    book.close()
    return requests.read(folder).rows


def sessions_of(rows):
    """The rows of each session, by turn."""
    ordered = np.sort(rows, order=["session", "turn"])
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda row: row["session"])]


@pytest.mark.parametrize("load", [{"rate": 40.0}, {"rate": 40.0, "max_in_flight": 2}, {"concurrency": 3}])
def test_a_turn_is_due_a_delay_after_the_answer_before_it(tmp_path, load):
    settings = chat(requests={**LENGTHS, "sessions": {"turns": 4, "delay_s": DELAY_S}}, **load)
    server = Server(first_s=FIRST_S, gap_s=GAP_S)
    rows = rows_of(tmp_path, settings, server, 40)
    assert set(rows["status"]) == {OK}
    whole = [session for session in sessions_of(rows) if len(session) == 4]
    assert len(whole) >= 5
    for session in whole:
        assert [row["turn"] for row in session] == [1, 2, 3, 4]
        for before, turn in itertools.pairwise(session):
            assert turn["intended_ns"] - before["end_ns"] == DELAY_S * NS_PER_S, "whatever was late before"
            assert turn["sent_ns"] >= turn["intended_ns"]
    late_ns = np.array([row["sent_ns"] - row["intended_ns"] for session in whole for row in session[1:]])
    if "max_in_flight" not in load:
        assert np.median(late_ns) < LATE_NS
    lengths = {len(body["messages"]) for body in server.asked}
    assert lengths == {1, 3, 5, 7}, "with all that was said before"
    if "concurrency" in load:
        begun = np.sort([session[0]["intended_ns"] for session in sessions_of(rows)])
        ended = np.sort([session[-1]["end_ns"] for session in whole])
        assert all(later >= earlier for later, earlier in zip(begun[3:], ended, strict=False)), "three at once"


def test_the_rate_is_that_of_the_starts_of_sessions(tmp_path):
    settings = chat(requests={**LENGTHS, "sessions": {"turns": 3}}, rate=50.0, arrivals="constant")
    rows = rows_of(tmp_path, settings, Server(), 60)
    starts_ns = np.sort(rows["intended_ns"][rows["turn"] == 1])
    assert set(np.round(np.diff(starts_ns) / 1e6)) == {20}


def test_a_session_whose_answer_never_comes_ends_by_the_request_timeout(tmp_path):
    settings = chat(
        requests={**LENGTHS, "sessions": {"turns": 3, "delay_s": 0.01}}, request_timeout_s=0.1, concurrency=1
    )
    rows = rows_of(tmp_path, settings, Server(fault="mute"), 6)
    for session in sessions_of(rows)[:2]:
        assert [(row["turn"], row["status"]) for row in session] == [(1, UNANSWERED), (2, NOT_SENT), (3, NOT_SENT)]
        assert {row["sent_ns"] for row in session[1:]} == {NONE}
        assert {row["intended_ns"] for row in session[1:]} == {session[0]["end_ns"]}
    window = Window(rows["end_ns"].min() / NS_PER_S - 1, rows["end_ns"].max() / NS_PER_S + 1)
    figures = _figures(read_requests(requests.read(tmp_path), tmp_path, window))
    assert figures["not_sent"] == 2 * figures["failed"][str(UNANSWERED)] >= 4
    assert figures["failed"].keys() == {str(UNANSWERED)}


def test_some_requests_are_cancelled_and_are_neither_successes_nor_failures(tmp_path):
    settings = chat(requests={**LENGTHS, "cancel": {"percent": 50, "after_s": 0.03}}, concurrency=2)
    server = Server(first_s=0.01, gap_s=0.05)
    rows = rows_of(tmp_path, settings, server, 30)
    counts = {status: int((rows["status"] == status).sum()) for status in set(rows["status"])}
    assert counts.keys() == {OK, CANCELLED}
    assert counts[CANCELLED] >= 5
    assert server.connections > counts[CANCELLED], "each closes its connection"
    cancelled = rows[rows["status"] == CANCELLED]
    assert ((cancelled["end_ns"] - cancelled["intended_ns"]) >= 0.029 * NS_PER_S).all()
    window = Window(rows["end_ns"].min() / NS_PER_S - 1, rows["end_ns"].max() / NS_PER_S + 1)
    read = read_requests(requests.read(tmp_path), tmp_path, window)
    figures = _figures(read)
    assert (figures["cancelled"], figures["requests"], figures["failed"]) == (counts[CANCELLED], counts[OK], {})
    assert len(read.every) == counts[OK], "no objective is held against them"
    assert set(read.gaps["status"]) == {OK}


def test_turns_that_are_not_due_when_the_load_ends_are_not_booked(tmp_path, monkeypatch):
    monkeypatch.setattr(workload, "FOLLOW_S", 0.05)
    settings = chat(requests={**LENGTHS, "sessions": {"turns": 2, "delay_s": 3600}}, concurrency=2)
    rows = rows_of(tmp_path, settings, Server(), 2)
    assert [(row["turn"], row["status"]) for row in rows] == [(1, OK), (1, OK)]


def told(server, question):
    return json.loads(body_of(server, question))


def test_conversations_of_a_file_are_asked_with_what_was_said_before():
    server = chat(requests={"file": str(SAMPLES / "sharegpt.json"), "sessions": {"turns": 5, "delay_s": 2}})
    first = next(question for question in questions(server, 1) if question.goes_on)
    second = next(first.following)
    assert told(server, first)["messages"] == [{"role": "user", "content": "one"}]
    assert [message["content"] for message in told(server, second)["messages"]] == ["one", "first", "two"]
    assert (second.session, second.turn, second.turns, second.delay_s) == (first.session, 2, 2, 2)
    assert not second.goes_on


def test_aiperfs_sessions_keep_their_system_turn_and_delays():
    server = chat(requests={"file": str(SAMPLES / "aiperf_multi_turn.jsonl"), "output_tokens": {"mean": 3}})
    first = next(question for question in questions(server, 1) if question.goes_on)
    second = next(first.following)
    messages = told(server, second)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert len(messages[2]["content"].split()) == 5, "as long as it was asked for, where no answer is recorded"
    assert (first.output_tokens, second.delay_s) == (5, 1.5)


def test_the_texts_of_turns_do_not_depend_on_when_they_are_made():
    server = chat(requests={**LENGTHS, "sessions": {"turns": 3}})
    one, two = (list(itertools.islice(questions(server, 1), 3)) for _ in range(2))
    in_order = [[told(server, turn) for turn in first.following] for first in one]
    backwards = [[told(server, turn) for turn in first.following] for first in reversed(two)]
    assert in_order == backwards[::-1]


def test_a_trace_with_sessions_is_as_much_faster_as_it_is_asked_for():
    trace = {"file": str(SAMPLES / "aiperf_sessions.jsonl"), "factor": 4}
    first = next(questions(chat(requests={}, trace=trace), 1))
    assert (first.turns, next(first.following).delay_s) == (2, 0.5)


def test_what_was_logged_without_turns_is_still_read(tmp_path):
    place = tmp_path / "replicas" / "replica-0"
    place.mkdir(parents=True)
    (place / "requests.bin").write_bytes(struct.pack("<8q", 5, 0, 10, NONE, NONE, 7, 1, ABANDONED))
    row = requests.read(tmp_path).rows[0]
    assert (row["session"], row["turn"], row["status"]) == (NONE, NONE, ABANDONED)


def test_a_protocol_without_system_messages_has_them_in_the_text():
    requests = {"file": str(SAMPLES / "aiperf_multi_turn.jsonl"), "output_tokens": {"mean": 3}}
    server = engine(protocol="anthropic", model="m", requests=requests)
    first = next(question for question in questions(server, 1) if question.goes_on)
    messages = told(server, next(first.following))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"] == "Be brief.\nWhat is it?"


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"rate": 2}, "poisson arrivals, 2 sessions per second of up to 3 turns"),
        ({"concurrency": 1}, "1 session in flight of up to 3 turns"),
    ],
)
def test_the_load_is_one_of_sessions(load, words):
    assert chat(requests={**LENGTHS, "sessions": {"turns": 3}}, **load).load_in_words() == words
