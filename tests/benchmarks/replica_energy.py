"""Which way to divide a shared GPU's energy and activity among replicas is true: each against loads of known shares.

    python -m tests.benchmarks.replica_energy --out energy.json

Four processes make units of identical work, 10, 20, 30 and 40% of all of them, time-sliced and under an MPS daemon of
our own: at 60% of what the GPU does, saturated, and with requests of 1, 1, 4 and 4 units at equal rates. So the truth is
each one's share of the units. Every way weighs the same seconds; the error is the share by its weight against the truth. A
last mix runs unlike kernels side by side at four pairs of rates: its truth is a fit of the device's energy to the counts.
Nothing of the GPU's settings is changed. ``--dry`` rehearses on a CPU, ``--again FILE`` prints the tables of a result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.benchmarks.planted_load import KINDS
from tests.benchmarks.replica_energy_table import print_tables

REPOSITORY = Path(__file__).parents[2]
SHARES = (0.1, 0.2, 0.3, 0.4)
LOAD = 0.6
SETTLE_S = 0.2
TRACED_S = 0.25
EDGE_S = 0.2
ALONE_S = 5.0
ANSWER_S, IMPORT_S = 30.0, 120.0
CONTROL = "nvidia-cuda-mps-control"
SM_UTIL, DRAM_UTIL = 2, 10
PER_PROCESS = {
    "nvml": "nvmlDeviceGetProcessUtilization",
    "nvml_info": "nvmlDeviceGetProcessesUtilizationInfo",
}
Results = dict[str, Any]


class Workers:
    """Four planted loads; they take the GPU only when told to."""

    def __init__(self, environment: Mapping[str, str], log: Path, *, dry: bool) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.planted_load", *(["--dry"] if dry else [])]
        with log.open("ab") as stderr:
            self.processes = [
                subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
                for _ in SHARES
            ]
        self._answers: list[queue.Queue[str]] = [queue.Queue() for _ in SHARES]
        for process, answers in zip(self.processes, self._answers, strict=True):
            threading.Thread(target=_read, args=(process, answers), daemon=True).start()
        self._fresh = True

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def take_gpu(self) -> None:
        self.send([{"init": True}] * len(SHARES))
        self.answers()

    def send(self, orders: Sequence[Mapping[str, Any] | None]) -> None:
        if self._fresh:
            self._fresh = False
            self._expected = list(range(len(SHARES)))
            self.answers(IMPORT_S)
        self._expected = [place for place, order in enumerate(orders) if order is not None]
        for place in self._expected:
            stdin = self.processes[place].stdin
            assert stdin is not None
            stdin.write(json.dumps(orders[place]) + "\n")
            stdin.flush()

    def answers(self, timeout_s: float = ANSWER_S) -> list[dict[str, Any] | None]:
        """By place; a worker that failed or ended is an error, after all have answered."""
        read: list[dict[str, Any] | None] = [None] * len(SHARES)
        for place in self._expected:
            try:
                read[place] = json.loads(self._answers[place].get(timeout=timeout_s))
            except queue.Empty:
                read[place] = {"error": "no answer"}
            except ValueError:
                read[place] = {"error": f"ended with {self.processes[place].poll()}"}
        problems = [answer["error"] for answer in read if answer and "error" in answer]
        if problems:
            raise RuntimeError("; ".join(dict.fromkeys(problems)))
        return read

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError, AttributeError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self.processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("ended")


class Gpu:
    """The device by NVML: energy between two changes of its counter, and what the driver says of each process."""

    def __init__(self, index: int) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.device = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.device))

    def require_alone(self) -> None:
        """Somebody else's work draws power that no replica here makes: then nothing is measured."""
        deadline = time.monotonic() + ALONE_S
        while pids := [it.pid for it in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.device)]:
            if time.monotonic() > deadline:
                sys.exit(f"processes {pids} compute on this GPU: end them, or name another one with --gpu")
            time.sleep(0.5)

    def facts(self) -> Results:
        nvml, device = self.nvml, self.device
        questions: dict[str, Callable[[], Any]] = {
            "name": lambda: str(nvml.nvmlDeviceGetName(device)),
            "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
            "mig": lambda: nvml.nvmlDeviceGetMigMode(device)[0],
            "accounting_mode": lambda: nvml.nvmlDeviceGetAccountingMode(device),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
            "processes": lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)],
        }
        return {name: _guarded(question) for name, question in questions.items()}

    def state(self) -> Results:
        nvml, device = self.nvml, self.device
        return {
            "sm_clock_mhz": _guarded(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
            "temperature_c": _guarded(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            "power_w": _guarded(lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000),
            "throttle": _guarded(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)),
            "pids": _guarded(lambda: [it.pid for it in nvml.nvmlDeviceGetComputeRunningProcesses(device)]),
        }

    def edge(self) -> Results:
        """Where the counter of energy changes, so that what lies between two edges is exact."""
        read = self.nvml.nvmlDeviceGetTotalEnergyConsumption
        before, deadline = read(self.device), time.monotonic() + EDGE_S
        while (energy_mj := read(self.device)) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        edge: Results = {"t_ns": time.monotonic_ns(), "wall_us": time.time_ns() // 1000, "energy_mj": energy_mj}
        edge["gpm"] = _guarded(self._gpm_sample)
        return edge

    def _gpm_sample(self) -> Any:
        sample = self.nvml.nvmlGpmSampleAlloc()
        self.nvml.nvmlGpmSampleGet(self.device, sample)
        return sample

    def gpm(self, first: Any, last: Any) -> Results:
        nvml = self.nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        query.sample1, query.sample2 = first, last
        query.metrics[0].metricId, query.metrics[1].metricId = SM_UTIL, DRAM_UTIL
        nvml.nvmlGpmMetricsGet(query)
        values = {"sm_percent": query.metrics[0].value, "dram_percent": query.metrics[1].value}
        for sample in (first, last):
            nvml.nvmlGpmSampleFree(sample)
        return values

    def utilization(self, since_us: Mapping[str, int], first_us: int) -> dict[str, Any]:
        """Rows of pid, microseconds since the epoch, SM percent; by the call of old and by the one of today."""
        nvml, device = self.nvml, self.device

        def rows(name: str, call: str) -> list[list[int]]:
            samples = getattr(nvml, call)(device, since_us.get(name, first_us))
            return [[int(it.pid), int(it.timeStamp), int(it.smUtil)] for it in samples]

        return {name: _guarded(lambda name=name, call=call: rows(name, call)) for name, call in PER_PROCESS.items()}

    def accounting(self, pids: Sequence[int]) -> Any:
        stats = self.nvml.nvmlDeviceGetAccountingStats
        return {pid: _guarded(lambda pid=pid: stats(self.device, pid).gpuUtilization) for pid in pids}


class DryGpu(Gpu):
    """A device that takes 50 W and 100 J for each second of a worker on the CPU."""

    uuid = ""

    def __init__(self) -> None:
        self.workers: list[psutil.Process] = []

    def require_alone(self) -> None:
        """It is made up."""

    def facts(self) -> Results:
        return {"name": "dry"}

    def state(self) -> Results:
        return {}

    def _seconds(self) -> list[float]:
        return [sum(worker.cpu_times()[:2]) for worker in self.workers]

    def edge(self) -> Results:
        t_ns = time.monotonic_ns()
        energy_mj = t_ns / 1e9 * 50_000 + sum(self._seconds()) * 100_000
        return {"t_ns": t_ns, "wall_us": time.time_ns() // 1000, "energy_mj": energy_mj, "gpm": sum(self._seconds())}

    def gpm(self, first: Any, last: Any) -> Results:
        return {"sm_percent": (last - first) * 50}

    def utilization(self, since_us: Mapping[str, int], first_us: int) -> dict[str, Any]:  # noqa: ARG002
        return {"nvml": "dry"}

    def accounting(self, pids: Sequence[int]) -> Any:  # noqa: ARG002
        return "dry"


def _guarded(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - what one call does not tell must not lose the others
        return f"{type(error).__name__}: {error}"[:200]


class Experiment:
    """All phases; the result is written after each, and a phase that does not fit into the budget is left out by name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begin_s = time.monotonic()
        self.scale = 0.5 if options.quick else 1.0
        self.gpu = DryGpu() if options.dry else Gpu(options.gpu)
        self.gpu.require_alone()
        self.results: Results = {"gpu": _guarded(self.gpu.facts), "problems": [], "phases": []}
        self.capacity: dict[tuple[str, str], float] = {}

    def run(self) -> None:
        path = f"{os.environ.get('PATH', '')}:/usr/local/nvidia/bin:/usr/local/nvidia/sbin"
        os.environ["PATH"] = path
        pipes = tempfile.mkdtemp(prefix="energy-mps-")
        visible = {"CUDA_VISIBLE_DEVICES": self.gpu.uuid} if self.gpu.uuid else {}
        environment = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes, **visible}
        log = self.options.out.with_suffix(".log")
        sliced = Workers(visible, log, dry=self.options.dry)
        under_mps = Workers(environment, log, dry=self.options.dry)  # imports torch meanwhile
        budget_s = self.options.budget
        try:
            with self._step("bare idle"):
                self._measure("bare", "idle", sliced, [None] * 4, 1.0, trace=False)
            self._group("time-slicing", sliced, time.monotonic() - self.begin_s + budget_s * 0.46)
            sliced.end()
            with self._step("mps"), _daemon(environment, dry=self.options.dry):
                self._group("mps", under_mps, budget_s)
                under_mps.end()
        finally:
            sliced.end()
            under_mps.end()
            shutil.rmtree(pipes, ignore_errors=True)
            self._write()

    def _group(self, mode: str, workers: Workers, until_s: float) -> None:
        """The phases of one mode, the most telling first."""
        with self._step(f"{mode}: start"):
            workers.take_gpu()
            if isinstance(self.gpu, DryGpu):
                self.gpu.workers = [psutil.Process(pid) for pid in workers.pids]
            self._note("took the GPU")
            time.sleep(0.7 * self.scale)
            self._measure(mode, "idle", workers, [None] * 4, 1.2 * self.scale, trace=False)
        for name, seconds, loads in self._phases(mode):
            needed_s = SETTLE_S + seconds * self.scale + 1.5
            if time.monotonic() - self.begin_s + needed_s > until_s:
                self.results["problems"].append(f"{mode} {name}: left out, no time")
                continue
            with self._step(f"{mode} {name}"):
                trace = name == "mix 4" or not name.startswith(("mix ", "equal"))
                self._measure(mode, name, workers, loads(), seconds * self.scale, trace=trace)

    def _phases(self, mode: str) -> Iterator[tuple[str, float, Callable[[], list[Results | None]]]]:
        if mode == "time-slicing":  # alone there is nothing to share: once is enough
            for kind in self.options.kinds:
                yield f"alone {kind} 1", 1.2, lambda kind=kind: [_load(kind), None, None, None]
        for kind in sorted(self.options.kinds, key=("gemm", "resnet50", "memory").index):
            long_s = 3.0 if kind == "gemm" else 1.5
            yield f"equal {kind}", 0.8, lambda kind=kind: [_load(kind)] * 4
            yield f"60% {kind}", long_s, lambda kind=kind: self._counts(mode, kind, LOAD)
            yield f"saturated {kind}", long_s, lambda kind=kind: self._counts(mode, kind, None)
            if kind != "memory":
                if mode == "time-slicing":
                    yield f"alone {kind} 4", 0.8, lambda kind=kind: [_load(kind, 4), None, None, None]
                yield f"sizes {kind}", 1.9, lambda kind=kind: self._sizes(mode, kind)
            if kind == "gemm" and "memory" in self.options.kinds:
                yield from self._mix(mode)

    def _sizes(self, mode: str, kind: str) -> list[Results | None]:
        """Equal rates, and requests of one and of four units."""
        return [_load(kind, units, LOAD * self.capacity[mode, kind] / 10) for units in (1, 1, 4, 4)]

    def _mix(self, mode: str) -> Iterator[tuple[str, float, Callable[[], list[Results | None]]]]:
        for place, pair in enumerate(((0.05, 0.05), (0.2, 0.05), (0.05, 0.2), (0.2, 0.2)), start=1):

            def loads(pair: tuple[float, float] = pair) -> list[Results | None]:
                rates = [
                    part * self.capacity.get((mode, kind), self.capacity["time-slicing", kind])
                    for part, kind in zip(pair, KINDS, strict=False)
                ]
                return [_load(KINDS[index // 2], 1, rates[index // 2]) for index in range(4)]

            yield f"mix {place}", 1.3, loads

    def _counts(self, mode: str, kind: str, load: float | None) -> list[Results | None]:
        """Rates of 1 : 2 : 3 : 4; saturated, the last one asks for all that is left."""
        capacity = self.capacity[mode, kind]
        rates: list[float | None] = [share * capacity * (load or 1.0) for share in SHARES]
        if load is None:
            rates[-1] = None
        return [_load(kind, 1, rate) for rate in rates]

    def _measure(
        self,
        mode: str,
        name: str,
        workers: Workers,
        loads: Sequence[Results | None],
        seconds: float,
        *,
        trace: bool,
    ) -> None:
        answers, window = self._window(workers, loads, seconds)
        first, last = window["first"], window["last"]
        replicas = [_counted(load, answer, first, last) for load, answer in zip(loads, answers, strict=True)]
        phase: Results = {
            "mode": mode,
            "name": name,
            "seconds": (last["t_ns"] - first["t_ns"]) / 1e9,
            "energy_j": (last["energy_mj"] - first["energy_mj"]) / 1000,
            "gpm": _guarded(lambda: self.gpu.gpm(first.pop("gpm"), last.pop("gpm"))),
            "pids": workers.pids,
            "replicas": replicas,
            **window,
        }
        self.results["phases"].append(phase)
        closed = [replica for replica in replicas if replica]
        if closed and all(load is None or load["rate"] is None for load in loads):
            kind = closed[0]["kind"]
            units = sum(replica["requests"] * replica["units"] for replica in closed) / phase["seconds"]
            self.capacity[mode, kind] = max(units, 1.0)
            if name.startswith("alone"):  # until all four have run
                self.capacity.setdefault(("mps", kind), max(units, 1.0))
        if trace and not self.options.untraced:
            self._trace(phase, workers, loads)

    def _window(
        self, workers: Workers, loads: Sequence[Results | None], seconds: float
    ) -> tuple[list[Results | None], Results]:
        """Let the loads run, and what the driver says between two edges of the counter."""
        begin_ns = time.monotonic_ns() + 50_000_000
        last_ns = begin_ns + int((SETTLE_S + seconds) * 1e9)
        end_ns = last_ns + int(EDGE_S * 1e9)  # the counter's next change is still under load
        workers.send([_order(load, begin_ns, end_ns, seed) for seed, load in enumerate(loads)])
        _sleep_until(begin_ns + int(SETTLE_S * 1e9))
        first = self.gpu.edge()
        samples: dict[str, Any] = {}
        seen: dict[str, int] = {}
        state: Results = {}
        while time.monotonic_ns() < last_ns:
            if not state and time.monotonic_ns() > first["t_ns"] + int(seconds * 5e8):
                state = self.gpu.state()
            self._collect(samples, seen, first["wall_us"] - 1_500_000)
            _sleep_until(min(time.monotonic_ns() + 100_000_000, last_ns))
        last = self.gpu.edge()
        self._collect(samples, seen, first["wall_us"] - 1_500_000)
        accounting = _guarded(lambda: self.gpu.accounting(workers.pids))
        window = {"first": first, "last": last, "process_samples": samples, "state": state, "accounting": accounting}
        return workers.answers(), window

    def _collect(self, samples: dict[str, Any], seen: dict[str, int], since_us: int) -> None:
        for name, rows in self.gpu.utilization(seen, since_us).items():
            if isinstance(rows, str):
                samples.setdefault(f"{name}_problem", rows)
                continue
            kept = samples.setdefault(name, [])
            kept.extend(row for row in rows if row not in kept)
            seen[name] = max([seen.get(name, since_us), *(row[1] for row in rows)])

    def _trace(self, phase: Results, workers: Workers, loads: Sequence[Results | None]) -> None:
        """The same loads again for a moment, with their kernels traced; starting the profiler is part of the wait."""
        try:
            begin_ns = time.monotonic_ns() + 150_000_000
            traced_s = TRACED_S * max(self.scale, 0.6)
            end_ns = begin_ns + int(traced_s * 1e9)
            orders = [_order(load, begin_ns, end_ns, seed + 9) for seed, load in enumerate(loads)]
            workers.send([order and {**order, "trace": True} for order in orders])
            for replica, answer in zip(phase["replicas"], workers.answers(), strict=True):
                if replica is not None and answer is not None:
                    spans = answer.pop("spans_ms")
                    answer.pop("ends_ns")
                    replica["trace"] = {**answer, "seconds": traced_s, "span_ms": sum(spans)}
        except RuntimeError as error:
            phase["trace_problem"] = str(error)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the other phases are paid for, too
            problem = f"{name}: {type(error).__name__}: {error}"
            self.results["problems"].append(problem)
            traceback.print_exc()
        self._note(name)
        self._write()

    def _note(self, name: str) -> None:
        print(f"{time.monotonic() - self.begin_s:6.1f} s  {name}", flush=True)

    def _write(self) -> None:
        self.results["seconds"] = time.monotonic() - self.begin_s
        self.options.out.write_text(json.dumps(self.results, default=str), encoding="utf-8")


def _load(kind: str, units: int = 1, rate: float | None = None) -> Results:
    return {"kind": kind, "units": units, "rate": rate}


def _order(load: Results | None, begin_ns: int, end_ns: int, seed: int) -> Results | None:
    return load and {**load, "begin_ns": begin_ns, "end_ns": end_ns, "seed": seed}


def _counted(load: Results | None, answer: Results | None, first: Results, last: Results) -> Results | None:
    """What a replica did between the edges."""
    if load is None or answer is None:
        return None
    inside = [first["t_ns"] < end_ns <= last["t_ns"] for end_ns in answer["ends_ns"]]
    spans = [span for span, counts in zip(answer["spans_ms"], inside, strict=True) if counts]
    return {
        **load,
        "requests": len(spans),
        "span_ms": sum(spans),
        "median_ms": float(np.median(spans)) if spans else None,
    }


def _sleep_until(due_ns: int) -> None:
    time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)


@contextlib.contextmanager
def _daemon(environment: Mapping[str, str], *, dry: bool) -> Iterator[None]:
    """An MPS daemon of our own."""
    if dry:
        yield
        return
    own = {**os.environ, **environment}
    log = Path(environment["CUDA_MPS_LOG_DIRECTORY"]) / "daemon.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen([CONTROL, "-f"], env=own, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        for _ in range(100):
            done = subprocess.run(
                [CONTROL], input="get_server_list\n", text=True, env=own, capture_output=True, check=False
            )
            if done.returncode == 0:
                break
            time.sleep(0.05)
        yield
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [CONTROL], input="quit -t 2\n", text=True, env=own, capture_output=True, check=False, timeout=5
            )
    finally:
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(3)


def main() -> None:
    options = _options()
    if not options.again:
        Experiment(options).run()
    path = options.again or options.out
    results = json.loads(path.read_text(encoding="utf-8"))
    for problem in results["problems"]:
        print(f"problem: {problem}")
    print_tables(results)
    print(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="half as long")
    parser.add_argument("--dry", action="store_true", help="on the CPU, with a made-up device: a rehearsal")
    parser.add_argument("--gpu", type=int, default=0, help="its number; nobody else may compute on it")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--untraced", action="store_true", help="without the profiler")
    parser.add_argument("--budget", type=float, default=116.0, help="seconds after which no phase begins")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "energy.json")
    parser.add_argument("--again", type=Path, help="print the tables of this result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
