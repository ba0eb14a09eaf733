"""Counts the functions of the package that one request's latency passes from the replica to the p99 in the table of `harness run`.

    python scripts/latency_path.py [--checkout FOLDER]

A campaign of one replica runs on the CPU. Its workload makes the latency of every 40th request, and so the p99, one known
number of nanoseconds. In every process a profiler looks at what the functions of the package get, hold and return, and
counts a function, by its code object, when that is the known latency:

- the number itself, in nanoseconds, milliseconds or seconds, or its start and end, in one row or beside each other;
- a flat collection with it: an array, bytes, a list, the columns of an Arrow or pandas table;
- a record or a collection of those: a table of requests, an estimate, a named list of figures.

What holds such records for others (a run, a campaign) passes on everything and is not counted. Neither is what other
outputs make of it: the histogram of ``/metrics``, the verdict on a run, verification, the sentences and the page. A
comprehension counts with the function around it. The path ends where the number becomes text. ``--checkout`` traces another
checkout with this interpreter.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LATENCY_NS = 51_234_567
EVERY = 40
WORKLOAD = f"""
import time
import sitecustomize


class Known:
    def __init__(self):
        self.requests = 0

    def infer(self):
        self.requests += 1
        if self.requests % {EVERY}:
            time.sleep(0.001)
        else:
            sitecustomize.plant()
        return 1


def make(settings):
    return Known()
"""
CAMPAIGN = """
name: latency-path
workloads: [{name: known, factory: "known:make", warmup_requests: 1}]
sharing: [time-slicing]
replicas: [1]
repeats: 1
timing: {step_s: 0.25, stabilise_s: 0, record_s: 8, cooldown_s: 0, ready_timeout_s: 120}
metrics: [throughput, total_count, latency_p99]
"""
TRACER = r"""
import os, sys, threading, time

LATENCY_NS, EVERY, ROOT, OUT = int(os.environ["KNOWN_NS"]), 0, os.environ["KNOWN_ROOT"], os.environ["KNOWN_OUT"]
VALUES = (float(LATENCY_NS), LATENCY_NS / 1e6, LATENCY_NS / 1e9)
BYTES = LATENCY_NS.to_bytes(8, "little")
BESIDE = set(os.environ["KNOWN_BESIDE"].split(","))
CARRIERS = {"MeasuredRun"}  # all figures and files of one run
LOOKED_AT = 4000
inside, clock, planted = {}, time.perf_counter_ns, threading.local()
held, looks = {}, {}


def known_clock():
    planted.last = getattr(planted, "end", None) or clock()
    planted.end = None
    return planted.last


def plant():
    planted.end = planted.last + LATENCY_NS
    while clock() < planted.end:
        time.sleep(0.001)


time.perf_counter_ns = known_clock


def is_known(value):
    return abs(value - VALUES[0]) < 0.5 or abs(value - VALUES[1]) < 1e-9 or abs(value - VALUES[2]) < 1e-12


