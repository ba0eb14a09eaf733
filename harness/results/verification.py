"""Does a finished experiment still hold what its manifest says?"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, ResultsPathError, StorageError, VerificationError
from harness.metrics.quality import Severity, judge
from harness.results.files import inside, read_object, sha256_of, storage_errors
from harness.results.layout import MANIFEST, SAMPLES, TELEMETRY, WIDE, WIDE_COLUMNS, MetricFile, metric_files
from harness.results.manifest import Manifest, Status, content_digest, read_manifest
from harness.results.requests import requests_between_readings
from harness.results.tables import Grid, differing_samples, read_cells, wide_rows
from harness.spec.condition import waiting

if TYPE_CHECKING:
    import pyarrow as pa

_GRID_TOLERANCE_S = 0.0011
_RESTORE = "Restore it from a backup, or move the experiment's folder away and resume the campaign to run it again."


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as the manifest says.

    Attributes:
        expected: what the manifest says; empty when it says nothing about it.
    """

    path: Path
    message: str
    expected: str = ""
    found: str = ""
    advice: str = _RESTORE

    def __str__(self) -> str:
        return f"{self.said} {self.advice}"

    @property
    def said(self) -> str:
        """What is wrong and where, without what to do."""
        details = f" (expected {self.expected}, found {self.found})" if self.expected else ""
        where = "" if self.message.startswith(str(self.path)) else f"{self.path}: "
        return f"{where}{self.message}{details}"


@dataclass(slots=True)
class Verification:
    """The outcome for one experiment, or for a whole campaign."""

    path: Path
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    experiments: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is wrong. Notes do not count."""
        return not self.problems

    def add(self, other: Verification) -> None:
        """Take in the outcome of a part."""
        self.problems += other.problems
        self.notes += other.notes
        self.files += other.files
        self.experiments += other.experiments

    def of(self, archive: Path) -> Verification:
        """The same, said of the archive that ``path`` was unpacked from."""

        def named(text: str) -> str:
            return text.replace(str(self.path), str(archive))

        problems = [
            replace(
                problem,
                path=Path(named(str(problem.path))),
                message=named(problem.message),
                advice=named(problem.advice),
            )
            for problem in self.problems
        ]
        return replace(self, path=archive, problems=problems, notes=[named(note) for note in self.notes])

    def refuse(self) -> None:
        """Raise VerificationError, with every problem, unless there are experiments and nothing is wrong."""
        if self.ok and not self.experiments:
            raise VerificationError(
                f"{self.path} holds no finished experiment, so nothing was verified.",
                advice=f"See how far it has come: harness status {self.path}",
            )
        if not self.ok:
            alike = len({problem.advice for problem in self.problems}) == 1  # then it is said once, below them
            lines = "\n".join(f"  {problem.said if alike else problem}" for problem in self.problems)
            raise VerificationError(
                f"{self.path} does not hold what it should:\n{lines}", advice=self.problems[0].advice
            )


def verify_experiment(folder: Path) -> Verification:
    """Hash, parse and count every file of one finished experiment again.

    Never raises for what it finds: a folder without a readable manifest is a problem like any other.
    """
    outcome = Verification(folder, experiments=1)
    try:
        manifest = read_manifest(folder)
        _check_manifest(folder, manifest, outcome)
    except (ResultsPathError, StorageError) as error:
        outcome.problems.append(Problem(folder / MANIFEST, error.message, advice=error.advice))
        return outcome
    damaged = {
        name
        for name, entry in manifest.files.items()
        if not check_hash(folder, name, entry.sha256, outcome, size=entry.bytes)
    }
    outcome.files = len(manifest.files)
    _note_strangers(folder, manifest, outcome)
    tables = metric_files(folder)
    for metric in manifest.experiment.metrics:
        _check_metric(folder, metric, tables.get(metric), manifest, damaged, outcome)
    _check_listed(manifest, folder, outcome)
    if TELEMETRY in manifest.files and TELEMETRY not in damaged:
        _check_telemetry(folder / TELEMETRY, outcome)
    if outcome.ok:
        try:
            _check_tables(folder, manifest, outcome)
            _check_quality(folder, manifest, outcome)
        except HarnessError as error:
            outcome.problems.append(Problem(folder, error.message, advice=error.advice or _RESTORE))
    return outcome


def _check_manifest(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    path = folder / MANIFEST
    actual = content_digest(read_object(path))
    if manifest.digest != actual:
        message = "the manifest was changed after it was written."
        outcome.problems.append(Problem(path, message, f"digest {manifest.digest or 'none'}", f"digest {actual}"))
    if folder.name != manifest.experiment_id:
        message = "the folder has another name than its experiment."
        advice = f"Rename the folder to {manifest.experiment_id}."
        outcome.problems.append(Problem(folder, message, manifest.experiment_id, folder.name, advice))


def check_hash(
    folder: Path, name: str, sha256: str, outcome: Verification, *, size: int | None = None, advice: str = _RESTORE
) -> bool:
    """Whether the file ``name`` below ``folder`` is there as it was written; else one problem more.

    ``size`` is its length in bytes, where that is known: a file of another length is not read.
    """
    path = folder / name
    expected = f"sha256 {sha256}" + ("" if size is None else f", {size} bytes")
    try:
        found_size = inside(folder, name).stat().st_size
        actual = sha256_of(path) if size in {None, found_size} else "not computed"
    except ResultsPathError as error:
        outcome.problems.append(Problem(path, error.message, advice=advice))
        return False
    except FileNotFoundError:
        outcome.problems.append(Problem(path, "the file is missing.", expected, "no file", advice))
        return False
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}."
        outcome.problems.append(Problem(path, message, advice="Check its rights and the disk (dmesg)."))
        return False
    if actual == sha256:
        return True
    message = "the file was changed after it was written."
    outcome.problems.append(Problem(path, message, expected, f"sha256 {actual}, {found_size} bytes", advice))
    return False


def _note_strangers(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    # Not of Paths, of which there are many and seldom a stranger.
    known = {os.path.join(folder, name) for name in (*manifest.files, MANIFEST)}  # noqa: PTH118
    actual = {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}  # noqa: PTH118
    for path in sorted(map(Path, actual - known)):
        if path.is_file():
            outcome.notes.append(f"{path} is not part of the experiment; it was put there later.")


def _check_metric(
    folder: Path, metric: str, file: MetricFile | None, manifest: Manifest, damaged: set[str], outcome: Verification
) -> None:
    if file is None or file.path.name not in manifest.files:
        message = f"there is no CSV of the metric {metric}."
        outcome.problems.append(Problem(folder, message, "one file", "none"))
        return
    if file.path.name in damaged:
        return  # Named with both hashes already; what it holds now says nothing.
    step_s = manifest.experiment.timing.step_s
    counts: defaultdict[str, int] = defaultdict(int)
    try:
        for series, time_s, value, _ in read_cells(file.path, metric):
            row = counts[series]
            expected_s = manifest.start_s + row * step_s
            if abs(time_s - expected_s) > _GRID_TOLERANCE_S:
                message = f"row {row} of series {series} is off the grid."
                outcome.problems.append(Problem(file.path, message, f"{expected_s:.3f}", f"{time_s:.3f}"))
                return
            if value is not None and not math.isfinite(value):
                message = f"row {row} of series {series} is not a number."
                outcome.problems.append(Problem(file.path, message, "a finite value", repr(value)))
                return
            counts[series] = row + 1
    except ResultsPathError as error:
        outcome.problems.append(Problem(file.path, error.message))
        return
    wrong = {series: count for series, count in counts.items() if count != manifest.rows}
    if wrong or not counts:
        message = "the number of rows is not that of the recording."
        actual = ", ".join(f"{series}: {count}" for series, count in wrong.items()) or "no rows"
        outcome.problems.append(Problem(file.path, message, f"{manifest.rows} rows each", actual))


def _check_telemetry(path: Path, outcome: Verification) -> None:
    """One table with a time and the host's CPU in every line, and nothing but numbers beside the time."""
    import pyarrow as pa  # a tenth of a second, which a command that reads no table does not need
    from pyarrow import csv

    try:
        with storage_errors(path, "read"):
            table = csv.read_csv(path)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        outcome.problems.append(Problem(path, f"it is no table: {str(error).splitlines()[0][:200]}"))
        return
    odd = [name for name in ("timestamp", "host_cpu_percent") if name not in table.column_names]
    if odd:
        outcome.problems.append(Problem(path, "a column is missing.", odd[0], "none"))
        return
    for column in table.schema:
        fits = pa.types.is_timestamp if column.name == "timestamp" else _is_number
        if not fits(column.type) and not pa.types.is_null(column.type):
            expected = "a time in every line" if column.name == "timestamp" else "a number or nothing in every line"
            outcome.problems.append(
                Problem(path, f"the column {column.name[:60]!r} is odd.", expected, "something else")
            )
            return


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _check_listed(manifest: Manifest, folder: Path, outcome: Verification) -> None:
    left_out = manifest.condensed.recorded if manifest.condensed else ()
    for name in (WIDE, SAMPLES):
        if name not in manifest.files and name not in left_out:
            message = f"the manifest lists no {name}."
            outcome.problems.append(Problem(folder / MANIFEST, message, name, "none"))


