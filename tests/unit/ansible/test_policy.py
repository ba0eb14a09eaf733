"""Every object of this project, in every shape: valid for two minors and more, pinned, and no more than it has to be."""

import copy
import itertools
import re

import kubernetes_validate
import policy
import pytest
import tree
import yaml

from tests.support import cluster_objects, monitoring_access, schemas
from tests.support.cases import every

NAMES = cluster_objects.templates()
MINORS = tree.variables()["versions_by_minor"]
# Not in the published schemas: an extension of the API server and what Calico's operator defines.
OTHERS = {"APIService", "Installation"}
OWN_IMAGE = re.compile(r"localhost/gpu-sharing-harness/workload:[\w.]+")
EVERYTHING = list(cluster_objects.everything())


def images(item):
    pod = policy.pod_of(item) or {"containers": []}
    return [one["image"] for one in [*pod.get("initContainers", ()), *pod["containers"]]]


def exceptions_taken(objects):
    return {(policy.name_of(item), rule) for item in objects for rule in policy.broken(item)}


def test_no_object_is_more_than_it_has_to_be():
    taken = exceptions_taken(item for _, item in EVERYTHING)
    assert sorted(taken - policy.EXCEPTIONS) == [], "mend the object, or give a reason in policy.py"
    assert sorted(policy.EXCEPTIONS - taken) == [], "nothing needs these any more"


@every(itertools.product(NAMES, MINORS))
def test_every_object_is_valid_for_every_minor(name, minor):
    objects = cluster_objects.documents(name)
    assert objects
    for item in objects:
        if item["kind"] not in OTHERS:
            schemas.validate(item, minor)


def test_a_wrong_object_is_seen():
    with pytest.raises(kubernetes_validate.ValidationError):
        schemas.validate(cluster_objects.documents("runtime-class.yaml.j2")[0] | {"handlr": "nvidia"}, "1.35")


@every(EVERYTHING, lambda name, item: f"{name}:{item['kind']}")
def test_every_image_is_one_of_the_table_or_our_own(name, item):
    del name
    known = cluster_objects.images_of_the_table()
    for image in images(item):
        assert image in known or OWN_IMAGE.fullmatch(image), image
        assert ":" in image.rpartition("/")[2]
        assert not image.endswith(":latest")


def test_every_pod_finds_what_it_mounts_and_who_it_is():
    """A ConfigMap, a claim or an account that nobody makes leaves a pod waiting."""
    made = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for _, one in EVERYTHING}
    made |= {("Secret", "monitoring", f"{name}-web") for name in monitoring_access.SECRETS}
    made |= {("Secret", "monitoring", name) for name in monitoring_access.SECRETS.values()}
    made |= {("ServiceAccount", "inference", "default")}
    for _, item in EVERYTHING:
        pod, namespace = policy.pod_of(item), item["metadata"].get("namespace")
        if pod is None:
            continue
        wanted = [("ServiceAccount", pod["serviceAccountName"])] if "serviceAccountName" in pod else []
        for volume in pod.get("volumes", ()):
            wanted += [("ConfigMap", volume["configMap"]["name"])] if "configMap" in volume else []
            wanted += [("Secret", volume["secret"]["secretName"])] if "secret" in volume else []
            claim = volume.get("persistentVolumeClaim")
            wanted += [("PersistentVolumeClaim", claim["claimName"])] if claim else []
        assert {(kind, namespace, name) for kind, name in wanted} <= made, item["metadata"]["name"]


def test_every_service_and_policy_selects_pods_that_exist():
    labels = {}
    for _, item in EVERYTHING:
        if policy.pod_of(item) is not None and item["kind"] != "CronJob":
            template = item["spec"]["template"]["metadata"]["labels"].items()
            labels.setdefault(item["metadata"]["namespace"], []).append(template)
    for _, item in EVERYTHING:
        spec = item.get("spec", {})
        selector = spec.get("selector") if item["kind"] == "Service" else spec.get("podSelector", {}).get("matchLabels")
        if item["kind"] in {"Service", "NetworkPolicy"} and selector:
            found = labels.get(item["metadata"]["namespace"], [])
            assert any(selector.items() <= one for one in found), item["metadata"]["name"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda pod: pod.update(hostNetwork=True), "host-network"),
        (lambda pod: pod.update(hostPID=True), "host-pid"),
        (lambda pod: pod.update(hostIPC=True), "host-ipc"),
        (lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/etc"}}), "host-path /etc"),
        (lambda pod: pod["securityContext"].update(runAsUser=0), "root"),
        (lambda pod: pod["securityContext"].pop("runAsNonRoot"), "root"),
        (lambda pod: pod["securityContext"].pop("seccompProfile"), "seccomp"),
        (lambda pod: pod["containers"][0]["securityContext"].update(privileged=True), "privileged"),
        (lambda pod: pod["securityContext"].update(appArmorProfile={"type": "Unconfined"}), "apparmor"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"), "escalation"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"), "writable-root"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"), "capabilities"),
        (
            lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
            "capability NET_ADMIN",
        ),
        (lambda pod: pod["containers"][0]["resources"]["requests"].pop("cpu"), "requests"),
        (lambda pod: pod["containers"][0]["resources"].pop("limits"), "memory-limit"),
        (lambda pod: pod["containers"][0]["readinessProbe"].pop("timeoutSeconds"), "probe-timeout"),
    ],
)
def test_each_rule_sees_what_it_is_for(change, rule):
    (good,) = [one for one in cluster_objects.documents("prometheus.yaml.j2") if one["kind"] == "Deployment"][:1]
    assert list(policy.broken(good)) == []
    bad = copy.deepcopy(good)
    change(bad["spec"]["template"]["spec"])
    assert list(policy.broken(bad)) == [rule]


def test_pods_inside_configuration_are_seen_too():
    """The provisioner of volumes starts a pod that it reads from its ConfigMap."""
    (config,) = [one for name, one in EVERYTHING if name == "local-path.yaml.j2" and one["kind"] == "ConfigMap"]
    helper = yaml.safe_load(config["data"]["helperPod.yaml"])
    assert images(helper)[0] in cluster_objects.images_of_the_table()


def test_kepler_may_read_what_upstream_s_privileged_one_reads():
    (kepler,) = [one for one in cluster_objects.documents("kepler.yaml.j2") if one["kind"] == "DaemonSet"]
    rights = kepler["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert rights["appArmorProfile"] == {"type": "Unconfined"}
    assert {"SYS_PTRACE", "DAC_READ_SEARCH"} <= set(rights["capabilities"]["add"])
