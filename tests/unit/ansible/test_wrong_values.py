"""A thousand wrong values and forty inventories, made from a seed: every one is refused with a sentence, and what is right is not."""

import functools
import itertools
import random
import re
import tempfile
from pathlib import Path

import tree
from tree import ROOT

from tests.support.cases import every

judge = tree.action("judge_variables")
TABLE = tree.judged()
SEED, WRONG_VALUES = 20261128, 1000
SHA, FINGERPRINT = "a" * 64, "AB" * 20
# By kind of text: what is right, what is not. Every kind of kinds.yml is here.
SAMPLES = {
    "addon": (["kepler"], ["kepler2", "Kepler", "grafana"]),
    "address": (
        ["192.0.2.10", ""],
        [
            "192.0.2.256",
            "192.0.2",
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "1.2.3.4/24",
            "01.2.3.4",
        ],
    ),
    "api_name": (["*.example.org", "192.0.2.1"], ["gpu.example.org:6443", "Gpu.example.org", "a_b", "-a", "https://a"]),
    "apt_key": (["Release.key", "https://h/gpgkey"], ["a b", "../../etc/x y", "ftp://h/k"]),
    "architecture": (["aarch64"], ["amd64", "arm64", "X86_64"]),
    "calendar": (
        ["daily", "*-*-* 03:00:00", "*-*-* */6:00:00"],
        ["*-*-* 25:00:00", "weekly", "3:00", "*-*-* 03:60:00", "*-*-* 03:00:00\n"],
    ),
    "capability": (["7.5"], ["7", "sm_75", "7.55", "75"]),
    "cni_file": (["/etc/cni/net.d/1.conf"], ["/etc/cni/net.d/../x", "/etc/passwd", "1.conf"]),
    "collector": (["cpu_freq"], ["CPU", "cpu freq", "cpu__x", "--no"]),
    "cpus": (["2", "500m", 0.5], ["0", "2 cores", "-1", "5000", "0.0001", "1e3"]),
    "cron": (
        ["17 * * * *", "*/5 0-6 1,15 * 0"],
        [
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "0 0 * * 7",
            "5-1 * * * *",
            "@daily",
            "*/0 * * * *",
        ],
    ),
    "date": (["2027-02-28"], ["2027-02-30", "28.02.2027", "2027-2-28", "20270228"]),
    "dcgm_field": (["DCGM_FI_DEV_GPU_UTIL"], ["dcgm_fi_dev_gpu_util", "DCGM_FI_A, gauge"]),
    "dcgm_help": (["GPU use (in %)."], ["one, two", 'a "b"', ""]),
    "dcgm_type": (["gauge"], ["histogram", "Gauge"]),
    "device_folder": (["/run/nvidia/mine"], ["/run/nvidia", "/run/nvidia/driver", "/run/nvidia/../x", "/run/nvidia/A"]),
    "digest": ([f"sha256:{SHA}", ""], ["sha256:12", f"md5:{SHA}", SHA]),
    "distribution": (["debian"], ["Debian", "debian 12", ""]),
    "distribution_version": (["24.04", "12"], ["noble", "24.", "24.04.1.1"]),
    "dns_name": (["cluster.local"], ["cluster.local.", "Cluster", "a_b", "a..b", "-a", "a" * 64]),
    "dra_feature": (["MPSSupport"], ["mpssupport", "All"]),
    "driver": (["580", "580.95.05"], ["58", "580-open", "580.95.05-1", "latest", "v580"]),
    "duration": (["24h", "1h30m", "90s"], ["30s", "", "24", "1d", "24 h", "9000h", "-1h", "1m1h"]),
    "endpoint": (
        ["gpu.example.org", "192.0.2.1:6443", ""],
        [
            "gpu.example.org:0",
            "gpu.example.org:70000",
            "999.1.1.1",
            "10.0.0",
            "127.0.0.1",
            "localhost",
            "localhost:6443",
            "https://gpu",
            "GPU",
            "a:6443/x",
        ],
    ),
    "eviction_signal": (["memory.available"], ["memory.free", "Memory.available"]),
    "file_name": (["a.yaml"], ["a/b", "..", ".a", ""]),
    "fingerprint": ([FINGERPRINT, ""], [FINGERPRINT[1:], "Z" * 40, " " * 40]),
    "folder": (["/", "/var/lib"], ["var/lib", "/var/../etc", "/var//lib", "/var/lib/", "/a b"]),
    "handler": (["nvidia-2"], ["crun", "runc", "nvidia.x", "N", ""]),
    "image": (
        ["registry.k8s.io/pause:3.10", "h:5000/a/b", f"h.example/a@sha256:{SHA}"],
        [
            "pause:3.10",
            "h:0/a:1",
            "h:99999/a:1",
            "https://h.example/a",
            "h.example/A",
            "h.example/a:",
            "h.example/a@sha256:1",
            "h.example/",
        ],
    ),
    "image_name": (["localhost/a/b"], ["localhost/a:1", "registry.k8s.io/a", "localhost"]),
    "image_pattern": (["localhost/a/*"], ["*", "a*b", ""]),
    "image_tag": (["1.0", ""], ["a b", "-a", "a/b", "a" * 129]),
    "job": (["node-exporter"], ["node_exporter", "A", ""]),
    "journal_size": (["1G", "500M"], ["1", "0G", "1GiB", "1 G", "-1G"]),
    "kubeadm_check": (["NumCPU", "all"], ["Num CPU", "--x", ""]),
    "kubelet_argument": (["max-pods"], ["--max-pods", "maxPods", "config", "node-ip", "kubeconfig"]),
    "kubelet_value": (["250", 250, "a=b,c=d"], ["a b", "", 'a"', "a;b"]),
    "label": (["nvidia"], ["Nvidia", "a.b", "-a", "a" * 64, ""]),
    "label_key": (["example.org/rack", "rack"], ["a/b/c", "/a", "a b", "", "a" * 64]),
    "label_value": (["a", "", 3], ["a b", "-a", "a" * 64, "a/b"]),
    "label_or_empty": (["fast", ""], ["Fast", "a_b"]),
    "link_folder": (["/usr/local/bin", "/opt/x/bin"], ["/usr/bin", "/opt/bin", "/usr/local/bin/", "bin"]),
    "local_file": (
        ["", "ca.crt"],
        ["/nowhere/ca.crt", "/etc/hostname", "~/nowhere.crt", "~no-such-user/ca.crt", "a b"],
    ),
    "login": (["ada:s:ecret"], ["ada", ":secret", "ada:", "ada: x", "a da:x"]),
    "memory": (["512Mi", "4Gi", 536870912], ["512MB", "4Gib", "1Mi", "0", "-1Gi", "20Ti", "1.5Gi", "512 Mi"]),
    "mig_profile": (["1g.5gb", "1g.10gb+me", "1c.3g.20gb"], ["8g.80gb", "1g", "1g.5GB", "1g5gb", "0g.5gb"]),
    "minor": (["1.35"], ["1.35.8", "v1.35", "1", "2.0", "1.4"]),
    "module": (["overlay"], ["a b", "a/b", "", "a.ko"]),
    "modules_file": (
        ["/etc/modules-load.d/my-node.conf"],
        ["/etc/modules-load.d/x.conf", "/etc/modules-load.d/node", "/etc/modules"],
    ),
    "network": (
        ["10.244.0.0/16"],
        ["10.244.0.1/16", "10.244.0.0", "10.244.0.0/33", "fd00::/64", "10.244.0.0/255.255.0.0", "300.0.0.0/8"],
    ),
    "no_proxy": (["a.example,.b.example,10.0.0.0/8", ""], ["a, b", "a;b", "a,,b", ",a"]),
    "node_name": (["gpu-1", "gpu-1.example.org"], ["GPU-1", "gpu_1", "a" * 64, f"{'a' * 40}.{'b' * 40}", "a..b", ""]),
    "node_unit": (["node-mine.service"], ["node-mig.service", "ssh.service", "node-a", "node-A.service"]),
    "own_folder": (
        ["/opt/volumes"],
        ["/opt", "/etc/x", "/home/ada/x", "/var/lib", "/opt/../etc", "/var/lib/kubelet/x"],
    ),
    "own_namespace": (["inference"], ["default", "kube-system", "monitoring", "A", "a.b"]),
    "package": (["libc6-dev"], ["Libc6", "a b", "-x", "a"]),
    "pip_setting": (["index-url"], ["index_url", "user", "--index-url"]),
    "pip_value": (["https://h/simple"], ["a\nb", 'a"', "a  b", ""]),
    "proxy": (
        ["http://u:p@proxy:3128", ""],
        ["proxy:3128", "http://p:99999", "http://p:0", "socks5://p:1", "http://p:3128/x", "http://u:p w@p"],
    ),
    "proxy_variable": (["no_proxy"], ["NO_PROXY", "ftp_proxy"]),
    "proxy_value": (["http://p:1"], ["a b", "", "a\n"]),
    "quiet_unit": (["apt-daily.timer"], ["ssh.service", "node-etcd-snapshot.timer", "a b.timer"]),
    "registry": (
        ["mirror.example:5000/prefix", ""],
        ["https://mirror.example", "m:99999", "m:0/a", "Mirror", "m/", "u:p@m"],
    ),
    "registry_host": (["mirror.example:5000"], ["mirror.example/a", "m:70000", "m:0", "", "https://m"]),
    "repository": (["h.example/team/a", ""], ["h.example", "h:0/a", "h.example/a:1", "h.example/A"]),
    "resource": (["pods"], ["secrets", "Pods"]),
    "runtime": (["/usr/libexec/crio/crun"], ["crun", "/usr/bin/bash", "/home/x/crun", "/usr/../x/crun"]),
    "service_port": (["prometheus:9090", "a:web"], ["prometheus", "prometheus:0", "prometheus:70000", "A:1"]),
    "sha256": ([SHA], [SHA[1:], SHA.upper(), f"sha256:{SHA}"]),
    "sharing_way": (
        ["mps:4", "exclusive", "time-slicing:10"],
        ["mps:1", "mps:49", "exclusive:2", "time-slicing:1", "mig", "mps:", "mps:04"],
    ),
    "size": (["20Mi", 1048576], ["20MB", "1Ki", "2Ti", "0"]),
    "suite": (["noble-updates"], ["noble updates", "Noble", "noble/updates"]),
    "sysctl": (["net.ipv4.ip_forward"], ["ip_forward", "net ipv4", "net.ipv4.a=1", "../x"]),
    "sysctl_value": (["1", 1, "4096 87380 6291456"], ["", " 1", "1\n", "a..b", 'a"']),
    "sysctls_file": (
        ["/etc/sysctl.d/99-node.conf"],
        ["/etc/sysctl.conf", "/etc/sysctl.d/x.conf", "/etc/sysctl.d/node"],
    ),
    "taint": (["example.org/a=b:NoSchedule", "a:NoExecute"], ["a=b", "a:Never", "a=b:noschedule", ":NoSchedule"]),
    "text": (["a\nb", ""], ["\x00", "\u00e9", "a\tb"]),
    "threshold": (["5%", "500Mi"], ["100%", "5 %", "-5%", "0Mi"]),
    "uri": (
        ["https://h/a", "http://h:8080/"],
        ["h/a", "ftp://h", "http://h:99999/", "http://h:0/", "http:// h", "http:///a", ""],
    ),
    "uri_or_empty": (["", "http://u:p@h:80/a"], ["h/a", "file:///a", "http://h:65536"]),
    "user": (["ada"], ["a b", "1ada", "", "a:b", "-x"]),
    "version": (["1.35.8", "1.35.8-1.1"], ["1", "v1.35.8", "latest", "1.35.*", "1.35.8 "]),
}
NO_TEXT = [None, True, float("nan"), float("inf"), [None], {"a": 1}, b"x", object()]
# What would end a line, a quote or a value where it is written down; `text` alone may have lines.
BREAKS_OUT = ["\n", "\r", "\x00", '"', "\n- evil: true", " #", "{{ 1 }}", "$(id)", "`id`", "\u2028", "\u0665"]


