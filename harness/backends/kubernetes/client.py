"""The Kubernetes API over plain requests: every call has a timeout, and is tried again where that can help.

Objects are dictionaries as the API has them. Whatever is asked twice here does no harm when the first request
had been heard after all: reads, making, server-side apply, merge patches and deletions.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from harness.backends.kubernetes import api_errors
from harness.backends.kubernetes.connect import Connection, connect
from harness.backends.kubernetes.retry import LONGEST_PAUSE_S, SETTLING, TRANSIENT, Patience
from harness.errors import BackendError, ClusterError
from harness.spec import KubernetesSpec

FIELD_MANAGER = "gpu-sharing-harness"
FIRST_CONTACT_S = 5.0
SETTLE_S = 10.0
"""A server that has just started refuses what it will allow: for this long after it last failed, it is asked again."""
BUSY_S = 60.0
GOING_S = 60.0
"""An object of the same name that is being deleted is waited for so long."""
GOING_LOOK_S = 0.2
CHUNK_BYTES = 1 << 18
JSON, APPLY, MERGE = "application/json", "application/apply-patch+yaml", "application/merge-patch+json"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer that is a success."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Contact:
    """What is known of the server, by everybody who speaks to it.

    Attributes:
        connection: with the credentials in use.
        reached: it has answered at least once.
        troubled_s: when it last failed, on the monotonic clock.
    """

    connection: Connection
    reached: bool = False
    troubled_s: float = -math.inf


class KubernetesApi:
    """One API server; safe to use from several threads.

    Args:
        spec: timeouts, namespace and credentials.
        abort: when it is set, nothing is tried again; None: nobody aborts.
        reconnect: makes a connection with fresh credentials; None: from ``spec``.
    """

    def __init__(
        self,
        spec: KubernetesSpec,
        *,
        abort: threading.Event | None = None,
        reconnect: Callable[[], Connection] | None = None,
    ) -> None:
        self.namespace = spec.namespace
        self.timeout_s = spec.api_timeout_s
        self.longest_pause_s = min(LONGEST_PAUSE_S, spec.api_timeout_s)
        self._outage_s = spec.outage_s
        self._reconnect = reconnect or (lambda: connect(spec))
        self._abort = abort or threading.Event()
        self._contact = _Contact(self._reconnect())

    @property
    def connection(self) -> Connection:
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
        """One object. Raises ClusterError."""
        return _parsed(self.exchange("GET", path, query=query))

    def find(self, path: str, query: Mapping[str, str] | None = None) -> Object | None:
        """One object, or None where there is none. Raises ClusterError."""
        try:
            return self.get(path, query)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    def list(self, path: str, *, labels: str = "", fields: str = "") -> list[Object]:
        """The objects that match. Raises ClusterError."""
        return list(self.get(path, selectors(labels, fields)).get("items") or [])

    def text(self, path: str, query: Mapping[str, str] | None = None, *, patience_s: float | None = None) -> str:
        """An answer that is no object, e.g. a log. Raises ClusterError."""
        return self.exchange("GET", path, query=query, patience_s=patience_s).body.decode(errors="replace")

    def server_time_s(self) -> float | None:
        """What the API server's clock says, seconds since the epoch; None when it does not. Raises ClusterError."""
        date = self.exchange("GET", "/version").headers.get("Date")
        return parsedate_to_datetime(date).timestamp() if date else None

    def token_ends_s(self) -> float | None:
        """When the token ends, seconds since the epoch; None where it does not, or is renewed by itself."""
        return self.connection.token_ends_s

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """The answer to a POST. Raises ClusterError."""
        return _parsed(self.exchange("POST", path, body=body))

    def make(self, path: str, body: Mapping[str, Any]) -> Object:
        """A new object at its path, once what had its name and is being deleted is gone.

        Applying would change what is going, and leave nothing once it is gone.

        Raises:
            ClusterError: refused; an object of this name has other labels, or does not go.
            BackendError: aborted.
        """
        deadline_s = time.monotonic() + GOING_S
        what = f"{body['kind']} {body['metadata']['name']}"
        while True:
            going = self.find(path)
            if going is None or not _is_going(going):
                if going is not None and not _has(going, body["metadata"]["labels"]):
                    raise ClusterError(
                        f"Somebody else's {what} is in namespace {self.namespace}.",
                        advice="Delete or rename it: its labels are not this campaign's, and so it is left alone.",
                    )
                # Applied, not posted: the parameters of a claim that was posted are kept byte for byte, and whoever takes its
                # finalizers off by a patch writes them in another order, which is refused as a change for ever.
                going = self.apply(path, body)
                if not _is_going(going):
                    return going
            if time.monotonic() >= deadline_s:
                held = ", ".join(going["metadata"].get("finalizers") or ()) or "nothing that it names"
                raise ClusterError(
                    f"The {what} of before is still being deleted after {GOING_S:g} s.",
                    advice=f"It waits for its finalizers ({held}): is the controller running that takes them off?",
                )
            if self._abort.wait(GOING_LOOK_S):
                raise BackendError(f"stopped while the {what} of before was being deleted.")

    def apply(self, path: str, body: Mapping[str, Any]) -> Object:
        """Server-side apply of one object at its path. Raises ClusterError."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return _parsed(self.exchange("PATCH", path, query=query, body=body, content_type=APPLY))

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Merge ``body`` into an object. Raises ClusterError."""
        return _parsed(self.exchange("PATCH", path, body=body, content_type=MERGE))

    def delete(self, path: str, *, grace_s: int | None = None, propagation: str = "Background") -> bool:
        """Delete one object; False when it was gone already. Raises ClusterError."""
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
    ) -> Reply:
        """One request, tried again as long as that can help.

        Args:
            method: GET, POST, PATCH or DELETE.
            path: from the server's root.
            query: parameters.
            body: sent as JSON.
            content_type: of the body.
            patience_s: seconds to go on trying; None: as long as the campaign allows an outage to last.

        Raises:
            ClusterError: refused, or not reached in that time.
            BackendError: aborted.
        """
        limit_s = self._limit_s() if patience_s is None else patience_s
        patience = Patience(limit_s, longest_pause_s=self.longest_pause_s)
        data = None if body is None else json.dumps(body).encode()
        renewed = False
        while True:
            try:
                reply = self._send(method, path, query or {}, data, content_type)
            except urllib3.exceptions.HTTPError as error:
                self._contact.troubled_s = time.monotonic()
                self._pause(patience.pause_s(), api_errors.unreachable(self.url, error, patience.spent_s), error)
                continue
            if reply.status < 300:
                self._contact.reached = True
                return reply
            refusal = api_errors.refused(method, path, reply.status, reply.body)
            if reply.status == 401 and not renewed:
                renewed = True
                self.renew()
            elif not self._worth_a_try(reply.status, patience.spent_s):
                raise refusal
            self._pause(patience.pause_s(reply.headers), refusal, None)

    def stream(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None, silence_s: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """One answer, to be read as it comes; tried once.

        Raises:
            ClusterError: refused.
            urllib3.exceptions.HTTPError: not reached, cut off, or silent for ``silence_s`` seconds.
        """
        answer = self._open(path, query, headers or {}, silence_s)
        if answer.status == 401:
            answer.close()
            self.renew()
            answer = self._open(path, query, headers or {}, silence_s)
        # A connection whose answer was not read to its end is of no use to anybody else.
        with closing(answer):
            if answer.status >= 300:
                raise api_errors.refused("GET", path, answer.status, answer.read(65_536))
            yield answer

    def _open(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], silence_s: float
    ) -> urllib3.BaseHTTPResponse:
        return self.connection.pool.request(
            "GET",
            self._target(path, query),
            headers={**self.connection.authorization(), **headers},
            timeout=urllib3.Timeout(connect=self.timeout_s, read=silence_s),
            retries=False,
            preload_content=False,
        )

    def download(self, path: str, target: Path, *, patience_s: float, resume: bool = False) -> int:
        """Fetch a growing file that understands ranges; a broken connection goes on where it ended.

        Args:
            path: of the file.
            target: file to write.
            patience_s: seconds without any progress after which it is given up.
            resume: keep what is in ``target``, its beginning, and fetch the rest.

        Returns:
            Number of bytes.

        Raises:
            ClusterError: refused, or no progress for that time.
            BackendError: aborted.
        """
        patience = Patience(patience_s, longest_pause_s=self.longest_pause_s)
        with target.open("ab" if resume else "wb") as file:
            while True:
                try:
                    self._continue_download(path, file, patience)
                except urllib3.exceptions.HTTPError as error:
                    self._pause(patience.pause_s(), api_errors.unreachable(self.url, error, patience.spent_s), error)
                except ClusterError as error:
                    if error.status not in TRANSIENT:
                        raise
                    self._pause(patience.pause_s(), error, None)
                else:
                    return file.tell()

    def _continue_download(self, path: str, file: Any, patience: Patience) -> None:
        done = file.tell()
        headers = {"Range": f"bytes={done}-"} if done else {}
        for answer in self.stream(path, {}, headers=headers, silence_s=self.timeout_s):
            if done and answer.status != 206:
                file.seek(0)  # whoever answered knows no ranges
                file.truncate()
            for chunk in answer.stream(CHUNK_BYTES):
                file.write(chunk)
                patience.progress()

    def _worth_a_try(self, status: int, spent_s: float) -> bool:
        """Whether a refusal may be another answer in a moment."""
        if status in TRANSIENT:
            self._contact.troubled_s = time.monotonic()
            return spent_s < BUSY_S
        troubled = time.monotonic() - self._contact.troubled_s < SETTLE_S
        return self._contact.reached and status in SETTLING and troubled

    def _limit_s(self) -> float:
        return self._outage_s if self._contact.reached else min(FIRST_CONTACT_S, self._outage_s)

    def _send(self, method: str, path: str, query: Mapping[str, str], data: bytes | None, content_type: str) -> Reply:
        headers = {**self.connection.authorization(), "Accept": "application/json, */*"}
        if data is not None:
            headers["Content-Type"] = content_type
        answer = self.connection.pool.request(
            method,
            self._target(path, query),
            headers=headers,
            body=data,
            timeout=urllib3.Timeout(connect=self.timeout_s, read=self.timeout_s),
            retries=False,
        )
        return Reply(answer.status, answer.headers, answer.data)

    def _target(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self.url}{quote(path, safe='/:~')}{'?' if query else ''}{urlencode(query)}"

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


def _is_going(one: Object) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in one["metadata"]


def _has(one: Object, labels: Mapping[str, str]) -> bool:
    """Whether an object has these labels: then it is of an earlier try of the same attempt."""
    return labels.items() <= (one["metadata"].get("labels") or {}).items()


def _parsed(reply: Reply) -> Object:
    try:
        answer = json.loads(reply.body)
    except ValueError as error:
        raise ClusterError(
            f"The API server's answer is no JSON: {api_errors.said(reply.body)!r}.",
            advice="Is there a login page or a proxy in between?",
        ) from error
    if not isinstance(answer, dict):
        raise ClusterError(f"The API server's answer is no object: {api_errors.said(reply.body)!r}.")
    return answer
