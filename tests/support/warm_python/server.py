"""A Python that has imported what Ansible's modules begin with, and forks for each of them: `server.py FOLDER`.

Or one that has imported programs, and forks for each call of one: `server.py FOLDER FOLDERS-OF-PROGRAMS...`.

A client (client.pl) connects to FOLDER/socket and says its umask, the arguments of a program, and its environment. It gets one byte where it is served,
then two: the signal and the exit status with which ended what came on its standard input. The fork has the client's
streams, working directory and control group, and a session of its own; it is killed where the client dies. Who has
other rights, namespaces or settings of Python than the server is not served.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import types
import zipimport
import zlib
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, ModuleSpec
from pathlib import Path

# What nearly every module imports, and what the wrapper around each of them needs.
PRELOADED = (
    *("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader"),
    *("base64", "datetime", "glob", "grp", "pwd", "resource", "runpy", "tempfile", "zipfile"),
)
# Programs that are called often, and what they import late.
PROGRAMS = ("kubectl", "crictl", "serving")
# These come with each module and say where the others lie.
TOP = ("ansible", "ansible.module_utils")
PIDFD_GETFD = 438  # on every architecture
ASK_WITHIN_S = 10.0
# Nobody asks any more: the tests that began this are over.
IDLE_S = 300
_DIRECTORY_CRC = 7
_LIBC = ctypes.CDLL(None, use_errno=True)


class Preloaded:
    """Finds the modules that were imported before the fork, where those that were sent are the same to the byte."""

    def __init__(self) -> None:
        installed = Path(str(sys.modules["ansible"].__file__)).parents[1]
        names = [name for name in sys.modules if name.startswith("ansible.") and name not in TOP]
        self._modules = {name: sys.modules.pop(name) for name in names}
        for name in TOP:
            del sys.modules[name]
        self._files: dict[str, str] = {}  # those that have one, by where it lies in the folder, and in what is sent
        self._sums: dict[str, int] = {}
        for name in names:
            for file in (f"{name.replace('.', '/')}/__init__.py", f"{name.replace('.', '/')}.py"):
                if (installed / file).exists():
                    self._files[name] = file
                    self._sums[name] = zlib.crc32((installed / file).read_bytes())

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Asked once, for the first one: all of them are there from then on, or none."""
        if name in TOP or not name.startswith("ansible."):
            return None
        sys.meta_path.remove(self)
        folder = sys.path[0]
        sent = self._sent(folder)
        if name not in sent or any(self._sums[each] != found for each, found in sent.items()):
            return None
        for each, module in self._modules.items():
            parent, _, child = each.rpartition(".")
            if each in self._files and each not in sent:
                vars(self._modules.get(parent, self)).pop(child, None)
                continue
            sys.modules[each] = module
            if self._files.get(each, "").endswith("/__init__.py"):
                module.__path__ = [f"{folder}/{each.replace('.', '/')}"]
            if parent in TOP:
                setattr(sys.modules[parent], child, module)
        del sys.modules[name]  # whoever asks puts it there, and would import anew what was there before
        return ModuleSpec(name, self)

    def _sent(self, path: str) -> dict[str, int]:
        """Those of ours that are in a zip file, with their checksums there."""
        try:
            zipimport.zipimporter(path)
        except zipimport.ZipImportError:
            return {}
        directory = zipimport._zip_directory_cache[path]
        return {name: directory[file][_DIRECTORY_CRC] for name, file in self._files.items() if file in directory}

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """The one that is there."""
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Done before the fork."""


def parsed(environment: bytes) -> dict[str, str]:
    """Variables from the bytes in which a process has them."""
    pairs = (os.fsdecode(each).split("=", 1) for each in environment.split(b"\0") if b"=" in each)
    return dict(pairs)


def settings(environment: dict[str, str]) -> dict[str, str]:
    """What Python asks of its environment as it starts."""
    return {name: value for name, value in environment.items() if name.startswith(("LC_", "LANG", "PYTHON"))}


def standing(process: int | str) -> list[str]:
    """What a process may do and what it sees of the system: a fork of ours has the same as we."""
    folder = Path("/proc", str(process))
    spaces = [f"{each.name} {each.readlink()}" for each in sorted((folder / "ns").iterdir())]
    rights = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:")
    lines = (folder / "status").read_text().splitlines()
    return [*spaces, str((folder / "root").stat()[:3]), *(line for line in lines if line.startswith(rights))]


BEGAN_WITH = parsed(Path("/proc/self/environ").read_bytes())
STANDING = standing("self")
# Python sets LC_CTYPE itself where there is no locale.
SET_BY_PYTHON = {name: value for name, value in os.environ.items() if name not in BEGAN_WITH}


class Client:
    """Somebody who waits; what is not said is taken from the process itself.

    Raises OSError, ValueError: it cannot be served.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(ASK_WITHIN_S)
        said = b""
        while part := connection.recv(1 << 16):
            said += part
        umask, count, rest = said.split(b"\0", 2)
        *arguments, environment = rest.split(b"\0", int(count))
        self._umask = int(umask)
        self.arguments = [os.fsdecode(each) for each in arguments]
        self._environment = parsed(environment)
        if not arguments and settings(self._environment) != settings(BEGAN_WITH):
            raise ValueError("its Python would have other settings")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self._pid = int.from_bytes(credentials[:4], sys.byteorder)
        if standing(self._pid) != STANDING:
            raise ValueError("its rights are others, or its system")
        self._streams: list[int] = []
        self.fork = self.fork_ended = 0

    def take_streams(self) -> None:
        """Have its standard input, output and error open here too, until they are let go."""
        process = os.pidfd_open(self._pid)
        try:
            for number in range(3):
                stream = _LIBC.syscall(PIDFD_GETFD, process, number, 0)
                if stream < 0:
                    raise OSError(ctypes.get_errno(), f"no stream {number} of process {self._pid}")
                self._streams.append(stream)
        finally:
            os.close(process)

    def let_streams_go(self) -> None:
        """They are to end with the fork."""
        for stream in self._streams:
            os.close(stream)
        self._streams.clear()

    def stand_for(self) -> None:
        """Make this process the one that the client waits for."""
        os.setsid()
        for number, stream in enumerate(self._streams):
            os.dup2(stream, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(f"/proc/{self._pid}/cwd")
        os.umask(self._umask)
        os.environ.clear()
        os.environ.update(self._environment | SET_BY_PYTHON)
        mine, its = (Path(f"/proc/{pid}/cgroup").read_text() for pid in ("self", self._pid))
        if mine != its:
            Path(f"/sys/fs/cgroup{its.strip().partition('::')[2]}/cgroup.procs").write_text("0")

    def tell(self, answer: bytes) -> None:
        """Say something to the client, who may be gone."""
        with contextlib.suppress(OSError):
            self.connection.sendall(answer)


class Server:
    """Forks for each client."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._clients: dict[int, Client] = {}

    def serve(self) -> Client | None:
        """Return in each fork, with the client that it is for; and None when nobody has come for long."""
        while events := self._poll.poll(None if self._clients else IDLE_S * 1000):
            for fd, _ in events:
                if fd == self._listener.fileno():
                    if client := self._accept():
                        return client
                elif client := self._clients.get(fd):
                    self._end(client, fd)
        return None

    def _accept(self) -> Client | None:
        connection, _ = self._listener.accept()
        try:
            client = Client(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        try:
            client.take_streams()
            client.fork = os.fork()
        except OSError:
            client.let_streams_go()
            connection.close()
            return None
        if client.fork == 0:
            for each in (self._listener, connection, *(other.connection for other in self._clients.values())):
                each.detach()
            return client
        client.let_streams_go()
        client.tell(b"y")
        client.fork_ended = os.pidfd_open(client.fork)
        self._clients |= {client.fork_ended: client, connection.fileno(): client}
        self._poll.register(client.fork_ended, select.POLLIN)
        self._poll.register(connection, 0)  # nothing but its end, which needs no asking for
        return None

    def _end(self, client: Client, fd: int) -> None:
        if fd != client.fork_ended:
            self._poll.unregister(fd)
            os.kill(client.fork, signal.SIGKILL)
            return
        _, status = os.waitpid(client.fork, 0)
        code = os.waitstatus_to_exitcode(status)
        client.tell(bytes([-code, 0] if code < 0 else [0, code]))
        for each in (client.fork_ended, client.connection.fileno()):
            del self._clients[each]
            with contextlib.suppress(KeyError):
                self._poll.unregister(each)
        os.close(client.fork_ended)
        client.connection.close()


def run_input() -> None:
    """Run what comes on standard input as Python does."""
    sys.argv[:] = [""]
    sys.path[0] = ""
    with open(0, "rb", closefd=False) as stream:
        source = stream.read()
    script = types.ModuleType("__main__")
    builtins = sys.modules["builtins"]
    its = {"__annotations__": {}, "__builtins__": builtins, "__cached__": None, "__file__": "<stdin>"}
    vars(script).update(its, __loader__=BuiltinImporter)
    sys.modules["__main__"] = script
    exec(compile(source, "<stdin>", "exec"), vars(script))  # noqa: S102 - this stands for Python


def run_program(arguments: list[str]) -> None:
    """Run the program that the first argument is the path of."""
    sys.argv[:] = arguments
    sys.modules[Path(arguments[0]).name].main()


def ended(work: Callable[[], None]) -> int:
    """Do it, and end as Python ends: the exit status."""
    status = 0
    try:
        work()
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - whatever there is, Python ends so
        sys.excepthook(*sys.exc_info())
        status = 1
    return status & 0xFF


def main() -> None:
    """Listen in the folder that the first argument names, unless another does; the others: where programs lie."""
    folder, programs = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    os.chdir("/")
    if programs and Path("/run/systemd/system").is_dir():
        with contextlib.suppress(OSError):  # a service that asked first would take it along when it ends
            Path("/sys/fs/cgroup/cgroup.procs").write_text("0")
    sys.path[:0] = programs
    for name in PROGRAMS if programs else PRELOADED:
        importlib.import_module(name)
    preloaded = None if programs else Preloaded()
    path = folder / "socket.new"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    path.rename(folder / "socket")  # which so answers from the first moment that it is seen
    # Pages that no collection of garbage touches are not copied in the forks.
    gc.collect()
    gc.freeze()
    client = Server(listener).serve()
    if client is None:
        (folder / "socket").unlink(missing_ok=True)
        return
    client.stand_for()
    if preloaded is None:
        status = ended(lambda: run_program(client.arguments))
    else:
        sys.meta_path.insert(0, preloaded)
        status = ended(run_input)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Freeing what there is would copy all of it first.
    os._exit(status)


if __name__ == "__main__":
    main()
