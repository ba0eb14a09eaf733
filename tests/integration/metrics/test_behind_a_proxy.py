"""A Prometheus as others run it: behind TLS, a token, a tenant and a path of its own. The server is a real one."""

import base64
import time

import pytest

from harness.backends.kubernetes.monitoring import direct
from harness.backends.kubernetes.probe import check_prometheus
from harness.campaign import publish
from harness.campaign.folder import create
from harness.campaign.source import given
from harness.errors import CampaignFileError, IssueLevel, PrometheusError
from harness.metrics.promql import PrometheusSource
from harness.spec import KubernetesSpec
from harness.spec.kubernetes import PrometheusAccess
from tests.integration.metrics.prometheus_server import NEEDED, prometheus
from tests.support.guarded_proxy import GuardedProxy

pytestmark = NEEDED

CAMPAIGN = """
name: mine
backend: kubernetes
kubernetes: {{prometheus_url: "{url}", prometheus_access: {{token_file: {token}, ca_file: {ca}, tenant: team-a}}}}
workloads: [{{name: resnet50}}]
replicas: [1]
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    with prometheus(tmp_path_factory.mktemp("prometheus")) as url:
        yield url


@pytest.fixture
def proxy(upstream, tmp_path):
    with GuardedProxy(upstream, tmp_path / "proxy") as running:
        yield running


@pytest.fixture
def access(proxy, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cr3t\n")
    return PrometheusAccess(token_file=str(token), ca_file=str(proxy.ca_file), tenant="team-a")


def changed(access, **values):
    return PrometheusAccess(**access.model_dump() | values)


def refused(url, access):
    with direct(url, access) as server, pytest.raises(PrometheusError) as caught:
        server.query("vector(1)")
    assert "s3cr3t" not in str(caught.value)
    return str(caught.value)


def test_it_answers_queries_ranges_and_its_targets(proxy, access):
    now_ms = int(time.time()) * 1000
    with direct(proxy.url, access) as server:
        assert server.query("vector(41) + 1").series[0].values[-1] == 42
        assert len(server.query_range("vector(1)", now_ms - 10_000, now_ms, 5_000).series[0].values) == 3
        assert server.read("targets")["activeTargets"] == []
        with server.impatient(5.0) as quick:
            assert quick.query("vector(1)").series


def test_a_token_that_is_renewed_is_sent_with_the_next_query(proxy, access, tmp_path):
    with direct(proxy.url, access) as server:
        server.query("vector(1)")
        proxy.authorization = "Bearer another"
        with pytest.raises(PrometheusError, match="401"):
            server.query("vector(1)")
        (tmp_path / "token").write_text("another")
        assert server.query("vector(1)").series


def test_a_name_with_a_password_and_a_token_of_the_environment(proxy, access, tmp_path, monkeypatch):
    proxy.authorization = "Basic " + base64.b64encode(b"name:s3cr3t").decode()
    (tmp_path / "token").write_text(proxy.authorization)
    with direct(proxy.url, access) as server:
        assert server.query("vector(1)").series
    monkeypatch.setenv("OUR_TOKEN", "t0ken")
    proxy.authorization = "Bearer t0ken"
    with direct(proxy.url, changed(access, token_file=None, token_env="OUR_TOKEN")) as server:
        assert server.query("vector(1)").series


def test_what_is_wrong_is_said_and_no_secret_with_it(proxy, access, tmp_path):
    assert "401" in refused(proxy.url, changed(access, token_file=None))
    assert "prometheus_access" in refused(proxy.url, changed(access, token_file=None))
    assert "no org id" in refused(proxy.url, changed(access, tenant="team-b"))
    assert "certificate that cannot be verified" in refused(proxy.url, changed(access, ca_file=None))
    assert "there is no file" in refused(proxy.url, changed(access, ca_file=str(tmp_path / "none")))
    assert "cannot be read" in refused(proxy.url, changed(access, token_file=str(tmp_path / "none")))
    assert "holds no token" in refused(proxy.url, changed(access, token_file=None, token_env="NOT_SET_ANYWHERE"))
    assert "404" in refused(proxy.url.removesuffix("/prometheus"), access)


@pytest.mark.parametrize("scrapes", [True, False])
def test_preflight_takes_a_store_that_scrapes_nothing_itself(proxy, access, scrapes):
    proxy.scrapes = scrapes
    spec = KubernetesSpec(prometheus_url=proxy.url, prometheus_access=access)
    with direct(proxy.url, access) as server:
        found = check_prometheus(server, spec, [], time.time)
    assert [one.message for one in found if one.check == "prometheus" or one.severity is IssueLevel.ERROR] == []
    with direct(proxy.url, changed(access, token_file=None)) as server:
        [found] = check_prometheus(server, spec, [], time.time)
    assert "401" in found.message


def test_an_export_afterwards_asks_as_the_campaign_did_and_no_result_holds_the_token(proxy, access, tmp_path):
    text = CAMPAIGN.format(url=proxy.url, token=access.token_file, ca=access.ca_file)
    folder = create(tmp_path / "results", given(text).spec, text=text, source="mine.yaml")
    origin = PrometheusSource(proxy.url, "inference", ("pod-0",))
    with publish._server(folder.path / "one", origin, None, 30.0) as server:
        assert server.query("vector(1)").series
    assert not [path for path in folder.path.rglob("*") if path.is_file() and "s3cr3t" in path.read_text()]


def test_a_password_in_the_address_is_refused_before_it_is_kept():
    text = CAMPAIGN.format(url="https://name:s3cr3t@prometheus/base", token="t", ca="c")
    with pytest.raises(CampaignFileError, match="kept with the results") as caught:
        given(text)
    assert "s3cr3t" not in str(caught.value)
