"""Measure the turns that processes take on one GPU: each watches the GPU's clock, and sees when it was taken off."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from harness import supervisor
from harness.analysis.questions.time_slices import Slices, Turns, turns
from harness.backends.local_replica import CAMPAIGN_VARIABLE, Lifeline, await_end, import_paths
from harness.errors import BackendError, PreflightError, UsageError
from harness.metrics.nvml import VISIBLE, GpuFacts, gpu_facts
from harness.sharing.mode import SharingSetup, ThisMachine
from harness.sharing.modes import MODES, mode_of
from harness.spec import Sharing

COMMAND = (sys.executable, "-m", "harness.replica.time_slices")
READY, GO, SLICES, LOG = "ready", "go", "slices.bin", "process.log"
"""Files of a process's folder, and, for all of them, of the one above."""
START_S = 60.0
LATE_S = 30.0
POLL_S = 0.01


def gpu_to_probe(sharing: Sharing) -> GpuFacts:
    """The first GPU that CUDA_VISIBLE_DEVICES lets through. Raises UsageError, and PreflightError where others would be measured, too."""
    if not mode_of(sharing).shares_gpu or mode_of(sharing).own_multiprocessors:
        raise UsageError(
            f"Under sharing {sharing.value} processes have no time slices.", advice="Probe time-slicing or mps."
        )
    gpus, why_none = gpu_facts()
    if not gpus:
        raise PreflightError(f"There is no GPU to probe: {why_none}.", advice="harness doctor says what is missing.")
    gpu = gpus[0]
    daemons = [pid for mode in MODES.values() for pid in mode.running([gpu.uuid])]
    set_mode = gpu.compute_mode not in {"", "default"}
    for wrong, problem, advice in (
        (gpu.mig, "MIG is on, and its instances share no time slices", "Turn MIG off: nvidia-smi -mig 0."),
        (set_mode, f"its compute mode is {gpu.compute_mode}", "Set it back: nvidia-smi -c DEFAULT."),
        (gpu.processes, f"other processes compute on it: {_listed(gpu.processes)}", "End them, or choose another GPU."),
        (daemons, f"an MPS daemon serves it: {_listed(daemons)}", "End it: echo quit | nvidia-cuda-mps-control."),
    ):
        if wrong:
            raise PreflightError(f"{gpu.name} cannot be probed: {problem}.", advice=advice)
    return gpu


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))


def probe(
    gpu: GpuFacts, sharing: Sharing, *, processes: int, seconds: float, repeats: int, say: Callable[[str], None]
) -> list[Turns]:
    """The turns of each repeat, with new processes (and under MPS a new daemon) each; nothing is left. Raises BackendError."""
    repeated = []
    for repeat in range(1, repeats + 1):
        with tempfile.TemporaryDirectory(prefix="harness-probe-") as folder, ExitStack() as stack:
            lifeline = Lifeline()
            stack.callback(lifeline.cut)
            name = f"probe-{uuid.uuid4().hex[:8]}"
            host = ThisMachine(name, lifeline, {CAMPAIGN_VARIABLE: name}, Path(folder) / "sharing")
            setup = mode_of(sharing).set_up(host, gpus=[gpu.uuid], limits=None, replicas_per_gpu=processes)
            stack.callback(setup.put_back)
            environment = {VISIBLE: gpu.uuid, "PYTHONPATH": import_paths(), **setup.environment(0)}
            slices = _watch(Path(folder), lifeline, environment, setup, processes, seconds)
        seen = turns(slices)
        if seen is None:
            raise BackendError("The processes did not watch at the same time.", advice="Watch for longer: --seconds.")
        say(f"{repeat}/{repeats}: {len(seen.switch_s)} switches in {seen.seconds:.2f} s")
        repeated.append(seen)
    return repeated


def _watch(
    folder: Path,
    lifeline: Lifeline,
    environment: Mapping[str, str],
    setup: SharingSetup,
    processes: int,
    seconds: float,
) -> list[Slices]:
    places = [folder / str(index) for index in range(processes)]
    command = [*COMMAND, "--seconds", repr(seconds)]
    started = []
    try:
        for place in places:
            place.mkdir()
            started.append(lifeline.start([*command, str(place)], log=place / LOG, environment=environment))
        _await(places, READY, started, START_S)
        below = [supervisor.descendants(process.pid) for process in started]
        setup.require_clients([(f"process {index}", pids) for index, pids in enumerate(below)])
        (folder / GO).touch()
        _await(places, SLICES, started, seconds * processes + LATE_S)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            await_end(process)
    return [np.fromfile(place / SLICES, dtype="<i8").reshape(-1, 2) for place in places]


def _await(places: Sequence[Path], name: str, processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    """Until the file is in every place. Raises BackendError when a process ends without it, or takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        over = [process.poll() for process in processes]  # before the look: who wrote it may end
        missing = [index for index, place in enumerate(places) if not (place / name).exists()]
        if not missing:
            return
        ended = [index for index in missing if over[index] is not None]
        if ended or time.monotonic() > deadline_s:
            index = (ended or missing)[0]
            said = (places[index] / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            how = f"ended with {over[index]}" if ended else f"took longer than {timeout_s:g} s"
            raise BackendError(
                f"Process {index} {how}; its last line: {said[-1] if said else 'it printed nothing'}",
                advice="It needs the CUDA driver's library and a GPU of compute capability 7.0 or newer.",
            )
        time.sleep(POLL_S)
