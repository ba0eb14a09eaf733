"""Swap, fstab and the kernel: now and at the next boot."""

from __future__ import annotations

from harness.node.checks.registry import Node, NotApplicableError, Observation, check, listed
from harness.node.expected import MODULES, SYSCTLS

_FSTAB = "/etc/fstab"
_FSTAB_TYPE = 2
_MODULE_FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")


def _fstab_entries(node: Node) -> list[tuple[str, ...]]:
    text = "" if node.machine.stat(_FSTAB) is None else node.text(_FSTAB)
    lines = (line.split() for line in text.splitlines())
    return [tuple(fields) for fields in lines if fields and not fields[0].startswith("#")]


@check("swap/now", advice="Run the swap role again (--tags swap); `swapon --show` names what is on.")
def swap_is_off(node: Node) -> Observation:
    """No swap area is in use."""
    areas = [line.split()[0] for line in node.text("/proc/swaps").splitlines()[1:]]
    return Observation(not areas, "no swap area in /proc/swaps", listed(areas))


@check("swap/fstab", advice="Comment the line out in /etc/fstab, or run the swap role again (--tags swap).")
def no_swap_in_fstab(node: Node) -> Observation:
    """Swap does not come back at boot by fstab."""
    swaps = [entry[0] for entry in _fstab_entries(node) if len(entry) > _FSTAB_TYPE and entry[_FSTAB_TYPE] == "swap"]
    return Observation(not swaps, "no swap entry in /etc/fstab", listed(swaps))


@check("swap/target-masked", advice="`systemctl mask swap.target`, or run the swap role again (--tags swap).")
def swap_target_is_masked(node: Node) -> Observation:
    """Generated swap units (GPT partitions, zram) are not started at boot either."""
    load = node.machine.unit("swap.target").load
    return Observation(load == "masked", "swap.target masked", load)


@check("swap/failsafe", advice="Run the swap role again (--tags swap); it enables the unit.")
def swap_failsafe_is_enabled(node: Node) -> Observation:
    """The third layer: a unit that turns off whatever came back, at every boot."""
    name = node.expected.failsafe_unit
    unit = node.machine.unit(name)
    good = unit.enabled == "enabled" and unit.active == "active"
    return Observation(good, f"{name} enabled and active", f"{unit.enabled or unit.load}, {unit.active}")


@check("fstab/no-duplicates", advice="Remove the repeated lines from /etc/fstab, or run the swap role again.")
def fstab_has_no_duplicates(node: Node) -> Observation:
    """No mount entry stands there twice."""
    entries = _fstab_entries(node)
    repeated = {" ".join(entry) for entry in entries if entries.count(entry) > 1}
    return Observation(not repeated, "every entry once", listed(repeated) if repeated else f"{len(entries)} entries")


@check("kernel/modules-now", advice="`modprobe` them; a kernel without them needs its modules package installed.")
def modules_are_loaded(node: Node) -> Observation:
    """The modules overlay and br_netfilter are loaded, or built into the kernel."""
    loaded = {module for module in MODULES if node.machine.stat(f"/sys/module/{module}") is not None}
    if "overlay" in node.text("/proc/filesystems").split():
        loaded.add("overlay")
    missing = set(MODULES) - loaded
    return Observation(not missing, listed(MODULES), f"{listed(loaded)} (missing: {listed(missing)})")


@check("kernel/modules-at-boot", advice="Run the kernel role again (--tags kernel); it writes modules-load.d.")
def modules_are_loaded_at_boot(node: Node) -> Observation:
    """Both modules are named in modules-load.d, so that they are there after a reboot too."""
    named: set[str] = set()
    for folder in _MODULE_FOLDERS:
        for name in node.machine.listing(folder):
            if name.endswith(".conf"):
                named.update(line.strip() for line in node.text(f"{folder}/{name}").splitlines())
    missing = set(MODULES) - named
    return Observation(not missing, f"{listed(MODULES)} in modules-load.d", f"missing: {listed(missing)}")


@check("kernel/sysctls-now", advice="Run the kernel role again (--tags kernel), or `sysctl --system`.")
def sysctls_are_set(node: Node) -> Observation:
    """The running kernel forwards IPv4 and shows bridged packets to iptables (bridge-nf-call-*)."""
    paths = {key: "/proc/sys/" + key.replace(".", "/") for key in SYSCTLS}
    found = {key: (node.machine.read(path) or "absent").strip() for key, path in paths.items()}
    return Observation(found == SYSCTLS, _assignments(SYSCTLS), _assignments(found))


def _sysctls_read_last(node: Node) -> str:
    """What the unit that comes after all files of sysctl.d sets at boot; nothing where it is not enabled."""
    name = node.expected.sysctls_unit
    if node.machine.unit(name).enabled != "enabled":
        return ""
    commands = [line for line in node.output("systemctl", "cat", name).splitlines() if line.startswith("ExecStart=")]
    return "\n".join(node.text(command.split()[-1]) for command in commands)


@check(
    "kernel/sysctls-at-boot",
    advice="Run the kernel role again (--tags kernel); `systemd-analyze cat-config sysctl.d` shows who sets it else.",
)
def sysctls_are_set_at_boot(node: Node) -> Observation:
    """These values hold after a reboot too: the last one to set each at boot, file or unit, gives the right one."""
    found = dict.fromkeys(SYSCTLS, "absent")
    files = node.output("systemd-analyze", "cat-config", "sysctl.d")
    for line in [*files.splitlines(), *_sysctls_read_last(node).splitlines()]:
        key, separator, value = line.partition("=")
        name = key.strip().removeprefix("-").replace("/", ".")
        if separator and name in found:
            found[name] = value.strip()
    return Observation(found == SYSCTLS, _assignments(SYSCTLS), _assignments(found))


@check("kernel/psi", advice="Boot with `psi=1`, or set preflight_psi_required: false to do without pressure metrics.")
def psi_is_on(node: Node) -> Observation:
    """Pressure stall information can be read."""
    if not node.expected.psi_required:
        raise NotApplicableError("the inventory says that this node has no PSI (preflight_psi_required: false)")
    absent = [
        name for name in ("cpu", "memory", "io") if "some" not in (node.machine.read(f"/proc/pressure/{name}") or "")
    ]
    return Observation(not absent, "cpu, io, memory in /proc/pressure", f"missing: {listed(absent)}")


@check("kernel/cgroup", advice="Boot with `systemd.unified_cgroup_hierarchy=1`.")
def cgroup_is_version_2(node: Node) -> Observation:
    """Only the unified hierarchy is mounted."""
    kind = node.output("stat", "--file-system", "--format", "%T", "/sys/fs/cgroup").strip()
    return Observation(kind == "cgroup2fs", "cgroup2fs", kind)


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
