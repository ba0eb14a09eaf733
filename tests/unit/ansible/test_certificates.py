"""The daily renewal: in time, whole, for the users whose files are ours; and a kubelet's certificate for exactly its node."""

import base64
import json
import os
import subprocess
import sys
import time

import pytest
import tree

KUBEADM = """\
#!/bin/sh
echo "kubeadm $*" >> {folder}/calls
case "$2" in
  check-expiration) echo "[check-expiration] Reading configuration"; cat {folder}/certificates ;;
  renew) echo new > {folder}/kubernetes/admin.conf ;;
esac
"""
CRICTL = """\
#!/bin/sh
echo "crictl $*" >> {folder}/calls
[ "$1" = ps ] && printf 'a1\\nb2\\n'
exit {status}
"""
# Behind `--kubeconfig FILE --request-timeout TIME`; a kubelet is reached once a request was approved.
KUBECTL = """\
#!/bin/sh
shift 4
echo "kubectl $*" >> {folder}/calls
case "$*" in
  "get certificatesigningrequests"*) cat {folder}/requests ;;
  *healthz) grep -q "certificate approve" {folder}/calls || {{ echo "x509: signed by unknown authority" >&2; exit 1; }} ;;
  "create token"*) cat {folder}/token ;;
esac
"""
DAY_S = 86400


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The program on a machine on paper; run(days, ...) -> the words after each program's name that was called."""
    program = tree.program("roles/control_plane/files/node_certificates.py")
    for name in ("kubernetes", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "kubernetes/admin.conf").write_text("old\n")
    monkeypatch.setattr(program, "KUBERNETES", tmp_path / "kubernetes")
    monkeypatch.setattr(program, "RETRY_S", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    tree.programs(tmp_path / "bin", ["kubeadm"], KUBEADM.format(folder=tmp_path))
    tree.programs(tmp_path / "bin", ["kubectl"], KUBECTL.format(folder=tmp_path))
    (tmp_path / "requests").write_text('{"items": []}')

    def run(*words):
        (tmp_path / "calls").write_text("")
        monkeypatch.setattr(sys, "argv", ["node-certificates", *map(str, words)])
        program.main()
        return (tmp_path / "calls").read_text().splitlines()

    return run


@pytest.fixture
def renew(machine, tmp_path):
    """Runs it where a certificate has so many days left."""

    def run(days, *paths, words=(), status=0):
        listed = [
            {"name": "apiserver", "residualTime": days * DAY_S},
            {"name": "gone", "residualTime": 0, "missing": True},
        ]
        listed.append({"name": "theirs", "residualTime": 0, "externallyManaged": True})
        (tmp_path / "certificates").write_text(json.dumps({"certificates": listed}))
        tree.programs(tmp_path / "bin", ["crictl"], CRICTL.format(folder=tmp_path, status=status))
        return [line.split()[1] for line in machine(*words or (90,), *paths)]

    return run


def test_certificates_are_renewed_in_time_and_not_before(renew):
    assert renew(91) == ["certs"]
    assert renew(89) == ["certs", "certs", "ps", "stop"]


def test_a_run_of_the_role_renews_the_control_plane_s_alone_and_says_so(renew, tmp_path, capsys):
    (tmp_path / "kubernetes/harness-token.json").write_text("{")
    assert renew(91, words=("control-plane", 90)) == ["certs"]
    assert capsys.readouterr().out == ""
    assert renew(-3, words=("control-plane", 90)) == ["certs", "certs", "ps", "stop"]
    assert capsys.readouterr().out == "renewing, for these end within 90 days: apiserver\n"


def test_users_get_the_new_kubeconfig_where_theirs_was_the_administrator_s(renew, tmp_path):
    copy, other, link = (tmp_path / name for name in ("copy", "other", "link"))
    copy.write_text("old\n")
    copy.chmod(0o600)
    other.write_text("another cluster's\n")
    link.symlink_to(copy)
    renew(10, copy, other, link, tmp_path / "nobody's")
    assert (copy.read_text(), other.read_text(), link.is_symlink()) == ("new\n", "another cluster's\n", True)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_a_renewal_that_was_interrupted_is_finished_by_the_next(renew, tmp_path):
    copy = tmp_path / "copy"
    copy.write_text("old\n")
    with pytest.raises(SystemExit, match="crictl ps"):
        renew(10, copy, status=1)
    assert (tmp_path / "kubernetes/renewal-unfinished").exists()
    assert renew(365, copy) == ["certs", "certs", "ps", "stop"]
    assert copy.read_text() == "new\n"
    assert not (tmp_path / "kubernetes/renewal-unfinished").exists()


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def test_the_monitoring_s_certificates_are_signed_anew_for_the_same_key_and_names(renew, tmp_path):
    folder = tmp_path / "kubernetes/monitoring"
    folder.mkdir()
    key = ["genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]
    openssl(*key, folder / "ca.key")
    openssl(
        "req", "-x509", "-new", "-key", folder / "ca.key", "-subj", "/CN=ca", "-days", 30, "-out", folder / "ca.crt"
    )
    for name, days in (("grafana", 59), ("prometheus", 61)):
        openssl(*key, folder / f"{name}.key")
        request = ["req", "-new", "-key", folder / f"{name}.key", "-subj", f"/CN={name}", "-out", tmp_path / "csr"]
        openssl(*request, "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1")
        sign = ["x509", "-req", "-in", tmp_path / "csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"]
        openssl(*sign, "-set_serial", 1, "-copy_extensions", "copy", "-days", days, "-out", folder / f"{name}.crt")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    calls = renew(365)
    after = {path.name: path.read_text() for path in folder.iterdir()}
    assert [name for name in after if after[name] != before.get(name)] == ["grafana.crt"]
    openssl("verify", "-CAfile", folder / "ca.crt", folder / "grafana.crt")
    openssl("x509", "-noout", "-checkend", 364 * DAY_S, "-in", folder / "grafana.crt")
    shown = ["openssl", "x509", "-noout", "-text", "-in", str(folder / "grafana.crt")]
    assert (
        "DNS:grafana, IP Address:127.0.0.1" in subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    )
    assert calls == ["certs", "get", "patch", "rollout"]
    assert renew(365) == ["certs", "get"]


def token(valid_s):
    body = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + valid_s}).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("name", "valid_days", "days", "renewed"),
    [("h@i", 40, 100, True), ("h@i", 60, 100, False), ("other@i", 40, 100, False), ("h@i", 1.9, 3, True)],
)
def test_a_token_that_ends_soon_is_replaced_where_the_file_is_the_account_s(
    renew, tmp_path, name, valid_days, days, renewed
):
    path = tmp_path / "harness.conf"
    path.write_text(json.dumps({"users": [{"name": name, "user": {"token": token(valid_days * DAY_S)}}]}))
    (tmp_path / "token").write_text("new\n")
    asked = {"account": "h", "namespace": "i", "ttl_s": days * DAY_S, "paths": [str(path), str(tmp_path / "nobody's")]}
    (tmp_path / "kubernetes/harness-token.json").write_text(json.dumps(asked))
    calls = renew(365)
    assert (json.loads(path.read_text())["users"][0]["user"]["token"] == "new") == renewed
    assert calls == ["certs", "get", *["create"] * renewed]


