"""A machine to measure on: what holds its GPUs and CPUs at one speed and keeps others from them, read back from the machine."""

from __future__ import annotations

import json
import re

from harness.node.checks.registry import CannotLookError, Node, NotApplicableError, Observation, check, listed
from harness.node.expected import Profile

_AGAIN = "Run the node_profile role again (--tags node_profile)"
_DROP_IN = "/etc/kubernetes/kubelet.conf.d/60-cpus.conf"
_SETTINGS = "/etc/node-profile.json"
_STATE = "/var/lib/kubelet/cpu_manager_state"
_GOVERNORS = "/sys/devices/system/cpu"
# An idle GPU shows the supported clock next to the one that was asked for.
_CLOCK_STEP_MHZ = 15
_CLOCK = re.compile(r"<clocks>\s*<graphics_clock>(\d+) MHz")
_POWER = re.compile(r"<current_power_limit>([\d.]+) W")


def measuring(node: Node) -> Profile:
    """What the profile wants; raises NotApplicableError for the profile default."""
    if node.expected.profile is None:
        raise NotApplicableError("the machine is not one to measure on (node_profile_name: default)")
    return node.expected.profile


def _gpus(node: Node, pattern: re.Pattern[str], what: str) -> list[float]:
    found = [float(value) for value in pattern.findall(node.output("nvidia-smi", "-q", "-x"))]
    if not found:
        raise CannotLookError(f"nvidia-smi says no {what}")
    return found


@check("profile/gpu-clock", advice=f"{_AGAIN}; a GPU that is too hot or short of power runs below its clock.")
def gpu_clocks_are_locked(node: Node) -> Observation:
    """Every GPU runs at the clock that it is locked to."""
    wanted = measuring(node).gpu_clock_mhz
    if not wanted:
        raise NotApplicableError("the clocks of the GPUs are left free (node_profile_gpu_clock_mhz: 0)")
    found = _gpus(node, _CLOCK, "clocks")
    good = all(abs(clock - wanted) <= _CLOCK_STEP_MHZ for clock in found)
    return Observation(good, f"{wanted} MHz", ", ".join(f"{clock:.0f} MHz" for clock in found))


@check("profile/gpu-power", advice=f"{_AGAIN}.")
def gpu_power_is_limited(node: Node) -> Observation:
    """Every GPU has the power limit that is wanted."""
    wanted = measuring(node).gpu_power_w
    if not wanted:
        raise NotApplicableError("the power of the GPUs is left at its default (node_profile_gpu_power_w: 0)")
    found = _gpus(node, _POWER, "power limits")
    return Observation(
        all(watts == wanted for watts in found), f"{wanted} W", ", ".join(f"{watts:g} W" for watts in found)
    )


@check("profile/governor", advice=f"{_AGAIN}; tuned and power-profiles-daemon set it, too.")
def cpus_run_at_full_speed(node: Node) -> Observation:
    """Every CPU whose clock can be governed has the governor performance."""
    measuring(node)
    search = ("find", "-L", _GOVERNORS, "-maxdepth", "3", "-name", "scaling_governor", "-exec", "cat", "{}", "+")
    found = node.machine.command(*search).stdout.split()
    if not found:
        raise NotApplicableError("no CPU of this machine lets its clock be governed")
    return Observation(set(found) == {"performance"}, "performance", f"{listed(set(found))} ({len(found)} CPUs)")


@check("profile/cpus", advice=f"{_AGAIN}; it has the kubelet begin anew.", unit="kubelet.service")
def kubelet_keeps_cpus_for_the_system(node: Node) -> Observation:
    """The kubelet hands out whole CPUs and keeps some for the system."""
    wanted = f'reservedSystemCPUs: "0-{measuring(node).reserved_cpus - 1}"'
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
    units = {name: node.machine.unit(name) for name in measuring(node).quiet_units}
    loud = [name for name, unit in units.items() if unit.load not in ("masked", "not-found") or unit.active == "active"]
    return Observation(not loud, f"masked: {listed(units)}", f"not so: {listed(loud)}")


@check("profile/undone", advice=f"{_AGAIN}; it undoes what an earlier run did.")
def nothing_is_left_of_another_profile(node: Node) -> Observation:
    """Under the profile default nothing is left of a profile to measure on."""
    if node.expected.profile is not None:
        raise NotApplicableError("the machine is one to measure on (node_profile_name: measuring)")
    left = [path for path in (_SETTINGS, _DROP_IN) if node.machine.stat(path) is not None]
    return Observation(not left, "nothing left", listed(left))
