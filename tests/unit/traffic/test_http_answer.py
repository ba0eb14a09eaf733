"""Answers as servers send them: what is allowed is read, what is something else is named."""

import gzip
import zlib

import pytest

from harness.traffic.http_answer import (
    MOST_HEAD_BYTES,
    AnswerParser,
    BrokenAnswerError,
    DroppedError,
    ForeignAnswerError,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*pieces):
    """The parser after all of it and the end of the connection, and the body."""
    parser = AnswerParser()
    body = b"".join(part for piece in pieces for part in parser.feed(piece))
    parser.end()
    return parser, body


def bytewise(data):
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("answer", "body", "keeps_open"),
    [
        (OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi", b"hi", False),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (OK + b"\r\nuntil closed", b"until closed", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200\r\ncontent-LENGTH:2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", b"hi", True),
        (CHUNKED + b"1\r\nh\r\n1;x=y\r\ni\r\n0\r\nTrailer: x\r\n\r\n", b"hi", True),
        (OK + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n0\r\n\r\n", b"hi", True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", b"hi", True),
    ],
)
def test_an_answer_is_read_however_it_is_cut(answer, body, keeps_open):
    for pieces in ([answer], bytewise(answer)):
        parser, read_body = read(*pieces)
        assert (read_body, parser.complete, parser.keeps_open) == (body, True, keeps_open)
        assert parser.head.status // 100 == 2


def test_headers_have_their_names_in_lower_case_and_repeated_ones_are_joined():
    parser, _ = read(
        OK + b"X-A: 1\r\nx-a:  2 \r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 0\r\n\r\n"
    )
    assert parser.head.headers["x-a"] == "1, 2"
    assert parser.head.content_type == "text/event-stream"


def test_what_follows_an_answer_unasked_is_not_taken_for_the_next_one():
    parser, body = read(OK + b"Content-Length: 2\r\n\r\nhi" + OK + b"Content-Length: 3\r\n\r\nbye")
    assert (body, parser.keeps_open) == (b"hi", False)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate"])
def test_a_compressed_body_that_nobody_asked_for_is_decoded_as_it_comes(coding):
    packer = zlib.compressobj(wbits=31 if "gzip" in coding else 15)
    parts = [packer.compress(b"data: a\n\n") + packer.flush(zlib.Z_SYNC_FLUSH), packer.compress(b"b") + packer.flush()]
    parser = AnswerParser()
    parser.feed(OK + f"Content-Encoding: {coding}\r\nContent-Length: {sum(map(len, parts))}\r\n\r\n".encode())
    assert [b"".join(parser.feed(part)) for part in parts] == [b"data: a\n\n", b"b"]
    assert parser.complete


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18), ForeignAnswerError, "HTTP/2"),
        (b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8), ForeignAnswerError, "HTTP/2"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ForeignAnswerError, "HTTP/2"),
        (b"HTTP/2 200\r\n\r\n", ForeignAnswerError, "HTTP/2"),
        (b"HTTP/2.0 200 OK\r\n\r\n", ForeignAnswerError, "HTTP/2"),
        (b"\x15\x03\x01\x00\x02\x02\x0a", ForeignAnswerError, "uses TLS"),
        (
            b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
            ForeignAnswerError,
            "switched to h2c",
        ),
        (OK + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nhi", ForeignAnswerError, "compressed with br"),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", BrokenAnswerError, "not compressed as it says"),
        (b"SSH-2.0-OpenSSH\r\n", BrokenAnswerError, "not HTTP: b'SSH-2.0"),
        (CHUNKED + b"zz\r\n", BrokenAnswerError, "broken"),
        (OK + b"Content-Length: 2\r\n\r\nh", BrokenAnswerError, "before the answer was whole"),
        (CHUNKED + b"2\r\nhi\r\n", BrokenAnswerError, "before the answer was whole"),
        (OK, BrokenAnswerError, "before the answer was whole"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", BrokenAnswerError, "before the answer was whole"),
        (b"", DroppedError, "before it answered"),
    ],
)
def test_what_is_no_answer_is_named(answer, kind, words):
    with pytest.raises(BrokenAnswerError, match=words) as raised:
        read(answer)
    assert type(raised.value) is kind


def test_headers_are_long_up_to_a_limit_and_beyond_it_named_at_once():
    parser, _ = read(*(b"%sX-Long: %s\r\nContent-Length: 0\r\n\r\n" % (OK, b"x" * 70_000),))
    assert len(parser.head.headers["x-long"]) == 70_000
    with pytest.raises(ForeignAnswerError, match=f"longer than {MOST_HEAD_BYTES >> 10} KiB"):
        read(OK + b"X-Long: ", *[b"x" * 1000] * (MOST_HEAD_BYTES // 1000 + 1))


def test_the_body_of_a_failure_in_a_coding_that_is_not_read_hides_its_status_no_more():
    parser, body = read(b"HTTP/1.1 500 No\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nhi")
    assert (parser.head.status, body) == (500, b"")


def test_one_connection_has_one_answer_after_another():
    parser = AnswerParser()
    for body in (b"a", gzip.compress(b"b"), b"c"):
        parser.begin()
        coding = b"Content-Encoding: gzip\r\n" * body.startswith(b"\x1f")
        pieces = parser.feed(OK + coding + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert (len(b"".join(pieces)), parser.complete) == (1, True)
