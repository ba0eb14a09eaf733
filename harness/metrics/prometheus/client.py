"""The one place that talks to a Prometheus server, through the two queries of prometheus-api-client.

What it leaves open is closed here: every call has a timeout, for the whole answer, and no hidden retry; times keep their
milliseconds; an empty answer and one that is none are errors of ours; samples are parsed fast.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import orjson
import requests
from numpy.typing import NDArray
from prometheus_api_client import PrometheusConnect
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from harness.clock import Clock
from harness.errors import NoDataError, PrometheusError, PrometheusUnavailableError, UsageError
from harness.metrics.promql import without_password
from harness.metrics.promql_math import MS_PER_S, to_ms

MAX_POINTS = 11_000
"""Points of one series that Prometheus answers in one range query."""
MOST_ANSWER_BYTES = 512 << 20
"""No answer of ours comes near; a server that never ends would fill the memory."""
PAUSE_S = 1.0
"""Between two attempts: a server that has just started is not asked harder than it is scraped."""
SETTLE_S = 10.0
"""An API server before it that has just started refuses what it will allow: for this long after it last failed, that is no answer."""
_NO_RETRY = Retry(total=0, read=False)
"""``read=False`` too: otherwise the client calls a server that is slow one that cannot be reached."""
_UNAVAILABLE = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""503 is what Prometheus says while it reads its log after a start; 502 and 504 come from a proxy before it."""
_UNAUTHORISED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_PIECE_BYTES = 1 << 20
_SAMPLES = b'"values":[['
"""Begins the samples of a series; inside a label's value its quotes would be escaped."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_CLIP = 300
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SampledSeries:
    """One series of an answer: its labels, sample times (ms since the epoch) and values, both of shape (n,)."""

    labels: Mapping[str, str]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The series of one answer, at least one, and what the server remarked on it."""

    series: list[SampledSeries]
    notes: tuple[str, ...] = ()


class _RefusedError(Exception):
    """An answer that is no success: its status, and what it says."""

    def __init__(self, status: int, content: bytes) -> None:
        said = repr(content)
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            answer = orjson.loads(content)  # of Prometheus, or of an API server before it
            said = answer.get("error") or answer["message"]
        super().__init__(f"HTTP Status Code {status}: {said}")
        self.status = status


