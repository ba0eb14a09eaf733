"""What a node must not be made of: each ends with the reason and the next step, and the machine converges afterwards.

All cases meet one dirty machine in this order, after check mode, which touches it as little as they may; the last test
mends nothing and runs the playbooks.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.node import fingerprint, judge
from tests.node.conftest import Boot
from tests.node.machine.image import USER, Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import CLUSTER_STAGES, SITE, Step, playbooks_for

OLD_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024"
OLD_SYSTEM = 'ID=debian\nVERSION_ID="11"\nVERSION_CODENAME=bullseye\nPRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\n'
LEFT_BYTES = 2 << 30
HOLD_LOCK = """\
import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Case:
    """One bad input.

    tags: of the roles that are run, besides what runs always; empty: all of them. break_it, mend_it: shell on the
    machine, before and after the run. forbidden, stalled, ahead_s: what the mirror does meanwhile, and how far its clock
    is ahead.
    reason, advice: patterns that the failure's message must contain, whatever the case of its letters.
    """

    reason: str
    advice: str
    variables: dict[str, Any] = field(default_factory=dict)
    break_it: str = "true"
    mend_it: str = "true"
    forbidden: str = ""
    stalled: str = ""
    ahead_s: float = 0.0
    tags: str = ""


# Seen before anything is changed.
REFUSED = {
    "no GPU where one is required": Case("no NVIDIA driver", "install the driver", {"node_gpu": "required"}),
    "a minor that is not in the table": Case(r"1\.99", "choose one of these", {"kubernetes_minor": "1.99"}),
    "a misspelt variable": Case("crio_versoin", "supported", {"crio_versoin": "1.35.6"}),
    "a mirror that answers 403": Case("answers 403", "mirrors.yml", forbidden="/kubernetes/"),
    "a clock that is behind everybody's": Case(r"differs by 7\d\d\d s from those of all", "timedatectl", ahead_s=7200),
    "a mirror that stalls": Case(
        "says nothing for 3 s", "mirrors.yml", {"preflight_mirrors_timeout_s": 3}, stalled="/crio/"
    ),
}
# What is wrong with a machine is said all at once, so one run meets it all; nothing is changed here either.
REFUSED_TOGETHER = {
    "driver too old": Case(
        r"driver is 470\.256\.02",
        "install a newer one",
        {"node_gpu": "auto"},
        "mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia && "
        f"echo {shlex.quote(OLD_DRIVER)} > /proc/driver/nvidia/version",
        "umount /proc/driver",
    ),
    "swap on zram": Case(
        "zram0",
        "swapoff",
        {},
        "modprobe zram && echo 32M > /sys/block/zram0/disksize && mkswap -q /dev/zram0 && swapon /dev/zram0",
        "swapoff /dev/zram0 && modprobe -r zram",
    ),
    "wrong system": Case(
        r"Debian GNU/Linux 11",
        "preflight_distributions",
        {},
        f"printf %s {shlex.quote(OLD_SYSTEM)} > /run/os-release && mount --bind /run/os-release /usr/lib/os-release",
        "umount /usr/lib/os-release",
    ),
    "two gigabytes of disk left": Case(
        r"20\d\d MiB free",
        "grow the disk",
        {},
        f"fallocate -l $(( $(df -B1 --output=avail / | tail -1) - {LEFT_BYTES} )) /filler",
        "rm /filler",
    ),
    "a clock that is behind the one here": Case(
        r"differs by [67]\d\d\d s from the one here",
        "timedatectl",
        {},
        "systemctl stop systemd-timesyncd 2> /dev/null; date -s '2 hours ago'",
        "date -s '2 hours'",
    ),
}
# Seen on the way, in this order: each leaves a machine half made. What the first of them has made need not be made again.
BROKEN_OFF = {
    "a version that does not exist": Case(
        r"1\.35\.99", "versions.yml", {"kubernetes_packages_version": "1.35.99", "control_plane_version": "1.35.99"}
    ),
    "a package that the mirror refuses": Case(
        "403", "mirrors.yml", forbidden="/kubernetes/kubelet_", tags="kubernetes_packages"
    ),
    "an apt lock held by another process": Case(
        "lock",
        "run again",
        {"apt_lock_timeout_s": 3},
        f"systemd-run -q --unit=holder python3 -c {shlex.quote(HOLD_LOCK)}",
        "systemctl stop holder",
        tags="kubernetes_packages",
    ),
    "a kubelet that does not come up": Case(
        "kubelet",
        "journalctl",
        {"control_plane_timeout_s": 8},
        "mkdir -p /etc/systemd/system/kubelet.service.d && systemctl daemon-reload && "
        "printf '[Service]\\nExecStartPre=/bin/false\\n' > /etc/systemd/system/kubelet.service.d/99-broken.conf && "
        "systemctl daemon-reload",
        "rm -r /etc/systemd/system/kubelet.service.d && systemctl daemon-reload",
    ),
}


@pytest.fixture(scope="module")
def victim(boot: Boot, dirty_disks: Disks) -> Machine:
    return boot(dirty_disks)


