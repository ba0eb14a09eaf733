"""Does a server lose throughput because the harness starts, asks and records it? Held against the same command by hand, in pairs.

    python -m tests.benchmarks.server_by_hand --device cpu
    python -m tests.benchmarks.server_by_hand --pairs 6 --seconds 20 --device cuda --model /tmp/model --ready /health --command \
        transformers serve /tmp/model --host 127.0.0.1 --port {port} --device cuda:0 --continuous-batching --cb-max-memory-percent 0.05

In each pair, in random order: `harness run` of a campaign of one server that takes `--concurrency` chats at once (recorder,
telemetry and client are those of any campaign), and the command as a plain process with the same environment and
processors, asked by a client of its own, which has nothing of the harness, for as long after the same warm-up. Each request counts by the
share of its time that lies within the measured seconds, so that its ends do not fall to one side by chance. Printed are
the ratio of each pair, harness / by hand, their geometric mean and its 95% t-interval. Without `--command` the
server is `transformers serve` with a small model of random weights, made here.
"""

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from harness.analysis.statistics import t_interval
from harness.replica.engine.readiness import answers_200, takes_connections
from harness.results.requests import read
from harness.traffic.records import OK
from tests.support import random_vlm
from tests.support.ports import free_port

BAR = 0.02
WARM_UP, FOLLOW_S, START_S = 5, 60, 600


