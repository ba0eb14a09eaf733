# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""kubectl as the administrator."""

from __future__ import annotations

from typing import Any

ADMIN = "/etc/kubernetes/admin.conf"
KUBECTL = "/usr/bin/kubectl"


def kubectl(module: Any, *words: str, data: str | None = None) -> tuple[int, str, str]:
    """Runs kubectl for a module: exit status, stdout, stderr."""
    code, out, err = module.run_command([KUBECTL, "--kubeconfig", ADMIN, *words], data=data)
    return int(code), str(out), str(err)
