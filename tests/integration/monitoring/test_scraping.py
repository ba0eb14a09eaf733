"""Our Prometheus configuration in a real Prometheus: what it finds, and under which labels."""

import pytest

from tests.support import exporter_pages as pages
from tests.support.kubernetes_discovery import pod_targets

JOBS = {
    *("prometheus", "node-exporter", "dcgm-exporter", "kube-state-metrics", "kubelet", "kubelet-cadvisor"),
    "ai-inference-apps",
}


@pytest.fixture(autouse=True)
def every_target_answers(request):
    """A busy machine is scraped late now and then, and then a target is down until the next time."""
    if "watched" in request.fixturenames:
        wait_until_all_are_up(request.getfixturevalue("watched"))


def wait_until_all_are_up(cluster):
    jobs = 6 + len(cluster.pods)
    cluster.wait_for("count(up == 1)", lambda found: bool(found) and float(found[0]["value"][1]) == jobs)


def labels_of(cluster, expression):
    return [one["metric"] for one in cluster.now(expression)]


def check_targets(cluster):
    active = cluster.get("targets", state="active")["activeTargets"]
    assert [one["lastError"] for one in active if one["health"] != "up"] == []
    assert {one["labels"]["job"] for one in active} == JOBS
    assert (
        sorted(one["labels"].get("pod", "") for one in active if one["labels"]["job"] == "ai-inference-apps")
        == cluster.pods
    )
    assert len(active) == 6 + len(cluster.pods)
    for one in active:
        assert (one["labels"].get("node") == pages.NODE) == (one["labels"]["job"] != "kube-state-metrics"), one[
            "labels"
        ]


def test_the_seven_jobs_are_up_and_nothing_else_is_scraped(watched):
    check_targets(watched)


def test_a_replica_carries_its_identity(watched):
    for one in labels_of(watched, "inference_requests_total"):
        assert one["namespace"] == "inference"
        assert one["pod"].startswith(one["workload"])
        assert (one["experiment"], one["node"], one["job"]) == ("e1", pages.NODE, "ai-inference-apps")


def test_a_device_is_told_by_node_and_index_and_no_pod_shadows_it(watched):
    found = labels_of(watched, "DCGM_FI_DEV_GPU_UTIL")
    assert sorted(one["gpu"] for one in found) == watched.gpus
    for one in found:
        assert {"UUID", "Hostname"} <= set(one)
        assert not {"pod", "namespace", "exported_pod"} & set(one)
        assert (one["node"], one["instance"]) == (pages.NODE, pages.NODE)


def test_a_zero_for_an_instance_of_mig_is_no_utilisation(watched):
    for field in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"):
        assert [one for one in labels_of(watched, field) if "GPU_I_ID" in one] == []
        assert labels_of(watched, field)


def test_containers_keep_their_names_and_the_system_s_groups_are_left_out(watched):
    found = labels_of(watched, "container_cpu_usage_seconds_total")
    assert {one["id"] for one in found if "pod" not in one} == {"/"}
    mine = [one for one in found if one.get("pod") == watched.pods[0]]
    assert sorted(one.get("container", "") for one in mine) == ["", "POD", "workload"]
    assert all(one["node"] == pages.NODE for one in found)


def test_what_nobody_asks_for_is_not_stored(watched):
    names = set(watched.get("label/__name__/values"))
    assert not {"rest_client_requests_total", "container_tasks_state"} & names
    assert {"kubelet_running_pods", "machine_cpu_cores"} <= names


def test_objects_keep_the_labels_that_kube_state_metrics_gives_them(watched):
    (ready,) = labels_of(watched, 'kube_node_status_condition{condition="Ready",status="true"} == 1')
    assert ready["node"] == pages.NODE
    assert {one["pod"] for one in labels_of(watched, "kube_pod_status_ready")} == {*watched.pods, "coredns-7d8"}
    assert not [one for one in labels_of(watched, "kube_pod_info") if "exported_namespace" in one]


def test_samples_of_containers_have_the_time_of_their_reading(watched):
    (series,) = watched.now('container_memory_working_set_bytes{id="/"}[10s]')
    times_s = [at_s for at_s, _ in series["values"]]
    assert len(set(times_s)) == len(times_s) > 2


def test_discovery_at_an_api_server_finds_the_same(discovered):
    check_targets(discovered)
    active = discovered.get("targets", state="active")["activeTargets"]
    seen = {one["discoveredLabels"]["__address__"]: one["discoveredLabels"] for one in active}
    ours = [group for group in pod_targets(discovered.objects) if group["targets"][0] in seen]
    assert len(ours) == 4 + len(discovered.pods)
    for group in ours:
        assert group["labels"].items() <= seen[group["targets"][0]].items()
