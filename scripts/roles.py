"""Writes every role's argument specification and README from its defaults, and the inventory's tables as defaults: ``python -m scripts.roles``.

A variable is described once, in defaults/main.yml: the prose above it, its value, and behind that what it may be, as the judge of
variables reads it. A test fails when what is written here differs.
"""

from __future__ import annotations

import functools
import json
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ROLES = sorted(path.parents[1] for path in (ROOT / "roles").glob("*/meta/main.yml"))
VERSIONS = ROOT / "roles/versions/defaults/main"
TABLES = ("mirrors.yml", "proxy.yml", "versions.yml")
_WIDTH = 160
# What Ansible checks. The words of a variable are those of its defaults, and stand in the README.
_SPECIFICATION = """---
# Written by `python -m scripts.roles` from defaults/main.yml; edit that instead.
argument_specs:
  main:
    short_description: {what}
    options:
{options}"""
_PAGE = """# {name}

<!-- Written by `python -m scripts.roles` from `defaults/main.yml` and `meta/main.yml`; edit those instead. -->

{what}.
{body}"""
_USE = """
```yaml
- hosts: nodes
  become: true
  roles:
    - role: {collection}.{name}
```

It needs no inventory of ours: versions, sources and mirrors are the defaults of the role [versions](../versions/README.md).
{more}{variables}"""
_TABLE = """
| variable | type | default | what it is |
|---|---|---|---|
{rows}
"""
_VERSIONS = """
Every other role depends on this one. Set a variable of these files in an inventory of your own to fetch other versions, or
from mirrors: [versions](../../inventory/group_vars/all/versions.yml), [mirrors](../../inventory/group_vars/all/mirrors.yml).
"""


def table(name: str) -> str:
    """A table of the inventory as defaults of the role versions, without its words: without a link, which an archive does not keep."""
    text = (ROOT / "inventory/group_vars/all" / name).read_text(encoding="utf-8").removeprefix("---\n")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    head = f"---\n# Written by `python -m scripts.roles` from inventory/group_vars/all/{name}; edit that instead.\n"
    return head + "\n".join(lines) + "\n"


def variables(path: Path) -> dict[str, dict[str, Any]]:
    """The options of an argument specification, by name, as a file of defaults describes them."""
    judge = _judge()
    text = path.read_text(encoding="utf-8")
    defaults, found = yaml.safe_load(text) or {}, {}
    kinds = _load(ROOT / "roles/preflight/vars/kinds.yml")["__preflight_kinds"]
    for name, (words, said) in judge.described(text).items():
        may = judge.option(said)
        found[name] = {key: may[key] for key in ("type", "elements", "choices") if key in may}
        found[name] |= {"default": defaults[name], "description": words + _bounds(may)}
        if isinstance(may.get("of"), str) and kinds[may["of"]].get("hidden"):
            found[name]["no_log"] = True
    return found


def specification(role: Path) -> str:
    """The argument specification of one role."""
    options = "".join(_option(name, option) for name, option in variables(role / "defaults/main.yml").items())
    return _SPECIFICATION.format(what=json.dumps(_what(role)), options=options)


def readme(role: Path) -> str:
    """The page of one role."""
    if not (role / "defaults/main.yml").exists():
        return _PAGE.format(name=role.name, what=_what(role), body=_VERSIONS + _rows(VERSIONS / "node.yml"))
    galaxy = _load(ROOT / "galaxy.yml")
    body = _USE.format(
        collection=f"{galaxy['namespace']}.{galaxy['name']}",
        name=role.name,
        more=f"{_head(role)}\n" if _head(role) else "",
        variables=_rows(role / "defaults/main.yml"),
    )
    return _PAGE.format(name=role.name, what=_what(role), body=body)


def _rows(path: Path) -> str:
    rows = "\n".join(_row(name, option) for name, option in variables(path).items())
    return _TABLE.format(rows=rows) if rows else ""


def _what(role: Path) -> str:
    return str(_load(role / "meta/main.yml")["galaxy_info"]["description"]).rstrip(".")


def _head(role: Path) -> str:
    """What a role's defaults begin with, where that is about all of them."""
    found = re.match(r"---\n((?:# .*\n)+)\n", (role / "defaults/main.yml").read_text(encoding="utf-8"))
    return " ".join(line.removeprefix("# ") for line in found[1].splitlines()) if found else ""


def _bounds(may: dict[str, Any]) -> str:
    ranges = [str(least) if least == most else f"{least} to {most}" for least, most in may.get("ranges", ())]
    return f" From {' or '.join(ranges)}." if ranges else ""


@functools.cache
def _judge() -> Any:
    path = ROOT / "plugins/action/judge_variables.py"
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    SourceFileLoader(path.stem, str(path)).exec_module(module)
    return module


class _Indented(yaml.SafeDumper):
    """Indents the elements of a list."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - as its base
        super().increase_indent(flow, False)


def _option(name: str, described: dict[str, Any]) -> str:
    option = {key: value for key, value in described.items() if key != "description"}
    flow = yaml.safe_dump(option, default_flow_style=True, sort_keys=False, width=float("inf")).strip()
    for text in (f"      {name}: {flow}\n", f"      {name}:\n        {flow}\n"):
        if max(map(len, text.splitlines())) <= _WIDTH:
            return text
    return f"      {name}:\n{indent(''.join(_key(*one) for one in option.items()), ' ' * 8)}"


def _key(key: str, value: Any) -> str:
    flow = yaml.safe_dump({key: value}, default_flow_style=True, sort_keys=False, width=float("inf")).strip()[1:-1]
    if len(flow) <= _WIDTH - 8:
        return f"{flow}\n"
    style = None if isinstance(value, dict) else False
    return yaml.dump({key: value}, Dumper=_Indented, default_flow_style=style, sort_keys=False, width=_WIDTH - 40)


def _row(name: str, option: dict[str, Any]) -> str:
    default = option.get("default")
    shown = default if isinstance(default, str) else json.dumps(default)
    choices = f" One of: {', '.join(map(str, option['choices']))}." if "choices" in option else ""
    cells = (f"`{name}`", option["type"], f"`{shown}`" if shown else "empty", f"{option['description']}{choices}")
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def main() -> None:
    """Write all of them."""
    for name in TABLES:
        (VERSIONS / name).write_text(table(name), encoding="utf-8")
    for role in ROLES:
        (role / "README.md").write_text(readme(role), encoding="utf-8")
        if (role / "defaults/main.yml").exists():
            (role / "meta/argument_specs.yml").write_text(specification(role), encoding="utf-8")


if __name__ == "__main__":
    main()
