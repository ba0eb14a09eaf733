"""kill -9 of the harness, of a server and of the process that asks it, at random moments: is anything left, and does ``resume`` finish?

    nice python -m tests.benchmarks.kills --kills 50 --minutes 30 [--victim server] [--seed 1]

Campaigns of a fake server with recordings of 2 s: in turn with one start for all loads of a sweep and with one for each. The
harness that was killed is resumed and killed again until its campaign is done; a server or its client is killed below a harness that goes
on. What still runs or listens some seconds after a kill is listed with its process id, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support import forked
from tests.support.campaigns import Campaign
from tests.support.processes import eventually

VICTIMS = {"harness": "", "server": "tests.support.fake_streaming_server", "load": "harness.replica"}
GONE_S = 90.0
"""A replica waits ten seconds for the last words of a server whose children live on, a harness as long for a guard; the rest is for a busy machine."""
LATEST_S = 9.0
"""From the start of a harness, or of the replicas, to the kill: by then a campaign is somewhere in its second load."""
MOST_RETRIES = 10


def campaign(folder: Path, *, one_start: bool, children: bool) -> Campaign:
    """Four runs on two servers; ``children``: each server has a process in a session of its own, as engines have."""
    server = {
        "command": [sys.executable, "-m", VICTIMS["server"], "--port", "{port}", "--gap-s", "0.01"],
        "env": {"CHILDREN": "1"} if children else {},
        "protocol": "openai-chat",
        "requests": {"output_tokens": {"mean": 4}},
    }
    spec: dict[str, Any] = {
        "name": "kills",
        "workloads": [{"name": "llm", "warmup_requests": 1, "server": server}],
        "sweep": {"concurrency": [2, 4], "one_start": one_start},
        "replicas": [2],
        "repeats": 2,
        "timing": {"step_s": 0.1, "stabilise_s": 0.3, "record_s": 2, "cooldown_s": 0.1},
        "limits": {"on_replica_death": "retry", "retries": MOST_RETRIES},
        "metrics": ["throughput", "latency_p50"],
    }
    return Campaign(folder, spec)


def listening(processes: list[psutil.Process]) -> set[int]:
    """Ports that these processes take connections at."""
    ports = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            connections = process.net_connections("tcp")
            ports |= {it.laddr.port for it in connections if it.status == psutil.CONN_LISTEN}
    return ports


def left_over(processes: list[psutil.Process], ports: set[int]) -> list[str]:
    """Which of them still run, and which ports still answer, some seconds later."""

    def alive() -> list[psutil.Process]:
        return [it for it in processes if it.is_running() and it.status() != psutil.STATUS_ZOMBIE]

    def taken() -> list[int]:
        with contextlib.ExitStack() as opened:
            sockets = {port: opened.enter_context(socket.socket()) for port in ports}
            return [port for port, probe in sockets.items() if probe.connect_ex(("127.0.0.1", port)) == 0]

    def nothing() -> bool:
        try:
            return not alive() and not taken()
        except psutil.NoSuchProcess:
            return False  # it has just ended: look again

    if eventually(nothing, GONE_S):
        return []
    return [f"process {it.pid}: {' '.join(it.cmdline())}" for it in alive()] + [f"port {port}" for port in taken()]


def step_of(events: list[Mapping[str, Any]]) -> str:
    """What the campaign was at."""
    return str(next((event["step"] for event in reversed(events) if "step" in event), "start"))


def finish(running: Campaign) -> None:
    """Resume to the end, and verify. Raises AssertionError."""
    for _ in range(MOST_RETRIES):
        done = forked.harness(*running.words, "--retry-invalid")
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode in {0, 4} and running.starved():
            break
    assert running.verified().experiments == 4


class Trials:
    """Kills of one victim, campaign after campaign."""

    def __init__(self, victim: str, folder: Path, chance: random.Random) -> None:
        self.victim, self._folder, self._chance = victim, folder, chance
        self.steps: Counter[str] = Counter()
        self.faults: list[str] = []
        self.campaigns = 0
        self.gone_s: list[float] = []
        self._kinds = itertools.cycle(itertools.product([True, False], repeat=2))

    @property
    def kills(self) -> int:
        return self.steps.total()

    def run(self, kills: int, deadline_s: float) -> None:
        """So many, or as many as the time allows."""
        while self.kills < kills and time.monotonic() < deadline_s:
            self.campaigns += 1
            one_start, children = next(self._kinds)
            place = self._folder / f"{self.victim}-{self.campaigns}"
            running = campaign(place, one_start=one_start, children=children)
            trial = self._kill_harness if self.victim == "harness" else self._kill_below
            try:
                for _ in trial(running):
                    if self.kills >= kills or time.monotonic() >= deadline_s:
                        break
                finish(running)
            except AssertionError as error:
                self.faults.append(f"{running.path}: {error}")
            if self._remains(running):
                self.faults.append(f"{running.path}: {self._remains(running)} after the end")

    def _remains(self, running: Campaign) -> list[psutil.Process]:
        return running.processes() if running.begun else []

    def _kill_harness(self, running: Campaign) -> Iterator[None]:
        """One kill each time, until the campaign is done."""
        while not running.begun or len(running.manifests()) < 4:
            command = running.start()
            time.sleep(self._chance.uniform(0, LATEST_S))
            if command.poll() is not None:
                continue
            processes = running.processes() if running.begun else []
            self._kill(running, psutil.Process(command.pid), processes, command)
            yield

    def _kill_below(self, running: Campaign) -> Iterator[None]:
        """One kill each time, as long as one harness has not done all of it."""
        command = running.start()
        while command.poll() is None:
            time.sleep(self._chance.uniform(0, LATEST_S))
            processes = [it for it in running.processes() if it.pid != command.pid] if running.begun else []
            victims = [it for it in processes if self._is_victim(it)]
            if victims:
                self._kill(running, self._chance.choice(victims), processes, None)
                yield
        said = command.end()
        assert "Traceback" not in said, said

    def _is_victim(self, process: psutil.Process) -> bool:
        try:
            words = process.cmdline()
        except psutil.Error:
            return False
        return VICTIMS[self.victim] in words and not any(word.endswith("supervisor.py") for word in words)

    def _kill(
        self,
        running: Campaign,
        process: psutil.Process,
        processes: list[psutil.Process],
        command: forked.Command | None,
    ) -> None:
        ports, step = listening(processes), step_of(running.events()) if running.begun else "start"
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if command is not None:
            command.end()
        self.steps[step] += 1
        killed_s = time.monotonic()
        for what in left_over(processes, ports):
            self.faults.append(f"kill {self.kills} in {step} left {what}")
        self.gone_s.append(time.monotonic() - killed_s)


def main() -> int:
    """Kill, and say what was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each victim")
    parser.add_argument("--minutes", type=float, default=30.0, help="in all, divided evenly")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victim", choices=VICTIMS, action="append")
    options = parser.parse_args()
    victims = options.victim or list(VICTIMS)
    faults = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        for victim in victims:
            trials = Trials(victim, Path(folder), random.Random(f"{options.seed} {victim}"))
            trials.run(options.kills, time.monotonic() + 60 * options.minutes / len(victims))
            at = ", ".join(f"{step} {count}" for step, count in trials.steps.most_common())
            print(
                f"{victim}: {trials.kills} kills ({at}) in {trials.campaigns} campaigns, {len(trials.faults)} faults; all gone after "
                f"{statistics.median(trials.gone_s or [0]):.1f} s, at most {max(trials.gone_s, default=0):.1f} s",
                flush=True,
            )
            for fault in trials.faults:
                print(f"  {fault}", flush=True)
            faults += trials.faults
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
