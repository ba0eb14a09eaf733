"""The judge of variables: one table for all of them, what each may be, and what they may not be."""

import datetime as dt
import json
import os

import pytest
import tree
from tree import ROOT, load

from tests.support.cases import every

judge = tree.action("judge_variables")
SPECS = tree.specifications()
OPTIONS = {name: option for options in SPECS.values() for name, option in options.items()}
TABLE = tree.judged()
# They change no machine: one prints variables, one prints a list, one starts what another program judges.
UNJUDGED = {"expected.yml", "offline.yml", "campaign.yml", "judge.yml"}


def kinds(may):
    """The names of kinds of text that a variable may be of."""
    of = [may[name] for name in ("key", "of") if name in may]
    while [one for one in of if not isinstance(one, str)]:
        inner = [one if isinstance(one, list) else one.values() for one in of if not isinstance(one, str)]
        of = [one for one in of if isinstance(one, str)] + [one for several in inner for one in several]
    return set(of)


def refused(name, value):
    return list(TABLE.wrong({name: value}))


def test_every_variable_of_every_role_is_in_the_table_and_no_other():
    from_inventory = {name for name in TABLE.values if name not in OPTIONS}
    assert set(OPTIONS) <= set(TABLE.values)
    others = "node_gpu upgrade_packages upgrade_drain_timeout_s upgrade_drain_emptydir upgrade_drain_bare_pods kubernetes_minor apt_lock_timeout_s reboot_timeout_s versions_architecture node_address node_kubelet_arguments node_labels node_taints http_proxy https_proxy no_proxy"
    assert {name for name in from_inventory if not name.startswith("mirror_")} == set(others.split())


def test_every_mirror_of_the_inventory_is_in_the_table():
    assert set(load(ROOT / "inventory/group_vars/all/mirrors.yml")) <= set(TABLE.values)


def test_every_kind_is_used_and_says_what_it_is():
    used = set().union(*(kinds(value) for value in TABLE.values.values()))
    assert used == set(TABLE.kinds)
    assert all({"pattern", "rule"} & set(kind) and kind["is"] for kind in TABLE.kinds.values())


SAID = {
    "bool": {"type": "bool"},
    "0 or 576 to 9216": {"type": "int", "ranges": [(0, 0), (576, 9216)]},
    "one of a-b, c": {"type": "str", "choices": ["a-b", "c"]},
    "uri": {"type": "str", "of": "uri"},
    "list of uri": {"type": "list", "of": "uri", "elements": "str"},
    "list of {name: a, url: b}": {"type": "list", "of": {"name": "a", "url": "b"}, "elements": "dict"},
    "dict of a: [b]": {"type": "dict", "key": "a", "of": ["b"]},
}


@every(sorted(SAID))
def test_what_stands_behind_a_value_is_read(said):
    assert judge.option(said) == SAID[said]


def test_a_variable_is_its_prose_and_what_stands_behind_its_value():
    text = "---\n# Head.\n\n# One\n# two.\na: '#'  # uri\nb:  # list of uri\n  - x  # uri\n# No more.\nc: 1\n"
    assert judge.described(text) == {"a": ("One two.", "uri"), "b": ("", "list of uri")}


def test_everything_as_shipped_is_right():
    shipped = {name: value for name, value in tree.variables().items() if name in TABLE.values}
    assert set(OPTIONS) <= set(shipped)
    assert list(TABLE.wrong(shipped)) == []


# What harmed before: a line of another's making, a service that does not start, somebody else's files.
HARMFUL = {
    "crio_pause_image": 'registry.k8s.io/pause:3.10"\nconmon = "/tmp/evil',
    "crio_pinned_images": ['a"b'],
    "control_plane_dns_domain": "cluster.local\n    authorization-mode: AlwaysAllow",
    "device_plugin_mig_profiles": ["1g.10gb\nExecStart=/bin/evil"],
    "inference_namespace_name": "kube-system",
    "crio_apt_key_fingerprint": " ",
    "swap_failsafe_unit": "kubelet.service",
    "kernel_sysctls_unit": "ssh.service",
    "storage_path": "/",
    "workload_image_folder": "/var/lib",
    "device_plugin_mps_root": "/run",
    "housekeeping_eviction_hard": {"memory.free": "100Mi"},
    "kernel_sysctls": {"net.ipv4.ip_forward": "1\nkernel.panic = 1"},
    "calico_encapsulation": "IPIP",
    "housekeeping_failed_pods_schedule": "99 * * * *",
    "control_plane_service_cidr": "10.96.0.1/12",
    "prometheus_memory_limit": "4Gib",
    "workload_image_pip": {"index-url": "https://one\nextra-index-url = https://other"},
    "nvidia_toolkit_handler": "crun",
    "kubernetes_packages_version": 1.3,
}


