"""Asking a server: against one of known behaviour in the same loop, and with hand-made outcomes."""

import asyncio
import base64
import itertools
import json
import socket
import struct
import threading
import time

import pytest

from harness.replica.engine import workload as workload_module
from harness.replica.engine.ledger import Families, ServerLedger, p99
from harness.replica.engine.workload import ServerLoad
from harness.replica.errors import LoadError, WorkloadError
from harness.replica.metrics import RequestMetrics
from harness.traffic import http_client
from harness.traffic import questions as asked
from harness.traffic.clients import HttpClient, request_headers, without_key
from harness.traffic.http_client import HttpConnection, StampedReader, StampedSocket
from harness.traffic.protocols import UNKNOWN, BadAnswerError, EventStream, Question, body_of
from harness.traffic.records import ABANDONED, BAD_ANSWER, BROKEN, CLIENT_FIELDS, OK, UNANSWERED, Exchange, RecordLog
from tests.support.fake_streaming_server import HANGS_AFTER, Server
from tests.unit.traffic.engines import HOST, chat, engine

QUESTION = Question(output_tokens=5, prompt="the sun")


def asked_of(server, settings, times=1, question=QUESTION):
    """The outcomes of requests one after another, in one loop with the server."""

    async def run():
        async with await server.serve() as listening:
            asker = HttpClient(settings, listening.sockets[0].getsockname()[1], HOST)
            found = [await asker.ask(question, Exchange(time.perf_counter_ns())) for _ in range(times)]
            await asker.close()
            await asyncio.sleep(0)
            return found

    return asyncio.run(run())


def test_a_prompt_has_the_tokens_that_the_server_counts_else_those_of_the_tokenizer():
    counted = Question(output_tokens=5, prompt="the sun", input_tokens=2)

    def input_tokens(**server):
        return asked_of(Server(**server), chat(), question=counted)[0].input_tokens

    assert (input_tokens(usage=True), input_tokens(usage=False)) == (7, 2)
    assert input_tokens(usage=False, fault="500") == UNKNOWN


def test_a_stream_is_read_token_by_token():
    server = Server()
    first, second = asked_of(server, chat(), times=2)
    assert (first.status, len(first.token_ns), first.input_tokens, first.output_tokens) == (OK, 5, 7, 5)
    assert len(first.gaps_ns) == 4
    assert 0 < first.ttft_ns <= first.latency_ns
    assert first.sent_ns >= first.intended_ns
    assert second.status == OK
    assert server.connections == 1, "the connection stays open"
    assert server.asked[0]["messages"] == [{"role": "user", "content": "the sun"}]
    assert (server.asked[0]["model"], server.asked[0]["max_tokens"]) == ("m", 5)


def test_times_are_those_of_the_server_and_never_less():
    (exchange,) = asked_of(Server(first_s=0.02, gap_s=0.01), chat())
    assert exchange.ttft_ns >= 0.02e9
    assert exchange.latency_ns >= (0.02 + 4 * 0.01) * 1e9


def test_a_token_has_the_time_at_which_it_arrived_however_late_it_is_read():
    async def read():
        reader = StampedReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\n\r\n" + b'data: {"choices": [{"text": "a"}]}\n\n' + b"data: [DONE]\n\n")
        reader.feed_eof()
        arrived_ns, exchange = time.perf_counter_ns(), Exchange(0)
        await HttpClient(engine(protocol="openai-completions"), 1, HOST)._read(HttpConnection(reader, None), exchange)
        return arrived_ns, exchange

    arrived_ns, exchange = asyncio.run(read())
    assert exchange.status == OK
    assert 0 < exchange.token_ns[0] <= arrived_ns


def test_pieces_count_where_the_server_counts_no_tokens():
    (exchange,) = asked_of(Server(), engine(protocol="openai-completions"))
    assert exchange.output_tokens == 5
    stream = EventStream()
    assert len(list(stream.feed(b'data: {"choices": [{"text": "a"}]}\n\nda'))) == 1
    assert len(list(stream.feed(b'ta: {"choices": [{"text": "b", "finish_reason": "stop"}]}\r\n\r\n'))) == 1
    assert (stream.end().output_tokens, stream.answer.input_tokens) == (2, UNKNOWN)


def test_without_a_stream_there_are_counts_and_no_times_of_tokens():
    (exchange,) = asked_of(Server(), chat(stream=False))
    assert (exchange.status, exchange.token_ns, exchange.ttft_ns, exchange.output_tokens) == (OK, [], UNKNOWN, 2)