def test_a_user_s_file_that_cannot_be_read_keeps_nobody_else_s_from_its_token(renew, tmp_path):
    yaml, good = tmp_path / "yaml", tmp_path / "good"
    yaml.write_text("users: []\n")
    good.write_text(json.dumps({"users": [{"name": "h@i", "user": {"token": token(0)}}]}))
    (tmp_path / "token").write_text("new\n")
    asked = {"account": "h", "namespace": "i", "ttl_s": 100, "paths": ["~no-such-user/x", str(yaml), str(good)]}
    (tmp_path / "kubernetes/harness-token.json").write_text(json.dumps(asked))
    with pytest.raises(SystemExit, match=r"~no-such-user/x: .*\n.*yaml: Expecting value"):
        renew(365)
    assert json.loads(good.read_text())["users"][0]["user"]["token"] == "new"


@pytest.mark.parametrize("spoil", ["a link", "another's"])
def test_root_writes_in_no_folder_that_a_user_could_have_led_elsewhere(renew, tmp_path, monkeypatch, spoil):
    for name in ("etc", "home", "kube"):
        (tmp_path / name).mkdir()
    (tmp_path / "home/.kube").symlink_to(tmp_path / "etc")
    bad = tmp_path / ("home/.kube/config" if spoil == "a link" else "kube/config")
    copy = tmp_path / "copy"
    for path in (bad, copy):
        path.write_text("old\n")
    if spoil == "another's":
        fstat, kube = os.fstat, (tmp_path / "kube").stat().st_ino

        def of_another(number):
            values = list(fstat(number))
            return os.stat_result([*values[:4], values[4] + (values[1] == kube), *values[5:]])

        monkeypatch.setattr(os, "fstat", of_another)
    with pytest.raises(SystemExit, match=r"config|kube"):
        renew(10, bad, copy)
    assert (bad.read_text(), copy.read_text()) == ("old\n", "new\n")
    assert not (tmp_path / "kubernetes/renewal-unfinished").exists()


