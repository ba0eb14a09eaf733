"""A kubelet's certificate is approved for exactly its node, and for nothing else."""

import base64
import json
import subprocess

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("kubelet_serving")
SUBJECT = "/O=system:nodes/CN=system:node:gpu-1"
NAMES = "DNS:gpu-1,IP:192.0.2.10"
NOT_KNOWN = (1, "", "x509: certificate signed by unknown authority")
FINE = {"subject": SUBJECT, "names": NAMES, "user": "system:node:gpu-1", "usages": ["digital signature", "server auth"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Requests by subject and names, each made once: a key for all."""
    folder, found = tmp_path_factory.mktemp("requests"), {}
    key = ["openssl", "genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out"]
    subprocess.run([*key, str(folder / "key")], check=True, capture_output=True)

    def make(subject, names):
        if (subject, names) not in found:
            command = ["openssl", "req", "-new", "-key", str(folder / "key"), "-subj", subject]
            command += ["-addext", f"subjectAltName={names}"] if names else []
            done = subprocess.run(command, check=True, capture_output=True)
            found[subject, names] = base64.b64encode(done.stdout).decode()
        return found[subject, names]

    return make


def asked(made, *, signer=module.SIGNER, answered=False, subject, names, user, usages):
    spec = {"request": made(subject, names), "signerName": signer, "username": user, "usages": usages}
    return {"metadata": {"name": "csr-1"}, "spec": spec, "status": {"conditions": [1]} if answered else {}}


def run(monkeypatch, item, *, check_mode=False, reached=None):
    """What the module exits with, and what it approved; reached: whether the kubelet is before it is approved."""
    approved = []

    def answer(words):
        if words[0] == "openssl":
            done = subprocess.run(words, input=fake.given[-1], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        if "approve" in words:
            approved.append(words[-1])
            item["status"] = {"conditions": [1]}
            return 0, "", ""
        if "--raw" in words:
            return (0, "ok", "") if approved or reached else NOT_KNOWN
        return 0, json.dumps({"items": [item] if item else []}), ""

    options = {
        "node": "gpu-1",
        "addresses": ["192.0.2.10", "192.0.2.11"],
        "timeout_s": 0,
        "kubeconfig": "k",
        "kubectl": "kubectl",
    }
    fake = FakeModule(answer, check_mode=check_mode, **options)
    monkeypatch.setattr(module, "RETRY_S", 0)
    return ended(monkeypatch, module, fake), approved


def test_what_is_this_nodes_is_approved_once(monkeypatch, made):
    item = asked(made, **FINE)
    result, approved = run(monkeypatch, item)
    assert (result["changed"], result["approved"], approved) == (True, ["csr-1"], ["csr-1"])
    result, approved = run(monkeypatch, item, reached=True)
    assert (result["changed"], approved) == (False, [])


def test_a_renewal_is_approved_while_the_old_one_is_still_good(monkeypatch, made):
    result, approved = run(monkeypatch, asked(made, **FINE), reached=True)
    assert (result["changed"], approved) == (True, ["csr-1"])


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
def test_what_is_not_this_nodes_is_left_and_named(monkeypatch, made, changed, said):
    with pytest.raises(Failed, match=f"csr-1 asks for .*{said}"):
        run(monkeypatch, asked(made, **(FINE | changed)))


@pytest.mark.parametrize(
    "changed",
    [{"user": "system:node:gpu-2"}, {"signer": "kubernetes.io/kube-apiserver-client-kubelet"}, {"answered": True}],
    ids=["of another", "for another use", "answered"],
)
def test_what_is_none_of_its_requests_is_not_touched(monkeypatch, made, changed):
    with pytest.raises(Failed, match="does not reach the kubelet of gpu-1: x509") as failed:
        run(monkeypatch, asked(made, **(FINE | changed)))
    assert "asks for" not in str(failed.value)


def test_check_mode_approves_nothing_and_does_not_wait(monkeypatch, made):
    result, approved = run(monkeypatch, asked(made, **FINE), check_mode=True)
    assert (result["changed"], approved) == (True, [])
