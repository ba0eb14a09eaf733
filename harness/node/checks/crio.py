"""CRI-O, and the packages of it and of Kubernetes: at the one version, wholly installed, held."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from harness.node.checks.registry import CannotLookError, Node, NotApplicableError, Observation, check, listed

DROP_INS = "/etc/crio/crio.conf.d"
_UNIT = "crio.service"
_CNI = "/etc/cni/net.d"
_SOCKET = "/var/run/crio/crio.sock"
_FILES = (
    "/usr/bin/crio",
    "/usr/bin/pinns",
    "/usr/libexec/crio/conmon",
    "/usr/libexec/crio/crun",
    "/usr/libexec/crio/runc",
)
# Both may hold the proxy's password.
_PROXY = "/etc/default/node-proxy"
_PROXY_FILES = (_PROXY, "/etc/apt/apt.conf.d/90-node-proxy")
_EXECUTABLE = 0o111
# Older ones refuse every container that CRI-O makes: "unknown version specified".
_CRUN_MIN = "1.14.3"
RUNTIME_ADVICE = (
    f"A crun has to be {_CRUN_MIN} or newer: take the one that CRI-O's package brings, /usr/libexec/crio/crun."
)
_AGAIN = "Run the crio role again (--tags crio)"


def settings(node: Node) -> dict[str, Any]:
    """What CRI-O's drop-ins say of runtimes, merged in the order in which it reads them."""
    merged: dict[str, Any] = {}
    for name in node.machine.listing(DROP_INS):
        try:
            _merge(merged, tomllib.loads(node.text(f"{DROP_INS}/{name}")))
        except tomllib.TOMLDecodeError as error:
            raise CannotLookError(f"{DROP_INS}/{name} is not TOML: {error}") from error
    runtime: dict[str, Any] = merged.get("crio", {}).get("runtime", {})
    return runtime


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def old_runtimes(node: Node, programs: Iterable[str]) -> list[str]:
    """Those of these runtimes that are a crun too old for CRI-O, with their versions. Nothing is known against any runc."""
    seen = []
    for program in programs:
        if program.rpartition("/")[2] == "crun":
            version = re.search(r"crun version (\d+(?:\.\d+)+)", node.output(program, "--version"))
            if version is None or version_parts(version[1]) < version_parts(_CRUN_MIN):
                seen.append(f"{program} is {version[1] if version else 'of no known version'}")
    return seen


def version_parts(version: str) -> list[int]:
    """The numbers of a version, to be compared."""
    return [int(part) for part in version.split(".")]


@check("crio/files", advice=f"{_AGAIN}: it reinstalls a package whose files are missing.", unit=_UNIT)
def files_are_there(node: Node) -> Observation:
    """The programs are there: a package can be "installed" and its binary missing."""
    states = {path: node.machine.stat(path) for path in _FILES}
    bad = [path for path, state in states.items() if state is None or not state.mode & _EXECUTABLE]
    return Observation(not bad, f"executable: {listed(_FILES)}", f"missing: {listed(bad)}")


@check("crio/service", advice=f"{_AGAIN}; its journal says why it does not run.", unit=_UNIT)
def service_runs(node: Node) -> Observation:
    """CRI-O runs now, and at the next boot."""
    return node.service(_UNIT)


@check("crio/current", advice="`systemctl restart crio`: it still runs with what it read before.", unit=_UNIT)
def service_has_read_its_files(node: Node) -> Observation:
    """The process is younger than its binary and every drop-in."""
    started_s = node.machine.unit(_UNIT).started_at_s
    paths = ["/usr/bin/crio", *(f"{DROP_INS}/{name}" for name in node.machine.listing(DROP_INS))]
    states = {path: node.machine.stat(path) for path in paths}
    younger = [path for path, state in states.items() if state and started_s and state.changed_at_s > started_s + 1]
    seen = "no start time" if started_s is None else f"changed since it started: {listed(younger)}"
    return Observation(started_s is not None and not younger, "started after its files were written", seen)


