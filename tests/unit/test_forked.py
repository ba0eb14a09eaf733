"""Commands that are forked from one process: beside each other, each with its own streams, folder, variables and end."""

import signal
from pathlib import Path

import pytest

from tests.support.forked import Commands
from tests.support.processes import eventually

PROGRAM = """
import os, sys, time
print(os.getcwd(), os.environ.get("GIVEN"), sys.argv[1:], __name__, sys.modules["__main__"].__file__, flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(sys.argv[1])
"""


@pytest.fixture(scope="module")
def commands():
    with Commands("own", ["json"]) as begun:
        yield begun


@pytest.fixture
def start(commands, tmp_path):
    def start(*words, environment=None):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "own.py").write_text(PROGRAM)
        streams = {"log": folder / "said", "errors": folder / "errors"}
        return folder, commands.start(*words, **streams, cwd=folder, environment=environment)

    return start


def test_each_has_its_own_words_folder_variables_and_code(start):
    folder, command = start("no luck", 7, environment={"GIVEN": "given"})

    said = command.end()

    assert said == f"{folder} given ['no luck', '7'] __main__ {folder / 'own.py'}\n"
    assert (command.returncode, command.poll(), command.wait()) == (1, 1, 1)
    assert (folder / "errors").read_text() == ""


def test_they_run_beside_each_other_and_the_end_of_one_is_not_that_of_another(start):
    (folder, first), (_, second), (_, third) = start("wait"), start("wait"), start("0")
    assert eventually((folder / "said").read_text)

    assert third.wait() == 1, "a text is an error"
    with pytest.raises(AssertionError, match="it still runs"):
        first.wait(0.1)
    assert (first.poll(), second.poll()) == (None, None)
    second.kill()
    assert (first.poll(), second.returncode) == (None, -signal.SIGKILL)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == -signal.SIGTERM


def test_what_nobody_can_ask_for_any_more_is_killed(start):
    _, command = start("wait")
    place = Path("/proc", str(command.pid))
    assert place.exists()

    del command

    assert eventually(lambda: not place.exists())