class Patience:
    """How long a server may be away, from the first failure on: it is asked again meanwhile. ``notice`` hears of each such time."""

    def __init__(self, clock: Clock, patience_s: float, notice: Callable[[str], None]) -> None:
        self._clock, self._patience_s, self._notice = clock, patience_s, notice
        self._lock = threading.Lock()
        self._away_since_s: float | None = None

    def answered(self) -> None:
        """The server is there."""
        with self._lock:
            self._away_since_s = None

    def wait_after(self, error: PrometheusUnavailableError) -> None:
        """Wait a little; raise the error where the server has been away for too long."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._away_since_s is None:
                self._away_since_s = now_s
                self._notice(f"{error.message} It is asked again for {self._patience_s:.0f} s.")
            if now_s - self._away_since_s >= self._patience_s:
                raise error
        self._clock.wait_until(self._clock.now_s() + PAUSE_S)


class PrometheusServer:
    """One Prometheus server; safe to use from several threads.

    Args:
        timeout_s: for every query, here and on the server; the whole answer has to be there by then.
        headers: sent with every request, e.g. for authentication, or a function that gives them: a token may be
            exchanged while an hour is recorded. Never shown.
        verify: whether the server's certificate is checked, or the file of those who may have signed it.
        cert: files of a client certificate and its key.
        renew: called once when the server does not accept the headers, before it is asked again; None: nothing renews them.
        patience: with a server that is away; None: none.

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
        patience: Patience | None = None,
    ) -> None:
        if not _is_http(url):
            raise UsageError(
                f"{without_password(url)!r} is not an address of a Prometheus server.",
                advice="E.g. http://127.0.0.1:9090",
            )
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = headers if callable(headers) else lambda given=dict(headers or {}): given
        self._verify = verify
        self._cert = cert
        self._renew = renew
        self._patience = patience
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

    def impatient(self, timeout_s: float, patience: Patience | None = None) -> PrometheusServer:
        """The same server, asked with a timeout of its own; close it, too."""
        access: dict[str, Any] = {"headers": self._headers, "verify": self._verify, "cert": self._cert}
        return PrometheusServer(self.url, timeout_s=timeout_s, renew=self._renew, patience=patience, **access)

    def patient(self, patience: Patience) -> PrometheusServer:
        """The same server, asked again while it is away; close it, too."""
        return self.impatient(self._timeout_s, patience)

    def query(self, promql: str, time_s: float | None = None) -> QueryAnswer:
        """Evaluate at one instant; None: now, by the server's own clock.

        Raises NoDataError (the query is right and nothing matches it), PrometheusError.
        """
        params = {"timeout": f"{self._timeout_s:g}s"}
        if time_s is not None:
            params["time"] = _timestamp(to_ms(time_s))
        return self._ask(promql, lambda client: client.custom_query(promql, params=params))

    def query_range(self, promql: str, start_ms: int, end_ms: int, step_ms: int) -> QueryAnswer:
        """Evaluate at ``start + k * step``, the end included; at most 11,000 points, else UsageError. Raises as ``query``."""
        points = (end_ms - start_ms) // step_ms + 1
        if points > MAX_POINTS:
            raise UsageError(
                f"{points} points in one range query are more than the {MAX_POINTS} that Prometheus answers.",
                advice="Split the range.",
            )
        begin, end = (datetime.fromtimestamp(time_ms / MS_PER_S, UTC) for time_ms in (start_ms, end_ms))
        # The client rounds its own start and end to whole seconds; these override them.
        params = {"start": _timestamp(start_ms), "end": _timestamp(end_ms), "timeout": f"{self._timeout_s:g}s"}
        return self._ask(
            promql, lambda client: client.custom_query_range(promql, begin, end, _timestamp(step_ms), params=params)
        )

    def raw(self, selector: str, start_ms: int, end_ms: int) -> QueryAnswer:
        """The samples in ``(start, end]`` with their own timestamps: no look-back, no limit of points. Raises as ``query``."""
        answer = self.query(f"{selector}[{end_ms - start_ms}ms]", end_ms / MS_PER_S)
        # Up to version 2 a range includes its start, from version 3 it does not.
        kept = [
            SampledSeries(series.labels, series.times_ms[inside], series.values[inside])
            for series in answer.series
            if (inside := series.times_ms > start_ms).any()
        ]
        if not kept:
            raise NoDataError(f"{self} has no sample of {_clip(selector)} in the range.")
        return QueryAnswer(kept, answer.notes)

    def read(self, path: str, **params: str) -> Any:
        """What the server says of itself: ``data`` of ``GET /api/v1/<path>``, e.g. ``targets``. Raises PrometheusError as ``query``."""

        def get(client: PrometheusConnect) -> Any:
            # verify is said in each call: otherwise REQUESTS_CA_BUNDLE would count for more
            options: dict[str, Any] = {"headers": client.headers, "timeout": self._timeout_s, "verify": self._verify}
            return self._local.session.get(f"{self.url}/api/v1/{path}", params=params, **options).json()["data"]

        return self._call(path, get)

    def _ask(self, promql: str, call: Callable[[PrometheusConnect], Any]) -> QueryAnswer:
        series = _series(self._call(promql, call), str(self))
        if not series:
            raise NoDataError(f"{self} has nothing that matches {_clip(promql)}.")
        return QueryAnswer(series, self._local.session.notes)

    def _call(self, what: str, call: Callable[[PrometheusConnect], Any]) -> Any:
        """Asked again while the server is away and there is patience, and once with new headers where it does not know us."""
        renew = self._renew
        while True:
            try:
                answer = self._call_once(what, call)
            except PrometheusError as error:
                refusal = error.__cause__
                unknown = isinstance(refusal, _RefusedError) and refusal.status == HTTPStatus.UNAUTHORIZED
                if renew is not None and unknown:
                    renew()
                    renew = None
                elif isinstance(error, PrometheusUnavailableError) and self._patience is not None:
                    self._patience.wait_after(error)
                else:
                    raise
            else:
                if self._patience is not None:
                    self._patience.answered()
                return answer

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
        except _RefusedError as error:
            away, unauthorised = error.status in _UNAVAILABLE, error.status in _UNAUTHORISED
            if away:
                self._troubled_s = time.monotonic()
            settling = unauthorised and time.monotonic() - self._troubled_s < SETTLE_S
            kind = PrometheusUnavailableError if away or settling else PrometheusError
            advice = "Check the token: `kubernetes.prometheus_access`." if unauthorised else ""
            raise kind(f"{self} refused {_clip(what)}: {_clip(str(error))}", advice=advice) from error
        except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PrometheusError(
                f"{self} answered something that is not a Prometheus response ({type(error).__name__}).",
                advice="Check that the address is Prometheus itself and not a proxy's login page.",
            ) from error

    def _client(self) -> PrometheusConnect:
        """This thread's connection: the client's session is not made for sharing."""
        client = getattr(self._local, "client", None)
        if client is None:
            session = _AnswerSession(self.url, str(self), verify=self._verify, cert=self._cert)
            client = PrometheusConnect(self.url, retry=_NO_RETRY, session=session, timeout=self._timeout_s)
            self._local.client, self._local.session = client, session
            with self._lock:
                self._connections.append(client)
        client.headers = dict(self._headers())
        return client


