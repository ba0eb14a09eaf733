"""The harness's own image: its Containerfile read strictly, and the versions that it takes from the lock."""

import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "images/Containerfile").read_text()


def instructions():
    """Instruction and argument, line by line; continuations joined, comments left out."""
    lines = [line for line in re.sub(r"\\\n", " ", TEXT).splitlines() if line.strip() and not line.startswith("#")]
    return [(name, argument.strip()) for name, _, argument in (line.partition(" ") for line in lines)]


def arguments(name):
    return [argument for found, argument in instructions() if found == name]


def test_nothing_of_the_machine_goes_in():
    dependencies, ours = arguments("RUN")

    assert "--mount=type=secret" in dependencies
    assert "--no-index --no-deps" in ours
    assert not re.search(r"https?://|curl|wget|apt-get", dependencies + ours)


def test_our_code_comes_in_the_layer_after_what_it_needs():
    order = [
        argument.split()[0] if name == "COPY" else "" for name, argument in instructions() if name in {"COPY", "RUN"}
    ]
    assert order == ["requirements.txt", "", "gpu_sharing_harness-*.whl", ""]


@pytest.mark.parametrize(
    ("given", "extras"), [("", ""), ("[replica]", "replica"), ("[node,serve]", "node serve replica"), ("[all]", "*")]
)
def test_what_is_asked_for_is_what_the_wheel_asks_for(given, extras):
    program = [sys.executable, ROOT / "images/dependencies.py", ROOT / "pyproject.toml", given]
    listed = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()

    asked = {str(Requirement(line)) for line in listed}
    expected = set()
    for need in map(Requirement, requires("gpu-sharing-harness")):
        wanted = extras.split() if extras != "*" else metadata("gpu-sharing-harness").get_all("Provides-Extra")
        if need.name != "gpu-sharing-harness" and any(
            need.marker is None or need.marker.evaluate({"extra": extra}) for extra in ["", *wanted]
        ):
            need.marker = None
            expected.add(str(need))
    assert asked == expected


def test_an_extra_that_there_is_not_is_an_error():
    program = [sys.executable, ROOT / "images/dependencies.py", ROOT / "pyproject.toml", "[replicas]"]
    assert subprocess.run(program, check=False, capture_output=True, timeout=60).returncode != 0


def test_it_runs_the_command_as_nobody_without_a_shell():
    assert arguments("USER") == ["65534:65534"]
    assert arguments("ENTRYPOINT") == ['["harness"]']


def test_the_lock_becomes_the_versions_that_pip_may_take():
    expressions = re.findall(r"-e '([^']+)'", arguments("RUN")[0])
    words = [word for expression in expressions for word in ("-e", expression)]

    made = subprocess.run(
        ["sed", *words, ROOT / "requirements.txt"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()

    assert all(re.fullmatch(r"#.*|[a-zA-Z0-9._-]+==[^ ;\\]+( ; .+[^\\ ])?", line) for line in made if line)
    assert any(line.startswith("numpy==") for line in made)
