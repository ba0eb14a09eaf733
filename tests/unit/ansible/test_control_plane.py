"""A control plane that is there: its certificates are renewed in time, and variables that it was not made with are refused."""

import json
import os
import subprocess
import sys

import pytest
import tree
import yaml
from tree import ROOT

VARS = tree.load(ROOT / "roles/control_plane/vars/main.yml")
DAY_S = 86400
PROGRAM = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/calls
case "$*" in
  "certs check-expiration"*) cat {folder}/expiry ;;
  "ps --quiet"*) echo 11; echo 22 ;;
esac
"""
PLAY = """\
- hosts: all
  gather_facts: false
  environment: {PATH: "{{ folder }}:{{ lookup('ansible.builtin.env', 'PATH') }}"}
  tasks:
    - {name: Certificates, ansible.builtin.include_role: {name: control_plane, tasks_from: certificates.yml}}
"""
ASKED, RENEWED = (
    "kubeadm certs check-expiration",
    ["kubeadm certs renew all", "crictl ps", "crictl stop --timeout 30 11 22"],
)
# A control plane: the days that its certificates are valid, whether a renewal was killed, and what is called.
RENEWALS = {
    "valid": (200, False, [ASKED]),
    "ending": (10, False, [ASKED, *RENEWED]),
    # Renewed by a run that was killed before the containers were told.
    "interrupted": (364, True, [ASKED, *RENEWED]),
}


def expiry(*days, missing=()):
    """The answer of kubeadm: a certificate for each number of days, and what it lacks."""
    whole = {"externallyManaged": False}
    found = [{"name": f"c{day}", "residualTime": day * DAY_S, "missing": False, **whole} for day in days]
    found += [{"name": name, "residualTime": 0, "missing": True, **whole} for name in missing]
    return json.dumps({"certificates": found, "certificateAuthorities": [{"name": "ca", "residualTime": 1}]})


@pytest.mark.parametrize(
    ("said", "due"),
    [
        (expiry(364, 91), []),
        (expiry(364, 89, -3), ["c89", "c-3"]),
        (expiry(364, missing=["super-admin.conf"]), []),
        ("[check-expiration] Error reading configuration from the Cluster.\n\n" + expiry(5), ["c5"]),
        ("", []),
    ],
    ids=["valid", "ending", "missing", "cluster-down", "check-mode"],
)
def test_what_ends_within_ninety_days_is_due(said, due):
    given = {"__control_plane_certificates": {"stdout": said}, "control_plane_certificates_days_min": "90"}
    names = ["__control_plane_certificates_due"]
    assert tree.template({name: VARS[name] for name in names}, given) == {names[0]: due}


@pytest.fixture(scope="module")
def renewals(tmp_path_factory):
    """Every control plane is a host of one run; each has a folder of its own."""
    folder = tmp_path_factory.mktemp("renewals")
    hosts = {}
    for name, (days, interrupted, _) in RENEWALS.items():
        own = folder / name / "etc"  # what is being written lies a folder above
        own.mkdir(parents=True)
        (own / "expiry").write_text(expiry(days))
        for program in ("kubeadm", "crictl"):
            (own / program).write_text(PROGRAM.format(folder=own))
            (own / program).chmod(0o755)
        if interrupted:
            (own / "mark").touch()
        paths = {"paths": {str(own / "mark"): {"exists": interrupted}}}
        hosts[name] = {"folder": str(own), "ansible_connection": "local", "__control_plane_state": {"probe": paths}}
    (folder / "play.yml").write_text(PLAY)
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_LIBRARY": str(ROOT / "plugins/modules"),
        "ANSIBLE_MODULE_UTILS": str(ROOT / "plugins/module_utils"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_HOME": str(folder / "home"),
    }
    given = json.dumps({"__control_plane_done": True, "__control_plane_renewing": "{{ folder }}/mark"})
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(folder / "hosts.json"), "-e", given]
    done = subprocess.run(
        [*command, str(folder / "play.yml")], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", RENEWALS)
def test_the_running_containers_get_renewed_certificates(renewals, name):
    _, _, calls = RENEWALS[name]
    said = (renewals / name / "etc/calls").read_text().splitlines()
    assert [line[: len(start)] for line, start in zip(said, calls, strict=True)] == calls
    assert not (renewals / name / "etc/mark").exists()


def live(*, mode="iptables", node="controlplane", **changes):
    """What the cluster keeps of how it was made."""
    cluster = {
        "networking": {"podSubnet": "10.244.0.0/16", "serviceSubnet": "10.96.0.0/12", "dnsDomain": "cluster.local"},
        "controllerManager": {"extraArgs": [{"name": "terminated-pod-gc-threshold", "value": "100"}]},
        **changes,
    }
    maps = {"kubeadm-config": {"ClusterConfiguration": yaml.safe_dump(cluster)}}
    if mode is not None:
        maps["kube-proxy"] = {"config.conf": yaml.safe_dump({"mode": mode})}
    items = [{"kind": "ConfigMap", "metadata": {"name": name}, "data": data} for name, data in maps.items()]
    return [*items, *([{"kind": "Node", "metadata": {"name": node}}] if node else [])]


@pytest.mark.parametrize(
    ("items", "variables", "different"),
    [
        (live(), {}, set()),
        (live(mode=""), {}, set()),
        (live(mode=None), {"control_plane_proxy_mode": "ipvs"}, set()),
        (live(apiServer={"certSANs": ["b", "a"]}), {"control_plane_api_names": ["a", "b"]}, set()),
        (live(), {"control_plane_api_names": ["gpu.example"]}, {"control_plane_api_names"}),
        (live(), {"control_plane_proxy_mode": "nftables"}, {"control_plane_proxy_mode"}),
        (live(controlPlaneEndpoint="gpu.example:6443"), {"control_plane_endpoint": "gpu.example"}, set()),
        (live(controlPlaneEndpoint="gpu.example:443"), {"control_plane_endpoint": "gpu.example:443"}, set()),
        (live(), {"control_plane_endpoint": "gpu.example"}, {"control_plane_endpoint"}),
        (live(controlPlaneEndpoint="gpu.example:6443"), {}, {"control_plane_endpoint"}),
        (live(node=None), {}, {"control_plane_node_name"}),
        (
            live(networking={"podSubnet": "10.0.0.0/16", "serviceSubnet": "10.1.0.0/16", "dnsDomain": "gpu.local"}),
            {},
            {"control_plane_pod_cidr", "control_plane_service_cidr", "control_plane_dns_domain"},
        ),
    ],
    ids=[
        "same",
        "proxy-default",
        "no-proxy",
        "sorted",
        "names",
        "proxy",
        "endpoint",
        "endpoint-port",
        "endpoint-later",
        "endpoint-gone",
        "node",
        "networks",
    ],
)
def test_what_the_cluster_was_not_made_with_is_a_difference(items, variables, different):
    asked = {"objects", "maps", "cluster", "proxy", "found", "wanted", "differences"}
    names = [name for name in VARS if name.removeprefix("__control_plane_") in asked]
    given = {name: value for name, value in tree.variables().items() if name.startswith("control_plane_")} | variables
    given["__control_plane_live"] = {"stdout": json.dumps({"kind": "List", "items": items})}
    found = tree.template({name: VARS[name] for name in names}, given)["__control_plane_differences"]
    assert {one["key"] for one in found} == different


CONFIGURATION = tree.render(tree.TEMPLATES / "kubeadm-init.yaml.j2", api_server_settings="0a")
TARGET = list(yaml.safe_load_all(CONFIGURATION))[1]
PARTS = {"kube-apiserver": "apiServer", "kube-controller-manager": "controllerManager", "kube-scheduler": "scheduler"}
RECONCILED = (
    *(
        "objects",
        "maps",
        "cluster",
        "documents",
        "target",
        "api_args",
        "manager_args",
        "scheduler_args",
        "answer",
        "running",
    ),
    *("commands", "kept", "merged", "unset", "unkept", "reconciled"),
)
OWN = {"name": "event-ttl", "value": "2h"}


def running(cluster):
    """The pods that kubeadm's manifests make of a configuration."""
    for name, part in PARTS.items():
        settings = cluster.get(part) or {}
        command = [name, "--a=b", *(f"--{one['name']}={one['value']}" for one in settings.get("extraArgs", ()))]
        container = {"name": name, "command": command, "env": settings.get("extraEnvs", [])}
        yield {"kind": "Pod", "metadata": {"name": f"{name}-controlplane"}, "spec": {"containers": [container]}}


