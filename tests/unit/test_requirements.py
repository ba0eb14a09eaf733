"""requirements.txt is the lock: exact, hashed, complete, made from pyproject.toml, and nothing else is installed by hand."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.cases import every

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?P<pin>[^\s#][^\\\n]*?)(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
LISTS = {name: (ROOT / name).read_text() for name in ("requirements.txt", "requirements-cuda.txt")}
PINS = {name: [Requirement(block["pin"]) for block in BLOCK.finditer(text)] for name, text in LISTS.items()}
PINNED = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in PINS["requirements.txt"]}
# A torch for GPUs asks for the other list, too.
ALL = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pins in PINS.values() for pin in pins}
HERE = [pin for pin in PINS["requirements.txt"] if pin.marker is None or pin.marker.evaluate()]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
DIRECT = [
    Requirement(line)
    for group in (PROJECT["project"]["dependencies"], *EXTRAS.values(), *PROJECT["dependency-groups"].values())
    for line in group
]
OURSELVES = PROJECT["project"]["name"]
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


@pytest.mark.parametrize("name", LISTS)
def test_every_line_is_an_exact_version_with_hashes(name):
    rest = BLOCK.sub("", LISTS[name]).strip().splitlines()

    assert [line for line in rest if line and not line.startswith("#")] == []
    assert all([each.operator for each in pin.specifier] == ["=="] for pin in PINS[name])
    assert len({canonicalize_name(pin.name) for pin in PINS[name]}) == len(PINS[name]) > 0


@every([each for each in DIRECT if each.name != OURSELVES])
def test_every_direct_dependency_is_locked_at_a_version_it_allows(direct):
    assert direct.specifier.contains(PINNED[canonicalize_name(direct.name)])


@every(HERE)
def test_what_a_locked_package_needs_is_locked_too(pin):
    needs = [Requirement(line) for line in requires(pin.name) or ()]
    wanted = [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]

    for each in wanted:
        assert each.specifier.contains(ALL[canonicalize_name(each.name)], prereleases=True), f"{pin} needs {each}"


def test_extras_name_extras_that_exist():
    named = {extra for each in DIRECT if each.name == OURSELVES for extra in each.extras}

    assert named <= set(EXTRAS)
    assert {"replica", "grpc", "kubernetes", "node", "plot", "serve", "tokenizer", "all"} == set(EXTRAS)


def test_the_base_brings_no_torch_ansible_or_kubernetes():
    base = " ".join(PROJECT["project"]["dependencies"])

    assert not re.search("torch|ansible|testinfra|loadgen|fastapi|uvicorn|kubernetes", base)


def test_making_a_node_brings_no_torch():
    wanted, known = [Requirement(line) for line in (*PROJECT["project"]["dependencies"], *EXTRAS["node"])], set()
    while wanted:
        name = canonicalize_name(wanted.pop().name)
        if name not in known:
            known.add(name)
            needs = [Requirement(line) for line in requires(name) or ()]
            wanted += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]

    assert {"ansible-core", "ansible-runner"} <= known
    assert not {name for name in known if re.match("torch|nvidia-cu|triton|kubernetes", name)}


def test_every_import_is_on_the_list():
    # Triton comes with a torch for GPUs alone, and is called what its package is.
    found = DISTRIBUTIONS | {"triton": ["triton"]}
    # A torchvision fits one torch and one CUDA, so that no list can name it: a replica that is to decode JPEGs on a GPU
    # takes what is there, and is refused with what to install where there is none.
    taken_where_it_is = {"torchvision"}
    modules = imported_modules() - taken_where_it_is
    brought_by = {module: {canonicalize_name(name) for name in found[module]} for module in modules}

    assert {module: names for module, names in brought_by.items() if not names & set(ALL)} == {}
    assert {"torch", "yaml", "kubernetes"} <= set(brought_by)


@every(HERE)
def test_what_is_installed_is_what_is_pinned(pin):
    assert pin.specifier.contains(version(pin.name), prereleases=True)
