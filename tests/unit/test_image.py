"""The harness's own image: its Containerfile read strictly, and the versions that it takes from the lock."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "images/Containerfile").read_text()
KNOWN = {"ARG", "FROM", "COPY", "RUN", "ENV", "WORKDIR", "USER", "STOPSIGNAL", "ENTRYPOINT"}


def instructions():
    """Instruction and argument, line by line; continuations joined, comments left out."""
    lines = [line for line in re.sub(r"\\\n", " ", TEXT).splitlines() if line.strip() and not line.startswith("#")]
    return [(name, argument.strip()) for name, _, argument in (line.partition(" ") for line in lines)]


def arguments(name):
    return [argument for found, argument in instructions() if found == name]


def test_it_has_known_instructions_and_one_stage():
    assert {name for name, _ in instructions()} == KNOWN
    assert arguments("FROM") == ["${BASE}"]
    assert arguments("ARG") == ["BASE", 'EXTRAS=""']


def test_nothing_of_the_machine_goes_in():
    (run,) = arguments("RUN")

    assert "--mount=type=secret" in run
    assert not re.search(r"https?://|curl|wget|apt-get", run)


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
