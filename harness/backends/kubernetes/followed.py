"""Judges a recording by what its pods log while they serve: their logs, fetched piece by piece, one request a second at most."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from harness.backends.base import Enough
from harness.backends.kubernetes import artifacts
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.pods import PodReplica
from harness.errors import BackendError
from harness.results import layout
from harness.results.files import storage_errors

PACE_S = 1.0
"""Between two requests, so that they are as many for a hundred replicas as for one: a round over more takes longer."""


class Followed:
    """Asks the judge about the rows whose requests are here.

    A round fetches what each replica has logged since the last one, and is begun when the judge would look: rounds are
    as rare as its looks, and as long as there are replicas. It judges, a round late, what a local campaign would.

    Args:
        api: of the cluster.
        replicas: whose logs are followed.
        folder: of the attempt, where they lie as a local replica's own do.
        enough: the judge, who reads them there.
        notice: told once why a round failed; the next row begins another.
        dead: replicas that ended by themselves; what was fetched of them before counts.
    """

    def __init__(
        self,
        api: KubernetesApi,
        replicas: Sequence[PodReplica],
        folder: Path,
        enough: Enough,
        notice: Callable[[str], None],
        dead: Callable[[], Collection[int]],
    ) -> None:
        self._closed = threading.Event()
        self._api, self._replicas, self._enough = api.until(self._closed), replicas, enough
        self._logs = [layout.replica_folder(folder, one.index) / layout.RAW_LATENCIES for one in replicas]
        self._notice, self._dead, self._told = notice, dead, False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._round: tuple[int, Future[bool]] | None = None

    def due(self, rows: int) -> bool:
        """Whether the judge would look after this many rows."""
        return self._enough.due(rows)

    def __call__(self, rows: int) -> bool:
        """Whether the rows so far are enough, as far as it is known here. Raises StorageError."""
        if self._round is None and self.due(rows):
            self._round = rows, self._pool.submit(self._fetch)
        if self._round is None or not self._round[1].done():
            return False
        (asked, fetched), self._round = self._round, None
        return fetched.result() and self._enough(asked)

    def close(self) -> None:
        """Follow no more, and leave what is here as parts of logs, of which the rest is still to come. Raises StorageError."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        for log in self._logs:
            with storage_errors(log), contextlib.suppress(FileNotFoundError):
                log.replace(artifacts.part_of(log))

    def discard(self) -> None:
        """Leave no part of a log that was not completed. Raises StorageError."""
        for log in self._logs:
            with storage_errors(log):
                artifacts.part_of(log).unlink(missing_ok=True)

    def _fetch(self) -> bool:
        """Fetch what is new of every log."""
        for replica, log in zip(self._replicas, self._logs, strict=True):
            try:
                with storage_errors(log):
                    log.parent.mkdir(parents=True, exist_ok=True)
                    path = artifacts.proxy_path(replica, "latencies")
                    self._api.download(path, log, patience_s=artifacts.QUICK_S, resume=True)
            except BackendError as error:
                if replica.index not in self._dead():
                    self._tell(f"Whether enough is known cannot be judged now: {error}")
                    return False
            if self._closed.wait(PACE_S):
                return False
        return True

    def _tell(self, sentence: str) -> None:
        if not self._told and not self._closed.is_set():
            self._notice(sentence)
            self._told = True
