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

from ..module_utils.documented import documented

DOCUMENTATION = r"""
{"module": "files_fetched", "author": ["the project"], "short_description": "Fetches files into a folder and checks their sums",
 "description": [
  "A file that is there with the right sum is not asked for again. One that is served with another sum is not kept.",
  "In check mode nothing is fetched."],
 "options": {
  "folder": {"type": "path", "required": true, "description": "Where they go; made where it is not there."},
  "files": {"type": "list", "elements": "dict", "required": true, "description": "The files: a name, the url where each is served, its sha256."},
  "mirror": {"type": "str", "default": "", "description": "Folder that serves all of them under their names"},
  "proxy": {"type": "dict", "default": {}, "no_log": true, "description": "http_proxy, https_proxy and no_proxy of the environment; never shown."}}}
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


def fetch(module: Any, path: Path, one: dict[str, Any]) -> None:
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
    module = documented(DOCUMENTATION)
    paths = {one["name"]: Path(module.params["folder"]) / one["name"] for one in module.params["files"]}
    wanted = [one for one in module.params["files"] if module.sha256(str(paths[one["name"]])) != one["sha256"].lower()]
    for one in [] if module.check_mode else wanted:
        fetch(module, paths[one["name"]], one)
    module.exit_json(changed=bool(wanted), fetched=[one["name"] for one in wanted])


if __name__ == "__main__":
    main()
