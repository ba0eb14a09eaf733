"""Of a kubeconfig: which of several files counts, and when a token ends that nothing renews."""

import base64
import json

import pytest
import yaml

from harness.backends.kubernetes.api import KubernetesApi
from harness.spec import KubernetesSpec

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
    return KubernetesApi(KubernetesSpec(kubeconfig=str(place), **changes)).connection.token_ends_s


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


def login_program(tmp_path):
    """A user whose token comes from a program."""
    program = tmp_path / "login"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token({"exp": ENDS_S})},
    }
    program.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    program.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(program), "interactiveMode": "Never"}}


def test_a_login_program_renews_its_own(tmp_path):
    assert ends_s(written(tmp_path / "kubeconfig", login_program(tmp_path))) is None


def test_of_several_files_the_user_of_the_context_in_use_counts(tmp_path):
    first = written(tmp_path / "first", login_program(tmp_path))
    second = written(tmp_path / "second", {"token": token({"exp": ENDS_S})}, name="other", current="d")
    both = f"{first}:{second}"

    assert ends_s(both, context="c") is None
    assert ends_s(both, context="d") == ENDS_S
    assert ends_s(both) is None, "the current context is that of the first file"


def test_of_several_files_the_first_says_which_cluster_is_meant_as_for_kubectl(tmp_path):
    for name, port in (("first", 1), ("second", 2)):
        path = written(tmp_path / name, {"token": "opaque"}, name=name, current=name)
        config = yaml.safe_load(path.read_text())
        config["clusters"][0] = {"name": name, "cluster": {"server": f"https://127.0.0.1:{port}"}}
        config["contexts"][0]["context"]["cluster"] = name
        path.write_text(yaml.safe_dump(config))
    place = f"{tmp_path / 'first'}:{tmp_path / 'second'}"

    assert KubernetesApi(KubernetesSpec(kubeconfig=place)).url == "https://127.0.0.1:1"
    assert KubernetesApi(KubernetesSpec(kubeconfig=place, context="second")).url == "https://127.0.0.1:2"
