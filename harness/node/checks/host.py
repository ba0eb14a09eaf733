"""Swap, fstab and the kernel, now and at the next boot; what holds a machine to measure on at one speed; CRI-O and the packages."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from harness.node.checks.registry import (
    CannotLookError,
    Node,
    Observation,
    check,
    listed,
    needs,
    no,
    reading,
    same,
)
from harness.node.expected import MODULES, SYSCTLS

DROP_INS = "/etc/crio/crio.conf.d"
# Older ones refuse every container that CRI-O makes: "unknown version specified".
_CRUN_MIN = "1.14.3"
RUNTIME_ADVICE = (
    f"A crun has to be {_CRUN_MIN} or newer: use the one that CRI-O's package installs, /usr/libexec/crio/crun."
)
_FSTAB = "/etc/fstab"
_MODULE_FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
_PROFILE_AGAIN = "Run the node_profile role again (--tags node_profile)"
_CPUS_DROP_IN = "/etc/kubernetes/kubelet.conf.d/60-cpus.conf"
_CPU_STATE = "/var/lib/kubelet/cpu_manager_state"
_GOVERNORS = "/sys/devices/system/cpu"
# An idle GPU shows the supported clock next to the one that was asked for.
_CLOCK_STEP_MHZ = 15
_CLOCK = re.compile(r"<clocks>\s*<graphics_clock>(\d+) MHz")
_POWER = re.compile(r"<current_power_limit>([\d.]+) W")
_CRIO = "crio.service"
_CRIO_AGAIN = "Run the crio role again (--tags crio)"
_CNI = "/etc/cni/net.d"
_SOCKET = "/var/run/crio/crio.sock"
_CONTAINER_TOOLS = ("conmon", "crun", "runc")
_CRIO_FILES = ("/usr/bin/crio", "/usr/bin/pinns", *(f"/usr/libexec/crio/{name}" for name in _CONTAINER_TOOLS))
# Both may hold the proxy's password.
_PROXY = "/etc/default/node-proxy"
_PROXY_FILES = (_PROXY, "/etc/apt/apt.conf.d/90-node-proxy")


def _fstab_entries(node: Node) -> list[tuple[str, ...]]:
    text = "" if node.machine.stat(_FSTAB) is None else node.text(_FSTAB)
    lines = (line.split() for line in text.splitlines())
    return [tuple(fields) for fields in lines if fields and not fields[0].startswith("#")]


@check("swap/now", "Run the swap role again (--tags swap); `swapon --show` names what is on.")
def swap_is_off(node: Node) -> Observation:
    """No swap area is in use."""
    return no([line.split()[0] for line in node.text("/proc/swaps").splitlines()[1:]], "no swap area in /proc/swaps")


@check("swap/fstab", "Comment the line out in /etc/fstab, or run the swap role again (--tags swap).")
def no_swap_in_fstab(node: Node) -> Observation:
    """Swap does not come back at boot by fstab."""
    return no([entry[0] for entry in _fstab_entries(node) if "swap" in entry[2:3]], "no swap entry in /etc/fstab")


@check("swap/target-masked", "`systemctl mask swap.target`, or run the swap role again (--tags swap).")
def swap_target_is_masked(node: Node) -> Observation:
    """Generated swap units (GPT partitions, zram) are not started at boot either."""
    return same("masked", node.machine.unit("swap.target").load)


@check("swap/failsafe", "Run the swap role again (--tags swap); it enables the unit.")
def swap_failsafe_is_enabled(node: Node) -> Observation:
    """The third layer: a unit that turns off whatever came back, at every boot."""
    unit = node.machine.unit(node.expected.swap_failsafe_unit)
    return same("enabled, active", f"{unit.enabled or unit.load}, {unit.active}")


@check("fstab/no-duplicates", "Remove the repeated lines from /etc/fstab, or run the swap role again.")
def fstab_has_no_duplicates(node: Node) -> Observation:
    """No mount entry stands there twice."""
    entries = _fstab_entries(node)
    return no({" ".join(entry) for entry in entries if entries.count(entry) > 1}, "no entry twice")


@check("kernel/modules-now", "`modprobe` them; a kernel without them needs its modules package installed.")
def modules_are_loaded(node: Node) -> Observation:
    """The modules overlay and br_netfilter are loaded, or built into the kernel."""
    # Built in, one without parameters has no folder in /sys/module: the list of the kernel's package names it.
    release = (node.machine.read("/proc/sys/kernel/osrelease") or "").strip()
    listed_there = (node.machine.read(f"/lib/modules/{release}/modules.builtin") or "").splitlines()
    built_in = {
        *node.text("/proc/filesystems").split(),
        *(path.rpartition("/")[2].removesuffix(".ko") for path in listed_there),
    }
    here = [name for name in MODULES if name in built_in or node.machine.stat(f"/sys/module/{name}") is not None]
    return same(listed(MODULES), listed(here))


@check("kernel/modules-at-boot", "Run the kernel role again (--tags kernel); it writes modules-load.d.")
def modules_are_loaded_at_boot(node: Node) -> Observation:
    """Both modules are named in modules-load.d, so that they are there after a reboot too."""
    files = [f"{folder}/{name}" for folder in _MODULE_FOLDERS for name in node.machine.listing(folder)]
    named = {line.strip() for file in files if file.endswith(".conf") for line in node.text(file).splitlines()}
    return same(listed(MODULES), listed(named & set(MODULES)))


@check("kernel/sysctls-now", "Run the kernel role again (--tags kernel), or `sysctl --system`.")
def sysctls_are_set(node: Node) -> Observation:
    """The running kernel forwards IPv4 and shows bridged packets to iptables (bridge-nf-call-*)."""
    paths = {key: "/proc/sys/" + key.replace(".", "/") for key in SYSCTLS}
    seen = {key: (node.machine.read(path) or "absent").strip() for key, path in paths.items()}
    return same(_assignments(SYSCTLS), _assignments(seen))


def _assignments(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _sysctls_read_last(node: Node) -> str:
    """What the unit that comes after all files of sysctl.d sets at boot; nothing where it is not enabled."""
    name = node.expected.kernel_sysctls_unit
    if node.machine.unit(name).enabled != "enabled":
        return ""
    commands = [line for line in node.output("systemctl", "cat", name).splitlines() if line.startswith("ExecStart=")]
    return "\n".join(node.text(command.split()[-1]) for command in commands)


@check(
    "kernel/sysctls-at-boot",
    "Run the kernel role again (--tags kernel); `systemd-analyze cat-config sysctl.d` shows who sets it else.",
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
    return same(_assignments(SYSCTLS), _assignments(seen))


@check("kernel/psi", "Boot with `psi=1`, or set preflight_psi_required: false to do without pressure metrics.")
def psi_is_on(node: Node) -> Observation:
    """Pressure stall information can be read."""
    needs(node.expected.preflight_psi_required, "the inventory says that this node has no PSI (preflight_psi_required)")
    paths = [f"/proc/pressure/{name}" for name in ("cpu", "memory", "io")]
    return no([path for path in paths if "some" not in (node.machine.read(path) or "")], "none is missing")


@check("kernel/cgroup", "Boot with `systemd.unified_cgroup_hierarchy=1`.")
def cgroup_is_version_2(node: Node) -> Observation:
    """Only the unified hierarchy is mounted."""
    return same("cgroup2fs", node.output("stat", "--file-system", "--format", "%T", "/sys/fs/cgroup").strip())


def _measuring(node: Node) -> None:
    profile = node.expected.node_profile_name
    needs(profile == "measuring", f"the machine is not one to measure on (node_profile_name: {profile})")


def _of_gpus(node: Node, pattern: re.Pattern[str], what: str) -> list[float]:
    seen = [float(value) for value in pattern.findall(node.output("nvidia-smi", "-q", "-x"))]
    if not seen:
        raise CannotLookError(f"nvidia-smi says no {what}")
    return seen


profile_check = partial(check, when=_measuring)


@profile_check("profile/gpu-clock", f"{_PROFILE_AGAIN}; a GPU that is too hot or short of power runs below its clock.")
def gpu_clocks_are_locked(node: Node) -> Observation:
    """Every GPU runs at the clock that it is locked to."""
    wanted = node.expected.node_profile_gpu_clock_mhz
    needs(wanted, "the clocks of the GPUs are left free (node_profile_gpu_clock_mhz: 0)")
    seen = _of_gpus(node, _CLOCK, "clocks")
    return Observation(
        all(abs(mhz - wanted) <= _CLOCK_STEP_MHZ for mhz in seen), f"{wanted} MHz", f"{listed(seen)} MHz"
    )


@profile_check("profile/gpu-power", f"{_PROFILE_AGAIN}.")
def gpu_power_is_limited(node: Node) -> Observation:
    """Every GPU has the power limit that is wanted."""
    wanted = node.expected.node_profile_gpu_power_w
    needs(wanted, "the power of the GPUs is left at its default (node_profile_gpu_power_w: 0)")
    seen = _of_gpus(node, _POWER, "power limits")
    return Observation(set(seen) == {wanted}, f"{wanted} W", f"{listed(seen)} W")


@profile_check("profile/governor", f"{_PROFILE_AGAIN}; tuned and power-profiles-daemon set it, too.")
def cpus_run_at_full_speed(node: Node) -> Observation:
    """Every CPU whose clock can be governed has the governor performance."""
    search = ("find", "-L", _GOVERNORS, "-maxdepth", "3", "-name", "scaling_governor", "-exec", "cat", "{}", "+")
    seen = set(node.machine.command(*search).stdout.split())
    needs(seen, "no CPU of this machine lets its clock be governed")
    return same("performance", listed(seen))


@profile_check("profile/cpus", f"{_PROFILE_AGAIN}; it has the kubelet begin anew.", unit="kubelet.service")
def kubelet_keeps_cpus_for_the_system(node: Node) -> Observation:
    """The kubelet hands out whole CPUs and keeps some for the system."""
    with reading(f"{_CPU_STATE} names no policy"):
        policy = json.loads(node.text(_CPU_STATE))["policyName"]
    lines = (node.machine.read(_CPUS_DROP_IN) or "").splitlines()
    kept = [line for line in lines if line.startswith("reservedSystemCPUs")]
    wanted = f'reservedSystemCPUs: "0-{node.expected.node_profile_reserved_cpus - 1}"'
    return same(f"policy static, {wanted}", f"policy {policy}, {listed(kept)}")


@profile_check("profile/quiet", f"{_PROFILE_AGAIN}; it masks them.")
def timers_are_quiet(node: Node) -> Observation:
    """Timed units are masked, and none of them runs."""
    units = {name: node.machine.unit(name) for name in node.expected.node_profile_quiet_units}
    loud = [name for name, unit in units.items() if unit.load not in ("masked", "not-found") or unit.active == "active"]
    return no(loud, f"all masked: {listed(units)}")


@check("profile/undone", f"{_PROFILE_AGAIN}; it undoes what an earlier run did.")
def nothing_is_left_of_another_profile(node: Node) -> Observation:
    """With the profile default, nothing of the profile measuring remains."""
    measures = node.expected.node_profile_name == "measuring"
    needs(not measures, "the machine is one to measure on (node_profile_name: measuring)")
    paths = ("/etc/node-profile.json", _CPUS_DROP_IN)
    return no([path for path in paths if node.machine.stat(path) is not None], "nothing left")


def crio_drop_ins(node: Node) -> dict[str, dict[str, Any]]:
    """What each of CRI-O's drop-ins says of runtimes, in the order in which it reads them."""
    said = {}
    for name in node.machine.listing(DROP_INS):
        with reading(f"{DROP_INS}/{name} is not TOML"):
            said[name] = tomllib.loads(node.text(f"{DROP_INS}/{name}")).get("crio", {}).get("runtime", {})
    return said


