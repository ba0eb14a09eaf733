"""The Python of Ansible's modules, for tests that run tasks on this machine: it keeps what it compiles of them."""

import atexit
import functools
import shutil
import sys
import tempfile
from pathlib import Path

KEPT_BYTECODE = Path(__file__).with_name("kept_bytecode.py")
PROGRAM = """\
#!/bin/sh
KEPT_BYTECODE={folder}/kept PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} "$@"
"""


@functools.cache
def module_python() -> str:
    """This Python by another path, for ``ansible_python_interpreter``; gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="module-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(KEPT_BYTECODE, folder / "sitecustomize.py")
    program = folder / "python"
    program.write_text(PROGRAM.format(folder=folder, python=sys.executable))
    program.chmod(0o755)
    return str(program)