def test_where_the_control_plane_cannot_be_renewed_the_tokens_are(renew, tmp_path):
    asked = {"account": "h", "namespace": "i", "ttl_s": 100, "paths": []}
    (tmp_path / "kubernetes/harness-token.json").write_text(json.dumps(asked | {"paths": [str(tmp_path / "conf")]}))
    (tmp_path / "conf").write_text(json.dumps({"users": [{"name": "h@i", "user": {"token": token(0)}}]}))
    (tmp_path / "token").write_text("new\n")
    with pytest.raises(SystemExit, match="crictl ps"):
        renew(10, status=1)
    assert "new" in (tmp_path / "conf").read_text()


def test_where_one_renewal_fails_the_others_are_made_all_the_same(renew, tmp_path):
    (tmp_path / "kubernetes/harness-token.json").write_text("no JSON")
    (tmp_path / "kubernetes/kubelet-serving").mkdir()
    (tmp_path / "kubernetes/kubelet-serving/gpu-1").write_text("192.0.2.10\n")
    with pytest.raises(SystemExit, match="Expecting value"):
        renew(365)
    assert "get certificatesigningrequests" in (tmp_path / "calls").read_text()


SUBJECT = "/O=system:nodes/CN=system:node:gpu-1"
NAMES = "DNS:gpu-1,IP:192.0.2.10"
FINE = {"subject": SUBJECT, "names": NAMES, "user": "system:node:gpu-1", "usages": ["digital signature", "server auth"]}


