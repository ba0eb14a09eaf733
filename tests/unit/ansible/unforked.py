"""`python unforked.py INVENTORY PLAY`: each host goes through the plain tasks of a play, without a process for each.

Variables, conditions and actions are Ansible's; loops over hosts, handlers, includes and rescues are not done. What
failed on each host, or null, goes into the file that OUTCOMES names, as the callback of tree.py writes it.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
from ansible import context
from ansible.executor.task_executor import TaskExecutor
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.block import Block
from ansible.playbook.play import Play
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import get_plugin_loader_namespace, init_plugin_loader
from ansible.utils.context_objects import CLIArgs
from ansible.vars.manager import VariableManager


def tasks(blocks: list[Any]) -> Iterator[Task]:
    for one in blocks:
        if isinstance(one, Block):
            yield from tasks(one.block)
        elif one.action != "ansible.builtin.meta" and not one.implicit:
            yield one


def failed(host: Any, play: Play, loader: DataLoader, manager: VariableManager) -> str | None:
    for task in tasks(play.compile()):
        variables = manager.get_vars(play=play, host=host, task=task)
        plugins = get_plugin_loader_namespace()
        result = TaskExecutor(host, task.copy(), variables, PlayContext(play), loader, plugins, None, manager).run()
        if result.get("failed"):
            return str(result["msg"])
        manager.set_host_facts(host.name, result.get("ansible_facts", {}))
        if task.register:
            manager.set_nonpersistent_facts(host.name, {task.register: result})
    return None


def compile_once() -> None:
    """What is the same for every host is compiled once; it took most of the time."""
    compiled, compile_anew = {}, jinja2.Environment.compile

    def compile_template(self: jinja2.Environment, source: Any, *arguments: Any) -> Any:
        if not isinstance(source, str):
            return compile_anew(self, source, *arguments)
        if source not in compiled:
            compiled[source] = compile_anew(self, source, *arguments)
        return compiled[source]

    jinja2.Environment.compile = compile_template


def main(inventory: str, playbook: str) -> None:
    compile_once()
    context.CLIARGS = CLIArgs({"verbosity": 0, "check": False, "diff": False, "timeout": 10})
    init_plugin_loader()
    loader = DataLoader()
    hosts = InventoryManager(loader=loader, sources=[inventory])
    manager = VariableManager(loader=loader, inventory=hosts)
    (read,) = loader.load_from_file(playbook, trusted_as_template=True)
    play = Play.load(read, variable_manager=manager, loader=loader)
    gc.freeze()  # nothing of this goes before the end
    outcomes = {host.name: failed(host, play, loader, manager) for host in hosts.get_hosts()}
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