def _check_tables(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    """The tables that were made of the metric CSVs still say what those say."""
    grid = Grid(manifest.start_s, manifest.experiment.timing.step_s, manifest.rows)
    rows = wide_rows(folder, grid, manifest.provenance.host.cpus)
    wide = folder / WIDE
    with storage_errors(wide, "read"), wide.open(encoding="utf-8", errors="replace") as stream:
        lines = itertools.chain([",".join(WIDE_COLUMNS)], (",".join(row) for row in rows))
        for number, (actual, line) in enumerate(itertools.zip_longest(stream, lines), start=1):
            if actual is None or line is None or actual.rstrip("\n") != line:
                message = f"line {number} is not what the metric CSVs say."
                outcome.problems.append(Problem(wide, message, line or "no line", (actual or "no line").strip()[:200]))
                break
    if SAMPLES in manifest.files and (metric := differing_samples(folder, folder / SAMPLES)):
        message = f"the values of {metric} are not those of its CSV."
        outcome.problems.append(Problem(folder / SAMPLES, message))


def _check_quality(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    """Judge the data again: a verdict better than the data deserve is a problem, anything else new a note."""
    logged = partial(
        requests_between_readings,
        folder,
        start_s=manifest.start_s,
        step_s=manifest.experiment.timing.step_s,
        late_s=manifest.answered_within_s,
    )
    # Without a code: found by a version that kept none.
    known = {(finding.get("code"), finding.get("metric")) for finding in manifest.findings}
    experiment = manifest.experiment
    for finding in judge(
        folder,
        rows=manifest.rows,
        logged=logged,
        open_loop=experiment.workload.open_loop,
        waiting=waiting(experiment.condition),
    ):
        if finding.severity is Severity.INVALID and manifest.verdict.status is not Status.INVALID:
            advice = finding.advice or "Do not use this experiment."
            expected, actual = "data fit to be used", f"verdict {manifest.verdict.status.value}"
            outcome.problems.append(Problem(folder, finding.message, expected, actual, advice))
        elif finding.severity is Severity.DEGRADED and not known & {
            (code, finding.metric) for code in (finding.code, None)
        }:
            outcome.notes.append(f"{folder.name}: {finding.message}")
