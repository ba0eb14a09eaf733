"""How exact is the client of a user's server, and what does it cost? 10,000 tokens a second over 256 and over 1,000 streams.

python -m tests.benchmarks.server_client [--json FILE]
python -m tests.benchmarks.server_client --cost: CPU seconds for 600 streams of 64 tokens, 20 a second, of this process as a whole
python -m tests.benchmarks.server_client --beside [aiperf guidellm]: the same load, trace and cost for those that are found on PATH

A fake server notes when each token was due, and the instants before and after it sent it; both are processes on two CPU cores and read
one clock. The kernel had the token in between, so that a gap that the client says is wrong by as much as it lies outside of what these
instants allow. How late the server itself was, and how long each of the two waited for a core that others had, is said apart: where
the server did not send what it should, or the client was kept waiting, the bar is not judged.
"""

import argparse
import itertools
import json
import math
import os
import platform
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from harness.replica.engine.readiness import HOST
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.spec.server import Protocol, ServerSpec
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import Question
from harness.traffic.records import ABANDONED, OK, Exchange
from tests.benchmarks import foreign_clients

TOKENS, TOKENS_PER_S = 50, 10_000
BAR_MS, BAR_MB, BAR_CPU_S = 1.0, 400, 8.0
LEAST_SENT, MOST_WAITED = 0.9, 0.05
"""Of the tokens that should be sent, and of the time that a process could not run because others did."""
MET, MISSED, NOT_JUDGED = "met", "MISSED", "not judged: the machine was too busy"
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
    parser.add_argument(
        "--beside", nargs="*", choices=foreign_clients.FOREIGN, help="these programs, where they are on PATH"
    )
    parser.add_argument("--json", type=Path, help="takes all figures, with the machine that they are of")
    options = parser.parse_args()
    seconds = options.seconds
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    machine = {"cores": len(os.sched_getaffinity(0)), "of": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1)}
    machine |= {"cpu": cpu_name(), "python": platform.python_version(), "kernel": platform.release()}
    print(
        f"{machine['cpu']}, {machine['cores']} of {machine['of']} cores, load average {machine['load_before']} before it began"
    )
    if options.beside is not None:
        figures = foreign_clients.side_by_side(options.beside or list(foreign_clients.FOREIGN), seconds)
    elif options.cost:
        with tempfile.TemporaryDirectory() as folder:
            figures = {"cost": cost(Path(folder))}
    else:
        figures = {f"{streams} streams": measure(streams, seconds) for streams in (256, 1000)}
    machine["load_after"] = round(os.getloadavg()[0], 1)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, **figures}, indent=1) + "\n")
    raise SystemExit(0 if all(arm["verdict"] == MET for arm in figures.values()) else 1)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def cost(folder: Path) -> dict[str, Any]:
    """At a rate that any client keeps: what does it take of the CPU?"""
    with foreign_clients.timed_server(folder, first_s=FIRST_S, gap_s=GAP_S) as (port, _, _):
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
    whole_s = time.process_time()
    verdict = judged(whole_s < BAR_CPU_S and len(good) >= COST_REQUESTS and tokens == len(good) * COST_TOKENS)
    print(
        f"{len(good)} streams of {COST_TOKENS} tokens, {COST_RATE:g} a second: {load_s:.2f} CPU seconds, {whole_s:.2f} with the "
        f"start (bar < {BAR_CPU_S:g} s); {1000 * load_s / tokens:.4f} per 1,000 tokens {verdict}"
    )
    return {"streams": len(good), "tokens": tokens, "load_cpu_s": load_s, "whole_cpu_s": whole_s, "verdict": verdict}


def judged(met: bool) -> str:
    return MET if met else MISSED


