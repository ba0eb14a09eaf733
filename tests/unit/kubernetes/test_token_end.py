"""When a token ends is read from itself, unless something renews it."""

import base64
import json

import pytest
import yaml

from harness.backends.kubernetes import token_end
from harness.backends.kubernetes.client import KubernetesApi
from harness.config import KubernetesSpec

ENDS_S = 1_795_646_400


def token(claims) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{middle}.signature"


def written(path, user, name="harness", current="c"):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": current, "context": {"cluster": "c", "user": name}}],
        "current-context": current,
    }
    path.write_text(yaml.safe_dump(config))
    return path


def ends_s(place, **changes):
    return KubernetesApi(KubernetesSpec(kubeconfig=str(place), **changes)).token_ends_s()


@pytest.mark.parametrize(
    ("text", "end_s"),
    [
        (token({"exp": ENDS_S}), ENDS_S),
        (token({"exp": ENDS_S, "pad": "x"}), ENDS_S),
        (token({"sub": "nobody"}), None),
        (token({"exp": "soon"}), None),
        (token([ENDS_S]), None),
        ("a.!.b", None),
        ("opaque", None),
    ],
)
def test_what_a_token_says_of_itself(tmp_path, text, end_s):
    assert ends_s(written(tmp_path / "kubeconfig", {"token": text})) == end_s


def test_another_token_in_the_kubeconfig_is_read_when_credentials_are_renewed(tmp_path):
    api = KubernetesApi(KubernetesSpec(kubeconfig=str(written(tmp_path / "k", {"token": token({"exp": ENDS_S})}))))
    written(tmp_path / "k", {"token": token({"exp": ENDS_S + 60})})

    api.renew()

    assert api.token_ends_s() == ENDS_S + 60


def test_a_login_program_renews_its_own(tmp_path):
    program = tmp_path / "login"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token({"exp": ENDS_S})},
    }
    program.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    program.chmod(0o755)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    }

    assert ends_s(written(tmp_path / "kubeconfig", user)) is None


def test_of_several_files_the_user_of_the_context_in_use_counts(tmp_path):
    first = written(tmp_path / "first", {"exec": {"command": "login"}, "token": token({"exp": ENDS_S})})
    second = written(tmp_path / "second", {"token": token({"exp": ENDS_S + 60})}, name="other", current="d")
    both = f"{first}:{second}"

    assert token_end.ends_s(both, "c", f"Bearer {token({'exp': ENDS_S})}") is None
    assert ends_s(both, context="d") == ENDS_S + 60
    assert ends_s(both) == ENDS_S + 60, "the current context is that of the last file"
