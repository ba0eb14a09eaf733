"""What fetches goes through the proxy that the inventory names, and the proxy's password is nobody's to read."""

import base64
import hashlib
import os
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import recorded_role
import tree
from fake_module import Failed, FakeModule
from tree import ROOT

documented = tree.shared("documented")
node_files = tree.shared("node_files")
probe = tree.module("node_probe")
TABLE = tree.load(ROOT / "inventory/group_vars/all/proxy.yml")
NAMES = ("proxy_used", "proxy_environment", "proxy_variables")
SECRET = "pr0xy-passw0rd"
CONTENT = b"kind: Namespace\n"
SUM = hashlib.sha256(CONTENT).hexdigest()


def environment(**given):
    """What programs are told, by the table's own expressions."""
    facts = {"node": {"addresses": ["192.0.2.10"]}}
    known = {"http_proxy": "", "https_proxy": "", "no_proxy": "", "ansible_facts": facts, **given}
    return tree.template({name: TABLE[name] for name in NAMES}, known)["proxy_environment"]


def test_without_a_proxy_nothing_is_told():
    assert environment() == {}
    assert environment(no_proxy=".example.org") == {}


def test_what_the_cluster_reaches_by_itself_is_reached_without_the_proxy():
    told = environment(http_proxy="http://p:3128", no_proxy="registry.example", control_plane_dns_domain="gpu.local")
    assert set(told) == {"http_proxy", "no_proxy"}
    known = ["registry.example", "localhost", "127.0.0.1", "::1", ".svc", ".gpu.local"]
    assert told["no_proxy"].split(",") == [*known, "10.244.0.0/16", "10.96.0.0/12", "192.0.2.10"]
    told = environment(https_proxy="http://p:3128", control_plane_endpoint="gpu.example.org:8443")
    assert told["no_proxy"].split(",")[-1] == "gpu.example.org"


def test_the_networks_that_are_assumed_are_those_of_the_roles():
    networks = {tree.variables()[f"control_plane_{name}_cidr"] for name in ("pod", "service")}
    assert networks <= set(environment(http_proxy="http://p:1")["no_proxy"].split(","))


def test_a_proxy_that_sudo_hands_on_reaches_no_command_of_a_play(tmp_path):
    plays = [(path.name, play) for path in tree.playbooks() for play in tree.load(path) if play.get("become")]
    assert {play.get("environment") for _, play in plays} == {"{{ proxy_none | default({}) }}"}
    text = """\
- hosts: all
  gather_facts: false
  environment: "{{ proxy_none | default({}) }}"
  tasks:
    - {name: See, ansible.builtin.command: {argv: [env]}, register: seen}
    - {name: Keep, ansible.builtin.copy: {content: "{{ seen.stdout }}", dest: "{{ kept }}", mode: "0600"}}
"""
    given = {"proxy_none": TABLE["proxy_none"], "kept": str(tmp_path / "kept")}
    names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
    done = tree.play(tmp_path, text, {"one": {}}, given, **dict.fromkeys(names, "http://proxy.invalid:3128"))
    assert done.returncode == 0, done.stdout
    seen = (tmp_path / "kept").read_text().splitlines()
    assert [f"{name}=" in seen for name in names] == [True] * len(names)


def rendered(name, **told):
    return tree.render(
        ROOT / f"roles/crio/templates/proxy.{name}.j2", crio_proxy=told, __crio_proxy="/etc/default/node-proxy"
    )


def test_crio_reads_its_proxy_from_a_file_that_systemd_shows_to_nobody():
    assert f'https_proxy="http://u:{SECRET}@p:3128"' in rendered("env", https_proxy=f"http://u:{SECRET}@p:3128")
    assert "EnvironmentFile=/etc/default/node-proxy" in rendered("service", https_proxy=SECRET).splitlines()
    assert SECRET not in rendered("service", https_proxy=SECRET)