@every(sorted(HARMFUL))
def test_what_would_harm_is_refused_with_its_name_and_what_it_may_be(name):
    (reason,) = refused(name, HARMFUL[name])
    assert reason.startswith(f"{name} is ")
    assert "it has to be" in reason
    assert "\n" not in reason


@every(["http://u:sec ret@p:1", "socks5://u:secret@p", "http://u:secret@p:port", 'http://u:se"cret@p', "secret"])
def test_a_wrong_proxy_is_refused_and_not_shown(address):
    for name, value in (
        ("http_proxy", address),
        ("https_proxy", address),
        ("crio_proxy", {"http_proxy": f"{address}\n"}),
    ):
        (reason,) = refused(name, value)
        assert reason.startswith(f"{name} is not shown; it has to be")
        assert "cret" not in reason


def test_a_wrong_login_is_refused_and_not_shown():
    (reason,) = refused("mirror_logins", {"mirror.example:5000": "ada secret"})
    assert reason.startswith("mirror_logins is not shown; it has to be")
    assert refused("mirror_logins", {"mirror.example:5000": "ada:s:ecret"}) == []


def test_a_secret_is_not_shown():
    (reason,) = refused("workload_image_pip", {"index-url": 'https://user:secret@host/"'})
    assert "secret" not in reason


@every(["https://user:secret@host/x y", "ftp://user:se/cret@host", "user:secret@host:5000", "https://secret@host\n"])
def test_a_password_in_a_wrong_address_is_not_shown(address):
    for name in ("mirror_apt_crio", "mirror_images", "crio_apt_uri", "kubernetes_packages_apt_key"):
        (reason,) = refused(name, address)
        assert "cret" not in reason
    (reason,) = refused("crio_pause_image", "registry.example.org/pause@sha256:12")
    assert "pause@sha256:12" in reason


@every(["storage_path", "workload_image_folder"])
def test_folders_that_a_reset_clears_are_nobody_else_s(name):
    foreign = [
        "/usr",
        "/lost+found",
        "/opt/cni",
        "/opt/nvidia/x",
        "/var/log",
        "/var/lib/etcd",
        "/var/run/x",
        "/data",
        "/opt",
        "/srv",
        "/mnt",
        "/var/lib",
        "/var/local",
        "/home/someone/x",
        "/etc/x/y",
    ]
    foreign += ["/opt/../etc", "/opt//x", "/opt/x/", "opt/x", "/var/lib/kubelet/pods", "/opt/./x", "/usr/local/volumes"]
    assert [one for one in foreign if not refused(name, one)] == []
    assert [
        one for one in ("/opt/volumes", "/mnt/disk1/volumes", "/var/lib/volumes", "/data/k8s") if refused(name, one)
    ] == []


def test_the_folder_of_mps_is_none_of_the_driver_s():
    assert [
        one
        for one in ("driver", "toolkit", "validations", "mps/../driver")
        if not refused("device_plugin_mps_root", f"/run/nvidia/{one}")
    ] == []
    assert refused("device_plugin_mps_root", "/run/nvidia/mps2") == []