def wrong_text(kind, draw):
    right, wrong = SAMPLES[kind]
    broken = [f"{sample}{end}" for sample in right if isinstance(sample, str) and sample for end in BREAKS_OUT]
    return draw.choice(
        [
            draw.choice(wrong),
            draw.choice(NO_TEXT),
            draw.choice(broken or wrong) if kind not in ("text", "pip_value", "login") else draw.choice(wrong),
        ]
    )


def right_of(kind, draw):
    if isinstance(kind, list):
        return [right_of(kind[0], draw)]
    if isinstance(kind, dict):
        return {name: right_of(inner, draw) for name, inner in kind.items()}
    return draw.choice(SAMPLES[kind][0])


def wrong_of(kind, draw):
    if isinstance(kind, list):
        return draw.choice([right_of(kind[0], draw), None, [wrong_of(kind[0], draw)]])
    if isinstance(kind, dict):
        broken = draw.choice(sorted(kind))
        whole = right_of(kind, draw)
        return draw.choice([{**whole, broken: wrong_of(kind[broken], draw)}, {**whole, "more": "x"}, {}, "x"])
    return wrong_text(kind, draw)


def outside(ranges, draw):
    edges = [edge for least, most in ranges for edge in (least - 1, most + 1)]
    numbers = [edge for edge in [*edges, 10**18, -(10**9)] if not any(least <= edge <= most for least, most in ranges)]
    number = draw.choice(numbers)
    return draw.choice(
        [
            number,
            str(number),
            ranges[0][0] + 0.5,
            "five",
            f"{ranges[0][0]} ",
            f"{ranges[0][0]}s",
            "",
            None,
            True,
            [1],
            "0x10",
        ]
    )


