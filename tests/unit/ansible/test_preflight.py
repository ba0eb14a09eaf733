"""Bad machines and bad variables, judged by the real role: each ends with its reason and the next step.

What the probe answers is read from the inventory; everything else is as shipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tree
from tree import ROOT

from tests.support.module_python import module_python

# The shipped action, whose module answers at once with what the inventory says: no process is started a machine.
PROBE = """\
import importlib.util, os, time
spec = importlib.util.spec_from_file_location("shipped_node_probe", os.environ["SHIPPED_PROBE"])
shipped = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shipped)
class ActionModule(shipped.ActionModule):
    def _execute_module(self, task_vars, **_):
        fake = self._templar.template(task_vars["fake"])
        node = {"time_s": time.time(), **fake["node"]}
        return {"changed": False, "probe": fake["probe"], "ansible_facts": {"node": node}}
"""
PLAY = """\
- hosts: all
  gather_facts: false
  pre_tasks: [{name: Judge, judge_variables: {}, when: judged}]
  roles: [preflight]
"""
generation = tree.module("node_probe").generation
GPU = {"pci_devices": 1, "driver": "580.95.05", "module": True, "nouveau": False, "secure_boot": False}
GPU |= {
    "switches": 0,
    "fabric_manager": False,
    "generations": [generation(0x2335)],
    "module_kernels": [],
    "key_enrolled": False,
}
MANAGED = {"nvidia_driver_state": "managed"}
MACHINE = {
    "os": "ubuntu",
    "os_version": "24.04",
    "os_name": "Ubuntu 24.04.3 LTS",
    "os_codename": "noble",
    "architecture": "x86_64",
    "systemd": True,
    "cgroup": "v2",
    "psi": True,
    "cpus": 16,
    "memory_bytes": 64 << 30,
    "swaps": [],
    "kernel": "6.14.0-29-generic",
    "gpu": GPU,
    "disks": {"/var/lib": 200 << 30, "/opt/local-path-provisioner": 200 << 30},
    "kubelet_joined": False,
    "interfaces": {"eth0": "192.0.2.10"},
    "addresses": ["192.0.2.10"],
    "default_routes": [{"interface": "eth0", "metric": 100}],
    "only_ipv6": [],
    "etcd_address": None,
    "proxies": [],
    "time_service": True,
    "login_user": "ada",
    "login_home": "/home/ada",
    "login_home_closed": False,
    "node_exporter": False,
}
NO_GPU = {"gpu": {**GPU, "pci_devices": 0, "driver": None, "module": False}}


def gpu(*pci_ids, **changes):
    """A machine whose GPUs differ."""
    found = {"generations": [generation(pci_id) for pci_id in pci_ids], "pci_devices": len(pci_ids)} if pci_ids else {}
    return {"gpu": {**GPU, **found, **changes}}


def network(*metrics, only_ipv6=(), **addresses):
    """A machine with these addresses by interface, and a default route of each metric by the interfaces in turn."""
    routes = [{"interface": name, "metric": metric} for name, metric in zip(addresses, metrics, strict=False)]
    said = {"addresses": list(addresses.values()), "default_routes": sorted(routes, key=lambda route: route["metric"])}
    return {"interfaces": addresses, **said, "only_ipv6": list(only_ipv6)}


def disk(free, *, volumes=None):
    """A machine with so many GiB free; for volumes as well, or on a disk of their own."""
    return {
        "disks": {"/var/lib": free << 30, "/opt/local-path-provisioner": (free if volumes is None else volumes) << 30}
    }


DEBIAN = {"os": "debian", "os_version": "13", "os_name": "Debian GNU/Linux 13 (trixie)"}
RESOLUTE = {"os_version": "26.04", "os_name": "Ubuntu 26.04 LTS"}
ABSENT = {"installed": False, "version": None, "held": False}

# case: (changes to a good machine, variables, what the message says)
CASES = {
    "good": ({}, {}, None),
    # Dozens of machines answer between this one's answer and its judgement.
    "right-clock-long-before-it-is-judged": ({}, {"preflight_clock_skew_s_max": 1}, None),
    "no-gpu-none-wanted": (NO_GPU, {}, None),
    "gpu-told-off": (gpu(driver=None), {"node_gpu": "absent"}, None),
    "psi-told-off": ({"psi": False}, {"preflight_psi_required": False}, None),
    "wrong-os": ({"os": "fedora", "os_name": "Fedora 43"}, {}, "This is Fedora 43"),
    "old-ubuntu": ({"os_version": "20.04", "os_name": "Ubuntu 20.04"}, {}, "This is Ubuntu 20.04"),
    "arm": ({"architecture": "aarch64"}, {}, None),
    "arm-with-packages-of-another": (
        {"architecture": "aarch64"},
        {"versions_architecture": "x86_64"},
        "The architecture is aarch64, and versions_architecture is x86_64",
    ),
    "risc": ({"architecture": "riscv64"}, {}, "architecture is riscv64"),
    "no-systemd": ({"systemd": False}, {}, "not booted with systemd"),
    "cgroup-v1": ({"cgroup": "v1"}, {}, "systemd.unified_cgroup_hierarchy=1"),
    "no-psi": ({"psi": False}, {}, "Add psi=1"),
    "one-cpu": ({"cpus": 1}, {}, "1 CPU, at least 2"),
    "small": ({"memory_bytes": 1 << 30}, {}, "1024 MiB of memory"),
    "full-disk": (disk(2), {}, "2048 MiB free"),
    "disk-of-an-installed-node": ({**disk(5), "cri-o": {"installed": True}}, {}, None),
    "disk-without-room-for-volumes": (
        disk(89),
        {},
        (
            "91136 MiB free, at least 92160 MiB are needed (20480 MiB for the node, 15 GiB for the workload image, "
            "45 GiB for Prometheus (prometheus_retention_gib), 10 GiB for Grafana (grafana_volume_gib))"
        ),
    ),
    "disk-with-room-for-volumes": (disk(90), {}, None),
    "small-volumes": (disk(50), {"prometheus_retention_gib": 10, "grafana_volume_gib": 2}, None),
    "volumes-told-off": (disk(20), {"preflight_disk_volumes_counted": False}, None),
    "volumes-on-a-disk-of-their-own": (disk(40, volumes=60), {}, None),
    "volumes-on-a-small-disk": (
        disk(40, volumes=50),
        {},
        "/opt/local-path-provisioner (storage_path) has 51200 MiB free, at least 56320 MiB are needed: 45 GiB for Prometheus",
    ),
    "new-ubuntu": (RESOLUTE, {}, None),
    "wrong-clock": ({"time_s": 0}, {}, "timedatectl set-ntp true"),
    "fast-clock": ({"time_s": 4e9}, {}, "timedatectl set-ntp true"),
    "home-that-root-may-not-write": ({"login_home_closed": True}, {}, "Root may not write into /home/ada"),
    "home-that-nothing-is-written-into": (
        {"login_home_closed": True},
        {"control_plane_kubeconfig_users": ["grace"], "inference_namespace_users": ["grace"]},
        None,
    ),
    "another-node-exporter": ({"node_exporter": True}, {}, "prometheus-node-exporter has the port 9100"),
    "another-node-exporter-beside": ({"node_exporter": True}, {"node_exporter_port": 9101}, None),
    "no-time-service": ({"time_service": False}, {}, "Nothing keeps the clock right"),
    "time-service-told-off": ({"time_service": False}, {"preflight_time_service_required": False}, None),
    "zram": ({"swaps": [{"path": "/dev/zram0", "type": "partition", "size_bytes": 1}]}, {}, "systemd-zram-generator"),
    "gpu-required": (NO_GPU, {"node_gpu": "required"}, "A working GPU is required"),
    "gpu-without-driver": (
        gpu(driver=None, module=False),
        {},
        "no driver loaded for it. None is installed for this kernel (6.14",
    ),
    "gpu-on-debian": (
        {**gpu(driver=None, module=False), **DEBIAN},
        {},
        "add NVIDIA's repository for Debian GNU/Linux 13",
    ),
    "gpu-under-secure-boot": (gpu(driver=None, secure_boot=True), {}, "Secure Boot lets signed modules only be loaded"),
    "gpu-held-by-nouveau": (gpu(driver=None, module=False, nouveau=True), {}, "blacklist nouveau"),
    "gpu-not-loaded": (gpu(driver=None), {}, "installed for this kernel and not loaded"),
    "no-fabric-manager": (gpu(switches=4), {}, "joined by 4 NVSwitches and Fabric Manager does not run"),
    "fabric-manager": (gpu(switches=4, fabric_manager=True), {}, None),
    "modules-of-another-kernel": (
        gpu(driver=None, module=False, module_kernels=["6.8.0-31-generic"]),
        {},
        "modules for the kernel 6.8.0-31-generic and none for 6.14.0-29-generic, which runs",
    ),
    "driver-to-be-installed": (gpu(driver=None, module=False, switches=4), MANAGED, None),
    "driver-to-be-signed": (
        gpu(driver=None, module=False, secure_boot=True),
        MANAGED,
        "Secure Boot is on, and the driver's modules would be signed with a key that the firmware does not know",
    ),
    "driver-signed": (gpu(driver="470.256.02", secure_boot=True, key_enrolled=True), MANAGED, None),
    "driver-of-no-repository": (
        {**gpu(driver=None), "os_version": "25.10", "os_name": "Ubuntu 25.10"},
        {**MANAGED, "preflight_distributions": {"ubuntu": ["25.10"]}},
        "No repository with the driver is known for Ubuntu 25.10",
    ),
    "driver-of-the-new-ubuntu": ({**gpu(driver=None), **RESOLUTE}, MANAGED, None),
    "volta-on-the-new-ubuntu": (
        {**gpu(0x1DB4, driver=None), **RESOLUTE},
        {**MANAGED, "preflight_gpu_capability_min": "7.0"},
        "Ubuntu 26.04 LTS is known here with the open kernel modules alone (Volta has none)",
    ),
    "proprietary-modules-on-the-new-ubuntu": (
        {**gpu(driver=None), **RESOLUTE},
        {**MANAGED, "nvidia_driver_modules": "proprietary"},
        "known here with the open kernel modules alone. Set nvidia_driver_modules to auto",
    ),
    "volta": (
        gpu(0x1DB4),
        {},
        "1 of 1 GPUs are of a generation (Volta: compute capability 7.2 at most), and torch 2.13.0 of the workload image, built for CUDA 13.0",
    ),
    "volta-with-a-torch-of-its-own": (gpu(0x1DB4), {"preflight_gpu_capability_min": "7.0"}, None),
    "volta-managed": (
        gpu(0x1DB4, driver=None),
        {**MANAGED, "preflight_gpu_capability_min": "6.0"},
        None,
    ),
    "volta-left-out": (gpu(0x1DB4), {"node_gpu": "absent"}, None),
    "volta-beside-blackwell": (
        gpu(0x1DB4, 0x2901, driver=None),
        MANAGED,
        "1 of 2 GPUs (Volta) have no open kernel modules, 1 have no others",
    ),
    "turing-with-images-for-ampere": (
        gpu(0x1EB8, 0x20B5),
        {"preflight_gpu_capability_min": "8.0"},
        "1 of 2 GPUs are of a generation (Turing",
    ),
    "kepler": (
        gpu(0x1180, 0x2335, driver="470.256.02"),
        {"preflight_gpu_capability_min": "3.5"},
        "1 of 2 GPUs are of a generation (Kepler or older) that no driver from 471 on knows, and torch 2.13.0 of the workload image needs 580.65.06",
    ),
    "kepler-left-out": (gpu(0x1180, driver="470.256.02"), {"node_gpu": "absent"}, None),
    "volta-with-open-modules": (
        gpu(0x1DB4, driver=None),
        {**MANAGED, "nvidia_driver_modules": "open"},
        "1 of 1 GPUs (Volta) have no open kernel modules",
    ),
    "blackwell-with-proprietary-modules": (
        gpu(0x2901, driver=None),
        {**MANAGED, "nvidia_driver_modules": "proprietary"},
        "1 of 1 GPUs (Blackwell or newer) have open kernel modules alone",
    ),
    "volta-with-a-new-driver": (
        gpu(0x1DB4, driver=None),
        {**MANAGED, "nvidia_driver_version": "590.44.01"},
        "1 of 1 GPUs (Volta) have no driver from 581 on, and nvidia_driver_version is 590.44.01",
    ),
    "no-cpu-left-for-pods": (
        {},
        {"node_profile_name": "measuring", "node_profile_reserved_cpus": 16},
        "node_profile_reserved_cpus is 16 of 16 CPUs",
    ),
    "old-driver": (gpu(driver="470.256.02"), {}, "470.256.02, at least 580.65.06 is needed: torch 2.13.0"),
    "driver-too-old-for-torch": (gpu(driver="575.57.08"), {}, "brings CUDA 13.0. Install a newer one (apt-get install"),
    "unknown-minor": ({}, {"kubernetes_minor": "1.99"}, "kubernetes_minor is 1.99"),
    "minor-whose-sums-nobody-gave": (
        {},
        {"kubernetes_minor": "1.37"},
        "tigera-operator.yaml), each with its sha256sum",
    ),
    "minor-without-quotes": ({}, {"kubernetes_minor": 1.35}, "Put it in quotes"),
    "misspelt": (
        {},
        {"crio_verison": "1.35.6"},
        "crio_verison is not a supported variable. Did you mean crio_version?",
    ),
    "unknown-in-a-role": (
        {},
        {"device_plugin_colour": "red"},
        "device_plugin_colour is not a variable of the role device_plugin",
    ),
    "somebody-else-s": ({}, {"storage_account": "team", "kernel_version": "6.1", "worker_pool": 3}, None),
    "from-the-command-line": ({}, {"calico_timeout_s": "40", "preflight_psi_required": "false"}, None),
    "resolved-wrong": ({}, {"mirror_files": "not a url"}, 'calico_mirror is "not a url/calico'),
    "cannot-be-resolved": ({}, {"calico_mtu": "{{ nowhere }}"}, "calico_mtu cannot be resolved"),
    "together": ({}, {"prometheus_scrape_timeout_s": 9}, "prometheus_scrape_interval_s (5): the first must not be"),
    "quoted": ({}, {"crio_pause_image": 'a"\n[evil]'}, "crio_pause_image is"),
    "wrong-type": ({}, {"preflight_cpus_min": "many"}, "preflight_cpus_min"),
    "wrong-choice": ({}, {"node_gpu": "perhaps"}, "node_gpu"),
    "wrong-type-later-role": ({}, {"calico_mtu": "large"}, "calico_mtu"),
    "other-version-installed": (
        {"kubelet": {"installed": True, "version": "1.34.11-1.1", "held": True}},
        {},
        "Kubernetes 1.34.11-1.1 is installed",
    ),
    "endpoint": ({}, {"control_plane_endpoint": "gpu.example.org:8443"}, None),
    "endpoint-that-nobody-knows": (
        {"names": {"gpu.example.org": []}},
        {"control_plane_endpoint": "gpu.example.org"},
        "knows no address of gpu.example.org (control_plane_endpoint)",
    ),
    "minor-that-has-ended": (
        {},
        {"kubernetes_minor": "1.34", "preflight_end_of_life": "2026-10-27"},
        "Kubernetes 1.34 has ended on 2026-10-27: upstream no longer maintains it",
    ),
    "minor-that-has-ended-allowed": (
        {},
        {"preflight_end_of_life": "2026-10-27", "preflight_end_of_life_allowed": True},
        None,
    ),
    "minor-that-has-ended-installed": (
        {"kubelet": {"installed": True, "version": "1.35.8-1.1", "held": True}},
        {"preflight_end_of_life": "2026-10-27"},
        None,
    ),
    "address-of-a-service": (
        network(0, eth0="10.100.3.5"),
        {},
        "Its address 10.100.3.5 is in control_plane_service_cidr (10.96.0.0/12, which reaches from 10.96.0.0 to 10.111.255.255)",
    ),
    "address-of-a-pod": (
        network(0, eth0="192.0.2.10", eth1="10.244.7.1"),
        {},
        "Its address 10.244.7.1 is in control_plane_pod_cidr",
    ),
    "address-beside-the-services": (network(0, eth0="10.112.0.1"), {}, None),
    "address-of-a-service-on-a-node": ({**network(0, eth0="10.100.3.5"), "kubelet_joined": True}, {}, None),
    "two-default-routes": (
        network(100, 100, eth0="192.0.2.10", eth1="198.51.100.7"),
        {},
        "Several interfaces (eth0, eth1) have a default route of the same metric",
    ),
    "two-default-routes-of-which-one-is-better": (
        network(200, 100, eth0="192.0.2.10", eth1="198.51.100.7"),
        {},
        None,
    ),
    "two-default-routes-and-an-address": (
        network(100, 100, eth0="192.0.2.10", eth1="198.51.100.7"),
        {"node_address": "198.51.100.7"},
        None,
    ),
    "address-of-another-machine": (
        {},
        {"node_address": "198.51.100.7"},
        "node_address is 198.51.100.7, and the machine has 192.0.2.10",
    ),
    "address-that-has-changed": (
        {"etcd_address": "192.0.2.99", "kubelet_joined": True},
        {},
        "The control plane was made at the address 192.0.2.99, which etcd and the API server are bound to, and the machine has 192.0.2.10 now",
    ),
    "address-that-has-stayed": ({"etcd_address": "192.0.2.10", "kubelet_joined": True}, {}, None),
    "ipv6-alone": (
        network(only_ipv6=["eth0"]),
        {},
        "(no interface has an address of IPv4; eth0 of IPv6 only, which the cluster does not use)",
    ),
    "mirror-403": ({"urls": {"http://mirror/Release": "answers 403 Forbidden"}}, {}, "answers 403 Forbidden"),
    "mirror-behind-the-machine-s-own-proxy": (
        {"urls": {"http://mirror/Release": "cannot be reached"}, "proxies": ["https_proxy"]},
        {},
        "/etc/environment of the machine sets https_proxy, which nothing here goes through",
    ),
    "mirror-with-a-password": (
        {"urls": {"http://me:secret@mirror/Release": "answers 401"}},
        {},
        "http://...@mirror/Release: answers",
    ),
    "clock-behind-all-mirrors": ({"clocks_ahead_s": {"a": 4000.0, "b": 86400.0}}, {}, "differs by 4000 s from those"),
    "one-mirror-agrees": ({"clocks_ahead_s": {"a": -2.0, "b": 86400.0}}, {}, None),
    "mirrors-without-clocks": ({"clocks_ahead_s": {}}, {}, None),
    "mirror-stalls": ({"urls": {"http://mirror/Release": "says nothing for 15 s"}}, {}, "says nothing for 15 s"),
}


# All variables of these are judged, which resolves each and takes most of a host's time.
JUDGED = {
    *(
        "good",
        "unknown-minor",
        "minor-whose-sums-nobody-gave",
        "minor-without-quotes",
        "misspelt",
        "unknown-in-a-role",
        "somebody-else-s",
    ),
    *("from-the-command-line", "resolved-wrong", "cannot-be-resolved", "together", "quoted", "wrong-type"),
    *("wrong-choice", "wrong-type-later-role", "endpoint"),
}


def host(name):
    changes, variables, _ = CASES[name]
    packages = {"cri-o": changes.get("cri-o", ABSENT), "kubelet": changes.get("kubelet", ABSENT)}
    probe = {"packages": packages, "urls": changes.get("urls", {"http://mirror/Release": "ok"})}
    probe["names"] = changes.get("names", {"gpu.example.org": ["192.0.2.10"]})
    probe["clocks_ahead_s"] = changes.get("clocks_ahead_s", {"http://mirror/Release": 0.5})
    node = {**MACHINE, **{name: value for name, value in changes.items() if name not in [*probe, *packages]}}
    given = {"fake": {"node": node, "probe": probe}, "judged": name in JUDGED, "ansible_connection": "ssh"}
    # Of the cases alone: the calendar changes no other outcome.
    return {**given, "preflight_end_of_life": "9999-12-31", **variables}


def judged(folder, names, program):
    """Each of the cases is a host: name -> its failure, or None."""
    for name in ("action", "callback"):
        (folder / name).mkdir()
    (folder / "action/node_probe.py").write_text(PROBE)
    (folder / "callback/tree_of_results.py").write_text(tree.CALLBACK)
    (folder / "play.yml").write_text(PLAY)
    (folder / "group_vars").symlink_to(ROOT / "inventory/group_vars")
    hosts = {name: host(name) for name in names}
    groups = {"control_plane": ["good"], "workers": [name for name in names if name in JUDGED and name != "good"]}
    children = {group: {"hosts": {name: {} for name in members}} for group, members in groups.items()}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "children": children}}))
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_ACTION_PLUGINS": f"{folder / 'action'}:{tree.ACTIONS}",
        "SHIPPED_PROBE": str(tree.ACTIONS / "node_probe.py"),
        "ANSIBLE_STDOUT_CALLBACK": "tree_of_results",
        "ANSIBLE_CALLBACK_PLUGINS": str(folder / "callback"),
        "ANSIBLE_PYTHON_INTERPRETER": module_python(),
        "ANSIBLE_HOME": str(folder / "home"),
        # A clock that is right is right in every time zone.
        "TZ": "America/New_York",
        "OUTCOMES": str(folder / "outcomes.json"),
    }
    command = [sys.executable, *program, str(folder / "hosts.json"), str(folder / "play.yml")]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, cwd=folder
    )
    assert (folder / "outcomes.json").exists(), done.stdout + done.stderr
    return json.loads((folder / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Every case, in one process: a process for each task of each host takes three times as long."""
    return judged(tmp_path_factory.mktemp("preflight"), CASES, [str(Path(__file__).with_name("unforked.py"))])


