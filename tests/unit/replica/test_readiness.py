"""What shows that a server is up: real sockets that answer, refuse, listen elsewhere or speak something else."""

import os
import socket
import subprocess
import sys

import pytest

from harness.replica.engine import readiness
from harness.replica.engine.readiness import HOST, Readiness, answers_200, listening
from harness.replica.errors import WorkloadError
from harness.spec.server import ReadySpec
from tests.support.ports import free_port
from tests.support.raw_server import CLOSE, RawServer, whole

PATH = ReadySpec(path="/health")
TCP = ReadySpec(tcp=True)
LISTEN = "import socket, sys; s = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET); print(s.getsockname()[1], flush=True); input()"


@pytest.fixture
def settled(monkeypatch):
    """An answer is believed to be the last word at once."""
    monkeypatch.setattr(readiness, "SETTLED_S", 0.0)


@pytest.fixture
def listens():
    """Has a process of a session of its own listen on an address; its port and its session."""
    started = []

    def start(address):
        started.append(subprocess.Popen([sys.executable, "-c", LISTEN, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True))  # fmt: skip
        return int(started[-1].stdout.readline()), started[-1].pid

    yield start
    for process in started:
        process.communicate("end\n")


def seen(capsys):
    return [line.partition("is not ready: ")[2] for line in capsys.readouterr().err.splitlines()]


def test_it_is_ready_when_the_path_answers_200_and_what_was_seen_before_is_said_once(capsys):
    answers = [whole(b"", status="503 Loading")] * 2 + [whole(b"", status="404 No"), [CLOSE], whole(b"ok")]
    with RawServer(*answers) as server:
        ready = Readiness(PATH, server.port)
        assert [ready.holds() for _ in answers] == [False, False, False, False, True]
    assert seen(capsys) == [
        "GET /health answered 503",
        "GET /health answered 404",
        "GET /health: the server closed the connection before it answered",
    ]


@pytest.mark.usefixtures("settled")
def test_what_another_program_has_of_the_port_ends_nothing(listens):
    port, _ = listens("127.0.0.2")
    _, own = listens(HOST)
    waiting = Readiness(TCP, port, session=own)
    assert [waiting.holds() for _ in range(3)] == [False] * 3


@pytest.mark.usefixtures("settled")
def test_an_answer_that_may_change_is_waited_for_however_long():
    for status in ("404 No", "400 Not ready", "503 Loading", "429 Wait", "500 No"):
        with RawServer(whole(b"", status=status)) as server:
            ready = Readiness(PATH, server.port)
            assert [ready.holds() for _ in range(3)] == [False] * 3


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole(b"", status="401 Who"), "GET /health answered 401"),
        (whole(b"", status="405 No"), "GET /health answered 405"),
        (whole(b"", "Location: /health/", status="307 There"), "answered 307 with a redirect to /health/"),
    ],
)
def test_one_that_loading_does_not_change_ends_the_waiting_early(answer, words):
    with RawServer(answer) as server:
        ready = Readiness(PATH, server.port)
        assert not ready.holds()
        with pytest.raises(WorkloadError, match=words):
            ready.holds()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("answer", "words"), [(b"\x15\x03\x01\x00\x02\x02\x0a", "https://"), (b"\x00\x00\x12\x04" + bytes(23), "HTTP/2")]
)
def test_a_server_that_speaks_something_else_is_named_at_once(answer, words):
    with RawServer([answer, CLOSE]) as server, pytest.raises(WorkloadError, match=words):
        Readiness(PATH, server.port).holds()


@pytest.mark.parametrize("ready", [PATH, TCP])
def test_nobody_listens_and_who_listens_elsewhere_are_said(capsys, ready):
    port = free_port()
    assert not Readiness(ready, port).holds()
    assert seen(capsys) == [f"nothing listens on {HOST}:{port}"]


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("address", ["::1", "127.0.0.2"])
@pytest.mark.parametrize("ready", [PATH, TCP])
def test_one_at_another_address_of_its_port_is_named_and_not_waited_for(listens, ready, address):
    port, session = listens(address)
    for own in (session, None):
        waiting = Readiness(ready, port, session=own)
        assert not waiting.holds()
        with pytest.raises(
            WorkloadError, match=rf"nothing listens on {HOST}:{port} \(the server listens on {address}\)"
        ):
            waiting.holds()


@pytest.mark.usefixtures("settled")
def test_one_at_another_port_is_named_and_waited_for(listens, capsys):
    port, session = listens(HOST)
    waiting = Readiness(TCP, free_port(), session=session)
    assert [waiting.holds() for _ in range(3)] == [False] * 3
    assert f"(the server listens on {HOST}:{port})" in seen(capsys)[0]


def test_a_line_that_was_not_printed_yet_is_said(capsys):
    printed = [["loading"], ["up"]]
    ready = Readiness(ReadySpec(log="^up$"), 1, new_lines=lambda: printed.pop(0))
    assert [ready.holds(), ready.holds()] == [False, True]
    assert seen(capsys) == ["no line of its output matches '^up$'"]


def test_no_proxy_of_the_environment_is_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with RawServer(whole(b"ok")) as server:
        assert answers_200(f"http://{HOST}:{server.port}/health")
        assert Readiness(PATH, server.port).holds()
    assert not answers_200(f"http://{HOST}:{server.port}/health")


def test_sockets_of_this_machine_are_seen_with_their_addresses(listens):
    ports = {listens(address)[0]: address for address in ("127.0.0.1", "::1", "0.0.0.0")}
    places = {place.port: place.address for place in listening() if place.port in ports}
    assert places == ports
    with socket.create_server((HOST, 0)) as ours:
        inode = f"socket:[{os.fstat(ours.fileno()).st_ino}]"
        assert inode in {place.file for place in listening()}
