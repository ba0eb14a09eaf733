"""The Python that tests give to Ansible's modules differs from Python in nothing that a module sees, but its time."""

import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible import module_utils

from tests.support.module_python import WARM_SERVER, module_python, warm_client
from tests.support.processes import eventually

SAYS_ALL = """
import os, sys
names = sorted((name, repr(value)) for name, value in globals().items() if name not in ("os", "sys"))
streams = [(each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)]
variables = sorted((name, value) for name, value in os.environ.items() if name not in ("_", "SHLVL", "PWD"))
print(names, streams, variables, sys.argv, sys.path, sys.flags, sys.executable, sys.prefix, sys.modules["__main__"])
print(os.getcwd(), os.umask(0), sorted(os.listdir("/proc/self/fd"))[:4], open("/proc/self/cgroup").read(), sys.stdin.read())
print("and this", file=sys.stderr)
"""
SAYS_WHOSE = """
import sys
sys.path.insert(0, {path!r})
from ansible.module_utils import basic
from ansible.module_utils.common import warnings
print(basic.__file__, getattr(basic, "MARK", None), "ansible.module_utils.errors" in sys.modules)
"""
ENDS = {"sys.exit()": 0, "sys.exit(3)": 3, "sys.exit('no')": 1, "1 / 0": 1, "os.kill(os.getpid(), 9)": -9, "": 0}

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
TAKES_STREAMS = os.geteuid() == 0 or not YAMA.exists() or YAMA.read_text().strip() == "0"


@pytest.fixture(scope="module")
def warm():
    """It, served from the second time on."""
    if not TAKES_STREAMS:
        pytest.skip("this system lets only root take another process's streams (kernel.yama.ptrace_scope)")
    python = module_python()
    subprocess.run([python], input=b"", check=True)
    assert eventually(lambda: answers(python))
    return python


def answers(warm):
    """Whether there is a server: one that was killed leaves its socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(f"{Path(warm).parent}/warm/socket") == 0


def served(warm, script, **options):
    return subprocess.run([warm], input=script, capture_output=True, text=True, check=False, **options)


def server_of(warm):
    return (Path(warm).parent / "warm/lock").read_text()


def test_it_is_run_by_the_server_and_sees_what_python_would_show_it(warm, tmp_path):
    by_whom = "import os; print(os.getppid(), os.getsid(0) == os.getpid())"
    assert served(warm, by_whom).stdout.split() == [server_of(warm), "True"]
    folder = Path(warm).parent
    environment = os.environ | {"MORE": "a=b\nc", "KEPT_BYTECODE": f"{folder}/kept", "PYTHONPATH": str(folder)}
    environment.pop("LC_CTYPE", None)
    words = {"input": SAYS_ALL, "capture_output": True, "text": True, "cwd": tmp_path, "umask": 0o27}
    plain = subprocess.run([sys.executable], check=True, env=environment, **words)
    del environment["PYTHONPATH"]
    found = subprocess.run([warm], check=True, env=environment, **words)
    assert (found.stdout, found.stderr) == (plain.stdout, plain.stderr)
    assert str(tmp_path) in found.stdout


@pytest.mark.parametrize("statement", ENDS)
def test_it_ends_as_python_does(warm, statement):
    script = f"import atexit, os, sys\natexit.register(print, 'at the end')\nprint('said', end=' ')\n{statement}\n"
    found = served(warm, script)
    assert found.returncode == ENDS[statement]
    if ENDS[statement] >= 0:
        assert found.stdout == "said at the end\n"
    assert ("ZeroDivisionError" in found.stderr, found.stderr == "no\n") == ("/" in statement, "no" in statement)


def test_whoever_kills_the_client_kills_the_module(warm, tmp_path):
    script = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    (tmp_path / "script").write_text(script)
    with (tmp_path / "script").open() as stream, subprocess.Popen([warm], stdin=stream) as client:
        assert eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        module = Path("/proc", (tmp_path / "pid").read_text())
        assert module.exists()
        client.terminate()
        assert client.wait() == -signal.SIGTERM
    assert eventually(lambda: not module.exists())
    assert served(warm, "print('again')").stdout == "again\n"


def sent(path, mark=""):
    """A zip file as Ansible sends it, with a mark in one of its modules, and without one that nobody asked for."""
    sources = Path(str(module_utils.__file__)).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("ansible/__init__.py", "ansible/module_utils/__init__.py"):
            file.writestr(name, "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n")
        for source in sorted(sources.rglob("*.py")):
            name = source.relative_to(sources.parents[1])
            if name.parts[2:] not in {("__init__.py",), ("errors.py",)}:
                more = mark if name.name == "basic.py" else ""
                file.writestr(str(name), source.read_bytes() + more.encode())
    return str(path)


def test_another_module_that_was_sent_is_the_one_that_runs(warm, tmp_path):
    path = sent(tmp_path / "sent.zip", mark="\nMARK = 'other'\n")
    found = served(warm, SAYS_WHOSE.format(path=path))
    assert found.stdout.split()[:2] == [f"{path}/ansible/module_utils/basic.py", "other"], found.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a namespace of its own and fewer rights")
@pytest.mark.parametrize(
    "other", [("unshare", "--mount"), ("unshare", "--net"), ("setpriv", "--bounding-set=-sys_time")]
)
def test_other_rights_and_another_system_are_pythons_own(warm, other):
    script = b"import os; print(os.getppid())"
    found = subprocess.run([*other, warm], input=script, capture_output=True, check=True)
    assert found.stdout.decode().strip() != server_of(warm)


# A program as the server imports it, by the name of one that it knows.
KUBECTL = """\
import os, sys
def main():
    print(os.getppid(), sys.argv[1:], os.environ["SAID"], sys.stdin.read())
    raise SystemExit(3)
"""


@pytest.mark.skipif(not TAKES_STREAMS, reason="this system lets only root take another process's streams")
def test_a_program_is_run_with_its_arguments_by_the_server_that_has_imported_it(tmp_path):
    programs, client, warm = tmp_path / "programs", tmp_path / "kubectl", tmp_path / "warm"
    programs.mkdir()
    for name, text in (("crictl", ""), ("serving", ""), ("kubectl", KUBECTL)):
        (programs / f"{name}.py").write_text(text)
    server = f"{sys.executable} {WARM_SERVER}"
    client.write_text(warm_client("/bin/false", server, str(warm), programs=[str(programs)]))
    client.chmod(0o755)
    environment = {**os.environ, "SAID": "here", "LC_ALL": "C"}

    def call():
        words = [client, "get", "two words", ""]
        return subprocess.run(words, input="input", env=environment, capture_output=True, text=True, check=False)

    # What it calls plainly, until the server listens, ends with 1.
    assert eventually(lambda: call().returncode != 1)
    listens = (warm / "lock").read_text()
    try:
        done = call()
        wanted = f"{listens} ['get', 'two words', ''] here input\n"
        assert (done.returncode, done.stdout) == (3, wanted), done.stderr
    finally:
        os.kill(int(listens), signal.SIGTERM)
