"""Measure a profile: every point in a process of its own, in random order, with the telemetry beside it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from harness.backends.local_replica import import_paths
from harness.backends.supervised import Lifeline, await_end
from harness.campaign.batch_search import Search, Tried, search
from harness.clock import SystemClock
from harness.errors import ExperimentsFailedError, UsageError
from harness.metrics.telemetry import Telemetry
from harness.results.files import atomic_write, read_object, storage_errors
from harness.results.layout import TELEMETRY, iso
from harness.results.profile import (
    FIGURES,
    LOG,
    MEASURED,
    PLAN,
    POINTS,
    Curve,
    Outcome,
    Plan,
    Point,
    figures_of,
    read_plan,
    read_point,
    write_manifest,
)
from harness.results.provenance import collect
from harness.spec import KubernetesSpec
from harness.spec.profile import CapacityGoal, ProfileCell, ProfileSpec
from harness.spec.replica import ReplicaSpec

COMMAND = (sys.executable, "-m", "harness.replica.profiling")
TELEMETRY_INTERVAL_S = 0.1
_OUTCOMES = {0: Outcome.MEASURED, 2: Outcome.REFUSED, 3: Outcome.REFUSED, 4: Outcome.OUT_OF_MEMORY}
"""By exit code of the process, as ``harness.replica.errors`` gives them; any other: it failed."""
_KILLED = 137
_LAST_BYTES = 4096


def new_plan(name: str, command: list[str], *, kubernetes: KubernetesSpec | None = None, **given: object) -> Plan:
    """A plan for this machine, or for a pod of a cluster. Raises ValidationError for what cannot be meant."""
    spec = ProfileSpec.model_validate(given)
    started_at = iso(time.time())
    return Plan(
        name=name, spec=spec, provenance=collect(), command=command, started_at=started_at, kubernetes=kubernetes
    )


def begin(folder: Path, plan: Plan) -> None:
    """Make the folder of a new profile. Raises UsageError where there is one, and StorageError."""
    if folder.exists():
        raise UsageError(
            f"{folder} exists already.", advice=f"Go on with it: harness resume {folder}, or choose a --name."
        )
    with storage_errors(folder):
        (folder / POINTS).mkdir(parents=True)
    atomic_write(folder / PLAN, plan.model_dump_json(indent=1) + "\n")


class Profile:
    """One profile on this machine, new or to be gone on with: points that are on the disk are not measured again.

    Args:
        folder: of the profile, with its plan.
        say: takes a line for each point.
        absent: instead of measuring a point that is not on the disk, takes its name and raises; None: it is measured.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, absent: Callable[[str], NoReturn] | None = None
    ) -> None:
        self.folder = folder
        self._absent = absent
        self.plan = read_plan(folder)
        self._spec = self.plan.spec
        self._say = say
        self._lifeline = Lifeline()
        self._points: dict[str, Point] = {}

    def run(self) -> None:
        """Measure what is missing, raise the batch where that was asked for, and write the manifest.

        Raises ExperimentsFailedError when not one point could be measured, and StorageError.
        """
        for leftover in (self.folder / POINTS).glob(".*"):
            shutil.rmtree(leftover)
        self._points = {path.name: read_point(path) for path in sorted((self.folder / POINTS).iterdir())}
        try:
            order = list(self._order())
            for place, (cell, repeat) in enumerate(order, start=1):
                self._measured(cell, repeat, f"{place}/{len(order)}")
            curves = [self._curve(series) for series in self._spec.series()] if self._spec.capacity else []
        finally:
            self._lifeline.cut()
        write_manifest(self.folder, self.plan, list(self._points.values()), curves)
        if not any(point.outcome is Outcome.MEASURED for point in self._points.values()):
            first = next(iter(self._points.values()))
            raise ExperimentsFailedError(
                f"no point of {self.folder} could be measured: {_in_words(first)}",
                advice=f"Read {self.folder / POINTS / first.name / LOG}.",
            )

    def _order(self) -> Iterator[tuple[ProfileCell, int]]:
        """Each repeat of all cells before the next one, shuffled: what drifts meets all cells alike."""
        draw = random.Random(self._spec.workload.seed)  # noqa: S311 - an order, no secret
        for repeat in range(1, self._spec.repeats + 1):
            cells = self._spec.cells()
            draw.shuffle(cells)
            yield from ((cell, repeat) for cell in cells)

    def _curve(self, series: ProfileCell) -> Curve:
        goal = self._spec.capacity or CapacityGoal.KNEE

        def measure(batch: int) -> Tried:
            point = self._measured(series.model_copy(update={"batch_size": batch}), 1, goal.value)
            return Tried(
                batch,
                point.figures.get("throughput_inputs_per_s"),
                point.figures.get("gpu_memory_peak_percent"),
                point.message or point.missing.get("gpu_memory_peak_percent", ""),
                point.outcome is Outcome.OUT_OF_MEMORY,
            )

        found: Search = search(measure, goal, min(self._spec.batches), self._spec.most_batch)
        return Curve(
            series=series.series,
            batch_size=found.batch,
            sentence=found.sentence,
            tried=[tried.batch for tried in found.tried],
        )

    def _measured(self, cell: ProfileCell, repeat: int, place: str) -> Point:
        """The point, measured unless it was before."""
        name = f"{cell.name}-{repeat}"
        if name not in self._points:
            if self._absent:
                self._absent(name)
            self._points[name] = self._measure(cell, repeat, self.folder / POINTS / name)
            self._say(f"{place}  {name}: {_in_words(self._points[name])}")
        return self._points[name]

    def _measure(self, cell: ProfileCell, repeat: int, final: Path) -> Point:
        folder = final.with_name(f".{final.name}")
        with storage_errors(folder):
            folder.mkdir()
        telemetry = Telemetry(folder / TELEMETRY, interval_s=TELEMETRY_INTERVAL_S, clock=SystemClock())
        telemetry.start()
        try:
            code = self._run_process(cell, repeat, folder)
        finally:
            unread = telemetry.finish().missing
        point = self._point(cell, repeat, folder, code, unread)
        atomic_write(folder / FIGURES, point.model_dump_json(indent=1) + "\n")
        with storage_errors(final):
            folder.rename(final)
        return point

    def _run_process(self, cell: ProfileCell, repeat: int, folder: Path) -> int | None:
        """Its exit code; None: it took too long."""
        plan = {"seconds": self._spec.seconds, "requests": cell.requests, "trace": self._spec.trace and repeat == 1}
        environment = {
            **ReplicaSpec(workload=self._spec.workload_of(cell)).environment(),
            "PROFILE": json.dumps(plan),
            "REPLICA": str(repeat),
            "REPLICA_DIR": str(folder.resolve()),
            "PYTHONPATH": import_paths(),
        }
        process = self._lifeline.start(COMMAND, log=folder / LOG, environment=environment)
        try:
            return process.wait(self._spec.timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            await_end(process)
            return None

    def _point(
        self, cell: ProfileCell, repeat: int, folder: Path, code: int | None, unread: Mapping[str, str]
    ) -> Point:
        if code == 0:
            measured = read_object(folder / MEASURED)
            figures, missing = figures_of(measured, folder / TELEMETRY, self.plan.provenance, unread)
            device = str(measured["described"].get("device_name", ""))
            return Point(
                cell=cell, repeat=repeat, outcome=Outcome.MEASURED, figures=figures, missing=missing, device=device
            )
        outcome = Outcome.FAILED if code is None else _OUTCOMES.get(code, Outcome.FAILED)
        message = _last_line(folder / LOG)
        if code is None:
            message = f"it was ended after {self._spec.timeout_s:g} s; raise --timeout-s, or measure less."
        elif code == _KILLED:
            message = "it was killed (signal 9), as the kernel does where the host's memory runs out."
        return Point(cell=cell, repeat=repeat, outcome=outcome, message=message)


def _last_line(log: Path) -> str:
    """Why a process ended, as its last line says."""
    with suppress(OSError):
        lines = log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].removeprefix("replica: ").removeprefix(f"{Outcome.OUT_OF_MEMORY}: ")
    return "it ended without a word"


def _in_words(point: Point) -> str:
    if point.outcome is not Outcome.MEASURED:
        return f"{point.outcome.value}: {point.message}"
    rate = point.figures["throughput_inputs_per_s"]
    memory = point.figures.get("gpu_memory_peak_percent")
    return f"{rate:,.{0 if rate >= 100 else 2}f} inputs/s" + (
        "" if memory is None else f", {memory:.1f} % of the GPU's memory"
    )
