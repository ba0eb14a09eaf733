"""The load of a server: asked in a closed loop or at times of its own, and every request booked."""

import asyncio
import itertools
import struct
import threading
import time

import pytest

from harness.replica.engine import workload
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad, p99
from harness.replica.errors import WorkloadError
from harness.replica.metrics import RequestMetrics
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import UNKNOWN, Question
from harness.traffic.questions import questions
from harness.traffic.records import (
    ABANDONED,
    ANSWER_FIELDS,
    CLIENT_FIELDS,
    OK,
    UNANSWERED,
    Exchange,
    RecordLog,
    TokenSource,
)
from tests.support.fake_streaming_server import HANGS_AFTER, Server
from tests.unit.traffic.engines import HOST, engine


def test_the_ledger_keeps_every_time_and_counts_what_was_answered(tmp_path):
    log = RecordLog(tmp_path / "latencies.bin")
    families, metrics = Families(streams=True), RequestMetrics(log=log)
    ledger = ServerLedger(families, metrics, tmp_path)
    metrics.publish(*families.published)
    begin_ns = time.perf_counter_ns()
    token_ns = [begin_ns + 30, begin_ns + 35, begin_ns + 55]
    ledger.book(
        Exchange(
            begin_ns,
            begin_ns + 10,
            begin_ns + 60,
            OK,
            token_ns,
            input_tokens=4,
            output_tokens=3,
            repeated=1,
            answer_ns=begin_ns + 35,
            source=TokenSource.USAGE,
            asked_tokens=2,
        )
    )
    ledger.book(Exchange(begin_ns, begin_ns, begin_ns + 90, 500, said="HTTP 500"))
    ledger.close()
    log.close()

    width = len(CLIENT_FIELDS)
    good, bad = struct.iter_unpack(f"<{width}q", (tmp_path / "requests.bin").read_bytes())
    assert dict(zip(CLIENT_FIELDS, good, strict=True)) | {"intended_ns": 0} == {
        "intended_ns": 0, "send_error_ns": 10, "latency_ns": 60, "ttft_ns": 30, "itl_p99_ns": 20,
        "input_tokens": 4, "output_tokens": 3, "status": 200,
    }  # fmt: skip
    assert bad[1:] == (0, 90, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 500)
    answers = list(struct.iter_unpack(f"<{len(ANSWER_FIELDS)}q", (tmp_path / "answers.bin").read_bytes()))
    assert answers == [(35, 3, TokenSource.USAGE, 2), (UNKNOWN,) * 4]
    assert abs(good[0] - time.time_ns()) < 3600e9, "since the epoch"
    gaps = list(struct.iter_unpack("<2q", (tmp_path / "gaps.bin").read_bytes()))
    assert [gap for _, gap in gaps] == [5, 20]
    assert gaps[1][0] - gaps[0][0] == 5
    assert list(struct.iter_unpack("<2q", (tmp_path / "latencies.bin").read_bytes())) == [(good[0], 60)]
    text = metrics.render()
    assert "inference_requests_total 1\n" in text
    assert "inference_client_failed_requests_total 1\n" in text
    assert "inference_client_itl_seconds_count 2\n" in text
    assert "inference_client_output_tokens_total 3\n" in text
    assert (ledger.failures, ledger.first_failure, ledger.repeated) == ({"500": 1}, "HTTP 500", 1)


def test_the_p99_of_few_is_the_largest():
    assert p99([]) == UNKNOWN
    assert p99([3, 9, 1]) == 9
    assert p99(list(range(1, 201))) == 198


def load_of(settings, ledger, *, client=None, asks=None, alive=lambda: None, empty_s=0.0):
    client = client or HttpClient(settings, 1, HOST)
    return ServerLoad(settings, client, asks or questions(settings, 0), ledger, seed=1, alive=alive, empty_s=empty_s)


