"""A control plane that is there: its certificates are renewed in time, and variables that it was not made with are refused."""

import json
import re

import pytest
import tree
import yaml
from tree import ROOT

pytestmark = pytest.mark.long

VARS = tree.load(ROOT / "roles/control_plane/vars/main.yml")
PROGRAM = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/calls
case "$*" in
  "control-plane 90") test ! -e {folder}/due || echo "renewing: apiserver" ;;
  # kubeadm keeps a kubeconfig that is there; the kubelet that is started with a new one keeps its certificate.
  "init phase kubeconfig kubelet"*) test -e {folder}/kubelet.conf || echo new > {folder}/kubelet.conf ;;
  "show "*) printf '%s\n' LoadState=loaded ActiveState=active UnitFileState=enabled NeedDaemonReload=no Type=simple ;;
  "restart kubelet.service") grep -q new {folder}/kubelet.conf && rm -f {folder}/ended ;;
  "x509 "*) test ! -e {folder}/ended ;;
esac
"""
RENEWED = "node-certificates control-plane 90"
LOOKED = "openssl x509 -noout -checkend 0"
KUBELET = [
    "kubeadm init phase kubeconfig kubelet",
    "systemctl restart kubelet.service",
    LOOKED,
    "kubeadm init phase kubelet-finalize enable-client-cert-rotation",
]
# A control plane: what of its certificates or of the kubelet is there, what is called, and how many tasks change something.
RENEWALS = {
    # A kubelet that keeps no certificate there is none whose certificate has ended.
    "without": ([], [RENEWED], 0),
    "valid": (["own"], [RENEWED], 0),
    "ending": (["own", "due"], [RENEWED], 1),
    "ended": (["own", "due", "ended"], [RENEWED, *KUBELET], 7),
    # The kubelet has its certificate, by a run that was killed before its kubeconfig named the place.
    "kubelet-interrupted": (["own", "change"], [RENEWED, *KUBELET], 6),
}


@pytest.fixture(scope="module")
def renewals(tmp_path_factory):
    """Every control plane is a host of one run; each has a folder of its own."""
    folder = tmp_path_factory.mktemp("renewals")
    hosts = {}
    for name, (there, _, _) in RENEWALS.items():
        own = tree.machine(folder, name, ("node-certificates", "kubeadm", "openssl", "systemctl"), PROGRAM)
        (own / "kubelet.conf").write_text("old\n")
        for one in there:
            (own / one).touch()
        paths = {str(own / one): {"exists": one in there} for one in ("change", "own")}
        probe = {"paths": paths, "ended": {str(own / "own"): "ended" in there}}
        hosts[name] = {"folder": str(own), "__control_plane_state": {"probe": probe}}
    own_paths = {"own_change": "change", "own_kubeconfig": "kubelet.conf", "own_certificate": "own"}
    own_paths["certificates_program"] = "node-certificates"
    places = {f"__control_plane_{name}": f"{{{{ folder }}}}/{place}" for name, place in own_paths.items()}
    given = {"__control_plane_done": True, "__control_plane_configuration": "its own\n", **places}
    done = tree.play(folder, tree.tasks_of("control_plane", "certificates.yml"), hosts, given)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", RENEWALS)
def test_certificates_are_renewed_and_a_kubelet_whose_own_has_ended_gets_another(renewals, name):
    (folder, said), (_, calls, changed) = renewals, RENEWALS[name]
    asked = [line for line in tree.calls(folder, name) if "systemctl show" not in line]
    assert [line[: len(start)] for line, start in zip(asked, calls, strict=True)] == calls
    assert not any((folder / name / "etc" / one).exists() for one in ("change", "ended"))
    assert re.search(rf"^{name} .* changed={changed} ", said, re.MULTILINE), said


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
    tree.load_plugins()
    asked = {"objects", "maps", "cluster", "proxy", "found", "wanted", "differences"}
    names = [name for name in VARS if name.removeprefix("__control_plane_") in asked]
    given = {name: value for name, value in tree.variables().items() if name.startswith("control_plane_")} | variables
    given["__control_plane_live"] = {"stdout": json.dumps({"kind": "List", "items": items})}
    found = tree.template({name: VARS[name] for name in names}, given)["__control_plane_differences"]
    assert {one["key"] for one in found} == different


CONFIGURATION = tree.render(tree.TEMPLATE_FILES["kubeadm-init.yaml.j2"], api_server_settings="0a")
TARGET = list(yaml.safe_load_all(CONFIGURATION))[1]
PARTS = {"kube-apiserver": "apiServer", "kube-controller-manager": "controllerManager", "kube-scheduler": "scheduler"}
RECONCILED = [
    "objects",
    "maps",
    "cluster",
    "documents",
    "target",
    "parts",
    "given",
    "answer",
    "running",
    "named",
    "commands",
    "merged",
    "unset",
    "unkept",
    "reconciled",
]
OWN = {"name": "event-ttl", "value": "2h"}


def running(cluster):
    """The pods that kubeadm's manifests make of a configuration."""
    for name, part in PARTS.items():
        settings = cluster.get(part) or {}
        command = [name, "--a=b", *(f"--{one['name']}={one['value']}" for one in settings.get("extraArgs", ()))]
        container = {"name": name, "command": command, "env": settings.get("extraEnvs", [])}
        yield {"kind": "Pod", "metadata": {"name": f"{name}-controlplane"}, "spec": {"containers": [container]}}


