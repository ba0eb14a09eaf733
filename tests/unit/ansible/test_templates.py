"""Every template, rendered with the shipped variables, against the schema of what it becomes."""

import base64
import configparser
import json
import re
import tomllib

import pytest
import tree
import yaml
from fields import EVICTION_SIGNALS, unknown
from tree import ROOT, TEMPLATE_FILES, render

CONFIGURATION = {
    "kubeadm-init.yaml.j2",
    "kubeadm-join.yaml.j2",
    "kubelet-housekeeping.yaml.j2",
    "kubelet-serving.yaml.j2",
}
JOIN = {
    "join_endpoint": "192.0.2.1:6443",
    "join_token": "a.b",
    "join_ca_hash": "sha256:0",
    "inventory_hostname": "w",
    "api_server_settings": "0",
}
OBJECTS = [f"{name}.yaml.j2" for name in ("failed-pods", "local-path", "metrics-server", "runtime-class")]


def documents(name, **changed):
    return [one for one in yaml.safe_load_all(render(TEMPLATE_FILES[name], **{**JOIN, **changed})) if one]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "control_plane_kubeadm_ignore_preflight_errors": ["NumCPU"],
            "worker_kubeadm_ignore_preflight_errors": ["NumCPU"],
            "control_plane_advertise_address": "192.0.2.1",
            "control_plane_endpoint": "gpu.example.org",
            "control_plane_api_names": ["node.example"],
        },
    ],
    ids=["defaults", "everything set"],
)
@pytest.mark.parametrize("name", sorted(CONFIGURATION))
def test_every_configuration_has_only_fields_of_its_kind(name, changed):
    for document in documents(name, **changed):
        assert unknown(document) == []


def test_a_wrong_field_is_seen():
    assert unknown({"kind": "InitConfiguration", "nodeRegistration": {"crisocket": "x"}, "tokens": []}) == [
        "InitConfiguration.nodeRegistration.crisocket",
        "InitConfiguration.tokens",
    ]
    assert unknown({"kind": "ClusterConfiguration", "apiServer": {"extraArgs": {"v": "2"}}}) == [
        "ClusterConfiguration.apiServer.extraArgs"
    ]


NODE = {"name": "controlplane", "taints": [], "criSocket": "unix:///var/run/crio/crio.sock"}
NETWORKS = {"podSubnet": "10.244.0.0/16", "serviceSubnet": "10.96.0.0/12", "dnsDomain": "cluster.local"}
BETA = "kubeadm.k8s.io/v1beta4"
VERSION = f"v{tree.variables()['versions']['kubernetes']}"
DEFAULT = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
# Of a template and a kind, what is among what it writes.
WRITTEN = [
    # The token that kubeadm makes in any case, and nobody joins by, lasts a day where its life is left out.
    (
        "kubeadm-init",
        "InitConfiguration",
        {"apiVersion": BETA, "nodeRegistration": NODE, "bootstrapTokens": [{"ttl": "1m0s"}]},
    ),
    (
        "kubeadm-init",
        "ClusterConfiguration",
        {"apiVersion": BETA, "networking": NETWORKS, "kubernetesVersion": VERSION},
    ),
    ("kubeadm-init", "KubeletConfiguration", {"cgroupDriver": "systemd", "failSwapOn": True}),
    # kubeadm writes a zero.
    ("kubelet-housekeeping", "KubeletConfiguration", {"streamingConnectionIdleTimeout": "4h0m0s"}),
    ("local-path", "StorageClass", {"metadata": DEFAULT, "volumeBindingMode": "WaitForFirstConsumer"}),
]


def among(wanted, found):
    return (
        all(among(value, found[name]) for name, value in wanted.items())
        if isinstance(wanted, dict)
        else wanted == found
    )


@pytest.mark.parametrize(("name", "kind", "wanted"), WRITTEN, ids=str)
def test_a_template_writes_what_it_is_to(name, kind, wanted):
    (found,) = [one for one in documents(f"{name}.yaml.j2") if one["kind"] == kind]
    assert among(wanted, found), found


def test_the_folders_are_made_by_an_account_that_exists():
    (found,) = [one for one in documents("local-path.yaml.j2") if one["kind"] == "Deployment"]
    (account,) = [one for one in found["spec"]["template"]["spec"]["containers"][0]["env"] if "ACCOUNT" in one["name"]]
    assert account["valueFrom"] == {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}


