#!/usr/bin/python
"""A user's kubeconfig: the administrator's, another cluster's being kept beside it; or a service account's, with a token that is renewed."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from itertools import count
from pathlib import Path
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.kubectl import KUBECTL
from ..module_utils.node_files import Files

DOCUMENTATION = r"""
{"module": "kubeconfig", "author": ["the project"], "short_description": "Gives a user the administrator's kubeconfig or that of a service account, and removes the administrator's again",
 "description": [
  "Without O(account) it is a copy of O(source). A file is this cluster's when every cluster in it has the certificate authority of O(source); such a one is replaced. Any other is kept beside it under a name of its own, with its owner and mode; a kept file is never written again.",
  "V(absent) removes this cluster's file only, and puts the last kept one back in its place.",
  "With O(account) it has the address and certificate authority of O(source), and a token that is valid for O(ttl_s) and renewed once half of that is over, so that a run now and then keeps it alive.",
  "The file is its owner's alone; its content never appears in a diff or a log.",
  "Returns kept: where the file that stood there was kept now, or the kept one that was put back; with O(account) expires_in_s, of the token."],
 "options": {
  "path": {"type": "path", "required": true, "description": "The kubeconfig; ~user is that user's home."},
  "owner": {"type": "str", "required": true, "description": "Who owns it."},
  "state": {"type": "str", "choices": ["present", "absent"], "default": "present", "description": "Whether it is there; only the administrator's is taken away."},
  "source": {"type": "path", "default": "/etc/kubernetes/admin.conf", "description": "The administrator's kubeconfig."},
  "account": {"type": "str", "default": "", "description": "Name of a service account."},
  "namespace": {"type": "str", "default": "", "description": "Its namespace"},
  "ttl_s": {"type": "int", "default": 2592000, "description": "Seconds that its token is valid."}}}
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


def remaining_s(token: str, now_s: float) -> int:
    """Seconds that a token is still valid; negative for what is no token."""
    try:
        body = token.split(".")[1]
        return int(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp", 0) - now_s)
    except (IndexError, ValueError, AttributeError):
        return -1


class Kubeconfig:
    """The user's file, and those that were kept beside it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.asked: dict[str, Any] = module.params
        self.path = Path(module.params["path"])
        self.source = text_of(Path(module.params["source"]))

    def write(self, **content: Any) -> bool:
        """Brings the file to its content: whether it changed."""
        files = Files(self.module)
        files.file(self.path, files.content({"source": None, **content}), "0600", self.asked["owner"])
        return bool(files.written)

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

    def present(self) -> dict[str, Any]:
        """Brings the file to the administrator's content: whether it changed, and where another one was kept."""
        kept = self.keep()
        return {"changed": self.write(source=self.asked["source"]), "kept": kept}

    def absent(self) -> dict[str, Any]:
        """Takes ours away: whether it was there, and which kept one stands in its place."""
        if not same_cluster(text_of(self.path), self.source):
            return {"changed": False, "kept": ""}
        last = self.kept(self.free() - 1)
        found = os.path.lexists(last)
        if not self.module.check_mode and found:
            last.replace(self.path)
        elif not self.module.check_mode:
            self.path.unlink()
        return {"changed": True, "kept": str(last) if found else ""}

    def kubectl(self, *words: str) -> str:
        """Standard output of kubectl as the administrator; ends the module with its words when it fails."""
        code, out, err = self.module.run_command([KUBECTL, "--kubeconfig", self.asked["source"], *words])
        if code != 0:
            self.module.fail_json(msg=f"kubectl {' '.join(words)} ended with {code}: {(err or out).strip()}")
        return str(out)

    def tokenless(self) -> dict[str, Any]:
        """The account's kubeconfig without a token."""
        admin = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--output", "json"))
        if not admin.get("clusters"):
            self.module.fail_json(
                msg=f"{self.asked['source']} names no cluster: make the control plane first (playbooks/cluster.yml)."
            )
        name = f"{self.asked['account']}@{self.asked['namespace']}"
        context = {"cluster": "cluster", "user": name, "namespace": self.asked["namespace"]}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": admin["clusters"][0]["cluster"]}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        }

    def written_token(self, wanted: dict[str, Any]) -> str:
        """The token of the file where it is otherwise as wanted; empty where it is another one."""
        try:
            content = json.loads(text_of(self.path))
            token = str(content["users"][0]["user"]["token"])
        except (ValueError, LookupError, TypeError):
            return ""
        users = [{**wanted["users"][0], "user": {"token": token}}]
        return token if content == {**wanted, "users": users} else ""

    def of_account(self) -> dict[str, Any]:
        """Brings the file to the account's: whether it changed, and how long its token is valid."""
        wanted, now_s = self.tokenless(), time.time()
        token = self.written_token(wanted)
        if remaining_s(token, now_s) < self.asked["ttl_s"] // 2:
            if self.module.check_mode:
                return {"changed": True, "expires_in_s": remaining_s(token, now_s)}
            place = ("--namespace", self.asked["namespace"], "--duration", f"{self.asked['ttl_s']}s")
            token = self.kubectl("create", "token", self.asked["account"], *place).strip()
        wanted["users"][0]["user"] = {"token": token}
        changed = self.write(content=json.dumps(wanted, indent=1) + "\n")
        return {"changed": changed, "expires_in_s": remaining_s(token, now_s)}


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    one = Kubeconfig(module)
    if module.params["account"] and module.check_mode and not one.source:
        module.exit_json(changed=True, expires_in_s=0, msg="no cluster on this machine yet: it would be written")
    try:
        result = one.of_account() if module.params["account"] else getattr(one, module.params["state"])()
    except (OSError, KeyError) as error:
        module.fail_json(
            msg=f"{one.path} could not be brought to its state: {error}. Free space, a read-only disk or a file system"
            " without hard links are the usual reasons; fix it, or move the file away, and run again."
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
