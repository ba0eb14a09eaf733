"""The roles, playbooks and variables as the tests read them, resolved by Ansible itself where that matters."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import yaml

from tests.support.module_python import module_python

ROOT = Path(__file__).parents[3]
ROLES = sorted(path.parent.parent.name for path in (ROOT / "roles").glob("*/tasks/main.yml"))
TEMPLATES = ROOT / "templates/kubernetes"
# What Kubernetes or one of its programs reads, by name: what several render lies below TEMPLATES, everything else in its role.
TEMPLATE_FILES = {path.name: path for path in sorted((ROOT / "roles").glob("*/templates/*.y*ml.j2"))}
TEMPLATE_FILES |= {str(path.relative_to(TEMPLATES)): path for path in sorted(TEMPLATES.rglob("*.j2"))}
MODULES = ROOT / "plugins/modules"
OWN_MODULES = {path.stem for path in MODULES.glob("*.py")}
ACTIONS = ROOT / "plugins/action"
OWN_ACTIONS = {path.stem for path in ACTIONS.glob("*.py")}
# Writes what failed on each host of a run, or null, into the file that OUTCOMES names; its name is tree_of_results.
CALLBACK = """\
import json, os
from ansible.plugins.callback import CallbackBase
class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "tree_of_results"
    def __init__(self):
        super().__init__()
        self.failed = {}
    def v2_runner_on_failed(self, result, ignore_errors=False):
        # Of a loop, what its items said.
        said = [result.result, *(one for one in result.result.get("results", []) if one.get("failed"))]
        self.failed[result.host.get_name()] = "\\n".join(str(one.get("msg")) for one in said)
    def v2_playbook_on_stats(self, stats):
        outcomes = {host: self.failed.get(host) for host in stats.processed}
        with open(os.environ["OUTCOMES"], "w") as file:
            json.dump(outcomes, file)
"""


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.CSafeLoader)  # in C: ten times as fast


def task_files() -> list[Path]:
    return sorted((ROOT / "roles").glob("*/tasks/*.yml"))


def playbooks() -> list[Path]:
    return [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]


def tasks(nodes: Any) -> Iterator[dict[str, Any]]:
    """Every task of a task file or playbook, those inside blocks too."""
    for node in nodes or ():
        if any(section in node for section in ("hosts", "block")):
            for section in ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from tasks(node.get(section))
        else:
            yield node


def every_task() -> list[tuple[Path, dict[str, Any]]]:
    files = [*task_files(), *playbooks()]
    return [(path, task) for path in files for task in tasks(load(path))]


@functools.cache
def variables() -> dict[str, Any]:
    """Every group variable and role default with its value for the inventory as shipped."""
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar
    from ansible.vars.manager import VariableManager

    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(ROOT / "inventory/hosts.yml")])
    manager = VariableManager(loader=loader, inventory=inventory)
    found = dict(manager.get_vars(host=inventory.get_host("localhost")))
    of_roles = [ROOT / "roles" / role / folder / "main.yml" for role in ROLES for folder in ("defaults", "vars")]
    for path in [ROOT / "roles/versions/defaults/main/node.yml", *of_roles]:
        if path.exists():
            found = {**(loader.load_from_file(str(path), trusted_as_template=True) or {}), **found}
    templar = Templar(loader=loader, variables=found)
    plain = [name for name in found if not name.startswith(("__", "ansible_"))]
    resolved = {name: templar.template(found[name]) for name in plain}
    resolved["__crio_mirrored_registries"] = templar.template(found["__crio_mirrored_registries"])
    return resolved


def specifications() -> dict[str, Any]:
    """Each role's options, as its argument specification has them."""
    paths = {role: ROOT / "roles" / role / "meta/argument_specs.yml" for role in ROLES}
    return {role: load(path)["argument_specs"]["main"]["options"] for role, path in paths.items()}


def judged() -> Any:
    """The judge's table of what every variable may be."""
    from ansible.parsing.dataloader import DataLoader

    module = action("judge_variables").ActionModule
    judge = module.__new__(module)
    judge._loader = DataLoader()
    return judge.table()


@functools.cache
def load_plugins() -> None:
    """Has Ansible find its plugins, lookups among them; a second time in one process it complains."""
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()


