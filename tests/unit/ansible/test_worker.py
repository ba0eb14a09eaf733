"""A worker that is there: a kubelet whose certificate has ended asks for another by a token, and the node stays."""

import json

import pytest
import tree
import yaml

PROGRAM = """\
#!/bin/sh
echo "$(basename $0) $*" >> {folder}/calls
asked="$(basename $0) $*"
case "$asked" in kubectl*|"kubeadm token"*)
  tried={folder}/tried-$(echo "$asked" | cksum | cut -d " " -f 1)
  if test -e {folder}/away && ! test -e $tried; then
    touch $tried; cat {folder}/away >&2; exit 1
  fi;;
esac
case "$*" in
  "token create"*) echo kubeadm join 192.0.2.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:00 ;;
  "join "*) test ! -e {folder}/refused || {{ echo 'couldn''t validate the identity of the API Server' >&2; exit 1; }} ;;
  "token delete"*) test ! -e {folder}/gone || {{ echo 'secrets "bootstrap-token-abcdef" not found' >&2; exit 1; }} ;;
  "show "*) printf '%s\n' LoadState=loaded ActiveState=active UnitFileState=enabled NeedDaemonReload=no Type=simple ;;
  "restart kubelet.service") cp {folder}/bootstrap {folder}/asked-by; rm -f {folder}/ended ;;
  "x509 "*) test ! -e {folder}/ended ;;
  *" get secrets "*) test ! -e {folder}/left || cat {folder}/left ;;
  *" get node "*) test ! -e {folder}/node || cat {folder}/node ;;
esac
"""
# What kubectl said when the API server restarted while a worker left; and of a pod that did not end in time.
AWAY = """\
error: unable to cordon node "gpu-node-2": Patch "https://192.0.2.1:6443/api/v1/nodes/gpu-node-2": unexpected EOF
There are pending nodes to be drained:
 gpu-node-2
Get "https://192.0.2.1:6443/api/v1/pods": dial tcp 192.0.2.1:6443: connect: connection refused
"""
TOO_LONG = """\
error: unable to drain node "gpu-node-2" due to error: context deadline exceeded, continuing command...
There are pending nodes to be drained:
 gpu-node-2
context deadline exceeded
"""
LOOKED = "openssl x509 -noout -checkend 0"
RENEWED = [
    "kubectl --kubeconfig /etc/kubernetes/admin.conf --namespace kube-system get secrets",
    "kubeadm token create",
    "systemctl restart kubelet.service",
    LOOKED,
    "kubeadm token delete abcdef",
]
# A worker: what is there, and what is called.
WORKERS = {
    "without": ([], []),
    "valid": (["certificate"], []),
    "ended": (["certificate", "ended"], RENEWED),
    # It has another, by a run that was killed before the token was taken back.
    "interrupted": (["certificate", "bootstrap"], RENEWED),
}
CLUSTER = {"server": "https://192.0.2.1:6443", "certificate-authority-data": "QQ=="}
OWN = {
    "clusters": [{"name": "default-cluster", "cluster": CLUSTER}],
    "users": [{"name": "default-auth", "user": {"client-certificate": "ended.pem"}}],
}


