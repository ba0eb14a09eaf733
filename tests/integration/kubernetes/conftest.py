"""The same tests on two API servers: the shipped fake, and the real one where its binaries are."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Ansible replaces sys.intern by a class when it is imported, which torch refuses; so torch comes first.
import torch._dynamo  # noqa: F401
import yaml

from harness.backends.kubernetes import rights
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.campaign.folder import create
from harness.campaign.runner import CampaignRunner
from harness.results.manifest import Status, read_manifest
from harness.sharing.cluster import SWITCHED
from harness.spec import KubernetesSpec
from tests.integration.cluster.api_server import CONTROLLED, MISSING, ROOT, WHY_NOT, Cluster, api_server, controllers
from tests.support.campaigns import BUSY
from tests.support.cluster_driver import CONFIG_LABEL, GPU, ClusterDriver
from tests.support.experiments import campaign, experiment
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_metrics import FakeGpus
from tests.support.processes import DRAINED_S, eventually

CONFIGS = "inference/device-plugin-configs"


def pytest_collection_modifyitems(items):
    """Every test here meets an API server that signs for itself."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Unverified HTTPS request"))


@dataclass
class Server:
    """An API server.

    Attributes:
        kubeconfig: of the account that access.yaml makes; nothing here may need more.
        admin: of an administrator, for whoever plays the cluster.
        controlled: by the real controllers and the real scheduler.
    """

    kind: str
    kubeconfig: Path
    admin: Path
    controlled: bool = False

    def spec(self, **changes) -> KubernetesSpec:
        values = {
            "kubeconfig": str(self.kubeconfig),
            "namespace": "inference",
            "image": "registry.example/workload:1",
            "runtime_class": None,
            "pending_s": 1.0,
            "api_timeout_s": 5.0,
            "outage_s": 30.0,
            "prometheus_url": "http://127.0.0.1:9",
        }
        return KubernetesSpec(**values | changes)


@pytest.fixture(
    scope="session",
    params=["fake", pytest.param("real", marks=pytest.mark.skipif(bool(MISSING), reason=WHY_NOT))],
)
def server(request, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "fake":
        with FakeCluster() as cluster:
            kubeconfig = cluster.write_kubeconfig(folder / "kubeconfig")
            yield Server("fake", kubeconfig, kubeconfig)
    else:
        with api_server(folder) as cluster, controllers(folder, cluster) if CONTROLLED else contextlib.nullcontext():
            yield Server("real", _account(cluster, folder / "harness.conf"), cluster.kubeconfig, CONTROLLED)


def _account(cluster: Cluster, path: Path) -> Path:
    """Credentials of the account that the example makes, as its reader would get them."""
    for namespace in ("inference", "monitoring"):
        cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("apply", "-f", str(ROOT / "examples/cluster/access.yaml"))
    for command in rights.commands_to_allow_switching(KubernetesSpec(device_plugin_configs=CONFIGS)):
        cluster.kubectl(*command.split()[1:])
    token = cluster.kubectl("create", "token", "harness", "--namespace", "inference").stdout.strip()
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def driver(server, tmp_path) -> Iterator[ClusterDriver]:
    api = KubernetesApi(server.spec(kubeconfig=str(server.admin)))
    forked = ("harness.replica", "harness.traffic.pod")
    with ClusterDriver(api, tmp_path / "node", controlled=server.controlled, forked=forked) as driving:
        yield driving


@pytest.fixture
def lends(driver):
    """Has the node's device plugin lend by one of some configurations, as its label says; the first where it says nothing."""
    node, api = f"/api/v1/nodes/{driver.node}", driver.api

    def lending(plugin: dict[str, tuple[int, bool]]) -> None:
        data = {}
        for name, (replicas, mps) in plugin.items():
            shared = {"mps" if mps else "timeSlicing": {"resources": [{"name": GPU, "replicas": replicas}]}}
            data[name] = yaml.safe_dump({"version": "v1", "sharing": shared if replicas > 1 else {}})
        namespace, _, name = CONFIGS.partition("/")
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        api.apply(f"/api/v1/namespaces/{namespace}/configmaps/{name}", body)
        driver.plugin = plugin
        api.patch(node, {"metadata": {"labels": {"nvidia.com/gpu.count": "1"}}})
        assert eventually(lambda: driver.heeded == [next(iter(plugin))])

    yield lending
    gone = {"labels": {"nvidia.com/gpu.count": None, CONFIG_LABEL: None}, "annotations": {SWITCHED: None}}
    api.patch(node, {"metadata": gone})
    assert eventually(lambda: driver.heeded[-1] == next(iter(driver.plugin)))


@pytest.fixture
def backend(server, driver) -> KubernetesBackend:  # noqa: ARG001 - it drives whatever the backend makes
    return KubernetesBackend(server.spec(), "c0ffee")


@pytest.fixture
def deaths():
    return []


@pytest.fixture
def deploy(backend, tmp_path, deaths):
    """Deploys, and stops what a test has left running."""
    made = []

    def deploying(of=None, *, by=backend, abort=None):
        folder = tmp_path / f"attempt-{len(made)}"
        folder.mkdir()
        made.append(by.deploy(of or experiment(), folder, abort=abort or threading.Event(), on_death=deaths.append))
        return made[-1], folder

    yield deploying
    for deployment in made:
        deployment.stop(timeout_s=DRAINED_S)


@pytest.fixture
def run_campaign(tmp_path):
    """Runs a campaign to its end, through a backend; returns its folder, and its manifests by name, whose figures count.

    ``invalid``: experiments that are to have none.
    """

    def running(through, *, invalid=(), **changes):
        values = {"backend": "kubernetes", "kubernetes": through._spec.model_dump(), "metrics": ["throughput"]}
        folder = create(tmp_path / "results", campaign(**values | changes), text="text", source="shipped:test")
        outcome = CampaignRunner(folder, through, gpus=FakeGpus).run()
        made = {identity: read_manifest(folder.final_folder(identity)) for identity in outcome.statuses}
        for identity, manifest in made.items():
            verdict = manifest.verdict
            assert identity in invalid or verdict.status is not Status.INVALID or set(verdict.codes) <= BUSY, verdict
        return folder, made

    return running
