"""requirements.txt is the one list: exact, complete, and nothing else has to be installed by hand."""

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.cases import every

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
PINNED = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in LINES if "==" in line}
# Modules that lie beside the file that imports them, on another machine's path.
NOT_PACKAGES = {"harness", "scripts", "tests"} | {path.stem for path in (ROOT / "tests").rglob("*.py")}


DISTRIBUTIONS = packages_distributions()


def imported_modules() -> set[str]:
    names = set()
    for folder in ("harness", "plugins", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                    names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - NOT_PACKAGES


def test_every_line_is_an_exact_version():
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+", line) for line in LINES)
    assert len(PINNED) == len(LINES)


@every(sorted(imported_modules()))
def test_every_import_is_on_the_list(module):
    distributions = {canonicalize_name(name) for name in DISTRIBUTIONS[module]}

    assert distributions & set(PINNED), f"{module} is imported and {distributions} is not in requirements.txt"


@every(sorted(PINNED))
def test_what_is_installed_is_what_is_pinned(name):
    assert version(name).split("+")[0] == PINNED[name]


@pytest.mark.parametrize(
    "name",
    [
        "ansible-core",
        "ansible-runner",
        "kubernetes",
        "jinja2",
        "torch",
        "nvidia-ml-py",
        "prometheus-api-client",
        "pandas",
        "pytest-testinfra",
    ],
)
def test_the_packages_this_project_is_built_on_are_there(name):
    assert name in PINNED
    assert "pynvml" not in PINNED  # a dead shim: the module comes from nvidia-ml-py