def wrong_value(may, draw):
    """A value that a variable must not have, whatever it is."""
    if may["type"] == "bool":
        return draw.choice(["yes please", "", 2, -1, 0.5, None, "true\n", " true", [], {}, "ja", "1.0"])
    if may["type"] == "int":
        return outside(may["ranges"], draw)
    if may["type"] == "list":
        one = right_of(may["of"], draw)
        twice = [one, one] if may["of"] != "mig_profile" else None
        return draw.choice(
            [one if not isinstance(one, list) else None, twice, [one, wrong_of(may["of"], draw)], {"a": one}, 7]
        )
    if may["type"] == "dict":
        key, value = right_of(may["key"], draw), right_of(may["of"], draw)
        return draw.choice(
            [
                {draw.choice(SAMPLES[may["key"]][1]): value},
                {key: wrong_of(may["of"], draw)},
                [key],
                str(key),
                None,
            ]
        )
    if "choices" in may:
        choice = draw.choice(may["choices"])
        near = [choice.upper(), f"{choice} ", f"{choice}\n", choice[:-1], f"{choice}{choice}", "", None, True, [choice]]
        return draw.choice([value for value in near if value not in may["choices"]])
    return wrong_text(may["of"], draw)


def test_every_kind_of_text_has_its_samples():
    assert set(SAMPLES) == set(TABLE.kinds)


