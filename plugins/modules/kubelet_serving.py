#!/usr/bin/python
"""The certificate that a node's kubelet serves with, signed by the cluster's authority for exactly that node."""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kubelet_serving
short_description: Approves what a node's kubelet asks to be signed for its own port, and nothing else
description:
  - A request is approved when the kubelet of that node made it, for serving alone, under no other names and addresses than the node's.
    One that asks for more is left, and named.
  - Then it waits until the API server reaches the kubelet, which it does only where it knows the certificate.
  - A request for a renewal is approved in the same way by whichever run meets it.
options:
  node: {description: Name of the node., type: str, required: true}
  addresses: {description: The machine's own addresses., type: list, elements: str, required: true}
  timeout_s: {description: Seconds until the kubelet has to be reached., type: int, default: 120}
  kubeconfig: {description: Whose credentials., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Have the kubelet's certificate signed
  kubelet_serving:
    node: controlplane
    addresses: [192.0.2.10]
"""

RETURN = r"""
approved: {description: Names of the requests that were approved now., type: list, elements: str, returned: always}
"""

SIGNER = "kubernetes.io/kubelet-serving"
USAGES = {"digital signature", "key encipherment", "server auth"}
RETRY_S = 1.0


class Kubelet:
    """One node's kubelet and what it has asked for."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.node = module.params["node"]
        self.user = f"system:node:{self.node}"
        self.approved: list[str] = []
        self.refused: list[str] = []

    def kubectl(self, *words: str) -> tuple[int, str]:
        """Exit status of kubectl, and what it said."""
        options = self.module.params
        command = [options["kubectl"], "--kubeconfig", options["kubeconfig"], "--request-timeout", "20s", *words]
        code, out, err = self.module.run_command(command)
        return int(code), str(out if code == 0 else err or out).strip()

    def pending(self) -> list[dict[str, Any]]:
        """The requests of this kubelet for its serving certificate that nobody has answered."""
        code, said = self.kubectl("get", "certificatesigningrequests", "--output", "json")
        items = json.loads(said)["items"] if code == 0 else []
        return [
            item
            for item in items
            if item["spec"].get("signerName") == SIGNER
            and item["spec"].get("username") == self.user
            and not item.get("status", {}).get("conditions")
        ]

    def wrong(self, spec: dict[str, Any]) -> str:
        """What a request asks for that is not this node's; empty where there is nothing."""
        request = base64.b64decode(spec["request"]).decode()
        command = ["openssl", "req", "-noout", "-text", "-subject", "-nameopt", "RFC2253"]
        code, text, err = self.module.run_command(command, data=request)
        if code != 0:
            return f"no request that can be read: {err.strip()}"
        subject = re.findall(r"^subject=(.*)$", text, re.MULTILINE)
        names = re.findall(r"Subject Alternative Name:[^\n]*\n\s*([^\n]+)", text)
        asked = {part.strip() for part in ",".join(names).split(",") if part.strip()}
        allowed = {f"DNS:{self.node}", *(f"IP Address:{one}" for one in self.module.params["addresses"])}
        more = sorted(asked - allowed) + sorted(set(spec.get("usages", ())) - USAGES)
        if set(",".join(subject).replace(" ", "").split(",")) != {"O=system:nodes", f"CN={self.user}"}:
            more.append(f"the subject {subject}")
        return ", ".join(more) or ("" if asked else "no name at all")

    def approve(self) -> None:
        """Approves every request that is this node's, and notes the others."""
        for item in self.pending():
            name = item["metadata"]["name"]
            if reason := self.wrong(item["spec"]):
                self.refused.append(f"{name} asks for {reason}")
            elif self.module.check_mode or self.kubectl("certificate", "approve", name)[0] == 0:
                self.approved.append(name)

    def served(self) -> str:
        """Why the API server does not reach the kubelet; empty where it does."""
        code, said = self.kubectl("get", "--raw", f"/api/v1/nodes/{self.node}/proxy/healthz")
        return "" if code == 0 else said

    def settle(self) -> None:
        """Approves until the kubelet is reached; ends the module where that does not come."""
        deadline_s = time.monotonic() + self.module.params["timeout_s"]
        while True:
            self.refused = []
            self.approve()
            reason = self.served()
            if not reason or self.module.check_mode:
                return
            if time.monotonic() > deadline_s:
                asked = f" Requests that were not approved: {'; '.join(self.refused)}." if self.refused else ""
                self.module.fail_json(
                    msg=f"the API server does not reach the kubelet of {self.node}: {reason}.{asked}\n"
                    f"`kubectl get certificatesigningrequests` and `journalctl --unit kubelet` on the node say why; the node may"
                    " ask for its name and for its own addresses only. Mend that and run again.",
                    approved=self.approved,
                )
            time.sleep(RETRY_S)


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "addresses": {"type": "list", "elements": "str", "required": True},
            "timeout_s": {"type": "int", "default": 120},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    if module.check_mode and module.get_bin_path(module.params["kubectl"]) is None:
        module.exit_json(
            changed=True, approved=[], msg="no kubectl on this machine yet: the certificate would be signed"
        )
    kubelet = Kubelet(module)
    kubelet.settle()
    module.exit_json(changed=bool(kubelet.approved), approved=kubelet.approved)


if __name__ == "__main__":
    main()
