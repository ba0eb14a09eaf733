"""What a real kubectl says where the roles tell one failure from another by its words."""

import json

import pytest
import yaml

from tests.integration.cluster import api_server
from tests.integration.cluster.api_server import ROOT, Cluster

pytestmark = pytest.mark.skipif(bool(api_server.MISSING), reason=api_server.WHY_NOT)

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-node-2"}}
# No kubelet is there that would end it.
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "slow", "namespace": "default"},
    "spec": {
        "nodeName": "gpu-node-2",
        "terminationGracePeriodSeconds": 300,
        "automountServiceAccountToken": False,
        "containers": [{"name": "slow", "image": "slow"}],
    },
}


def test_pods_that_do_not_end_in_time_are_told_from_an_api_server_that_is_away(cluster: Cluster) -> None:
    too_long = yaml.safe_load((ROOT / "roles/worker/vars/main.yml").read_text())["__worker_too_long"]
    cluster.kubectl("create", "serviceaccount", "default", check=False)  # nobody else makes it here
    for manifest in (NODE, POD):
        cluster.kubectl("create", "-f", "-", given=json.dumps(manifest))
    drain = ["drain", "gpu-node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--disable-eviction"]
    late = cluster.kubectl(*drain, "--skip-wait-for-delete-timeout=60", "--timeout=2s", check=False)
    assert (late.returncode, too_long in late.stderr) == (1, True), late.stderr
    away = cluster.kubectl("--server", "https://127.0.0.1:1", *drain, "--timeout=2s", check=False)
    assert (away.returncode, too_long in away.stderr) == (1, False), away.stderr
