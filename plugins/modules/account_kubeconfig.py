#!/usr/bin/python
"""A kubeconfig of a service account's own, with a token that ends, renewed in time."""

from __future__ import annotations

import base64
import binascii
import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.node_files import Files

DOCUMENTATION = r"""
module: account_kubeconfig
short_description: Gives a user a kubeconfig that is a service account and nothing more
description:
  - Takes the cluster's address and certificate authority from the administrator's kubeconfig, and nothing else of it.
  - The token is valid for O(ttl_s). It is renewed once half of that is over, so that a run now and then keeps it alive.
  - The file is its owner's alone; its content never appears in a diff or a log.
options:
  path: {description: The kubeconfig; ~user is that user's home., type: str, required: true}
  owner: {description: Who owns it., type: str, required: true}
  account: {description: Name of the service account., type: str, required: true}
  namespace: {description: Its namespace, and that of the context., type: str, required: true}
  ttl_s: {description: Seconds that a token is valid., type: int, default: 2592000}
  kubeconfig: {description: The administrator's., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Let the harness in
  account_kubeconfig:
    path: ~ada/.kube/harness.conf
    owner: ada
    account: harness
    namespace: inference
"""

RETURN = r"""
expires_in_s: {description: Seconds that the token is valid from now., type: int, returned: always}
"""


def claims(token: str) -> dict[str, Any]:
    """What a token says of itself; empty where it is none."""
    try:
        body = token.split(".")[1]
        return dict(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except (IndexError, ValueError, binascii.Error):
        return {}


def remaining_s(token: str, now_s: float) -> int:
    """Seconds that a token is still valid."""
    return int(claims(token).get("exp", 0) - now_s)


def written_token(content: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The token of a kubeconfig that is otherwise as wanted; empty where it is another one."""
    users = content.get("users") or []
    token = str(users[0].get("user", {}).get("token", "")) if users else ""
    wanted["users"][0]["user"] = {"token": token}
    return token if content == wanted else ""


class Kubeconfig:
    """The file that is wanted, and what is there."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.asked: dict[str, Any] = module.params
        self.path = Path(self.asked["path"]).expanduser()

    def present(self) -> dict[str, Any]:
        """The file as it is; empty where it is not one of ours."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def kubectl(self, *words: str) -> str:
        """Standard output of kubectl as the administrator; ends the module with its words when it fails."""
        command = [self.asked["kubectl"], "--kubeconfig", self.asked["kubeconfig"], *words]
        code, out, err = self.module.run_command(command)
        if code != 0:
            self.module.fail_json(msg=f"kubectl {' '.join(words)} ended with {code}: {(err or out).strip()}")
        return str(out)

    def wanted(self) -> dict[str, Any]:
        """The kubeconfig without a token."""
        admin = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--output", "json"))
        if not admin.get("clusters"):
            self.module.fail_json(
                msg=f"{self.asked['kubeconfig']} names no cluster: make the control plane first (playbooks/cluster.yml)."
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

    def token(self) -> str:
        """A new token."""
        place = ("--namespace", self.asked["namespace"], "--duration", f"{self.asked['ttl_s']}s")
        return self.kubectl("create", "token", self.asked["account"], *place).strip()

    def apply(self) -> tuple[bool, int]:
        """Brings the file to its state: whether it changed, and how long its token is valid."""
        wanted, now_s = self.wanted(), time.time()
        token = written_token(self.present(), wanted)
        if remaining_s(token, now_s) < self.asked["ttl_s"] // 2:
            if self.module.check_mode:
                return True, remaining_s(token, now_s)
            token = self.token()
        wanted["users"][0]["user"] = {"token": token}
        files = Files(self.module)
        files.file(self.path, json.dumps(wanted, indent=1) + "\n", "0600", self.asked["owner"])
        return bool(files.written), remaining_s(token, now_s)


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "account": {"type": "str", "required": True},
            "namespace": {"type": "str", "required": True},
            "ttl_s": {"type": "int", "default": 2592000},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    if module.check_mode and not Path(module.params["kubeconfig"]).exists():
        module.exit_json(changed=True, expires_in_s=0, msg="no cluster on this machine yet: it would be written")
    changed, expires_in_s = Kubeconfig(module).apply()
    module.exit_json(changed=changed, expires_in_s=expires_in_s)


if __name__ == "__main__":
    main()