def test_a_connection_that_the_server_closes_is_opened_again():
    server = Server(fault="close")
    assert [each.status for each in asked_of(server, engine(), times=3)] == [OK] * 3
    assert server.connections == 3


def test_what_is_read_has_the_time_at_which_the_system_had_it(monkeypatch):
    said = []
    monkeypatch.setattr(StampedSocket, "recvmsg", lambda *_: (b"a", said, 0, None), raising=False)
    begun_ns = time.perf_counter_ns()
    long_ns = begun_ns // 4  # of the time since the machine was started

    def read(ago_ns):
        stamp = divmod(time.time_ns() - ago_ns, 10**9)
        said[:] = [(socket.SOL_SOCKET, http_client._TIMESTAMPS, struct.pack("qq", *stamp))]
        assert asked.recv(1) == b"a"
        return asked.arrived_ns

    with StampedSocket(socket.AF_INET, socket.SOCK_STREAM, 0) as asked:
        early_ns = read(2 * long_ns)
        assert early_ns < begun_ns - long_ns, "and not when it was read"
        assert early_ns < read(long_ns) < begun_ns
        assert read(2 * long_ns) > early_ns, "not before what came before"
        assert begun_ns < read(-long_ns) <= time.perf_counter_ns(), "not after it was read"
        said.clear()
        before_ns = time.perf_counter_ns()
        asked.recv(1)
        assert before_ns <= asked.arrived_ns <= time.perf_counter_ns(), "the system says nothing"


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("500", 500, 'HTTP 500: {"error": "as told"}'),
        ("429", 429, "HTTP 429"),
        ("302", 302, "HTTP 302"),
        ("cut", BROKEN, "closed before the answer was whole"),
        ("garbage", BROKEN, "no HTTP"),
        ("in-stream", BAD_ANSWER, "the engine is gone"),
    ],
)
def test_what_goes_wrong_has_a_kind_and_words(fault, status, said):
    (exchange,) = asked_of(Server(fault=fault), chat())
    assert exchange.status == status
    assert said in exchange.said


def test_an_answer_that_is_late_or_none_has_failed():
    (exchange,) = asked_of(Server(fault="mute"), engine(request_timeout_s=0.01))
    assert (exchange.status, exchange.said) == (UNANSWERED, "no whole answer within 0.01 s")
    assert asked_of(Server(fault="not-json"), chat(stream=False))[0].status == BAD_ANSWER


def test_a_stream_that_stalls_has_failed_and_keeps_the_tokens_that_came():
    (exchange,) = asked_of(Server(gap_s=60), chat(request_timeout_s=0.5))
    assert (exchange.status, exchange.said) == (UNANSWERED, "no whole answer within 0.5 s")
    assert len(exchange.token_ns) == 1


def test_tokens_beyond_those_asked_for_are_timed_and_counted():
    server = Server(fault="too-long")
    (exchange,) = asked_of(server, chat())
    assert (exchange.status, exchange.output_tokens, len(exchange.gaps_ns)) == (OK, 15, 14)
    server = Server(fault="too-long", gap_s=60)
    assert asked_of(server, chat(request_timeout_s=0.5))[0].status == UNANSWERED


def test_the_success_condition_is_the_users():
    assert asked_of(Server(), engine(success={"status": 200, "contains": "label"}))[0].status == OK
    (exchange,) = asked_of(Server(), engine(success={"status": 200, "contains": "dog"}))
    assert (exchange.status, exchange.said) == (BAD_ANSWER, "the answer does not contain 'dog'")


def test_a_server_that_is_not_there_is_no_connection():
    async def ask():
        listening = await Server().serve()
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        return await HttpClient(engine(), port, HOST).ask(QUESTION, Exchange(time.perf_counter_ns()))

    assert asyncio.run(ask()).status == BROKEN


def test_bodies_are_filled_in():
    body = {"text": "say {prompt}", "n": "{output_tokens}", "more": [{"p": "{prompt}"}], "k": 1}
    assert json.loads(body_of(engine(body=body), QUESTION)) == {
        "text": "say the sun",
        "n": 5,
        "more": [{"p": "the sun"}],
        "k": 1,
    }
    assert body_of(engine(body="{prompt}!"), QUESTION) == b"the sun!"
    assert body_of(engine(), QUESTION) == b""
    assert json.loads(body_of(chat(), Question(1, body={"own": 2}))) == {"own": 2}
    assert json.loads(body_of(chat(extra_body={"ignore_eos": True}), QUESTION))["ignore_eos"]


