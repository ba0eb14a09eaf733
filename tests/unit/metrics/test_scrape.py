"""The scraper against real sockets: one thread of the test plays the servers, byte by byte."""

import socket
import threading
import time

import pytest

from harness.errors import MetricsError
from harness.metrics.rows import Missing
from harness.metrics.scrape import ReplicaSample, Scraper

BODY = (
    'inference_latency_seconds_bucket{le="1"} 2\ninference_latency_seconds_bucket{le="+Inf"} 2\n'
    "inference_latency_seconds_sum 1\ninference_latency_seconds_count 2\ninference_requests_total 2\n"
)


def answer(body=BODY, head="HTTP/1.1 200 OK", extra=""):
    return f"{head}\r\nContent-Length: {len(body)}\r\n{extra}\r\n{body}".encode()


class Server:
    """Answers every request on every connection with the next script: bytes to send, what to wait for (seconds, an event), None to close."""

    def __init__(self, *scripts, port=0):
        self.scripts = list(scripts)
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/metrics"
        self.open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            while connection.recv(65536):
                for part in self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]:
                    if part is None:
                        connection.shutdown(socket.SHUT_RDWR)
                        connection.close()
                        return
                    if isinstance(part, float):
                        time.sleep(part)
                    elif isinstance(part, threading.Event):
                        part.wait(60)
                    else:
                        connection.sendall(part)
        except OSError:
            return

    def close(self):
        self.listener.close()
        for connection in self.open:
            connection.close()


@pytest.fixture
def serve():
    servers = []

    def start(*scripts, port=0):
        servers.append(Server(*scripts, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def scrape(scraper, timeout_s=60.0):
    scraper.begin()
    return scraper.collect(timeout_s)


def is_good(result):
    return isinstance(result, ReplicaSample) and result.counters[0] == 2


@pytest.fixture
def scraper_of():
    scrapers = []

    def make(*urls):
        scrapers.append(Scraper(urls))
        return scrapers[-1]

    yield make
    for scraper in scrapers:
        scraper.close()


def test_one_connection_serves_many_scrapes(serve, scraper_of):
    server = serve([answer()])
    scraper = scraper_of(server.url)
    assert all(is_good(scrape(scraper)[0]) for _ in range(5))
    assert server.connections == 1


@pytest.mark.parametrize(
    "script",
    [
        [answer(extra="Connection: close\r\n"), None],
        [answer()[:50], 0.02, answer()[50:90], 0.02, answer()[90:]],
    ],
    ids=["close", "in-pieces"],
)
def test_an_answer_comes_in_pieces_or_is_the_last_and_the_next_scrape_works(serve, scraper_of, script):
    scraper = scraper_of(serve(script).url)
    assert is_good(scrape(scraper)[0])
    assert is_good(scrape(scraper)[0])


def test_an_idle_connection_that_the_server_closed_is_opened_again(serve, scraper_of):
    server = serve([answer()], [None], [answer()])
    scraper = scraper_of(server.url)
    assert is_good(scrape(scraper)[0])
    assert is_good(scrape(scraper)[0])
    assert server.connections == 2


def test_a_replica_that_hangs_costs_the_others_nothing(serve, scraper_of):
    slow, quick = serve([600.0]), serve([answer()])
    scraper = scraper_of(slow.url, quick.url)
    begun_s = time.monotonic()
    missing, good = scrape(scraper, timeout_s=1.5)
    assert time.monotonic() - begun_s < 60
    assert missing == Missing("the replica's /metrics: no answer in time")
    assert is_good(good)


def test_a_late_answer_is_not_taken_for_the_next_one(serve, scraper_of):
    old, late = answer(BODY.replace("total 2", "total 1")), threading.Event()
    scraper = scraper_of(serve([late, old], [answer()]).url)
    assert isinstance(scrape(scraper, timeout_s=0.05)[0], Missing)
    late.set()
    assert is_good(scrape(scraper)[0])


def test_a_trickle_ends_at_the_deadline(serve, scraper_of):
    trickle = [part for byte in answer()[:100] for part in (bytes([byte]), 1.0)]  # 100 s in all
    scraper = scraper_of(serve(trickle).url)
    begun_s = time.monotonic()
    assert isinstance(scrape(scraper, timeout_s=0.1)[0], Missing)
    assert time.monotonic() - begun_s < 60


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([answer(head="HTTP/1.1 503 Service Unavailable")], "HTTP 503"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not HTTP"),
        ([answer()[:60], None], "closed before the answer was whole"),
        ([answer(body="hello\n")], "no inference_requests_total"),
        ([answer(body="<html>Sign in</html>", extra="Content-Type: text/html\r\n")], "a page in HTML"),
        ([b"HTTP/1.1 200 OK\r\n\r\nhello", None], "no inference_requests_total"),
    ],
)
def test_what_is_wrong_becomes_the_reason(serve, scraper_of, script, reason):
    result = scrape(scraper_of(serve(script).url))[0]
    assert isinstance(result, Missing)
    assert reason in result.reason


def test_a_replica_that_is_gone_is_missing_and_comes_back(serve, scraper_of):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    scraper = scraper_of(f"http://127.0.0.1:{port}/metrics")
    assert scrape(scraper)[0] == Missing("the replica's /metrics: no connection: connection refused")
    serve([answer()], port=port)
    assert is_good(scrape(scraper)[0])


@pytest.mark.parametrize("url", ["https://127.0.0.1/metrics", "127.0.0.1:8000"])
def test_an_address_that_cannot_be_scraped_is_refused_at_once(url):
    with pytest.raises(MetricsError, match="http://"):
        Scraper([url])
