"""What ``harness doctor --kubernetes`` says is missing, and the YAML that gives it."""

import json
import time

import pytest
import yaml
from typer.testing import CliRunner

from harness.backends.kubernetes import monitoring, rights
from harness.backends.kubernetes.api import KubernetesApi
from harness.cli import app
from harness.errors import UsageError
from harness.spec import KubernetesSpec
from harness.traffic.endpoint import Endpoint, Response
from tests.support import fake_admission, schemas
from tests.support.fake_cluster import Review

CAMPAIGN = """
name: mine
backend: kubernetes
kubernetes: {{kubeconfig: {kubeconfig}, prometheus_url: "{prometheus}", image: "registry.example/workload:1"}}
workloads: [{{name: resnet50}}]
replicas: [1, 3]
metrics: [throughput]
"""
OPERATOR = monitoring.OPERATOR
NODE = {
    "metadata": {"name": "a", "labels": {"nvidia.com/gpu.sharing-strategy": "time-slicing"}},
    "spec": {},
    "status": {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
}


def prometheus():
    def answer(data):
        return Response(200, json.dumps({"status": "success", "data": data}).encode(), "application/json")

    def now():
        return answer({"resultType": "vector", "result": [{"metric": {}, "value": [0, str(time.time())]}]})

    return {"/api/v1/targets": lambda: answer({"activeTargets": []}), "/api/v1/query": now}


@pytest.fixture
def doctor(cluster, tmp_path):
    server = Endpoint("127.0.0.1", 0, prometheus())
    file = tmp_path / "mine.yaml"
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    file.write_text(CAMPAIGN.format(kubeconfig=kubeconfig, prometheus=f"http://127.0.0.1:{server.port}"))

    def look(*words):
        done = CliRunner().invoke(app, ["doctor", str(file), "--kubernetes", *words])
        return done.exit_code, done.stdout

    yield look
    server.close()


def furnish(cluster, tmp_path, **labels):
    api = KubernetesApi(KubernetesSpec(kubeconfig=str(cluster.write_kubeconfig(tmp_path / "admin"))))
    fake_admission.furnish(cluster.store, **labels)
    api.create("/api/v1/nodes", NODE)
    api.patch("/api/v1/nodes/a/status", {"status": NODE["status"]})


def document(said):
    code, text = said
    answer = json.loads(text)
    return code, answer, {one["name"]: one for one in answer["checks"]}


def test_a_cluster_that_lacks_everything_is_told_and_given_what_to_apply(doctor, cluster):
    cluster.denied = {Review("create", "deployments"), Review("get", "pods/log"), Review("list", "resourcequotas")}
    code, answer, checks = document(doctor("--json"))

    assert (code, answer["ok"]) == (3, False)
    assert {name for name, one in checks.items() if one["required"]} == {"namespace", "rights", "nodes"}
    assert "create deployments in inference; get pods/log in inference" in checks["rights"]["found"]
    assert "not look at everything: list resourcequotas in inference" in checks["rights"]["found"]
    assert not checks["quota"]["ok"]
    assert not checks["prometheus"]["required"]
    assert "kind: Namespace" in answer["access"]


def test_a_cluster_that_has_everything_is_fit(doctor, cluster, tmp_path):
    furnish(cluster, tmp_path, **{rights.ENFORCE: "restricted"})
    code, text = doctor()

    assert code == 0, text
    assert "NO" not in text
    assert "apiVersion" not in text


def test_a_namespace_without_a_security_level_is_a_remark(doctor, cluster, tmp_path):
    furnish(cluster, tmp_path)
    code, answer, checks = document(doctor("--json"))

    assert (code, answer["ok"]) == (0, True)
    assert checks["pod security"]["found"] == "the namespace inference enforces no Pod Security level."
    assert f"{rights.ENFORCE}: restricted" in answer["access"]


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ({}, {}),
        ({"matchLabels": {"release": "stack"}}, {"release": "stack"}),
        (
            {
                "matchExpressions": [
                    {"key": "team", "operator": "In", "values": ["ml"]},
                    {"key": "x", "operator": "Exists"},
                ]
            },
            {"team": "ml", "x": "true"},
        ),
    ],
)
def test_the_operators_prometheus_is_given_a_pod_monitor_with_the_labels_that_it_chooses_by(
    doctor, cluster, tmp_path, selector, labels
):
    furnish(cluster, tmp_path, **{rights.ENFORCE: "restricted"})
    api = KubernetesApi(KubernetesSpec(kubeconfig=str(tmp_path / "admin")))
    chosen = {"podMonitorSelector": selector, "podMonitorNamespaceSelector": {}}
    server = {"metadata": {"name": "stack"}, "spec": chosen}
    api.create(f"{OPERATOR}/namespaces/monitoring/prometheuses", server)
    code, answer, checks = document(doctor("--json"))
    made = [one for one in yaml.safe_load_all(answer["access"]) if one["kind"] == "PodMonitor"]

    assert (code, checks["pod monitor"]["ok"], len(made)) == (0, False, 1)
    assert made[0]["metadata"]["labels"] == labels
    api.create(f"{OPERATOR}/namespaces/inference/podmonitors", made[0])
    assert document(doctor("--json"))[1]["access"] == ""


