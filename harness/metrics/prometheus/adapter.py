"""The one place that talks to a Prometheus server, through prometheus-api-client.

Only ``custom_query`` and ``custom_query_range`` are used, and its session for what is no query. What
the client leaves open is closed here: every call has a timeout and no hidden retry; times are UTC and
keep their milliseconds (the client rounds them to seconds); an empty answer and an answer that is no
answer are errors of ours. How an answer is read is ``session``'s.
"""

from __future__ import annotations

import ast
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import numpy as np
import requests
from numpy.typing import NDArray
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from harness.clock import Clock
from harness.errors import NoDataError, PrometheusError, PrometheusUnavailableError, UsageError
from harness.metrics.prometheus.session import AnswerSession
from harness.metrics.promql_math import MS_PER_S, to_ms

MAX_POINTS = 11_000
"""Points of one series that Prometheus answers in one range query."""

PAUSE_S = 1.0
"""Between two attempts: a server that has just started is not asked harder than it is scraped."""
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


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, sample times (ms since the epoch) and values, both of shape (n,)."""

    labels: Mapping[str, str]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The series of one answer, at least one, and what the server remarked on it."""

    series: list[Series]
    notes: tuple[str, ...] = ()


class Queryable(Protocol):
    """What an export asks of a server; see ``PrometheusServer`` for what each call raises."""

    def query(self, promql: str, time_s: float | None = None) -> QueryAnswer:
        """Evaluate at one instant."""
        ...

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> QueryAnswer:
        """Evaluate on a grid."""
        ...

    def raw(self, selector: str, start_ms: int, end_ms: int) -> QueryAnswer:
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

    def query(self, promql: str, time_s: float | None = None) -> QueryAnswer:
        """Evaluate at one instant; None: now, by the server's own clock.

        Raises:
            NoDataError: the query is right and nothing matches it.
            PrometheusError: refused, timed out, or answered with an error or with garbage.
        """
        params = {"timeout": f"{self._timeout_s:g}s"}
        if time_s is not None:
            params["time"] = _timestamp(to_ms(time_s))
        return self._ask(promql, lambda client: client.custom_query(promql, params=params, timeout=self._timeout_s))

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> QueryAnswer:
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

    def raw(self, selector: str, start_ms: int, end_ms: int) -> QueryAnswer:
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
        return QueryAnswer(kept, answer.notes)

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

    def _ask(self, promql: str, call: Callable[[PrometheusConnect], Any]) -> QueryAnswer:
        series = _series(self._call(promql, call), str(self))
        if not series:
            raise NoDataError(f"{self} has nothing that matches {_clip(promql)}.")
        return QueryAnswer(series, self._local.session.notes)

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
            session = AnswerSession(self.url, str(self), verify=self._verify, cert=self._cert)
            client = PrometheusConnect(self.url, retry=_NO_RETRY, session=session, timeout=self._timeout_s)
            self._local.client, self._local.session = client, session
            with self._lock:
                self._connections.append(client)
        client.headers = dict(self._headers())
        return client


class RetryingServer:
    """Asks a server as often as it takes; safe to use from several threads.

    Args:
        notice: told once per stretch that it is away.
    """

    def __init__(
        self, server: PrometheusServer, *, clock: Clock, patience_s: float, notice: Callable[[str], None]
    ) -> None:
        self._server = server
        self._clock = clock
        self._patience_s = patience_s
        self._notice = notice
        self._lock = threading.Lock()
        self._away_since_s: float | None = None

    def query(self, promql: str, time_s: float | None = None) -> QueryAnswer:
        """As the server's own."""
        return self._ask(lambda: self._server.query(promql, time_s))

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> QueryAnswer:
        """As the server's own."""
        return self._ask(lambda: self._server.query_range(promql, start_ms, end_ms, step_ms))

    def raw(self, selector: str, start_ms: int, end_ms: int) -> QueryAnswer:
        """As the server's own."""
        return self._ask(lambda: self._server.raw(selector, start_ms, end_ms))

    def _ask(self, call: Callable[[], QueryAnswer]) -> QueryAnswer:
        while True:
            try:
                answer = call()
            except PrometheusUnavailableError as error:
                if self._given_up(error):
                    raise
                self._clock.wait_until(self._clock.now_s() + PAUSE_S)
            else:
                with self._lock:
                    self._away_since_s = None
                return answer

    def _given_up(self, error: PrometheusUnavailableError) -> bool:
        """Whether the server has been away for too long; begins to count at the first failure."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._away_since_s is None:
                self._away_since_s = now_s
                self._notice(f"{error.message} It is asked again for {self._patience_s:.0f} s.")
            return now_s - self._away_since_s >= self._patience_s


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
