#!/usr/bin/python3
"""Renews in time what ends, and gives users what is new. Run by systemd once a day, and by the roles.

    node-certificates DAYS [KUBECONFIG...]     renew what ends within so many days
    node-certificates control-plane DAYS       the control plane's alone
    node-certificates serving NODE SECONDS     approve what the node's kubelet asks for until the API server reaches it

Renewed are the control plane's certificates, those of the monitoring, and the token of harness.conf. A KUBECONFIG that is the
administrator's, word for word, is replaced by the new one. A kubelet's request for the certificate that it serves with is approved when
the kubelet of that node made it, for serving alone, under no other names and addresses than the roles wrote down for it.
"""

import base64
import contextlib
import hashlib
import ipaddress
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

KUBERNETES = Path("/etc/kubernetes")
# There until all of them are read: a run that meets it was preceded by a killed one.
MARK = "renewal-unfinished"
READERS = "^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$"
# A node's addresses, a line each; what monitoring_access keeps; whose token it is (the role inference_namespace).
SERVING, MONITORING, TOKEN = "kubelet-serving", "monitoring", "harness-token.json"
SIGNER = "kubernetes.io/kubelet-serving"
USAGES = {"digital signature", "key encipherment", "server auth"}
# A request as kubelets write it: base64 alone within its frame.
PEM = re.compile(r"-----BEGIN CERTIFICATE REQUEST-----\n([A-Za-z0-9+/=\n]+)\n-----END CERTIFICATE REQUEST-----\n?")
# Tags of DER, and those of alternative names; texts are UTF8String and PrintableString.
INTEGER, BIT_STRING, OCTETS, OBJECT = 0x02, 0x03, 0x04, 0x06
SEQUENCE, SET, ATTRIBUTES, TEXTS = 0x30, 0x31, 0xA0, (0x0C, 0x13)
DNS, ADDRESS = 0x82, 0x87
KINDS = {0x81: "email", DNS: "DNS", 0x86: "URI"}
# 1.2.840.113549.1.9.14, 2.5.29.17, 2.5.4.10 and 2.5.4.3.
EXTENSION_REQUEST, ALTERNATIVE_NAME = bytes.fromhex("2a864886f70d01090e"), bytes.fromhex("551d11")
ORGANIZATION, COMMON_NAME = bytes.fromhex("55040a"), bytes.fromhex("550403")
MONITORING_DAYS_MIN, MONITORING_DAYS = 60, 365
# The timer comes once a day; a token is renewed a day earlier.
TOKEN_DAYS_MIN = 2
DAY_S, API_S, RETRY_S = 86400, 120, 1.0


def said(*words: str, given: str = "") -> tuple[int, str]:
    """Exit status of a program, and its answer or its complaint."""
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip()


def run(*words: str, given: str = "") -> str:
    """What a program says; ends with its own words where it fails."""
    code, answer = said(*words, given=given)
    if code != 0:
        raise SystemExit(f"node-certificates: {' '.join(words)} failed: {answer}")
    return answer


def asking(*words: str) -> list[str]:
    """The command that asks the API server as the administrator."""
    return ["kubectl", "--kubeconfig", str(KUBERNETES / "admin.conf"), "--request-timeout", "20s", *words]


