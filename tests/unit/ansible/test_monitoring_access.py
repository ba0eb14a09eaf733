"""Certificates and logins of the monitoring, made by the real openssl; kubectl is played, with the Secrets that it would keep."""

import base64
import json
import re
import ssl
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support import monitoring_access
from tests.support.monitoring_access import Kubectl
from tests.unit.ansible.fake_module import Failed, FakeModule

NODE = {
    "status": {
        "addresses": [
            {"type": "InternalIP", "address": "192.0.2.5"},
            {"type": "Hostname", "address": "controlplane"},
            {"type": "InternalIP", "address": "2001:db8::5"},
        ]
    }
}


@pytest.fixture
def kubectl():
    return Kubectl(nodes=[NODE])


@pytest.fixture
def give(tmp_path, kubectl):
    """Runs the module for a service; returns its result."""

    def run(service="prometheus", **changed):
        return monitoring_access.give(tmp_path / "kept", kubectl, service, **changed)

    return run


def files(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}


def test_a_second_run_changes_nothing(give, kubectl, tmp_path):
    assert give()["changed"]
    made, secrets = files(tmp_path), json.dumps(kubectl.secrets)
    again = give()
    assert (again["changed"], files(tmp_path), json.dumps(kubectl.secrets)) == (False, made, secrets)
    assert again["url"] == "https://10.96.7.7:9090"


def test_both_services_have_the_same_authority_and_logins_of_their_own(give, kubectl):
    give("prometheus")
    give("grafana")
    assert kubectl.values("prometheus-access")["ca.crt"] == kubectl.values("grafana-admin")["ca.crt"]
    assert kubectl.values("prometheus-access")["password"] != kubectl.values("grafana-admin")["password"]
    assert set(kubectl.secrets["grafana-web"]) == {"tls.crt", "tls.key", "generation"}
    assert set(kubectl.secrets["prometheus-access"]) == {"url", "username", "password", "ca.crt"}


def test_the_certificate_is_what_a_strict_client_asks_for(give, kubectl, tmp_path):
    give(node_addresses=True)
    authority, shown = tmp_path / "ca.crt", tmp_path / "tls.crt"
    authority.write_text(kubectl.values("prometheus-access")["ca.crt"])
    shown.write_text(kubectl.values("prometheus-web")["tls.crt"])
    for name in ("10.96.7.7", "192.0.2.5", "2001:db8::5", "127.0.0.1"):
        command = ["openssl", "verify", "-x509_strict", "-CAfile", authority, "-verify_ip", name, shown]
        subprocess.run(command, check=True, capture_output=True)
    for name in ("prometheus.monitoring.svc", "localhost"):
        command = ["openssl", "verify", "-x509_strict", "-CAfile", authority, "-verify_hostname", name, shown]
        subprocess.run(command, check=True, capture_output=True)
    assert not give(node_addresses=True)["changed"]


def test_no_password_is_in_a_command_or_a_result(give, kubectl):
    told = json.dumps([give("prometheus"), give("grafana"), give("prometheus")])
    for secret in ("prometheus-access", "grafana-admin"):
        password = kubectl.values(secret)["password"]
        assert len(password) >= 24
        assert password not in told + json.dumps(kubectl.asked)


def test_prometheus_takes_the_hash_and_nothing_else(give, kubectl):
    give()
    password = kubectl.values("prometheus-access")["password"]
    settings = json.loads(kubectl.values("prometheus-web")["web.yml"])
    hashed = settings["basic_auth_users"]["harness"]
    assert re.fullmatch(r"\$2b\$10\$.{53}", hashed)
    assert monitoring_access.MODULE.bcrypt(password, hashed) == hashed
    assert monitoring_access.MODULE.bcrypt(f"{password}x", hashed) != hashed


def test_a_password_in_use_stays_whatever_was_lost(give, kubectl, tmp_path):
    kubectl.secrets["grafana-admin"] = {"password": base64.b64encode(b"of an older node").decode()}
    give("grafana")
    assert kubectl.values("grafana-admin")["password"] == "of an older node"
    kubectl.secrets.clear()
    give("grafana")
    assert kubectl.values("grafana-admin")["password"] == "of an older node"
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    give("grafana")
    assert kubectl.values("grafana-admin")["password"] == "of an older node"


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ({"days_min": 366}, {"prometheus.crt"}),
        ({"days_min": 3651}, {"ca.crt", "prometheus.crt"}),
        ({"node_addresses": True}, {"prometheus.crt"}),
    ],
)
def test_a_certificate_that_ends_soon_or_names_too_little_is_made_anew_and_no_login_with_it(
    give, tmp_path, changed, anew
):
    first = give()
    before = files(tmp_path)
    then = give(**changed)
    after = files(tmp_path)
    assert then["changed"]
    assert (first["generation"], then["generation"]) == (1, 2)
    assert {name for name in after if name.endswith(".crt") and after[name] != before[name]} == anew
    assert [after[name] == before[name] for name in ("prometheus.password", "prometheus.hash")] == [True, True]