@pytest.fixture(scope="module")
def untouched(victim: Machine) -> list[str]:
    """The machine before the first of them: none may leave it any other way."""
    return fingerprint.take(victim)


@pytest.fixture(scope="module")
def run_case(victim: Machine, mirror: Mirror) -> Callable[[Case], Run]:
    """Run the site on the machine while it is broken in the case's way."""

    def run(case: Case) -> Run:
        playbooks: Playbooks = playbooks_for(victim, mirror, **case.variables)
        with broken(victim, mirror, case):
            return playbooks.run(SITE, *(["--tags", case.tags] if case.tags else []))

    return run


@contextmanager
def broken(machine: Machine, mirror: Mirror, case: Case) -> Iterator[None]:
    site = mirror.site
    machine.ssh(case.break_it)
    site.forbidden |= {case.forbidden} - {""}
    site.stalled |= {case.stalled} - {""}
    site.ahead_s = case.ahead_s
    try:
        yield
    finally:
        site.forbidden.clear()
        site.stalled.clear()
        site.ahead_s = 0.0
        machine.ssh(case.mend_it)


def explained(run: Run, case: Case) -> None:
    assert run.status != 0, "the run did not notice"
    said = " ".join(task.message for task in run.failed)
    assert re.search(case.reason, said, re.IGNORECASE), f"no reason in: {said}\n{run.explain()}"
    assert re.search(case.advice, said, re.IGNORECASE), f"no next step in: {said}"


@pytest.fixture(scope="module")
def checked(victim: Machine, mirror: Mirror, untouched: list[str]) -> Run:  # noqa: ARG001 - it comes after
    """Check mode on a machine that has nothing yet."""
    return playbooks_for(victim, mirror).run(SITE, "--check")


@pytest.fixture(scope="module")
def all_wrong(victim: Machine, mirror: Mirror, checked: Run) -> Run:  # noqa: ARG001 - it comes after
    """The site on a machine that is broken in every way of those."""
    variables = {name: value for case in REFUSED_TOGETHER.values() for name, value in case.variables.items()}
    with ExitStack() as stack:
        for case in REFUSED_TOGETHER.values():
            stack.enter_context(broken(victim, mirror, case))
        return playbooks_for(victim, mirror, **variables).run(SITE)


def test_check_mode_goes_through_and_foresees_changes(checked: Run) -> None:
    assert checked.status == 0, checked.explain()
    assert checked.changed, "check mode foresees no change on a machine that has nothing yet"


@pytest.mark.parametrize("name", REFUSED_TOGETHER)
def test_every_reason_is_said_at_once(name: str, all_wrong: Run) -> None:
    explained(all_wrong, REFUSED_TOGETHER[name])


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_anything_changes(name: str, all_wrong: Run, run_case: Callable[[Case], Run]) -> None:
    assert all_wrong.changed == []
    run = run_case(REFUSED[name])
    explained(run, REFUSED[name])
    assert run.changed == []


def test_a_sudo_that_wants_a_password_is_named_with_what_to_run(victim: Machine, mirror: Mirror) -> None:
    allowed = f"/etc/sudoers.d/{USER}"
    victim.ssh(f"cp -p {allowed} /run/allowed && echo '{USER} ALL=(ALL) ALL' > {allowed}")
    try:
        done = judge.harness(playbooks_for(victim, mirror), "provision", "--json", "--tags", "swap")
    finally:
        victim.ssh(f"cp -p /run/allowed {allowed}")
    report = judge.document(done)
    assert (done.returncode, report["obstacle"], report["changed"]) == (10, "sudo-wants-a-password", 0), done.stderr
    assert "--ask-become-pass" in done.stderr


def test_neither_check_mode_nor_a_refused_run_touches_the_machine(
    checked: Run, all_wrong: Run, untouched: list[str], victim: Machine
) -> None:
    assert (checked.status == 0, all_wrong.status == 0) == (True, False)
    assert fingerprint.difference(untouched, fingerprint.take(victim)) == ""


def test_cgroup_v1_is_refused(run_case: Callable[[Case], Run], victim: Machine) -> None:
    victim.power_off()
    victim.start("systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1")
    run = run_case(Case("need v2", "unified_cgroup_hierarchy=1"))
    victim.power_off()
    victim.start()
    explained(run, Case("need v2", "unified_cgroup_hierarchy=1"))
    assert run.changed == []


@pytest.mark.parametrize("name", BROKEN_OFF)
def test_it_is_explained_on_the_way(name: str, run_case: Callable[[Case], Run]) -> None:
    explained(run_case(BROKEN_OFF[name]), BROKEN_OFF[name])


def test_the_next_run_converges(victim: Machine, mirror: Mirror, undisturbed: Step) -> None:
    run = playbooks_for(victim, mirror).run(*CLUSTER_STAGES)
    assert run.status == 0, run.explain()
    assert fingerprint.difference(undisturbed.after, fingerprint.take(victim)) == ""
