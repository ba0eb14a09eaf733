"""The one place that talks to a Prometheus server, through prometheus-api-client.

Only ``custom_query`` and ``custom_query_range`` are used, and its session for what is no query. What
the client leaves open is closed here: every call has a timeout and no hidden retry; times are UTC and
keep their milliseconds (the client rounds them to seconds); the server's ``warnings`` and ``infos`` are
kept; an empty answer and an answer that is no answer are errors of ours.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import numpy as np
import orjson
import requests
from numpy.typing import NDArray
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from harness.errors import NoDataError, PrometheusError, PrometheusUnavailableError, UsageError
from harness.metrics.prometheus.in_time import POOLS
from harness.metrics.promql_math import MS_PER_S, to_ms

MAX_POINTS = 11_000
"""Points of one series that Prometheus answers in one range query."""

MOST_ANSWER_BYTES = 512 << 20
"""No answer of ours comes near; a server that never ends would fill the memory."""

_PIECE_BYTES = 1 << 20
_NOTES = ("warnings", "infos")
_NOTES_BYTES = 65_536
_NOTED = re.compile(rb'"(?:warnings|infos)"\s*:\s*\[')
_NO_RETRY = Retry(total=0, read=False)
"""``read=False`` too: otherwise the client calls a server that is slow one that cannot be reached."""

_UNAVAILABLE = re.compile(r"^HTTP Status Code (502|503|504)\b")
"""503 is what Prometheus says while it reads its log after a start; 502 and 504 come from a proxy before it."""

_UNKNOWN = re.compile(r"^HTTP Status Code 401\b")
_UNAUTHORISED = re.compile(r"^HTTP Status Code 40[13]\b")
SETTLE_S = 10.0
"""An API server before it that has just started refuses what it will allow: for this long after it last failed, that is no answer."""

_REFUSAL = re.compile(r"^(HTTP Status Code \d+) \((b['\"].*['\"])\)$", re.DOTALL)
"""How the client words an answer that is no success: its status, and its content as Python writes bytes."""

_CLIP = 300
Headers = Mapping[str, str]
_SAMPLES = b'"values":[['
"""Begins the samples of a series; inside a label's value its quotes would be escaped."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, sample times (ms since the epoch) and values, both of shape (n,)."""

    labels: Mapping[str, str]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answer:
    """The series of one answer, at least one, and what the server remarked on it."""

    series: list[Series]
    notes: tuple[str, ...] = ()


class Queryable(Protocol):
    """What an export asks of a server; see ``PrometheusServer`` for what each call raises."""

    def query(self, promql: str, time_s: float | None = None) -> Answer:
        """Evaluate at one instant."""
        ...

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> Answer:
        """Evaluate on a grid."""
        ...

    def raw(self, selector: str, start_ms: int, end_ms: int) -> Answer:
        """The samples themselves."""
        ...


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that cannot be
        return False