@pytest.mark.parametrize("data", [b"data: nothing\n\n", b"data: [1]\n\n"])
def test_an_event_that_is_no_object_is_a_bad_answer(data):
    with pytest.raises(BadAnswerError, match="no JSON"):
        list(EventStream().feed(data))


@pytest.mark.parametrize("data", [b"", b'data: {"choices": [{"text": "a"}]}\n\n', b"data: [DONE]\n\n"])
def test_a_stream_that_is_cut_or_empty_is_a_bad_answer(data):
    stream = EventStream()
    list(stream.feed(data))
    with pytest.raises(BadAnswerError, match="the stream"):
        stream.end()


def test_the_ledger_keeps_every_time_and_counts_what_was_answered(tmp_path):
    families, metrics = Families(streams=True), RequestMetrics()
    log = RecordLog(tmp_path / "latencies.bin")
    ledger = ServerLedger(families, metrics, log, tmp_path)
    metrics.publish(*families.published)
    begin_ns = time.perf_counter_ns()
    token_ns = [begin_ns + 30, begin_ns + 35, begin_ns + 55]
    ledger.book(Exchange(begin_ns, begin_ns + 10, begin_ns + 60, OK, token_ns, input_tokens=4, output_tokens=3))
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
    assert abs(good[0] - time.time_ns()) < 3600e9, "since the epoch"
    gaps = list(struct.iter_unpack("<2q", (tmp_path / "gaps.bin").read_bytes()))
    assert [gap for _, gap in gaps] == [5, 20]
    assert gaps[1][0] - gaps[0][0] == 5
    assert list(struct.iter_unpack("<2q", (tmp_path / "latencies.bin").read_bytes())) == [(good[0], 60)]
    text = metrics.render().decode()
    assert "inference_requests_total 1\n" in text
    assert "inference_client_failed_requests_total 1\n" in text
    assert "inference_client_itl_seconds_count 2\n" in text
    assert "inference_client_output_tokens_total 3\n" in text
    assert (ledger.failures, ledger.first_failure) == ({"500": 1}, "HTTP 500")


def test_the_p99_of_few_is_the_largest():
    assert p99([]) == UNKNOWN
    assert p99([3, 9, 1]) == 9
    assert p99(list(range(1, 201))) == 198


@pytest.mark.parametrize(
    "load",
    [
        {"concurrency": 3},
        {"rate": 400.0, "arrivals": "constant"},
        {"rate": 400.0, "arrivals": "gamma", "burstiness": 0.3},
        {"rate": 400.0, "max_in_flight": 2},
    ],
)
def test_a_load_asks_until_it_is_stopped_and_counts_nothing_in_flight(tmp_path, load):
    server, stopping, depths = Server(), threading.Event(), []
    metrics = RequestMetrics()
    settings = engine(**load)
    ledger = ServerLedger(Families(streams=False), metrics, None, tmp_path)
    started, over = threading.Event(), threading.Event()

    def on_depth(depth):
        depths.append(depth)
        if metrics.requests >= 20:
            stopping.set()

    def serve(found):
        async def run():
            async with await server.serve() as listening:
                found.append(listening.sockets[0].getsockname()[1])
                started.set()
                await asyncio.to_thread(over.wait)

        asyncio.run(run())

    found = []
    thread = threading.Thread(target=serve, args=(found,))
    thread.start()
    assert started.wait(120)
    questions = asked.questions(settings, 0)
    asking = ServerLoad(
        settings, HttpClient(settings, found[0], HOST), questions, ledger, seed=1, on_depth=on_depth, alive=lambda: None
    )
    try:
        asking.run(stopping)
    finally:
        over.set()
        thread.join()
    asking.close()
    assert metrics.requests >= 20
    assert 1 <= max(depths) <= (load.get("concurrency") or settings.max_in_flight)
    assert asking.facts()["failures"] == {}


