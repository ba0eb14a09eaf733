"""The Kubernetes API over plain requests: every call has a timeout, is tried again where that can help, and a refusal is explained.

Objects are dictionaries as the API has them. Whatever is asked twice here does no harm when the first request
had been heard after all: reads, making, server-side apply, merge patches and deletions.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode

import urllib3

from harness.backends.kubernetes.kubeconfig import ClusterConnection, connect
from harness.errors import BackendError, ClusterError
from harness.spec import KubernetesSpec

FIELD_MANAGER = "gpu-sharing-harness"
FIRST_CONTACT_S = 5.0
SETTLE_S = 10.0
"""A server that has just started refuses what it will allow: for this long after it last failed, it is asked again."""
BUSY_S = 60.0
GOING_S = 60.0
"""An object of the same name that is being deleted is waited for so long."""
GOING_POLL_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 0.1, 5.0, 30.0
TRANSIENT = frozenset({429, 500, 502, 503, 504})
"""Answers of a server that is busy, starting, or behind a proxy that lost it."""
_SETTLING = frozenset({401, 403})
"""Answers of a server that has just started, too: its rules are not loaded yet."""
CHUNK_BYTES = 1 << 18
CLIP = 600
JSON, APPLY, MERGE = "application/json", "application/apply-patch+yaml", "application/merge-patch+json"
_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)

Object = dict[str, Any]


class OwnedObject(NamedTuple):
    """An object that the harness makes and deletes: its path, and what is applied."""

    path: str
    body: Object


@dataclass(slots=True)
class _Contact:
    """What everybody who speaks to a server knows of it; ``troubled_s``: when it last failed, on the monotonic clock."""

    connection: ClusterConnection
    reached: bool = False
    troubled_s: float = -math.inf


class _Retries:
    """The pauses between the tries of one request: growing, with jitter, as long as the server asks for, up to a limit."""

    def __init__(self, limit_s: float, longest_pause_s: float) -> None:
        self._limit_s, self._longest_s = limit_s, longest_pause_s
        self.restart()

    def restart(self) -> None:
        """Something got through."""
        self._begun_s, self._pause_s = time.monotonic(), min(FIRST_PAUSE_S, self._longest_s)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._begun_s

    def pause_s(self, headers: Mapping[str, str] | None = None) -> float | None:
        """How long to wait before the next try; None: it is over."""
        pause_s = max(self._pause_s * random.uniform(0.5, 1.0), _retry_after_s(headers or {}))  # noqa: S311 - jitter, no secret
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        return None if self.spent_s + pause_s > self._limit_s else pause_s


class KubernetesApi:
    """One API server, for several threads. Every call raises ClusterError, and BackendError once ``abort`` of ``until`` is set."""

    def __init__(self, spec: KubernetesSpec) -> None:
        self.namespace = spec.namespace
        self.timeout_s = spec.api_timeout_s
        self.longest_pause_s = min(LONGEST_PAUSE_S, spec.api_timeout_s)
        self._outage_s = spec.outage_s
        self._reconnect: Callable[[], ClusterConnection] = lambda: connect(spec)
        self._abort = threading.Event()
        self._contact = _Contact(self._reconnect())

    @property
    def connection(self) -> ClusterConnection:
        """The server and the credentials in use."""
        return self._contact.connection

    def renew(self) -> None:
        """Read the credentials anew, for everybody: a token may have been renewed. Raises ClusterError."""
        self._contact.connection = self._reconnect()

    @property
    def url(self) -> str:
        """Where the API server is."""
        return self.connection.url

    def until(self, abort: threading.Event) -> KubernetesApi:
        """The same server, for somebody who stops trying when ``abort`` is set."""
        other = object.__new__(KubernetesApi)
        other.__dict__.update(self.__dict__, _abort=abort)
        return other

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """One object, or a list of them."""
        return _parsed(self.exchange("GET", path, query=query))

    def find(self, path: str, query: Mapping[str, str] | None = None) -> Object | None:
        """The same, or None where there is none."""
        try:
            return self.get(path, query)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """The objects that match."""
        return list(self.get(path, selectors(labels, fields)).get("items") or [])

    def text(self, path: str, query: Mapping[str, str] | None = None, *, patience_s: float | None = None) -> str:
        """An answer that is no object, e.g. a log."""
        return self.exchange("GET", path, query=query, patience_s=patience_s).data.decode(errors="replace")

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """The answer to a POST; ``dry_run``: as it would be, after every admission, and nothing is stored."""
        return _parsed(self.exchange("POST", path, query={"dryRun": "All"} if dry_run else None, body=body))

    def make(self, path: str, body: Mapping[str, Any]) -> Object:
        """A new object at its path, once what had its name is gone: applying would change what is going. Refuses that of others."""
        deadline_s = time.monotonic() + GOING_S
        what = f"{body['kind']} {body['metadata']['name']}"
        while True:
            there = self.find(path)
            if there is None or "deletionTimestamp" not in there["metadata"]:
                labels = body["metadata"]["labels"]
                if there is not None and not labels.items() <= (there["metadata"].get("labels") or {}).items():
                    raise ClusterError(
                        f"Another user's {what} is in namespace {self.namespace}.",
                        advice="Delete or rename it: its labels are not this campaign's, and so it is left alone.",
                    )
                # Applied, not posted: the parameters of a claim that was posted are kept byte for byte, and whoever takes its
                # finalizers off by a patch writes them in another order, which is refused as a change for ever.
                there = self.apply(path, body)
                if "deletionTimestamp" not in there["metadata"]:
                    return there
            if time.monotonic() >= deadline_s:
                held = ", ".join(there["metadata"].get("finalizers") or ()) or "nothing that it names"
                raise ClusterError(
                    f"The {what} of before is still being deleted after {GOING_S:g} s.",
                    advice=f"It waits for its finalizers ({held}): is the controller running that takes them off?",
                )
            if self._abort.wait(GOING_POLL_S):
                raise BackendError(f"stopped while the {what} of before was being deleted.")

    def apply(self, path: str, body: Mapping[str, Any]) -> Object:
        """Server-side apply of one object at its path."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return _parsed(self.exchange("PATCH", path, query=query, body=body, content_type=APPLY))

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Merge ``body`` into an object."""
        return _parsed(self.exchange("PATCH", path, body=body, content_type=MERGE))

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> bool:
        """Delete one object; False when it was gone already."""
        options: Object = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.exchange("DELETE", path, body=options)
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        return True

    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        patience_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request, tried for ``patience_s`` seconds where that can help; None: as long as an outage may last."""
        if patience_s is None:
            patience_s = self._outage_s if self._contact.reached else min(FIRST_CONTACT_S, self._outage_s)
        retries = _Retries(patience_s, self.longest_pause_s)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json, */*", **({"Content-Type": content_type} if data is not None else {})}
        renewed = False
        while True:
            try:
                answer = self._send(method, path, query, headers, data, self.timeout_s)
            except urllib3.exceptions.HTTPError as error:
                self._contact.troubled_s = time.monotonic()
                self._pause(retries.pause_s(), _unreachable(self.url, error, retries.spent_s), error)
                continue
            if answer.status < 300:
                self._contact.reached = True
                return answer
            refusal = _refused(method, path, answer.status, answer.data)
            if answer.status == 401 and not renewed:
                renewed = True
                self.renew()
            elif not self._worth_a_try(answer.status, retries.spent_s):
                raise refusal
            self._pause(retries.pause_s(answer.headers), refusal, None)

    def stream(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None, silence_s: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """One answer, to be read as it comes; tried once. Raises HTTPError of urllib3, too, e.g. after ``silence_s`` of silence."""
        send = functools.partial(self._send, "GET", path, query, headers or {}, None, silence_s, preload=False)
        answer = send()
        if answer.status == 401:
            answer.close()
            self.renew()
            answer = send()
        # A connection whose answer was not read to its end is of no use to anybody else.
        with closing(answer):
            if answer.status >= 300:
                raise _refused("GET", path, answer.status, answer.read(65_536))
            yield answer

    def download(self, path: str, target: Path, *, patience_s: float, resume: bool = False) -> int:
        """Fetch a growing file that understands ranges, and return its bytes; a broken connection goes on where it ended.

        ``patience_s``: without any progress; ``resume``: keep what is in ``target``, its beginning.
        """
        retries = _Retries(patience_s, self.longest_pause_s)
        with target.open("ab" if resume else "wb") as file:
            while True:
                try:
                    self._continue_download(path, file, retries)
                except urllib3.exceptions.HTTPError as error:
                    self._pause(retries.pause_s(), _unreachable(self.url, error, retries.spent_s), error)
                except ClusterError as error:
                    if error.status not in TRANSIENT:
                        raise
                    self._pause(retries.pause_s(), error, None)
                else:
                    return file.tell()

    def _continue_download(self, path: str, file: BinaryIO, retries: _Retries) -> None:
        done = file.tell()
        headers = {"Range": f"bytes={done}-"} if done else {}
        for answer in self.stream(path, {}, headers=headers, silence_s=self.timeout_s):
            if done and answer.status != 206:
                file.seek(0)  # whoever answered knows no ranges
                file.truncate()
            for chunk in answer.stream(CHUNK_BYTES):
                file.write(chunk)
                retries.restart()

    def _worth_a_try(self, status: int, spent_s: float) -> bool:
        """Whether a refusal may be another answer in a moment."""
        if status in TRANSIENT:
            self._contact.troubled_s = time.monotonic()
            return spent_s < BUSY_S
        troubled = time.monotonic() - self._contact.troubled_s < SETTLE_S
        return self._contact.reached and status in _SETTLING and troubled

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        data: bytes | None,
        silence_s: float,
        *,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        return self.connection.pool.request(
            method,
            f"{self.url}{quote(path, safe='/:~')}{'?' if query else ''}{urlencode(query or {})}",
            headers={**self.connection.authorization(), **headers},
            body=data,
            timeout=urllib3.Timeout(connect=self.timeout_s, read=silence_s),
            retries=False,
            preload_content=preload,
        )

    def _pause(self, pause_s: float | None, failure: ClusterError, cause: Exception | None) -> None:
        """Wait for the next try. Raises the failure when there is none, BackendError when aborted."""
        if pause_s is None:
            raise failure from cause
        if self._abort.wait(pause_s):
            raise BackendError(f"stopped while the API server did not answer: {failure.message}") from failure


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Query parameters of a list or a watch."""
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in query.items() if value}


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """What the server asks for; 0 when it asks for nothing, or for a date."""
    try:
        return min(max(float(headers.get("Retry-After", "0")), 0.0), LONGEST_RETRY_AFTER_S)
    except ValueError:
        return 0.0


def _parsed(answer: urllib3.BaseHTTPResponse) -> Object:
    try:
        parsed = json.loads(answer.data)
    except ValueError as error:
        raise ClusterError(
            f"The API server's answer is not JSON: {_message(answer.data)!r}.",
            advice="Is there a login page or a proxy in between?",
        ) from error
    if not isinstance(parsed, dict):
        raise ClusterError(f"The API server's answer is not an object: {_message(answer.data)!r}.")
    return parsed


def _message(body: bytes) -> str:
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


def _refused(method: str, path: str, status: int, body: bytes) -> ClusterError:
    """What an answer that is no success means, with the server's own words."""
    words = _message(body) or "it says nothing more"
    verb = {"GET": "read", "POST": "create", "PATCH": "change", "DELETE": "delete"}[method]
    lacking = _FORBIDDEN.search(words)
    if status == 403 and lacking is not None:
        what = lacking["resource"] + (f" of {lacking['group']}" if lacking["group"] else "")
        where = f" in namespace {lacking['namespace']}" if lacking["namespace"] else ""
        return ClusterError(
            f"{lacking['user']} may not {lacking['verb']} {what}{where}: {words}.",
            advice="Give it the right (templates/kubernetes/workloads/access.yaml.j2 has all that are needed), or use another context.",
            status=403,
        )
    what, advice = {
        401: (
            "The API server does not accept these credentials (401",
            "The token has expired or belongs to another cluster: log in again (check with kubectl get pods).",
        ),
        403: (
            "The API server forbids it (403",
            "A quota, an admission policy or a missing right: ask the cluster's administrator.",
        ),
        404: ("Not found (404", "Check the namespace and the context."),
        409: ("Another client changed it at the same time (409", "Run it again."),
        422: ("The API server rejects it (422", "Fix what it names."),
    }.get(status, (f"The API server answered {status} (it", "Look at its log."))
    return ClusterError(f"{what} on {verb} {path}): {words}.", advice=advice, status=status)


def _unreachable(url: str, error: urllib3.exceptions.HTTPError, spent_s: float) -> ClusterError:
    """The error for a server that did not answer."""
    line = " ".join(str(getattr(error, "reason", None) or error).split())[:CLIP]
    advice = "Is the cluster running, and is this the right context? Try: kubectl version"
    if isinstance(error, urllib3.exceptions.SSLError) or "certificate" in line.lower():
        advice = "The certificate is not the one that the kubeconfig expects: is it the right context?"
    return ClusterError(f"No API server answers at {url} ({line}; tried for {spent_s:.0f} s).", advice=advice)
