"""The HTTP endpoint of a replica and a load pod, spoken to over real sockets."""

import http.client
import socket
import time

import pytest

from harness.traffic import endpoint as module
from harness.traffic.endpoint import Endpoint, Response


@pytest.fixture
def server():
    routes = {
        "/metrics": lambda: Response(200, b"value 1\n"),
        "/health": lambda: Response(503, b"{}\n", "application/json"),
    }
    server = Endpoint("127.0.0.1", 0, routes)
    yield server
    server.close()


@pytest.fixture
def connection(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    yield connection
    connection.close()


def raw(server: Endpoint, request: bytes) -> bytes:
    """Everything the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_port_0_takes_a_free_port_and_a_taken_one_is_an_error(server):
    assert server.port > 0
    with pytest.raises(OSError, match="in use"):
        Endpoint("127.0.0.1", server.port, {})


def test_routes_answer_with_status_type_and_body(connection):
    connection.request("GET", "/metrics?name=value")
    response = connection.getresponse()
    assert (response.status, response.read(), response.getheader("Content-Type")) == (
        200,
        b"value 1\n",
        "text/plain; charset=utf-8",
    )
    connection.request("GET", "/health")
    response = connection.getresponse()
    assert (response.status, response.read()) == (503, b"{}\n")


def test_a_kept_connection_answers_at_once_again_and_again(connection):
    connection.connect()
    own_port = connection.sock.getsockname()[1]
    took_s = []
    for _ in range(100):
        start_s = time.monotonic()
        connection.request("GET", "/metrics", headers={"Accept": "text/plain", "User-Agent": "Prometheus/3"})
        assert connection.getresponse().read() == b"value 1\n"
        took_s.append(time.monotonic() - start_s)
    assert connection.sock.getsockname()[1] == own_port, "the connection was not kept"
    # On a busy machine many take longer; where Nagle's algorithm works, only the first dozen are faster than 40 ms.
    assert sorted(took_s)[30] < 0.035, "40 ms each would be Nagle's algorithm"


def test_unknown_paths_and_methods_are_refused(connection):
    connection.request("GET", "/secret")
    response = connection.getresponse()
    assert (response.status, response.read()) == (404, b"try /metrics, /health\n")
    connection.request("POST", "/metrics", body=b"data")
    response = connection.getresponse()
    assert (response.status, response.getheader("Connection")) == (405, "close")


def test_head_has_the_length_and_no_body(connection):
    connection.request("HEAD", "/metrics")
    response = connection.getresponse()
    assert (response.status, response.getheader("Content-Length"), response.read()) == (200, "8", b"")


def test_http_1_0_and_connection_close_end_the_connection(server):
    assert raw(server, b"GET /metrics HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nvalue 1\n")
    assert raw(server, b"GET /metrics HTTP/1.1\r\nConnection: Close\r\n\r\n").endswith(b"value 1\n")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01 TLS?\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200],
    ids=["binary", "one word", "200 headers"],
)
def test_garbage_is_a_bad_request_and_the_server_lives(server, connection, garbage):
    assert raw(server, garbage).startswith(b"HTTP/1.1 400 ")
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200


def test_a_client_that_hangs_up_is_no_news(server, capfd):
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        client.close()
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_a_silent_client_does_not_keep_others_waiting(server, connection):
    with socket.create_connection(("127.0.0.1", server.port)):
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ("", (200, None, b"0123456789")),
        ("bytes=7-", (206, "bytes 7-9/10", b"789")),
        ("bytes=10-", (206, "bytes 10-9/10", b"")),
        ("bytes=11-", (416, None, b"the file is not that long\n")),
        ("bytes=2-4", (200, None, b"0123456789")),  # a range that is not understood may be ignored
        (f"bytes={'9' * 5000}-", (200, None, b"0123456789")),
    ],
    ids=["whole", "end", "nothing", "too far", "middle", "thousands of digits"],
)
def test_a_file_is_sent_whole_or_from_a_byte_on(server, connection, tmp_path, wanted, answer):
    (tmp_path / "log").write_bytes(b"0123456789")
    server.routes["/latencies"] = lambda: Response(200, b"", "application/octet-stream", tmp_path / "log")
    connection.request("GET", "/latencies", headers={"Range": wanted} if wanted else {})
    response = connection.getresponse()
    assert (response.status, response.getheader("Content-Range"), response.read()) == answer


def test_too_many_connections_are_hung_up_on_and_the_others_are_served(monkeypatch):
    monkeypatch.setattr(module, "_MAX_CONNECTIONS", 2)
    small = Endpoint("127.0.0.1", 0, {"/metrics": lambda: Response(200, b"value 1\n")})
    held = [http.client.HTTPConnection("127.0.0.1", small.port, timeout=60) for _ in range(2)]
    try:
        for connection in held:
            connection.request("GET", "/metrics")
            assert connection.getresponse().read() == b"value 1\n"
        with socket.create_connection(("127.0.0.1", small.port), timeout=60) as third:
            assert third.recv(100) == b""
        held[0].request("GET", "/metrics")
        assert held[0].getresponse().read() == b"value 1\n"
    finally:
        for connection in held:
            connection.close()
        small.close()