def reconciled(cluster, pods):
    """What of the control plane is not as it is to be: flags of what runs, parts of what is kept; and what it is to be."""
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config"},
        "data": {"ClusterConfiguration": yaml.safe_dump(cluster)},
    }
    said = json.dumps({"kind": "List", "items": [config, *pods]})
    given = {"__control_plane_live": {"stdout": said}, "__control_plane_configuration": CONFIGURATION}
    names = [f"__control_plane_{name}" for name in RECONCILED]
    found = tree.template({name: VARS[name] for name in names}, given)
    return [found[name] for name in names[-3:]]


def test_a_control_plane_that_runs_as_it_is_to_run_is_left_alone():
    unset, unkept, _ = reconciled(TARGET, running(TARGET))
    assert (unset, unkept) == ([], [])


def test_an_older_cluster_gets_every_setting_and_keeps_its_own():
    old = {**TARGET, "imageRepository": "mirror.example", "apiServer": {"extraArgs": [OWN]}, "scheduler": {}}
    old["controllerManager"] = {"extraArgs": [{"name": "terminated-pod-gc-threshold", "value": "50"}]}
    unset, unkept, text = reconciled(old, running(old))
    assert {"--profiling=false", "--terminated-pod-gc-threshold=100", "--audit-log-maxage=30"} < {
        str(one) for one in unset
    }
    assert {"name": "SETTINGS", "value": "0a"} in unset
    assert {"settings", "audit", "encryption-provider-config"} < {one["name"] for one in unkept}
    init, cluster = yaml.safe_load_all(text)
    assert (init["kind"], cluster["imageRepository"]) == ("InitConfiguration", "mirror.example")
    assert OWN in cluster["apiServer"]["extraArgs"]
    assert cluster["controllerManager"] == TARGET["controllerManager"]
    again = reconciled(cluster, running(cluster))
    assert again[:2] == [[], []]