def measure(streams: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(streams, seconds, Path(folder))


def _measure(streams: int, seconds: float, folder: Path) -> dict[str, Any]:
    gap_s = streams / TOKENS_PER_S
    with foreign_clients.timed_server(folder, first_s=gap_s, gap_s=gap_s) as (port, times, server):
        engine = ServerSpec(command=["{port}"], protocol=Protocol.OPENAI_CHAT, concurrency=streams)
        asker, metrics = Remembering(engine, port, HOST), RequestMetrics()
        ledger = ServerLedger(Families(streams=True), metrics, folder)
        questions = (Question(TOKENS, prompt=str(number)) for number in itertools.count())
        load = ServerLoad(engine, asker, questions, ledger, seed=0, alive=lambda: None)
        stopping = threading.Event()
        threading.Timer(seconds, stopping.set).start()
        before = clocks(server.pid)
        load.run(stopping)
        spent = clocks(server.pid) - before
        load.close()
    chats = {chat["text"]: chat for chat in json.loads(times.read_text())}
    figures = {
        **of_requests(asker.outcomes, load.facts()["abandoned"]),
        **of_gaps(asker.outcomes, chats),
        **of_server(chats),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        **{
            f"{who}_waited_for_a_core": share
            for who, share in zip(("client", "server"), spent[3:] / spent[0], strict=True)
        },
    }
    for who, cpu_s in zip(("client", "server"), spent[1:3], strict=True):
        figures[f"{who}_cpu_s_per_1000_tokens"] = 1000 * cpu_s / max(figures["tokens"], 1)
    figures["verdict"] = verdict_of(figures)
    print(f"{streams} streams: " + ", ".join(shown(name, value) for name, value in figures.items()))
    return figures


def clocks(server: int) -> np.ndarray:
    """Seconds: of the wall, of CPU time of this process and the server's, and of their main threads' waiting for a core that another had."""
    of_server = psutil.Process(server).cpu_times()
    waited = [int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9 for pid in (os.getpid(), server)]
    return np.array([time.perf_counter(), time.process_time(), of_server.user + of_server.system, *waited])


def of_requests(outcomes: dict[str, Exchange], abandoned: int) -> dict[str, Any]:
    ended = [exchange for exchange in outcomes.values() if exchange.end_ns]
    late_ms = [(exchange.sent_ns - exchange.intended_ns) / 1e6 for exchange in ended]
    return {
        "answered": sum(exchange.status == OK for exchange in ended),
        "unanswered": abandoned,
        "failed": sum(exchange.status not in {OK, ABANDONED} for exchange in ended),
        "tokens": sum(len(exchange.token_ns) for exchange in outcomes.values()),
        "sent_late_p99_ms": float(np.percentile(late_ms, 99)) if ended else math.nan,
    }


def of_gaps(outcomes: dict[str, Exchange], chats: dict[str, Any]) -> dict[str, Any]:
    """By how much the gaps that the client says lie outside of what the instants of sending allow; and which it could not tell apart."""
    errors, together = [np.zeros(0)], [np.zeros(0)]
    for text, exchange in outcomes.items():
        if exchange.status == OK:
            gaps, (low, high) = np.diff(exchange.token_ns), bounds(chats[text])
            errors.append(np.maximum(np.maximum(low - gaps, gaps - high), 0) / 1e6)
            together.append(gaps == 0)
    error_ms = np.concatenate(errors)
    return {
        **{f"gap_error_p{at}_ms": float(np.percentile(error_ms, at)) if len(error_ms) else math.nan for at in (50, 99)},
        "read_together": float(np.concatenate(together).mean()) if len(error_ms) else math.nan,
    }


def bounds(chat: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that the gaps between its tokens can have been, ns."""
    before, after = np.array(chat["before"]), np.array(chat["after"])
    return before[1:] - after[:-1], after[1:] - before[:-1]


def of_server(chats: dict[str, Any]) -> dict[str, Any]:
    due, before, after = (
        np.concatenate([chat[what] for chat in chats.values()]) for what in ("due", "before", "after")
    )
    return {
        "sent_per_s": len(before) / (before.max() - before.min()) * 1e9,
        "server_late_p99_ms": float(np.percentile(before - due, 99)) / 1e6,
        "sending_p99_ms": float(np.percentile(after - before, 99)) / 1e6,
    }


def verdict_of(figures: dict[str, Any]) -> str:
    if figures["failed"] or figures["memory_mb"] >= BAR_MB:
        return MISSED
    exact = figures["gap_error_p99_ms"] < BAR_MS and not figures["unanswered"]
    if exact and figures["sent_per_s"] >= LEAST_SENT * TOKENS_PER_S:
        return MET
    kept_waiting = max(figures["client_waited_for_a_core"], figures["server_waited_for_a_core"]) > MOST_WAITED
    return NOT_JUDGED if kept_waiting else MISSED


def shown(name: str, value: Any) -> str:
    bar = {
        "gap_error_p99_ms": f" (bar < {BAR_MS:g})",
        "memory_mb": f" (bar < {BAR_MB})",
        "failed": " (bar 0)",
        "unanswered": " (bar 0)",
    }.get(name, "")
    return f"{name} {value:.4g}{bar}" if isinstance(value, float) else f"{name} {value}{bar}"


if __name__ == "__main__":
    main()
