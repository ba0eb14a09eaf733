"""Files that came with the pod, in compressed parts: put together, and named in what the server is asked."""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from harness.spec.server import ServerSpec

FOLDER_VARIABLE = "GIVEN_DIR"
"""The folder with ``NAME.000``, ``NAME.001``, ... for every file; not set: files are where the campaign file says."""


def unpacked(engine: ServerSpec, target: Path, environment: Mapping[str, str] = os.environ) -> ServerSpec:
    """The same with the paths of its files in the folder ``target``, where they are written. Raises OSError."""
    if FOLDER_VARIABLE not in environment:
        return engine
    parts = defaultdict(list)
    for path in sorted(Path(environment[FOLDER_VARIABLE]).glob("*.[0-9][0-9][0-9]")):
        parts[path.stem].append(path.read_bytes())
    target.mkdir(parents=True, exist_ok=True)
    for name, data in parts.items():
        (target / name).write_bytes(gzip.decompress(b"".join(data)))
    return engine.with_files(lambda name: str(target / name))