@every(sorted(SAMPLES))
def test_the_samples_of_a_kind_are_right_and_wrong(kind):
    def takes(value):
        try:
            TABLE.text(kind, value)
        except judge.WrongValueError:
            return False
        return True

    right, wrong = SAMPLES[kind]
    assert [sample for sample in right if not takes(sample)] == []
    assert [sample for sample in wrong if takes(sample)] == []


def right_values(option):
    """Values that a variable may have: the ends of its ranges, its choices, the samples of its kind, and collections with and without any."""
    if option["type"] == "bool":
        return [True, False]
    if option["type"] == "int":
        return [end for ends in option["ranges"] for end in ends]
    if option["type"] == "list":
        return [[], SAMPLES[option["of"]][0]]
    if option["type"] == "dict":
        (value, *_), _ = SAMPLES[option["of"]]
        return [{}, dict.fromkeys(SAMPLES[option["key"]][0], value)]
    return option.get("choices") or SAMPLES[option["of"]][0]


@every([(names,) for names, _ in TABLE.rules], " and ".join)
def test_a_rule_answers_for_all_that_its_variables_may_be(names):
    for values in itertools.product(*(right_values(TABLE.values[name]) for name in names)):
        reasons = list(TABLE.wrong(dict(zip(names, values, strict=True))))
        assert [reason for reason in reasons if "; it has to be " in reason] == []


