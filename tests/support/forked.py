"""The harness's commands, each forked from a process that has imported it: for tests that start it over and over.

So are replicas, from one that has imported torch. One process is enough for all commands of all processes of the tests:
any number of them run beside each other.
"""

import atexit
import functools
import gc
import importlib
import os
import runpy
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]


HARNESS = (
    "harness.analysis.report",
    "harness.backends.local",
    "harness.campaign.runner",
    "harness.campaign.verify",
    "harness.cli",
)


class Commands:
    """Starts commands; the process that has imported them ends with the block, or with whoever began it.

    Args:
        module: each is ``python -m`` of it, unless it says otherwise.
        imported: before the first.
    """

    def __init__(self, module: str = "harness", imported: Sequence[str] = HARNESS) -> None:
        self._module, self._imported = module, imported

    def __enter__(self):
        self._address = f"\0forked-{os.getpid()}-{secrets.token_hex(8)}"  # an abstract one: no file is left behind
        ours, self._held = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen()
            given = (listener.fileno(), ours)
            command = [sys.executable, "-m", __name__, *map(str, given), *self._imported]
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=given)
        os.close(ours)
        return self

    def __exit__(self, *_):
        os.close(self._held)
        self._process.wait(60)

    def start(
        self,
        *words: object,
        log: Path,
        errors: Path | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        module: str = "",
    ) -> "Command":
        """``harness WORDS``, whose words go to the log (its errors too, or elsewhere)."""
        streams = (str(log), str(errors or log))
        for stream in streams:
            Path(stream).write_bytes(b"")  # here: a command that is killed at once has opened none
        variables = dict(os.environ if environment is None else environment)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(self._address)
            connection = Connection(asking.detach())
        connection.send((module or self._module, [*map(str, words)], streams, str(cwd or Path.cwd()), variables))
        return Command(connection, connection.recv(), log)

    def run(
        self, *words: object, timeout_s: float, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``harness WORDS`` to its end."""
        with tempfile.TemporaryDirectory() as name:
            log, errors = Path(name, "stdout"), Path(name, "stderr")
            command = self.start(*words, log=log, errors=errors, cwd=cwd, environment=environment)
            said = command.end(timeout_s)
            return subprocess.CompletedProcess([*words], command.returncode, said, errors.read_text())


class Command:
    """A command that runs or has run; it is killed when nobody can ask for its end any more."""

    def __init__(self, connection: Connection, pid: int, log: Path) -> None:
        self._connection, self.pid, self._log = connection, pid, log
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Until its end is known, the pid is nobody else's."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.end()

    def poll(self) -> int | None:
        """Its exit code, where it has ended."""
        if self.returncode is None:
            self._connection.send("poll")
            self.returncode = self._connection.recv()
        return self.returncode

    def wait(self, timeout_s: float = 280) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self._connection.send("end")
            assert self._connection.poll(timeout_s), f"it still runs:\n{self._log.read_text()}"
            self.returncode = self._connection.recv()
        assert self.returncode is not None
        return self.returncode

    def end(self, timeout_s: float = 280) -> str:
        """Wait for its end; returns what it said."""
        self.wait(timeout_s)
        return self._log.read_text()


@functools.cache
def commands() -> Commands:
    """Those of the process of the tests that asked first, and of all that were forked from it; they end with it."""
    begun, owner = Commands().__enter__(), os.getpid()
    atexit.register(lambda: begun.__exit__() if os.getpid() == owner else None)
    return begun


def harness(
    *words: object, timeout_s: float = 280, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``harness WORDS`` to its end, in the folder and with the variables of this process where none are given.

    What a start costs, and which libraries it waits for, only ``python -m harness`` can tell.
    """
    return commands().run(*words, timeout_s=timeout_s, cwd=cwd, environment=environment)


class Server:
    """Forks for who connects, until the pipe ends.

    Args:
        listener: descriptor of the socket.
        alive: of the pipe.
    """

    def __init__(self, listener: int, alive: int) -> None:
        self._listener, self._alive = socket.socket(fileno=listener), alive
        self._pids: dict[Connection, int] = {}
        self._asked: set[Connection] = set()
        self._awake, self._alarm = os.pipe()
        self._ready = selectors.DefaultSelector()

    def serve(self) -> None:
        for descriptor in (self._awake, self._alarm):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        for each in (self._listener, self._alive, self._awake):
            self._ready.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._ready.select():
                if key.fileobj == self._alive:
                    return
                if key.fileobj == self._awake:
                    os.read(self._awake, 4096)
                    for connection in [*self._asked]:
                        try:
                            self._tell(connection, "end")
                        except ConnectionError:
                            self._forget(connection)
                elif key.fileobj is self._listener:
                    connection = Connection(self._listener.accept()[0].detach())
                    self._ready.register(connection, selectors.EVENT_READ)
                else:
                    self._heed(key.fileobj)

    def _heed(self, connection: Connection) -> None:
        try:
            told = connection.recv()
            if isinstance(told, str):
                self._tell(connection, told)
                return
            self._pids[connection] = pid = os.fork()
            if not pid:
                self._become(*told)
            connection.send(pid)
        except (EOFError, ConnectionError):
            self._forget(connection)

    def _tell(self, connection: Connection, what: str) -> None:
        """Its exit code, once; where it still runs, that it does, or nothing until it has ended."""
        if connection not in self._pids:
            return
        ended, status = os.waitpid(self._pids[connection], os.WNOHANG)
        if ended:
            del self._pids[connection]
            self._asked.discard(connection)
            connection.send(os.waitstatus_to_exitcode(status))
        elif what == "end":
            self._asked.add(connection)
        else:
            connection.send(None)

    def _forget(self, connection: Connection) -> None:
        """Who asked is gone."""
        self._ready.unregister(connection)
        connection.close()
        self._asked.discard(connection)
        if pid := self._pids.pop(connection, None):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _become(self, module: str, words: list[str], streams: tuple[str, str], cwd: str, environment: dict) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ready = [key.fileobj for key in self._ready.get_map().values()]
        self._ready.close()
        for each in (*ready, self._alarm):
            os.close(each) if isinstance(each, int) else each.close()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        run(module, words, *streams)


def main(listener: str, alive: str, *imported: str) -> None:
    for name in imported:
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would write to all that it shares with this process
    Server(int(listener), int(alive)).serve()


def run(module: str, words: list[str], stdout: str, stderr: str) -> NoReturn:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, stdout), (2, stderr)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
        sys.path[0] = str(Path.cwd())
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a program, which says it and ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