class PrometheusServer:
    """One Prometheus server; safe to use from several threads.

    Args:
        url: e.g. ``http://127.0.0.1:30090``.
        timeout_s: for every query, here and on the server; the whole answer has to be there by then.
        headers: sent with every request, e.g. for authentication, or a function that gives them: a token may be
            exchanged while an hour is recorded. Never shown.
        verify: whether the server's certificate is checked, or the file of those who may have signed it.
        cert: files of a client certificate and its key.
        renew: called once when the server does not accept the headers, before it is asked again; None: nothing renews them.

    Raises UsageError for a ``url`` that is no address over http or https.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        headers: Headers | Callable[[], Headers] | None = None,
        verify: bool | str = True,
        cert: tuple[str, str] | None = None,
        renew: Callable[[], None] | None = None,
    ) -> None:
        if not _is_http(url):
            raise UsageError(
                f"{without_password(url)!r} is no address of a Prometheus server.", advice="E.g. http://127.0.0.1:9090"
            )
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = headers if callable(headers) else lambda given=dict(headers or {}): given
        self._verify = verify
        self._cert = cert
        self._renew = renew
        self._local = threading.local()
        self._connections: list[PrometheusConnect] = []
        self._lock = threading.Lock()
        self._troubled_s = -math.inf

    def __repr__(self) -> str:
        return f"PrometheusServer({without_password(self.url)!r})"

    def __str__(self) -> str:
        return f"Prometheus at {without_password(self.url)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        self._local = threading.local()

    def impatient(self, timeout_s: float) -> PrometheusServer:
        """The same server, asked with a timeout of its own."""
        how = {"headers": self._headers, "verify": self._verify, "cert": self._cert, "renew": self._renew}
        return PrometheusServer(self.url, timeout_s=timeout_s, **how)  # type: ignore[arg-type]

    def query(self, promql: str, time_s: float | None = None) -> Answer:
        """Evaluate at one instant; None: now, by the server's own clock.

        Raises:
            NoDataError: the query is right and nothing matches it.
            PrometheusError: refused, timed out, or answered with an error or with garbage.
        """
        params = {"timeout": f"{self._timeout_s:g}s"}
        if time_s is not None:
            params["time"] = _timestamp(to_ms(time_s))
        return self._ask(promql, lambda client: client.custom_query(promql, params=params, timeout=self._timeout_s))

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> Answer:
        """Evaluate at ``start + k * step``, the end included; at most 11,000 points.

        Raises:
            UsageError: more points than the server answers at once.
            NoDataError: the query is right and nothing matches it.
            PrometheusError: refused, timed out, or answered with an error or with garbage.
        """
        points = (end_ms - start_ms) // step_ms + 1
        if points > MAX_POINTS:
            raise UsageError(
                f"{points} points in one range query are more than the {MAX_POINTS} that Prometheus answers.",
                advice="Split the range.",
            )
        # The client rounds its own start and end to whole seconds; these override them.
        params = {"start": _timestamp(start_ms), "end": _timestamp(end_ms), "timeout": f"{self._timeout_s:g}s"}
        return self._ask(
            promql,
            lambda client: client.custom_query_range(
                promql,
                start_time=_utc(start_ms),
                end_time=_utc(end_ms),
                step=_timestamp(step_ms),
                params=params,
                timeout=self._timeout_s,
            ),
        )

    def raw(self, selector: str, start_ms: int, end_ms: int) -> Answer:
        """The samples themselves, in ``(start, end]``, with their own timestamps: no look-back, no limit of points.

        Raises:
            NoDataError: no sample in the range.
            PrometheusError: refused, timed out, or answered with an error or with garbage.
        """
        answer = self.query(f"{selector}[{end_ms - start_ms}ms]", end_ms / MS_PER_S)
        # Up to version 2 a range includes its start, from version 3 it does not.
        kept = [
            Series(series.labels, series.times_ms[inside], series.values[inside])
            for series in answer.series
            if (inside := series.times_ms > start_ms).any()
        ]
        if not kept:
            raise NoDataError(f"{self} has no sample of {_clip(selector)} in the range.")
        return Answer(kept, answer.notes)

    def read(self, path: str, **params: str) -> Any:
        """What the server says of itself: ``data`` of the answer to ``GET /api/v1/<path>``, e.g. ``targets``.

        Raises:
            PrometheusError: refused, timed out, or answered with an error or with garbage.
        """

        def call(client: PrometheusConnect) -> Any:
            response = client._session.get(  # noqa: SLF001 - the client has no call for this; its session is made here
                f"{self.url}/api/v1/{path}",
                params=params,
                headers=client.headers,
                timeout=self._timeout_s,
                verify=self._verify,  # said in each call: otherwise REQUESTS_CA_BUNDLE would count for more
                cert=self._cert,
            )
            if response.status_code != HTTPStatus.OK:
                raise PrometheusApiClientException(f"HTTP Status Code {response.status_code} ({response.content!r})")
            return response.json()["data"]

        return self._call(path, call)

    def _ask(self, promql: str, call: Callable[[PrometheusConnect], Any]) -> Answer:
        self._local.notes = ()
        series = _series(self._call(promql, call), str(self))
        if not series:
            raise NoDataError(f"{self} has nothing that matches {_clip(promql)}.")
        return Answer(series, self._local.notes)

    def _call(self, what: str, call: Callable[[PrometheusConnect], Any]) -> Any:
        try:
            return self._call_once(what, call)
        except PrometheusError as error:
            if self._renew is None or not _UNKNOWN.search(str(error.__cause__)):
                raise
        self._renew()
        return self._call_once(what, call)

    def _call_once(self, what: str, call: Callable[[PrometheusConnect], Any]) -> Any:
        try:
            return call(self._client())
        except (requests.Timeout, ReadTimeoutError) as error:
            self._troubled_s = time.monotonic()
            raise PrometheusUnavailableError(
                f"{self} did not answer within {self._timeout_s:g} s: {_clip(what)}.",
                advice="Ask for less at once, or raise the timeout.",
            ) from error
        except requests.exceptions.SSLError as error:
            raise PrometheusError(
                f"{self} shows a certificate that cannot be verified.",
                advice="Check the address, and the authority that the kubeconfig or `kubernetes.prometheus_access.ca_file` names.",
            ) from error
        except (requests.ConnectionError, HTTPError) as error:
            self._troubled_s = time.monotonic()
            raise PrometheusUnavailableError(
                f"{self} cannot be reached.", advice="Check its address and that it runs."
            ) from error
        except PrometheusApiClientException as error:
            away, refused = _UNAVAILABLE.search(str(error)), _UNAUTHORISED.search(str(error))
            if away:
                self._troubled_s = time.monotonic()
            settling = refused and time.monotonic() - self._troubled_s < SETTLE_S
            kind = PrometheusUnavailableError if away or settling else PrometheusError
            unknown = "Check the token: `kubernetes.prometheus_access`." if refused else ""
            raise kind(f"{self} refused {_clip(what)}: {_clip(_said(str(error)))}", advice=unknown) from error
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise PrometheusError(
                f"{self} answered something that is no Prometheus answer ({type(error).__name__}).",
                advice="Check that the address is Prometheus itself and not a proxy's login page.",
            ) from error

    def _client(self) -> PrometheusConnect:
        """This thread's connection: the client's session is not made for sharing."""
        client = getattr(self._local, "client", None)
        if client is None:
            session = requests.Session()
            session.verify, session.cert = self._verify, self._cert
            if urlsplit(self.url).hostname in _LOOPBACK:
                session.headers["Accept-Encoding"] = "identity"  # packing costs the server more than the loopback
                session.trust_env = False  # no proxy leads there, and looking for one before every query takes time
            session.hooks["response"] += [self._read_bounded, _read_fast, self._keep_notes]
            client = PrometheusConnect(self.url, retry=_NO_RETRY, session=session, timeout=self._timeout_s)
            session.get_adapter(self.url).poolmanager.pool_classes_by_scheme = POOLS  # type: ignore[attr-defined]
            self._local.client = client
            with self._lock:
                self._connections.append(client)
        client.headers = dict(self._headers())
        return client

    def _read_bounded(self, response: requests.Response, *_: object, **__: object) -> None:
        """Read the answer: the client itself reads whatever comes."""
        with contextlib.ExitStack() as left:
            left.callback(response.close)  # What is left of an answer that is too long is not read.
            content = b"".join(self._pieces(response))
            left.pop_all()
        response._content, response._content_consumed = content, True  # type: ignore[attr-defined]  # noqa: SLF001

    def _pieces(self, response: requests.Response) -> Iterator[bytes]:
        size = 0
        while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise PrometheusError(
                    f"{self} answers with more than {MOST_ANSWER_BYTES >> 20} MiB.",
                    advice="Ask for less at once, and check that the address is that of a Prometheus.",
                )
            yield piece

    def _keep_notes(self, response: requests.Response, *_: object, **__: object) -> None:
        """Keep what the client throws away: the server's remarks, which follow the data in its answer."""
        if not _NOTED.search(response.content[-_NOTES_BYTES:]):
            return
        try:
            answer = orjson.loads(response.content)
        except ValueError:
            return  # the client is about to stumble over the same garbage
        self._local.notes = tuple(str(note) for kind in _NOTES for note in answer.get(kind) or ())


