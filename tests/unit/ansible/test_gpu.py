"""The objects that share GPUs, rendered for every way of sharing."""

import json
import os

import pytest
import tree
import yaml
from tree import TEMPLATE_FILES, render

from tests.support import schemas

MINORS = tree.variables()["versions_by_minor"]
MATRIX = [
    ("exclusive", "none"),
    ("exclusive", "single"),
    ("exclusive", "mixed"),
    ("time-slicing", "none"),
    ("time-slicing", "mixed"),
    ("mps", "none"),
]
NODES = {"controlplane": {"nvidia.com/gpu": 10}, "second.example": {"nvidia.com/mig-1g.5gb": 70}, "third": {}}


def documents(name, sharing="time-slicing", mig="none", divisions=None):
    given = {"device_plugin_sharing": sharing, "device_plugin_mig_strategy": mig}
    given |= {
        "gpu_nodes": NODES,
        "gpu_resources": ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"],
        "gpu_divisions": divisions or {},
        "gpu_features": {
            "controlplane": {"nvidia.com/gpu.product": "NVIDIA-H200"},
            "third": {"nvidia.com/gpu.count": "1"},
        },
        "gpu_smoke_id": "0123abcd",
    }
    return [one for one in yaml.safe_load_all(render(TEMPLATE_FILES[name], **given)) if one]


def by_name(sharing, mig="none"):
    found = documents("device-plugin.yaml.j2", sharing, mig)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def config(sharing, mig="none"):
    return yaml.safe_load(by_name(sharing, mig)["ConfigMap/device-plugin"]["data"]["config.yaml"])


def pod(sharing, mig="none", name="device-plugin"):
    return by_name(sharing, mig)[f"DaemonSet/{name}"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(("sharing", "key"), [("exclusive", None), ("time-slicing", "timeSlicing"), ("mps", "mps")])
def test_the_plugin_is_told_how_to_share_once(sharing, key):
    found = config(sharing).get("sharing", {})
    assert list(found) == ([key] if key else [])
    for shared in found.values():
        assert shared["failRequestsGreaterThanOne"] is True
        assert shared["resources"] == [
            {"name": name, "replicas": 10} for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb")
        ]
    assert ("mpsRoot" in config(sharing)["flags"]) == (sharing == "mps")


def test_devices_are_found_by_the_driver_s_library_and_handed_out_by_cdi():
    flags = config("time-slicing")["flags"]
    assert (flags["deviceDiscoveryStrategy"], flags["failOnInitError"]) == ("nvml", True)
    assert flags["plugin"]["deviceListStrategy"] == "cdi-cri"
    assert flags["plugin"]["nvidiaCTKPath"] == "/usr/bin/nvidia-cdi-hook"
    mounts = {one["name"]: one for one in pod("time-slicing")["containers"][0]["volumeMounts"]}
    assert mounts["driver-root"]["mountPath"] == flags["plugin"]["containerDriverRoot"]
    assert mounts["driver-root"]["readOnly"] is True


@pytest.mark.parametrize(("sharing", "mig"), MATRIX)
def test_pods_run_on_labelled_nodes_under_the_handler_without_more_rights_and_those_of_mps_in_its_mode_alone(
    sharing, mig
):
    daemons = {name: item for name, item in by_name(sharing, mig).items() if name.startswith("DaemonSet/")}
    assert set(daemons) == {"DaemonSet/device-plugin", *(["DaemonSet/mps-control-daemon"] if sharing == "mps" else [])}
    for item in daemons.values():
        spec = item["spec"]["template"]["spec"]
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert spec["automountServiceAccountToken"] is False
    spec = pod(sharing, mig)
    assert ("await-mps" in str(spec)) == (sharing == "mps")
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        wanted = ["SYS_ADMIN"] if mig != "none" and container["name"] == "device-plugin" else []
        assert container["securityContext"]["capabilities"].get("add", []) == wanted


@pytest.mark.parametrize("sharing", ["exclusive", "time-slicing", "mps"])
def test_another_configuration_is_another_pod(sharing):
    found = by_name(sharing)
    for item in found.values():
        if item["kind"] == "DaemonSet":
            annotations = item["spec"]["template"]["metadata"]["annotations"]
            assert annotations["gpu-sharing-harness/config"] == found["ConfigMap/device-plugin"]["data"]["config.yaml"]


def test_gpus_divided_anew_are_another_pod_of_the_plugin():
    wanted = {"controlplane": ["3g.71gb", "4g.71gb"]}
    plugin = documents("device-plugin.yaml.j2", "exclusive", "mixed", wanted)[-1]
    annotations = plugin["spec"]["template"]["metadata"]["annotations"]
    assert json.loads(annotations["gpu-sharing-harness/divisions"]) == wanted
    schemas.validate(plugin, max(MINORS))


def test_nodes_are_labelled_by_what_they_have():
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in documents("gpu/node-labels.yaml.j2", "mps")}
    both = {"nvidia.com/gpu.present": "true", "nvidia.com/mps.capable": "true"}
    told = {**both, "nvidia.com/gpu.product": "NVIDIA-H200"}
    assert labels == {"controlplane": told, "second.example": both, "third": {}}
    assert "mps" not in str(documents("gpu/node-labels.yaml.j2"))