@pytest.mark.parametrize("load", [{"concurrency": 3}, {"rate": 1000.0, "arrivals": "constant", "max_in_flight": 2}])
def test_what_has_no_answer_at_the_end_is_booked_as_abandoned(tmp_path, monkeypatch, load):
    """Also what the hanging server left no room for."""
    monkeypatch.setattr(workload_module, "FOLLOW_S", 0.02)
    server, stopping, settings = Server(fault="hang"), threading.Event(), engine(**load)
    ledger = ServerLedger(Families(streams=False), RequestMetrics(), None, tmp_path)
    begun_ns = []

    async def run():
        async with await server.serve() as listening:
            port = listening.sockets[0].getsockname()[1]
            asking = ServerLoad(
                settings, HttpClient(settings, port, HOST), asked.questions(settings, 0), ledger,
                seed=1, on_depth=lambda _: None, alive=stop_once_it_hangs,
            )  # fmt: skip
            await asking.ask_until(stopping)
            return asking

    def stop_once_it_hangs():
        if len(server.asked) >= HANGS_AFTER + min(settings.concurrency or 2, 2):
            begun_ns.append(time.time_ns())
            if len(begun_ns) > 2:
                stopping.set()

    asking = asyncio.run(run())
    asking.close()
    records = [
        dict(zip(CLIENT_FIELDS, each, strict=True))
        for each in struct.iter_unpack("<8q", (tmp_path / "requests.bin").read_bytes())
    ]
    left = [each for each in records if each["status"] == ABANDONED]
    assert [each["status"] for each in records].count(OK) == HANGS_AFTER
    assert len(left) == asking.facts()["abandoned"] >= (settings.concurrency or 20)
    assert all(each["latency_ns"] >= 0 for each in left)
    assert ledger.failures == {}, "what would have become of it is not known"
    if settings.rate:
        intended_ns = sorted(each["intended_ns"] for each in left)
        steps_ms = {round((later - earlier) / 1e6) for earlier, later in itertools.pairwise(intended_ns)}
        assert steps_ms == {1}, "every arrival until the end is there, once"


@pytest.mark.parametrize("load", [{"concurrency": 2}, {"rate": 1000.0}])
def test_a_request_is_made_before_its_time_counts(tmp_path, load):
    """In the closed loop; at a rate, while the time of the next one has not come, and what was due before goes first."""
    stopping, events = threading.Event(), []

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

    settings = engine(**load)
    asking = ServerLoad(
        settings, Answers(settings, 1, HOST), made(), ServerLedger(Families(streams=False), RequestMetrics(), None, tmp_path),
        seed=1, on_depth=lambda _: None, alive=lambda: None,
    )  # fmt: skip
    asking.run(stopping)
    asking.close()
    whens = {(what, number): when_ns for what, number, when_ns in events}
    order = [(what, number) for what, number, _ in events]
    for number in range(49):
        if "concurrency" in load:
            assert whens["made", number] <= whens["sent", number]
        else:
            assert order.index(("sent", number)) < order.index(("made", number + 1))


def test_a_load_ends_with_its_server(tmp_path):
    def dead():
        raise WorkloadError("the server ended with 3")

    asking = ServerLoad(
        engine(), HttpClient(engine(), 1, HOST), asked.questions(engine(), 0), ServerLedger(Families(streams=False), RequestMetrics(), None, tmp_path),
        seed=1, on_depth=lambda _: None, alive=dead,
    )  # fmt: skip
    with pytest.raises(WorkloadError, match="ended with 3"):
        asking.run(threading.Event())
    asking.close()


@pytest.mark.parametrize("settings", [engine, chat], ids=["whole", "stream"])
def test_a_key_that_the_server_repeats_is_not_kept(monkeypatch, settings):
    monkeypatch.setenv("MY_KEY", "s3cr3t" * 50)  # longer than what is kept of an answer
    (exchange,) = asked_of(Server(fault="401"), settings(api_key_env="MY_KEY", api_key_header="X-Api-Key"))
    assert exchange.status == 401
    assert "s3cr3t" not in exchange.said
    assert "X-Api-Key: (key)" in exchange.said


def test_the_key_is_read_from_the_environment_alone(monkeypatch):
    settings = engine(api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(LoadError, match="MY_KEY"):
        request_headers(settings)
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    server = Server()
    asked_of(server, settings)
    assert "Authorization: Bearer s3cr3t\r\n" in server.heads[0]
    assert "s3cr3t" not in repr(settings)


@pytest.mark.parametrize("before", ["", "a", "ab", "Bearer ", "Authorization: Bearer "])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_key_that_a_server_repeats_is_not_kept_in_base64_either(before, encode):
    key = "sk-proj-4f?>9c2e8b7a61d5"
    echoed = f"I was sent {encode(f'{before}{key}, was I'.encode()).decode()} and {key}"
    kept = without_key(echoed, key)
    assert (kept.count("(key)"), key in kept) == (2, False)
    assert (
        len(kept) <= len(echoed) - len(key) * 7 // 3 + 2 * len("(key)") + 4
    )  # a letter or two on either side may stay
    assert without_key(echoed, "") == echoed