KEYS = {"ec": ("ec", "ec_paramgen_curve:P-256"), "rsa": ("rsa", "rsa_keygen_bits:2048")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Requests by subject, names and kind of key, each made once; or with attributes in DER, signed all the same."""
    folder, found = tmp_path_factory.mktemp("requests"), {}
    for kind, (algorithm, option) in KEYS.items():
        openssl("genpkey", "-algorithm", algorithm, "-pkeyopt", option, "-out", folder / kind)

    def by_openssl(subject, names, key):
        command = ["openssl", "req", "-new", "-key", str(folder / key), "-subj", subject]
        command += ["-addext", f"subjectAltName={names}"] if names else []
        return subprocess.run(command, check=True, capture_output=True).stdout

    def by_hand(attributes, spoil):
        key = str(folder / "ec")
        public = subprocess.run(
            ["openssl", "pkey", "-in", key, "-pubout", "-outform", "DER"], check=True, capture_output=True
        )
        parts = (("55040a", b"system:nodes"), ("550403", b"system:node:gpu-1"))
        subject = [der(0x31, der(0x30, der(6, bytes.fromhex(kind)), der(0x13, value))) for kind, value in parts]
        information = der(0x30, b"\2\1\0", der(0x30, *subject), public.stdout, der(0xA0, *attributes))
        command = ["openssl", "dgst", "-sha256", "-sign", key]
        signature = subprocess.run(command, input=information, check=True, capture_output=True).stdout
        algorithm = der(0x30, der(6, bytes.fromhex("2a8648ce3d040302")))
        whole = der(0x30, information, algorithm, der(3, b"\0", signature))
        body = base64.encodebytes(spoil(whole)).decode()
        return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n".encode()

    def make(subject, names, key="ec", attributes=None, spoil=bytes):
        if attributes is not None:
            return base64.b64encode(by_hand(attributes, spoil)).decode()
        if (subject, names, key) not in found:
            found[subject, names, key] = base64.b64encode(by_openssl(subject, names, key)).decode()
        return found[subject, names, key]

    return make


def der(tag, *contents):
    """One value in DER."""
    content = b"".join(contents)
    size = bytes([len(content)]) if len(content) < 128 else b"\x82" + len(content).to_bytes(2, "big")
    return (
        bytes([tag]) + (size if len(content) < 128 or len(content) > 255 else b"\x81" + bytes([len(content)])) + content
    )


def extension(name, content, *critical):
    return der(0x30, der(6, bytes.fromhex(name)), *critical, der(4, content))


def requesting(*extensions):
    """The attribute that asks for extensions."""
    return der(0x30, der(6, bytes.fromhex("2a864886f70d01090e")), der(0x31, der(0x30, *extensions)))


def alternative(*names):
    return extension("551d11", der(0x30, *names))


OWN, OWN_ADDRESS, OTHER = der(0x82, b"gpu-1"), der(0x87, bytes([192, 0, 2, 10])), der(0x82, b"kubernetes.default.svc")
# Read by openssl as the names of this node, where the API server reads the ones behind it.
COMMENT = extension("6086480186f842010d", der(0x16, b"X509v3 Subject Alternative Name:\n    DNS:gpu-1"))


@pytest.fixture
def asked(machine, made, tmp_path):
    """Writes down what kubelets ask for, and runs the program for gpu-1: which requests are approved."""
    (tmp_path / "kubernetes/kubelet-serving").mkdir()
    (tmp_path / "kubernetes/kubelet-serving/gpu-1").write_text("192.0.2.10\n192.0.2.11\n")

    def ask(*items, words=("serving", "gpu-1", 0)):
        written = []
        for number, given in enumerate(items, 1):
            item = {"signer": "kubernetes.io/kubelet-serving", "answered": False} | given
            how = {name: item[name] for name in ("key", "attributes", "spoil") if name in item}
            spec = {"request": made(item["subject"], item["names"], **how), "signerName": item["signer"]}
            spec |= {"username": item["user"], "usages": item["usages"]}
            metadata = {"name": f"csr-{number}", "creationTimestamp": f"2026-11-28T10:0{number}:00Z"}
            status = {"conditions": [1]} if item["answered"] else {}
            written.append({"metadata": metadata, "spec": spec, "status": status})
        (tmp_path / "requests").write_text(json.dumps({"items": written}))
        return [line.split()[-1] for line in machine(*words) if "approve" in line]

    return ask


def test_what_is_this_nodes_is_approved_and_of_several_the_newest(asked, capsys):
    assert asked(FINE) == ["csr-1"]
    assert capsys.readouterr().out == "approved csr-1 of gpu-1\n"
    assert asked(FINE, FINE | {"user": "system:node:gpu-2"}, FINE) == ["csr-3"]


def test_a_renewal_is_approved_by_the_timer(asked, tmp_path):
    (tmp_path / "certificates").write_text('{"certificates": []}')
    assert asked(FINE, FINE | {"user": "system:node:gpu-2"}, words=(90,)) == ["csr-1"]


@pytest.mark.parametrize("fails", ["get certificatesigningrequests", "certificate approve", "nothing"])
def test_what_the_timer_could_not_approve_is_its_failure(asked, tmp_path, fails):
    (tmp_path / "certificates").write_text('{"certificates": []}')
    broken = KUBECTL.replace('case "$*" in', f'case "$*" in\n  "{fails}"*) echo "forbidden" >&2; exit 1 ;;', 1)
    tree.programs(tmp_path / "bin", ["kubectl"], broken.format(folder=tmp_path))
    item = FINE | ({"names": ""} if fails == "nothing" else {})
    with pytest.raises(SystemExit, match=r"not approved: .*(forbidden|no name at all)"):
        asked(item, words=(90,))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"names": f"{NAMES},DNS:kubernetes.default.svc"}, "DNS:kubernetes.default.svc"),
        ({"names": f"{NAMES},IP:10.96.0.1"}, "IP Address:10.96.0.1"),
        ({"names": f"{NAMES},URI:spiffe://other"}, "URI:spiffe://other"),
        ({"names": ""}, "no name at all"),
        ({"subject": "/O=system:nodes/CN=system:node:gpu-2"}, "the subject"),
        ({"subject": f"{SUBJECT}/O=system:masters"}, "the subject"),
        ({"usages": ["digital signature", "server auth", "client auth"]}, "client auth"),
    ],
    ids=["another name", "another address", "another kind", "none", "another node", "another group", "another use"],
)
def test_what_is_not_this_nodes_is_left_and_named(asked, changed, said):
    with pytest.raises(SystemExit, match=f"csr-1 asks for .*{said}"):
        asked(FINE | changed)


@pytest.mark.parametrize(
    "how",
    [{"key": "rsa"}, {"key": "ec"}, {"attributes": [requesting(alternative(OWN, OWN_ADDRESS))]}],
    ids=["RSA", "EC", "by hand"],
)
def test_a_kubelet_s_request_is_approved_whatever_its_key(asked, how):
    assert asked(FINE | how) == ["csr-1"]


@pytest.mark.parametrize(
    "attributes",
    [
        [requesting(alternative(der(0x82, b"gpu-1\n"), OWN_ADDRESS, OTHER))],
        [requesting(alternative(der(0x82, b"gpu-1\n")))],
        [requesting(COMMENT), requesting(alternative(OTHER))],
        [requesting(alternative(OWN)), requesting(alternative(OTHER))],
        [requesting(alternative(OWN), alternative(OTHER))],
        [requesting(alternative(OWN), extension("551d13", der(0x30, b"\1\1\xff")))],
        [requesting(COMMENT)],
        [
            requesting(alternative(OWN)),
            der(0x30, der(6, bytes.fromhex("2a864886f70d010907")), der(0x31, der(0x0C, b"x"))),
        ],
        [requesting(alternative(OWN, der(0x81, b"gpu-1")))],
        [requesting(alternative(OWN, der(0x87, bytes(16))))],
        [requesting(extension("551d11", der(0x30, OWN) + b"\5\0"))],
        [requesting(extension("551d11", b"\x30\x81\7" + OWN))],
        [requesting(extension("551d11", b"\x30\x80" + OWN + b"\0\0"))],
        [requesting(extension("551d11", b"\x30\x09" + OWN))],
    ],
)
def test_what_another_reader_could_take_for_more_is_not_approved(asked, attributes):
    with pytest.raises(SystemExit, match="csr-1 asks for ") as failed:
        asked(FINE | {"attributes": attributes})
    assert "\n    DNS" not in str(failed.value)


@pytest.mark.parametrize(
    "spoil",
    [lambda whole: whole + b"\5\0", lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])],
    ids=["more", "signature"],
)
def test_a_request_that_has_more_behind_it_or_is_not_signed_is_not_approved(asked, spoil):
    with pytest.raises(SystemExit, match="csr-1 asks for what"):
        asked(FINE | {"attributes": [requesting(alternative(OWN))], "spoil": spoil})


@pytest.mark.parametrize(
    "changed",
    [{"user": "system:node:gpu-2"}, {"signer": "kubernetes.io/kube-apiserver-client-kubelet"}, {"answered": True}],
    ids=["of another", "for another use", "answered"],
)
def test_what_is_none_of_its_requests_is_not_touched(asked, changed):
    with pytest.raises(SystemExit, match="does not reach the kubelet of gpu-1: x509") as failed:
        asked(FINE | changed)
    assert "asks for" not in str(failed.value)
