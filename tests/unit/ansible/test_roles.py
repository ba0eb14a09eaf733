"""Every role: its files, its specification equal to its defaults, its names, its own verification."""

import re

import tree
from tree import ROLES, ROOT, load

from tests.support.cases import every

ADDONS = ROOT / "roles/addons/defaults/main.yml"
TYPES = {"str": str, "int": int, "bool": bool, "list": list, "dict": dict, "float": float}


def defaults(role):
    return load(ROOT / "roles" / role / "defaults/main.yml") or {}


def options(role):
    return load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]


@every(ROLES)
def test_the_specification_says_what_the_defaults_say(role):
    assert {name: option["default"] for name, option in options(role).items()} == defaults(role)


@every(ROLES)
def test_every_variable_is_described_and_says_what_it_may_be(role):
    described = tree.action("judge_variables").described((ROOT / "roles" / role / "defaults/main.yml").read_text())
    assert list(described) == list(defaults(role))
    assert [name for name, (words, _) in described.items() if not re.fullmatch("[A-Za-z`0].+[.]", words)] == []


@every(ROLES)
def test_every_type_fits_the_value_that_the_default_comes_to(role):
    for name, option in options(role).items():
        value = tree.variables()[name]
        assert isinstance(value, TYPES[option["type"]]), f"{name} is {value!r}"
        assert value in option.get("choices", [value])
        if option["type"] == "list":
            assert all(isinstance(item, TYPES[option["elements"]]) for item in value), name


@every(ROLES)
def test_public_names_carry_the_role_and_private_ones_two_underscores(role):
    beginnings = tuple(f"{one}_" for one in (role, *load(ADDONS)["addons_names"] * (role == "addons")))
    assert all(name.startswith(beginnings) for name in defaults(role))
    private = ROOT / "roles" / role / "vars/main.yml"
    assert all(name.startswith(f"__{role}_") for name in (load(private) if private.exists() else {}))


@every(sorted({*ROLES} - {"preflight"}))
def test_every_role_verifies_its_own_effect(role):
    # Preflight has no effect to verify: it is a verification.
    assert (ROOT / "roles" / role / "tasks/verify.yml").exists()
    assert "verify.yml" in "".join(path.read_text() for path in (ROOT / "roles" / role / "tasks").glob("*.yml"))


@every(ROLES)
def test_every_variable_is_used(role):
    folders = ("tasks", "templates", "vars")
    files = [path for folder in folders for path in (ROOT / "roles" / role / folder).glob("*")]
    text = "".join(path.read_text() for path in [*files, *tree.TEMPLATE_FILES.values()])
    assert [name for name in defaults(role) if not re.search(rf"\b{name}\b", text)] == []


@every(ROLES)
def test_every_task_file_is_reached(role):
    folder = ROOT / "roles" / role / "tasks"
    text = "".join(path.read_text() for path in [*folder.glob("*.yml"), *tree.playbooks(), *tree.task_files()])
    assert [path.name for path in folder.glob("*.yml") if path.name != "main.yml" and path.name not in text] == []
