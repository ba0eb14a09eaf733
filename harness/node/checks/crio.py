"""CRI-O: really installed, at its version, running with its present configuration, out of Calico's way."""

from __future__ import annotations

from harness.node.checks.registry import Node, Observation, check, listed

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
_EXECUTABLE = 0o111
_AGAIN = "Run the crio role again (--tags crio)"


@check("crio/files", advice=f"{_AGAIN}: it reinstalls a package whose files are missing.", unit=_UNIT)
def files_are_there(node: Node) -> Observation:
    """The programs are there: a package can be "installed" and its binary missing."""
    states = {path: node.machine.stat(path) for path in _FILES}
    bad = [path for path, state in states.items() if state is None or not state.mode & _EXECUTABLE]
    return Observation(not bad, f"executable: {listed(_FILES)}", f"missing: {listed(bad)}")


@check("crio/service", advice=f"{_AGAIN}; its journal says why it does not run.", unit=_UNIT)
def service_runs(node: Node) -> Observation:
    """CRI-O runs now, and at the next boot."""
    unit = node.machine.unit(_UNIT)
    good = unit.active == "active" and unit.enabled == "enabled" and not unit.needs_reload
    reload = ", needs a daemon-reload" if unit.needs_reload else ""
    return Observation(good, "active and enabled", f"{unit.active} ({unit.sub}), {unit.enabled or unit.load}{reload}")


@check("crio/current", advice="`systemctl restart crio`: it still runs with what it read before.", unit=_UNIT)
def service_has_read_its_files(node: Node) -> Observation:
    """The process is younger than its binary and every drop-in."""
    started_s = node.machine.unit(_UNIT).started_at_s
    paths = ["/usr/bin/crio", *(f"{DROP_INS}/{name}" for name in node.machine.listing(DROP_INS))]
    states = {path: node.machine.stat(path) for path in paths}
    younger = [path for path, state in states.items() if state and started_s and state.changed_at_s > started_s + 1]
    found = "no start time" if started_s is None else f"changed since it started: {listed(younger)}"
    return Observation(started_s is not None and not younger, "started after its files were written", found)


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


@check(
    "crio/cni",
    advice=f"{_AGAIN}: it moves CRI-O's own bridge out of the way; else pods get addresses Calico does not know.",
)
def bridge_is_out_of_the_way(node: Node) -> Observation:
    """CRI-O's packaged bridge does not come before Calico."""
    active = [name for name in node.machine.listing(_CNI) if "crio" in name and name.endswith((".conf", ".conflist"))]
    return Observation(not active, f"no CRI-O bridge active in {_CNI}", listed(active))
