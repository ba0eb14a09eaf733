#!/usr/bin/python
"""Files and the units that read them, brought to their state in one call."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.node_files import Files
from ..module_utils.node_units import Units

DOCUMENTATION = r"""
module: node_state
short_description: Files with their contents, and units that run with them
description:
  - Each file is replaced in one step, its folder made where needed; a private one never appears in a diff.
  - A unit is restarted when it started before its files last changed. A handler is lost when a run is killed between
    the change and the restart; this looks at the machine instead, so the next run finishes what the killed one began.
  - systemd is reloaded only where it says that it needs to be.
  - One call for the files and units of a role, where files, links, units and their handlers would be ten.
options:
  files:
    description: Files, written before anything is done to a unit.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where., type: path, required: true}
      content: {description: "What; this or O(files[].source).", type: str}
      source: {description: A file on the machine that is copied., type: path}
      secret: {description: What as well; no log and no result shows it., type: str}
      mode: {description: Permissions in octal., type: str, default: "0644"}
      owner: {description: User who owns it and its folder; empty for the user who runs this., type: str,
              default: ""}
      only_mend: {description: Bring it to its content where it is there already; do not make it., type: bool,
                  default: false}
      random: {description: "Make it once: RANDOM_KEY in its content is a key of 32 random bytes in base64, which no log and no
                             result has. A file that is there keeps its content.", type: bool, default: false}
  links: {description: Symbolic links as path and target; a real file in the way is an error., type: dict, default: {}}
  absent: {description: Files that must not be there; patterns as a shell would read them. What O(files) and O(links) name stays.,
           type: list, elements: str, default: []}
  units:
    description: The units, in their order.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: The unit., type: str, required: true}
      state:
        description:
          - V(running) is enabled, active, and started after its files last changed.
          - V(current) is the same for a unit that runs already, and leaves one that does not run alone.
          - V(enabled) starts at the next boot. V(masked) never starts. V(off) is stopped and disabled.
        type: str
        choices: [running, current, enabled, masked, "off"]
        default: running
      paths: {description: Files and folders it reads at its start; a folder counts with everything directly in it.,
              type: list, elements: str, default: []}
      optional: {description: Ignore a unit that does not exist., type: bool, default: false}
  settle_s: {description: "Seconds that services have to stay up after a start, waited once.", type: float, default: 2.0}
  journal_lines: {description: Lines of its journal shown when it does not come up., type: int, default: 30}
author: [the project]
"""

EXAMPLES = r"""
- name: Configure and run CRI-O
  node_state:
    files: [{path: /etc/crio/crio.conf.d/20-node.conf, content: "..."}]
    absent: ["/etc/crio/crio.conf.d/*.bak"]
    units: [{name: crio.service, paths: [/usr/bin/crio, /etc/crio/crio.conf.d]}]
"""

RETURN = r"""
written: {description: Files that were written now., type: list, elements: str, returned: always}
removed: {description: Files that were removed now., type: list, elements: str, returned: always}
actions: {description: What was done to units., type: list, elements: str, returned: always}
missing: {description: Optional units that do not exist., type: list, elements: str, returned: always}
"""


def specification() -> dict[str, Any]:
    """The module's arguments."""
    file = {
        "path": {"type": "path", "required": True},
        "content": {"type": "str"},
        "secret": {"type": "str", "no_log": True},
        "source": {"type": "path"},
        "mode": {"type": "str", "default": "0644"},
        "owner": {"type": "str", "default": ""},
        "only_mend": {"type": "bool", "default": False},
        "random": {"type": "bool", "default": False},
    }
    unit = {
        "name": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["running", "current", "enabled", "masked", "off"], "default": "running"},
        "paths": {"type": "list", "elements": "str", "default": []},
        "optional": {"type": "bool", "default": False},
    }
    either = {
        "mutually_exclusive": [("content", "secret", "source")],
        "required_one_of": [("content", "secret", "source")],
    }
    return {
        "files": {"type": "list", "elements": "dict", "default": [], "options": file, **either},
        "links": {"type": "dict", "default": {}},
        "absent": {"type": "list", "elements": "str", "default": []},
        "units": {"type": "list", "elements": "dict", "default": [], "options": unit},
        "settle_s": {"type": "float", "default": 2.0},
        "journal_lines": {"type": "int", "default": 30},
    }


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(argument_spec=specification(), supports_check_mode=True)
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    files = Files(module)
    files.apply(module.params)
    units = Units(module, files.written)
    for one in module.params["units"]:
        units.apply(one)
    units.settle()
    module.exit_json(
        changed=bool(files.written or files.removed or units.actions),
        written=files.written,
        removed=files.removed,
        actions=units.actions,
        missing=units.missing,
        diff=files.diff,
    )


if __name__ == "__main__":
    main()