# A set that breaks each rule of several, in the order of the rules.
TOGETHER = [
    {"housekeeping_image_gc_low_percent": 85, "housekeeping_image_gc_high_percent": 85},
    {"housekeeping_shutdown_grace_critical_s": 70, "housekeeping_shutdown_grace_s": 60},
    {"prometheus_scrape_timeout_s": 6, "prometheus_scrape_interval_s": "5"},
    {"prometheus_retention_gib": 50, "prometheus_volume_gib": 50},
    {"prometheus_memory_request": "5Gi", "prometheus_memory_limit": "4096Mi"},
    {"grafana_memory_request": "1G", "grafana_memory_limit": "512Mi"},
    {"prometheus_node_port": 30030, "grafana_node_port": 30030},
    {"crio_metrics_port": 10250, "node_exporter_port": 9100},
    {"control_plane_pod_cidr": "10.100.0.0/16", "control_plane_service_cidr": "10.96.0.0/12"},
    {"control_plane_pod_cidr": "10.244.0.0/16", "calico_pod_cidr": "10.245.0.0/16"},
    {"control_plane_pod_cidr": "10.244.0.0/16", "control_plane_advertise_address": "10.244.0.1"},
    {"control_plane_service_cidr": "10.96.0.0/12", "control_plane_advertise_address": "10.96.0.9"},
    {"control_plane_service_cidr": "10.0.0.0/8"},
    {"calico_pod_cidr": "10.244.0.0/27", "calico_block_size": 26},
    {"control_plane_pod_cidr": "10.244.0.0/25"},
    {"kubernetes_minor": "1.35", "kubernetes_packages_version": "1.36.4"},
    {"kubernetes_packages_version": "1.35.8-1.1", "control_plane_version": "1.35.7"},
    {"kubernetes_minor": "1.35", "crio_version": "1.36.3"},
    {"kernel_sysctls": {"net.ipv4.ip_forward": "0"}},
    {"kernel_modules": ["overlay"]},
    {"node_exporter_port": 30090, "prometheus_node_port": 30090, "grafana_node_port": 30030},
    {"device_plugin_mig_profiles": ["1g.5gb", "2g.10gb"], "device_plugin_mig_strategy": "single"},
    {"kernel_sysctls_unit": "node-one.service", "swap_failsafe_unit": "node-one.service"},
    {"inference_namespace_account": "harness", "inference_namespace_replica_account": "harness"},
    {"nvidia_toolkit_handler": "nvidia", "runtime_class_handler": "other"},
    {"nvidia_driver_state": "managed", "node_gpu": "assumed"},
    {"nvidia_driver_state": "managed", "nvidia_driver_version": "575.57.08", "preflight_gpu_driver_min": "580.65.06"},
    {"device_plugin_sharing": "mps", "device_plugin_mig_strategy": "mixed"},
    {"device_plugin_sharing": "mps", "device_plugin_replicas": 49},
    {"device_plugin_mig_profiles": ["1g.5gb", "1g.5gb"], "device_plugin_mig_strategy": "none"},
    {"storage_path": "/opt/ours/volumes", "workload_image_folder": "/opt/ours"},
]


@every(list(zip(TOGETHER, TABLE.rules, strict=True)), lambda _, rule: " and ".join(rule[0]))
def test_values_that_do_not_fit_together_are_refused_with_both(broken, rule):
    (reason,) = TABLE.wrong(broken)
    assert set(broken) == set(rule[0])
    assert all(f"{name} ({value})" in reason for name, value in broken.items())
    assert reason.endswith(f"{rule[1]['say']}.")


# The kernel takes dots and slashes in a name, and the last of two that mean the same.
DOTTED, SLASHED = "net.ipv4.ip_forward", "net/ipv4/ip_forward"


@pytest.mark.parametrize(
    ("values", "forwards"),
    [
        ({}, False),
        ({"kernel.panic": "1"}, False),
        ({DOTTED: 1}, True),
        ({SLASHED: "1"}, True),
        ({"net.ipv4/ip_forward": "1"}, True),
        ({SLASHED: "0"}, False),
        ({DOTTED: "1", SLASHED: "0"}, False),
        ({DOTTED: "0", SLASHED: "1"}, True),
    ],
    ids=str,
)
def test_routing_is_on_however_its_parameter_is_written(values, forwards):
    reasons = list(TABLE.wrong({"kernel_sysctls": values}))
    assert [True] * len(reasons) == ["has to be there and 1" in reason for reason in reasons]
    assert (reasons == []) is forwards


ANY_TYPE = [None, float("nan"), float("inf"), [None], {"a": None}, [[]], b"bytes", object()]
# By type: what is of another, or no text of it.
WRONG = {
    "bool": [*ANY_TYPE, "perhaps", "", 2, -1, 0.5, "true\n", "nan", " true", "True False"],
    "int": [*ANY_TYPE, 10**18, 3.5, "1e3", "0x10", "1_0", " 5", "5 ", "5\n", "\u0665", "", "five", "5;", True, "-1"],
    "list": [*ANY_TYPE, "a,b", 7, [{"a": 1}]],
    "dict": [*ANY_TYPE, "a=b", 7, [1]],
    "str": ANY_TYPE,
}
BREAKS_OUT = ("\n", '"', "\n- evil: true", " #", "\x00", "'", "\\", "{{")


@every(sorted(OPTIONS))
def test_a_value_of_another_type_is_refused(name):
    assert [value for value in WRONG[OPTIONS[name]["type"]] if not refused(name, value)] == []


