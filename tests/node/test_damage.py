"""Damage a converged machine in many ways: the judges see each one, and one run mends them all."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.node import fingerprint, judge
from tests.node.conftest import Boot
from tests.node.judge import Verdict
from tests.node.machine.image import Disks
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, playbooks_for

CLUSTER = "playbooks/cluster.yml"
KUBECTL = "kubectl --kubeconfig /etc/kubernetes/admin.conf"
# Check that must fail -> what is done to the machine. All are done to the same machine at once.
DAMAGE = {
    "swap/now": "swapon /swapfile",
    "swap/fstab": "echo '/swapfile none swap sw 0 0' >> /etc/fstab",
    "swap/failsafe": "systemctl disable -q node-swapoff.service",
    "kernel/modules-at-boot": "rm /etc/modules-load.d/kubernetes.conf",
    "kernel/sysctls-now": "sysctl -q -w net.ipv4.ip_forward=0",
    "kernel/sysctls-at-boot": "systemctl disable -q node-sysctl.service",
    "crio/no-strays": "cp /etc/crio/crio.conf.d/10-crio.conf /etc/crio/crio.conf.d/10-crio.conf.bak",
    "crio/files": "rm /usr/libexec/crio/conmon",
    "crio/cni": "cp /etc/cni/net.d/10-crio-bridge.conflist.disabled /etc/cni/net.d/10-crio-bridge.conflist",
    "packages/versions": "apt-mark -q unhold kubelet",
    "nvidia/handler": "sed -i /monitor_path/d /etc/crio/crio.conf.d/30-nvidia.conf",
    "kubernetes/kubelet": "systemctl disable -q kubelet",
    "kubernetes/certificates": "cd /etc/kubernetes/pki && "
    "openssl x509 -x509toreq -in apiserver.crt -signkey apiserver.key -copy_extensions copyall -out /run/ending.csr && "
    "openssl x509 -req -in /run/ending.csr -copy_extensions copyall -CA ca.crt -CAkey ca.key -set_serial 7 -days 20 "
    "-out apiserver.crt",
    "kubernetes/serving-certificate": "rm /var/lib/kubelet/pki/kubelet-server-current.pem",
    "etcd/snapshot": "rm /var/lib/etcd-snapshots/*.tar",
    "kubeconfig/administrator": "chmod 644 /etc/kubernetes/admin.conf",
    "kubeconfig/users": "chown root: /home/ops/.kube/config",
    "runtime-class/nvidia": f"{KUBECTL} delete runtimeclass nvidia",
    "gpu/label": f"{KUBECTL} label node controlplane nvidia.com/gpu.present-",
    "gpu/device-plugin": f"{KUBECTL} delete --namespace gpu-system daemonset device-plugin",
    "monitoring/volumes": f"{KUBECTL} delete --namespace monitoring persistentvolumeclaim grafana",
    "monitoring/login": "chmod 644 /etc/kubernetes/monitoring/prometheus.password",
    "monitoring/targets": f"{KUBECTL} delete --namespace monitoring service prometheus",
    "workloads/image": "rm /var/lib/containers/storage/recorded-built.json",
    "workloads/account": "chown root: /home/ops/.kube/harness.conf",
}


@dataclass(frozen=True)
class Damaged:
    """What the judges said of the damaged machine, the run that followed, and the machine before and after both."""

    before: list[str]
    verdict: Verdict
    mended: Run
    after: list[str]


# Until a kubelet that does not start has said so.
SETTLED_S = 3.0
# The kubelet's own certificate, which it asks the API server by, has ended while the machine was off; it does not start with it.
ENDED = (
    "cd /var/lib/kubelet/pki && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
    "-subj /O=system:nodes/CN=system:node:controlplane -keyout /run/ended.key -out /run/ended.csr && "
    "openssl x509 -req -in /run/ended.csr -CA /etc/kubernetes/pki/ca.crt -CAkey /etc/kubernetes/pki/ca.key -set_serial 8 "
    "-days -1 | cat - /run/ended.key > kubelet-client-current.pem && rm /run/ended.* && systemctl restart kubelet"
)
# A Secret that is lost, and a folder of etcd that is no database.
LOSS = f"{KUBECTL} delete --namespace monitoring secret grafana-admin && rm -r /var/lib/etcd/member"


@pytest.fixture(scope="module")
def damaged_playbooks(boot: Boot, converged_disks: Disks, mirror: Mirror) -> Playbooks:
    return playbooks_for(boot(converged_disks), mirror)


@pytest.fixture(scope="module")
def damaged(damaged_playbooks: Playbooks) -> Damaged:
    machine = damaged_playbooks.machine
    before = fingerprint.take(machine)
    for damage in DAMAGE.values():
        machine.ssh(damage)
    verdict = judge.verdict(damaged_playbooks, wait_s=0)
    run = damaged_playbooks.run(SITE)
    return Damaged(before, verdict, run, fingerprint.take(machine))


@pytest.mark.parametrize("check", DAMAGE)
def test_the_verdict_sees_it(damaged: Damaged, check: str) -> None:
    assert check in damaged.verdict.failed, damaged.verdict.output


def test_the_verdict_is_not_well(damaged: Damaged) -> None:
    assert damaged.verdict.status != 0


def test_one_run_mends_everything(damaged: Damaged) -> None:
    assert damaged.mended.status == 0, damaged.mended.explain()
    assert fingerprint.difference(damaged.before, damaged.after) == ""


def test_the_verdict_is_well_again(damaged_playbooks: Playbooks, damaged: Damaged) -> None:
    assert damaged.mended.status == 0, damaged.mended.explain()
    found = judge.verdict(damaged_playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output


def test_the_cluster_comes_back_from_its_snapshot(
    damaged_playbooks: Playbooks, damaged: Damaged, tmp_path: Path
) -> None:
    assert damaged.mended.status == 0, damaged.mended.explain()
    machine = damaged_playbooks.machine
    taken = damaged_playbooks.run("playbooks/backup.yml", backup_folder=str(tmp_path))
    assert taken.status == 0, taken.explain()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".tar"]
    machine.ssh(LOSS)
    refused = damaged_playbooks.run("playbooks/restore.yml")
    assert (refused.status != 0, refused.counts["changed"]) == (True, 0)
    restored = damaged_playbooks.run("playbooks/restore.yml", restore_confirmed=True)
    assert restored.status == 0, restored.explain()
    machine.ssh(f"{KUBECTL} get --namespace monitoring secret grafana-admin")
    found = judge.verdict(damaged_playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output


def test_a_kubelet_whose_certificate_has_ended_gets_another(damaged_playbooks: Playbooks, damaged: Damaged) -> None:
    assert damaged.mended.status == 0, damaged.mended.explain()
    machine = damaged_playbooks.machine
    before = fingerprint.take(machine)
    machine.ssh(ENDED)
    time.sleep(SETTLED_S)
    assert machine.ssh("systemctl is-active kubelet", check=False).stdout.strip() != "active"
    mended = damaged_playbooks.run(CLUSTER)
    assert mended.status == 0, mended.explain()
    again = damaged_playbooks.run(CLUSTER)
    assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
    assert fingerprint.difference(before, fingerprint.take(machine)) == ""
    found = judge.verdict(damaged_playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output


def test_the_api_server_gets_other_names(damaged_playbooks: Playbooks, damaged: Damaged) -> None:
    assert damaged.mended.status == 0, damaged.mended.explain()
    machine = damaged_playbooks.machine
    before = fingerprint.take(machine)
    for names in (["gpu.example", "192.0.2.9"], []):
        words = ["--tags", "control_plane", "--extra-vars", json.dumps({"control_plane_api_names": names})]
        killed = damaged_playbooks.run_killed(CLUSTER, ["control_plane : Make it anew"], 0.2, *words)
        assert killed.status != 0, killed.explain()
        changed = damaged_playbooks.run(CLUSTER, *words)
        assert (changed.status, changed.counts["changed"] > 0) == (0, True), changed.explain()
        again = damaged_playbooks.run(CLUSTER, *words)
        assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
        for name in ("gpu.example", "192.0.2.9"):
            asked = machine.ssh(f"{KUBECTL} --tls-server-name {name} get --raw /readyz", check=False)
            assert (asked.returncode == 0) == (name in names), asked
    assert fingerprint.difference(before, fingerprint.take(machine)) == ""