def test_unattended_upgrades_leave_the_driver_and_its_kernel_alone():
    # As unattended-upgrades asks: a pattern at the beginning of a package's name.
    text = tree.render(ROOT / "roles/nvidia_toolkit/templates/kept.conf.j2")
    patterns = re.findall(r'^    "(.+)";$', text, re.MULTILINE)
    driver = ["nvidia-driver-580-server", "libnvidia-compute-580", "nvidia-dkms-580-open", "cuda-drivers-580"]
    kernel = [
        "linux-image-6.14.0-29-generic",
        "linux-modules-nvidia-580-generic",
        "linux-generic",
        "linux-headers-amd64",
    ]
    others = ["linux-libc-dev", "linux-base", "openssh-server", "libc6", "apt"]
    assert [
        name for name in [*driver, *kernel, *others] if any(re.match(one, name) for one in patterns)
    ] == driver + kernel


def test_every_wait_of_kubeadm_is_as_long_as_the_role_says():
    (init,) = [one for one in documents("kubeadm-init.yaml.j2", control_plane_timeout_s="77") if "timeouts" in one]
    assert init["timeouts"] == dict.fromkeys(
        ("kubernetesAPICall", "etcdAPICall", "controlPlaneComponentHealthCheck", "kubeletHealthCheck"), "77s"
    )
    given = {"join_endpoint": "a:1", "join_token": "t", "join_ca_hash": "h", "worker_timeout_s": "77"}
    (join,) = documents("kubeadm-join.yaml.j2", **given)
    assert join["timeouts"] == dict.fromkeys(
        ("discovery", "kubernetesAPICall", "kubeletHealthCheck", "tlsBootstrap"), "77s"
    )


def test_a_worker_joins_with_what_the_control_plane_said():
    said = "kubeadm join 192.0.2.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:12ab "
    (block,) = [one["block"] for one in tree.load(ROOT / "roles/worker/tasks/join.yml") if "block" in one]
    (task,) = [one for one in block if "vars" in one]
    words = {"__worker_words": tree.load(ROOT / "roles/worker/vars/main.yml")["__worker_words"]}
    found = tree.template(words | task["vars"], {"__worker_token": {"stdout": said}})
    found.pop("__worker_words")
    (document,) = documents("kubeadm-join.yaml.j2", **found)
    assert document["discovery"]["bootstrapToken"] == {
        "apiServerEndpoint": "192.0.2.1:6443",
        "token": "abcdef.0123456789abcdef",
        "caCertHashes": ["sha256:12ab"],
    }


def test_every_eviction_signal_is_named_because_one_left_out_is_switched_off():
    (kubelet,) = documents("kubelet-housekeeping.yaml.j2")
    assert set(kubelet["evictionHard"]) == EVICTION_SIGNALS
    assert kubelet["imageGCLowThresholdPercent"] < kubelet["imageGCHighThresholdPercent"]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({}, []),
        ({"node_address": "192.0.2.10"}, ["--node-ip=192.0.2.10"]),
        ({"node_kubelet_arguments": {"max-pods": 250, "v": "4"}}, ["--max-pods=250", "--v=4"]),
    ],
)
def test_the_kubelet_has_the_address_and_the_arguments_of_its_machine(given, arguments):
    found = tree.template(
        tree.load(ROOT / "roles/housekeeping/vars/main.yml"), given, ["__housekeeping_kubelet_arguments"]
    )
    assert found["__housekeeping_kubelet_arguments"] == ["--config-dir=/etc/kubernetes/kubelet.conf.d", *arguments]


def test_calico_has_the_control_plane_s_addresses_and_vxlan():
    (installation,) = documents("calico-installation.yaml.j2")
    network = installation["spec"]["calicoNetwork"]
    (pool,) = network["ipPools"]
    assert (pool["cidr"], pool["encapsulation"], network["bgp"]) == ("10.244.0.0/16", "VXLAN", "Disabled")
    assert "mtu" not in network
    # Of an Installation that the operator has completed before, its own way has to go, for it refuses two.
    assert network["nodeAddressAutodetectionV4"] == {"firstFound": False, "kubernetes": "NodeInternalIP"}
    # What the operator would write in, and the next run take out again.
    assert {name: pool[name] for name in ("allowedUses", "assignmentMode", "disableNewAllocations")} == {
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
        "disableNewAllocations": False,
    }
    assert documents("calico-installation.yaml.j2", calico_mtu=1400)[0]["spec"]["calicoNetwork"]["mtu"] == 1400


