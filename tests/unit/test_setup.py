"""scripts/setup with Pythons that only say what they were asked for."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """\
#!/bin/sh
# Its copy in a virtual environment is a program of the same version.
echo "$*" >>'{log}'
case "$*" in
  --version) echo 'Python {version}' ;;
  *version_info*) exit {too_old} ;;
  '-m venv .venv') mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *'-m pip install --no-index'*) exit 1 ;;
  *'requires("torch")'*) exit 1 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup", tmp_path / "scripts")
    (tmp_path / "requirements.txt").write_text("torch==2 \\\n    --hash=sha256:0\nnumpy==2 --hash=sha256:1\n")
    (tmp_path / "requirements-cuda.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def python(folder, version="3.12.1", too_old=False):
    program = folder / f"python-{version}"
    program.write_text(PYTHON.format(log=folder / "log", version=version, too_old=int(too_old)))
    program.chmod(0o755)
    return str(program)


def setup(folder, program):
    """What it ended with and said, and what it asked of pip and venv."""
    (folder / "log").write_text("")
    done = subprocess.run(
        [folder / "scripts/setup"],
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON": program},
        capture_output=True,
        text=True,
    )
    asked = [line for line in (folder / "log").read_text().splitlines() if line.startswith(("-m venv", "-m pip"))]
    return done, asked


def test_everything_is_installed_by_its_hash_and_once(checkout):
    program = python(checkout)
    done, asked = setup(checkout, program)
    assert done.returncode == 0, done.stderr
    assert asked[0] == "-m venv .venv"
    assert [("--require-hashes" in one, "--no-deps" in one) for one in asked[1:]] == [(True, True)] * 2 + [
        (False, True)
    ]
    assert (checkout / ".venv/torch.txt").read_text() == "torch==2 \\\n    --hash=sha256:0\n"
    assert setup(checkout, program)[1] == []
    (checkout / "requirements.txt").write_text("numpy==3 --hash=sha256:2\n")
    assert setup(checkout, program)[1] == asked[1:]


def test_another_python_makes_it_anew(checkout):
    setup(checkout, python(checkout))
    (checkout / ".venv/of-the-first").touch()
    _, asked = setup(checkout, python(checkout, "3.13.0"))
    assert asked[0] == "-m venv .venv"
    assert not (checkout / ".venv/of-the-first").exists()


def test_one_whose_making_was_killed_is_made_anew(checkout):
    program = python(checkout)
    (checkout / ".venv/bin").mkdir(parents=True)
    shutil.copy(program, checkout / ".venv/bin/python")
    done, asked = setup(checkout, program)
    assert done.returncode == 0, done.stderr
    assert asked[0] == "-m venv .venv"
    # One whose packages were not all installed needs nothing but those.
    (checkout / ".venv/.installed").unlink()
    assert setup(checkout, program)[1] == asked[1:]


def test_a_python_that_is_too_old_is_refused_with_what_to_do(checkout):
    done, asked = setup(checkout, python(checkout, "3.10.0", too_old=True))
    assert (done.returncode, asked) == (2, [])
    assert "no Python 3.11 or newer was found. do: apt-get install python3, or set PYTHON=" in done.stderr
