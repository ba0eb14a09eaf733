"""A kubeconfig of the account's own: when its token is renewed, and what is never taken from the administrator."""

import base64
import getpass
import json
import time

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("kubeconfig")
ADMIN = {
    "clusters": [
        {"name": "kubernetes", "cluster": {"server": "https://192.0.2.1:6443", "certificate-authority-data": "Y2E="}}
    ],
    "users": [{"name": "admin", "user": {"client-key-data": "SECRET"}}],
}
TTL_S = 1000


def token(exp_s):
    body = base64.urlsafe_b64encode(json.dumps({"exp": exp_s}).encode()).rstrip(b"=").decode()
    return f"e30.{body}.signature"


def run(monkeypatch, path, *, admin=ADMIN, code=0, check_mode=False, life_s=TTL_S):
    """What the module exits with, and the verbs of kubectl."""

    def answer(words):
        if words[3:5] == ["config", "view"]:
            return 0, json.dumps(admin), ""
        return code, token(int(time.time()) + life_s) + "\n", "serviceaccounts not found"

    params = {"path": str(path), "owner": getpass.getuser(), "account": "harness", "namespace": "inference"}
    fake = FakeModule(answer, check_mode=check_mode, **params, ttl_s=TTL_S, source=__file__, kubectl="kubectl")
    return ended(monkeypatch, module, fake), [words[3] for words in fake.commands]


def test_it_is_written_for_its_owner_alone_without_anything_of_the_administrator_s(monkeypatch, tmp_path):
    path = tmp_path / "kube" / "harness.conf"
    result, verbs = run(monkeypatch, path)
    assert (result["changed"], verbs) == (True, ["config", "create"])
    content = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert content["clusters"][0]["cluster"] == ADMIN["clusters"][0]["cluster"]
    assert "SECRET" not in path.read_text()
    assert content["current-context"] == "harness@inference"


def test_a_token_with_more_than_half_its_life_is_kept(monkeypatch, tmp_path):
    path = tmp_path / "kube/harness.conf"
    run(monkeypatch, path)
    before = path.read_text()
    result, verbs = run(monkeypatch, path)
    assert (result["changed"], verbs, path.read_text()) == (False, ["config"], before)


@pytest.mark.parametrize(
    "spoilt", ["", "apiVersion: v1", "[]", '{"users": []}', '{"users": [{"user": {"token": "x.y"}}]}']
)
def test_what_is_not_ours_is_made_anew(monkeypatch, tmp_path, spoilt):
    path = tmp_path / "kube/harness.conf"
    run(monkeypatch, path)
    path.write_text(spoilt)
    assert run(monkeypatch, path)[0]["changed"] is True
    assert json.loads(path.read_text())["users"][0]["name"] == "harness@inference"


def test_an_old_token_and_another_cluster_are_renewed(monkeypatch, tmp_path):
    path = tmp_path / "kube/harness.conf"
    run(monkeypatch, path, life_s=TTL_S // 2 - 10)
    assert run(monkeypatch, path)[0]["changed"] is True
    moved = {"clusters": [{"name": "kubernetes", "cluster": {"server": "https://192.0.2.2:6443"}}]}
    assert run(monkeypatch, path, admin=moved)[0]["changed"] is True
    assert "192.0.2.2" in path.read_text()


def test_check_mode_asks_for_no_token(monkeypatch, tmp_path):
    path = tmp_path / "kube/harness.conf"
    result, verbs = run(monkeypatch, path, check_mode=True)
    assert (result["changed"], verbs, path.exists()) == (True, ["config"], False)


def test_no_cluster_and_no_account_end_with_a_reason(monkeypatch, tmp_path):
    with pytest.raises(Failed, match="names no cluster: make the control plane first"):
        run(monkeypatch, tmp_path / "a/b", admin={})
    with pytest.raises(Failed, match="serviceaccounts not found"):
        run(monkeypatch, tmp_path / "a/b", code=1)
