"""playbooks/monitoring.yml against a real API server: what it makes, what it waits for, and what it gives away."""

import pytest

from tests.integration.cluster.api_server import MISSING, WHY_NOT, api_server
from tests.integration.cluster.monitored import Monitored
from tests.integration.cluster.playbook import play, possible
from tests.support.cluster_objects import documents

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=WHY_NOT),
    pytest.mark.skipif(not possible(), reason="one folder cannot be laid over another here"),
]
ROLES = ("prometheus", "grafana", "addons")
SOON = {f"{role}_timeout_s": "30" for role in ROLES} | {"kepler_power": "absent"}
PROMETHEUS, STATE = "monitoring:prometheus", "monitoring:kube-state-metrics"


def monitoring(played, *arguments, **variables):
    return play(played.cluster, "playbooks/monitoring.yml", *arguments, **{**SOON, **variables})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One whose Services have addresses that are reached without a kube-proxy."""
    with api_server(tmp_path_factory.mktemp("cluster"), "--service-cluster-ip-range=127.96.0.0/16") as running:
        yield running


@pytest.fixture(scope="module")
def played(cluster):
    with Monitored(cluster) as running:
        checked = monitoring(running, "--check")
        assert checked.status == 0, checked.output
        first = monitoring(running)
        assert first.status == 0, first.output + "".join(running.errors)
        running.first = first
        yield running


def passwords(played):
    return [played.secret(name)["password"] for name in ("prometheus-access", "grafana-admin")]


def test_a_second_run_changes_nothing_and_no_run_says_a_password(played):
    made = passwords(played)
    assert played.first.changed > 0
    again = monitoring(played, "-vvv", "--diff")
    assert (again.status, again.changed) == (0, 0), again.output
    assert passwords(played) == made
    for one in made:
        assert len(one) >= 24
        assert one not in played.first.output + again.output


def test_what_the_cluster_has_lost_it_is_given_again(played):
    made, before = passwords(played), played.secret("prometheus-web")
    for name in ("prometheus-web", "prometheus-access", "grafana-admin"):
        played.cluster.kubectl("delete", "secret", name, "--namespace", "monitoring")
    run = monitoring(played, "--tags", "prometheus,grafana")
    assert run.status == 0, run.output
    assert (passwords(played), played.secret("prometheus-web")) == (made, before)


def test_a_port_of_the_node_is_opened_when_it_is_asked_for_and_closed_again(played):
    def port():
        return played.cluster.get("service", "prometheus", "--namespace", "monitoring")["spec"]["ports"][0].get(
            "nodePort"
        )

    assert port() is None
    opened = monitoring(played, "--tags", "prometheus", prometheus_exposure="nodeport")
    assert (opened.status, port()) == (0, 30090), opened.output
    closed = monitoring(played, "--tags", "prometheus")
    assert (closed.status, port()) == (0, None), closed.output


def test_a_campaign_s_silence_is_kept(played):
    played.cluster.kubectl("scale", "deployment/grafana", "--namespace", "monitoring", "--replicas=0")
    again = monitoring(played, "--tags", "grafana")
    assert (again.status, again.changed) == (0, 0), again.output
    assert played.cluster.get("deployment", "grafana", "--namespace", "monitoring")["spec"]["replicas"] == 0
    played.cluster.kubectl("scale", "deployment/grafana", "--namespace", "monitoring", "--replicas=1")


def test_a_job_that_is_not_up_ends_the_run_with_its_own_words(played):
    played.down = {"kubelet-cadvisor"}
    played.jobs.remove("dcgm-exporter")  # on a cluster with a GPU
    try:
        run = monitoring(played, "--tags", "prometheus", prometheus_timeout_s="15")
    finally:
        played.jobs.append("dcgm-exporter")
        played.down = set()
    assert run.status != 0
    assert "without a target that is up: kubelet-cadvisor, dcgm-exporter" in run.output, run.output
    assert "kubelet-cadvisor at http://192.0.2.1/kubelet-cadvisor: connection refused" in run.output


def test_a_changed_configuration_is_a_changed_pod(played):
    def checksum():
        found = played.cluster.get("deployment", "prometheus", "--namespace", "monitoring")
        return found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    before = checksum()
    run = monitoring(played, "--tags", "prometheus", prometheus_scrape_interval_s=10)
    assert (run.status, run.changed) == (0, 1), run.output
    assert checksum() != before


def test_without_rapl_there_is_no_kepler(played):
    assert played.cluster.kubectl("get", "daemonset/kepler", "--namespace", "monitoring", check=False).returncode != 0


@pytest.mark.parametrize(
    ("account", "words", "may"),
    [
        (PROMETHEUS, ["watch", "pods", "--all-namespaces"], True),
        (PROMETHEUS, ["watch", "nodes"], True),
        (PROMETHEUS, ["get", "nodes", "--subresource=metrics"], True),
        (PROMETHEUS, ["get", "nodes", "--subresource=proxy"], False),
        (PROMETHEUS, ["get", "secrets", "--namespace=monitoring"], False),
        (PROMETHEUS, ["delete", "pods", "--namespace=inference"], False),
        (STATE, ["watch", "pods", "--all-namespaces"], True),
        (STATE, ["list", "persistentvolumeclaims", "--all-namespaces"], True),
        (STATE, ["list", "secrets", "--all-namespaces"], False),
        (STATE, ["list", "configmaps", "--all-namespaces"], False),
        ("monitoring:grafana", ["list", "pods", "--namespace=monitoring"], False),
        ("monitoring:node-exporter", ["list", "pods", "--namespace=monitoring"], False),
        ("gpu-system:dcgm-exporter", ["list", "pods", "--namespace=gpu-system"], False),
    ],
)
def test_an_account_may_do_its_work_and_no_more(played, account, words, may):
    assert played.cluster.may(account, *words) is may


def test_everything_of_the_templates_is_there(played):
    names = (
        "monitoring/namespace",
        "monitoring/service",
        "prometheus",
        "grafana",
        "node-exporter",
        "kube-state-metrics",
        "dcgm-exporter",
    )
    for name in names:
        for one in documents(f"{name}.yaml.j2"):
            if one["metadata"]["name"] != "gpu-system-dcgm-exporter":  # per pod alone
                where = ["--namespace", one["metadata"].get("namespace", "default")]
                played.cluster.get(one["kind"], one["metadata"]["name"], *where)