@pytest.mark.parametrize("name", CASES)
def test_every_case_ends_with_its_reason_or_not_at_all(outcomes, name):
    _, _, says = CASES[name]
    if says is None:
        assert outcomes[name] is None
    else:
        assert says in " ".join(outcomes[name].split())


def test_the_judge_lets_the_variables_of_the_other_cases_pass():
    table = tree.judged()
    others = {name: variables for name, (_, variables, _) in CASES.items() if name not in JUDGED}
    assert {name: list(table.wrong(given)) for name, given in others.items()} == {name: [] for name in others}
    assert not [name for given in others.values() for name in given if name not in table.values]


def test_ansible_itself_ends_as_they_do_in_one_process(outcomes, tmp_path):
    names = ["good", "disk-of-an-installed-node", "wrong-os", "together", "mirror-403", "clock-behind-all-mirrors"]
    assert judged(tmp_path, names, ["-m", "ansible", "playbook", "-i"]) == {name: outcomes[name] for name in names}


def test_a_refusal_says_that_nothing_was_changed(outcomes):
    assert all("Nothing was changed" in outcomes[name] for name in ("wrong-os", "full-disk", "mirror-403", "together"))


def test_the_volumes_that_are_counted_are_those_of_the_roles():
    text = (ROOT / "roles/preflight/vars/main.yml").read_text()
    for name in ("prometheus_retention_gib", "grafana_volume_gib", "storage_path"):
        assert f"{name} | default({tree.variables()[name]!r})" in text


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"node_address": "192.0.2.9", "groups": {}}, "192.0.2.9"),
        ({"control_plane_advertise_address": "192.0.2.9", "groups": {"control_plane": ["one"]}}, "192.0.2.9"),
        # A group variable, which workers have, too.
        ({"control_plane_advertise_address": "192.0.2.9", "groups": {"control_plane": ["other"]}}, ""),
    ],
)
def test_the_address_that_has_to_be_the_machine_s_own(given, own):
    values = tree.load(ROOT / "roles/preflight/vars/main.yml")
    names = ("__preflight_own", "__preflight_address")
    said = tree.template({name: values[name] for name in names}, {"inventory_hostname": "one", **given}, names)
    assert said["__preflight_own"] == own
