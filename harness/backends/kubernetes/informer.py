"""A picture of a few objects that is kept up to date: list once, then follow the changes, whatever happens.

A watch ends when the server closes it, when the connection breaks or falls silent, and when the server has
forgotten the version it should go on from (410). After the first three it goes on from the last version seen; after
the last everything is listed anew and compared, so that what came and went in between is not lost.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import urllib3

from harness.backends.kubernetes.client import KubernetesApi, Object, selectors
from harness.backends.kubernetes.retry import FIRST_PAUSE_S
from harness.errors import BackendError, ClusterError

WATCH_TIMEOUTS = 2
"""A watch is asked anew after this many request timeouts: a server that went silent is noticed by then."""

GONE = 410
NOTABLE_OUTAGE_S = 5.0

Listener = Callable[[str, Object], None]


class Expired(Exception):  # noqa: N818 - no error: it happens to every watch that is old enough
    """The server cannot go on from this version."""


class Watcher:
    """Follows the objects of one path.

    Args:
        api: whose objects.
        path: of the list, e.g. ``/api/v1/namespaces/inference/pods``.
        labels: selector.
        fields: selector.
        listener: called with ADDED, MODIFIED or DELETED and the object, from the watching thread; a deleted object as it
            was last seen.
    """

    def __init__(
        self, api: KubernetesApi, path: str, *, labels: str = "", fields: str = "", listener: Listener | None = None
    ) -> None:
        self._lock = threading.Lock()
        self.outages: list[tuple[float, float, str]] = []
        self._stop = threading.Event()
        self._api = api.until(self._stop)
        self._path = path
        self._selectors = selectors(labels, fields)
        self._listener = listener
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._away: tuple[float, str] | None = None
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """List once, then follow from a thread. Raises ClusterError when the list is refused."""
        self._list()
        self._thread.start()

    def listen(self, listener: Listener) -> None:
        """Tell somebody else from here on."""
        first = self._listener

        def both(kind: str, one: Object) -> None:
            if first is not None:
                first(kind, one)
            listener(kind, one)

        self._listener = both

    def stop(self) -> None:
        """Follow no longer; returns at once, and the thread ends soon."""
        self._stop.set()
        answer = self._answer
        if answer is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended by itself
                answer.shutdown()

    @property
    def objects(self) -> list[Object]:
        """The objects as last seen, by name."""
        with self._lock:
            found = list(self._objects.values())
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    @property
    def away_s(self) -> float:
        """Seconds for which the API server has not answered; 0 while it does."""
        away = self._away
        return time.time() - away[0] if away else 0.0

    def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                pause_s = FIRST_PAUSE_S
            except Expired:
                self._version = ""
            except (urllib3.exceptions.HTTPError, OSError, ValueError, BackendError) as error:
                if isinstance(error, ClusterError) and error.status == GONE:
                    self._version = ""
                self._note_outage(str(error))
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._api.longest_pause_s)

    def _list(self) -> None:
        answer = self._api.get(self._path, self._selectors)
        self._note_answer()
        kind = str(answer.get("kind", "")).removesuffix("List")
        found = {str(one["metadata"]["uid"]): {"kind": kind, **one} for one in answer.get("items") or []}
        with self._lock:
            before, self._objects = self._objects, found
        self._version = str(answer["metadata"]["resourceVersion"])
        for uid, one in before.items():
            if uid not in found:
                self._tell("DELETED", one)
        for uid, one in found.items():
            if uid not in before:
                self._tell("ADDED", one)
            elif before[uid]["metadata"].get("resourceVersion") != one["metadata"].get("resourceVersion"):
                self._tell("MODIFIED", one)

    def _watch(self) -> None:
        """Follow one watch to its end. Raises Expired, or what broke it."""
        duration_s = max(round(WATCH_TIMEOUTS * self._api.timeout_s), 1)
        query = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(duration_s),
        }
        silence_s = duration_s + self._api.timeout_s
        for answer in self._api.stream(self._path, query, silence_s=silence_s):
            self._answer = answer
            self._note_answer()
            for event in _events(answer):
                if self._stop.is_set():
                    return
                self._take(str(event.get("type")), event.get("object") or {})

    def _take(self, kind: str, one: Object) -> None:
        if kind == "ERROR":
            if one.get("code") == GONE:
                raise Expired
            raise ClusterError(f"The watch of {self._path} failed: {one.get('message')}.", status=one.get("code"))
        metadata: dict[str, Any] = one.get("metadata") or {}
        self._version = str(metadata.get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(str(metadata["uid"]), None)
            else:
                self._objects[str(metadata["uid"])] = one
        self._tell(kind, one)

    def _tell(self, kind: str, one: Object) -> None:
        if self._listener is not None and not self._stop.is_set():
            self._listener(kind, one)

    def _note_outage(self, why: str) -> None:
        if self._away is None:
            self._away = (time.time(), why)

    def _note_answer(self) -> None:
        away, self._away = self._away, None
        if away is not None and time.time() - away[0] >= NOTABLE_OUTAGE_S:
            self.outages.append((away[0], time.time(), away[1]))


def _events(answer: urllib3.BaseHTTPResponse) -> Iterator[Object]:
    """One JSON object a line, as they come. Raises ValueError on a line that was cut off."""
    rest = b""
    for chunk in answer.stream(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        yield json.loads(rest)