@every([name for name, option in OPTIONS.items() if option["type"] == "str" and name != "workload_image_requirements"])
def test_a_text_that_would_end_its_line_or_its_quotes_is_refused(name):
    assert [end for end in BREAKS_OUT if not refused(name, f"{tree.variables()[name]}{end}")] == []


@every([path.name for path in tree.playbooks() if path.name not in UNJUDGED])
def test_every_playbook_that_touches_a_machine_begins_with_the_judge(name):
    path = ROOT / name if name == "site.yml" else ROOT / "playbooks" / name
    first = load(path)[0]["ansible.builtin.import_playbook"]
    assert first == ("playbooks/node.yml" if name == "site.yml" else "judge.yml")


@pytest.mark.parametrize(
    ("run", "skip"), [(["all"], []), (["crio"], []), (["all"], ["always"]), (["crio"], ["always"]), (["all"], ["crio"])]
)
def test_the_judge_cannot_be_left_out_by_tags(run, skip):
    from ansible.playbook.block import Block
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task
    from ansible.template import trust_as_template

    (task,) = load(ROOT / "playbooks/judge.yml")[0]["tasks"]
    loaded = Task(block=Block(play=Play()))
    loaded.tags = [trust_as_template(task["tags"])]
    assert loaded.evaluate_tags(set(run), set(skip), {"ansible_run_tags": run, "ansible_skip_tags": skip})


def test_a_list_names_nothing_twice_but_profiles_of_which_several_are_wanted():
    assert TABLE.read("device_plugin_mig_profiles", ["1g.5gb"] * 7) == ["1g.5gb"] * 7
    assert refused("crio_pinned_images", ["localhost/a", "localhost/a"])


@every(sorted(judge.RENAMED))
def test_an_old_name_is_refused_with_the_new_one(name):
    assert judge.RENAMED[name] in TABLE.values
    assert list(TABLE.unknown([name])) == [f"{name} is called {judge.RENAMED[name]} now."]


def test_reasons_fit_on_one_line_however_long_the_value():
    (reason,) = refused("crio_pause_image", "x" * 100_000)
    assert len(reason) < 400
    json.dumps(reason)


def test_what_is_shared_has_two_slices_and_what_is_not_any_number():
    for sharing, replicas, right in (("exclusive", 1, True), ("time-slicing", 1, False), ("time-slicing", 500, True)):
        assert (not list(TABLE.wrong({"device_plugin_sharing": sharing, "device_plugin_replicas": replicas}))) == right


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"control_plane": ["one"]}, None),
        ({"workers": ["one"], "control_plane": ["two"]}, None),
        ({"control_plane": ["two"], "bastions": ["one"]}, []),
        ({"kube_control_plane": ["one"], "all": ["one"]}, ["(its groups: kube_control_plane)"]),
    ],
)
def test_an_inventory_whose_groups_have_other_names_is_refused_and_a_guest_in_ours_left_alone(groups, says):
    found = judge.in_no_group({"inventory_hostname": "one", "groups": groups})
    assert (found is None) == (says is None)
    assert [says[0] in reason for reason in found or []] == [True] * len(says or [])


def test_a_host_is_one_machine_with_a_name_of_its_own():
    groups = {"control_plane": ["one"], "workers": ["one", "two"]}
    (both,) = judge.misplaced({"inventory_hostname": "one", "groups": groups}, {})
    assert "one is in control_plane and in workers" in both
    names = {"worker_node_name": "controlplane", "control_plane_node_name": "controlplane"}
    (taken,) = judge.misplaced({"inventory_hostname": "two", "groups": groups}, names)
    assert "worker_node_name is controlplane" in taken


def test_the_control_plane_s_name_is_the_one_of_its_own_host():
    groups = {"control_plane": ["one"], "workers": ["two"]}
    hosts = {"one": {"control_plane_node_name": "head", "ansible_host": "192.0.2.1"}, "two": {}}
    host = {"inventory_hostname": "two", "groups": groups, "hostvars": hosts}
    given = {"worker_node_name": "head", "control_plane_node_name": "controlplane"}
    (taken,) = judge.misplaced(host, given)
    assert "worker_node_name is head, which is the control plane's" in taken
    shared = {**given, "worker_node_name": "controlplane", "device_plugin_sharing_of": {"head": "mps"}}
    assert list(judge.misplaced(host, shared)) == []


def test_two_control_planes_are_refused():
    (two,) = judge.one_control_plane({"groups": {"control_plane": ["one", "other"]}})
    assert "2 hosts (one, other)" in two