def _read_fast(response: requests.Response, *_: object, **__: object) -> None:
    """Let the client read the answer with less work: hours of samples are megabytes of JSON."""
    response.json = lambda **_: _parse(response.content)  # type: ignore[method-assign]


def _parse(content: bytes) -> Any:
    """The JSON, where the samples of a matrix are arrays of shape (n, 2) already.

    A sample is a number and a text, ``[1700000000.5,"0.25"]``: taken out of the document and freed of quotes and brackets,
    all of them are one flat list of numbers.
    """
    head, *parts = content.split(_SAMPLES)
    if not parts:
        return orjson.loads(content)
    document, numbers, counts = [head], [], []
    for number, part in enumerate(parts):
        samples, _, rest = part.partition(b"]]")
        document.append(b'"values":%d%b' % (number, rest))
        numbers.append(samples.replace(b'"NaN"', b"null").translate(None, b'[]"'))
        counts.append(1 + samples.count(b"["))
    try:
        answer = orjson.loads(b"".join(document))
        flat = np.array(orjson.loads(b"[%b]" % b",".join(numbers)), dtype=np.float64).reshape(-1, 2)
        matrices = np.split(flat, np.cumsum(counts)[:-1])
        for series in answer["data"]["result"]:
            series["values"] = matrices[series["values"]]
    except (ValueError, KeyError, TypeError, IndexError):
        return orjson.loads(content)  # infinities are no JSON, and garbage is somebody else's to complain of
    return answer


def _series(result: Any, where: str) -> list[Series]:
    """Vectors and matrices alike as series."""
    try:
        return [_one_series(item["metric"], item["values"] if "values" in item else [item["value"]]) for item in result]
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise PrometheusError(
            f"{where} answered something that is no vector and no matrix.", advice="Ask for series, not for a scalar."
        ) from error


def _one_series(labels: Mapping[str, str], points: list[list[Any]] | NDArray[np.float64]) -> Series:
    samples = np.array(points, dtype=np.float64)  # texts, too, such as "+Inf"
    texts = {str(name): str(value) for name, value in labels.items()}  # a number in their place is no text
    return Series(labels=texts, times_ms=np.rint(samples[:, 0] * MS_PER_S).astype(np.int64), values=samples[:, 1])


def without_password(url: str) -> str:
    """The address as it may be shown: without the name and password of ``http://name:password@host``."""
    head, scheme, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{head}{scheme}{authority.rpartition('@')[2]}{slash}{path}"


def _utc(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / MS_PER_S, UTC)


def _timestamp(time_ms: int) -> str:
    return f"{time_ms // 1000}.{time_ms % 1000:03d}"


def _said(refusal: str) -> str:
    """A refusal with the server's own sentence, of Prometheus or of an API server before it, where there is one."""
    match = _REFUSAL.match(refusal)
    if match is None:
        return refusal
    try:
        answer = json.loads(ast.literal_eval(match[2]))
        return f"{match[1]}: {answer.get('error') or answer['message']}"
    except (ValueError, KeyError, AttributeError):
        return refusal


def _clip(text: str) -> str:
    return text if len(text) <= _CLIP else text[: _CLIP - 3] + "..."