def test_a_prometheus_that_looks_in_its_own_namespace_alone_is_given_a_pod_monitor_there(doctor, cluster, tmp_path):
    furnish(cluster, tmp_path, **{rights.ENFORCE: "restricted"})
    api = KubernetesApi(KubernetesSpec(kubeconfig=str(tmp_path / "admin")))
    server = {"metadata": {"name": "stack"}, "spec": {"podMonitorSelector": {}}}
    api.create(f"{OPERATOR}/namespaces/monitoring/prometheuses", server)
    lacking = yaml.safe_load_all(document(doctor("--json"))[1]["access"])
    (made,) = [one for one in lacking if one["kind"] == "PodMonitor"]
    elsewhere = {**made, "metadata": {**made["metadata"], "namespace": "inference"}}
    api.create(f"{OPERATOR}/namespaces/inference/podmonitors", elsewhere)
    other = {
        **made,
        "metadata": {**made["metadata"], "name": "other"},
        "spec": {**made["spec"], "namespaceSelector": {}},
    }
    api.create(f"{OPERATOR}/namespaces/monitoring/podmonitors", other)

    assert made["metadata"]["namespace"] == "monitoring"
    assert made["spec"]["namespaceSelector"] == {"matchNames": ["inference"]}
    assert document(doctor("--json"))[1]["access"] != "", "neither of these is taken for the replicas"
    api.create(f"{OPERATOR}/namespaces/monitoring/podmonitors", made)
    assert document(doctor("--json"))[1]["access"] == ""


def test_an_operator_whose_prometheus_takes_no_pod_monitor_is_given_none(doctor, cluster, tmp_path):
    furnish(cluster, tmp_path, **{rights.ENFORCE: "restricted"})
    api = KubernetesApi(KubernetesSpec(kubeconfig=str(tmp_path / "admin")))
    api.create(f"{OPERATOR}/namespaces/monitoring/prometheuses", {"metadata": {"name": "other"}, "spec": {}})

    assert document(doctor("--json"))[1]["access"] == ""


def test_another_namespace_is_looked_at_in_place_of_the_campaigns(doctor, cluster, tmp_path):
    furnish(cluster, tmp_path, **{rights.ENFORCE: "restricted"})

    _, _, checks = document(doctor("--json", "--namespace", "team-b"))
    assert not checks["namespace"]["ok"]
    assert "team-b" in checks["namespace"]["found"]
    with pytest.raises(UsageError, match="not a valid name of a namespace"):
        CliRunner().invoke(app, ["doctor", "--kubernetes", "--namespace", "My Place"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "said"), [(["quickstart"], "on a cluster"), (["quickstart", "--kubernetes"], "on this machine")]
)
def test_a_local_campaign_and_a_cluster_do_not_go_together(words, said):
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False)


def test_no_cluster_is_one_check(doctor, cluster):
    cluster.token = "another"
    code, _, checks = document(doctor("--json"))

    assert (code, list(checks)) == (3, ["API server"])


def granted(objects, right, name):
    """Whether roles that are bound to the harness's account give a right."""
    verb, group, resource, namespace = right
    bound = {(one["metadata"].get("namespace"), one["roleRef"]["name"]) for one in objects if "roleRef" in one}
    rules = [
        rule
        for one in objects
        if one["metadata"].get("namespace") in {None, namespace}
        and (one["metadata"].get("namespace"), one["metadata"]["name"]) in bound
        for rule in one.get("rules", [])
    ]
    return any(
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and ("resourceNames" not in rule or name in rule["resourceNames"])
        for rule in rules
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": "job", "namespace": "team-b", "priority_class": "night", "queue_name": "gpus"},
        {"device_plugin_configs": "nvidia/plugin-configs"},
        {"sharing_by": "dra"},
        {"prometheus_service": "observability/kube-prometheus:web", "grafana_deployment": "dashboards/grafana"},
    ],
)
def test_what_is_to_be_applied_is_valid_and_gives_every_right_that_is_asked_for(changes):
    spec = KubernetesSpec(**changes)
    objects = list(yaml.safe_load_all(rights.manifest(spec)))
    for one in objects:
        schemas.validate(one, "1.36")
    grafana, _, deployment = spec.grafana_deployment.partition("/")
    asked = {
        **rights.needed_rights(spec, jobs=True, given=True),
        **rights.rights_to_switch(spec),
        **rights.rights_to_look(spec),
        ("patch", "apps", "deployments", grafana): deployment,
    }

    assert [right for right, name in asked.items() if not granted(objects, right, name)] == []
    assert not granted(objects, ("delete", "", "nodes", ""), "")
