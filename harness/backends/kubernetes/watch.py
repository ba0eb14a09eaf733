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

from harness.backends.kubernetes.api import FIRST_PAUSE_S, KubernetesApi, Object, selectors
from harness.errors import BackendError, ClusterError

WATCH_TIMEOUTS = 2
"""A watch is asked anew after this many request timeouts: a server that went silent is noticed by then."""
GONE = 410
NOTABLE_OUTAGE_S = 5.0

Listener = Callable[[str, Object], None]


class Watcher:
    """Follows the objects of one path.

    Args:
        api: of the cluster.
        path: of the list, e.g. ``/api/v1/namespaces/inference/pods``.
        labels: selector.
        listener: called with ADDED, MODIFIED or DELETED and the object, from the watching thread; a deleted object as it
            was last seen.
    """

    def __init__(self, api: KubernetesApi, path: str, *, labels: str = "", listener: Listener | None = None) -> None:
        self._lock = threading.Lock()
        self.outages: list[tuple[float, float, str]] = []
        self._stop = threading.Event()
        self._api, self._path, self._query = api.until(self._stop), path, selectors(labels, "")
        self._listeners = [listener] if listener else []
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
        """Tell somebody else, too, from here on."""
        self._listeners = [*self._listeners, listener]

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
            return sorted(self._objects.values(), key=lambda item: str(item["metadata"]["name"]))

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
            except (urllib3.exceptions.HTTPError, OSError, ValueError, BackendError) as error:
                if isinstance(error, ClusterError) and error.status == GONE:
                    self._version = ""  # no failure: it happens to every watch that is old enough
                    continue
                if self._away is None:
                    self._away = (time.time(), str(error))
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._api.longest_pause_s)

    def _list(self) -> None:
        answer = self._api.get(self._path, self._query)
        self._note_answer()
        kind = str(answer.get("kind", "")).removesuffix("List")
        now = {str(item["metadata"]["uid"]): {"kind": kind, **item} for item in answer.get("items") or []}
        with self._lock:
            before, self._objects = self._objects, now
        self._version = str(answer["metadata"]["resourceVersion"])
        for uid, item in before.items():
            if uid not in now:
                self._tell("DELETED", item)
        for uid, item in now.items():
            if uid not in before:
                self._tell("ADDED", item)
            elif before[uid]["metadata"].get("resourceVersion") != item["metadata"].get("resourceVersion"):
                self._tell("MODIFIED", item)

    def _watch(self) -> None:
        """Follow one watch to its end. Raises what broke it."""
        duration_s = max(round(WATCH_TIMEOUTS * self._api.timeout_s), 1)
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(duration_s),
        }
        for answer in self._api.stream(self._path, query, silence_s=duration_s + self._api.timeout_s):
            self._answer = answer
            self._note_answer()
            for event in _events(answer):
                if self._stop.is_set():
                    return
                self._heed(str(event.get("type")), event.get("object") or {})

    def _heed(self, kind: str, item: Object) -> None:
        if kind == "ERROR":
            raise ClusterError(f"The watch of {self._path} failed: {item.get('message')}.", status=item.get("code"))
        metadata: dict[str, Any] = item.get("metadata") or {}
        self._version = str(metadata.get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(str(metadata["uid"]), None)
            else:
                self._objects[str(metadata["uid"])] = item
        self._tell(kind, item)

    def _tell(self, kind: str, item: Object) -> None:
        for listener in self._listeners:
            if not self._stop.is_set():
                listener(kind, item)

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