def template(values: Any, given: dict[str, Any], wanted: Iterable[str] | None = None) -> Any:
    """Values that tasks or variable files hold as Ansible templates, resolved with what is given: all, or those wanted."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    def trust(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: trust(one) for name, one in value.items()}
        return trust_as_template(value) if isinstance(value, str) else value

    trusted = {name: trust(value) for name, value in values.items()}
    templar = Templar(loader=DataLoader(), variables={**trusted, **given})
    return {name: templar.template(trusted[name]) for name in wanted or trusted}


def render(path: Path, **changed: Any) -> str:
    """A template rendered as the harness renders it: plain jinja2, and a missing variable is an error."""
    return _compiled(path).render({**variables(), "ansible_managed": "managed", **changed})


@functools.cache
def _compiled(path: Path) -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)  # noqa: S701
    environment.loader = jinja2.FileSystemLoader(path.parent)
    return environment.get_template(path.name)


def programs(folder: Path, names: Iterable[str], text: str) -> None:
    """One script under the names of several programs."""
    for name in names:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def machine(folder: Path, name: str, names: Iterable[str], text: str, **given: str) -> Path:
    """A machine's own folder, with programs of one script that knows it; what is being written lies a folder above."""
    own = folder / name / "etc"
    own.mkdir(parents=True, exist_ok=True)
    programs(own, names, text.format(folder=own, **given))
    return own


def calls(folder: Path, name: str) -> list[str]:
    """What the programs of a machine were called with."""
    path = folder / name / "etc/calls"
    return path.read_text().splitlines() if path.exists() else []


def tasks_of(role: str, file: str) -> str:
    """A play that runs one file of a role's tasks, with the programs of each host's folder."""
    return f"""\
- hosts: all
  gather_facts: false
  environment: {{PATH: "{{{{ folder }}}}:{{{{ lookup('ansible.builtin.env', 'PATH') }}}}"}}
  tasks:
    - {{name: Run, ansible.builtin.include_role: {{name: {role}, tasks_from: {file}}}}}
"""


def play(
    folder: Path,
    text: str,
    hosts: dict[str, Any],
    given: dict[str, Any],
    *options: str,
    under: Iterable[str] = (),
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """A play run by Ansible as shipped on hosts that are all this machine: variables by host, or a whole inventory.

    given: variables above all others. under: a command that runs it. settings: environment variables beside Ansible's own.
    """
    inventory = hosts if "all" in hosts else {"all": {"hosts": hosts}}
    inventory["all"]["vars"] = {"ansible_connection": "local"}
    for name, content in (("play.yml", text), ("hosts.json", json.dumps(inventory)), ("given.json", json.dumps(given))):
        (folder / name).write_text(content)
    command = [
        *under,
        sys.executable,
        "-m",
        "ansible",
        "playbook",
        "-i",
        str(folder / "hosts.json"),
        "-e",
        f"@{folder}/given.json",
    ]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_LIBRARY": str(MODULES),
        "ANSIBLE_MODULE_UTILS": str(ROOT / "plugins/module_utils"),
        "ANSIBLE_PYTHON_INTERPRETER": module_python(),
        "ANSIBLE_HOME": str(folder / "home"),
        **settings,
    }
    return subprocess.run(
        [*command, *options, str(folder / "play.yml")], env=environment, capture_output=True, text=True, check=False
    )


def module(name: str) -> Any:
    """One of our Ansible modules, imported; what it shares with others is found where Ansible finds it."""
    _import_shared()
    return _import(f"ansible.modules.{name}", MODULES / f"{name}.py")


def action(name: str) -> Any:
    """One of our action plugins, imported."""
    return _import(f"actions_under_test.{name}", ACTIONS / f"{name}.py")


def shared(name: str) -> Any:
    """What our modules share, imported."""
    _import_shared()
    return sys.modules[f"ansible.module_utils.{name}"]


def program(path: str) -> Any:
    """A program that a role puts on the machine, imported anew."""
    sys.modules.pop(Path(path).stem, None)
    return _import(Path(path).stem, ROOT / path)


def _import_shared() -> None:
    # Sorted: one imports only what comes before it.
    for path in sorted((ROOT / "plugins/module_utils").glob("*.py")):
        _import(f"ansible.module_utils.{path.stem}", path)


def _import(name: str, path: Path) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
