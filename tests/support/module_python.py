"""The Python of Ansible's modules, for tests: one that has imported already what each of them begins with."""

import atexit
import functools
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

KEPT_BYTECODE = Path(__file__).with_name("kept_bytecode.py")
WARM = Path(__file__).with_name("warm_python")
WARM_SERVER = WARM / "server.py"
PROGRAM = """\
#!/bin/sh
KEPT_BYTECODE={folder}/kept PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} exec {folder}/client "$@"
"""


def warm_client(python: str, server: str, folder: str, mounts: str = "") -> str:
    """The program that stands where Ansible looks for a Python.

    python: what runs whatever else it is asked for. server: the path of `server.py`. folder: where that listens.
    mounts: the one mount namespace in which there is to be a server; none: whichever asks first.
    """
    program = (WARM / "client.pl").read_text()
    for name, value in {"@PYTHON@": python, "@PROGRAM@": server, "@FOLDER@": folder, "@MOUNTS@": mounts}.items():
        program = program.replace(name, value)
    return program


@functools.cache
def module_python() -> str:
    """This Python by another path, for ``ansible_python_interpreter``; gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="module-python-"))
    atexit.register(_end, folder, os.getpid())
    shutil.copy(KEPT_BYTECODE, folder / "sitecustomize.py")
    mounts = str(Path("/proc/self/ns/mnt").readlink())
    programs = {
        "client": warm_client(sys.executable, str(WARM_SERVER), f"{folder}/warm", mounts),
        "python": PROGRAM.format(folder=folder),
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return str(folder / "python")


def _end(folder: Path, owner: int) -> None:
    if os.getpid() != owner:
        return
    with suppress(FileNotFoundError, ValueError, ProcessLookupError):
        os.kill(int((folder / "warm/lock").read_text()), signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)
