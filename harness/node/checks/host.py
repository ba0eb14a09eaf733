"""Swap, fstab and the kernel, now and at the next boot; and what holds a machine to measure on at one speed."""

from __future__ import annotations

import json
import re

from harness.node.checks.registry import CannotLookError, Node, NotApplicableError, Observation, check, listed
from harness.node.expected import MODULES, SYSCTLS, Expected

_FSTAB = "/etc/fstab"
_FSTAB_TYPE = 2
_MODULE_FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
_AGAIN = "Run the node_profile role again (--tags node_profile)"
_DROP_IN = "/etc/kubernetes/kubelet.conf.d/60-cpus.conf"
_SETTINGS = "/etc/node-profile.json"
_STATE = "/var/lib/kubelet/cpu_manager_state"
_GOVERNORS = "/sys/devices/system/cpu"
# An idle GPU shows the supported clock next to the one that was asked for.
_CLOCK_STEP_MHZ = 15
_CLOCK = re.compile(r"<clocks>\s*<graphics_clock>(\d+) MHz")
_POWER = re.compile(r"<current_power_limit>([\d.]+) W")


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
    name = node.expected.swap_failsafe_unit
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
    seen = {key: (node.machine.read(path) or "absent").strip() for key, path in paths.items()}
    return Observation(seen == SYSCTLS, _assignments(SYSCTLS), _assignments(seen))


def _sysctls_read_last(node: Node) -> str:
    """What the unit that comes after all files of sysctl.d sets at boot; nothing where it is not enabled."""
    name = node.expected.kernel_sysctls_unit
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
    seen = dict.fromkeys(SYSCTLS, "absent")
    files = node.output("systemd-analyze", "cat-config", "sysctl.d")
    for line in [*files.splitlines(), *_sysctls_read_last(node).splitlines()]:
        key, separator, value = line.partition("=")
        name = key.strip().removeprefix("-").replace("/", ".")
        if separator and name in seen:
            seen[name] = value.strip()
    return Observation(seen == SYSCTLS, _assignments(SYSCTLS), _assignments(seen))


@check("kernel/psi", advice="Boot with `psi=1`, or set preflight_psi_required: false to do without pressure metrics.")
def psi_is_on(node: Node) -> Observation:
    """Pressure stall information can be read."""
    if not node.expected.preflight_psi_required:
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


def measuring(node: Node) -> Expected:
    """What is expected of a machine to measure on; raises NotApplicableError for the profile default."""
    if node.expected.node_profile_name != "measuring":
        raise NotApplicableError("the machine is not one to measure on (node_profile_name: default)")
    return node.expected


def _gpus(node: Node, pattern: re.Pattern[str], what: str) -> list[float]:
    seen = [float(value) for value in pattern.findall(node.output("nvidia-smi", "-q", "-x"))]
    if not seen:
        raise CannotLookError(f"nvidia-smi says no {what}")
    return seen


@check("profile/gpu-clock", advice=f"{_AGAIN}; a GPU that is too hot or short of power runs below its clock.")
def gpu_clocks_are_locked(node: Node) -> Observation:
    """Every GPU runs at the clock that it is locked to."""
    wanted = measuring(node).node_profile_gpu_clock_mhz
    if not wanted:
        raise NotApplicableError("the clocks of the GPUs are left free (node_profile_gpu_clock_mhz: 0)")
    seen = _gpus(node, _CLOCK, "clocks")
    good = all(abs(clock - wanted) <= _CLOCK_STEP_MHZ for clock in seen)
    return Observation(good, f"{wanted} MHz", ", ".join(f"{clock:.0f} MHz" for clock in seen))


@check("profile/gpu-power", advice=f"{_AGAIN}.")
def gpu_power_is_limited(node: Node) -> Observation:
    """Every GPU has the power limit that is wanted."""
    wanted = measuring(node).node_profile_gpu_power_w
    if not wanted:
        raise NotApplicableError("the power of the GPUs is left at its default (node_profile_gpu_power_w: 0)")
    seen = _gpus(node, _POWER, "power limits")
    return Observation(
        all(watts == wanted for watts in seen), f"{wanted} W", ", ".join(f"{watts:g} W" for watts in seen)
    )


@check("profile/governor", advice=f"{_AGAIN}; tuned and power-profiles-daemon set it, too.")
def cpus_run_at_full_speed(node: Node) -> Observation:
    """Every CPU whose clock can be governed has the governor performance."""
    measuring(node)
    search = ("find", "-L", _GOVERNORS, "-maxdepth", "3", "-name", "scaling_governor", "-exec", "cat", "{}", "+")
    seen = node.machine.command(*search).stdout.split()
    if not seen:
        raise NotApplicableError("no CPU of this machine lets its clock be governed")
    return Observation(set(seen) == {"performance"}, "performance", f"{listed(set(seen))} ({len(seen)} CPUs)")


@check("profile/cpus", advice=f"{_AGAIN}; it has the kubelet begin anew.", unit="kubelet.service")
def kubelet_keeps_cpus_for_the_system(node: Node) -> Observation:
    """The kubelet hands out whole CPUs and keeps some for the system."""
    wanted = f'reservedSystemCPUs: "0-{measuring(node).node_profile_reserved_cpus - 1}"'
    try:
        policy = json.loads(node.text(_STATE))["policyName"]
    except (ValueError, KeyError, TypeError) as error:
        raise CannotLookError(f"{_STATE} names no policy: {error}") from error
    kept = [line for line in (node.machine.read(_DROP_IN) or "").splitlines() if line.startswith("reservedSystemCPUs")]
    good = policy == "static" and kept == [wanted]
    return Observation(good, f"policy static, {wanted}", f"policy {policy}, {listed(kept)}")


@check("profile/quiet", advice=f"{_AGAIN}; it masks them.")
def timers_are_quiet(node: Node) -> Observation:
    """Units that work at times of their own are masked, and none of them runs."""
    units = {name: node.machine.unit(name) for name in measuring(node).node_profile_quiet_units}
    loud = [name for name, unit in units.items() if unit.load not in ("masked", "not-found") or unit.active == "active"]
    return Observation(not loud, f"masked: {listed(units)}", f"not so: {listed(loud)}")


@check("profile/undone", advice=f"{_AGAIN}; it undoes what an earlier run did.")
def nothing_is_left_of_another_profile(node: Node) -> Observation:
    """Under the profile default nothing is left of a profile to measure on."""
    if node.expected.node_profile_name == "measuring":
        raise NotApplicableError("the machine is one to measure on (node_profile_name: measuring)")
    left = [path for path in (_SETTINGS, _DROP_IN) if node.machine.stat(path) is not None]
    return Observation(not left, "nothing left", listed(left))
