"""The Python of Ansible's modules, for tests: one that has imported already what each of them begins with."""

import atexit
import functools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KEPT_BYTECODE = Path(__file__).with_name("kept_bytecode.py")
WARM = Path(__file__).with_name("warm_python")
WARM_SERVER = WARM / "server.py"
PROGRAM = """\
#!/bin/sh
KEPT_BYTECODE={folder}/kept PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} exec {folder}/client "$@"
"""


def warm_client(python: str, server: str, folder: str, mounts: str = "", *, programs: Sequence[str] = ()) -> str:
    """The program that stands where Ansible looks for a Python, or where one of the programs lies that a server has imported.

    python: what runs whatever else it is asked for. server: its Python and the path of `server.py`. folder: where that
    listens. mounts: the one mount namespace in which there is to be a server; none: whichever asks first. programs: the
    folders in which programs are looked for.
    """
    program = (WARM / "client.pl").read_text()
    words = " ".join([server, folder, *programs])
    values = {"@PYTHON@": python, "@SERVER@": words, "@FOLDER@": folder, "@MOUNTS@": mounts}
    for name, value in {**values, "@PROGRAMS@": "yes" if programs else ""}.items():
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
        "client": warm_client(sys.executable, f"{sys.executable} {WARM_SERVER}", f"{folder}/warm", mounts),
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
