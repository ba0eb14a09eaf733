"""The replicas' ``/metrics``: all scraped at once by one thread, over connections that stay open, within one deadline.

A replica that hangs costs the others nothing. The layout of an answer (which line is which bucket) is learnt once; afterwards a
scrape costs one dictionary look-up and one ``float()`` a line, a twentieth of a parser that builds samples.
"""

from __future__ import annotations

import contextlib
import math
import re
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from harness.errors import MetricsError
from harness.metrics.catalogue import LATENCY, PUBLISHED_COUNTERS, PUBLISHED_HISTOGRAMS, REQUESTS
from harness.metrics.rows import Missing
from harness.traffic.exposition import split
from harness.traffic.http_answer import AnswerParser, BrokenAnswerError
from harness.traffic.http_page import MOST_BYTES, metrics_text

_RECEIVE_BYTES = 1 << 18
_CONNECT_TIMEOUT_S = 0.05
"""Replicas listen on this machine: a connection that takes longer is a replica that is not there."""
_OURS = ("inference_", '{"inference_')
_BOUND = re.compile(r'[{,]le="(\+Inf|[-+.\deE]+)"')
_NAME = re.compile(r'\{"([^"]*)"|([^{]+)')


@dataclass(frozen=True, slots=True)
class PublishedFamily:
    """Where in ``ReplicaSample.counters`` a counter lies, or a histogram's sum, which its count and cumulative counts follow.

    ``bounds``: upper bounds of a histogram's buckets, ascending, the last one +Inf; empty for a counter.
    """

    at: int
    bounds: tuple[float, ...] = ()

    @property
    def end(self) -> int:
        """The place after its last one."""
        return self.at + (2 + len(self.bounds) if self.bounds else 1)


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One scrape of one replica: its counters (float64) and, by name, where in them what it publishes lies."""

    counters: NDArray[np.float64]
    families: Mapping[str, PublishedFamily]


class ReplicaParser:
    """Parses the answers of one replica, remembering their layout."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._expected = 0
        self._families: dict[str, PublishedFamily] = {}

    def parse(self, text: str) -> ReplicaSample:
        """Read one answer; a line of it that cannot be read is left out.

        Raises:
            MetricsError: a metric is missing, or a value is not finite; the message fits into a row's reason.
        """
        values = self._read(text)
        if values is None:
            self._learn(text)
            values = self._read(text)
        if values is None:
            raise MetricsError("the answer lists a latency bucket twice")
        if not np.isfinite(values).all():
            raise MetricsError("a counter in the answer is not a finite number")
        return ReplicaSample(values, self._families)

    def _read(self, text: str) -> NDArray[np.float64] | None:
        """Values in the known layout; None when the answer has another one."""
        places = self._places
        values, read = np.zeros(self._end), 0
        for line in text.split("\n"):
            if not line.startswith(_OURS):
                continue
            key, _, value = line.rpartition(" ")
            place = places.get(key)
            if place is None:  # with a timestamp or an exemplar, not to be read, or new
                if (sample := split(line)) is None:
                    continue
                key, value = sample
                if (place := places.get(key)) is None:
                    return None
            if place >= 0:
                try:
                    values[place] += float(value)
                except ValueError:
                    continue
                read += 1
        return values if read and read == self._expected else None

    def _learn(self, text: str) -> None:
        lines = [line for line in text.split("\n") if line.startswith(_OURS)]
        series = [sample[0] for line in lines if (sample := split(line))]
        keys: dict[str, list[str]] = {}
        for key in series:
            match = _NAME.match(key)
            keys.setdefault(match[1] or match[2] if match else "", []).append(key)
        for name in (REQUESTS, *_parts(LATENCY)):
            if name not in keys:
                unread = next((line for line in lines if name in line), "")
                raise MetricsError(f"the answer has no {name}" + (f" but {unread[:60]!r}" if unread else ""))
        self._places, self._families = dict.fromkeys(series, -1), {}
        for name in (REQUESTS, *sorted(PUBLISHED_COUNTERS & keys.keys())):
            self._families[name] = PublishedFamily(self._end)
            self._places |= dict.fromkeys(keys[name], self._families[name].at)
        for name in (LATENCY, *sorted(PUBLISHED_HISTOGRAMS)):
            if all(part in keys for part in _parts(name)):
                self._place_histogram(keys, name)
        self._expected = sum(place >= 0 for place in self._places.values())

    @property
    def _end(self) -> int:
        """The place after the last family's."""
        return max((family.end for family in self._families.values()), default=0)

    def _place_histogram(self, keys: Mapping[str, list[str]], name: str) -> None:
        """Give a histogram's sum, count and buckets consecutive places."""
        total, count, bucket = _parts(name)
        bound_of = {key: _bound(key) for key in keys[bucket]}
        bounds = sorted(set(bound_of.values()))
        if bounds[-1] != math.inf:
            raise MetricsError(f'the answer has no {bucket}{{le="+Inf"}}')
        at = self._end
        self._places |= dict.fromkeys(keys[total], at) | dict.fromkeys(keys[count], at + 1)
        self._places |= {key: at + 2 + bounds.index(bound) for key, bound in bound_of.items()}
        self._families[name] = PublishedFamily(at, tuple(bounds))


