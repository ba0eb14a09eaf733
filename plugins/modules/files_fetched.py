#!/usr/bin/python
"""Files fetched once, through a proxy where there is one, and kept when their sums are right."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.proxied import OPTION, use_proxy

DOCUMENTATION = r"""
module: files_fetched
short_description: Fetches files into a folder and checks their sums
description:
  - A file that is there with the right sum is not asked for again.
  - One that is served with another sum is not kept.
  - In check mode nothing is fetched.
options:
  folder: {description: Where they go; made where it is not there., type: path, required: true}
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Its name in the folder., type: str, required: true}
      url: {description: Where it is served., type: str, required: true}
      sha256: {description: Its sum., type: str, required: true}
  mirror: {description: Folder that serves all of them under their names, in place of their addresses., type: str, default: ""}
  attempts: {description: How often a file is asked for., type: int, default: 3}
  timeout_s: {description: Seconds until a silent server is given up., type: int, default: 30}
  proxy: {description: "http_proxy, https_proxy and no_proxy of the environment; never shown.", type: dict, default: {}}
author: [the project]
"""

EXAMPLES = r"""
- name: Fetch the manifests
  files_fetched:
    folder: /opt/manifests
    files: [{name: a.yaml, url: "https://example.org/a.yaml", sha256: "..."}]
"""

RETURN = r"""
fetched: {description: Names of the files that were fetched now., type: list, elements: str, returned: always}
"""

RETRY_S = 2.0
# A password in an address is nobody's to read.
CREDENTIALS = re.compile(r"//[^/]*@")


class WrongSumError(Exception):
    """What is served is another file."""


def fetched(url: str, sha256: str, timeout_s: int) -> bytes:
    """The content; OSError where it cannot be had, WrongSumError where it is another one."""
    from http.client import HTTPException

    from ansible.module_utils.urls import open_url  # takes longer to import than a run without news takes

    try:
        with open_url(url, timeout=timeout_s) as response:
            content = bytes(response.read())
    except HTTPException as error:
        raise OSError(str(error)) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise WrongSumError(f"has the sum {found}, and the table of versions says {sha256}")
    return content


def fetch(module: AnsibleModule, path: Path, one: dict[str, Any]) -> None:
    """Fetches one file; ends the module with the reason when it cannot be had."""
    attempts, mirror = module.params["attempts"], module.params["mirror"].rstrip("/")
    url = f"{mirror}/{one['name']}" if mirror else one["url"]
    for attempt in range(1, attempts + 1):
        try:
            content = fetched(url, one["sha256"].lower(), module.params["timeout_s"])
        except (OSError, ValueError, WrongSumError) as error:
            if attempt < attempts:
                time.sleep(RETRY_S)
                continue
            module.fail_json(
                msg=f"{CREDENTIALS.sub('//...@', url)} could not be fetched: {error}. Check that the machine reaches this address and that the mirror"
                " holds this very file, or name another mirror in inventory/group_vars/all/mirrors.yml; then run again.",
                fetched=[],
            )
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=module.tmpdir, delete=False) as new:
            new.write(content)
        module.atomic_move(new.name, str(path))
        path.chmod(0o644)
        return


def main() -> None:
    """Runs the module."""
    options = {name: {"type": "str", "required": True} for name in ("name", "url", "sha256")}
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "dict", "required": True, "options": options},
            "mirror": {"type": "str", "default": ""},
            "attempts": {"type": "int", "default": 3},
            "timeout_s": {"type": "int", "default": 30},
            **OPTION,
        },
        supports_check_mode=True,
    )
    use_proxy(module)
    folder = Path(module.params["folder"])
    wanted = [
        (folder / one["name"], one)
        for one in module.params["files"]
        if module.sha256(str(folder / one["name"])) != one["sha256"].lower()
    ]
    for path, one in [] if module.check_mode else wanted:
        fetch(module, path, one)
    module.exit_json(changed=bool(wanted), fetched=[one["name"] for _, one in wanted])


if __name__ == "__main__":
    main()