def test_a_bridge_has_the_control_plane_s_addresses():
    written = render(ROOT / "roles/calico/templates/bridge.conflist.j2", calico_mtu="1400")
    bridge, ports = json.loads(written)["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.0.0/16"}]]
    assert (bridge["mtu"], ports["type"]) == (1400, "portmap")


def test_a_bridge_s_cables_keep_the_hardware_address_that_cni_gave_them():
    # systemd's own default is `persistent`: the bridge plugin then finds another address than it noted, and fails the pod
    link = configparser.ConfigParser()
    link.read_string(render(ROOT / "roles/kernel/templates/pod-veth.link.j2"))
    assert dict(link["Match"]) == {"driver": "veth", "originalname": "veth*"}
    assert link["Link"]["MACAddressPolicy"] == "none"


def test_the_clean_up_is_bounded_and_selects_failed_pods_alone():
    job = next(one for one in documents("failed-pods.yaml.j2") if one["kind"] == "CronJob")["spec"]
    (container,) = job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert "--field-selector=status.phase=Failed" in container["command"]
    assert container["command"][1:3] == ["delete", "pods"]
    assert job["jobTemplate"]["spec"]["activeDeadlineSeconds"] <= 600
    assert job["concurrencyPolicy"] == "Forbid"


def drop_in(role, name, **changed):
    return tomllib.loads(render(ROOT / "roles" / role / "templates" / name, **changed))


def test_crio_is_configured_as_toml():
    assert "global_auth_file" not in drop_in("crio", "crio.conf.j2")["crio"]["image"]
    crio = drop_in("crio", "crio.conf.j2")["crio"]
    assert crio["runtime"]["cgroup_manager"] == "systemd"
    assert crio["image"]["short_name_mode"] == "enforcing"
    assert crio["image"]["pinned_images"] == ["localhost/gpu-sharing-harness/*"]
    assert crio["image"]["pause_image"] == tree.variables()["versions"]["images"]["pause"]
    assert crio["metrics"] == {"enable_metrics": True, "metrics_host": "127.0.0.1", "metrics_port": 9537}


def test_registries_that_want_a_login_get_it_from_a_file_of_crio_s_own():
    logins = {"mirror.example:5000": "ada:se:cret", "other.example": "b:c"}
    found = tree.template(
        {"auth": (ROOT / "roles/crio/templates/auth.json.j2").read_text()}, {"mirror_logins": logins}
    )["auth"]
    auths = json.loads(found)["auths"] if isinstance(found, str) else found["auths"]
    assert {host: base64.b64decode(one["auth"]).decode() for host, one in auths.items()} == logins
    image = drop_in("crio", "crio.conf.j2", mirror_logins=logins, __crio_auth="/etc/crio/auth.json")["crio"]["image"]
    assert image["global_auth_file"] == "/etc/crio/auth.json"


def test_the_handler_has_its_monitor_or_crio_would_not_start():
    (name, handler), *others = drop_in("nvidia_toolkit", "handler.conf.j2")["crio"]["runtime"]["runtimes"].items()
    assert (name, others) == ("nvidia", [])
    assert handler == {
        "runtime_path": "/usr/bin/nvidia-container-runtime",
        "runtime_type": "oci",
        "runtime_root": "/run/crun",
        "monitor_path": "/usr/libexec/crio/conmon",
    }


def test_every_registry_of_the_table_is_mirrored_under_its_own_name():
    rendered = drop_in("crio", "registries.conf.j2", mirror_images="mirror.example:5000", mirror_images_insecure=True)
    locations = {one["prefix"]: one["mirror"][0] for one in rendered["registry"]}
    assert locations["quay.io"] == {"location": "mirror.example:5000/quay.io", "insecure": True}
    table = tree.variables()
    images = [
        *table["versions"]["images"].values(),
        *table["versions_calico"][table["calico_version"]]["images"].values(),
    ]
    assert {image.partition("/")[0] for image in images} <= set(locations)


def test_the_failsafe_runs_before_the_kubelet():
    unit = render(ROOT / "roles/swap/templates/swapoff.service.j2")
    assert re.search(r"^Before=.*kubelet\.service", unit, re.MULTILINE)
    assert "WantedBy=multi-user.target" in unit