def test_one_kernel_proves_each_resource_of_each_node():
    jobs = documents("cuda-smoke.yaml.j2")
    found = {}
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        (limits,) = [one["resources"]["limits"] for one in spec["containers"]]
        found[job["metadata"]["name"]] = (spec["nodeSelector"]["kubernetes.io/hostname"], limits)
    assert found == {
        "cuda-smoke-controlplane-1-0123abcd": ("controlplane", {"memory": "2Gi", "nvidia.com/gpu": 1}),
        "cuda-smoke-second-example-1-0123abcd": ("second.example", {"memory": "2Gi", "nvidia.com/mig-1g.5gb": 1}),
    }


def said(node, sharing="time-slicing", replicas=10, **advertised):
    count = {f"nvidia.com/{name}": number for name, number in advertised.items()}
    features = {"nvidia.com/gpu.count": "1"} if count else {}
    way = {"config": f"{sharing}-{replicas}", "sharing": sharing, "replicas": replicas, "mig_strategy": "none"}
    resources = dict.fromkeys(count, 1)
    return {
        "ansible_facts": {
            "gpu": {"node": node, "advertised": count, "features": features, "resources": resources, **way}
        }
    }


ABOUT = ("found", "nodes", "gpu_nodes", "resources", "smoke_id", "features")
ABOUT += ("with_gpu", "groups", "own_way", "ways", "sets", "looked", "old_sets")


def about_nodes(*discovered, **hosts):
    values = {
        name: value
        for name, value in tree.load(tree.ROOT / "roles/device_plugin/vars/main.yml").items()
        if name in {f"__device_plugin_{part}" for part in ABOUT}
    }
    options = {name: value for name, value in tree.variables().items() if name.startswith("device_plugin_")}
    discovery = {"__device_plugin_discovered": list(discovered)}
    sets = ("device-plugin", "mps-control-daemon", "device-plugin-mps-8", "own")
    there = [f"DaemonSet|gpu-system/{name}|||" for name in sets]
    given = {
        "__device_plugin_there": there,
        "__device_plugin_kept": ["device-plugin", "device-plugin-mps-4", "mps-control-daemon-mps-4"],
    }
    groups = {"all": list(hosts), "control_plane": list(hosts)[:1], "workers": list(hosts)[1:]}
    found = tree.template(values, {**options, **discovery, **given, "hostvars": hosts, "groups": groups})
    return {name.removeprefix("__device_plugin_"): value for name, value in found.items()}