class _AnswerSession(requests.Session):
    """One thread's connection to one server, whose answers come whole, in time, within a bound, and are parsed fast.

    ``notes``: the server's ``warnings`` and ``infos`` on its last answer, which follow the data and which the client drops.
    """

    def __init__(self, url: str, name: str, *, verify: bool | str, cert: tuple[str, str] | None) -> None:
        super().__init__()
        self.notes: tuple[str, ...] = ()
        self._name = name
        self.verify, self.cert = verify, cert
        if urlsplit(url).hostname in _LOOPBACK:
            self.headers["Accept-Encoding"] = "identity"  # packing costs the server more than the loopback
            self.trust_env = False  # no proxy leads there, and looking for one before every query takes time

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """As requests does, but for how the answer is read."""
        until_s = time.monotonic() + options["timeout"]
        response = super().send(request, **options | {"stream": True})
        with contextlib.ExitStack() as left:
            left.callback(response.close)  # What is left of an answer that is too long or too late is not read.
            content = b"".join(self._pieces(response, until_s))
            left.pop_all()
        if response.status_code != HTTPStatus.OK and not response.is_redirect:
            raise _RefusedError(response.status_code, content)
        response._content, response._content_consumed = content, True  # type: ignore[attr-defined]  # noqa: SLF001
        response.json = lambda **_: self._parsed(content)  # type: ignore[method-assign]
        return response

    def _parsed(self, content: bytes) -> Any:
        answer = _parse(content)
        self.notes = tuple(str(note) for kind in ("warnings", "infos") for note in answer.get(kind) or ())
        return answer

    def _pieces(self, response: requests.Response, until_s: float) -> Iterator[bytes]:
        """The answer, which has to be there by ``until_s``: the timeout that requests knows is that of each read."""
        size = 0
        while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
            if time.monotonic() > until_s:
                raise requests.Timeout
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise PrometheusError(
                    f"{self._name} answers with more than {MOST_ANSWER_BYTES >> 20} MiB.",
                    advice="Ask for less at once, and check that the address is that of a Prometheus.",
                )
            yield piece


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


def _series(result: Any, where: str) -> list[SampledSeries]:
    """Vectors and matrices alike as series."""
    series = []
    try:
        for item in result:
            points = item["values"] if "values" in item else [item["value"]]
            samples = np.array(points, dtype=np.float64)  # of texts, too, such as "+Inf"
            labels = {str(name): str(value) for name, value in item["metric"].items()}  # a number is no text
            series.append(SampledSeries(labels, np.rint(samples[:, 0] * MS_PER_S).astype(np.int64), samples[:, 1]))
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise PrometheusError(
            f"{where} answered something that is neither a vector nor a matrix.",
            advice="Ask for series, not for a scalar.",
        ) from error
    return series


def _is_http(url: str) -> bool:
    with contextlib.suppress(ValueError):  # a port or an IPv6 address that cannot be
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    return False


def _timestamp(time_ms: int) -> str:
    return f"{time_ms // 1000}.{time_ms % 1000:03d}"


def _clip(text: str) -> str:
    return text if len(text) <= _CLIP else text[: _CLIP - 3] + "..."
