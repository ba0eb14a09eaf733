"""What does it take to read a page of metrics? Ours beside prometheus_client's two parsers, which the tests hold it to.

python -m tests.benchmarks.metrics_page
python -m tests.benchmarks.metrics_page --late: how late requests are sent where the client's process reads such a page each second

One page is like vLLM's: 40 histograms of 31 buckets, with two labels. The other is a replica's own, which the harness reads of each.
All the time the interpreter is held: requests that are due meanwhile are sent late.
"""

import argparse
import itertools
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from harness.metrics.scrape import ReplicaParser
from harness.replica.engine.readiness import HOST
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.spec.server import Protocol, ServerSpec
from harness.traffic.exposition import read
from harness.traffic.protocols import Question
from tests.benchmarks import foreign_clients
from tests.benchmarks.server_client import Remembering

TIMES = 20
RATE, SECONDS = 100.0, 10


def engine_page() -> str:
    lines = []
    labels = 'engine="0",model_name="Qwen/Qwen3-0.6B"'
    for number in range(40):
        name = f"vllm:metric_{number}_seconds"
        lines += [f"# HELP {name} Something.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} 3.0' for bound in (*range(30), "+Inf")]
        lines += [f"{name}_count{{{labels}}} 3.0", f"{name}_sum{{{labels}}} 3.0"]
    return "\n".join(lines) + "\n"


def readers(ours):
    return {
        "ours": ours,
        "prometheus_client, text": lambda text: list(prometheus(text)),
        "prometheus_client, OpenMetrics": lambda text: list(openmetrics(text + "# EOF\n")),
    }


def cost(text: str, named) -> None:
    for name, reader in named.items():
        reader(text)
        begun_s = time.process_time()
        for _ in range(TIMES):
            reader(text)
        spent_ms = 1000 * (time.process_time() - begun_s) / TIMES
        print(f"{text.count(chr(10))} lines, {name}: {spent_ms:.1f} ms of CPU time a page")


def late(name: str, reader, text: str) -> None:
    """How late a client sends that reads the page once a second."""
    stopping = threading.Event()

    def read_on() -> None:
        while not stopping.wait(1.0):
            reader(text)

    with (
        tempfile.TemporaryDirectory() as folder,
        foreign_clients.timed_server(Path(folder), first_s=0.01, gap_s=0.005) as (port, *_),
    ):
        engine = ServerSpec(command=["{port}"], protocol=Protocol.OPENAI_CHAT, rate=RATE)
        asker = Remembering(engine, port, HOST)
        ledger = ServerLedger(Families(streams=True), RequestMetrics(), Path(folder))
        questions = (Question(8, prompt=str(number)) for number in itertools.count())
        load = ServerLoad(engine, asker, questions, ledger, seed=0, alive=lambda: None)
        threading.Timer(SECONDS, stopping.set).start()
        threading.Thread(target=read_on).start()
        load.run(stopping)
        load.close()
    sent = [(exchange.sent_ns - exchange.intended_ns) / 1e6 for exchange in asker.outcomes.values() if exchange.end_ns]
    p50, p90, p99 = np.percentile(sent, [50, 90, 99])
    print(f"{name}: {len(sent)} requests sent late by {p50:.2f} ms at p50, {p90:.2f} at p90, {p99:.2f} at p99")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late", action="store_true")
    text = engine_page()
    if parser.parse_args().late:
        for name, reader in {"no page": len, **readers(read)}.items():
            late(name, reader, text)
        return
    cost(text, readers(read))
    of_replica = readers(ReplicaParser().parse)
    del of_replica["prometheus_client, OpenMetrics"]  # it is none
    cost(RequestMetrics({"workload": "resnet50"}).render(), of_replica)


if __name__ == "__main__":
    main()
