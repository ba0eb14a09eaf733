"""Prometheus with the certificate and the login of a node of ours: who is answered, and how the harness finds both. The server is a real one."""

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.monitoring import direct, server
from harness.errors import PrometheusError
from harness.node.checks import monitoring
from harness.spec import KubernetesSpec
from harness.spec.kubernetes import PrometheusAccess
from tests.integration.monitoring.watched import DEBIAN, watched_cluster
from tests.support import monitoring_access
from tests.support.certificates import vouched_for
from tests.support.fake_cluster import FakeCluster, Review
from tests.support.ports import free_port

RECORDERS = Path(__file__).parents[2] / "node/mirror/recorders"
NAMED = "monitoring/prometheus-access"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    if DEBIAN is None:
        pytest.skip("no prometheus in PATH (Debian's package prometheus)")
    with watched_cluster(tmp_path_factory.mktemp("watched") / "cluster", gpus=1, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running


@pytest.fixture
def kubeconfig(cluster, tmp_path):
    return str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def asked(kubeconfig):
    """Makes the server that the harness asks with these settings."""

    def make(**changed):
        spec = KubernetesSpec(kubeconfig=kubeconfig, **changed)
        return server(KubernetesApi(spec), spec)

    return make


@pytest.fixture
def keep(kubeconfig):
    """Has the cluster keep such a Secret."""

    def make(access):
        data = {key: base64.b64encode(value.encode()).decode() for key, value in access.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "prometheus-access"}, "data": data}
        KubernetesApi(KubernetesSpec(kubeconfig=kubeconfig)).create("/api/v1/namespaces/monitoring/secrets", secret)

    return make


def status(cluster, headers):
    question = urllib.request.Request(f"{cluster.url}/api/v1/query?query=1", headers=headers)
    try:
        with urllib.request.urlopen(question, timeout=10, context=monitoring_access.trusting(cluster.access)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_who_has_no_login_is_refused(ours):
    wrong = {**ours.access, "password": ours.access["password"][:-1]}
    assert status(ours, monitoring_access.headers(ours.access)) == 200
    assert status(ours, {}) == 401
    assert status(ours, monitoring_access.headers(wrong)) == 401
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(ours.url.replace("https", "http"), timeout=10)


def test_the_harness_finds_address_authority_and_login_of_its_own_accord(ours, keep, asked):
    keep(ours.access)
    with asked() as found:
        assert found.url == ours.url
        assert found.query("up{job='prometheus'}").series[0].values[-1] == 1  # it scrapes itself, with the same login
        assert found.query_range("vector(1)", 1_000, 11_000, 5_000).series[0].values.shape == (3,)
        assert ours.access["password"] not in f"{found!r}{found}"


def test_at_an_address_of_its_own_it_is_asked_with_the_secret_that_is_named(ours, keep, asked):
    keep({**ours.access, "url": "https://10.96.7.7:9090"})
    address = ours.url.replace("127.0.0.1", "localhost")
    with asked(prometheus_url=address, prometheus_access={"secret": NAMED}) as found:
        assert found.query("vector(1)").series
    with asked(prometheus_url=address) as found, pytest.raises(PrometheusError, match="certificate"):
        found.query("vector(1)")


def test_an_impostor_is_not_told_the_password(ours, keep, asked, tmp_path):
    _, another = vouched_for(tmp_path, "127.0.0.1")
    keep({**ours.access, "ca.crt": another.read_text()})
    with asked() as found, pytest.raises(PrometheusError, match="certificate that cannot be verified"):
        found.query("vector(1)")


@pytest.mark.parametrize("why", ["absent", "forbidden", "another's"])
def test_a_cluster_without_our_secret_is_asked_through_its_api_server(cluster, keep, asked, why):
    if why == "forbidden":
        cluster.denied.add(Review("get", "secrets"))
    if why == "another's":
        keep({"username": "somebody"})
    with asked() as found:
        assert found.url.endswith("/services/prometheus:9090/proxy")
    with pytest.raises(PrometheusError, match="the Secret monitoring/prometheus-access") as caught:
        asked(prometheus_access={"secret": NAMED})
    assert "prometheus_access" in caught.value.advice


def test_without_the_login_the_harness_says_who_is_not_let_in(ours, tmp_path):
    authority = tmp_path / "ca.crt"
    authority.write_text(ours.access["ca.crt"])
    with (
        direct(ours.url, PrometheusAccess(ca_file=str(authority))) as found,
        pytest.raises(PrometheusError, match="401"),
    ):
        found.query("vector(1)")


@pytest.fixture(params=["real", "recorded"])
def kept(request, tmp_path, monkeypatch):
    """Where a node keeps the login of a Prometheus: of the real one, and of the one that stands in on the booted machine."""
    if request.param == "real":
        yield request.getfixturevalue("ours").kept
        return
    monkeypatch.syspath_prepend(str(RECORDERS))
    monitored = __import__("monitored")
    kubectl = monitoring_access.Kubectl("127.0.0.1", free_port())
    port = urllib.parse.urlsplit(monitoring_access.give(tmp_path / "kept", kubectl, "prometheus")["url"]).port
    monkeypatch.setattr(monitored, "_targets", list)
    running = monitored.listening("127.0.0.1", port, "prometheus", kubectl.values("prometheus-web"))
    yield tmp_path / "kept"
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize(("login", "status"), [("login", 200), ("nobody", 401)])
def test_the_verdict_sees_who_is_answered(kept, login, status):
    command = [sys.executable, "-c", monitoring.ASK, str(kept), "prometheus", monitoring.TARGETS, login]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["status"] == status
    assert 364 < said["left_s"] / 86_400 <= 365
    if login == "login":
        assert "activeTargets" in json.loads(said["body"])["data"]


def test_a_renewed_certificate_is_served_without_a_new_start(ours):
    """What a pod's volume brings is read with the next connection."""
    kubectl = monitoring_access.Kubectl("127.0.0.1", urllib.parse.urlsplit(ours.url).port)
    kubectl.secrets["prometheus-access"] = {
        key: base64.b64encode(value.encode()).decode() for key, value in ours.access.items()
    }
    monitoring_access.give(ours.kept, kubectl, "prometheus", days_min=366)
    web = ours.kept.parent / "web"
    before = (web / "tls.crt").read_text()
    for name, text in kubectl.values("prometheus-web").items():
        (web / name).write_text(text)
    assert (web / "tls.crt").read_text() != before
    assert status(ours, monitoring_access.headers(ours.access)) == 200
