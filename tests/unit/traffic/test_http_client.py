"""The client against a server that sends exactly these bytes: what is asked, what is kept, what is asked once more, what is named."""

import asyncio
import gzip
import json
import time

import pytest

from harness.traffic import http_client
from harness.traffic.clients import HttpClient
from harness.traffic.http_client import StampedSocket, head_of
from harness.traffic.protocols import Question
from harness.traffic.records import BAD_ANSWER, BROKEN, OK, Exchange
from tests.support.certificates import vouched_for
from tests.support.raw_server import CLOSE, RESET, RawServer, chunked, whole
from tests.unit.traffic.engines import HOST, chat, engine

QUESTION = Question(output_tokens=5, prompt='say "hi"\n')


def events(*texts, end="\n"):
    """Of a chat, with the end that the protocol has."""
    data = [json.dumps({"choices": [{"delta": {"content": text}}]}) for text in texts] + ["[DONE]"]
    return [f"data: {text}{end}{end}".encode() for text in data]


def outcomes(port, settings, times=1, *, tls=False, after=None, seen=True):
    """Of requests one after another; ``after``: what is waited for between two, and ``seen`` by the client's event loop."""

    async def ask():
        client = HttpClient(settings, port, HOST, tls=tls)
        exchanges = []
        for number in range(times):
            if number and after:
                after.wait()
                for _ in range(5 if seen else 0):
                    await asyncio.sleep(0)
            exchanges.append(await client.ask(QUESTION, Exchange(time.perf_counter_ns())))
        await client.close()
        return exchanges

    return asyncio.run(ask())


def outcome(answer, settings=None, tls=None):
    with RawServer(answer, tls=tls) as server:
        return outcomes(server.port, settings or chat(), tls=tls is not None)[0]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_have_the_times_at_which_their_ends_arrived(end):
    exchange = outcome(chunked(*events("a", "b", "c", end=end)))
    assert (exchange.status, exchange.output_tokens, len(exchange.token_ns)) == (OK, 3, 3)
    assert all(gap_ns > RawServer.PIECE_S * 1e9 / 2 for gap_ns in exchange.gaps_ns)
    assert exchange.sent_ns <= exchange.token_ns[0] <= exchange.token_ns[-1] <= exchange.end_ns


def test_the_end_is_that_of_the_last_event_and_not_of_the_connection():
    answer = chunked(*events("a"))
    with RawServer([*answer[:-1], *[b"1\r\n:\r\n"] * 40, answer[-1]]) as server:
        (exchange,) = outcomes(server.port, chat())
    assert exchange.status == OK
    assert exchange.end_ns - exchange.token_ns[-1] < 20 * RawServer.PIECE_S * 1e9


@pytest.mark.parametrize(
    "answer",
    [
        chunked(b"\xef\xbb\xbf" + b"".join(events("a", "b"))),
        chunked(*(bytes([byte]) for byte in b"".join(events("\u00fc", "b")))),
        chunked(b": ping\n\n", *events("a", "b")),
        chunked(b'event: message\ndata: {"choices":\ndata: [{"delta": {"content": "a"}}]}\n\n', *events("b")),
        chunked(b"".join(events("a", "b")), kind="text/plain"),
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", *chunked(*events("a", "b"))],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + b"".join(chunked(*events("a", "b")))],
        whole(gzip.compress(b"".join(events("a", "b"))), "Content-Encoding: gzip", "Content-Type: text/event-stream"),
        [b"HTTP/1.1 200 OK\r\n\r\n", *events("a", "b"), CLOSE],
        whole(b"".join(events("a", "b")), f"X-Long: {'x' * 70_000}"),
    ],
    ids=["bom", "bytewise", "comment", "lines", "plain", "103", "100", "gzip", "closed", "70kB"],
)
def test_what_the_standards_allow_is_read(answer, monkeypatch):
    monkeypatch.setattr(RawServer, "PIECE_S", 0.0)
    exchange = outcome(answer)
    assert (exchange.said, exchange.status, exchange.output_tokens) == ("", OK, 2)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (whole(b"", "Location: /v1/", status="307 Temporary Redirect"), 307, "it leads to /v1/"),
        (whole(b"slow down", "Retry-After: 30", status="429 No"), 429, "rate limited (Retry-After: 30): slow down"),
        ([b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18), CLOSE], BAD_ANSWER, "HTTP/2"),
        ([b"\x15\x03\x01\x00\x02\x02\x0a", CLOSE], BAD_ANSWER, "https://"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, BAD_ANSWER, "headers are longer than 256 KiB"),
        (whole(b"\x0b\x02\x80", "Content-Encoding: br"), BAD_ANSWER, "compressed with br"),
        (chunked(*events("a")[:1], b"data: [DO"), BAD_ANSWER, "before its last event was complete: b'data: [DO'"),
        ([CLOSE], BROKEN, "closed the connection before it answered"),
        ([*chunked(*events("a")[:1], end=False), CLOSE], BROKEN, "before the answer was whole"),
    ],
)  # fmt: skip
def test_what_is_no_good_answer_is_named_and_asked_no_more(answer, status, words):
    with RawServer(answer) as server:
        (exchange,) = outcomes(server.port, chat(request_timeout_s=30))
    assert exchange.status == status
    assert words in exchange.said
    assert (len(server.heads), exchange.repeated) == (1, 0)
    assert exchange.latency_ns < 20e9, "at once, and not at the time limit"


