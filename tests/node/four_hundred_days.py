"""The machine's clock goes 400 days ahead in steps of 30, and its own timers fire: nothing has ended, and everybody still answers.

    scripts/pytest -n 0 --workers 0 tests/node/four_hundred_days.py

Not part of scripts/test-node: 7 minutes, of which most converge the machine. Certificates, systemd's timers, openssl and the
program that renews are real; kubeadm, the kubelet and the API server are the mirror's stand-ins, which make and check certificates.
"""

import base64
import json
import time

import pytest
import yaml

from tests.node import judge
from tests.node.conftest import Boot
from tests.node.judge import Verdict
from tests.node.machine.image import USER, Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks
from tests.node.story import playbooks_for

STEP_DAYS, STEPS = 30, 14
WITHIN_S = 120.0
# A clock that jumps begins the timer's random hour anew, and nobody waits for it here.
AT_ONCE = (
    "mkdir -p /run/systemd/system/node-certificates.timer.d; systemctl stop systemd-timesyncd 2> /dev/null;"
    " printf '[Timer]\\nRandomizedDelaySec=0\\n' > /run/systemd/system/node-certificates.timer.d/at-once.conf;"
    " systemctl daemon-reload"
)
SERVICE = "node-certificates.service"
# With the authorities left out, which last ten years.
FILES = (
    "find /etc/kubernetes/pki /etc/kubernetes/monitoring /var/lib/kubelet/pki/kubelet-server-current.pem"
    " -name '*.crt' -not -name 'ca.crt' -not -name 'healthcheck-*' -o -name '*server-current.pem'"
)
KUBECONFIGS = ("/etc/kubernetes/admin.conf", f"/home/{USER}/.kube/config")
NODE = "controlplane"
TOKEN = f"/home/{USER}/.kube/harness.conf"


def left_days(machine: Machine) -> dict[str, float]:
    """Days that each certificate and token of the machine is still valid, by its file."""
    now_s = int(machine.output("date +%s"))
    ends = {path: machine.output(f"openssl x509 -noout -enddate -in {path}") for path in machine.output(FILES).split()}
    for path in KUBECONFIGS:
        user = yaml.safe_load(machine.output(f"cat {path}"))["users"][0]["user"]
        machine.write_bytes("/run/client.crt", base64.b64decode(user["client-certificate-data"]))
        ends[path] = machine.output("openssl x509 -noout -enddate -in /run/client.crt")
    left = {
        path: (int(machine.output(f"date +%s -d '{end.removeprefix('notAfter=')}'")) - now_s) / 86400
        for path, end in ends.items()
    }
    body = json.loads(machine.output(f"cat {TOKEN}"))["users"][0]["user"]["token"].split(".")[1]
    left[TOKEN] = (json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"] - now_s) / 86400
    return left


def last_run(machine: Machine) -> str:
    """When the service that renews last ended, and how; empty while it runs."""
    said = machine.output(f"systemctl show {SERVICE} -p ActiveState -p Result -p ExecMainExitTimestampMonotonic")
    return "" if "ActiveState=activating" in said else said


def go_ahead(machine: Machine) -> dict[str, float]:
    """Set the clock 30 days ahead, wait until the timer has fired and its program has ended, and say what is left."""
    before = last_run(machine)
    machine.ssh(f"date -s '+{STEP_DAYS} days'")
    deadline = time.monotonic() + WITHIN_S
    while (after := last_run(machine)) in {"", before}:
        assert time.monotonic() < deadline, machine.output(
            f"systemctl list-timers --all; journalctl -n 20 -u {SERVICE}"
        )
        time.sleep(0.5)
    assert "Result=success" in after, machine.output(f"journalctl -n 40 -u {SERVICE}")
    return left_days(machine)


@pytest.fixture(scope="module")
def aging(boot: Boot, converged_disks: Disks, mirror: Mirror) -> Playbooks:
    machine = boot(converged_disks)
    machine.ssh(AT_ONCE)
    return playbooks_for(machine, mirror)


@pytest.fixture(scope="module")
def days(aging: Playbooks) -> list[dict[str, float]]:
    """What is left at the beginning, and after each step."""
    return [left_days(aging.machine), *(go_ahead(aging.machine) for _ in range(STEPS))]


@pytest.fixture(scope="module")
def verdict(aging: Playbooks, days: list[dict[str, float]]) -> Verdict:  # noqa: ARG001 - it comes after
    return judge.verdict(aging)


def test_nothing_had_ended_once_the_timers_had_fired(days: list[dict[str, float]]) -> None:
    for left in days:
        assert min(left.values()) > 0, left


def test_everything_was_renewed_on_the_way(days: list[dict[str, float]]) -> None:
    assert STEP_DAYS * STEPS > 400
    for path, first_days in days[0].items():
        assert first_days < STEP_DAYS * STEPS, f"{path} would have lasted anyway"
        assert days[-1][path] > 0


def test_all_answer_at_the_end(aging: Playbooks, verdict: Verdict) -> None:
    machine = aging.machine
    assert machine.output(f"sudo -u {USER} kubectl --kubeconfig /home/{USER}/.kube/config get --raw /readyz") == "ok"
    assert machine.output(
        f"kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /api/v1/nodes/{NODE}/proxy/healthz"
    )
    assert verdict.status == 0, verdict.output
    assert not verdict.failed
