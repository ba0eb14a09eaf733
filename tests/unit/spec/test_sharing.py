"""A sharing mode is one record of traits: the rest of the package asks for a trait, and nothing for a mode."""

import ast
from pathlib import Path

import pytest

from harness.backends.kubernetes import device_configs
from harness.spec import MpsLimits, MpsSpec, Sharing, sharing

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


@pytest.mark.parametrize(
    ("share", "label", "identity", "of_8"),
    [
        ("all", "", "", None),
        (100, "", "", None),
        (12.5, "12.5 %", "12.5pct", 12.5),
        ("1/N", "1/N", "1-over-n", 12.5),
        ("2 / N", "2/N", "2-over-n", 25),
        ("16/N", "16/N", "16-over-n", 100),
    ],
)
def test_a_share_of_mps_has_one_form_a_label_and_a_percentage(share, label, identity, of_8):
    found = MpsLimits(share=share, swept=True)

    assert (found.label, found.identity, found.percentage(8)) == (label, identity, of_8)
    assert MpsLimits(share=share).identity == ""
    assert MpsLimits.model_validate_json(found.model_dump_json()) == found


def test_one_value_is_a_list_of_one():
    assert MpsSpec.model_validate({"share": "1/N", "pinned_memory_gb": 2}).limits() == [
        MpsLimits(share="1/N", pinned_memory_gb=2)
    ]


@pytest.mark.parametrize(
    ("earlier", "share"),
    [
        ({"equal_share": True, "active_thread_percentage": None}, "1/N"),
        ({"equal_share": False, "active_thread_percentage": 50}, 50),
        ({"equal_share": False, "active_thread_percentage": None}, "all"),
    ],
)
def test_limits_that_an_earlier_version_wrote_are_read(earlier, share):
    written = {**earlier, "pinned_memory_gb": 2.0}

    assert MpsLimits.model_validate(written) == MpsLimits(share=share, pinned_memory_gb=2)
    assert MpsSpec.model_validate(written).limits() == [MpsLimits(share=share, pinned_memory_gb=2)]
