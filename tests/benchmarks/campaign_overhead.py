"""What the harness adds to the sum of the phases (stabilise, record, cool-down).

    python -m tests.benchmarks.campaign_overhead

First `replica-scaling` in simulated time with a fake backend: its sleeps are skipped, its work is not. Then `smoke`
for real, with the time that replicas take to load their model listed apart. Last `harness --help`, the median of 20,
beside a Python that imports argparse alone.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.backends.local import LocalBackend
from harness.campaign.folder import create
from harness.campaign.journal import read_events
from harness.campaign.plan import estimate, expand
from harness.campaign.runner import CampaignRunner
from harness.campaign.source import read_source
from harness.metrics.scrape import ReplicaSample
from tests.support.fake_backend import FakeBackend
from tests.support.fake_metrics import fake_sources, sample
from tests.support.simulated_clock import SimulatedClock

HUNDRED = sample([0.004] * 100)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as results:
        _simulated(Path(results))
        _real(Path(results))
    bare_s, help_s = _median_s("-c", "import argparse"), _median_s("-m", "harness", "--help")
    print(f"harness --help: {help_s:.3f} s (limit 0.12), Python with argparse alone {bare_s:.3f} s")


def _median_s(*words: str) -> float:
    """Of 20 starts, after one that fills the caches."""
    times_s = []
    for _ in range(21):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s[1:])


def _simulated(results: Path) -> None:
    source = read_source("replica-scaling")
    folder = create(results, source.spec, text=source.text, source=source.origin)
    clock = SimulatedClock()
    begun_s = clock.now_s()
    CampaignRunner(
        folder,
        FakeBackend(sources=lambda replicas: fake_sources(replicas, _busy)),
        clock=clock,
    ).run()
    wall_s = clock.now_s() - begun_s
    phases_s = estimate(expand(source.spec)).duration_s
    print(
        f"replica-scaling, simulated: {wall_s - phases_s:.1f} s beside {phases_s:.0f} s of phases: {100 * (wall_s / phases_s - 1):.3f}%"
    )


def _busy(_replica: int, scrape: int) -> ReplicaSample:
    """A replica that serves 100 requests between two scrapes."""
    return ReplicaSample(HUNDRED.counters * scrape, HUNDRED.families)


def _real(results: Path) -> None:
    source = read_source("smoke")
    experiments = expand(source.spec)
    folder = create(results, source.spec, text=source.text, source=source.origin)
    begun_s = time.monotonic()
    CampaignRunner(folder, LocalBackend(folder.campaign_id)).run()
    wall_s = time.monotonic() - begun_s
    phases_s = estimate(experiments).duration_s
    ends = [event for event in read_events(folder.state) if event["event"] == "step-ends"]
    loading_s = sum(event["seconds"] for event in ends if event["step"] == "deploy")
    each_s = (wall_s - phases_s) / len(experiments)
    print(
        f"smoke, real: {each_s:.2f} s per experiment beside its phases, "
        f"{loading_s / len(experiments):.2f} s of it loading the replicas"
    )


if __name__ == "__main__":
    main()
