"""The harness's commands, each forked from a process that has imported it: for tests that start it over and over.

So are replicas, from one that has imported torch.
"""

import atexit
import functools
import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]


HARNESS = ("harness.backends.local", "harness.campaign.runner", "harness.campaign.verify", "harness.cli.app")


class Commands:
    """Starts one command after another; ends with the block.

    Args:
        module: each is ``python -m`` of it.
        imported: before the first.
    """

    def __init__(self, module: str = "harness", imported: Sequence[str] = HARNESS) -> None:
        self._module, self._imported = module, imported

    def __enter__(self):
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), self._module, *self._imported]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
        theirs.close()
        return self

    def __exit__(self, *_):
        self._connection.close()
        self._process.wait(60)

    def start(
        self,
        *words: object,
        log: Path,
        errors: Path | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Command":
        """``harness WORDS``, whose words go to the log (its errors too, or elsewhere); the one before has ended."""
        streams = (str(log), str(errors or log))
        for stream in streams:
            Path(stream).write_bytes(b"")  # here: a command that is killed at once has opened none
        variables = dict(os.environ if environment is None else environment)
        self._connection.send(([*map(str, words)], streams, str(cwd or Path.cwd()), variables))
        return Command(self._connection, self._connection.recv(), log)

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
    """A command that runs or has run."""

    def __init__(self, connection: Connection, pid: int, log: Path) -> None:
        self._connection, self.pid, self._log = connection, pid, log
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Until its end is asked for, the pid is nobody else's."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.end()

    def wait(self, timeout_s: float) -> int:
        """Its exit code, once it has ended."""
        self.end(timeout_s)
        assert self.returncode is not None
        return self.returncode

    def end(self, timeout_s: float = 280) -> str:
        """Wait for its end; returns what it said."""
        self._connection.send(None)
        assert self._connection.poll(timeout_s), f"it still runs:\n{self._log.read_text()}"
        self.returncode = self._connection.recv()
        return self._log.read_text()


@functools.cache
def _commands() -> Commands:
    """Those of this process of the tests; they end with it."""
    commands = Commands().__enter__()
    atexit.register(commands.__exit__)
    return commands


def harness(
    *words: object, timeout_s: float = 280, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``harness WORDS`` to its end, in the folder and with the variables of this process where none are given.

    What a start costs, and which libraries it waits for, only ``python -m harness`` can tell.
    """
    return _commands().run(*words, timeout_s=timeout_s, cwd=cwd, environment=environment)


def main(descriptor: int, module: str, *imported: str) -> None:
    for name in imported:
        importlib.import_module(name)
    connection = Connection(descriptor)
    while True:
        try:
            words, streams, cwd, environment = connection.recv()
        except EOFError:
            return
        pid = os.fork()
        if not pid:
            connection.close()
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(environment)
            run(module, words, *streams)
        connection.send(pid)
        connection.recv()
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def run(module: str, words: list[str], stdout: str, stderr: str) -> NoReturn:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in ((1, stdout), (2, stderr)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
        sys.path[0] = str(Path.cwd())
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__")
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
    main(int(sys.argv[1]), *sys.argv[2:])