# What is quoted, or made of constants by a macro, which is looked at itself.
CONSTANTS = r"'[^{}|]*'(, \w+=(true|false))?|\d+"
QUOTED = re.compile(rf"\{{\{{ (.+ \| (tojson|int|lower)|(parts\.\w+|object)\(({CONSTANTS})\)) \}}\}}")
# Constants of the templates themselves, sums that are hexadecimal, and what the judge of variables leaves no quote in.
PLAIN = {
    *("ansible_managed", "job", "namespace", "path", "group", "chosen | join(', ')", "resource", "kind"),
    *("counter", "quantile", "gpu_smoke_id", "grafana_checksum", "prometheus_checksum"),
    *("prometheus_rate_window_s", "nvidia_toolkit_handler", "field", "about.type", "about.help", "name"),
    *("name if name in ('prometheus.yml', 'promtool.yml') else 'rules/' ~ name",),
    "'NodePort' if service_exposure == 'nodeport' else 'ClusterIP'",
    "'mps' if mps else 'timeSlicing'",
    *("daemon_set('mps-control-daemon')", "daemon_set('device-plugin')"),
    *("object('apps/v1', 'DaemonSet', app, own)", "object('v1', 'ConfigMap', 'device-plugin', own)"),
}
STRUCTURED = [path for path in TEMPLATE_FILES.values() if path.name != "replicas.yaml.j2"]
STRUCTURED.append(ROOT / "roles/addons/templates/parts.j2")
STRUCTURED += [
    ROOT / f"roles/{name}.conf.j2"
    for name in ("crio/templates/crio", "crio/templates/registries", "nvidia_toolkit/templates/handler")
]


@pytest.mark.parametrize("path", STRUCTURED, ids=lambda path: path.name)
def test_every_scalar_is_quoted_where_it_is_rendered(path):
    found = re.findall(r"\{\{ .*? \}\}", path.read_text())
    assert [one for one in found if not QUOTED.fullmatch(one) and one[3:-3] not in PLAIN] == []


def from_the_command_line():
    """Every number and truth value as `-e name=value` gives it: as text."""
    given = {}
    for role in tree.ROLES:
        options = tree.load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
        for name, option in options.items():
            if option["type"] in ("int", "bool"):
                given[name] = str(tree.variables()[name]).lower()
    return given


@pytest.mark.parametrize("name", OBJECTS)
def test_numbers_and_truth_values_may_come_from_the_command_line(name):
    assert render(TEMPLATE_FILES[name], **from_the_command_line()) == render(TEMPLATE_FILES[name])


def test_no_arithmetic_and_no_condition_takes_a_variable_as_text():
    """`calico_timeout_s=40` is text: a division by 5 fails, and "false" is true."""
    names = "|".join(from_the_command_line())
    wrong = []
    for path in [*tree.task_files(), *sorted((ROOT / "roles").glob("*/vars/main.yml")), *tree.playbooks()]:
        for line in path.read_text().splitlines():
            bare = re.search(
                rf"((?:when:|that:|fails:|if|and|or|not|[-+*/<>=]) *(?:{names})\b(?! *\| *(?:int|bool))|\b(?:{names}) *[-+*/<>]=? )",
                line,
            )
            if bare and not line.strip().startswith("#"):
                wrong.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert wrong == []


def test_without_a_mirror_the_list_of_registries_is_empty_and_still_ours():
    assert drop_in("crio", "registries.conf.j2", mirror_images="") == {}


def test_crio_starts_anew_for_our_own_files_alone():
    (task,) = [task for task in tree.load(ROOT / "roles/crio/tasks/main.yml") if "node_state" in task]
    (unit,) = task["node_state"]["units"]
    own = tree.load(ROOT / "roles/crio/vars/main.yml")
    # What buildah's dependency brings (shortnames.conf) lies in the same folder.
    assert unit["paths"] == ["/usr/bin/crio", "{{ __crio_drop_ins }}", "{{ __crio_registries }}", "{{ __crio_proxy }}"]
    assert own["__crio_registries"].endswith(".conf")


def test_logind_allows_the_kubelet_s_period_whatever_a_package_says():
    (task, *_) = tree.load(ROOT / "roles/housekeeping/tasks/main.yml")
    own = tree.load(ROOT / "roles/housekeeping/vars/main.yml")
    path = own["__housekeeping_logind"]
    assert path.rpartition("/")[2] > "unattended-upgrades-logind-maxdelay.conf"
    (file,) = [one for one in task["node_state"]["files"] if "logind" in one["path"]]
    assert tree.template(file, {**own, "housekeeping_shutdown_grace_s": "90"}) == {
        "path": path,
        "content": "[Login]\nInhibitDelayMaxSec=90\n",
    }
    assert "{{ __housekeeping_logind }}" in task["vars"]["__housekeeping_kubelet"]["paths"]
