"""What the base installation leaves out is asked for only by what needs it, and then named with what to do."""

import subprocess
import sys

import pytest

from harness.extras import EXTRA_OF, absent, advice_on
from tests.unit.results.synthetic import Shape, write_experiment

ABSENT = [*EXTRA_OF, "ansible", "uvloop", "pytest", "transformers"]
BARE = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}));"
EVERY_MODULE = """
import importlib, pkgutil, harness
for module in pkgutil.walk_packages(harness.__path__, "harness."):
    if not module.name.startswith("harness.replica") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def bare(program, *words):
    return subprocess.run(
        [sys.executable, "-c", BARE + program, *words], capture_output=True, text=True, timeout=240, check=False
    )


def command(*words):
    return bare("from harness.cli import main; sys.argv[0] = 'harness'; main()", *words)


def test_no_module_beside_the_replicas_needs_an_extra():
    done = bare(EVERY_MODULE)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("--help",), ("schema",), ("validate", "smoke")], ids=" ".join)
def test_base_commands_work_without_extras(words):
    done = command(*words)

    assert done.returncode == 0, done.stderr


def test_a_plan_says_what_to_install_for_replicas_here():
    assert "not installed. Install it: pip install 'gpu-sharing-harness[replica]'" in command("plan", "smoke").stdout


def test_a_profile_is_refused_as_a_run_is(tmp_path):
    done = command("profile", "resnet50", "--results", str(tmp_path))

    assert (done.returncode, list(tmp_path.iterdir())) == (3, [])
    assert done.stderr.count("needs torch, which is not installed") == 1


def test_a_node_command_says_what_to_install():
    done = command("node", "offline-list")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: This needs ansible_runner, which is not installed.",
        "  do: pip install 'gpu-sharing-harness[node]'",
    ]


def test_a_report_without_matplotlib_has_svgs_and_says_what_to_install_once(tmp_path):
    write_experiment(tmp_path, "resnet50", 1, shape=Shape(record_s=10))
    done = command("report", str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'gpu-sharing-harness[plot]'") == 1
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".svg"}


CLUSTER = "name: mine\nbackend: kubernetes\nkubernetes: {}\nworkloads: [{name: resnet50}]\nreplicas: [1]\nmetrics: [throughput]\n"


@pytest.mark.parametrize("words", [("doctor", "--kubernetes"), ("plan",)], ids=" ".join)
def test_a_cluster_command_says_what_to_install(words, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(CLUSTER)
    done = command(words[0], str(file), *words[1:])

    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: This needs kubernetes, which is not installed.",
        "  do: pip install 'gpu-sharing-harness[kubernetes]'",
    ]


def test_a_module_that_no_extra_brings_has_no_advice():
    assert advice_on("torch.nn") == "pip install 'gpu-sharing-harness[replica]'"
    assert advice_on("word_count") == ""
    assert absent("json", "no_such_module") == ["no_such_module"]
