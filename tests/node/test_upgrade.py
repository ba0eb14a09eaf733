"""From the default minor to the next one: refused by the site and by a pod's budget, killed, done, and then at rest."""

import json
from typing import Any

import pytest

from tests.node import judge
from tests.node.conftest import Boot
from tests.node.machine.image import Disks
from tests.node.mirror.site import Mirror
from tests.node.play import Playbooks, Run
from tests.node.story import SITE, playbooks_for

UPGRADE = "playbooks/upgrade.yml"
KUBECTL = "kubectl --kubeconfig /etc/kubernetes/admin.conf"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "0a", "controller": True}
# A pod that its budget keeps.
KEPT = (
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"app": "web"}, "ownerReferences": [OWNER]},
        "spec": {"nodeName": "controlplane", "containers": [{"name": "web", "image": "registry.example/web:1"}]},
    },
    {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    },
)


@pytest.fixture(scope="module")
def next_minor(mirror: Mirror) -> str:
    """The row of the table of versions after the chosen one."""
    minors = sorted(mirror.table["versions_by_minor"], key=lambda minor: int(minor.partition(".")[2]))
    return str(minors[minors.index(mirror.table["kubernetes_minor"]) + 1])


@pytest.fixture(scope="module")
def upgraded_playbooks(boot: Boot, converged_disks: Disks, mirror: Mirror, next_minor: str) -> Playbooks:
    return playbooks_for(boot(converged_disks), mirror, kubernetes_minor=next_minor)


@pytest.fixture(scope="module")
def refused(upgraded_playbooks: Playbooks) -> Run:
    return upgraded_playbooks.run(SITE)


def node(playbooks: Playbooks) -> tuple[bool, list[str]]:
    """Whether the node is cordoned, and its annotations."""
    item: dict[str, Any] = json.loads(playbooks.machine.output(f"sudo {KUBECTL} get node controlplane -o json"))
    return bool(item["spec"].get("unschedulable")), sorted(item["metadata"].get("annotations", {}))


@pytest.fixture(scope="module")
def kept(upgraded_playbooks: Playbooks, refused: Run) -> Run:  # noqa: ARG001 - it comes after
    upgraded_playbooks.machine.write("/tmp/kept.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": KEPT}))
    upgraded_playbooks.machine.ssh(f"sudo {KUBECTL} apply -f /tmp/kept.json")
    return upgraded_playbooks.run(UPGRADE)


@pytest.fixture(scope="module")
def killed(upgraded_playbooks: Playbooks, kept: Run) -> tuple[bool, list[str]]:  # noqa: ARG001 - it comes after
    """The node after an upgrade that was killed when its pods had left."""
    upgraded_playbooks.machine.ssh(f"sudo {KUBECTL} delete poddisruptionbudget web")
    upgraded_playbooks.run_killed(UPGRADE, ["kubernetes_packages : Upgrade kubeadm alone"], 0)
    return node(upgraded_playbooks)


@pytest.fixture(scope="module")
def upgraded(upgraded_playbooks: Playbooks, killed: tuple[bool, list[str]]) -> Run:  # noqa: ARG001 - it comes after
    return upgraded_playbooks.run(UPGRADE)


def test_the_site_does_not_upgrade_by_the_way(refused: Run) -> None:
    assert refused.status != 0
    assert UPGRADE in " ".join(task.message for task in refused.failed), refused.explain()
    assert refused.changed == []


def test_a_pod_that_cannot_leave_stops_the_upgrade_before_it_changes_anything(
    upgraded_playbooks: Playbooks, kept: Run
) -> None:
    said = " ".join(task.message for task in kept.failed)
    assert "default/web-1: the disruption budget default/web allows 0 to end, not 1" in said, kept.explain()
    assert kept.changed == []
    # Until the next fixture kills an upgrade.
    assert node(upgraded_playbooks) == (False, [])


def test_an_upgrade_that_is_killed_leaves_a_marked_cordon(killed: tuple[bool, list[str]]) -> None:
    assert killed == (True, ["gpu-sharing-harness/cordoned-by-upgrade"])


def test_the_upgrade_runs(upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()


def test_the_new_kubelet_runs_before_the_node_takes_pods_again(upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    changed = [task.name for task in upgraded.changed]
    started = next(at for at, name in enumerate(changed) if "Run the kubelet with its present binary" in name)
    assert started < next(at for at, name in enumerate(changed) if "Let pods come to the node again" in name)


def test_the_node_takes_pods_again(upgraded_playbooks: Playbooks, upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    assert node(upgraded_playbooks) == (False, [])


def test_the_verdict_names_the_new_versions(upgraded_playbooks: Playbooks, upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    found = judge.verdict(upgraded_playbooks)
    assert (found.status, set(found.failed)) == (0, set()), found.output


def test_the_site_has_nothing_left_to_do(upgraded_playbooks: Playbooks, upgraded: Run) -> None:
    assert upgraded.status == 0, upgraded.explain()
    run = upgraded_playbooks.run(SITE)
    assert (run.status, run.counts["changed"]) == (0, 0), run.explain()
