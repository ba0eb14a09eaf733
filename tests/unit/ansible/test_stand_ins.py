"""The packages that stand in on the test machine, held against what upstream's own packaging installs (read in 2026-11)."""

import json
import re
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from tests.node.mirror import driver, manifests, packages
from tests.node.mirror.recorders import recorded
from tests.support import schemas
from tests.support.cases import every


@dataclass(frozen=True)
class Upstream:
    """A package of upstream's: what it brings, of that what dpkg keeps where it was edited, and what it depends on.

    Left out are documentation, completions, manual pages and the placeholders of empty folders (.kubelet-keep and
    .kubernetes-cni-keep), which `kubeadm reset` takes away.
    """

    files: frozenset[str]
    conffiles: frozenset[str] = frozenset()
    depends: frozenset[str] = frozenset()


UNITS = "/usr/lib/systemd/system"
CRIO_CONFFILES = {
    "/etc/cni/net.d/10-crio-bridge.conflist.disabled",
    "/etc/containers/registries.conf.d/crio.conf",
    "/etc/crictl.yaml",
    "/etc/default/crio",
}
CNI = (
    "bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan portmap ptp sbr static tap tuning"
    " vlan vrf"
)
PACKAGES = {
    # It depends on iptables as well. The machine begins with this package half there, put there without apt.
    "cri-o": Upstream(
        frozenset(
            CRIO_CONFFILES
            | {"/etc/crio/crio.conf.d/10-crio.conf", "/etc/crio/policy.json", f"{UNITS}/crio.service"}
            | {"/usr/bin/crio", "/usr/bin/pinns"}
            | {
                f"/usr/libexec/crio/{name}"
                for name in ["conmon", "conmonrs", "crio-credential-provider", "crun", "runc"]
            }
        ),
        conffiles=frozenset(CRIO_CONFFILES),
    ),
    # Since 1.32 without any dependency.
    "kubeadm": Upstream(frozenset({"/usr/bin/kubeadm", f"{UNITS}/kubelet.service.d/10-kubeadm.conf"})),
    "kubelet": Upstream(
        frozenset({"/usr/bin/kubelet", f"{UNITS}/kubelet.service", "/etc/default/kubelet"}),
        conffiles=frozenset({"/etc/default/kubelet"}),
        depends=frozenset({"iptables", "kubernetes-cni", "mount", "util-linux"}),
    ),
    "kubectl": Upstream(frozenset({"/usr/bin/kubectl"})),
    "cri-tools": Upstream(frozenset({"/usr/bin/crictl"})),
    "kubernetes-cni": Upstream(frozenset({f"/opt/cni/bin/{name}" for name in CNI.split()})),
    "nvidia-container-toolkit": Upstream(
        frozenset({"/usr/bin/nvidia-container-runtime-hook"}),
        depends=frozenset({"nvidia-container-toolkit-base", "libnvidia-container-tools"}),
    ),
    "nvidia-container-toolkit-base": Upstream(
        frozenset(
            {f"/usr/bin/{name}" for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook")}
            | {f"{UNITS}/nvidia-cdi-refresh.service", f"{UNITS}/nvidia-cdi-refresh.path"}
            | {"/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env", "/etc/nvidia-container-runtime/config.toml"}
        ),
        # The second is written by the package's own script, which keeps what was edited too.
        conffiles=frozenset(
            {"/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env", "/etc/nvidia-container-runtime/config.toml"}
        ),
    ),
    # Debian's of 550, by NVIDIA's own source; NVIDIA's repository was not to be had. Left out: libc6 and libtirpc3t64. Its script
    # makes the account nvpd, which no script takes away, enables the service and starts it, whatever comes of that.
    "nvidia-persistenced": Upstream(
        frozenset(
            {"/usr/bin/nvidia-persistenced", "/etc/init.d/nvidia-persistenced", f"{UNITS}/nvidia-persistenced.service"}
        ),
        conffiles=frozenset({"/etc/init.d/nvidia-persistenced"}),
        depends=frozenset({"libnvidia-cfg1", "adduser"}),
    ),
    # NVIDIA's packaging as it is published, which is older than 580: it has a topology for each machine beside the settings, an
    # nvswitch-audit, its unit still below /lib, and depends on libc6 and systemd-coredump. Its name had the branch at the end
    # until 580 (nvidia-fabricmanager_580.65.06-1, 580.173.10-1ubuntu1 and 595.71.05-1ubuntu1 have been seen by their file names).
    "nvidia-fabricmanager": Upstream(
        frozenset(
            {"/usr/bin/nv-fabricmanager", f"{UNITS}/nvidia-fabricmanager.service"}
            | {"/usr/share/nvidia/nvswitch/fabricmanager.cfg"}
        ),
        conffiles=frozenset({"/usr/share/nvidia/nvswitch/fabricmanager.cfg"}),
    ),
}
# What the recorders run on.
OURS = {"python3", "python3-yaml", "openssl"}
ROW = {"kubernetes": "1.36.4", "cri_tools": "1.36.0", "kubernetes_cni": "1.9.1"}
STAND_INS = {
    one.name: one
    for one in (
        *packages.crio("1.36.3"),
        *packages.kubernetes(ROW),
        *packages.nvidia("1.20.0"),
        *driver.repository("580.95.05"),
    )
    if one.name in PACKAGES
}


@every(sorted(PACKAGES))
def test_a_stand_in_brings_what_the_real_package_brings(name):
    package, upstream = STAND_INS[name], PACKAGES[name]
    assert {path for path in package.files if not path.startswith("/usr/lib/recorders/")} == upstream.files
    assert set(package.conffiles) == upstream.conffiles
    needed = {re.split(r"[ (]", one.strip())[0] for one in package.depends.split(",") if one}
    assert needed - OURS == upstream.depends


def test_crio_is_the_last_to_be_killed_and_reads_its_options():
    for line in ("OOMScoreAdjust=-999", "EnvironmentFile=-/etc/default/crio", "TimeoutStartSec=0", "Type=notify"):
        assert line in packages.CRIO_UNIT.splitlines()


DEFINITIONS = manifests.operator_definitions()


@pytest.mark.parametrize("minor", ["1.34", "1.35", "1.36"])
def test_a_real_api_server_would_take_the_definitions_of_the_operator(minor):
    for definition in DEFINITIONS:
        schemas.validate(definition, minor)


def applied(definition):
    """What the recorder of kubectl says of a definition that is applied; empty for one that it takes."""
    program = "import cluster, json, sys; cluster.merged(json.load(sys.stdin), 'default')"
    given = json.dumps(definition)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=packages.RECORDERS,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_a_definition_without_a_schema_is_refused_as_a_real_api_server_refuses_it():
    assert [applied(definition) for definition in DEFINITIONS] == ["", "", ""]
    versions = [{"name": "v1", "served": True, "storage": True}]
    without = DEFINITIONS[0] | {"spec": DEFINITIONS[0]["spec"] | {"versions": versions}}
    assert "is invalid: spec.versions[0].schema.openAPIV3Schema: Required value" in applied(without)


@pytest.fixture
def etcd_tool(tmp_path):
    """Run one of etcd's tools of the machine on a folder of its own, where a snapshot lies; what it says and its exit status."""
    (tmp_path / "snapshot").write_text("{}")
    program = """
import pathlib, sys
import recorded
recorded.LOG = recorded.STATE = pathlib.Path("state")
sys.path.insert(0, sys.argv[1])
import etcd_tools
sys.argv[:] = sys.argv[2:]
etcd_tools.main()
"""

    def run(tool, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", program, str(packages.RECORDERS), tool, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(packages.RECORDERS)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    return run


REFUSED = {
    "etcdctl knows no data folder": ("etcdctl save new --data-dir=x", "unknown flag: --data-dir"),
    "a slip of a letter": ("etcdctl save new --endpoint x", "unknown flag: --endpoint"),
    "no value": ("etcdctl save new --key", "flag needs an argument: --key"),
    "etcdutl asks no server": ("etcdutl restore snapshot --cacert=x", "unknown flag: --cacert"),
    "its verbs differ": ("etcdutl status snapshot --data-dir=x", "unknown flag: --data-dir"),
    "a revision that watchers do not notice": (
        "etcdutl restore snapshot --data-dir=data --bump-revision=1000000000",
        "--mark-compacted required if --bump-revision",
    ),
    "a value is no snapshot": ("etcdutl restore --data-dir snapshot", "snapshot restore requires exactly one argument"),
}


@pytest.mark.parametrize(("asked", "problem"), REFUSED.values(), ids=REFUSED)
def test_etcds_tools_refuse_what_the_real_ones_refuse(etcd_tool, tmp_path, asked, problem):
    tool, *arguments = asked.split()
    status, said = etcd_tool(tool, "snapshot", *arguments)
    assert status == 1
    assert said == f"Error: {problem}\n"
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "new").exists()


def test_etcds_tools_take_a_flag_and_its_value_as_one_word_or_two(etcd_tool, tmp_path):
    for folder, flags in (
        ("one", ["--data-dir=one"]),
        ("two", ["--data-dir", "two", "--bump-revision", "1", "--mark-compacted"]),
    ):
        assert etcd_tool("etcdutl", "snapshot", "restore", "snapshot", *flags) == (0, "")
        assert (tmp_path / folder / "member/snap/db").read_text() == "{}"
    assert etcd_tool("etcdutl", "snapshot", "status", "snapshot", "--write-out=json") == (0, "")


JOINING = """
import json, pathlib, sys, time
import recorded
recorded.LOG = recorded.STATE = pathlib.Path("state")
import api, cluster, join, remote

class Server:
    def ask(self, path):
        try:
            api.get(path, "system:bootstrap:abcdef", None)
        except api.Answer as answer:
            if answer.status != 200:
                raise remote.Refused(answer.status, "")
            return answer.content

network = cluster.OBJECTS / "Installation/cluster/default.json"
network.parent.mkdir(parents=True)
network.write_text(json.dumps({"kind": "Installation", "metadata": {"name": "default"}}))
cluster.write({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "taken", "labels": {}}, "spec": {}})
cluster.HEARTBEATS.mkdir(parents=True)
word = {"at": time.time() - float(sys.argv[2]), "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}
(cluster.HEARTBEATS / "taken.json").write_text(json.dumps(word))
join.refuse_taken(Server(), sys.argv[1])
print(json.dumps(cluster.read(cluster.kind_of("node"), "", "taken")["status"]["addresses"]))
"""


@pytest.mark.parametrize(
    ("name", "silent_s", "refused"),
    [("taken", 1, True), ("taken", 300, False), ("free", 1, False)],
    ids=["ready", "not ready", "no such node"],
)
def test_a_join_under_the_name_of_a_node_that_is_ready_is_refused_as_kubeadm_refuses_it(
    tmp_path, name, silent_s, refused
):
    done = subprocess.run(
        [sys.executable, "-c", JOINING, name, str(silent_s)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(packages.RECORDERS)},
        capture_output=True,
        text=True,
        check=False,
    )
    if refused:
        assert done.returncode == 1
        assert f'a Node with name "{name}" and status "Ready" already exists in the cluster.' in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == [{"type": "InternalIP", "address": "192.0.2.7"}]


def test_what_a_recorder_writes_is_whole_whenever_another_reads_it(tmp_path):
    path, texts = tmp_path / "object.json", ["a" * 200_000, "b" * 100_000]
    recorded.replace(path, texts[0], 0o640)
    writing = threading.Thread(target=lambda: [recorded.replace(path, texts[n % 2], 0o640) for n in range(200)])
    writing.start()
    while writing.is_alive():
        assert path.read_text() in texts
    assert [(each.name, each.stat().st_mode & 0o777) for each in tmp_path.iterdir()] == [("object.json", 0o640)]
