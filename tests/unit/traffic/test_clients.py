"""Asking a server: against one of known behaviour in the same loop, and with hand-made outcomes."""

import asyncio
import base64
import json
import socket
import struct
import time

import pytest

from harness.replica.errors import LoadError
from harness.traffic import http_client
from harness.traffic.clients import HttpClient, request_headers, without_key
from harness.traffic.framing import Event, Received
from harness.traffic.http_answer import AnswerHead
from harness.traffic.http_client import StampedSocket
from harness.traffic.protocols import UNKNOWN, BadAnswerError, EventStream, Question, body_of
from harness.traffic.records import BAD_ANSWER, BROKEN, OK, UNANSWERED, Exchange, TokenSource
from tests.support.fake_streaming_server import Server
from tests.support.raw_server import RawServer, whole
from tests.unit.traffic.engines import HOST, chat, engine

RECEIVED = Received(AnswerHead(200, {}), "events")
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


def be_busy():
    """When there is time to read again."""
    time.sleep(0.2)
    return time.perf_counter_ns()


def test_a_token_has_the_time_at_which_it_arrived_however_late_it_is_read():
    async def read(server):
        asker = HttpClient(engine(protocol="openai-completions"), server.port, HOST)
        asking = asyncio.ensure_future(asker.ask(QUESTION, Exchange(time.perf_counter_ns())))
        await asyncio.to_thread(server.asked.wait)
        read_ns = be_busy()
        exchange = await asking
        await asker.close()
        return read_ns, exchange

    with RawServer(whole(b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n')) as server:
        read_ns, exchange = asyncio.run(read(server))
    assert exchange.status == OK
    assert exchange.sent_ns < exchange.token_ns[0] == exchange.end_ns < read_ns - 0.1e9


def test_pieces_count_where_the_server_counts_no_tokens():
    (exchange,) = asked_of(Server(), engine(protocol="openai-completions"))
    assert exchange.output_tokens == 5
    stream = EventStream(chat())
    assert stream.take(Event(b'{"choices": [{"text": "a"}]}', 1))
    assert stream.take(Event(b'{"choices": [{"text": "b", "finish_reason": "stop"}]}', 2))
    assert stream.end(RECEIVED) == (UNKNOWN, 2, TokenSource.PIECES, 2)


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
        ("garbage", BROKEN, "not HTTP"),
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


@pytest.mark.parametrize("prompt", ['say "hi"\n\\', "\u00fc"])
def test_a_body_given_as_text_is_escaped_where_it_is_json(prompt):
    def body(template):
        return body_of(engine(body=template), Question(output_tokens=5, prompt=prompt))

    sent = json.loads(body('{"text": "-> {prompt}", "n": {output_tokens}}'))
    assert sent == {"text": f"-> {prompt}", "n": 5}
    assert json.loads(body(' ["{prompt}"]')) == [prompt]
    for plain in ("{prompt}", "<p>{prompt}</p>", "a={prompt}&b={output_tokens}"):
        assert body(plain).decode() == plain.replace("{prompt}", prompt).replace("{output_tokens}", "5")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"nothing", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"", "the stream"),
        (b'{"choices": [{"text": "a"}]}', "the stream"),
        (b"[DONE]", "the stream"),
    ],
)
def test_a_stream_of_no_objects_or_one_that_is_cut_or_empty_is_a_bad_answer(data, message):
    stream = EventStream(chat())
    with pytest.raises(BadAnswerError, match=message):
        (stream.take(Event(data, 1)), stream.end(RECEIVED))


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


def test_a_key_is_not_kept_of_an_answer_that_is_quoted_in_part(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cr3t" * 50)
    answer = whole(b'{"candidates": "' + b"s3cr3t" * 50 + b'"}', "Content-Type: application/json")

    async def ask(port):
        client = HttpClient(chat(api_key_env="MY_KEY"), port, HOST)
        try:
            return await client.ask(QUESTION, Exchange(time.perf_counter_ns()))
        finally:
            await client.close()

    with RawServer(answer) as server:
        exchange = asyncio.run(ask(server.port))
    assert "Gemini's own" in exchange.said
    assert "s3cr" not in exchange.said


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