def play(folder, file, hosts, given, status=0):
    """One run of a play on hosts of its own, each its own control plane, with programs that write down their calls."""
    for name, host in hosts.items():
        own = tree.machine(folder, name, ("kubeadm", "kubectl", "openssl", "systemctl", "pkill"), PROGRAM)
        host |= {"folder": str(own), "__worker_control_plane": name}
    given = given | {"__worker_control_plane": "{{ inventory_hostname }}", "__worker_retry_s": 0}
    done = tree.play(folder, tree.tasks_of("worker", file), hosts, given)
    assert done.returncode == status, done.stdout + done.stderr
    return {name: tree.calls(folder, name) for name in hosts}


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Every worker is a host of one run, and its own control plane; each has a folder of its own."""
    folder = tmp_path_factory.mktemp("workers")
    hosts = {}
    for name, (there, _) in WORKERS.items():
        own = folder / name / "etc"
        own.mkdir(parents=True)
        (own / "joined").write_text(yaml.safe_dump(OWN))
        for one in there:
            (own / one).touch()
        paths = {str(own / one): {"exists": one in there} for one in ("certificate", "bootstrap")}
        state = {"probe": {"paths": paths, "ended": {str(own / "certificate"): "ended" in there}}}
        hosts[name] = {"__worker_state": state}
    places = {f"__worker_{name}": f"{{{{ folder }}}}/{name}" for name in ("joined", "certificate", "bootstrap")}
    play(folder, "renewal.yml", hosts, places | {"__worker_done": True})
    return folder


@pytest.mark.parametrize("name", WORKERS)
def test_a_kubelet_whose_certificate_has_ended_asks_for_another(workers, name):
    _, calls = WORKERS[name]
    said = [line for line in tree.calls(workers, name) if "systemctl show" not in line]
    assert [line[: len(start)] for line, start in zip(said, calls, strict=True)] == calls
    assert not any((workers / name / "etc" / one).exists() for one in ("bootstrap", "ended"))


def test_it_asks_the_cluster_that_it_belongs_to_by_the_token(workers):
    asked = yaml.safe_load((workers / "ended/etc/asked-by").read_text())
    assert asked["clusters"][0]["cluster"] == CLUSTER
    names = {"cluster": asked["clusters"][0]["name"], "user": asked["users"][0]["name"]}
    assert asked["contexts"] == [{"name": asked["current-context"], "context": names}]
    assert asked["users"][0]["user"] == {"token": "abcdef.0123456789abcdef"}


def test_what_a_killed_join_left_is_undone_before_the_next_and_the_node_with_it_where_it_is_this_machine_s(tmp_path):
    # kubeadm joins none whose name is taken by one that is ready. Of the same name there may be another machine's.
    registered = {"killed": None, "registered": "192.0.2.7", "name-taken": "192.0.2.8", "away": "192.0.2.7"}
    hosts = {}
    (tmp_path / "refused/etc").mkdir(parents=True)
    (tmp_path / "refused/etc/refused").touch()
    for name in ("fresh", "refused", *registered):
        mark = {str(tmp_path / name / "etc/mark"): {"exists": name in registered}}
        hosts[name] = {"__worker_state": {"probe": {"paths": mark}}}
        if address := registered.get(name):
            (tmp_path / name / "etc").mkdir(parents=True)
            addresses = [{"type": "Hostname", "address": "gpu-node-2"}, {"type": "InternalIP", "address": address}]
            (tmp_path / name / "etc/node").write_text(json.dumps({"status": {"addresses": addresses}}))
    places = {"__worker_unfinished": "{{ folder }}/mark", "__worker_config": "{{ folder }}/kubeadm.yaml"}
    facts = {"ansible_facts": {"node": {"addresses": ["192.0.2.7", "198.51.100.7"]}}}
    given = places | facts | {"worker_node_name": "gpu-node-2"}
    (tmp_path / "killed/etc").mkdir(parents=True)
    (tmp_path / "killed/etc/left").write_text("bootstrap-token-uvwxyz bootstrap-token-ghijkl")
    (tmp_path / "away/etc/away").write_text(AWAY)  # an API server that restarts
    (tmp_path / "away/etc/gone").touch()  # the token: it was deleted, and the answer lost
    calls = play(tmp_path, "join.yml", hosts, given, status=2)
    repeated = [line for line in calls.pop("away") if line.startswith(("kubectl", "kubeadm token"))]
    assert {line: repeated.count(line) for line in repeated} == dict.fromkeys(repeated, 2)
    assert len(repeated) == 5 * 2
    said = {name: [line.split(" --")[0] for line in lines] for name, lines in calls.items()}
    joined = ["kubectl", "kubeadm token create", "kubeadm join", "kubeadm token delete abcdef"]
    undone = ["pkill", "kubeadm reset", "kubectl"]
    assert said == {
        "fresh": joined,
        # Nor has anybody its token afterwards; the mark has the next run begin anew.
        "refused": joined,
        "killed": [*undone, "kubectl", *joined],
        "registered": [*undone, "kubectl", *joined],
        "name-taken": [*undone, *joined],
    }
    deleted = [line for line in calls["registered"] if "kubectl" in line][1]
    assert deleted.endswith("delete node gpu-node-2 --ignore-not-found")
    taken_back = [line for line in calls["killed"] if "kubectl" in line][2]
    assert taken_back.endswith("delete secret --ignore-not-found bootstrap-token-uvwxyz bootstrap-token-ghijkl")
    assert [name for name in hosts if (tmp_path / name / "etc/mark").exists()] == ["refused"]


def test_an_api_server_that_restarts_is_asked_again_by_a_worker_that_leaves_and_pods_that_stay_are_not(tmp_path):
    said = {"leaves": AWAY, "stays": TOO_LONG}
    for name, words in said.items():
        own = tmp_path / name / "etc"
        (own / "kubernetes").mkdir(parents=True)
        (own / "away").write_text(words)
        (own / "node").write_text("node/gpu-node-2")
    there = {"/usr/bin/kubeadm": {"exists": True}, "/etc/kubernetes": {"exists": True}}
    cluster = {"probe": {"paths": {"/etc/kubernetes/admin.conf": {"exists": True}}}}
    given = {"__worker_state": {"probe": {"paths": there}}, "__worker_cluster": cluster}
    given |= {"__worker_folder": "{{ folder }}/kubernetes", "worker_node_name": "gpu-node-2"}
    calls = play(tmp_path, "reset.yml", {name: {} for name in said}, given, status=2)
    asked = {
        name: [" ".join(line.replace("--kubeconfig /etc/kubernetes/admin.conf ", "").split()[:2]) for line in lines]
        for name, lines in calls.items()
    }
    twice = ["kubectl get", "kubectl drain", "kubeadm reset", "kubectl delete"]
    assert asked["leaves"] == [line for line in twice for _ in range(1 if "kubeadm" in line else 2)]
    assert asked["stays"][-1:] == ["kubectl drain"]
    assert [(tmp_path / name / "etc/kubernetes").exists() for name in said] == [False, True]
