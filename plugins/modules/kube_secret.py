#!/usr/bin/python3
"""A Secret with random values, made once and never read."""

from __future__ import annotations

import json
import secrets

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kube_secret
short_description: Makes a Secret with random values where it is missing, and leaves one that is there alone
description:
  - The values are made on the machine and handed to kubectl on its standard input. They are in no argument, no file,
    no log and no result of this module.
options:
  name: {description: Name of the Secret., type: str, required: true}
  namespace: {description: Its namespace., type: str, required: true}
  keys: {description: Keys to make a value for., type: list, elements: str, required: true}
  size_bytes: {description: Random bytes of a value., type: int, default: 24}
  kubeconfig: {description: Whose credentials., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Make the password
  kube_secret:
    name: grafana-admin
    namespace: monitoring
    keys: [password]
"""

RETURN = r""" # """

EXISTS = "AlreadyExists"


def document(name: str, namespace: str, keys: list[str], size_bytes: int) -> str:
    """The Secret as JSON, a new random value for every key."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": "Opaque",
            "stringData": {key: secrets.token_urlsafe(size_bytes) for key in keys},
        }
    )


def kubectl(module: AnsibleModule, *words: str, data: str | None = None) -> tuple[int, str]:
    """Runs kubectl: exit status, and what it said."""
    options = module.params
    command = [options["kubectl"], "--kubeconfig", options["kubeconfig"], "--request-timeout", "60s", *words]
    code, out, err = module.run_command(command, data=data)
    return int(code), str(out if code == 0 else err or out).strip()


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "namespace": {"type": "str", "required": True},
            "keys": {"type": "list", "elements": "str", "required": True, "no_log": False},
            "size_bytes": {"type": "int", "default": 24},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    name, namespace, keys = (module.params[key] for key in ("name", "namespace", "keys"))
    if module.check_mode and module.get_bin_path(module.params["kubectl"]) is None:
        module.exit_json(changed=True, msg="no kubectl on this machine yet: the Secret would be made")
    code, said = kubectl(
        module, "get", "secret", name, "--namespace", namespace, "--ignore-not-found", "--output", "name"
    )
    if code == 0 and said:
        module.exit_json(changed=False)
    if code != 0 and not module.check_mode:
        module.fail_json(msg=f"whether there is a Secret {namespace}/{name} cannot be read: {said}")
    if not module.check_mode:
        make(module, name, namespace, keys)
    module.exit_json(changed=True)


def make(module: AnsibleModule, name: str, namespace: str, keys: list[str]) -> None:
    """Creates the Secret; one that somebody else made meanwhile is as good."""
    data = document(name, namespace, keys, module.params["size_bytes"])
    code, said = kubectl(module, "create", "--filename", "-", data=data)
    if code != 0 and EXISTS not in said:
        module.fail_json(msg=f"the API server did not take the Secret {namespace}/{name}: {said}")


if __name__ == "__main__":
    main()