@check("crio/proxy", advice=f"{_AGAIN}: it writes the proxy's files and restarts CRI-O.", unit=_UNIT)
def proxy_is_used(node: Node) -> Observation:
    """CRI-O runs with the proxy of the inventory, where there is one; what may hold its password only root reads."""
    if not node.expected.proxy_used:
        raise NotApplicableError("http_proxy and https_proxy are empty")
    process = node.output("systemctl", "show", "--property=MainPID", "--value", _UNIT).strip()
    environment = dict(pair.partition("=")[::2] for pair in node.text(f"/proc/{process}/environ").split("\0"))
    lines = [line.partition("=")[::2] for line in node.text(_PROXY).splitlines() if not line.startswith("#")]
    untold = [name for name, value in lines if environment.get(name) != value.strip('"')]
    readable = [words for private, words in map(node.private, _PROXY_FILES) if not private]
    seen = f"not told of {listed(untold)}; not root's alone: {listed(readable)}"
    return Observation(bool(lines) and not untold and not readable, "told of everything; files root's alone", seen)


@check("crio/socket", advice="`systemctl restart crio`, then read its journal.", unit=_UNIT)
def socket_is_there(node: Node) -> Observation:
    """The socket that the kubelet calls is there."""
    state = node.machine.stat(_SOCKET)
    return Observation(
        state is not None and state.kind == "socket", f"{_SOCKET} a socket", state.kind if state else "nothing"
    )


@check("crio/no-strays", advice=f"Remove them: CRI-O reads every file in {DROP_INS}, copies and backups included.")
def no_stray_configuration(node: Node) -> Observation:
    """Every file in crio.conf.d is there on purpose: copies and backups would be configuration too."""
    names = node.machine.listing(DROP_INS)
    strays = [name for name in names if not name.endswith(".conf") or name.startswith(".")]
    return Observation(bool(names) and not strays, "only *.conf files", listed(strays) if strays else listed(names))


@check("crio/runtimes", advice=RUNTIME_ADVICE, unit=_UNIT)
def runtimes_are_new_enough(node: Node) -> Observation:
    """Every runtime that CRI-O is configured with takes the containers of this CRI-O."""
    handlers: dict[str, dict[str, Any]] = settings(node).get("runtimes", {})
    programs = {handler.get("runtime_path") or name for name, handler in handlers.items()}
    old = old_runtimes(node, sorted(programs))
    return Observation(bool(programs) and not old, f"no crun before {_CRUN_MIN}", listed(old or programs))


@check(
    "crio/cni",
    advice=f"{_AGAIN}: it moves CRI-O's own bridge out of the way; else pods get addresses Calico does not know.",
)
def bridge_is_out_of_the_way(node: Node) -> Observation:
    """CRI-O's packaged bridge does not come before Calico."""
    active = [name for name in node.machine.listing(_CNI) if "crio" in name and name.endswith((".conf", ".conflist"))]
    return Observation(not active, f"no CRI-O bridge active in {_CNI}", listed(active))


def judge_packages(node: Node, wanted: Mapping[str, str]) -> Observation:
    """Every package at its upstream version (any Debian revision), wholly installed and held."""
    present = node.machine.packages()
    seen: list[str] = []
    ok = True
    for name, version in wanted.items():
        state = present.get(name)
        if state is None:
            seen.append(f"{name} absent")
            ok = False
            continue
        right = state.version == version or state.version.startswith(f"{version}-")
        notes = ("" if state.installed else " half-installed") + ("" if state.held else " not held")
        seen.append(f"{name} {state.version}{notes}")
        ok = ok and right and state.installed and state.held
    expected = ", ".join(f"{name} {version}" for name, version in wanted.items())
    return Observation(ok, f"held: {expected}", ", ".join(seen))


@check(
    "packages/versions",
    advice="Run the crio and kubernetes_packages roles again; use playbooks/upgrade.yml to change a version.",
)
def packages_are_pinned(node: Node) -> Observation:
    """CRI-O and Kubernetes are at the versions of the table and held."""
    return judge_packages(node, node.expected.packages)
