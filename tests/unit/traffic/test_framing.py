"""Events in the bytes of a body, however they are cut, by WHATWG's rules for server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.framing import Event, JsonLines, ServerSentEvents, WholeBody, framing_of
from harness.traffic.http_answer import AnswerHead


def framed(framing, *pieces):
    """Its events without their times, and what it was cut off in."""
    events = [event for number, piece in enumerate(pieces) for event in framing.feed(piece, number)] + framing.end()
    return [(event.name, event.data) if event.name else event.data for event in events], framing.cut


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("data: a\n\ndata:b\n\n", [b"a", b"b"]),
        ("data: a\ndata:\ndata:  b\n\n", [b"a\n\n b"]),
        (": ping\n\ndata: a\n:\n\n\n\n", [b"a"]),
        ("event: error\ndata: a\n\ndata: b\n\n", [("error", b"a"), b"b"]),
        ("event: ping\n\ndata: a\n\n", [b"a"]),
        ("id: 1\nretry: 5\nunknown: x\ndata: a\ndata\n\n", [b"a\n"]),
        ("data\n\n", [b""]),
        ("data: \u00fc\u2028\U0001f600\n\n", ["\u00fc\u2028\U0001f600".encode()]),
        ("\ufeffdata: a\n\n", [b"a"]),
        ("data: a\n\n\ufeffdata: b\n\n", [b"a"]),
    ],
)
def test_events_are_those_of_the_standard_wherever_they_are_cut(text, end, events):
    body = text.encode().replace(b"\n", end)
    assert framed(ServerSentEvents(), body) == (events, b"")
    assert framed(ServerSentEvents(), *(body[at : at + 1] for at in range(len(body)))) == (events, b"")
    for at in range(len(body)):
        assert framed(ServerSentEvents(), body[:at], body[at:]) == (events, b"")


@given(
    st.binary(max_size=60).map(lambda text: text.replace(b"d", b"data:").replace(b"n", b"\n").replace(b"r", b"\r")),
    st.integers(0, 60),
)
def test_where_it_is_cut_changes_nothing(body, at):
    assert framed(ServerSentEvents(), body[:at], body[at:]) == framed(ServerSentEvents(), body)


@pytest.mark.parametrize(
    ("body", "cut"),
    [
        (b"data: a\n\ndata: [DONE]", b"data: [DONE]"),
        (b"data: a\n\ndata: b\n", b"b"),
        (b"data: a\n\ndata: b\ndata: c", b"b\ndata: c"),
        (b"data: a\n\n: going", b""),
        (b"data: a\n\nid: 7\n", b""),
    ],
)
def test_an_event_that_nothing_ends_is_none_and_is_told_apart(body, cut):
    assert framed(ServerSentEvents(), body) == ([b"a"], cut)


def test_an_event_has_the_time_at_which_its_end_arrived():
    events = ServerSentEvents()
    assert events.feed(b"data: a\n", 1) == []
    assert events.feed(b"\ndata: b\r", 2) == [Event(b"a", 2)]
    assert events.feed(b"\r", 3) == [Event(b"b", 3)], "at once, though a LF may follow"
    assert events.feed(b"\ndata: c\n\n", 4) == [Event(b"c", 4)]


@pytest.mark.parametrize(
    "body", [b'\xef\xbb\xbf{"a": 1}\n{"b": 2}\n', b'{"a": 1}\r\n\r\n{"b": 2}', b'{"a": 1}\n {"b": 2} \n\n']
)
def test_lines_of_json_and_the_last_one_may_lack_its_end(body):
    pieces = [[body], [body[at : at + 1] for at in range(len(body))]]
    assert [framed(JsonLines(), *parts) for parts in pieces] == [([b'{"a": 1}', b'{"b": 2}'], b"")] * 2


def test_a_whole_body_is_one_event():
    assert framed(WholeBody(), b"a\n", b"\nb") == ([b"a\n\nb"], b"")
    assert framed(WholeBody()) == ([b""], b"")


@pytest.mark.parametrize(
    ("content_type", "begin", "kind"),
    [
        ("text/event-stream; charset=utf-8", b"", "events"),
        ("application/x-ndjson", b"", "lines"),
        ("application/json", b"data: {}", "whole"),
        ("text/plain", b'data: {"a": 1}', "events"),
        ("", b"\xef\xbb\xbf: ping", "events"),
        ("", b"dat", "events"),
        ("", b"", "whole"),
        ("application/octet-stream", b'{"a": 1}\n', "lines"),
        ("text/html", b"<html>", "whole"),
    ],
)
def test_how_a_body_is_framed_is_said_by_its_type_or_else_by_how_it_begins(content_type, begin, kind):
    headers = {"content-type": content_type} if content_type else {}
    assert framing_of(AnswerHead(200, headers), begin).kind == kind
