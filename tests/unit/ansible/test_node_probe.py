"""What the probe reads from a machine."""

import http.client
import http.server
import json
import os
import subprocess
import threading
from types import SimpleNamespace

import pytest
import tree
from fake_module import FakeModule

module = tree.module("node_probe")
action = tree.action("node_probe")


@pytest.mark.parametrize(("told_s", "apart_s"), [(100, 0), (129.5, 0), (160, 0), (99, 1), (161.5, 1.5), (7300, 7140)])
def test_a_slow_answer_speaks_for_the_clock_that_it_tells(told_s, apart_s):
    assert action.apart_s(100, told_s, 160) == apart_s


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"ansible_facts": {"node": {"time_s": 90.0}}, "probe": {}},
            {"ansible_facts": {"node": {"time_s": 90.0, "clock_apart_s": 10.0}}, "probe": {"inside": {}}},
        ),
        (
            {"ansible_facts": {"node": {"time_s": 150.0}}, "probe": {}},
            {"ansible_facts": {"node": {"time_s": 150.0, "clock_apart_s": 0}}, "probe": {"inside": {}}},
        ),
        ({"probe": {}}, {"probe": {}}),
        ({"failed": True, "msg": "no python"}, {"failed": True, "msg": "no python"}),
    ],
)
def test_the_clock_here_is_read_around_the_answer(monkeypatch, answer, expected):
    clock = iter([100.0, 160.0])
    monkeypatch.setattr(action, "time", SimpleNamespace(time=lambda: next(clock)))
    monkeypatch.setattr(action.ActionBase, "run", lambda *_: {})
    probe = object.__new__(action.ActionModule)
    probe._task = SimpleNamespace(args={})
    probe._execute_module = lambda **_: answer

    assert probe.run(task_vars={}) == expected


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eno2\t00000000\t010200C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
eno1\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eno3\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
eno1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
vpn0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0
"""
IPV6 = """\
20010db8000000000000000000000001 02 40 00 80     eno1
20010db8000000000000000000000002 03 40 00 80     eno2
fe800000000000000000000000000003 04 40 20 80     eno3
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000004 05 40 00 80 cali12ab
"""


def test_default_routes_that_are_up_come_best_first():
    assert module.default_routes(ROUTES) == [{"interface": "eno1", "metric": 100}, {"interface": "eno2", "metric": 200}]
    assert module.default_routes("") == []


def test_interfaces_with_ipv6_alone_are_the_machine_s_own_with_a_global_address():
    assert module.only_ipv6(IPV6, {"eno1": "192.0.2.10"}) == ["eno2"]


def test_an_uplink_is_the_machine_s_own_whatever_its_name_begins_with(monkeypatch):
    monkeypatch.setattr(
        module.socket, "if_nameindex", lambda: list(enumerate(["lo", "lom1", "cnic0", "cni0", "cali1"]))
    )
    monkeypatch.setattr(module.fcntl, "ioctl", lambda *_: bytes(20) + b"\xc0\x00\x02\x0a")
    assert module.interfaces() == {"lom1": "192.0.2.10", "cnic0": "192.0.2.10"}


def test_a_bridge_to_pods_alone_is_not_the_machine_s_own(monkeypatch, tmp_path):
    bridges = {"own0": ["veth1"], "virbr0": [], "br0": ["veth2", "eno1"], "br1": ["bond0"], "uplink": ["tap0"]}
    for bridge, ports in bridges.items():
        (tmp_path / "class/net" / bridge / "brif").mkdir(parents=True)
        for port in ports:
            (tmp_path / "class/net" / bridge / "brif" / port).touch()
            (tmp_path / "class/net" / port).mkdir()
            (tmp_path / "class/net" / port / "uevent").write_text(f"INTERFACE={port}\n")
    (tmp_path / "class/net/eno1/device").mkdir()
    (tmp_path / "class/net/bond0/uevent").write_text("DEVTYPE=bond\nINTERFACE=bond0\n")
    monkeypatch.setattr(module, "SYS", tmp_path)
    monkeypatch.setattr(module, "default_routes", lambda _table: [{"interface": "uplink", "metric": 0}])
    monkeypatch.setattr(module.socket, "if_nameindex", lambda: list(enumerate([*bridges, "eno1"])))
    monkeypatch.setattr(module.fcntl, "ioctl", lambda *_: bytes(20) + b"\xc0\x00\x02\x0a")
    assert list(module.interfaces()) == ["br0", "br1", "uplink", "eno1"]
    table = "".join(f"2001:db8::{number} 02 40 00 80 {name}\n" for number, name in enumerate(["own0", "eno1"]))
    assert module.only_ipv6(table, {}) == ["eno1"]


def test_the_address_of_etcd_is_read_from_its_manifest():
    flags = "    - --advertise-client-urls=https://192.0.2.10:2379\n    - --listen-client-urls=https://127.0.0.1:2379\n"
    assert module.etcd_address(flags) == "192.0.2.10"
    assert module.etcd_address("") is None


def test_proxies_of_everybody_are_named_and_not_shown(monkeypatch):
    text = 'PATH="/bin"\nhttps_proxy="http://u:secret@p:1"\n#http_proxy=x\nexport HTTP_PROXY=http://p\nno_proxy=a\nall_proxy=\n'
    monkeypatch.setattr(module, "read", lambda path: text if path == "/etc/environment" else None)
    assert module.machine()["proxies"] == ["HTTP_PROXY", "https_proxy"]


def test_a_home_is_closed_where_root_is_squashed(monkeypatch, tmp_path):
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    assert (module.closed(str(tmp_path)), module.closed(str(tmp_path / "none")), module.closed(None)) == (
        True,
        False,
        False,
    )


def test_a_network_names_the_addresses_that_belong_to_it_and_how_far_it_reaches():
    services = action.inside("10.96.0.0/12", ["10.100.3.5", "192.0.2.10"])
    assert services == {"addresses": ["10.100.3.5"], "first": "10.96.0.0", "last": "10.111.255.255"}


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        (None, None),
    ],
)
def test_the_driver_is_read_from_the_loaded_module(monkeypatch, text, driver):
    monkeypatch.setattr(module, "read", lambda path: text if "nvidia" in str(path) else None)
    assert module.gpu()["driver"] == driver


def test_what_keeps_a_driver_from_working_is_read_from_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "SYS", tmp_path)
    monkeypatch.setattr(module, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(module, "DRIVER", tmp_path / "driver")
    bare = {
        "driver": None,
        "pci_devices": 0,
        "generations": [],
        "switches": 0,
        "open": False,
        "managed": False,
        "module": False,
        "module_kernels": [],
        "key_enrolled": False,
        "nouveau": False,
        "secure_boot": False,
        "fabric_manager": False,
    }
    assert module.gpu() == bare
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000")]):
        device = tmp_path / f"bus/pci/devices/{number}"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        (device / "device").write_text("0x2335\n")
    release = tmp_path / "modules" / module.platform.release()
    for folder in (release, tmp_path / "module/nouveau", tmp_path / "firmware/efi/efivars"):
        folder.mkdir(parents=True)
    (tmp_path / "fs/cgroup/system.slice/nvidia-fabricmanager.service").mkdir(parents=True)
    (release / "modules.dep").write_text("updates/dkms/nvidia-current.ko.xz: kernel/x.ko\n")
    (tmp_path / "firmware/efi/efivars/SecureBoot-8be4").write_bytes(b"\x06\x00\x00\x00\x01")
    # One key of a list: what firmware holds is signature lists around certificates.
    (tmp_path / "MOK.der").write_bytes(b"certificate")
    (tmp_path / "firmware/efi/efivars/MokListRT-605d").write_bytes(b"\x06\0\0\0list(certificate)")
    monkeypatch.setattr(module, "SIGNING_KEYS", (str(tmp_path / "absent"), str(tmp_path / "MOK.der")))
    (tmp_path / "driver").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    whole = {
        "driver": "580.95.05",
        "pci_devices": 1,
        "generations": [module.generation(0x2335)],
        "open": True,
        "managed": False,
        "module_kernels": [module.platform.release()],
        "key_enrolled": True,
        "switches": 1,
        **dict.fromkeys(("module", "nouveau", "secure_boot", "fabric_manager"), True),
    }
    assert module.gpu() == whole
    (tmp_path / "firmware/efi/efivars/SecureBoot-8be4").write_bytes(b"\x06\x00\x00\x00\x00")
    assert module.secure_boot() is False
    (tmp_path / "MOK.der").write_bytes(b"another")
    assert module.key_enrolled() is False


def test_a_gpu_is_of_the_generation_of_its_number():
    # K80, GTX 980, P100, GTX 1080, V100, T4, A100, A10, H200, L4, B200, one that is not out yet.
    numbers = (0x102D, 0x13C0, 0x15F8, 0x1B80, 0x1DB4, 0x1EB8, 0x20B2, 0x2236, 0x2335, 0x27B8, 0x2901, 0x4000)
    names = "Kepler or older,Maxwell,Pascal,Pascal,Volta,Turing,Ampere,Ampere,Hopper,Ada,Blackwell or newer,Blackwell or newer"
    assert [module.generation(number)["name"] for number in numbers] == names.split(",")
    assert module.generation(0x2182)["name"] == "Turing"
    # What has no open modules has a last driver, and what has is known by the newest.
    assert all(bool(row[3]) == (row[4] is False) for row in module.GENERATIONS)
    assert [row[0] for row in module.GENERATIONS] == sorted(row[0] for row in module.GENERATIONS)


def test_a_module_is_there_when_it_is_loaded_or_built_into_the_running_kernel(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "SYS", tmp_path)
    monkeypatch.setattr(module, "MODULES", tmp_path)
    monkeypatch.setattr(module.platform, "release", lambda: "6.18")
    (tmp_path / "module/nf_tables").mkdir(parents=True)
    names = ("nf-tables", "br_netfilter", "ip_vs")

    assert [module.has_module(name) for name in names] == [True, False, False]

    (tmp_path / "6.18").mkdir()
    (tmp_path / "6.18/modules.builtin").write_text("kernel/net/ip_vs_rr.ko\nkernel/net/bridge/br-netfilter.ko\n")

    assert [module.has_module(name) for name in names] == [True, True, False]


def test_a_path_and_a_missing_path(tmp_path):
    (tmp_path / "target").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").chmod(0o600)
    found = module.path_state(str(tmp_path / "target"))
    assert (found["exists"], found["mode"], found["link"]) == (True, "0600", None)
    assert module.path_state(str(tmp_path / "link"))["link"] == str(tmp_path / "target")
    assert module.path_state(str(tmp_path / "none")) == {"exists": False}
    (tmp_path / "target").unlink()
    assert module.path_state(str(tmp_path / "link"))["exists"] is False


def test_packages_with_version_and_hold():
    lines = "kubelet\thold\tinstalled\t1.35.8-1.1\ncri-o\tinstall\thalf-installed\t1.35.6-1.1\n"
    found = module.packages(
        FakeModule(lambda _words: (1, lines, "no packages found matching x")), ["kubelet", "cri-o", "x"]
    )
    assert found["kubelet"] == {"installed": True, "version": "1.35.8-1.1", "held": True}
    assert found["cri-o"]["installed"] is False
    assert found["x"] == {"installed": False, "version": None, "held": False}


class Mirror(http.server.BaseHTTPRequestHandler):
    waiting = threading.Event()

    def do_GET(self):
        if self.path == "/stalled":
            self.waiting.wait(5)
        self.send_response(403 if self.path == "/forbidden" else 200)
        self.end_headers()

    def log_message(self, *_):
        """Nothing: the test says what matters."""


def test_mirrors_that_answer_refuse_stall_or_are_not_there():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        urls = [f"{base}/good", f"{base}/forbidden", f"{base}/stalled", "http://127.0.0.1:9/"]
        found, clocks = module.answers(urls, timeout_s=1)
    finally:
        Mirror.waiting.set()
        server.shutdown()
        server.server_close()
        thread.join()
    assert found[urls[0]] == "ok"
    assert found[urls[1]] == "answers 403 Forbidden"
    assert found[urls[2]] == "says nothing for 1 s"
    assert found[urls[3]].startswith("cannot be reached")
    assert set(clocks) == set(urls[:2])
    assert all(abs(ahead_s) <= 2 for ahead_s in clocks.values())


@pytest.mark.parametrize(
    ("headers", "ahead_s"),
    [
        ({"Date": "Thu, 01 Jan 1970 00:16:40 GMT"}, 0.0),
        ({"Date": "Thu, 01 Jan 1970 01:16:40 GMT"}, 3600.0),
        ({"Date": "Thu, 01 Jan 1970 00:16:00 GMT", "Age": "40"}, 0.0),
        ({"Date": "yesterday"}, None),
        ({}, None),
    ],
)
def test_how_far_a_servers_clock_is_ahead(headers, ahead_s):
    message = http.client.HTTPMessage()
    for name, value in headers.items():
        message[name] = value
    assert module.clock_ahead_s(message, now_s=1000.0) == ahead_s


def test_the_login_user_is_the_one_before_sudo(monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ops")
    assert module.login_user() == "ops"
    monkeypatch.delenv("SUDO_USER")
    assert module.login_user() == module.pwd.getpwuid(os.getuid()).pw_name


JUDGED = """\
- hosts: all
  gather_facts: false
  tasks:
    - name: The file is there
      node_probe:
        paths: ["{{ path }}"]
        that: ["__state.exists", "other is true"]
        fail_msg: "{{ path }} is {{ 'there' if __state.exists else 'missing' }}: make it, then run again."
      vars:
        __state: "{{ probe.paths[path] }}"
