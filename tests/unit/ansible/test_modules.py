"""Every module's documentation can be read by Ansible and says what the module takes."""

import pytest
import tree
import yaml
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar


class Asked(Exception):  # noqa: N818 - what a module's main comes to here
    """The module has said what it takes."""


def argument_spec(name, monkeypatch):
    """What the module's main gives to AnsibleModule."""
    module = tree.module(name)

    def say(**arguments):
        raise Asked(arguments["argument_spec"])

    monkeypatch.setattr(module, "AnsibleModule", say)
    with pytest.raises(Asked) as asked:
        module.main()
    return asked.value.args[0]


def facts(options, below):
    """What both sides have to agree in, by option."""
    found = {}
    for name, option in options.items():
        found[name] = {key: option.get(key) for key in ("elements", "default", "choices")}
        found[name] |= {"type": option.get("type", "str"), "required": option.get("required", False)}
        found[name]["below"] = facts(option.get(below) or {}, below)
    return found


@pytest.mark.parametrize("name", sorted(tree.OWN_MODULES))
def test_examples_and_returned_values_are_yaml(name):
    module = tree.module(name)
    assert f"{name}:" in module.EXAMPLES
    yaml.safe_load(module.EXAMPLES)
    yaml.safe_load(module.RETURN)


@pytest.mark.parametrize("name", sorted(tree.OWN_MODULES))
def test_the_documentation_says_what_the_module_takes(name, monkeypatch):
    documented = yaml.safe_load(tree.module(name).DOCUMENTATION)
    assert documented["module"] == name
    assert facts(documented["options"], "suboptions") == facts(argument_spec(name, monkeypatch), "options")


@pytest.mark.parametrize("name", sorted(tree.OWN_MODULES))
def test_it_is_run_by_the_python_that_the_inventory_names(name):
    line = (tree.ROOT / f"plugins/modules/{name}.py").read_text().partition("\n")[0]
    given = {"ansible_python_interpreter": "/opt/python/bin/python3"}
    found, _ = module_common._get_shebang(line.removeprefix("#!"), given, Templar(DataLoader()))
    assert found == "#!/opt/python/bin/python3"