def test_apt_takes_the_proxy_and_leaves_it_for_the_hosts_that_are_named(tmp_path):
    (tmp_path / "conf").write_text(
        rendered("apt", http_proxy="http://u:p@h:3128", no_proxy="mirror.example,10.0.0.0/8,.svc")
    )
    command = ["apt-config", "dump", "--no-empty", "--format", "%f %v%n", "Acquire::http"]
    done = subprocess.run(
        command, env=os.environ | {"APT_CONFIG": str(tmp_path / "conf")}, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if "::Proxy" in line]
    assert said == ["Acquire::http::Proxy http://u:p@h:3128", "Acquire::http::Proxy::mirror.example DIRECT"]


class Proxy(BaseHTTPRequestHandler):
    """Serves every address to who knows the password."""

    def do_GET(self):
        self.server.asked.append(self.path)
        known = base64.b64encode(f"u:{SECRET}".encode()).decode()
        right = self.headers.get("Proxy-Authorization") == f"Basic {known}"
        self.send_response(200 if right else 407)
        self.send_header("Content-Length", str(len(CONTENT) if right else 0))
        self.end_headers()
        self.wfile.write(CONTENT if right else b"")

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def proxy(monkeypatch):
    """A proxy that wants a password, which this process is told of as a module is."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for name in ("http_proxy", "no_proxy"):
            monkeypatch.setenv(name, "")  # and put back afterwards
        # Who asks first keeps the proxies of that moment for the whole process.
        monkeypatch.setattr(urllib.request, "_opener", None)
        server.told = {"http_proxy": f"http://u:{SECRET}@127.0.0.1:{server.server_port}", "no_proxy": "mirror.invalid"}
        documented.use_proxy(FakeModule(proxy=server.told))
        yield server
        server.shutdown()


def test_repositories_and_files_are_asked_for_through_the_proxy(tmp_path, proxy):
    urls, _ = probe.answers(["http://repository.invalid/Release", "http://mirror.invalid/Release"], 5)
    assert urls["http://repository.invalid/Release"] == "ok"
    assert urls["http://mirror.invalid/Release"].startswith("cannot be reached")
    assert fetch(tmp_path, "http://files.invalid/a.yaml") == [str(tmp_path / "a.yaml")]
    assert proxy.asked == ["http://repository.invalid/Release", "http://files.invalid/a.yaml"]


def fetch(folder, url, sha256=SUM, *, check_mode=False):
    """The paths that node_state writes."""
    path = folder / url.rpartition("/")[2]
    files = node_files.Files(FakeModule(check_mode=check_mode))
    files.file(path, files.content({"path": str(path), "url": url, "sha256": sha256}), "0644", "")
    return files.written


def test_a_file_is_fetched_once_and_one_with_another_sum_is_not_kept(tmp_path, proxy):
    url, folder = "http://u:p@files.invalid/a.yaml", tmp_path / "m"
    assert fetch(folder, url, check_mode=True) == [str(folder / "a.yaml")]
    assert (proxy.asked, folder.exists()) == ([], False)
    assert fetch(folder, url) == [str(folder / "a.yaml")]
    assert (folder / "a.yaml").read_bytes() == CONTENT
    assert fetch(folder, url) == fetch(folder, url, check_mode=True) == []
    assert len(proxy.asked) == 1
    with pytest.raises(Failed, match=f"//...@files.invalid/b.yaml could not be fetched: has the sum {SUM}") as failed:
        fetch(folder, "http://u:hidden@files.invalid/b.yaml", "0" * 64)
    assert "hidden" not in str(failed.value)
    assert not (folder / "b.yaml").exists()


def test_an_address_that_is_none_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(Failed, match="could not be fetched: Invalid IPv6 URL"):
        fetch(tmp_path, "http://[::1/a.yaml")


def test_a_fetched_file_of_thousands_of_lines_is_in_no_diff(tmp_path, proxy):
    path = tmp_path / "m/a.yaml"
    plain = {"path": str(path), "source": None, "mode": "0644", "owner": "", "only_mend": False}
    files = node_files.Files(FakeModule())
    files.apply(
        {
            "files": [plain | {"url": "http://files.invalid/a.yaml", "sha256": SUM}],
            "links": {},
            "absent": [],
            "emptied": [],
        }
    )
    assert (path.read_bytes(), proxy.asked != []) == (CONTENT, True)
    assert [(shown["before"], shown["after"]) for shown in files.diff] == [("", "")]


@pytest.mark.parametrize("mirror", ["", "http://mirror.invalid/calico/"])
def test_all_files_come_from_the_mirror_where_there_is_one(mirror):
    (task,) = [one for one in tree.load(ROOT / "roles/calico/tasks/main.yml") if one["name"] == "Fetch the manifests"]
    (file,) = task["node_state"]["files"]
    given = {
        "calico_mirror": mirror,
        "item": {"name": "a.yaml", "url": "http://files.invalid/b"},
        "__calico_folder": "/f",
    }
    told = tree.template({name: file[name] for name in ("path", "url")}, given)
    assert told == {"path": "/f/a.yaml", "url": f"{mirror}a.yaml" if mirror else "http://files.invalid/b"}


PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - {name: Write, node_state: {files: [{path: "{{ folder }}/d/env", mode: "0600", secret: "{{ http_proxy }}"}]}}
    - {name: Ask, node_probe: {urls: ["http://repository.invalid/"], proxy: {http_proxy: "{{ http_proxy }}"}, urls_timeout_s: 5}}
    - {name: Fetch, node_state: {files: [{path: "{{ folder }}/a", url: "http://x.invalid/a", sha256: "0"}],
                                 proxy: {http_proxy: "{{ http_proxy }}"}}}
"""