"""


@pytest.mark.parametrize(
    ("there", "other", "options", "msg"),
    [
        (True, True, [], None),
        (False, True, [], "{path} is missing: make it, then run again."),
        (True, False, [], "{path} is there: make it, then run again."),
        (False, True, ["--check"], None),
    ],
)
def test_the_answer_is_judged_where_it_comes_from(tmp_path, there, other, options, msg):
    path = tmp_path / "file"
    path.touch() if there else None
    (tmp_path / "callback").mkdir()
    (tmp_path / "callback/tree_of_results.py").write_text(tree.CALLBACK)
    settings = {"ANSIBLE_STDOUT_CALLBACK": "tree_of_results", "OUTCOMES": str(tmp_path / "outcomes.json")}
    settings |= {"ANSIBLE_CALLBACK_PLUGINS": str(tmp_path / "callback")}
    done = tree.play(tmp_path, JUDGED, {"one": {}}, {"path": str(path), "other": other}, *options, **settings)
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert outcomes == {"one": msg and msg.format(path=path)}, done.stdout + done.stderr


@pytest.mark.parametrize(("days", "ended"), [("1", True), ("2", False)])
def test_a_certificate_has_ended_or_has_not(tmp_path, days, ended):
    path = tmp_path / "own.pem"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-noenc",
        "-subj",
        "/CN=x",
    ]
    subprocess.run(
        [*words, "-days", days, "-keyout", path.with_suffix(".key"), "-out", path], check=True, capture_output=True
    )

    def run(command):
        # A day and a half from now.
        later = [word if word != "0" else "129600" for word in command]
        done = subprocess.run(later, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert module.has_ended(FakeModule(run), str(path)) is ended
