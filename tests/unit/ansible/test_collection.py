"""The roles as a collection: each stands by itself, and what is made of its defaults is of today."""

import re

import tree
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from tree import ROLES, ROOT

from scripts import roles
from tests.support.cases import every


@every(roles.ROLES, lambda role: role.name)
def test_readme_and_specification_are_made_of_the_defaults(role):
    assert (role / "README.md").read_text() == roles.readme(role), "run: python -m scripts.roles"
    if role.name in ROLES:
        made = (role / "meta/argument_specs.yml").read_text()
        assert made == roles.specification(role), "run: python -m scripts.roles"


@every(roles.TABLES)
def test_the_tables_of_the_inventory_are_defaults_of_every_role(name):
    assert (roles.VERSIONS / name).read_text() == roles.table(name), "run: python -m scripts.roles"


def test_nothing_of_the_collection_is_a_link_or_reaches_out_of_its_role_by_itself():
    files = [path for folder in ("roles", "plugins", "playbooks", "inventory") for path in (ROOT / folder).rglob("*")]
    assert [path for path in files if path.is_symlink()] == []
    assert [
        path for path in files if path.suffix == ".yml" and "role_path/.." in path.read_text().replace(" }}", "")
    ] == []


@every(ROLES)
def test_what_a_role_reads_is_there(role):
    texts = [path.read_text() for path in (ROOT / "roles" / role).rglob("*.yml")]
    kinds = {"template": "templates", "file": "files"}
    for kind, name in re.findall(r"lookup\('ansible\.builtin\.(template|file)', '([^']+)'", "".join(texts)):
        assert (ROOT / "roles" / role / kinds[kind] / name).is_file(), name
    for name in re.findall(r"__versions_project(?: \}\}| ~ ')(/[^'\"*{]+)", "".join(texts)):
        assert (ROOT / name[1:]).exists(), name


@every(ROLES)
def test_a_role_brings_the_table_of_versions_along(role):
    assert tree.load(ROOT / "roles" / role / "meta/main.yml")["dependencies"] == ["versions"]


@every(ROLES)
def test_a_role_s_defaults_need_no_inventory(role):
    loader = DataLoader()
    files = [*(ROOT / "roles/versions/defaults/main").glob("*.yml"), ROOT / "roles" / role / "defaults/main.yml"]
    found = {"inventory_hostname": "node"}
    for path in files:
        found |= loader.load_from_file(str(path), trusted_as_template=True) or {}
    templar = Templar(loader=loader, variables=found)

    assert [name for name in tree.load(files[-1]) or {} if templar.template(found[name]) is None] == []


def test_cri_o_alone_knows_the_handler_that_another_role_makes():
    tree.load_plugins()
    loader = DataLoader()
    found = {"role_path": str(ROOT / "roles/crio"), "__crio_drop_ins": "/etc/crio/crio.conf.d"}
    for path in [*(ROOT / "roles/versions/defaults/main").glob("*.yml"), ROOT / "roles/crio/defaults/main.yml"]:
        found |= loader.load_from_file(str(path), trusted_as_template=True) or {}
    tasks = loader.load_from_file(str(ROOT / "roles/crio/tasks/main.yml"), trusted_as_template=True)
    [task] = [task for task in tasks if "node_state" in task]
    handler = Templar(loader=loader, variables=found).template(task["vars"]["__crio_handler_file"])
    assert "[crio.runtime.runtimes.nvidia]" in handler["content"]