def kept(cluster):
    """The object in which the cluster keeps how it was made."""
    data = {"ClusterConfiguration": yaml.safe_dump(cluster)}
    return {"kind": "ConfigMap", "metadata": {"name": "kubeadm-config"}, "data": data}


def reconciled(cluster, pods):
    """What of the control plane is not as it is to be: flags of what runs, parts of what is kept; and what it is to be."""
    said = json.dumps({"kind": "List", "items": [kept(cluster), *pods]})
    given = {"__control_plane_live": {"stdout": said}, "__control_plane_configuration": CONFIGURATION}
    given["control_plane_api_names"] = ["gpu.example"]
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
    assert cluster["apiServer"]["certSANs"] == ["gpu.example"]
    assert cluster["controllerManager"] == TARGET["controllerManager"]
    again = reconciled(cluster, running(cluster))
    assert again[:2] == [[], []]


def test_a_manifest_that_somebody_changed_is_seen_though_the_cluster_keeps_it_right():
    changed = {**TARGET, "scheduler": {}}
    unset, unkept, _ = reconciled(TARGET, running(changed))
    assert (unset, unkept) == (["--leader-elect=false", "--profiling=false"], [])


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
    hosts = {}
    for name, cluster in (("taken", TARGET), ("refused", old)):
        own = tree.machine(folder, name, ("kubeadm", "kubectl"), CHANGER)
        (own / "pods").write_text(json.dumps({"items": list(running(cluster))}))
        hosts[name] = {"folder": str(own)}
    given = {
        "__control_plane_live": {"stdout": json.dumps({"items": [kept(old), *running(old)]})},
        "__control_plane_configuration": CONFIGURATION,
        "__control_plane_change": "{{ folder }}/kubeadm.yaml",
        "control_plane_timeout_s": 3,
    }
    done = tree.play(folder, tree.tasks_of("control_plane", "reconcile.yml"), hosts, given)
    return folder, done.stdout


def test_settings_are_kept_for_upgrades_once_they_run(changes):
    folder, said = changes
    calls = [line.split(" --")[0] for line in tree.calls(folder, "taken")]
    assert calls[0] == "kubeadm init phase control-plane all", said
    assert [call for call in calls if call.startswith("kubeadm")][-1] == "kubeadm init phase upload-config kubeadm"
    annotated = [line for line in tree.calls(folder, "taken") if "annotate secrets" in line]
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


RENAMER = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/calls
case "$*" in
  *"certs apiserver"*) cp {folder}/kubeadm.yaml {folder}/made-by; test ! -e {folder}/apiserver.crt && echo new > {folder}/apiserver.crt
                       echo new > {folder}/apiserver.key ;;
  "ps --quiet"*) echo 33 ;;
  *"--tls-server-name {refused}"*) echo "not valid for it" >&2; exit 1 ;;
