#!/usr/bin/python
"""Files fetched once, through a proxy where there is one, and kept when their sums are right.

get_url has a proxy from its environment alone, which Ansible writes on a command line: everybody there could read its password.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.proxied import OPTION, use_proxy

DOCUMENTATION = r"""
module: files_fetched
short_description: Fetches files into a folder and checks their sums
description:
  - A file that is there with the right sum is not asked for again. One that is served with another sum is not kept.
  - In check mode nothing is fetched.
options:
  folder: {description: Where they go; made where it is not there., type: path, required: true}
  files: {description: "The files: a name, the url where each is served, its sha256.", type: list, elements: dict, required: true}
  mirror: {description: Folder that serves all of them under their names, in place of their addresses., type: str, default: ""}
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

TIMEOUT_S = 30
# A password in an address is nobody's to read.
CREDENTIALS = re.compile(r"//[^/]*@")


def fetched(url: str, sha256: str) -> bytes:
    """The content; OSError or ValueError where it cannot be had, or is another one."""
    from http.client import HTTPException

    from ansible.module_utils.urls import open_url  # takes longer to import than a run without news takes

    try:
        with open_url(url, timeout=TIMEOUT_S) as response:
            content = bytes(response.read())
    except HTTPException as error:
        raise OSError(str(error)) from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(f"has the sum {found}, and the table of versions says {sha256}")
    return content


def fetch(module: AnsibleModule, path: Path, one: dict[str, Any]) -> None:
    """Fetches one file; ends the module with the reason when it cannot be had."""
    mirror = module.params["mirror"].rstrip("/")
    url = f"{mirror}/{one['name']}" if mirror else one["url"]
    try:
        content = fetched(url, one["sha256"].lower())
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"{CREDENTIALS.sub('//...@', url)} could not be fetched: {error}. Check that the machine reaches this address and that the mirror"
            " holds this very file, or name another mirror in inventory/group_vars/all/mirrors.yml; then run again."
        )
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=module.tmpdir, delete=False) as new:
        new.write(content)
    module.atomic_move(new.name, str(path))
    path.chmod(0o644)


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "dict", "required": True},
            "mirror": {"type": "str", "default": ""},
            **OPTION,
        },
        supports_check_mode=True,
    )
    use_proxy(module)
    paths = {one["name"]: Path(module.params["folder"]) / one["name"] for one in module.params["files"]}
    wanted = [one for one in module.params["files"] if module.sha256(str(paths[one["name"]])) != one["sha256"].lower()]
    for one in [] if module.check_mode else wanted:
        fetch(module, paths[one["name"]], one)
    module.exit_json(changed=bool(wanted), fetched=[one["name"] for one in wanted])


if __name__ == "__main__":
    main()
