"""How exact is the client of a user's server, and what does it cost? 10,000 tokens a second over 256 and over 1,000 streams.

python -m tests.benchmarks.server_client
python -m tests.benchmarks.server_client --cost: CPU seconds for 600 streams of 64 tokens, 20 a second, of this process as a whole
python -m tests.benchmarks.server_client --against aiperf --program PATH (or guidellm): the same trace for both, side by side

A fake server writes down when it sends each token, by the clock that the client reads, too; both are processes on two CPU cores. The
error of a gap is what the client saw less what the server did.
"""

import argparse
import itertools
import json
import os
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from harness.replica.engine.readiness import HOST
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.spec.server import Protocol, ServerSpec
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import Question
from harness.traffic.records import OK
from tests.benchmarks import foreign_clients

TOKENS, TOKENS_PER_S = 50, 10_000
BAR_MS, BAR_MB, BAR_CPU_S = 1.0, 400, 8.0
COST_REQUESTS, COST_TOKENS, COST_RATE, FIRST_S, GAP_S = 600, 64, 20.0, 0.12, 0.01


class Remembering(HttpClient):
    """Keeps what became of each request, by its text."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.outcomes = {}

    async def ask(self, question, exchange):
        self.outcomes[question.prompt] = exchange
        return await super().ask(question, exchange)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--cost", action="store_true", help="CPU seconds of 600 streams at a rate")
    parser.add_argument("--against", choices=("aiperf", "guidellm"), help="hold it against this program instead")
    parser.add_argument("--program", help="its path; it is no dependency of ours")
    options = parser.parse_args()
    seconds = options.seconds
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(f"cores {len(os.sched_getaffinity(0))}, load average {os.getloadavg()[0]:.1f} before it began")
    if options.against:
        foreign_clients.side_by_side(options.against, options.program or options.against, seconds)
        return
    if options.cost:
        with tempfile.TemporaryDirectory() as folder:
            raise SystemExit(0 if cost(Path(folder)) else 1)
    met = [measure(streams, seconds) for streams in (256, 1000)]
    raise SystemExit(0 if all(met) else 1)


def cost(folder: Path) -> bool:
    """At a rate that any client keeps: what does it take of the CPU?"""
    with foreign_clients.timed_server(folder, first_s=FIRST_S, gap_s=GAP_S) as (port, _):
        engine = ServerSpec(command=["{port}"], protocol=Protocol.OPENAI_CHAT, rate=COST_RATE, arrivals="constant")
        asker, ledger = Remembering(engine, port, HOST), ServerLedger(Families(streams=True), RequestMetrics(), folder)
        texts = (Question(COST_TOKENS, prompt=str(number)) for number in itertools.count())
        load = ServerLoad(engine, asker, texts, ledger, seed=0, alive=lambda: None)
        stopping = threading.Event()
        threading.Timer(COST_REQUESTS / COST_RATE, stopping.set).start()
        begun_s = time.process_time()
        load.run(stopping)
        load_s = time.process_time() - begun_s
        load.close()
    good = [exchange for exchange in asker.outcomes.values() if exchange.status == OK]
    tokens = sum(len(exchange.token_ns) for exchange in good)
    met = time.process_time() < BAR_CPU_S and len(good) >= COST_REQUESTS and tokens == len(good) * COST_TOKENS
    print(
        f"{len(good)} streams of {COST_TOKENS} tokens, {COST_RATE:g} a second: {load_s:.2f} CPU seconds, {time.process_time():.2f} with the "
        f"start (bar < {BAR_CPU_S:g} s); {1000 * load_s / tokens:.4f} per 1,000 tokens {'met' if met else 'MISSED'}"
    )
    return met


def measure(streams: int, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(streams, seconds, Path(folder))


def _measure(streams: int, seconds: float, folder: Path) -> bool:
    gap_s = streams / TOKENS_PER_S
    with foreign_clients.timed_server(folder, first_s=gap_s, gap_s=gap_s) as (port, times):
        engine = ServerSpec(command=["{port}"], protocol=Protocol.OPENAI_CHAT, concurrency=streams)
        asker, metrics = Remembering(engine, port, HOST), RequestMetrics()
        ledger = ServerLedger(Families(streams=True), metrics, folder)
        questions = (Question(TOKENS, prompt=str(number)) for number in itertools.count())
        load = ServerLoad(engine, asker, questions, ledger, seed=0, alive=lambda: None)
        stopping = threading.Event()
        threading.Timer(seconds, stopping.set).start()
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        load.run(stopping)
        spent_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
        load.close()
    sent_ns = json.loads(times.read_text())
    ended = {text: exchange for text, exchange in asker.outcomes.items() if exchange.end_ns}
    answered = {text: exchange for text, exchange in ended.items() if exchange.status == OK}
    tokens = sum(len(exchange.token_ns) for exchange in asker.outcomes.values())
    lost = load.facts()["abandoned"] + len(ended) - len(answered)
    if not answered:
        print(f"{streams} streams: no request was answered within {seconds:g} s MISSED")
        return False
    error_ms = (
        np.concatenate([np.diff(each.token_ns) - np.diff(sent_ns[text][1:]) for text, each in answered.items()]) / 1e6
    )
    late_ms = np.array([each.sent_ns - each.intended_ns for each in ended.values()]) / 1e6
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    gap_p99_ms, late_p99_ms = np.percentile(np.abs(error_ms), 99), np.percentile(late_ms, 99)
    met = gap_p99_ms < BAR_MS and not lost and most_mb < BAR_MB
    print(
        f"{streams} streams: {tokens / spent_s:.0f} tokens/s, {len(answered)} requests, {lost} lost; gap error p50 "
        f"{np.percentile(np.abs(error_ms), 50):.3f} ms, p99 {gap_p99_ms:.3f} ms (bar < {BAR_MS:g} ms); send-time error p99 "
        f"{late_p99_ms:.3f} ms; {1000 * cpu_s / tokens:.4f} CPU seconds per 1,000 tokens; {most_mb:.0f} MB (bar < {BAR_MB} MB) "
        f"{'met' if met else 'MISSED'}"
    )
    return bool(met)


if __name__ == "__main__":
    main()
