"""A stand-in for CUDA's driver, compiled where there is a C compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_cuda.c")


def library_folder(tmp_path: Path) -> str:
    """The folder with the stand-in, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    folder = tmp_path / "cuda"
    folder.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", SOURCE], check=True)
    return str(folder)