def crio_settings(node: Node) -> dict[str, Any]:
    """What they say together."""
    merged: dict[str, Any] = {}
    for runtime in crio_drop_ins(node).values():
        _merge(merged, runtime)
    return merged


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


crio_check = partial(check, unit=_CRIO)


@crio_check("crio/files", f"{_CRIO_AGAIN}: it reinstalls a package whose files are missing.")
def files_are_there(node: Node) -> Observation:
    """The programs are there, not only their package."""
    return no([path for path in _CRIO_FILES if not node.executable(path)], f"executable: {listed(_CRIO_FILES)}")


@crio_check("crio/service", f"{_CRIO_AGAIN}; its journal says why it does not run.")
def service_runs(node: Node) -> Observation:
    """CRI-O runs now, and at the next boot."""
    return node.service(_CRIO)


@crio_check("crio/current", "`systemctl restart crio`: it still runs with what it read before.")
def service_has_read_its_files(node: Node) -> Observation:
    """The process is younger than its binary and every drop-in."""
    started_s = node.machine.unit(_CRIO).started_at_s
    if started_s is None:
        raise CannotLookError("no start time")
    paths = ["/usr/bin/crio", *(f"{DROP_INS}/{name}" for name in node.machine.listing(DROP_INS))]
    states = {path: node.machine.stat(path) for path in paths}
    younger = [path for path, state in states.items() if state and state.changed_at_s > started_s + 1]
    return no(younger, "nothing changed since it started")