def due(days: int) -> list[str]:
    """The certificates that end within so many days; kubeadm says words before its answer."""
    answer = run("kubeadm", "certs", "check-expiration", "--output", "json")
    known = json.loads(answer[answer.index("{") :])["certificates"]
    ours = [item for item in known if not item.get("missing") and not item.get("externallyManaged")]
    return [item["name"] for item in ours if item["residualTime"] < days * DAY_S]


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def put(path: Path, text: str) -> None:
    """Replaces a file at once, for its owner alone."""
    # The folder may be a user's, who could have a link lead root elsewhere: it is opened once, and all is done in what was opened.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        own, new = os.stat(path.name, dir_fd=folder, follow_symlinks=False), f".{path.name}.new"
        if own.st_uid != os.fstat(folder).st_uid:
            raise PermissionError(f"{path} and its folder are of two owners. Give both to one, and run again.")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "w") as file:
            os.fchown(file.fileno(), own.st_uid, own.st_gid)
            file.write(text)
        os.rename(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def all_of(steps: Iterable[tuple[Any, Callable[[], None]]]) -> None:
    """Makes each step; where some fail, the others all the same, and ends with what each of them failed of."""
    failed = []
    for name, step in steps:
        try:
            step()
        # A user's file may hold anything: RuntimeError is a home that is gone, TypeError and AttributeError another shape.
        except (SystemExit, OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise SystemExit("\n".join(failed))


def hand_on(path: Path, before: list[str], after: str) -> None:
    """A user's copy of the administrator's kubeconfig, by the sums of that, is replaced; a link, and what is no copy, stay."""
    if not path.is_symlink() and path.is_file() and digest(path) in before:
        put(path, after)


def renew_control_plane(days: int, paths: list[Path]) -> None:
    """Renews all where one ends within so many days, and has its programs and users read them."""
    mark, admin = KUBERNETES / MARK, KUBERNETES / "admin.conf"
    names = due(days)
    if not names and not mark.exists():
        return
    sys.stdout.write(
        f"renewing, for these end within {days} days: {', '.join(names) or 'none, but an earlier run was killed'}\n"
    )
    # With the sum of what users have before the first try, which one that is killed has changed.
    before = [digest(admin), *(mark.read_text(encoding="utf-8").split()[-1:] if mark.exists() else [])]
    mark.write_text(f"The certificates are being renewed; the next run finishes it. {before[-1]}\n", encoding="utf-8")
    run("kubeadm", "certs", "renew", "all")
    containers = run("crictl", "ps", "--quiet", "--name", READERS).split()
    if containers:
        run("crictl", "stop", "--timeout", "30", *containers)
    new = admin.read_text(encoding="utf-8")
    try:
        all_of((path, partial(hand_on, path, before, new)) for path in paths)
    finally:
        # Not a kill: one file that cannot be written is no reason to renew all again tomorrow.
        mark.unlink()


def values(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each of the DER values that lie one behind the other, to the last byte."""
    found = []
    while der:
        start, size = 2, der[1] if len(der) > 1 else 0x80
        if size > 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[2:start], "big")
            if size < 0x80 or not der[2]:
                raise ValueError("a length that is not DER's")
        elif size == 0x80:
            raise ValueError("a value without a length")
        if der[0] & 0x1F == 0x1F or len(der) < start + size:
            raise ValueError("a value that is cut off, or of an unknown kind")
        found.append((der[0], der[start : start + size]))
        der = der[start + size :]
    return found


def shaped(der: bytes, *tags: int) -> list[bytes]:
    """The contents of DER values that have these tags, and of no more."""
    found = values(der)
    if [tag for tag, _ in found] != list(tags):
        raise ValueError(f"tags {[tag for tag, _ in found]} where a kubelet has {list(tags)}")
    return [content for _, content in found]


def parts(request: str) -> tuple[list[list[tuple[int, bytes]]], list[tuple[int, bytes]]]:
    """Subject (type and value of each part) and alternative names of a request in PEM that is written as kubelets write theirs."""
    # With the alternative names as its only extension: what is anything else may be read by the API server in a way of its own.
    if (body := PEM.fullmatch(request)) is None:
        raise ValueError("not one request in PEM alone")
    (whole,) = shaped(base64.b64decode(body[1].replace("\n", ""), validate=True), SEQUENCE)
    information, _, _ = shaped(whole, SEQUENCE, SEQUENCE, BIT_STRING)
    _, subject, _, attributes = shaped(information, INTEGER, SEQUENCE, SEQUENCE, ATTRIBUTES)
    pairs = [values(shaped(part, SEQUENCE)[0]) if tag == SET else [] for tag, part in values(subject)]
    if not attributes:
        return pairs, []
    (attribute,) = shaped(attributes, SEQUENCE)
    kind, listed = shaped(attribute, OBJECT, SET)
    (extensions,) = shaped(listed, SEQUENCE)
    (extension,) = shaped(extensions, SEQUENCE)
    what, content = shaped(extension, OBJECT, OCTETS)
    if (kind, what) != (EXTENSION_REQUEST, ALTERNATIVE_NAME):
        raise ValueError("an extension that is none of alternative names")
    return pairs, values(shaped(content, SEQUENCE)[0])


def shown(tag: int, name: bytes) -> str:
    """An alternative name for a person, on one line whatever is in it."""
    if tag == ADDRESS and len(name) in {4, 16}:
        return f"IP Address:{ipaddress.ip_address(name)}"
    return f"{KINDS.get(tag, f'kind {tag:#x}')}:{repr(name)[2:-1]}"


def wrong(spec: dict[str, Any], node: str, addresses: list[str]) -> str:
    """What a kubelet's request asks for that is not its node's; empty where there is nothing."""
    try:
        request = base64.b64decode(spec["request"]).decode()
        subject, names = parts(request)
    except ValueError as error:
        return f"what no kubelet asks for: {error}"
    # openssl's own status is 0 for a wrong signature, too.
    answer = said("sh", "-c", "openssl req -noout -verify 2>&1", given=request)[1]
    if not answer.endswith("verify OK"):
        return f"what it has not signed: {answer}"
    own = {(DNS, node.encode()), *((ADDRESS, ipaddress.ip_address(address).packed) for address in addresses)}
    more = [shown(*name) for name in sorted(set(names) - own)]
    more += sorted(set(spec.get("usages", ())) - USAGES)
    whole = [(ORGANIZATION, b"system:nodes"), (COMMON_NAME, f"system:node:{node}".encode())]
    if not any(subject == [[(OBJECT, kind), (tag, value)] for kind, value in whole] for tag in TEXTS):
        more.append(f"the subject {[value for pair in subject for _, value in pair[1:]]}")
    return ", ".join(more) or ("" if names else "no name at all")


def approve(nodes: list[str]) -> list[str]:
    """Approves the newest request of each of these nodes that nobody has answered; says why others are not."""
    code, text = said(*asking("get", "certificatesigningrequests", "--output", "json"))
    if code != 0:
        return [f"the requests cannot be read: {text}"]
    items = sorted(json.loads(text)["items"], key=lambda item: item["metadata"].get("creationTimestamp") or "")
    newest = {
        item["spec"].get("username"): item
        for item in items
        if item["spec"].get("signerName") == SIGNER and not item.get("status", {}).get("conditions")
    }
    refused = []
    for node in nodes:
        if (item := newest.get(f"system:node:{node}")) is None:
            continue
        name = item["metadata"]["name"]
        addresses = (KUBERNETES / SERVING / node).read_text(encoding="utf-8").split()
        if reason := wrong(item["spec"], node, addresses):
            refused.append(f"{name} asks for {reason}")
            continue
        code, text = said(*asking("certificate", "approve", name))
        if code == 0:
            sys.stdout.write(f"approved {name} of {node}\n")
        else:
            refused.append(f"{name} cannot be approved: {text}")
    return refused


def approve_all(nodes: list[str]) -> None:
    """Approves what these nodes ask for; ends with what was not approved."""
    if refused := approve(nodes):
        raise SystemExit("; ".join(refused))


def settle(node: str, timeout_s: float) -> None:
    """Approves until the API server reaches the node's kubelet, which it does only where it knows the certificate."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        refused = approve([node])
        code, reason = said(*asking("get", "--raw", f"/api/v1/nodes/{node}/proxy/healthz"))
        if code == 0:
            return
        if time.monotonic() > deadline_s:
            more = f" Not approved: {'; '.join(refused)}." if refused else ""
            raise SystemExit(
                f"The API server does not reach the kubelet of {node}: {reason}.{more}\n"
                "`kubectl get certificatesigningrequests` and `journalctl --unit kubelet` on the node say why; the node may ask for its"
                " name and for its own addresses only. Fix that and run again."
            )
        time.sleep(RETRY_S)


def renew_monitoring() -> None:
    """Signs certificates of the monitoring that end soon anew, for the same key and names; Grafana reads its own at its start alone."""
    for path in sorted((KUBERNETES / MONITORING).glob("*.crt")):
        lasts = ("openssl", "x509", "-noout", "-checkend", str(MONITORING_DAYS_MIN * DAY_S), "-in", str(path))
        if path.stem == "ca" or said(*lasts)[0] == 0:
            continue
        authority = ("-CA", str(path.with_name("ca.crt")), "-CAkey", str(path.with_name("ca.key")))
        serial = ("-set_serial", f"0x{secrets.token_hex(16)}", "-days", str(MONITORING_DAYS), "-sha256")
        copied = ("-copy_extensions", "copyall")
        request = run(
            "openssl", "x509", "-x509toreq", *copied, "-in", str(path), "-signkey", str(path.with_suffix(".key"))
        )
        new = run("openssl", "x509", "-req", *copied, *authority, *serial, given=request) + "\n"
        patch = json.dumps({"data": {"tls.crt": base64.b64encode(new.encode()).decode()}})
        place = ("--namespace", "monitoring")
        run(*asking("patch", "secret", f"{path.stem}-web", *place, "--type", "merge", "--patch", patch))
        if path.stem == "grafana":
            run(*asking("rollout", "restart", "deployment/grafana", *place))
        put(path, new)
        sys.stdout.write(f"renewed the certificate of {path.stem}\n")


def remaining_s(token: str) -> float:
    """Seconds that a token is still valid; negative for what is no token."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("exp", 0) - time.time())
    except (IndexError, ValueError, AttributeError):
        return -1


def renew_token(word: str, asked: dict[str, Any]) -> None:
    """Gives a user whose kubeconfig of the harness has a token that ends soon another one."""
    path = Path(word).expanduser()
    if path.is_symlink() or not path.is_file():
        return
    content = json.loads(path.read_text(encoding="utf-8"))
    user = content["users"][0]
    ours = user["name"] == f"{asked['account']}@{asked['namespace']}"
    if not ours or remaining_s(user["user"]["token"]) >= max(int(asked["ttl_s"]) // 2, TOKEN_DAYS_MIN * DAY_S):
        return
    place = ("--namespace", asked["namespace"], "--duration", f"{asked['ttl_s']}s")
    user["user"] = {"token": run(*asking("create", "token", asked["account"], *place))}
    put(path, json.dumps(content, indent=1) + "\n")
    sys.stdout.write(f"renewed the token in {path}\n")


def renew_tokens() -> None:
    """Renews the tokens that are half over, or would end before the next day's run."""
    asked = json.loads((KUBERNETES / TOKEN).read_text(encoding="utf-8"))
    all_of((word, partial(renew_token, word, asked)) for word in asked["paths"])


def wait_for_the_api() -> None:
    """Returns once the API server answers: it may have been started anew just now."""
    deadline_s = time.monotonic() + API_S
    while said(*asking("get", "--raw", "/readyz"))[0] != 0:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"node-certificates: the API server did not answer for {API_S} s; tomorrow again.")
        time.sleep(RETRY_S)


def main() -> None:
    """Renews what has to be; where one of it fails, the others all the same."""
    if sys.argv[1] == "serving":
        settle(sys.argv[2], float(sys.argv[3]))
        return
    if sys.argv[1] == "control-plane":
        renew_control_plane(int(sys.argv[2]), [])
        return
    nodes = sorted(path.name for path in (KUBERNETES / SERVING).glob("[!.]*"))
    by_api: list[tuple[str, Callable[[], None]]] = [("not approved", partial(approve_all, nodes))] if nodes else []
    by_api += [("the monitoring", renew_monitoring)] if (KUBERNETES / MONITORING / "ca.key").exists() else []
    by_api += [("the tokens", renew_tokens)] if (KUBERNETES / TOKEN).exists() else []

    def ask() -> None:
        if by_api:
            wait_for_the_api()
        all_of(by_api)

    control_plane = partial(renew_control_plane, int(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
    all_of([("the control plane", control_plane), ("by the API server", ask)])


if __name__ == "__main__":
    main()
