"""How every test is run: nothing is compiled twice, and what is collected is not looked through for garbage."""

import gc
import os
import sys
from collections.abc import Iterator

import pytest

# A shell or CI may say that Python keeps nothing it compiles: then each process of each test compiles it all again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection, which would go through modules and tests that all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
