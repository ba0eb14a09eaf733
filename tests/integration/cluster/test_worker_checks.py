"""A worker is judged with its kubelet's own rights: the real API server lets it see what the checks ask, and no more."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from harness.node.checks import Node, registered
from harness.node.machine import CommandOutput
from harness.node.verify import judge
from tests.integration.cluster.api_server import MISSING, WHY_NOT, WORKER, found
from tests.support.fake_machine import FakeMachine
from tests.unit.node.healthy import expected

pytestmark = pytest.mark.skipif(bool(MISSING), reason=WHY_NOT)

CHECKS = {"cluster/api", "cluster/node-ready", "cluster/schedulable", "cluster/versions", "cluster/pod-network"}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": WORKER}, "spec": {"podCIDR": "10.244.1.0/24"}}
STATUS = {
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}],
    "nodeInfo": {"kubeletVersion": "v1.35.8", "containerRuntimeVersion": "cri-o://1.35.6"},
}


class RealKubectl(FakeMachine):
    """kubectl is the real one; there is nothing else on this machine."""

    def command(self, *arguments: str) -> CommandOutput:
        assert arguments[0] == "kubectl"
        command = [str(found("kubectl")), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ)
        return CommandOutput(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def worker(cluster):
    cluster.kubectl("apply", "-f", "-", given=json.dumps(NODE))
    # A node begins tainted: the controller that would take the taint away does not run here.
    cluster.kubectl("patch", "node", WORKER, "--type=merge", "-p", json.dumps({"spec": {"taints": []}}))
    cluster.kubectl("patch", "node", WORKER, "--subresource=status", "-p", json.dumps({"status": STATUS}))
    wanted = expected(group_names=["nodes", "workers"], worker_node_name=WORKER)
    return Node(RealKubectl(), replace(wanted, kubelet_kubeconfig=str(cluster.kubelets_kubeconfig())))


def test_a_kubelet_may_ask_what_the_checks_ask(worker):
    verdict = judge(WORKER, worker, [check for check in registered() if check.name in CHECKS])
    assert [str(check) for check in verdict.failed] == []
    assert {check.name for check in verdict.checks} == CHECKS


def test_a_kubelet_may_not_ask_for_every_node(worker, cluster):
    with_rights = ["--kubeconfig", str(cluster.kubelets_kubeconfig())]
    refused = subprocess.run(
        [str(found("kubectl")), *with_rights, "get", "nodes"], capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode != 0
    assert "orbidden" in refused.stderr
    assert "unexpected" not in worker.kubectl("get", "nodes", f"--field-selector=metadata.name={WORKER}")