def test_a_thousand_wrong_values_are_all_refused_with_a_sentence():
    draw = random.Random(SEED)
    names = sorted(TABLE.values)
    accepted, speechless = [], []
    for number in range(WRONG_VALUES):
        name = names[number % len(names)]
        value = wrong_value(TABLE.values[name], draw)
        reasons = list(TABLE.wrong({name: value}))
        if not reasons:
            accepted.append((name, value))
        elif not (
            reasons[0].startswith(f"{name} is ")
            and "; it has to be " in reasons[0]
            and "\n" not in reasons[0]
            and len(reasons[0]) < 500
        ):
            speechless.append((name, value, reasons))
    assert (accepted, speechless) == ([], [])


def test_right_values_drawn_as_often_are_refused_only_for_what_stands_beside_them():
    draw = random.Random(SEED)
    refused = []
    for name in sorted(TABLE.values):
        may = TABLE.values[name]
        if "of" not in may:
            continue
        value = {
            "list": lambda may: [right_of(may["of"], draw)],
            "dict": lambda may: {right_of(may["key"], draw): right_of(may["of"], draw)},
        }.get(may["type"], lambda may: right_of(may["of"], draw))(may)
        refused += [(name, value, reason) for reason in TABLE.wrong({name: value}) if "; it has to be " in reason]
    assert refused == []


ONE = {"gpu-1": {"ansible_host": "192.0.2.10"}}
TWO = {"gpu-2": {"ansible_host": "192.0.2.11"}}
JUMP = {"ansible_ssh_common_args": "-o ProxyJump=ada@jump.example.org"}


def inventory(plane=ONE, workers=(), /, groups=(), **variables):
    """An inventory of this project's two groups, or of others."""
    children = {"control_plane": {"hosts": plane}, "workers": {"hosts": workers}, **dict(groups)}
    for group in [group for group in children.values() if group and group["hosts"]]:
        # The group variables of the project come before those of a whole inventory.
        group["hosts"] = {name: {**variables, **own} for name, own in dict(group["hosts"]).items()}
    return {
        "all": {"children": {name: group for name, group in children.items() if group and group["hosts"] is not None}}
    }