def holds(value, depth=2):
    kind = type(value)
    if kind is int or kind is float:
        return is_known(value)
    if value is None or kind in (str, bool, type):
        return False
    if kind.__module__ == "numpy":
        return _array(value)
    if kind in (bytes, bytearray, memoryview):
        return BYTES in bytes(value[: 1 << 22])
    if kind.__name__ == "array" and kind.__module__ == "array":
        return any(map(is_known, value))
    if not depth:
        return False
    if kind.__module__.startswith("pyarrow"):
        return _arrow(value)
    if kind.__module__.startswith("pandas"):
        return hasattr(value, "to_numpy") and any(_array(part.to_numpy()) for part in _parts(value))
    if isinstance(value, dict):
        return len(value) < 5000 and any(holds(part, depth - 1) for part in list(value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return len(value) < 100_000 and any(holds(part, depth - 1) for part in list(value))
    if hasattr(kind, "__dataclass_fields__") and kind.__name__ not in CARRIERS:
        names = list(kind.__dataclass_fields__)
        return any(holds(getattr(value, name, None), depth - 1) for name in names)
    return kind.__module__.startswith(("harness.replica", "harness.traffic")) and any(
        holds(getattr(value, name, None), depth - 1) for name in ("_pending",)
    )


def _parts(value):
    return [value[name] for name in value.columns] if hasattr(value, "columns") else [value]


def _array(value):
    names = value.dtype.names
    if names:
        begin = "intended_ns" if "intended_ns" in names else "start_ns"
        if "latency_ns" in names:
            return bool((value["latency_ns"] == LATENCY_NS).any())
        return begin in names and "end_ns" in names and bool((value["end_ns"] - value[begin] == LATENCY_NS).any())
    if value.dtype.kind in "iu":
        if value.ndim == 2 and value.shape[1] == 9:  # the columns of the table of requests
            return bool((value[:, 4] - value[:, 1] == LATENCY_NS).any() or (value == LATENCY_NS).any())
        return bool((value == LATENCY_NS).any())
    if value.dtype.kind == "f":
        return any(bool((abs(value - known) <= 1e-11 * known).any()) for known in VALUES)
    return False


def _arrow(value):
    names = getattr(value, "column_names", None)
    if names is None or not hasattr(value, "column"):
        return hasattr(value, "to_numpy") and _array(value.to_numpy(zero_copy_only=False)) if hasattr(value, "type") else False
    if "end_ns" in names and "intended_ns" in names:
        difference = value.column("end_ns").to_numpy() - value.column("intended_ns").to_numpy()
        return bool((difference == LATENCY_NS).any())
    return any(_array(value.column(name).to_numpy()) for name in names if value.column(name).null_count == 0 and name.endswith("_ns"))


def name_of(code):
    name = code.co_qualname
    while name.endswith(("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")):
        name = name.rpartition(".<locals>.")[0]
    return code.co_filename[len(ROOT) + 1 :], name


def beside(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_name in BESIDE and code.co_filename.startswith(ROOT):
            return True
        frame = frame.f_back
    return False


def look(frame, result):
    code = frame.f_code
    if held.get(code) or looks.get(code, 0) > LOOKED_AT:
        return held.get(code, False)
    looks[code] = looks.get(code, 0) + 1
    values = frame.f_locals
    ends = values.get("end_ns"), values.get("start_ns")
    in_flight = all(type(end) is int for end in ends) and ends[0] - ends[1] == LATENCY_NS
    if not (in_flight or holds(result) or any([holds(part) for part in list(values.values())])):
        return False
    counts = not beside(frame)
    if held.get(code) is None or counts:  # at once, because some processes end without a word
        held[code] = counts
        with open(os.path.join(OUT, f"{os.getpid()}.txt"), "a") as file:
            file.write("\t".join((*name_of(code), str(int(counts)))) + "\n")
    return counts


def profile(frame, event, result):
    if event != "return" or not frame.f_code.co_filename.startswith(ROOT):
        return
    sys.setprofile(None)
    try:
        if look(frame, result) and frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(ROOT):
            look(frame.f_back, None)
    except Exception as error:
        sys.stderr.write(f"latency path: {frame.f_code.co_qualname}: {error!r}\n")
    finally:
        sys.setprofile(profile)


threading.setprofile(profile)
sys.setprofile(profile)
"""
BESIDE = (
    *("verify_experiment", "verify", "judge", "evaluate", "report_of", "limits", "bests"),
    *("headline", "concerns", "families", "interference", "observe", "_worst_p99"),
)
"""Functions, by name in any version, that make something else of a latency."""


def trace(checkout: Path) -> tuple[list[str], list[str]]:
    """The functions that a latency passes, as ``file function`` in the order of files, and those of other outputs alone."""
    with tempfile.TemporaryDirectory(prefix="latency-path-") as temporary:
        folder = Path(temporary)
        (folder / "seen").mkdir()
        (folder / "known.py").write_text(WORKLOAD)
        (folder / "sitecustomize.py").write_text(TRACER)
        (folder / "campaign.yaml").write_text(CAMPAIGN)
        environment = os.environ | {
            "PYTHONPATH": f"{folder}:{checkout}",
            "KNOWN_NS": str(LATENCY_NS),
            "KNOWN_ROOT": str(checkout / "harness"),
            "KNOWN_OUT": str(folder / "seen"),
            "KNOWN_BESIDE": ",".join(BESIDE),
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "campaign.yaml", "--results", "results"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not re.search(r"51\.2\S*\s?ms", done.stdout):
            raise SystemExit(f"the p99 in the table is not the planted latency:\n{done.stdout}\n{done.stderr}")
        lines = [line.split("\t") for file in (folder / "seen").iterdir() for line in file.read_text().splitlines()]
    passed = {(file, name) for file, name, counts in lines if counts == "1"}
    others = {(file, name) for file, name, counts in lines if counts == "0"} - passed
    return [" ".join(pair) for pair in sorted(passed)], [" ".join(pair) for pair in sorted(others)]


def main() -> None:
    """Print the functions and their number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parent.parent)
    passed, others = trace(parser.parse_args().checkout.resolve())
    sys.stdout.write("\n".join(passed) + f"\n{len(passed)} functions; {len(others)} more for other outputs\n")


if __name__ == "__main__":
    main()
