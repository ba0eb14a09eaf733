"""A second machine, without a GPU, joins the first: foreseen, killed on the way, joined, rebooted, removed.

The first one is left alone.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.node import fingerprint, judge
from tests.node.conftest import Boot
from tests.node.judge import Verdict
from tests.node.machine.image import Disks
from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.play import HOST, WORKER, Playbooks, Run
from tests.node.story import SITE, Step, playbooks_for
from tests.node.test_lifecycle import REMAINS

CLUSTER = "playbooks/cluster.yml"
KUBECTL = "kubectl --kubeconfig /etc/kubernetes/admin.conf"
# What a worker is judged by as well, although the cluster's API is another machine's.
OF_EVERY_NODE = {"cluster/api", "cluster/node-ready", "cluster/schedulable", "cluster/versions", "cluster/pod-network"}
# What only the machine with the API is judged by.
OF_THE_CLUSTER = {"calico/available", "storage/default-class", "kubeconfig/administrator"}
ENDED = (
    "cd /var/lib/kubelet/pki && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
    f"-subj /O=system:nodes/CN=system:node:{WORKER} -keyout /run/ended.key -out /run/ended.csr && "
    "openssl x509 -req -in /run/ended.csr -CA /etc/kubernetes/pki/ca.crt -CAkey /run/ca.key -set_serial 8 -days -1 "
    "| cat - /run/ended.key > kubelet-client-current.pem && rm /run/ended.* /run/ca.key && systemctl restart kubelet; "
    "sleep 3; ! systemctl -q is-active kubelet"
)
SECRETS = ["/etc/kubernetes/kubeadm-join.yaml", "/etc/kubernetes/bootstrap-kubelet.conf"]


@dataclass(frozen=True)
class Reboot:
    """What `harness node reboot-test` reported of the worker, and its boots as seen without it."""

    status: int
    report: dict[str, Any]
    boots: tuple[str, str]


@pytest.fixture(scope="module")
def pair(boot: Boot, converged_disks: Disks, dirty_disks: Disks, mirror: Mirror) -> Playbooks:
    """A converged control plane, and a dirty machine beside it that is to join."""
    control_plane = boot(converged_disks)
    return playbooks_for(control_plane, mirror, worker=boot(dirty_disks, name=WORKER, beside=control_plane))


@pytest.fixture(scope="module")
def worker(pair: Playbooks) -> Machine:
    assert pair.worker is not None
    return pair.worker


@pytest.fixture(scope="module")
def before(pair: Playbooks) -> list[str]:
    """The control plane before anybody joined it."""
    return fingerprint.take(pair.machine)


@pytest.fixture(scope="module")
def foreseen(pair: Playbooks, worker: Machine, before: list[str]) -> Step:  # noqa: ARG001 - it comes after
    """Check mode on the virgin worker."""
    state = fingerprint.take(worker)
    run = pair.run(SITE, "--check")
    return Step(run, state, fingerprint.take(worker))


@pytest.fixture(scope="module")
def killed(pair: Playbooks, foreseen: Step) -> Run:  # noqa: ARG001 - it comes after
    return pair.run_killed(SITE, ["worker : Join"], 0.5, "--limit", WORKER)


@pytest.fixture(scope="module")
def killed_ones_tokens(pair: Playbooks, killed: Run) -> set[str]:  # noqa: ARG001 - it comes after
    """What a killed join leaves to the machine's next run."""
    return tokens(pair)


def tokens(pair: Playbooks) -> set[str]:
    names = pair.machine.output(f"{KUBECTL} -n kube-system get secrets -o name").split()
    return {name for name in names if "bootstrap-token" in name}


@pytest.fixture(scope="module")
def joined(pair: Playbooks, killed_ones_tokens: set[str]) -> Run:  # noqa: ARG001 - it comes after
    return pair.run(SITE)


@pytest.fixture(scope="module")
def nodes(pair: Playbooks, joined: Run) -> dict[str, str]:
    """Name -> Ready, as the API says it right after the run."""
    assert joined.status == 0, joined.explain()
    items = json.loads(pair.machine.output(f"{KUBECTL} get nodes -o json"))["items"]
    return {item["metadata"]["name"]: item["status"]["conditions"][0]["status"] for item in items}


@pytest.fixture(scope="module")
def joined_again(pair: Playbooks, nodes: dict[str, str]) -> Run:  # noqa: ARG001 - it comes after
    """What a worker has and a lone machine has not; its other stages are run again after the reboot."""
    return pair.run(CLUSTER, "--limit", WORKER)


@pytest.fixture(scope="module")
def verdicts(pair: Playbooks, joined_again: Run) -> dict[str, Verdict]:  # noqa: ARG001 - it comes after
    return judge.verdicts(pair)