# An inventory, and what is said of one of its hosts; nothing where it is right.
INVENTORIES = {
    "one machine": (inventory(), None),
    "this machine": (inventory({"localhost": {"ansible_connection": "local"}}), None),
    "a worker": (inventory(ONE, TWO), None),
    "a jump host": (inventory(ONE, TWO, **JUMP), None),
    "a bastion beside them": (inventory(ONE, TWO, groups={"bastions": {"hosts": {"jump": {}}}}), None),
    "the same address behind two jump hosts": (
        inventory(
            {"gpu-1": {"ansible_host": "10.0.0.5", **JUMP}},
            {"gpu-2": {"ansible_host": "10.0.0.5", "ansible_ssh_common_args": "-J other"}},
        ),
        None,
    ),
    "two ports of one address": (inventory(ONE, {"gpu-2": {"ansible_host": "192.0.2.10", "ansible_port": 2222}}), None),
    "the same machine twice": (inventory(ONE, {"gpu-2": ONE["gpu-1"]}), "is the same machine as gpu-"),
    "the same worker twice": (inventory(ONE, {**TWO, "gpu-3": TWO["gpu-2"]}), "is the same machine as gpu-"),
    "a host in both groups": (inventory(ONE, ONE), "gpu-1 is in control_plane and in workers"),
    "the machine that runs Ansible as a worker": (inventory(ONE, {"localhost": {"ansible_connection": "local"}}), None),
    "every machine is the one that runs Ansible": (
        inventory(ONE, TWO, ansible_connection="local"),
        "is the same machine as gpu-",
    ),
    "groups of kubespray": (
        inventory(None, groups={"kube_control_plane": {"hosts": ONE}, "workers": None}),
        "The inventory has no host in the group control_plane",
    ),
    "an empty control plane": (inventory({}, TWO), "The inventory has no host in the group control_plane"),
    "two control planes": (inventory({**ONE, **TWO}), "The group control_plane has 2 hosts (gpu-1, gpu-2)"),
    "a name with an underscore": (inventory(ONE, {"gpu_2": {}}), "worker_node_name is"),
    "a name in capitals": (inventory(ONE, {"GPU-2": {}}), "worker_node_name is"),
    "a name that is an address": (inventory(ONE, {"192.0.2.11": {}}), None),
    "a name that is too long for a label": (inventory(ONE, {f"{'gpu-' * 16}.example.org": {}}), "worker_node_name is"),
    "a worker that is called as the control plane": (
        inventory(ONE, {"controlplane": {}}),
        "which is the control plane's",
    ),
    "two workers of one name": (
        inventory(ONE, {"gpu-2": {"worker_node_name": "gpu"}, "gpu-3": {"worker_node_name": "gpu"}}),
        "worker_node_name is gpu, which gpu-",
    ),
    "a proxy with a login": (
        inventory(http_proxy="http://ada:s%40cret@proxy.example:3128", no_proxy=".example.org"),
        None,
    ),
    "a proxy without http": (inventory(https_proxy="proxy.example:3128"), "https_proxy is not shown; it has to be"),
    "a proxy at no port": (inventory(https_proxy="http://proxy.example:0"), "https_proxy is not shown; it has to be"),
    "mirrors for all": (
        inventory(
            mirror_apt_crio="http://m/crio",
            mirror_apt_kubernetes="http://m/k8s/",
            mirror_images="m:5000/all",
            mirror_files="http://m/files",
        ),
        None,
    ),
    "a mirror with a login": (
        inventory(
            mirror_images="m:5000", mirror_logins={"m:5000": "ada:secret"}, mirror_apt_crio="https://ada:secret@m/crio"
        ),
        None,
    ),
    "a mirror with half a login": (
        inventory(mirror_logins={"m:5000": "ada"}),
        "mirror_logins is not shown; it has to be",
    ),
    "a mirror as an address": (inventory(mirror_images="https://m:5000"), "mirror_images is"),
    "an authority that is nowhere": (inventory(mirror_ca="/nowhere/ca.crt"), "mirror_ca is"),
    "MIG of one profile": (
        inventory(device_plugin_mig_profiles=["1g.5gb"] * 7, device_plugin_mig_strategy="single"),
        None,
    ),
    "MIG of several profiles as one": (
        inventory(device_plugin_mig_profiles=["3g.20gb", "1g.5gb"], device_plugin_mig_strategy="single"),
        "all have to be of one profile",
    ),
    "MIG on one of two": (
        inventory(ONE, {"gpu-2": {"device_plugin_mig_profiles": ["1g.5gb"], "device_plugin_mig_strategy": "mixed"}}),
        None,
    ),
    "MIG with MPS": (
        inventory(device_plugin_sharing="mps", device_plugin_mig_strategy="mixed"),
        "MPS is not supported on MIG instances",
    ),
    "MPS of one node whose GPUs are divided": (
        inventory(ONE, {"gpu-2": {"device_plugin_mig_strategy": "mixed"}}, device_plugin_sharing_of={"gpu-2": "mps"}),
        "device_plugin_sharing_of has gpu-2 share by MPS",
    ),
    "MPS of the other node": (
        inventory(
            ONE, {"gpu-2": {"device_plugin_mig_strategy": "mixed"}}, device_plugin_sharing_of={"controlplane": "mps:4"}
        ),
        None,
    ),
    "sharing of a node that is not there": (
        inventory(ONE, TWO, device_plugin_sharing_of={"gpu-1": "mps"}),
        "device_plugin_sharing_of names gpu-1; the nodes are controlplane, gpu-2",
    ),
    "pods where services are": (inventory(control_plane_pod_cidr="10.96.0.0/16"), "need networks that do not overlap"),
    "pods in a network that is too small": (
        inventory(control_plane_pod_cidr="10.244.0.0/25"),
        "kubeadm accepts a prefix of 8 to 24 bits",
    ),
    "pods where the machine speaks to itself": (
        inventory(control_plane_pod_cidr="127.0.0.0/16"),
        "a network of a machine's own",
    ),
    "an address in the network of the pods": (
        inventory({"gpu-1": {"node_address": "10.244.3.4"}}),
        "control_plane_advertise_address (10.244.3.4): the second is the machine's own",
    ),
    "an address of IPv6": (inventory({"gpu-1": {"node_address": "2001:db8::1"}}), "node_address is"),
    "an address for each of two": (
        inventory({"gpu-1": {"node_address": "192.0.2.10"}}, {"gpu-2": {"node_address": "192.0.2.11"}}),
        None,
    ),
    "packages of another minor": (inventory(kubernetes_packages_version="1.36.4"), "the second has to be of the first"),
    "a minor by itself": (inventory(kubernetes_minor="1.36"), None),
    "a bridge for two": (inventory(ONE, TWO, calico_network="bridge"), "a bridge ends at its machine"),
    "routing switched off": (
        inventory(kernel_sysctls={"net.ipv4.ip_forward": 0}),
        "net.ipv4.ip_forward has to be there and 1",
    ),
}


