# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Modules whose arguments are described once: in their documentation, which is JSON, so YAML for Ansible and readable without any package on the machine."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

ENVIRONMENT = {"LC_ALL": "C", "LANG": "C", "DEBIAN_FRONTEND": "noninteractive"}


def arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The argument specification of documented options."""
    found = {}
    for name, option in options.items():
        found[name] = {key: value for key, value in option.items() if key not in {"description", "suboptions"}}
        if "suboptions" in option:
            found[name]["options"] = arguments(option["suboptions"])
    return found


def documented(documentation: str, **more: Any) -> AnsibleModule:
    """The module of a documentation. Its option `proxy`, which is never on a command line, is given to all that it fetches with."""
    module = AnsibleModule(
        argument_spec=arguments(json.loads(documentation)["options"]), supports_check_mode=True, **more
    )
    module.run_command_environ_update = ENVIRONMENT
    use_proxy(module)
    return module


def use_proxy(module: Any) -> None:
    """Gives the proxy to this process and its children."""
    os.environ.update({name: str(value) for name, value in (module.params.get("proxy") or {}).items()})
