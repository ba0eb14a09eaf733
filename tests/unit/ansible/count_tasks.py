"""Counts the tasks of Ansible roles, and what among them runs a shell or swallows an error.

    python tests/unit/ansible/count_tasks.py [FOLDER or FILE ...]

A folder is counted with everything below it that is a task or handler file (default: this project's roles, a line
per role). A task is a task wherever it stands: in a play, a block, a rescue, a handler file.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SECTIONS = ("pre_tasks", "tasks", "post_tasks", "handlers", "block", "rescue", "always")
SHELL = {"shell", "raw", "script"}


class Loader(yaml.SafeLoader):
    """Reads any Ansible file, tags of its own included."""


Loader.add_multi_constructor("!", lambda loader, _tag, node: loader.construct_scalar(node))


def tasks(nodes: Any) -> Iterator[dict[str, Any]]:
    """Every task of a parsed file; nothing for a file of another kind."""
    for node in nodes if isinstance(nodes, list) else ():
        if not isinstance(node, dict):
            continue
        inner = [section for section in SECTIONS if section in node]
        for section in inner:
            yield from tasks(node[section])
        if not inner and not {"hosts", "role", "import_playbook", "ansible.builtin.import_playbook"} & set(node):
            yield node


def kinds(task: dict[str, Any]) -> Counter[str]:
    """One task, by what is counted."""
    actions = {str(key).rpartition(".")[2] for key in task}
    swallowed = bool(task.get("ignore_errors")) or task.get("failed_when") is False
    return Counter(tasks=1, shell=int(bool(SHELL & actions)), swallowed=int(swallowed))


def files(place: Path) -> list[Path]:
    """The file itself, or the task and handler files below a folder."""
    if place.is_file():
        return [place]
    found = sorted([*place.rglob("*.yml"), *place.rglob("*.yaml")])
    return [path for path in found if {"tasks", "handlers"} & set(path.relative_to(place).parts)]


def count(place: Path) -> Counter[str]:
    """Every task of a file or folder."""
    total: Counter[str] = Counter(tasks=0, shell=0, swallowed=0)
    for path in files(place):
        for document in yaml.load_all(path.read_text(encoding="utf-8"), Loader=Loader):
            for task in tasks(document):
                total.update(kinds(task))
    return total


def main(places: list[Path]) -> None:
    """Prints a line for each and their sum."""
    total: Counter[str] = Counter()
    print(f"{'':<34} {'tasks':>6} {'shell':>6} {'swallowed errors':>17}")
    for place in places:
        found = count(place)
        total.update(found)
        print(f"{place.name:<34} {found['tasks']:>6} {found['shell']:>6} {found['swallowed']:>17}")
    print(f"{'all':<34} {total['tasks']:>6} {total['shell']:>6} {total['swallowed']:>17}")


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]] or sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()))