@functools.cache
def said():
    """Of every inventory, what the judge says of each of its hosts; in this process."""
    import yaml
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar
    from ansible.vars.hostvars import HostVars
    from ansible.vars.manager import VariableManager

    tree.load_plugins()
    folder, loader, found = Path(tempfile.mkdtemp()), DataLoader(), {}
    (folder / "group_vars").symlink_to(ROOT / "inventory/group_vars")
    shipped = judge.ActionModule.__new__(judge.ActionModule)
    shipped._loader = loader
    table, defaults = shipped.table(), shipped.defaults()
    for number, name in enumerate(INVENTORIES):
        path = folder / f"{number}.yml"
        path.write_text(yaml.safe_dump(INVENTORIES[name][0]))
        hosts = InventoryManager(loader=loader, sources=[str(path)])
        variables = VariableManager(loader=loader, inventory=hosts)
        known = HostVars(hosts, variables, loader)
        found[name] = []
        for host in hosts.get_hosts():
            values = {**variables.get_vars(host=host), "hostvars": known}
            action = judge.ActionModule.__new__(judge.ActionModule)
            action._loader, action._templar = loader, Templar(loader=loader, variables=values)
            action.table, action.defaults = lambda: table, lambda: defaults
            reasons = judge.in_no_group(values)
            found[name] += list(action.reasons(values, {})) if reasons is None else reasons
    return found


@every(list(INVENTORIES))
def test_an_inventory_is_refused_with_its_reason_or_right(name):
    reasons = said()[name]
    wanted = INVENTORIES[name][1]
    assert ([reason for reason in reasons if wanted and wanted in reason] != []) == (wanted is not None), reasons
    assert wanted is not None or reasons == []
    assert not [reason for reason in reasons if re.search(r"s(%40|e)cret|Traceback", reason)]