esac
"""


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    """Two control planes of one run: one takes another name, the other's API server does not answer under it."""
    folder = tmp_path_factory.mktemp("renamed")
    old = {
        **TARGET,
        "imageRepository": "mirror.example",
        "apiServer": {"certSANs": ["old.example"], "extraArgs": [OWN]},
    }
    hosts = {}
    for name, refused in (("taken", "no-name"), ("refused", "gpu.example")):
        own = tree.machine(folder, name, ("kubeadm", "kubectl", "crictl"), RENAMER, refused=refused)
        for part in ("crt", "key"):
            (own / f"apiserver.{part}").write_text(f"old {part}\n")
        hosts[name] = {"folder": str(own)}
    given = {
        "__control_plane_live": {"stdout": json.dumps({"items": [kept(old)]})},
        "__control_plane_configuration": CONFIGURATION,
        "__control_plane_change": "{{ folder }}/kubeadm.yaml",
        "__control_plane_serving_pair": "{{ folder }}/apiserver",
        "__control_plane_names_before": "{{ folder }}/before",
        "control_plane_api_names": ["gpu.example"],
        "control_plane_timeout_s": 3,
    }
    done = tree.play(folder, tree.tasks_of("control_plane", "names.yml"), hosts, given)
    return folder, done.stdout


def test_the_api_server_gets_another_name(renamed):
    folder, said = renamed
    own = folder / "taken/etc"
    calls = [line.split(" --config")[0] for line in tree.calls(folder, "taken")]
    assert calls[0] == "kubeadm init phase certs apiserver", said
    assert calls[1:3] == ["crictl ps --quiet --name ^kube-apiserver$", "crictl stop --timeout 30 33"]
    assert [call.rpartition("--tls-server-name ")[2] for call in calls[3:-1]] == [
        "kubernetes get --raw /readyz",
        "gpu.example get --raw /readyz",
    ]
    assert calls[-1] == "kubeadm init phase upload-config kubeadm"
    init, cluster = yaml.safe_load_all((own / "made-by").read_text())
    assert (init["kind"], cluster["imageRepository"]) == ("InitConfiguration", "mirror.example")
    assert cluster["apiServer"] == {"certSANs": ["gpu.example"], "extraArgs": [OWN]}
    assert (own / "apiserver.crt").read_text() == "new\n"
    assert not any((own / name).exists() for name in ("kubeadm.yaml", "before"))


def test_a_name_that_is_not_taken_leaves_the_certificate_of_before(renamed):
    folder, said = renamed
    own = folder / "refused/etc"
    calls = (own / "calls").read_text()
    assert "upload-config" not in calls
    assert calls.count("crictl stop --timeout 30 33") == 2
    assert [(own / f"apiserver.{part}").read_text() for part in ("crt", "key")] == ["old crt\n", "old key\n"]
    assert (own / "apiserver.key").stat().st_mode & 0o777 == 0o600
    assert "previous certificate again" in said
    assert "not valid for it" in said
    assert not any((own / name).exists() for name in ("kubeadm.yaml", "before"))


@pytest.mark.parametrize(
    ("has", "wanted", "differs"),
    [
        ({}, [], False),
        ({"certSANs": ["b", "a"]}, ["a", "b"], False),
        ({}, ["gpu.example"], True),
        ({"certSANs": ["gpu.example"]}, [], True),
        (None, ["gpu.example"], True),
    ],
    ids=["none", "sorted", "another", "gone", "nothing-kept"],
)
def test_other_names_are_seen(has, wanted, differs):
    names = [f"__control_plane_{name}" for name in ("objects", "maps", "cluster", "names")]
    given = {"__control_plane_live": {"stdout": json.dumps({"items": live(apiServer=has)})}}
    found = tree.template({name: VARS[name] for name in names}, given)["__control_plane_names"]
    assert (sorted(found) != sorted(wanted)) == differs


