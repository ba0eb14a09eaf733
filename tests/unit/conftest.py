"""What several test files need: the published sets, unpacked."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.results.published import unpack

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def published() -> Iterator[Callable[[str], list[Path]]]:
    """Folders of the published sets whose names match a pattern; each is unpacked once, and is not to be changed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = functools.cache(lambda archive: unpack(archive, Path(temporary)))
        yield lambda pattern: [folder(archive) for archive in sorted(EXAMPLES.glob(f"*/{pattern}"))]