class Client:
    """A closed loop of chats over connections that are kept; ``done`` holds begin, end and output tokens of each that was answered."""

    def __init__(self, port, wishes):
        self.port, self.wishes = port, wishes
        self.done, self.under_way = [], set()
        self.until_s = math.inf

    async def run(self, seconds, *, concurrency):
        """Go on with the load until what had begun within the seconds is answered."""
        loops = [asyncio.ensure_future(self._one_after_another()) for _ in range(concurrency)]
        self.until_s = time.time() + seconds
        try:
            while time.time() < self.until_s or any(begin_s < self.until_s for begin_s in self.under_way):
                if time.time() > self.until_s + FOLLOW_S:
                    sys.exit(f"by hand: no answer for {FOLLOW_S} s")
                for ended in (loop for loop in loops if loop.done()):
                    ended.result()
                await asyncio.sleep(0.05)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def warm_up(self):
        """The request that shows that it answers, and those that are not counted."""
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        for _ in range(1 + WARM_UP):
            await self._ask(*streams)
        streams[1].close()
        self.done.clear()

    async def _one_after_another(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while True:
                await self._ask(reader, writer)
        finally:
            writer.close()

    async def _ask(self, reader, writer):
        text = " ".join(
            random.choices(("the", "sun", "on", "a", "red", "hill", "is", "low"), k=self.wishes.input_tokens)
        )
        asked = {"max_tokens": self.wishes.output_tokens, "model": self.wishes.model, "stream": True}
        body = json.dumps({**asked, "messages": [{"role": "user", "content": text}]}).encode()
        begin_s = time.time()
        while begin_s in self.under_way:
            begin_s = math.nextafter(begin_s, math.inf)
        self.under_way.add(begin_s)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
        )
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        pieces = []
        while size := int(await reader.readline(), 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        if b" 200 " not in answer[0]:
            sys.exit(f"by hand: {answer[0].decode()}: {b''.join(pieces)[:300]!r}")
        events = [json.loads(line[5:]) for line in b"".join(pieces).split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for event in events for choice in event.get("choices") or []]
        tokens = sum(bool((choice.get("delta") or {}).get("content")) for choice in choices)
        self.under_way.remove(begin_s)
        self.done.append((begin_s, time.time(), tokens))


def by_hand(wishes, folder):
    """Requests per second of the command as it is typed, and output tokens of each request."""
    port = free_port()
    command = [word.replace("{port}", str(port)) for word in wishes.command]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        up = f"http://127.0.0.1:{port}{wishes.ready}"
        give_up_s = time.monotonic() + START_S
        while not (answers_200(up) if wishes.ready else takes_connections(port)):
            if server.poll() is not None or time.monotonic() > give_up_s:
                sys.exit(f"by hand: the server is not up:\n{(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.1)
        client = Client(port, wishes)

        async def ask():
            await client.warm_up()
            await client.run(wishes.settle + wishes.seconds, concurrency=wishes.concurrency)

        asyncio.run(ask())
    finally:
        server.terminate()
        server.wait(60)
    begun, ended, tokens = np.array(client.done).T
    return within(begun, ended, client.until_s - wishes.seconds, client.until_s), tokens.mean()


def under_the_harness(wishes, folder):
    """The same under the harness, from what its client wrote down."""
    lengths = {"input_tokens": {"mean": wishes.input_tokens}, "output_tokens": {"mean": wishes.output_tokens}}
    server = {"command": wishes.command, "protocol": "openai-chat", "model": wishes.model, "requests": lengths}
    server |= {"ready": {"path": wishes.ready} if wishes.ready else {"tcp": True}, "stop_timeout_s": 60}
    workload = {"name": "llm", "device": wishes.device, "warmup_requests": WARM_UP}
    timing = {"step_s": 1, "stabilise_s": wishes.settle, "record_s": wishes.seconds, "ready_timeout_s": START_S}
    campaign = {
        "name": "by-hand",
        "workloads": [{**workload, "server": {**server, "concurrency": wishes.concurrency}}],
        "replicas": [1],
        "timing": {**timing, "cooldown_s": 0},
    }
    file = folder / "campaign.yaml"
    file.write_text(json.dumps(campaign))
    command = [sys.executable, "-m", "harness", "run", file, "--results", folder, "--force", "--no-report"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    manifest = next(folder.glob("by-hand-*/llm_*/manifest.json"), None)
    if ran.returncode or manifest is None:
        sys.exit(f"under the harness: exit code {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    start_s = json.loads(manifest.read_text())["start_s"]
    asked = read(manifest.parent).rows
    well = asked[asked["status"] == OK]
    begun = well["intended_ns"] / 1e9
    rate = within(begun, begun + well["latency_ns"] / 1e9, start_s, start_s + wishes.seconds)
    return rate, well["output_tokens"].mean()


def within(begun, ended, from_s, to_s):
    """Requests per second, of each the share of its time that lies between the two."""
    inside = np.clip(np.minimum(ended, to_s) - np.maximum(begun, from_s), 0, None)
    return float((inside / (ended - begun)).sum() / (to_s - from_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each run")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds of load before them")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the server computes")
    parser.add_argument("--model", help="its name at the server")
    parser.add_argument("--ready", help="path that answers 200 when it is up; without it, its port")
    parser.add_argument("--seed", type=int, default=1, help="of the order within the pairs")
    parser.add_argument(
        "--within", type=float, default=math.inf, help="seconds; a pair that would end later is not begun"
    )
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="of the server, with {port}; comes last")
    wishes = parser.parse_args()
    begun_s = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        if not wishes.command:
            wishes.model = f"{folder}/model"
            random_vlm.write(Path(wishes.model))
            program = shutil.which("transformers", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
            wishes.command = [program, "serve", wishes.model, "--host", "127.0.0.1", "--port", "{port}", "--device"]
            wishes.command += ["cuda:0" if wishes.device == "cuda" else "cpu"]
            wishes.ready = "/health"
        chance, ratios, took_s = random.Random(wishes.seed), [], 0.0
        while len(ratios) < wishes.pairs and time.monotonic() + took_s < begun_s + wishes.within:
            pair_s = time.monotonic()
            ratios.append(pair(len(ratios) + 1, wishes, chance))
            took_s = max(took_s, time.monotonic() - pair_s)
    known = t_interval([math.log(ratio) for ratio in ratios])
    if known.low is None or known.high is None:
        raise SystemExit("one pair has no interval; take --pairs 2 or more")
    low, mean, high = (math.exp(each) for each in (known.low, known.mean, known.high))
    holds = low > 1 - BAR and high < 1 + BAR
    missed = high < 1 - BAR or low > 1 + BAR
    verdict = "met" if holds else "MISSED" if missed else "inconclusive: take more pairs, or longer ones"
    print(
        f"harness / by hand: {mean:.4f}, 95% interval {low:.4f} to {high:.4f} ({len(ratios)} pairs of {wishes.seconds:g} s, "
        f"{wishes.concurrency} chats at once); bar within {BAR:.0%}: {verdict}"
    )
    raise SystemExit(0 if holds else 1)


def pair(number, wishes, chance):
    """One of each, in random order."""
    found = {}
    for measure in chance.sample([under_the_harness, by_hand], 2):
        with tempfile.TemporaryDirectory() as folder:
            found[measure.__name__] = measure(wishes, Path(folder))
    (harness, harness_tokens), (hand, hand_tokens) = found["under_the_harness"], found["by_hand"]
    first = next(iter(found)).replace("_", " ")
    print(
        f"pair {number}: harness {harness:.3f} requests/s of {harness_tokens:.1f} tokens, by hand {hand:.3f} of {hand_tokens:.1f}; "
        f"ratio {harness / hand:.4f} ({first} first; load average {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return harness / hand


if __name__ == "__main__":
    main()