def test_the_password_is_in_no_word_of_ansible_s(tmp_path, proxy):
    given = {"http_proxy": proxy.told["http_proxy"], "folder": str(tmp_path / "f")}
    done = tree.play(tmp_path, PLAY, {"localhost": {}}, given, "-vvv", "--diff")
    said = done.stdout + done.stderr
    assert "has the sum" in said, said
    assert proxy.asked == ["http://repository.invalid/", "http://x.invalid/a"]
    assert (tmp_path / "f/d/env").read_text() == proxy.told["http_proxy"]
    assert SECRET not in said


def test_crio_s_role_writes_the_proxy_and_takes_it_away(tmp_path):
    node = {"gpu": {"module": False}, "builds": False, "addresses": ["192.0.2.10"], "architecture": "x86_64"}
    variables = {"proxied": {"https_proxy": f"http://u:{SECRET}@p:3128"}, "plain": {}}
    others = {name: value for name, value in tree.variables().items() if name.startswith("nvidia_toolkit_")}
    recorded = recorded_role.run(tmp_path, "crio", dict.fromkeys(variables, node), variables, {}, **others)
    paths = [
        "/etc/default/node-proxy",
        "/etc/apt/apt.conf.d/90-node-proxy",
        "/etc/systemd/system/crio.service.d/40-node-proxy.conf",
    ]
    for name in variables:
        # What follows looks at a machine that was not made.
        (installed,) = [asked for module, asked in recorded.done[name] if module == "deb_pinned"]
        (configured,) = [asked for module, asked in recorded.done[name] if module == "node_state"]
        written = {one["path"]: one for one in configured["files"] if one["path"] in paths}
        assert set(written) == set(paths if name == "proxied" else [])
        assert set(paths) <= set(configured["absent"])
        assert bool(installed["proxy"]) is (name == "proxied")
        for one in written.values():
            assert (SECRET in str(one.get("content"))) is False
        assert [SECRET in one.get("secret", "") for one in written.values()] == [True, True, False][: len(written)]
        assert all(one["mode"] == "0600" for one in written.values() if "secret" in one)
    assert "192.0.2.10" in written_by(recorded, "proxied", paths[0])


def written_by(recorded, name, path):
    """What a machine's node_state was given for a file, in secret."""
    (asked,) = [asked for module, asked in recorded.done[name] if module == "node_state"]
    return next(one["secret"] for one in asked["files"] if one["path"] == path)