def test_a_manifest_that_somebody_changed_is_seen_though_the_cluster_keeps_it_right():
    changed = {**TARGET, "scheduler": {}}
    unset, unkept, _ = reconciled(TARGET, running(changed))
    assert (unset, unkept) == (["--profiling=false"], [])


CHANGE = """\
- hosts: all
  gather_facts: false
  environment: {PATH: "{{ folder }}:{{ lookup('ansible.builtin.env', 'PATH') }}"}
  tasks:
    - {name: Change, ansible.builtin.include_role: {name: control_plane, tasks_from: reconcile.yml}}
"""
CHANGER = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/calls
case "$*" in
  *"get pod/"*) cat {folder}/pods ;;
  *"control-plane all"*) cp -p {folder}/kubeadm.yaml {folder}/written ;;
esac
"""


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    """Two control planes of one run: one takes its settings, the other's API server does not come up with them."""
    folder = tmp_path_factory.mktemp("changes")
    old = {**TARGET, "apiServer": {"extraArgs": [OWN]}}
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config"},
        "data": {"ClusterConfiguration": yaml.safe_dump(old)},
    }
    hosts = {}
    for name, cluster in (("taken", TARGET), ("refused", old)):
        own = folder / name / "etc"  # what is being written lies a folder above
        own.mkdir(parents=True)
        (own / "pods").write_text(json.dumps({"items": list(running(cluster))}))
        for program in ("kubeadm", "kubectl"):
            (own / program).write_text(CHANGER.format(folder=own))
            (own / program).chmod(0o755)
        hosts[name] = {"folder": str(own), "ansible_connection": "local"}
    (folder / "play.yml").write_text(CHANGE)
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    given = {
        "__control_plane_live": {"stdout": json.dumps({"items": [config, *running(old)]})},
        "__control_plane_configuration": CONFIGURATION,
        "__control_plane_change": "{{ folder }}/kubeadm.yaml",
        "control_plane_timeout_s": 3,
    }
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_LIBRARY": str(ROOT / "plugins/modules"),
        "ANSIBLE_MODULE_UTILS": str(ROOT / "plugins/module_utils"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(folder / "hosts.json"), "-e", json.dumps(given)]
    done = subprocess.run(
        [*command, str(folder / "play.yml")], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    return folder, done.stdout


def test_settings_are_kept_for_upgrades_once_they_run(changes):
    folder, said = changes
    calls = [line.split(" --")[0] for line in (folder / "taken/etc/calls").read_text().splitlines()]
    assert calls[0] == "kubeadm init phase control-plane all", said
    assert [call for call in calls if call.startswith("kubeadm")][-1] == "kubeadm init phase upload-config kubeadm"
    annotated = [line for line in (folder / "taken/etc/calls").read_text().splitlines() if "annotate secrets" in line]
    assert [line.rpartition(" ")[2] for line in annotated] == ["encrypted-at-rest=now", "encrypted-at-rest-"]
    assert (folder / "taken/etc/written").stat().st_mode & 0o777 == 0o600
    assert not (folder / "taken/etc/kubeadm.yaml").exists()


def test_settings_that_are_not_taken_are_put_back(changes):
    folder, said = changes
    calls = (folder / "refused/etc/calls").read_text()
    assert calls.count("kubeadm init phase control-plane all") == 2
    assert "upload-config" not in calls
    _, cluster = yaml.safe_load_all((folder / "refused/etc/written").read_text())
    assert cluster["apiServer"] == {"extraArgs": [OWN]}
    assert "has its previous ones again" in said
