"""The module that makes certificates and logins of the monitoring, run for real; only kubectl is played, and keeps its Secrets."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.ansible import tree
from tests.unit.ansible.fake_module import FakeModule

MODULE = tree.module("monitoring_access")
SECRETS = {"prometheus": "prometheus-access", "grafana": "grafana-admin"}


class Kubectl:
    """Secrets as an API server keeps them, and the Services' address.

    asked: the words of every command.
    """

    def __init__(self, address: str = "10.96.7.7", port: int = 9090, nodes: Sequence[dict[str, Any]] = ()) -> None:
        self.secrets: dict[str, dict[str, str]] = {}
        self.service: dict[str, Any] = {"spec": {"clusterIP": address, "ports": [{"port": port}]}}
        self.nodes, self.asked = nodes, list[list[str]]()

    def run(self, command: Sequence[str], data: str | None = None) -> tuple[int, str, str]:
        """Answers kubectl; everything else is run."""
        self.asked.append(list(command))
        if command[0] != "/usr/bin/kubectl":
            done = subprocess.run(command, capture_output=True, text=True, input=data, check=False)
            return done.returncode, done.stdout, done.stderr
        verb, kind = command[5:7]
        if verb == "apply":
            body = json.loads(data or "")
            self.secrets[body["metadata"]["name"]] = body["data"]
            return 0, "", ""
        if kind == "nodes":
            return 0, json.dumps({"items": self.nodes}), ""
        known = {f"secret/{name}": {"data": data} for name, data in self.secrets.items()}
        known |= {word: self.service for word in command if word.startswith("service/")}
        items = [
            {"kind": word.partition("/")[0].title(), "metadata": {"name": word.partition("/")[2]}, **known[word]}
            for word in command
            if word in known
        ]
        return 0, json.dumps({"items": items}) if items else "", ""

    def values(self, secret: str) -> dict[str, str]:
        """What a Secret holds."""
        return {key: base64.b64decode(value).decode() for key, value in self.secrets[secret].items()}


def give(folder: Path, kubectl: Kubectl, service: str, *, check_mode: bool = False, **changed: Any) -> dict[str, Any]:
    """Gives a service its certificate and its login, kept in the folder; returns the module's result."""

    class Fake(FakeModule):
        def run_command(self, command: Sequence[str], data: str | None = None) -> tuple[int, str, str]:
            return kubectl.run(command, data)

    params = {
        "service": service,
        "namespace": "monitoring",
        "secret": SECRETS[service],
        "user": "harness" if service == "prometheus" else "admin",
        "web_config": service == "prometheus",
        "node_addresses": False,
        "days_min": 60,
        "folder": str(folder),
    }
    before = os.umask(0o022)
    try:
        result: dict[str, Any] = MODULE.Access(Fake(check_mode=check_mode, **{**params, **changed})).run()
    finally:
        os.umask(before)
    return result


def mount(secret: dict[str, str], folder: Path) -> Path:
    """A Secret's values as files, as a pod has them."""
    folder.mkdir()
    for name, text in secret.items():
        (folder / name).write_text(text)
    return folder


def headers(access: dict[str, str]) -> dict[str, str]:
    """What a client with the login sends."""
    return {
        "Authorization": "Basic " + base64.b64encode(f"{access['username']}:{access['password']}".encode()).decode()
    }


def trusting(access: dict[str, str]) -> ssl.SSLContext:
    """A client that knows the authority, and no other."""
    return ssl.create_default_context(cadata=access["ca.crt"])