@pytest.fixture
def ledger(tmp_path):
    return ServerLedger(Families(streams=False), RequestMetrics(), tmp_path)


def asked_until(stopping, server, settings, ledger, alive=lambda: None, **more):
    """A load that has asked a server in the same loop until it was stopped."""

    async def run():
        async with await server.serve() as listening:
            client = HttpClient(settings, listening.sockets[0].getsockname()[1], HOST)
            load = load_of(settings, ledger, client=client, alive=alive, **more)
            await load.ask_until(stopping)
            return load

    load = asyncio.run(run())
    load.close()
    return load


@pytest.mark.parametrize(
    "load",
    [
        {"concurrency": 3},
        {"rate": 400.0, "arrivals": "constant"},
        {"rate": 400.0, "arrivals": "gamma", "burstiness": 0.3},
        {"rate": 400.0, "max_in_flight": 2},
    ],
)
def test_a_load_asks_until_it_is_stopped_and_counts_nothing_in_flight(ledger, load):
    stopping, depths, settings = threading.Event(), [], engine(**load)

    def on_depth(depth):
        depths.append(depth)
        if len(depths) >= 60:
            stopping.set()

    ledger.on_depth = on_depth
    over = asked_until(stopping, Server(), settings, ledger)
    assert 1 <= max(depths) <= (load.get("concurrency") or settings.max_in_flight)
    assert over.facts()["failures"] == {}
    assert (over.in_flight, depths[-1]) == (0, 0)


@pytest.mark.parametrize("load", [{"concurrency": 3}, {"rate": 1000.0, "arrivals": "constant", "max_in_flight": 2}])
def test_what_has_no_answer_at_the_end_is_booked_as_abandoned(tmp_path, ledger, monkeypatch, load):
    """Also what the hanging server left no room for."""
    monkeypatch.setattr(workload, "FOLLOW_S", 0.02)
    server, stopping, settings = Server(fault="hang"), threading.Event(), engine(**load)
    hanging_s = []

    def stop_once_it_hangs():
        if len(server.asked) >= HANGS_AFTER + min(settings.concurrency or 2, 2):
            hanging_s.append(time.time())
            if len(hanging_s) > 2:
                stopping.set()

    over = asked_until(stopping, server, settings, ledger, stop_once_it_hangs)
    records = [
        dict(zip(CLIENT_FIELDS, values, strict=True))
        for values in struct.iter_unpack("<8q", (tmp_path / "requests.bin").read_bytes())
    ]
    left = [record for record in records if record["status"] == ABANDONED]
    assert [record["status"] for record in records].count(OK) == HANGS_AFTER
    assert len(left) == over.facts()["abandoned"] >= (settings.concurrency or 20)
    assert all(record["latency_ns"] >= 0 for record in left)
    assert ledger.failures == {}, "what would have become of it is not known"
    if settings.rate:
        intended_ns = sorted(record["intended_ns"] for record in left)
        steps_ms = {round((later - earlier) / 1e6) for earlier, later in itertools.pairwise(intended_ns)}
        assert steps_ms == {1}, "every arrival until the end is there, once"


@pytest.mark.parametrize("load", [{"concurrency": 3}, {"rate": 200.0, "arrivals": "constant"}])
def test_a_load_that_others_follow_ends_when_the_server_has_answered_all_of_it(tmp_path, ledger, load):
    server, stopping = Server(first_s=0.1), threading.Event()

    def stop_in_the_middle():
        if len(server.asked) > 20:
            stopping.set()

    over = asked_until(stopping, server, engine(**load), ledger, stop_in_the_middle, empty_s=30.0)

    assert over.facts()["idle"]
    assert over.facts()["abandoned"] == 0
    statuses = [values[-1] for values in struct.iter_unpack("<8q", (tmp_path / "requests.bin").read_bytes())]
    assert statuses == [OK] * len(server.asked), "nothing is asked that is not waited for"


