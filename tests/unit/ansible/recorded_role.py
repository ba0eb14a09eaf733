"""A role run as shipped on machines on paper: modules write down what they were asked for, commands are scripts on the path."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tree
from tree import ROOT

MODULES = ("node_probe", "node_state", "deb_pinned", "kube_objects")
# One action for all of them: it knows the machine from a file beside it, as the scripts leave it.
ACTION = """\
import json, os
from pathlib import Path
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    _requires_connection = False
    @classmethod
    def finalize_task_arg(cls, name, value, templar, context):
        return value if name in ("that", "fail_msg") else super().finalize_task_arg(name, value, templar, context)
    def run(self, tmp=None, task_vars=None):
        folder = Path(os.environ["MACHINES"]) / task_vars["inventory_hostname"]
        judged = ("that", "fail_msg")
        arguments = {name: self._templar.template(value) for name, value in self._task.args.items() if name not in judged}
        with (folder / "done.jsonl").open("a") as file:
            file.write(json.dumps([self._task.action, arguments]) + chr(10))
        node = json.loads((folder / "node.json").read_text())
        if self._task.action == "deb_pinned":
            node["gpu"]["module"] = node["builds"]
            (folder / "node.json").write_text(json.dumps(node))
        packages = {
            name: {"installed": True, "held": True, "version": "580.95.05-1" if "nvidia" in name else "6.14"}
            for name in [*arguments.get("packages", []), "linux-image-generic", "linux-image-6.8.0-31-generic"]
            if isinstance(name, str) and "*" not in name
        }
        paths = {name: {"exists": Path(name).exists()} for name in arguments.get("paths", [])}
        units = {name: {"active": True} for name in arguments.get("units", []) if isinstance(name, str)}
        facts = {"ansible_facts": {"node": node}} if arguments.get("machine") else {}
        return {"changed": False, "probe": {"packages": packages, "units": units, "sums": node.get("sums"), "paths": paths}, **facts}
"""
PLAY = """\
- hosts: all
  gather_facts: false
  environment: {MACHINE: "{{ lookup('ansible.builtin.env', 'MACHINES') }}/{{ inventory_hostname }}"}
  tasks:
    - {name: Look, node_probe: {machine: true}}
    - {name: The role, ansible.builtin.include_role: {name: ROLE}}
"""


@dataclass(frozen=True)
class Recorded:
    """What was done on each machine in order, modules as (name, arguments) and commands as (name, words); why it failed, or None."""

    done: dict[str, list[tuple[str, Any]]]
    failed: dict[str, str | None]


def run(
    folder: Path,
    role: str,
    nodes: dict[str, Any],
    variables: dict[str, dict[str, Any]],
    programs: dict[str, str],
    **extra: str,
) -> Recorded:
    """Every machine is a host of one run.

    nodes: what the probe says of each. programs: name -> script; MACHINE is the folder of its machine, with node.json.
    extra: variables above those of the role.
    """
    for name in ("action", "bin", "callback", "group_vars"):
        (folder / name).mkdir()
    for name in MODULES:
        (folder / f"action/{name}.py").write_text(ACTION)
    (folder / "callback/tree_of_results.py").write_text(tree.CALLBACK)
    for name, text in programs.items():
        tree.programs(folder / "bin", [name], text)
    (folder / "group_vars/all").symlink_to(ROOT / "inventory/group_vars/all")
    for name, node in nodes.items():
        (folder / name).mkdir()
        (folder / name / "node.json").write_text(json.dumps(node))
    settings = {
        "ANSIBLE_ACTION_PLUGINS": str(folder / "action"),
        "ANSIBLE_STDOUT_CALLBACK": "tree_of_results",
        "ANSIBLE_CALLBACK_PLUGINS": str(folder / "callback"),
        "OUTCOMES": str(folder / "outcomes.json"),
        "MACHINES": str(folder),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    ended = tree.play(folder, PLAY.replace("ROLE", role), variables, extra, **settings)
    assert (folder / "outcomes.json").exists(), ended.stdout + ended.stderr
    done = {name: (folder / name / "done.jsonl").read_text().splitlines() for name in nodes}
    return Recorded(
        {name: [tuple(json.loads(line)) for line in lines] for name, lines in done.items()},
        json.loads((folder / "outcomes.json").read_text()),
    )
