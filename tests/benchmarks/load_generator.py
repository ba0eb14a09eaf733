"""Does the load generator send on time? 2,000 requests per second, each within 1 ms of its time at p99, on two cores.

python -m tests.benchmarks.load_generator

The generator and an HTTP server that answers after 5 ms, each a process, share two CPU cores. Both kinds of arrivals.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from tests.support.generated_load import fake_service, plan_for, run

BAR_MS = 1.0
HELD = 0.99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    wishes = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"cores {len(os.sched_getaffinity(0))}, load average {os.getloadavg()[0]:.1f} before it began")
    met = [measure(arrivals, wishes.rate, wishes.seconds) for arrivals in ("poisson", "constant")]
    raise SystemExit(0 if all(met) else 1)


def measure(arrivals: str, rate: float, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder, fake_service(5.0) as port:
        records = run(plan_for(port, Path(folder), rate=rate, duration_s=seconds, arrivals=arrivals))
    error_ms = np.percentile(records["send_error_ns"], [50, 99, 99.9]) / 1e6
    answered = int((records["status"] == 200).sum())
    sent = len(records) / seconds
    met = error_ms[1] < BAR_MS and sent > HELD * rate - 3 * (rate / seconds) ** 0.5 and answered == len(records)
    print(
        f"{arrivals}: intended {rate:g}/s, sent {sent:.1f}/s, answered {answered / seconds:.1f}/s; send-time error "
        f"p50 {error_ms[0]:.3f} ms, p99 {error_ms[1]:.3f} ms, p99.9 {error_ms[2]:.3f} ms "
        f"(bar: p99 < {BAR_MS:g} ms) {'met' if met else 'MISSED'}"
    )
    return met


if __name__ == "__main__":
    main()