def test_nodes_that_share_otherwise_have_daemons_and_a_configuration_of_their_own():
    found = about_nodes(a=said("a", gpu=10), b=said("b", "mps", 4, gpu=4), c=said("c", "mps", 4, gpu=8), d=said("d"))
    assert found["sets"] == ["device-plugin", "device-plugin-mps-4", "mps-control-daemon-mps-4"]
    assert sorted(found["old_sets"]) == ["device-plugin-mps-8", "mps-control-daemon"]
    ways = {"gpu_groups": found["groups"], "gpu_ways": found["ways"], "gpu_default_group": found["own_way"]}
    options = {"device_plugin_sharing": "time-slicing", "gpu_divisions": {}, **ways}
    rendered = list(yaml.safe_load_all(render(TEMPLATE_FILES["device-plugin.yaml.j2"], **options)))
    objects = {f"{one['kind']}/{one['metadata']['name']}": one for one in rendered}
    assert {name for name in objects if name.startswith("DaemonSet/")} == {
        f"DaemonSet/{name}" for name in found["sets"]
    }
    for suffix, way, replicas in (("", "timeSlicing", 10), ("-mps-4", "mps", 4)):
        said_to = yaml.safe_load(objects[f"ConfigMap/device-plugin{suffix}"]["data"]["config.yaml"])["sharing"]
        assert said_to[way]["resources"] == [{"name": "nvidia.com/gpu", "replicas": replicas}]
        pod_of = objects[f"DaemonSet/device-plugin{suffix}"]["spec"]["template"]["spec"]
        mounted = next(one["configMap"]["name"] for one in pod_of["volumes"] if one["name"] == "config")
        assert (mounted, "affinity" in pod_of) == (f"device-plugin{suffix}", not suffix)
        assert pod_of["nodeSelector"].get("nvidia.com/device-plugin.config") == (suffix[1:] or None)
    selectors = [
        one["spec"]["selector"]["matchLabels"] for name, one in objects.items() if name.startswith("DaemonSet/")
    ]
    assert len({tuple(one.items()) for one in selectors}) == len(selectors)
    for item in rendered:
        schemas.validate(item, max(MINORS))
    told = {"gpu_nodes": found["nodes"], "gpu_features": {}, **options}
    labels = {
        one["metadata"]["name"]: one["metadata"]["labels"]
        for one in yaml.safe_load_all(render(TEMPLATE_FILES["gpu/node-labels.yaml.j2"], **told))
        if one
    }
    present, mps = (
        {"nvidia.com/gpu.present": "true"},
        {"nvidia.com/mps.capable": "true", "nvidia.com/device-plugin.config": "mps-4"},
    )
    assert labels == {"a": present, "b": present | mps, "c": present | mps, "d": {}}


def test_nothing_of_another_way_is_removed_while_a_machine_was_not_looked_at():
    assert about_nodes(a=said("a", gpu=10), b={})["old_sets"] == []


def test_a_machine_without_a_gpu_asks_for_nothing_and_for_no_new_proof():
    alone, both = about_nodes(a=said("a", gpu=10)), about_nodes(a=said("a", gpu=10), b=said("b"))
    assert both["nodes"] == {"a": {"nvidia.com/gpu": 10}, "b": {}}
    assert both["gpu_nodes"] == alone["gpu_nodes"] == {"a": {"nvidia.com/gpu": 10}}
    assert both["resources"] == ["nvidia.com/gpu"]
    assert both["smoke_id"] == alone["smoke_id"] != about_nodes(a=said("a", gpu=20))["smoke_id"]


def test_a_machine_that_was_not_looked_at_is_left_out():
    found = about_nodes(a=said("a", gpu=10), b={"ansible_facts": {}}, c={})
    assert found["nodes"] == {"a": {"nvidia.com/gpu": 10}}


def test_without_any_gpu_there_is_nothing_to_advertise():
    assert about_nodes(a=said("a"), b=said("b"))["resources"] == []


def test_where_feature_discovery_runs_the_labels_are_none_of_ours():
    found = about_nodes("a", a=said("a", gpu=10), b=said("b", gpu=10))
    assert found["features"] == {"b": {"nvidia.com/gpu.count": "1"}}


# What the modules that speak to the cluster are asked for, a line each; the check of the guard finds a difference.
RECORDER = """\
import json, os
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    _requires_connection = False
    def run(self, tmp=None, task_vars=None):
        arguments = {name: self._templar.template(value) for name, value in self._task.args.items()}
        if not self._task.check_mode:
            with open(os.environ["ASKED"], "a") as file:
                file.write(json.dumps([self._task.action, arguments]) + chr(10))
        return {"changed": True}
"""
LOOKED = """\
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    _requires_connection = False
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, "ansible_facts": {"gpu": self._templar.template(task_vars["seen"])}}
"""
ROLE = """\
- hosts: all
  gather_facts: false
  tasks: [{name: Look, gpu_devices: {}}]
- hosts: control_plane
  gather_facts: false
  roles: [device_plugin]
"""
SAID = "Node|/one||\\nNode|/two|| 1700000000|\\nDaemonSet|gpu-system/device-plugin|||\\nDaemonSet|gpu-system/mps-control-daemon|||\\n"