@pytest.mark.parametrize("wanted", [[], ["gpu.example"]], ids=["gone", "another"])
def test_the_cluster_keeps_the_names_that_it_is_to_have_and_nothing_where_there_are_none(wanted):
    names = [f"__control_plane_{name}" for name in ("objects", "maps", "cluster", "named")]
    items = live(apiServer={"certSANs": ["old.example"], "extraArgs": [OWN]})
    given = {"__control_plane_live": {"stdout": json.dumps({"items": items})}, "control_plane_api_names": wanted}
    found = tree.template({name: VARS[name] for name in names}, given)["__control_plane_named"]
    assert found["apiServer"] == {"extraArgs": [OWN]} | ({"certSANs": wanted} if wanted else {})
    assert found["networking"]["dnsDomain"] == "cluster.local"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Two machines of one run: on one an earlier run was killed while kubeadm was at work."""
    folder = tmp_path_factory.mktemp("begun")
    hosts = {}
    for name in ("fresh", "killed"):
        own = tree.machine(
            folder, name, ("kubeadm", "pkill"), '#!/bin/sh\necho "$(basename $0) $*" >> {folder}/calls\n'
        )
        paths = {"paths": {str(own / "mark"): {"exists": name == "killed"}}}
        hosts[name] = {"folder": str(own), "__control_plane_state": {"probe": paths}}
    given = {
        "__control_plane_configuration": "its own\n",
        "__control_plane_config": "{{ folder }}/kubeadm.yaml",
        "__control_plane_unfinished": "{{ folder }}/mark",
    }
    for more in (["--check"], []):
        done = tree.play(folder, tree.tasks_of("control_plane", "init.yml"), hosts, given, *more)
        assert done.returncode == 0, done.stdout + done.stderr
    return {name: [line.split(" --")[0] for line in tree.calls(folder, name)] for name in hosts}


def test_a_kubeadm_that_a_killed_run_left_at_work_ends_before_its_work_is_undone(begun):
    assert begun["killed"] == ["pkill", "kubeadm reset", "kubeadm config validate", "kubeadm init"]
    assert begun["fresh"] == ["kubeadm config validate", "kubeadm init"]


@pytest.mark.parametrize(
    ("ignored", "told"),
    [([], []), (["NumCPU", "SystemVerification"], ["--ignore-preflight-errors=NumCPU,SystemVerification"])],
)
@pytest.mark.parametrize("role", ["control_plane", "worker"])
def test_kubeadm_passes_over_the_same_checks_in_an_upgrade_as_in_the_beginning(role, ignored, told):
    # It checks the machine again (SystemVerification), and keeps nowhere what it was to pass over.
    words = {
        "control_plane": ["kubeadm", "upgrade", "apply", "v1.36.4", "--yes", "--config", "/dev/stdin"],
        "worker": ["kubeadm", "upgrade", "node"],
    }
    [task] = [
        task
        for task in tree.tasks(tree.load(ROOT / f"roles/{role}/tasks/upgrade.yml"))
        if task["name"] in {"Upgrade the control plane", "Upgrade the node's configuration"}
    ]
    given = {f"{role}_kubeadm_ignore_preflight_errors": ignored, "control_plane_version": "1.36.4"}
    name = f"__{role}_upgrade"
    values = {
        name: tree.load(ROOT / f"roles/{role}/vars/main.yml")[name],
        "argv": task["ansible.builtin.command"]["argv"],
    }
    assert tree.template(values, given)["argv"] == [*words[role], *told]


@pytest.mark.parametrize(("timeout_s", "manifests"), [(240, "300s"), (600, "600s")])
def test_kubeadm_waits_as_long_in_an_upgrade_as_in_the_beginning(timeout_s, manifests):
    # It writes the manifests anew, and into them how long their containers may take to start.
    text = tree.render(
        tree.TEMPLATE_FILES["kubeadm-init.yaml.j2"], api_server_settings="0a", control_plane_timeout_s=timeout_s
    )
    init = list(yaml.safe_load_all(text))
    name = "__control_plane_upgrade_configuration"
    given = {"control_plane_timeout_s": timeout_s, "__control_plane_documents": init}
    configuration = tree.template({name: tree.load(ROOT / "roles/control_plane/vars/main.yml")[name]}, given)[name]
    assert configuration == {
        "apiVersion": init[0]["apiVersion"],
        "kind": "UpgradeConfiguration",
        "timeouts": init[0]["timeouts"] | {"upgradeManifests": manifests},
    }
    assert set(init[0]["timeouts"].values()) == {f"{timeout_s}s"}
    [task] = [
        task
        for task in tree.tasks(tree.load(ROOT / "roles/control_plane/tasks/upgrade.yml"))
        if task["name"] == "Upgrade the control plane"
    ]
    assert name in task["ansible.builtin.command"]["stdin"]