@pytest.mark.parametrize("hurried", [True, False])
def test_a_load_says_that_a_server_still_has_some_of_it_to_do(ledger, monkeypatch, hurried):
    """It is not waited for where the replica ends."""
    monkeypatch.setattr(workload, "FOLLOW_S", 0.02)
    server, stopping, settings = Server(fault="mute"), threading.Event(), engine(concurrency=2)

    def stop_once_asked():
        if len(server.asked) == 2:
            stopping.set()

    async def run():
        async with await server.serve() as listening:
            client = HttpClient(settings, listening.sockets[0].getsockname()[1], HOST)
            load = load_of(settings, ledger, client=client, alive=stop_once_asked, empty_s=3600.0 if hurried else 0.05)
            if hurried:
                load.hurry()
            await load.ask_until(stopping)
            return load

    load = asyncio.run(run())
    load.close()
    assert (load.facts()["idle"], load.facts()["abandoned"]) == (False, 2)


def test_a_server_may_still_have_to_do_what_was_given_up_before_the_end(ledger):
    stopping, statuses, settings = threading.Event(), [UNANSWERED, OK], engine(concurrency=1)

    class Answers(HttpClient):
        async def ask(self, question, exchange):  # noqa: ARG002 - as of the client
            exchange.status, exchange.end_ns = statuses.pop(0) if statuses else OK, time.perf_counter_ns()
            if not statuses:
                stopping.set()
            await asyncio.sleep(0.001)
            return exchange

    load = load_of(settings, ledger, client=Answers(settings, 1, HOST), empty_s=30.0)
    load.run(stopping)
    assert (load.facts()["idle"], load.facts()["abandoned"]) == (False, 0)


@pytest.mark.parametrize("load", [{"concurrency": 2}, {"rate": 1000.0}])
def test_a_request_is_made_before_its_time_counts(ledger, load):
    """In the closed loop; at a rate, while the time of the next one has not come, and what was due before goes first."""
    stopping, events, settings = threading.Event(), [], engine(**load)

    def made():
        for number in range(50):
            events.append(("made", number, time.perf_counter_ns()))
            yield Question(output_tokens=number)
        stopping.set()
        yield from itertools.repeat(Question(output_tokens=50))

    class Answers(HttpClient):
        async def ask(self, question, exchange):
            events.append(("sent", question.output_tokens, exchange.intended_ns))
            exchange.status, exchange.end_ns = OK, time.perf_counter_ns()
            await asyncio.sleep(0.001)
            return exchange

    load_of(settings, ledger, client=Answers(settings, 1, HOST), asks=made()).run(stopping)
    whens = {(what, number): when_ns for what, number, when_ns in events}
    order = [(what, number) for what, number, _ in events]
    for number in range(49):
        if "concurrency" in load:
            assert whens["made", number] <= whens["sent", number]
        else:
            assert order.index(("sent", number)) < order.index(("made", number + 1))


def no_server():
    raise WorkloadError("the server ended with 3")


def no_more():
    yield Question(output_tokens=1)
    raise WorkloadError("the file has ended")


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"rate": 1000.0}])
@pytest.mark.parametrize(
    ("how", "said"),
    [({"alive": no_server}, "ended with 3"), ({"asks": no_more()}, "the file has ended")],
    ids=["server", "questions"],
)
def test_a_load_ends_with_its_server_and_with_what_it_asks(ledger, load, how, said):
    how = {**how, **({"asks": no_more()} if "asks" in how else {})}
    with pytest.raises(WorkloadError, match=said):
        load_of(engine(**load, request_timeout_s=0.5), ledger, **how).run(threading.Event())


def test_a_log_that_cannot_be_written_ends_the_load(ledger):
    def full(_exchange):
        raise OSError(28, "No space left on device")

    ledger.book = full
    with pytest.raises(OSError, match="No space left"):
        load_of(engine(concurrency=2), ledger).run(threading.Event())
