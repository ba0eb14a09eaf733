"""Writes every role's README from its argument specification: ``python -m scripts.role_readmes``.

A test fails when the two differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
ROLES = sorted(path.parents[1] for path in (ROOT / "roles").glob("*/meta/main.yml"))
_PAGE = """# {name}

<!-- Written by `python -m scripts.role_readmes` from `meta/`; edit that instead. -->

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


def readme(role: Path) -> str:
    """The page of one role."""
    what = _load(role / "meta/main.yml")["galaxy_info"]["description"].rstrip(".")
    specification = role / "meta/argument_specs.yml"
    if not specification.exists():
        return _PAGE.format(name=role.name, what=what, body=_VERSIONS)
    main = _load(specification)["argument_specs"]["main"]
    rows = "\n".join(_row(name, option) for name, option in main.get("options", {}).items())
    galaxy = _load(ROOT / "galaxy.yml")
    body = _USE.format(
        collection=f"{galaxy['namespace']}.{galaxy['name']}",
        name=role.name,
        more=f"{main['description']}\n" if "description" in main else "",
        variables=_TABLE.format(rows=rows) if rows else "",
    )
    return _PAGE.format(name=role.name, what=what, body=body)


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
    for role in ROLES:
        (role / "README.md").write_text(readme(role), encoding="utf-8")


if __name__ == "__main__":
    main()
