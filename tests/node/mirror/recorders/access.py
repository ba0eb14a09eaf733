"""What the recorder of kubectl does about access: kubeconfigs, tokens of service accounts, rights, generated secrets."""

import base64
import json
import os
import sys
import time
from pathlib import Path

import cluster
import yaml
from recorded import fail, option


def config(words: list[str], arguments: list[str]) -> None:
    """`config view`: a kubeconfig as JSON, or without what is secret unless --raw says so."""
    if words != ["view"] or "--raw" not in arguments:
        fail(f"this recorder does not know: kubectl config {' '.join(words)}")
    default = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
    path = Path(option(arguments, "--kubeconfig", default=default))
    print(json.dumps(yaml.safe_load(path.read_text())))


def create(words: list[str], arguments: list[str]) -> None:
    """`create token ACCOUNT`, and `create -f -` of objects that must not be there yet."""
    if words[:1] == ["token"]:
        token(words[1], arguments)
        return
    for item in yaml.safe_load_all(sys.stdin.read()):
        kind, place = cluster.kind_of_object(item), item["metadata"].get("namespace", "default")
        if cluster.read(kind, place, item["metadata"]["name"]) is not None:
            fail(f'Error from server (AlreadyExists): {kind.plural} "{item["metadata"]["name"]}" already exists')
        _, wanted = cluster.merged(item, place)
        cluster.write(wanted)
        print(f"{kind.label}/{item['metadata']['name']} created")


def token(account: str, arguments: list[str]) -> None:
    """A token with the account's name and an end; nobody here signs it."""
    place = option(arguments, "-n", "--namespace", default="default")
    if cluster.read(cluster.kind_of("serviceaccount"), place, account) is None:
        fail(f'error: failed to create token: serviceaccounts "{account}" not found')
    ends_s = int(time.time()) + int(option(arguments, "--duration", default="3600s").removesuffix("s"))
    claims = {"exp": ends_s, "sub": f"system:serviceaccount:{place}:{account}"}
    print(
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims, {}))
    )


def auth(words: list[str], arguments: list[str]) -> None:
    """`auth can-i VERB RESOURCE`, by the rules of the roles that are bound to the account of the kubeconfig."""
    default = str(Path.home() / ".kube/config")
    settings = yaml.safe_load(Path(option(arguments, "--kubeconfig", default=default)).read_text())
    given = settings["users"][0]["user"].get("token", "")
    allowed = not given or _allowed(_subject(given), words[1], words[2], option(arguments, "-n", "--namespace"))
    print("yes" if allowed else "no")
    raise SystemExit(0 if allowed else 1)


def _subject(given: str) -> str:
    body = given.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if claims["exp"] < time.time():
        fail("error: You must be logged in to the server (Unauthorized)")
    return str(claims["sub"])


def _allowed(subject: str, verb: str, resource: str, namespace: str) -> bool:
    plural, _, group = resource.partition(".")
    _, _, place, account = subject.split(":")
    for binding in cluster.listing(cluster.kind_of("rolebinding"), namespace):
        subjects = [(one.get("namespace"), one["name"]) for one in binding["subjects"]]
        if (place, account) in subjects:
            role = cluster.read(cluster.kind_of("role"), namespace, binding["roleRef"]["name"]) or {"rules": []}
            if any(group in r["apiGroups"] and plural in r["resources"] and verb in r["verbs"] for r in role["rules"]):
                return True
    return False
