"""Packages: at the one version, wholly installed, held."""

from __future__ import annotations

from collections.abc import Mapping

from harness.node.checks.registry import Node, Observation, check


def judge_packages(node: Node, wanted: Mapping[str, str]) -> Observation:
    """Every package at its upstream version (any Debian revision), wholly installed and held."""
    present = node.machine.packages()
    found: list[str] = []
    ok = True
    for name, version in wanted.items():
        state = present.get(name)
        if state is None:
            found.append(f"{name} absent")
            ok = False
            continue
        right = state.version == version or state.version.startswith(f"{version}-")
        notes = ("" if state.installed else " half-installed") + ("" if state.held else " not held")
        found.append(f"{name} {state.version}{notes}")
        ok = ok and right and state.installed and state.held
    expected = ", ".join(f"{name} {version}" for name, version in wanted.items())
    return Observation(ok, f"held: {expected}", ", ".join(found))


@check(
    "packages/versions",
    advice="Run the crio and kubernetes_packages roles again; use playbooks/upgrade.yml to change a version.",
)
def packages_are_pinned(node: Node) -> Observation:
    """CRI-O and Kubernetes are at the versions of the table and held."""
    return judge_packages(node, node.expected.packages)