@every(["calico", "bridge", "none"])
def test_a_bridge_that_would_have_to_reach_a_worker_is_refused(network):
    found = list(judge.bridged_alone({"groups": {"workers": ["second"]}}, {"calico_network": network}))
    assert ["second" in reason and "Choose calico, or none" in reason for reason in found] == [True] * (
        network == "bridge"
    )
    assert list(judge.bridged_alone({"groups": {}}, {"calico_network": network})) == []


def test_an_inventory_of_its_own_need_not_have_our_group_variables():
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar

    action = judge.ActionModule.__new__(judge.ActionModule)
    action._loader = DataLoader()
    host = {"inventory_hostname": "one", "groups": {"control_plane": ["one"]}}
    action._templar = Templar(loader=action._loader, variables=host)
    assert list(action.reasons(host, {})) == []
    (reason,) = action.reasons(host | {"kubernetes_minor": "1.99"}, {})
    assert reason.startswith("kubernetes_minor is 1.99; the table of versions has ")


@pytest.mark.parametrize("version", ["2.16.3", "2.18.9rc1"])
def test_an_ansible_that_is_too_old_is_refused_before_anything_else_is_read(monkeypatch, version):
    monkeypatch.setattr(judge, "ansible_version", version)
    monkeypatch.setattr(judge.ActionBase, "run", lambda *_: {})
    said = object.__new__(judge.ActionModule).run(task_vars={"inventory_hostname": "one"})
    assert said["failed"]
    assert f"ansible-core {version}, and these playbooks need 2.19 or newer" in said["msg"]
    assert "pip install 'ansible-core>=2.19'" in said["msg"]
    assert [list(judge.too_old(one)) for one in ("2.19.0", "2.20.1", "2.21.0.dev0", "3.0.0")] == [[]] * 4


SUDO = {"rs": "sudo-rs 0.2.8", "ws": "Sudo version 1.9.17p2"}


@pytest.mark.parametrize(
    ("sudo", "given", "refused"),
    [
        ("rs", {"ansible_become_password": "x"}, True),
        ("rs", {}, False),
        ("ws", {"ansible_become_password": "x"}, False),
    ],
)
def test_a_sudo_whose_question_this_ansible_does_not_know_is_refused_where_it_would_ask(tmp_path, sudo, given, refused):
    for name in ("bin", "callback"):
        (tmp_path / name).mkdir()
    (tmp_path / "group_vars").symlink_to(ROOT / "inventory/group_vars")
    (tmp_path / "callback/tree_of_results.py").write_text(tree.CALLBACK)
    tree.programs(tmp_path / "bin", ["sudo"], f"#!/bin/sh\necho {SUDO[sudo]}\n")
    tree.programs(tmp_path / "bin", ["id"], "#!/bin/sh\necho 1000\n")
    settings = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ANSIBLE_ACTION_PLUGINS": str(tree.ACTIONS)}
    settings |= {"ANSIBLE_STDOUT_CALLBACK": "tree_of_results", "ANSIBLE_CALLBACK_PLUGINS": str(tmp_path / "callback")}
    text = "- hosts: all\n  gather_facts: false\n  tasks: [{name: Judge, judge_variables: {}}]\n"
    tree.play(
        tmp_path,
        text,
        {"all": {"children": {"control_plane": {"hosts": {"one": given}}}}},
        {},
        **settings,
        OUTCOMES=str(tmp_path / "outcomes.json"),
    )
    said = json.loads((tmp_path / "outcomes.json").read_text())["one"]
    assert refused == (said is not None and "sudo there is sudo-rs" in said), said
    assert refused or said is None


def test_an_ansible_that_knows_sudo_rs_is_not_in_its_way(monkeypatch):
    from ansible.plugins.become import BecomeBase

    tree.load_plugins()
    assert not judge.knows_sudo_rs()
    monkeypatch.setattr(BecomeBase, "check_password_prompt", lambda self, said: self.prompt.encode() in said)
    assert judge.knows_sudo_rs()


@pytest.mark.parametrize(("today", "warned"), [("2026-10-27", False), ("2026-10-28", True)])
def test_a_minor_that_has_ended_is_warned_of_with_its_date(today, warned):
    given = {"kubernetes_minor": "1.34", "preflight_end_of_life": "2026-10-27"}
    said = judge.ended(given, dt.date.fromisoformat(today))
    assert bool(said) is warned
    assert all("Kubernetes 1.34 has ended on 2026-10-27" in one for one in said)
