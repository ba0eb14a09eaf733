"""How long a whole campaign takes to export: 9 experiments x 15 metrics = 135 CSVs of 721 rows, from a real Prometheus.

    python -m tests.benchmarks.export_campaign [--rounds 3]

A Prometheus (Debian's package) holds nine hours of one after another: three workloads with 1, 3 and 8 replicas, each pod with
the replicas' real buckets, CPU and memory, besides GPU and node. They are exported into their CSVs as ``harness export
--from CAMPAIGN`` does it; then the very queries that it asked are asked again over plain HTTP, as many at once, and their answers thrown away. Interleaved rounds;
the bars are 20 s for all, and 1.5 times the plain HTTP, in the median. ``--replicas 8`` makes every experiment the largest.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import requests

from harness.metrics.catalogue import select
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import WORKERS
from harness.metrics.promql import cluster
from harness.results.from_prometheus import RecordedWindow, collect_each
from tests.benchmarks.export_speed import ROWS, STEP_S, WINDOW_S, lines
from tests.integration.metrics import prometheus_server

BAR_S, BAR_RATIO = 20.0, 1.5
WORKLOADS = ("resnet50", "distilbert", "whisper")
HOUR_S = 4000
"""From one experiment to the next."""


def experiments(start_s: int, replicas: list[int]) -> list[tuple[str, int, int]]:
    """Workload, replicas and start of each."""
    matrix = [(workload, count) for workload in WORKLOADS for count in replicas]
    return [(workload, count, start_s + HOUR_S * place) for place, (workload, count) in enumerate(matrix)]


def backfill(folder: Path, plan: list[tuple[str, int, int]]) -> Path:
    """The server's database, made experiment by experiment."""
    for place, (workload, replicas, start_s) in enumerate(plan):
        database = prometheus_server.backfill(folder, lines(start_s, workload=workload, replicas=replicas, seed=place))
    return database


def ours(url: str, plan: list[tuple[str, int, int]], out: Path) -> None:
    """Export everything."""
    windows = [
        RecordedWindow(
            workload=workload,
            dialect=cluster("inference", f"{workload}-{replicas}-.*"),
            replicas=[f"{workload}-{replicas}-{pod}" for pod in range(replicas)],
            start_s=start_s,
            rows=ROWS,
            step_s=STEP_S,
            window_s=WINDOW_S,
            metrics=select("all"),
        )
        for workload, replicas, start_s in plan
    ]
    with PrometheusServer(url) as server:
        collect_each([(server, out / str(place), window) for place, window in enumerate(windows)])


class Listening:
    """Keeps the addresses that an export asks, in its order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._lock = threading.Lock()
        self._send = requests.Session.send

    def __enter__(self) -> Self:
        def send(session: requests.Session, request: requests.PreparedRequest, **options: object) -> requests.Response:
            with self._lock:
                self.asked.append(str(request.url))
            return self._send(session, request, **options)

        requests.Session.send = send  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        requests.Session.send = self._send  # type: ignore[method-assign]


def plain(asked: list[str]) -> int:
    """Ask all of it again, as many at once; returns the bytes of the answers."""
    local = threading.local()

    def ask(url: str) -> int:
        parts = urlsplit(url)
        connection = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = http.client.HTTPConnection(parts.netloc)
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Accept-Encoding": "identity"})
        return len(connection.getresponse().read())

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(ask, asked))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 3, 8])
    options = parser.parse_args()
    counts = options.replicas if len(options.replicas) == 3 else options.replicas * 3
    start_s = int(time.time() - 14 * 3600) // 60 * 60
    plan = experiments(start_s, counts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with prometheus_server.prometheus(folder, database=backfill(folder, plan)) as url:
            with Listening() as listening:
                ours(url, plan, folder / "warm")  # not timed: both find the server warm
            asked, files = listening.asked, len(list((folder / "warm").rglob("*.csv")))
            size = plain(asked)
            pairs = []
            for number in range(options.rounds):
                begun_s = time.perf_counter()
                ours(url, plan, folder / f"round-{number}")
                between_s = time.perf_counter()
                plain(asked)
                pairs.append((between_s - begun_s, time.perf_counter() - between_s))
                shutil.rmtree(folder / f"round-{number}")
    our_s = statistics.median(pair[0] for pair in pairs)
    plain_s = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    met = our_s < BAR_S and ratio <= BAR_RATIO
    print(
        f"{files} CSVs of {len(plan)} experiments with {counts} replicas, {ROWS} rows: exported in {our_s:.1f} s; "
        f"the same {len(asked)} answers ({size / 1e6:.0f} MB) over plain HTTP in {plain_s:.1f} s; {ratio:.2f} times, on "
        f"{len(os.sched_getaffinity(0))} CPUs with load {os.getloadavg()[0]:.1f}; bars {BAR_S:g} s and {BAR_RATIO:g} times: "
        f"{'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
