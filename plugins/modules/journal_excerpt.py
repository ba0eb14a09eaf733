#!/usr/bin/python
"""Reads why a unit failed: the first errors in its journal and its end."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.journal import excerpt

DOCUMENTATION = r"""
module: journal_excerpt
short_description: Reads the first errors and the end of a unit's journal of this boot, each line once
description:
  - A unit that repeats itself ten times a second pushes the cause out of any number of last lines.
options:
  unit: {description: The unit., type: str, required: true}
  lines: {description: Lines given at most., type: int, default: 40}
  read: {description: Last lines that are read for them., type: int, default: 5000}
author: [the project]
"""

EXAMPLES = r"""
- name: Read why the kubelet failed
  journal_excerpt:
    unit: kubelet.service
"""

RETURN = r"""
excerpt: {description: The lines; what differs in numbers alone is given once, with how often it came., type: str, returned: always}
"""


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "lines": {"type": "int", "default": 40},
            "read": {"type": "int", "default": 5000},
        },
        supports_check_mode=True,
    )
    asked = module.params
    command = [
        "journalctl",
        "--unit",
        asked["unit"],
        "--boot",
        "--no-pager",
        "--lines",
        str(asked["read"]),
        "--output",
        "cat",
    ]
    _, journal, _ = module.run_command(command)
    module.exit_json(changed=False, excerpt=excerpt(journal, asked["lines"]))


if __name__ == "__main__":
    main()