@crio_check("crio/proxy", f"{_CRIO_AGAIN}: it writes the proxy's files and restarts CRI-O.")
def proxy_is_used(node: Node) -> Observation:
    """CRI-O uses the inventory's proxy; only root can read its password."""
    needs(node.expected.proxy_used, "http_proxy and https_proxy are empty")
    process = node.output("systemctl", "show", "--property=MainPID", "--value", _CRIO).strip()
    environment = dict(pair.partition("=")[::2] for pair in node.text(f"/proc/{process}/environ").split("\0"))
    lines = [line.partition("=")[::2] for line in node.text(_PROXY).splitlines() if not line.startswith("#")]
    untold = [name for name, value in lines if environment.get(name) != value.strip('"')]
    readable = [words for private, words in map(node.private, _PROXY_FILES) if not private]
    seen = f"not told of {listed(untold)}; not root's alone: {listed(readable)}"
    return Observation(bool(lines) and not untold and not readable, "told of everything; files root's alone", seen)


@crio_check("crio/socket", "`systemctl restart crio`, then read its journal.")
def socket_is_there(node: Node) -> Observation:
    """The socket that the kubelet calls is there."""
    state = node.machine.stat(_SOCKET)
    return same(f"{_SOCKET} a socket", f"{_SOCKET} a {state.kind}" if state else "nothing")