def _parts(histogram: str) -> tuple[str, str, str]:
    """Names of a histogram's sum, count and buckets."""
    return f"{histogram}_sum", f"{histogram}_count", f"{histogram}_bucket"


def _bound(key: str) -> float:
    match = _BOUND.search(key)
    if match is None:
        raise MetricsError("a latency bucket in the answer has no number as its `le` label")
    return float(match[1])


class _Connection:
    """One replica's keep-alive connection and the answer that is arriving on it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise MetricsError(f"The metrics address {url!r} is not an http:// address.")
        self._address = (parts.hostname, parts.port or 80)
        path = parts.path or "/metrics"
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/plain;version=0.0.4\r\n"
            "Accept-Encoding: identity\r\nConnection: keep-alive\r\n\r\n"
        ).encode()
        self.socket: socket.socket | None = None
        self._answer = AnswerParser()
        self._body: list[bytes] = []
        self._received_bytes = 0
        self._fresh = False
        self.parser = ReplicaParser()

    def send(self) -> None:
        """Send one request, over the open connection or a new one. Raises OSError."""
        if self.socket is not None:
            try:
                self._begin(fresh=False)
                self.socket.sendall(self._request)
            except OSError:
                self.close()
        if self.socket is None:
            self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection(self._address, timeout=_CONNECT_TIMEOUT_S)
        self._answer = AnswerParser()
        self._begin(fresh=True)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(self._request)
            self.socket.setblocking(False)
        except OSError:
            self.close()
            raise

    def _begin(self, *, fresh: bool) -> None:
        self._answer.begin()
        self._body, self._received_bytes, self._fresh = [], 0, fresh

    def receive(self) -> str | None:
        """Take what has arrived; the page once it is complete. Raises OSError or MetricsError."""
        if self.socket is None:
            raise MetricsError("the connection is closed")
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data and not self._received_bytes and not self._fresh:
            # The server had closed the idle connection: that is no failure, ask again on a new one.
            self.close()
            self._connect()
            return None
        self._received_bytes += len(data)
        if self._received_bytes > MOST_BYTES:
            raise MetricsError(f"the answer is larger than {MOST_BYTES >> 20} MiB")
        try:
            if data:
                self._body += self._answer.feed(data)
            else:
                self._answer.end()
            if not self._answer.complete or self._answer.head is None:
                return None
            if not self._answer.keeps_open:
                self.close()
            return metrics_text(self._answer.head, b"".join(self._body))
        except (BrokenAnswerError, ValueError) as error:
            raise MetricsError(str(error)) from error

    def close(self) -> None:
        """Close; the next request opens a new connection."""
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None


class Scraper:
    """Reads the ``/metrics`` of every replica."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._connections = [_Connection(url) for url in urls]
        self._results: list[ReplicaSample | Missing | None] = [None] * len(urls)
        self._selector = selectors.DefaultSelector()

    def begin(self) -> None:
        """Send every request."""
        for index, connection in enumerate(self._connections):
            self._results[index] = None
            try:
                connection.send()
            except OSError as error:
                self._fail(index, f"no connection: {_name(error)}")
            else:
                self._watch(index)

    def collect(self, timeout_s: float) -> list[ReplicaSample | Missing]:
        """Take the answers; whoever has not answered within ``timeout_s`` seconds is missing."""
        deadline_s = time.monotonic() + timeout_s
        while self._selector.get_map():
            ready = self._selector.select(max(deadline_s - time.monotonic(), 0.0))
            if not ready:
                break
            for key, _ in ready:
                self._take(key.data)
        for index, result in enumerate(self._results):
            if result is None:
                self._fail(index, "no answer in time")
        return [result or Missing("not read") for result in self._results]

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.close()
        self._selector.close()

    def _take(self, index: int) -> None:
        connection = self._connections[index]
        if connection.socket is not None:
            self._selector.unregister(connection.socket)
        try:
            body = connection.receive()
            if body is not None:
                self._results[index] = connection.parser.parse(body)
        except MetricsError as error:
            self._fail(index, error.message)
            return
        except OSError as error:
            self._fail(index, f"no connection: {_name(error)}")
            return
        if self._results[index] is None:
            self._watch(index)

    def _watch(self, index: int) -> None:
        if (waiting := self._connections[index].socket) is not None:
            self._selector.register(waiting, selectors.EVENT_READ, index)

    def _fail(self, index: int, reason: str) -> None:
        """A half-read connection is of no more use: a late answer must not be taken for the next one."""
        connection = self._connections[index]
        if connection.socket in {key.fileobj for key in self._selector.get_map().values()}:
            self._selector.unregister(connection.socket)
        connection.close()
        self._results[index] = Missing(f"the replica's /metrics: {reason}")


def _name(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else (error.strerror or type(error).__name__).lower()