@pytest.fixture(scope="module")
def rebooted(pair: Playbooks, worker: Machine, verdicts: dict[str, Verdict]) -> Reboot:  # noqa: ARG001 - it comes after
    boot_before = worker.boot_id()
    done = judge.harness(pair, "node", "reboot-test", "--json", "--wait", "60", "--limit", WORKER)
    return Reboot(done.returncode, judge.document(done), (boot_before, worker.boot_id()))


@pytest.fixture(scope="module")
def renewed(pair: Playbooks, worker: Machine, rebooted: Reboot) -> Run:  # noqa: ARG001 - it comes after
    """The kubelet's certificate has ended while the worker was off: one signed in the past, and the kubelet does not start."""
    authority = pair.machine.output("cat /etc/kubernetes/pki/ca.key")
    worker.write("/run/ca.key", authority)
    worker.ssh(ENDED)
    return pair.run(CLUSTER, "--limit", WORKER)


@pytest.fixture(scope="module")
def removed(pair: Playbooks, renewed: Run) -> Run:  # noqa: ARG001 - it comes after
    return pair.run("playbooks/reset.yml", "--limit", WORKER, reset_confirmed=True)


def test_check_mode_foresees_the_join_and_touches_nothing(foreseen: Step) -> None:
    assert foreseen.run.status == 0, foreseen.run.explain()
    assert "worker : Join" in {task.name for task in foreseen.run.tasks}
    assert fingerprint.difference(foreseen.before, foreseen.after) == ""


def test_the_join_was_killed(killed: Run) -> None:
    assert (killed.tasks[-1].name, killed.status == 0) == ("worker : Join", False), killed.explain()


def test_the_worker_joins(joined: Run, nodes: dict[str, str]) -> None:
    assert joined.status == 0, joined.explain()
    assert nodes == {"controlplane": "True", WORKER: "True"}


def test_the_control_plane_itself_is_left_alone(joined: Run) -> None:
    assert joined.by_host[HOST]["changed"] == 0, joined.explain()
    assert joined.by_host[WORKER]["changed"] > 0


def test_nothing_secret_stays(
    pair: Playbooks, worker: Machine, nodes: dict[str, str], killed_ones_tokens: set[str]
) -> None:
    assert WORKER in nodes
    assert [path for path in SECRETS if worker.ssh(f"test -e {path}", check=False).returncode == 0] == []
    assert killed_ones_tokens
    assert tokens(pair) == set()


def test_a_second_run_changes_nothing(joined_again: Run, rebooted: Reboot) -> None:
    assert (joined_again.status, joined_again.counts["changed"]) == (0, 0), joined_again.explain()
    assert (rebooted.report["converge"]["ok"], rebooted.report["converge"]["changed"]) == (True, 0), rebooted.report


@pytest.mark.parametrize("host", [HOST, WORKER])
def test_every_check_passes(verdicts: dict[str, Verdict], host: str) -> None:
    assert (verdicts[host].status, set(verdicts[host].failed)) == (0, set()), verdicts[host].output


def test_each_is_judged_by_what_it_is(verdicts: dict[str, Verdict]) -> None:
    assert verdicts[HOST].passed >= OF_EVERY_NODE | OF_THE_CLUSTER
    assert verdicts[WORKER].passed >= OF_EVERY_NODE
    assert not verdicts[WORKER].passed & OF_THE_CLUSTER


def test_the_worker_survives_a_reboot(rebooted: Reboot) -> None:
    assert rebooted.status == 0, rebooted.report["problems"]
    assert rebooted.boots[0] != rebooted.boots[1]


def test_a_kubelet_whose_certificate_has_ended_gets_another(pair: Playbooks, worker: Machine, renewed: Run) -> None:
    assert renewed.status == 0, renewed.explain()
    again = pair.run(CLUSTER, "--limit", WORKER)
    assert (again.status, again.counts["changed"]) == (0, 0), again.explain()
    assert [path for path in SECRETS if worker.ssh(f"test -e {path}", check=False).returncode == 0] == []
    ready = pair.machine.output(f"{KUBECTL} get node {WORKER} -o json")
    assert json.loads(ready)["status"]["conditions"][0]["status"] == "True"


def test_the_worker_is_removed(pair: Playbooks, worker: Machine, removed: Run) -> None:
    assert removed.status == 0, removed.explain()
    assert WORKER not in pair.machine.output(f"{KUBECTL} get nodes -o name")
    assert [line for line in fingerprint.take(worker) if re.search(REMAINS, line)] == []


def test_the_control_plane_is_as_it_was(pair: Playbooks, before: list[str], removed: Run) -> None:
    assert removed.status == 0, removed.explain()
    # Where the tokens were; the recorder keeps an empty folder.
    states = [
        [line for line in state if not line.rstrip().endswith("/Secret/kube-system")]
        for state in (before, fingerprint.take(pair.machine))
    ]
    assert fingerprint.difference(*states) == ""