@check(
    "crio/no-strays",
    f"Remove them: CRI-O reads every file in {DROP_INS}, copies, backups and leftovers (99-nvidia.toml) included.",
)
def no_stray_configuration(node: Node) -> Observation:
    """crio.conf.d has no other files, such as copies and backups."""
    names = node.machine.listing(DROP_INS)
    strays = [name for name in names if not name.endswith(".conf") or name.startswith(".")]
    return Observation(bool(names) and not strays, "only *.conf files", listed(strays or names))


@crio_check("crio/runtimes", RUNTIME_ADVICE)
def runtimes_are_new_enough(node: Node) -> Observation:
    """Every configured runtime is compatible with this CRI-O."""
    handlers: dict[str, dict[str, Any]] = crio_settings(node).get("runtimes", {})
    programs = {handler.get("runtime_path") or name for name, handler in handlers.items()}
    old = old_runtimes(node, sorted(programs))
    return Observation(bool(programs) and not old, f"no crun before {_CRUN_MIN}", listed(old or programs))


@check(
    "crio/cni",
    f"{_CRIO_AGAIN}: it moves CRI-O's own bridge out of the way; else pods get addresses Calico does not know.",
)
def bridge_is_out_of_the_way(node: Node) -> Observation:
    """CRI-O's packaged bridge does not come before Calico."""
    active = [name for name in node.machine.listing(_CNI) if "crio" in name and name.endswith((".conf", ".conflist"))]
    return no(active, f"no CRI-O bridge active in {_CNI}")


def judge_packages(node: Node, wanted: Mapping[str, str]) -> Observation:
    """Every package at its upstream version (any Debian revision; any version where none is named), wholly installed and held."""
    present, seen, good = node.machine.packages(), [], True
    for name, version in wanted.items():
        state = present.get(name)
        notes = ("" if state.installed else " half-installed") + ("" if state.held else " not held") if state else ""
        seen.append(f"{name} {state.version if state else 'absent'}{notes}")
        right = state is not None and (version in ("", state.version) or state.version.startswith(f"{version}-"))
        good = good and right and not notes
    return Observation(good, f"held: {listed(map(' '.join, wanted.items()))}", listed(seen))


@check(
    "packages/versions",
    "Run the crio and kubernetes_packages roles again; use playbooks/upgrade.yml to change a version.",
)
def packages_are_pinned(node: Node) -> Observation:
    """CRI-O and Kubernetes are at the versions of the table and held."""
    return judge_packages(node, node.expected.packages)
