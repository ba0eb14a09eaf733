"""What furnishes the cluster: each is applied with its templates, waited for, and asked about."""

import recorded_role
import yaml

KUBECTL = """#!/bin/sh
echo "$*" >> $MACHINE/asked
case "$*" in *runtimeclass*) printf %s "$(cat $MACHINE/handler 2>/dev/null || echo nvidia)";; esac
"""


def test_each_is_applied_waited_for_and_asked_about(tmp_path):
    ran = recorded_role.run(tmp_path, "addons", {"one": {}}, {"one": {}}, {"kubectl": KUBECTL}, kepler_power="absent")
    assert ran.failed == {"one": None}
    (given,) = [given for name, given in ran.done["one"] if name == "kube_objects"]
    found = [(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(given["manifest"]) if one]
    wanted = [("RuntimeClass", "nvidia"), ("StorageClass", "local-path"), ("Deployment", "metrics-server")]
    wanted += [("DaemonSet", "node-exporter"), ("DaemonSet", "dcgm-exporter"), ("Deployment", "kube-state-metrics")]
    assert [one for one in found if one in wanted] == wanted
    # What several of them begin with is there once.
    assert found.count(("Namespace", "monitoring")) == 1
    pods = ["local-path-storage/Deployment/local-path-provisioner", "kube-system/Deployment/metrics-server"]
    pods += ["monitoring/DaemonSet/node-exporter", "gpu-system/DaemonSet/dcgm-exporter"]
    assert given["workloads"] == [*pods, "monitoring/Deployment/kube-state-metrics"]
    asked = (tmp_path / "one/asked").read_text().splitlines()
    assert ["runtimeclass nvidia" in asked[0], "apiservice/v1beta1.metrics.k8s.io" in asked[1]] == [True, True]


def test_a_runtime_class_of_another_handler_fails(tmp_path):
    kubectl = KUBECTL.replace("|| echo nvidia", "|| echo other")
    ran = recorded_role.run(tmp_path, "addons", {"one": {}}, {"one": {}}, {"kubectl": kubectl}, kepler_power="absent")
    assert ran.failed["one"] is not None


def test_kepler_runs_where_a_machine_has_rapl_and_on_no_node_that_is_known_to_have_none(tmp_path):
    nodes = {"one": {"rapl": False}, "two": {"rapl": True}, "three": {"rapl": False}, "four": {"rapl": False}}
    workers = {"two": {}, "three": {}, "four": {"worker_node_name": "gpu-4"}}
    groups = {"control_plane": {"hosts": {"one": {}}}, "workers": {"hosts": workers}}
    ran = recorded_role.run(
        tmp_path, "addons", nodes, {"all": {"children": groups}}, {"kubectl": KUBECTL}, addons_names=["kepler"]
    )
    assert set(ran.failed.values()) == {None}
    (text,) = [given["manifest"] for name, given in ran.done["one"] if name == "kube_objects"]
    (pods,) = [one["spec"]["template"]["spec"] for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    terms = pods["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = {"key": "metadata.name", "operator": "NotIn"}
    assert terms == [{"matchFields": [{**keys, "values": [name]} for name in ("controlplane", "three", "gpu-4")]}]


def test_a_run_on_some_machines_leaves_kepler_off_the_others_that_have_no_rapl(tmp_path):
    kubectl = KUBECTL.replace("esac", '*daemonset*) printf "controlplane three" ;;\nesac')
    groups = {"control_plane": {"hosts": {"one": {}}}, "workers": {"hosts": {"two": {}}}}
    nodes = {"one": {"rapl": True}, "two": {"rapl": False}}
    ran = recorded_role.run(
        tmp_path, "addons", nodes, {"all": {"children": groups}}, {"kubectl": kubectl}, addons_names=["kepler"]
    )
    (text,) = [given["manifest"] for name, given in ran.done["one"] if name == "kube_objects"]
    (pods,) = [one["spec"]["template"]["spec"] for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    ((term,),) = pods["affinity"]["nodeAffinity"].popitem()[1].values()
    assert [field["values"] for field in term["matchFields"]] == [["two"], ["three"]]


def test_without_any_rapl_there_is_no_kepler(tmp_path):
    ran = recorded_role.run(
        tmp_path, "addons", {"one": {"rapl": False}}, {"one": {}}, {"kubectl": KUBECTL}, addons_names=["kepler"]
    )
    assert (ran.failed, [name for name, _ in ran.done["one"]]) == ({"one": None}, ["node_probe"])
