"""Do LoadGen and our load generator see the same tail? p99 within 5% of each other and of the truth.

python -m tests.benchmarks.loadgen_agreement

A fake service takes log-normal times (median 20 ms, sigma 0.4) and answers any number of requests at once, so its true
p99 is known. LoadGen's Server scenario drives it in its process, our generator over HTTP, both at Poisson arrivals and
from the same row of service times.
"""

import argparse
import ctypes
import heapq
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tests.support.fake_service import PR_SET_TIMERSLACK, quantile_s, service_times_s
from tests.support.generated_load import ROOT, fake_service, plan_for, run

MEDIAN_MS, SIGMA = 20.0, 0.4
Z99 = 2.3263478740408408
BAR = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--loadgen", metavar="FOLDER", help="only LoadGen's half; for the process that is measured")
    wishes = parser.parse_args()
    if wishes.loadgen:
        drive_with_loadgen(wishes.rate, wishes.seconds, Path(wishes.loadgen))
        return
    print(f"load average {os.getloadavg()[0]:.1f} before it began")
    truth_ms = 1e3 * quantile_s(MEDIAN_MS, SIGMA, Z99)
    ours_ms = ours(wishes.rate, wishes.seconds)
    theirs_ms = theirs(wishes.rate, wishes.seconds)
    apart = ours_ms / theirs_ms - 1
    met = abs(apart) < BAR and all(abs(each / truth_ms - 1) < BAR for each in (ours_ms, theirs_ms))
    print(
        f"p99: truth {truth_ms:.2f} ms, LoadGen {theirs_ms:.2f} ms, our generator {ours_ms:.2f} ms; "
        f"{apart:+.1%} apart (bar: {BAR:.0%}) {'met' if met else 'MISSED'}"
    )
    raise SystemExit(0 if met else 1)


def ours(rate: float, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder, fake_service(MEDIAN_MS, SIGMA) as port:
        records = run(plan_for(port, Path(folder), rate=rate, duration_s=seconds))
    assert (records["status"] == 200).all()
    return float(np.percentile(records["latency_ns"], 99)) / 1e6


def theirs(rate: float, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.loadgen_agreement", "--loadgen", folder]
        subprocess.run([*command, "--rate", str(rate), "--seconds", str(seconds)], check=True, cwd=ROOT)
        return float(json.loads((Path(folder) / "p99.json").read_text()))


def drive_with_loadgen(rate: float, seconds: float, folder: Path) -> None:
    """LoadGen in this process, and a thread that completes each query after its known time."""
    import mlperf_loadgen as loadgen

    from harness.replica.frontends.loadgen import read_result

    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    sys.setswitchinterval(0.0001)
    times_s = service_times_s(MEDIAN_MS, SIGMA)
    due: list[tuple[float, int]] = []
    changed = threading.Condition()

    def issue(samples):
        with changed:
            for sample in samples:
                heapq.heappush(due, (time.perf_counter() + next(times_s), sample.id))
            changed.notify()

    def complete() -> None:
        while True:
            with changed:
                while not due or due[0][0] > time.perf_counter():
                    changed.wait(max(due[0][0] - time.perf_counter(), 0) if due else None)
                number = heapq.heappop(due)[1]
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    threading.Thread(target=complete, daemon=True).start()
    settings, log = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario, settings.mode = loadgen.TestScenario.Server, loadgen.TestMode.PerformanceOnly
    settings.server_target_qps, settings.min_duration_ms = rate, round(seconds * 1e3)
    settings.server_target_latency_ns = 1_000_000_000
    log.log_output.outdir, log.log_output.copy_summary_to_stdout, log.enable_trace = str(folder), False, False
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(64, 64, lambda _: None, lambda _: None)
    loadgen.StartTestWithLogSettings(system, library, settings, log, "")
    (folder / "p99.json").write_text(json.dumps(read_result(folder)["99.00_percentile_latency_ns"] / 1e6))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
