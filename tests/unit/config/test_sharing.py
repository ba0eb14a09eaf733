"""A sharing mode is one record of traits: the rest of the package asks for a trait, and nothing for a mode."""

import ast
from pathlib import Path

import pytest

from harness.backends.kubernetes import device_configs
from harness.config import Sharing, sharing

PACKAGE = Path(__file__).parents[3] / "harness"
OF_THE_ROLES = {PACKAGE / "cli" / "node.py", *(PACKAGE / "node").rglob("*.py")}
"""They speak the variables of the playbooks."""
MODES = {mode.value for mode in Sharing}


def asks_for_a_mode(node):
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "Sharing" and node.attr in Sharing.__members__
    compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    return any(isinstance(one, ast.Constant) and one.value in MODES for one in compared)


def test_no_module_asks_for_a_mode_by_name():
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted({*PACKAGE.rglob("*.py")} - OF_THE_ROLES - {Path(sharing.__file__)})
        for node in ast.walk(ast.parse(path.read_text()))
        if asks_for_a_mode(node)
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [("a is Sharing.MPS", True), ("a == 'mig'", True), ("a.traits.daemon", False), ("{'mps': limits}", False)],
)
def test_asking_for_a_mode_is_seen(text, found):
    assert any(asks_for_a_mode(node) for node in ast.walk(ast.parse(text))) is found


def test_every_mode_has_traits_and_says_how_a_cluster_comes_under_it():
    assert all(mode.traits.switch.startswith("harness sharing ") for mode in Sharing if mode is not sharing.FOUND)
    assert sharing.FOUND is Sharing.AS_FOUND


def test_a_trait_is_all_that_the_choice_of_slices_looks_at(monkeypatch):
    ways = [device_configs.Configuration(str(slices), Sharing.MPS, slices) for slices in (2, 8)]
    cell = type("Cell", (), {"processes": 2})
    experiment = type("Experiment", (), {"sharing": Sharing.MPS, "cell": cell})
    spec = type("Spec", (), {"gpus_per_replica": 1, "device_plugin_configs": "a/b"})

    assert device_configs.choose(ways, experiment, [1], spec).slices == 2
    monkeypatch.setitem(sharing._TRAITS, Sharing.MPS, sharing.Traits(switch="", turns=True))
    assert device_configs.choose(ways, experiment, [1], spec).slices == 8
