"""The rules of the house: who may import whom, how large a module may be, where printing is allowed."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from harness.spec import Sharing
from tests.support.cases import every

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "harness"

# Dependencies point downwards only; packages of one row do not know each other.
LAYERS = [
    ["api", "cli"],
    ["campaign"],
    ["analysis"],
    ["backends", "node"],
    ["sharing"],
    ["results"],
    ["metrics"],
    ["traffic"],
    ["spec"],
    ["data", "extras"],
    ["host"],
    ["cgroup", "errors", "clock", "supervisor"],
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
ANYWHERE = {"__version__"}
BELOW_REPLICAS = {part for part, rank in RANK.items() if rank >= RANK["traffic"]}
MODULES = sorted(PACKAGE.rglob("*.py"))
of_every_module = every(MODULES, lambda module: str(module.relative_to(PACKAGE)))


def part_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(module: Path) -> set[str]:
    """Parts of the house that a module imports, wherever in the file it does so."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("harness.")} - ANYWHERE


def trespasses(part: str, imports: set[str]) -> set[str]:
    """Which imports point upwards or sideways."""
    if part in {"__main__", "__init__"}:
        return imports - {"api", "cli"}
    if part == "replica":  # stands apart, above the traffic, with which it asks a server, and the spec alone
        return imports - {"replica"} - BELOW_REPLICAS
    return {other for other in imports if other != part and (other == "replica" or RANK[other] <= RANK[part])}


@of_every_module
def test_dependencies_point_down(module):
    assert trespasses(part_of(module), imported_parts(module)) == set()


def test_the_check_sees_a_trespass():
    assert trespasses("metrics", {"results"}) == {"results"}
    assert trespasses("spec", {"cli", "errors"}) == {"cli"}
    assert trespasses("replica", {"metrics"}) == {"metrics"}
    assert trespasses("node", {"backends"}) == {"backends"}


@every(
    [module for module in MODULES if part_of(module) not in {"sharing", "spec"}],
    lambda module: str(module.relative_to(PACKAGE)),
)
def test_what_differs_by_sharing_mode_is_asked_of_the_mode(module):
    assert named_modes(ast.parse(module.read_text())) == []


def named_modes(tree: ast.Module) -> list[str]:
    """Members of the enum, and their values as strings but for the keys of dictionaries (fields of the file) and parts of paths."""
    modes = {mode.value for mode in Sharing}
    other = {id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
    other |= {id(node.right) for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)}
    members = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Sharing"
    ]
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in other]
    return members + [text for text in strings if isinstance(text, str) and text in modes]


def test_the_check_sees_a_named_mode():
    for named in ("a is Sharing.MPS", "a == 'mig'", "def f(a='exclusive'): ..."):
        assert named_modes(ast.parse(named))
    assert not named_modes(ast.parse("{'mps': limits}; folder / 'mps'; mode_of(a).concurrent"))


@of_every_module
def test_variables_say_what_they_hold(module):
    """``found`` as a field of a record is a key of JSON documents."""
    tree = ast.parse(module.read_text())
    fields = {
        id(field.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    stored = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields
    ]
    taken = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]

    assert not {"one", "each", "found", "asked", "told"} & {*stored, *taken}


def test_no_two_classes_have_one_name():
    names = [
        node.name
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
    ]

    assert {name for name in names if names.count(name) > 1} == set()


@of_every_module
def test_modules_stay_small_and_say_what_they_are(module):
    text = module.read_text()

    assert len(text.splitlines()) <= 500
    assert ast.get_docstring(ast.parse(text)), "no docstring"


@of_every_module
def test_only_the_output_module_prints(module):
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]

    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def test_no_shell_is_ever_used_and_no_machine_is_named():
    for module in MODULES:
        text = module.read_text()
        assert "shell=True" not in text, module
        assert not re.search(r"pypi\.org|deb\.debian\.org|pythonhosted", text), module


REPLICAS_MAY_IMPORT = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
STARTED = """
import json, sys, time
before = {*sys.modules}
begun_s = time.process_time()
import pydantic
class Model(pydantic.BaseModel):
    number: int
pydantic_s = time.process_time() - begun_s
begun_s = time.process_time()
from harness.replica import runner
from harness.replica.settings import from_environment
from_environment({"BATCH_SIZE": "2"})
print(json.dumps([[*({*sys.modules} - before)], time.process_time() - begun_s, pydantic_s]))
"""


def test_what_a_replica_imports_before_its_workload_is_small():
    environment = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.run([sys.executable, "-c", STARTED], env=environment, check=True, capture_output=True)
        for _ in range(3)
    ]
    seen = [json.loads(run.stdout) for run in runs]

    modules = {name for name in seen[0][0] if not name.startswith("_")}
    foreign = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - REPLICAS_MAY_IMPORT
    assert foreign <= {"harness"}
    own = {name.split(".")[1] for name in modules if name.startswith("harness.")}
    assert own <= {"replica", "traffic", "spec", "errors", "host", "cgroup"}
    of_campaigns = {"campaign", "kubernetes", "load", "profile", "stress", "timing", "yaml_tree"}
    assert not modules & {f"harness.spec.{name}" for name in of_campaigns}
    assert min(own_s / pydantic_s for _, own_s, pydantic_s in seen) < 0.8, "a third is usual"


def names_from_the_package(module):
    """Module and name of all that a file imports from the package and the tests."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in {"harness", "tests"}:
            yield from ((node.module, alias.name) for alias in node.names)


@every(sorted((ROOT / "tests" / "benchmarks").glob("*.py")), lambda module: module.stem)
def test_what_benchmarks_import_is_there(module):
    for source, name in names_from_the_package(module):
        assert hasattr(importlib.import_module(source), name) or importlib.util.find_spec(f"{source}.{name}")
