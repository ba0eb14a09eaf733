"""What is read of an answer is what really happened, whatever server of the list has sent it; or it is refused by name."""

import asyncio
import time
from collections import Counter

import pytest

from harness.spec.server import LANGUAGE, Protocol
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import Question
from harness.traffic.records import BAD_ANSWER, NONE, OK, Exchange, TokenSource
from tests.support import dialect_server
from tests.unit.traffic.engines import HOST, engine

LIST = dialect_server.read()
SOURCES = {
    "pieces": TokenSource.PIECES,
    "usage": TokenSource.USAGE,
    "listed": TokenSource.LISTED,
    "hidden": TokenSource.USAGE_WITH_HIDDEN,
}
QUESTION = Question(output_tokens=5, prompt="the sun")
OF_TENSORS = Question(output_tokens=1, body=b"{}")


def asked_of(entry):
    """What became of a request, and when each piece of its answer was sent."""

    async def ask(port):
        client = HttpClient(engine(**entry.server), port, HOST)
        try:
            return await client.ask(
                OF_TENSORS if entry.protocol == "oip" else QUESTION, Exchange(time.perf_counter_ns())
            )
        finally:
            await client.close()

    with entry.answering() as server:
        return asyncio.run(ask(server.port)), server.sent_ns


def sent_as(entry, sent_ns, instant_ns):
    """The number of the event that was the last one sent at an instant."""
    last = sum(begun_ns <= instant_ns for begun_ns in sent_ns) - 1
    return entry.first_pieces.index(last)


@pytest.mark.parametrize("entry", LIST, ids=lambda entry: entry.name)
def test_what_is_read_is_what_happened(entry):
    exchange, sent_ns = asked_of(entry)
    happened = dict(entry.happened)
    if words := happened.get("fails") or happened.get("refused"):
        assert (exchange.status, words in exchange.said) == (happened.get("status", BAD_ANSWER), True), exchange.said
        return
    pieces = happened.pop("pieces", [])
    answer = happened.pop("answer", pieces[0] if pieces else "none")
    expected = {
        "said": "",
        "status": OK,
        "pieces": pieces,
        "answer": answer,
        "end": happened.get("end", "whole"),
        "tokens": happened.get("tokens", NONE),
        "source": SOURCES[happened.get("source", "pieces")] if "tokens" in happened else NONE,
        "input": happened.get("input", NONE),
    }
    assert {
        "said": exchange.said,
        "status": exchange.status,
        "pieces": [sent_as(entry, sent_ns, token_ns) for token_ns in exchange.token_ns],
        "answer": sent_as(entry, sent_ns, exchange.answer_ns) if exchange.answer_ns else "none",
        "end": sent_as(entry, sent_ns, exchange.end_ns) if pieces else "whole",
        "tokens": exchange.output_tokens,
        "source": exchange.source,
        "input": exchange.input_tokens,
    } == expected


def test_the_list_is_long_and_says_where_each_was_seen():
    assert len(LIST) >= 60
    assert [name for name, count in Counter(entry.name for entry in LIST).items() if count > 1] == []
    assert all(entry.program and entry.seen and entry.happened is not None for entry in LIST)
    assert {Protocol(entry.protocol) for entry in LIST} == {*LANGUAGE, Protocol.OIP}
