"""The server's process: real small programs that behave well and badly."""

import socket
import subprocess
import sys

import pytest

from harness import supervisor
from harness.replica.engine import servers as process_module
from harness.replica.engine.readiness import HOST
from harness.replica.engine.servers import ServerProcess, claimed_port
from harness.replica.errors import CannotBeMetError, WorkloadError
from harness.spec.replica import ReplicaSpec
from harness.spec.workload import WorkloadSpec
from tests.support.processes import eventually

SLEEPS = "import time; time.sleep(3600)"
LISTENS = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up', flush=True); time.sleep(3600)"


@pytest.fixture
def start(tmp_path):
    started = []

    def run(source, *arguments, replica=0, **fields):
        own = {name: fields.pop(name) for name in ("restore", "logger", "replicas") if name in fields}
        command = [sys.executable, "-c", source, *arguments]
        engine = {"command": command, "env": {"OWN_PORT": "{port}"}, "stop_timeout_s": 60.0} | fields
        spec = ReplicaSpec(workload=WorkloadSpec(name="x", server=engine), **own)
        started.append(ServerProcess(spec, spec.workload.server, replica, tmp_path))
        return started[-1]

    yield run
    for each in started:
        each.stop()


@pytest.mark.parametrize("ready", [{"tcp": True}, {"log": "^up$"}])
def test_it_is_up_when_the_condition_holds_and_ends_by_sigterm(start, ready):
    server = start(LISTENS, "{port}", ready=ready)
    server.wait_until_up()
    server.require_alive()
    assert server.last_lines() == "up"
    assert server.stop() == "stopped"
    assert server.stop() == "ended by itself"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import sys; print('no model'); sys.exit(3)", r"the server ended with 3; its last lines: no model\."),
        ("print('started')", "keep it in the foreground"),
    ],
    ids=["failed", "in the background"],
)
def test_one_that_ends_says_how_and_what_it_printed(start, source, says):
    server = start(source)
    with pytest.raises(WorkloadError, match=says):
        server.wait_until_up()


def test_one_that_ignores_sigterm_is_killed(start):
    source = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"
    server = start(source, ready={"log": "up"}, stop_timeout_s=0.01)
    server.wait_until_up()
    assert server.stop() == "killed"


def test_its_log_is_limited_and_keeps_the_last_words(start, tmp_path):
    source = "import os, sys; [os.write(1, bytes(1 << 20)) for _ in range(66)]; sys.exit('the last words')"
    server = start(source, logger=[sys.executable, supervisor.__file__, supervisor.LOG])
    with pytest.raises(WorkloadError, match=r"the server ended with 1; its last lines: .*the last words"):
        server.wait_until_up()
    log = tmp_path / "server.log"
    assert supervisor.MOST_LOG_BYTES < log.stat().st_size < supervisor.MOST_LOG_BYTES + (1 << 20)


def test_a_log_is_read_once_however_often_it_is_looked_at(start):
    server = start("import time; print('a long start', flush=True); print('up', flush=True); time.sleep(3600)")
    assert eventually(lambda: server.log.stat().st_size == 16)
    assert server._new_lines() == ["a long start", "up", ""]
    assert server._new_lines() == [""]


def test_a_line_that_comes_in_two_pieces_is_one(start, tmp_path):
    server = start(SLEEPS)
    with (tmp_path / "server.log").open("a") as log:
        for piece, lines in (("star", ["star"]), ("ted\nnex", ["started", "nex"]), ("t\n", ["next", ""])):
            log.write(piece)
            log.flush()
            assert server._new_lines() == lines


def test_a_program_that_is_not_there_is_said(start):
    with pytest.raises(CannotBeMetError, match="'no-such-server' cannot be started: No such file"):
        start("", command=["no-such-server"])


def test_a_port_in_use_is_said_before_anything_starts(start):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotBeMetError, match=f"port {port} is in use"):
            start(SLEEPS, replica=1, port=port - 1)


def test_a_port_that_a_server_will_listen_on_is_given_to_no_other_before_it_does(start, monkeypatch):
    first = start(SLEEPS).port
    monkeypatch.setattr(process_module, "PORTS", range(first, first + 2))
    other = "from harness.replica.engine import servers; servers.PORTS = range(%d, %d)\n"
    other += "with servers.claimed_port() as port: print(port)"

    with claimed_port() as second:
        assert second == first + 1
    said = subprocess.run([sys.executable, "-c", other % (first, first + 2)], check=True, capture_output=True)
    assert int(said.stdout) == first + 1


def test_the_port_of_a_server_that_has_ended_is_free_again(start, monkeypatch):
    server = start(SLEEPS)
    monkeypatch.setattr(process_module, "PORTS", range(server.port, server.port + 1))
    server.stop()
    with claimed_port() as port:
        assert port == server.port


def test_its_environment_is_the_harness_own_with_its_port_and_without_the_replicas(start, monkeypatch):
    monkeypatch.setenv("PORT", "0")
    monkeypatch.setenv("WORKLOAD", "x")
    monkeypatch.setenv("KEPT", "1")
    source = (
        "import os; print(*(os.environ.get(n) for n in ('PORT', 'WORKLOAD', 'KEPT', 'MINE')), flush=True)\n" + SLEEPS
    )
    server = start(
        source,
        ready={"log": "None"},
        env={"MINE": "{port}/{replica}/{replicas}"},
        restore={"PORT": "80", "WORKLOAD": None},
        replica=2,
        replicas=4,
    )
    server.wait_until_up()
    assert server.last_lines() == f"80 None 1 {server.port}/2/4"