def test_nobody_listens_is_said_so():
    with RawServer(b"") as server:
        port = server.port
    (exchange,) = outcomes(port, chat())
    assert (exchange.status, exchange.said) == (BROKEN, f"nothing listens on {HOST}:{port}")


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_kept_connection_that_dies_before_its_answer_is_asked_once_more(end):
    """As of a server that closes what was idle just when it is asked again."""
    good = whole(b"".join(events("a")))
    with RawServer(good, [end], good, [end], [end]) as server:
        first, again, lost = outcomes(server.port, chat(), times=3)
    assert [exchange.status for exchange in (first, again, lost)] == [OK, OK, BROKEN], "once more, and no further"
    assert [exchange.repeated for exchange in (first, again, lost)] == [0, 1, 1]
    assert len(server.heads) == 5


def test_an_answer_that_has_begun_is_not_asked_for_again():
    with RawServer(whole(b"".join(events("a"))), [b"HTTP/1.1 2", CLOSE]) as server:
        _, lost = outcomes(server.port, chat(), times=2)
    assert (lost.status, lost.repeated, len(server.heads)) == (BROKEN, 0, 2)


@pytest.mark.parametrize("seen", [True, False])
def test_a_connection_that_was_closed_while_it_was_idle_is_not_used(seen):
    """Or that was closed at once, as llama.cpp's server does after every stream, although it says that it keeps them."""
    with RawServer([whole(b"".join(events("a"))), CLOSE]) as server:
        exchanges = outcomes(server.port, chat(), times=2, after=server.answered, seen=seen)
    assert [(exchange.status, exchange.repeated) for exchange in exchanges] == [(OK, 0)] * 2
    assert server.connections == 2


def test_what_a_server_sends_unasked_ends_its_connection():
    with RawServer(
        [whole(b"".join(events("a"))), whole(b"", status="408 Request Timeout")], whole(b"".join(events("b")))
    ) as server:
        exchanges = outcomes(server.port, chat(), times=2, after=server.answered)
    assert [exchange.status for exchange in exchanges] == [OK, OK]
    assert server.connections == 2


def test_a_proxy_of_the_environment_is_never_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert outcome(chunked(*events("a"))).status == OK


def test_headers_that_are_given_replace_ours_whatever_their_case():
    given = {
        "host": "public.example",
        "content-type": "text/plain",
        "ACCEPT": "text/event-stream",
        "content-length": "7",
    }
    with RawServer(whole(b"ok")) as server:
        (exchange,) = outcomes(server.port, engine(headers=given))
    assert exchange.status == OK
    names = [line.partition(":")[0].lower() for line in server.heads[0].split("\r\n")[1:]]
    assert len(names) == len(set(names))
    assert "host: public.example" in server.heads[0].split("\r\n")
    with pytest.raises(ValueError, match="line break"):
        head_of("GET", "/", (HOST, 1), {"a": "b\r\nc: d"})


def test_over_tls_a_token_has_the_time_at_which_it_arrived(tmp_path, monkeypatch):
    shown, authority = vouched_for(tmp_path, HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    stamps = []
    note = StampedSocket._note
    monkeypatch.setattr(StampedSocket, "_note", lambda self, said: (stamps.append(bool(said)), note(self, said)))
    exchange = outcome(chunked(*events("a", "b")), tls=shown)
    assert (exchange.said, exchange.status, exchange.output_tokens) == ("", OK, 2)
    assert stamps
    assert all(stamps), "as the kernel says it"


def test_tls_that_is_not_ours_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    shown, _ = vouched_for(tmp_path, HOST)
    with (
        RawServer(whole(b"ok"), tls=shown) as over_tls,
        RawServer(whole(b"bad", status="400 Bad"), speaks_first=True) as without,
    ):
        (stranger,) = outcomes(over_tls.port, engine(), tls=True)
        (bare,) = outcomes(over_tls.port, engine())
        (plain,) = outcomes(without.port, engine(), tls=True)
    assert {stranger.status, plain.status, bare.status} == {BAD_ANSWER}
    assert "https://" in bare.said
    assert "is not trusted" in stranger.said
    assert "SSL_CERT_FILE" in stranger.said
    assert "http://" in plain.said


def test_tls_with_a_server_that_waits_for_a_line_of_http_is_given_up_early(monkeypatch):
    monkeypatch.setattr(http_client, "HANDSHAKE_S", 0.05)
    with RawServer(whole(b"ok")) as server:
        (silent,) = outcomes(server.port, engine(), tls=True)
    assert silent.status == BROKEN
    assert "http:// alone" in silent.said