def shared(tmp_path, said_of_the_cluster):
    """The role on two machines that share in two ways, after what kubectl said of the cluster."""
    for name in ("action", "bin"):
        (tmp_path / name).mkdir()
    for name, text in (("kube_objects", RECORDER), ("gpu_devices", LOOKED)):
        (tmp_path / f"action/{name}.py").write_text(text)
    kubectl = f'#!/bin/sh\necho "$*" >> {tmp_path}/kubectl\ncase "$*" in *"get nodes,daemonsets,pods"*) printf "{said_of_the_cluster}";; esac\n'
    tree.programs(tmp_path / "bin", ["kubectl"], kubectl)
    (tmp_path / "group_vars").symlink_to(tree.ROOT / "inventory/group_vars")
    facts = {
        name: said(name, *way, gpu=4)["ansible_facts"]["gpu"] | {"profiles": []}
        for name, way in (("one", ()), ("two", ("mps", 4)))
    }
    hosts = {
        group: {"hosts": {name: {"seen": facts[name]}}}
        for group, name in (("control_plane", "one"), ("workers", "two"))
    }
    settings = {"ANSIBLE_ACTION_PLUGINS": str(tmp_path / "action"), "ASKED": str(tmp_path / "asked")}
    settings["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return tree.play(
        tmp_path,
        ROLE,
        {"all": {"children": hosts}},
        {"device_plugin_smoke": False, "runtime_class_name": "nvidia"},
        **settings,
    )


def test_the_role_gives_each_node_its_own_way_and_removes_the_daemons_of_others(tmp_path):
    done = shared(tmp_path, SAID)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    applied = [
        one
        for name, given in asked
        if name == "kube_objects"
        for one in yaml.safe_load_all(given.get("manifest", ""))
        if one
    ]
    names = {one["metadata"]["name"] for one in applied if one["kind"] == "DaemonSet"}
    assert names == {"device-plugin", "device-plugin-mps-4", "mps-control-daemon-mps-4"}
    (waited,) = [given for name, given in asked if given.get("workloads")]
    assert set(waited["workloads"]) == {f"gpu-system/DaemonSet/{name}" for name in names}
    deleted = [line.split() for line in (tmp_path / "kubectl").read_text().splitlines() if " delete " in line]
    assert [[word for word in line if "mps" in word or "plugin" in word] for line in deleted] == [
        ["mps-control-daemon"]
    ]


def test_a_node_that_is_not_there_is_named_and_nothing_is_labelled(tmp_path):
    done = shared(tmp_path, SAID.replace("Node|/two|| 1700000000|", "Node|/other|||"))
    assert done.returncode != 0
    assert "The cluster has no node two. Join the machine (site.yml)" in done.stdout
    assert not (tmp_path / "asked").exists(), "the question of the guard alone, which changes nothing"


LET_GO = """\
- hosts: all
  gather_facts: false
  tasks: [{name: Run, ansible.builtin.include_role: {name: device_plugin, tasks_from: let_go.yml}}]
"""
# Two pods of the node are there at the first question; those of others, and of another node, stay.
LEAVING = """\
#!/bin/sh
printf '%s\\n' "$*" >> {folder}/kubectl
case "$*" in *" get pods "*) ;; *) exit 0 ;; esac
printf 'two gpu-system/device-plugin-x1\\none monitoring/grafana-0\\n'
[ -e {folder}/gone ] || printf 'one gpu-system/device-plugin-a1\\none monitoring/dcgm-exporter-b2\\n'
touch {folder}/gone
"""


def test_the_plugin_and_dcgm_leave_a_node_whose_gpus_are_to_be_divided(tmp_path):
    (tmp_path / "bin").mkdir()
    tree.programs(tmp_path / "bin", ["kubectl"], LEAVING.format(folder=tmp_path))
    hosts = {"all": {"children": {"control_plane": {"hosts": {"one": {}}}}}}
    given = {"control_plane_node_name": "one"}
    done = tree.play(tmp_path, LET_GO, hosts, given, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [line.split()[2:5] for line in (tmp_path / "kubectl").read_text().splitlines()]
    assert asked == [["label", "node", "one"], *[["get", "pods", "--all-namespaces"]] * 2]
