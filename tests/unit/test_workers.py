"""Tests in several processes: what each of them tells, and what is said of one that died."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOOD = """
import os
def test_one(whole, tmp_path): (tmp_path / "mine").mkdir()
def test_two(whole, tmp_path): assert str(os.getpid()) in whole.name
"""
BAD = """
import pytest
def test_fails():
    print("this was printed")
    assert 1 == 2
def test_is_skipped(): pytest.skip("no reason")
"""
DEADLY = """
import os
def test_that_kills(): os._exit(7)
def test_after_it(): pass
"""
SHARED = """
import os, pytest
@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    made = tmp_path_factory.mktemp(f"of-{os.getpid()}-")
    yield made
    (made / "torn-down").touch()
"""


def test_every_module_runs_once_and_a_process_that_dies_is_a_failure(tmp_path):
    modules = {"test_a.py": GOOD, "test_b.py": BAD, "test_c.py": DEADLY, "test_d.py": GOOD, "conftest.py": SHARED}
    for name, text in modules.items():
        (tmp_path / name).write_text(text)
    words = f"-c {os.devnull} --rootdir {tmp_path} --basetemp {tmp_path / 'temporary'} -p tests.support.workers -p no:cacheprovider"
    command = [sys.executable, "-m", "pytest", *words.split(), "-rA", "--workers", "3", str(tmp_path)]
    wide = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(command, cwd=ROOT, env=wide, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed, 1 skipped" in done.stdout
    assert "this was printed" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert "::test_that_kills - its process ended with 7, and the rest of its module was not run" in done.stdout
    assert "test_after_it" not in done.stdout
    assert len(list(tmp_path.glob("temporary/worker-*/test_one0/mine"))) >= 1
    # Beside each folder pytest leaves a link to it.
    made = [folder for folder in tmp_path.glob("temporary/worker-*/of-*") if not folder.is_symlink()]
    left = [folder for folder in made if not (folder / "torn-down").exists()]
    assert len(made) > len(left) <= 1, "whoever died may have left one, and nobody else"
