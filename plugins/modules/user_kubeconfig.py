#!/usr/bin/python
"""A user's ~/.kube/config with the administrator's credentials; what stood there before is kept, and put back."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.node_files import Files

DOCUMENTATION = r"""
module: user_kubeconfig
short_description: Gives a user a copy of the administrator's kubeconfig, and takes it away again
description:
  - A file is this cluster's when every cluster in it has the certificate authority of O(source). Such a one is replaced.
  - Any other is kept beside it under a name of its own, with its owner and mode; a kept file is never written again.
  - V(absent) removes this cluster's file only, and puts the last kept one back in its place.
options:
  path: {description: The kubeconfig; ~user is that user's home., type: path, required: true}
  owner: {description: Who owns it., type: str, required: true}
  state: {description: Whether it is there., type: str, choices: [present, absent], default: present}
  source: {description: The administrator's kubeconfig., type: path, default: /etc/kubernetes/admin.conf}
author: [the project]
"""

EXAMPLES = r"""
- name: Give ada her kubeconfig
  user_kubeconfig:
    path: ~ada/.kube/config
    owner: ada
"""

RETURN = r"""
kept: {description: Where the file that stood there was kept now, or the kept one that was put back; empty without., type: str,
       returned: always}
"""

KEPT = ".before-gpu-sharing-harness"
SERVER = re.compile(r"""(?<![\w-])server["']?\s*:""")
AUTHORITY = re.compile(r"""(?<![\w-])certificate-authority-data["']?\s*:\s*["']?([\w+/=]+)""")


def text_of(path: Path) -> str:
    """A file's text; empty for one that cannot be read, or is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def same_cluster(text: str, source: str) -> bool:
    """Whether every cluster of a kubeconfig is that of another one, by its certificate authority."""
    found = AUTHORITY.findall(text)
    return bool(found) and set(found) == set(AUTHORITY.findall(source)) and len(found) == len(SERVER.findall(text))


class Kubeconfig:
    """The user's file, and those that were kept beside it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.path = Path(module.params["path"])
        self.source = text_of(Path(module.params["source"]))

    def kept(self, number: int) -> Path:
        """The name of the first, second, ... file that was kept."""
        return self.path.with_name(f"{self.path.name}{KEPT}" + (f".{number}" if number > 1 else ""))

    def free(self) -> int:
        """The first number that no kept file has."""
        return next(number for number in count(1) if not os.path.lexists(self.kept(number)))

    def keep(self) -> str:
        """Gives what is not ours a second name, under which it stays when it is replaced."""
        if not os.path.lexists(self.path) or same_cluster(text_of(self.path), self.source):
            return ""
        number = self.free()
        last = self.kept(number - 1)
        # A run that was killed before it wrote ours.
        if number > 1 and os.path.lexists(last) and self.path.lstat().st_ino == last.lstat().st_ino:
            return str(last)
        if not self.module.check_mode:
            os.link(self.path, self.kept(number), follow_symlinks=False)
        return str(self.kept(number))

    def present(self) -> tuple[bool, str]:
        """Brings the file to the administrator's content: whether it changed, and where another one was kept."""
        kept = self.keep()
        files = Files(self.module)
        asked: dict[str, Any] = {"content": None, "source": self.module.params["source"]}
        files.file(self.path, files.content(asked), "0600", self.module.params["owner"])
        return bool(files.written), kept

    def absent(self) -> tuple[bool, str]:
        """Takes ours away: whether it was there, and which kept one stands in its place."""
        if not same_cluster(text_of(self.path), self.source):
            return False, ""
        last = self.kept(self.free() - 1)
        found = os.path.lexists(last)
        if not self.module.check_mode and found:
            last.replace(self.path)
        elif not self.module.check_mode:
            self.path.unlink()
        return True, str(last) if found else ""


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "owner": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "source": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
        },
        supports_check_mode=True,
    )
    one = Kubeconfig(module)
    try:
        changed, kept = one.present() if module.params["state"] == "present" else one.absent()
    except (OSError, KeyError) as error:
        module.fail_json(
            msg=f"{one.path} could not be brought to its state: {error}. Free space, a read-only disk or a file system"
            " without hard links are the usual reasons; mend it, or move the file away, and run again."
        )
    module.exit_json(changed=changed, kept=kept)


if __name__ == "__main__":
    main()
