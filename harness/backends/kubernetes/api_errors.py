"""What the API server's refusals mean, in the user's terms and with its own words."""

from __future__ import annotations

import json
import re

import urllib3

from harness.errors import ClusterError

CLIP = 600
_VERBS = {"GET": "read", "POST": "create", "PATCH": "change", "PUT": "change", "DELETE": "delete"}
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def said(body: bytes) -> str:
    """The message of a Status object, or the text itself, in one line."""
    text = body.decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        text = str(answer.get("message") or answer.get("reason") or text)
    line = " ".join(text.split())
    return line if len(line) <= CLIP else f"{line[:CLIP]}..."


def refused(method: str, path: str, status: int, body: bytes) -> ClusterError:
    """The error for an answer that is no success."""
    words = said(body) or "it says nothing more"
    what = f"{_VERBS.get(method, method.lower())} {path}"
    if status == 401:
        return ClusterError(
            f"The API server does not accept these credentials (401 on {path}): {words}.",
            advice="The token has expired or belongs to another cluster: log in again (kubectl get pods tells).",
            status=status,
        )
    if status == 403:
        return _forbidden(what, words)
    if status == 404:
        return ClusterError(
            f"There is no {path}: {words}.", advice="Check the namespace and the context.", status=status
        )
    if status == 409:
        return ClusterError(
            f"Somebody else changed it at the same time ({what}): {words}.", advice="Run it again.", status=status
        )
    if status == 422:
        return ClusterError(
            f"The API server does not take it ({what}): {words}.", advice="Mend what it names.", status=status
        )
    return ClusterError(
        f"The API server answered {status} ({what}): {words}.", advice="Look at its log.", status=status
    )


def _forbidden(what: str, words: str) -> ClusterError:
    match = _FORBIDDEN.search(words)
    if match is None:
        return ClusterError(
            f"The API server forbids it ({what}): {words}.",
            advice="A quota, an admission policy or a missing right: ask whoever runs the cluster.",
            status=403,
        )
    group = f" of {match['group']}" if match["group"] else ""
    where = f" in namespace {match['namespace']}" if match["namespace"] else ""
    return ClusterError(
        f"{match['user']} may not {match['verb']} {match['resource']}{group}{where}: {words}.",
        advice="Give it the right (templates/kubernetes/workloads/access.yaml.j2 has all that are needed), or use another context.",
        status=403,
    )


def unreachable(url: str, error: urllib3.exceptions.HTTPError, spent_s: float) -> ClusterError:
    """The error for a server that did not answer."""
    reason = getattr(error, "reason", None) or error
    line = " ".join(str(reason).split())[:CLIP]
    certificate = isinstance(error, urllib3.exceptions.SSLError) or "certificate" in line.lower()
    advice = (
        "The certificate is not the one that the kubeconfig expects: is it the right context?"
        if certificate
        else "Is the cluster running, and is this the right context? Try: kubectl version"
    )
    return ClusterError(f"No API server answers at {url} ({line}; tried for {spent_s:.0f} s).", advice=advice)