@pytest.mark.parametrize("lost", ["ca.key", "ca.crt", "prometheus.key", "prometheus.crt", "prometheus.hash"])
def test_what_was_lost_is_made_anew_and_fits(give, tmp_path, lost):
    give()
    (tmp_path / "kept" / lost).unlink()
    assert give()["changed"]
    assert not give()["changed"]
    authority = tmp_path / "kept/ca.crt"
    subprocess.run(
        ["openssl", "verify", "-CAfile", authority, tmp_path / "kept/prometheus.crt"], check=True, capture_output=True
    )


def test_check_mode_makes_nothing(give, tmp_path):
    assert give(check_mode=True)["changed"]
    assert not (tmp_path / "kept").exists()
    give()
    before = files(tmp_path)
    assert give(check_mode=True, days_min=366)["changed"]
    assert files(tmp_path) == before
    assert not give(check_mode=True)["changed"]


def test_a_service_without_an_address_is_named(give, kubectl):
    kubectl.service = {}
    with pytest.raises(Failed, match="the Service prometheus has no address"):
        give()


def test_only_who_made_it_reads_what_is_kept(give, tmp_path):
    give("prometheus")
    give("grafana")
    folder = tmp_path / "kept"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_what_somebody_has_opened_is_closed_again(give, tmp_path):
    give()
    opened = tmp_path / "kept/prometheus.password"
    opened.chmod(0o644)
    assert give(check_mode=True)["changed"]
    assert stat.S_IMODE(opened.stat().st_mode) == 0o644
    assert give()["changed"]
    assert stat.S_IMODE(opened.stat().st_mode) == 0o600
    assert not give()["changed"]


def test_a_lost_folder_is_another_generation_and_an_empty_cluster_begins_with_the_first(give, kubectl, tmp_path):
    assert give("grafana")["generation"] == give("grafana")["generation"] == 1
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    assert give("grafana")["generation"] == 2
    kubectl.secrets.clear()
    assert give("grafana")["generation"] == 2
    for path in (tmp_path / "kept").iterdir():
        path.unlink()
    kubectl.secrets.clear()
    assert give("grafana")["generation"] == 1


def test_a_run_that_was_killed_before_it_handed_a_certificate_over_is_followed_by_one_that_counts_it(give, kubectl):
    give("grafana")
    before = dict(kubectl.secrets["grafana-web"])
    assert give("grafana", node_addresses=True)["generation"] == 2
    kubectl.secrets["grafana-web"] = before
    assert give("grafana", node_addresses=True)["generation"] > 1
    assert kubectl.values("grafana-web")["tls.crt"] != base64.b64decode(before["tls.crt"]).decode()


class Said(BaseHTTPRequestHandler):
    """Says by which login it was asked, and for what."""

    def do_GET(self):
        body = b"no JSON" if self.path == "/broken" else json.dumps([self.path, self.headers["Authorization"]]).encode()
        if self.path == "/cut":
            return  # without a word
        self.send_response(401 if self.path == "/closed" else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""


def test_the_service_is_asked_with_its_login_and_by_no_proxy(give, kubectl, tmp_path, monkeypatch):
    give()
    kept = tmp_path / "kept"
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kept / "prometheus.crt", kept / "prometheus.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Said) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (kept / "prometheus.url").write_text(f"https://127.0.0.1:{server.server_port}")
        module = FakeModule(service="prometheus", folder=str(kept), ask="/api")
        access = monitoring_access.MODULE.Access(module)
        path, login = access.answer("/api/v1/targets?state=active")
        for path_without, reason in (
            ("/closed", '401.*"/closed"'),
            ("/broken", "Expecting value"),
            ("/cut", "RemoteDisconnected"),
        ):
            with pytest.raises(Failed, match=rf"prometheus did not answer {path_without}: .*{reason}"):
                access.answer(path_without)
        server.shutdown()
    password = kubectl.values("prometheus-access")["password"]
    assert path == "/api/v1/targets?state=active"
    assert base64.b64decode(login.removeprefix("Basic ")).decode() == f"harness:{password}"
