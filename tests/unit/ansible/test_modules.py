"""Every module's documentation can be read by Ansible, and is what the module takes."""

import json

import pytest
import tree
import yaml
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

documented = tree.shared("documented")
KEYS = {"type", "elements", "choices", "required", "default", "no_log", "options"}


class Asked(Exception):  # noqa: N818 - what a module's main comes to here
    """The module has said what it takes."""


def checked(options):
    """Every option of a specification, with those below it."""
    for option in options.values():
        assert set(option) <= KEYS | {"mutually_exclusive", "required_one_of", "required_together"}
        yield option
        yield from checked(option.get("options", {}))


@pytest.mark.parametrize("name", sorted(tree.OWN_MODULES))
def test_the_documentation_is_yaml_that_describes_every_option_and_is_what_the_module_takes(name, monkeypatch):
    module = tree.module(name)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert (documentation["module"], documentation) == (name, json.loads(module.DOCUMENTATION))
    assert all(option["description"] for option in documentation["options"].values())

    def say(**arguments):
        raise Asked(arguments["argument_spec"])

    monkeypatch.setattr(documented, "AnsibleModule", say)
    with pytest.raises(Asked) as asked:
        module.main()
    assert set(asked.value.args[0]) == set(documentation["options"])
    assert all("type" in option for option in checked(asked.value.args[0]))


@pytest.mark.parametrize("name", sorted(tree.OWN_MODULES))
def test_it_is_run_by_the_python_that_the_inventory_names(name):
    line = (tree.ROOT / f"plugins/modules/{name}.py").read_text().partition("\n")[0]
    given = {"ansible_python_interpreter": "/opt/python/bin/python3"}
    found, _ = module_common._get_shebang(line.removeprefix("#!"), given, Templar(DataLoader()))
    assert found == "#!/opt/python/bin/python3"
