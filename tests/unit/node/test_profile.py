"""The checks of a machine to measure on: well, all pass; with one fault, the check for that fault fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.node.checks import registered
from harness.node.verify import judge
from tests.support.fake_machine import FakeMachine
from tests.unit.node.healthy import machine, node, unit

GOVERNORS = "find -L /sys/devices/system/cpu -maxdepth 3 -name scaling_governor -exec cat {} +"
STATE = "/var/lib/kubelet/cpu_manager_state"
DROP_IN = "/etc/kubernetes/kubelet.conf.d/60-cpus.conf"
SMI = (
    "<clocks>\n<graphics_clock>1395 MHz</graphics_clock>\n</clocks><current_power_limit>500.00 W</current_power_limit>"
)
MEASURING = {
    "node_profile_name": "measuring",
    "node_profile_gpu_clock_mhz": 1400,
    "node_profile_gpu_power_w": 500,
    "node_profile_reserved_cpus": 2,
    "node_profile_quiet_units": ["apt-daily.timer", "absent.timer"],
}
CHECKS = [check for check in registered() if check.area == "profile"]
Break = Callable[[FakeMachine], object]


def steady() -> FakeMachine:
    paper = machine()
    paper.commands[GOVERNORS] = "performance\nperformance\n"
    paper.commands["nvidia-smi -q -x"] = SMI
    paper.files[STATE] = '{"policyName": "static"}'
    paper.files[DROP_IN] = 'cpuManagerPolicy: static\nreservedSystemCPUs: "0-1"\n'
    paper.units["apt-daily.timer"] = unit("inactive", "masked", "masked")
    return paper


def failed(paper: FakeMachine, **changes: Any) -> list[str]:
    return [each.name for each in judge("n", node(paper, **(MEASURING | changes)), CHECKS).failed]


def command(words: str, said: str) -> Break:
    return lambda paper: paper.commands.update({words: said})


def write(path: str, text: str) -> Break:
    return lambda paper: paper.files.update({path: text})


FAULTS: dict[str, tuple[Break, str]] = {
    "a CPU saves power": (command(GOVERNORS, "performance\npowersave\n"), "profile/governor"),
    "a clock runs free": (command("nvidia-smi -q -x", SMI.replace("1395", "1980")), "profile/gpu-clock"),
    "another limit": (command("nvidia-smi -q -x", SMI.replace("500.00", "700.00")), "profile/gpu-power"),
    "the kubelet shares all CPUs": (write(STATE, '{"policyName": "none"}'), "profile/cpus"),
    "the kubelet wrote nothing": (lambda paper: paper.files.pop(STATE), "profile/cpus"),
    "other CPUs are kept": (write(DROP_IN, 'reservedSystemCPUs: "0-0"\n'), "profile/cpus"),
    "a timer runs": (lambda paper: paper.units.update({"apt-daily.timer": unit()}), "profile/quiet"),
}


def test_every_check_has_a_fault_here_or_among_all_others() -> None:
    assert {check.name for check in CHECKS} == {name for _, name in FAULTS.values()} | {"profile/undone"}


def test_a_steady_machine_passes() -> None:
    found = judge("n", node(steady(), **MEASURING), CHECKS)
    assert [str(check) for check in found.failed] == []
    assert [each.name for each in found.not_applicable] == ["profile/undone"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check(fault: str) -> None:
    paper = steady()
    FAULTS[fault][0](paper)
    assert failed(paper) == [FAULTS[fault][1]]


def test_what_is_left_free_and_what_a_virtual_machine_lacks_is_not_judged() -> None:
    paper = steady()
    paper.commands[GOVERNORS] = ""
    given = MEASURING | {"node_profile_gpu_clock_mhz": 0, "node_profile_gpu_power_w": 0}
    found = judge("n", node(paper, **given), CHECKS)
    assert found.ok
    assert {each.name for each in found.not_applicable} == {
        f"profile/{name}" for name in ("gpu-clock", "gpu-power", "governor", "undone")
    }


@pytest.mark.parametrize("left", ["/etc/node-profile.json", DROP_IN])
def test_under_the_profile_default_nothing_may_be_left(left: str) -> None:
    paper = machine()
    assert failed(paper, node_profile_name="default") == []
    paper.files[left] = "x"
    assert failed(paper, node_profile_name="default") == ["profile/undone"]
