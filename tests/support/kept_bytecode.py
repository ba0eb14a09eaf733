"""What a Python that imports this compiles of modules in zip files is kept in a folder, for the next one.

Ansible sends each task's module as a zip of sources, and Python compiles all fifty of them anew each time: half of the
second that a module takes on the booted machine, a tenth of a second here.
"""

import marshal
import os
import zipimport
from _imp import _fix_co_filename, source_hash

FOLDER = os.environ.get("KEPT_BYTECODE", "/run/kept_bytecode")

_compile = zipimport._compile_source


def _kept(path, source):
    name = f"{FOLDER}/{os.path.basename(path)}-{source_hash(0, source).hex()}"
    try:
        with open(name, "rb") as stream:
            code = marshal.load(stream)
    except (OSError, ValueError, EOFError):  # not yet, or torn by a kill
        return _compiled(path, source, name)
    _fix_co_filename(code, path)  # where it lies this time
    return code


def _compiled(path, source, name):
    code = _compile(path, source)
    try:
        os.makedirs(FOLDER, exist_ok=True)
        with open(f"{name}.{os.getpid()}", "wb") as stream:
            marshal.dump(code, stream)
        os.replace(stream.name, name)
    except OSError:  # no root, or a disk that a test has filled
        pass
    return code


zipimport._compile_source = _kept
