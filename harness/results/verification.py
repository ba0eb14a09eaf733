"""Does a finished experiment still hold what its manifest says?"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from harness.errors import HarnessError, ResultsPathError, StorageError, VerificationError
from harness.metrics.quality import Finding, Severity, judge
from harness.results.files import inside, read_object, sha256_of, storage_errors
from harness.results.layout import MANIFEST, SAMPLES, TELEMETRY, WIDE, WIDE_COLUMNS, metric_files
from harness.results.manifest import Manifest, Status, content_digest, read_manifest
from harness.results.requests import requests_between_readings
from harness.results.tables import Grid, differing_samples, read_cells, wide_rows
from harness.spec import ExperimentSpec
from harness.spec.condition import waiting

_GRID_TOLERANCE_S = 0.0011
_RESTORE = "Restore it from a backup, or move the experiment's folder away and resume the campaign to run it again."


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as the manifest says; ``expected`` is empty where it says nothing about it."""

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

    def fault(self, path: Path, message: str, expected: str = "", actual: str = "", advice: str = _RESTORE) -> None:
        """One problem more."""
        self.problems.append(Problem(path, message, expected, actual, advice))

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
            Problem(Path(named(str(it.path))), named(it.message), it.expected, it.found, named(it.advice))
            for it in self.problems
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
        outcome.fault(folder / MANIFEST, error.message, advice=error.advice)
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
        file = tables.get(metric)
        if file is None or file.name not in manifest.files:
            outcome.fault(folder, f"there is no CSV of the metric {metric}.", "one file", "none")
        elif file.name not in damaged:  # named with both hashes already; what it holds now says nothing
            _check_metric(file, metric, manifest, outcome)
    if TELEMETRY in manifest.files and TELEMETRY not in damaged:
        _check_telemetry(folder / TELEMETRY, outcome)
    if outcome.ok:
        try:
            _check_tables(folder, manifest, outcome)
            _check_quality(folder, manifest, outcome)
        except HarnessError as error:
            outcome.fault(folder, error.message, advice=error.advice or _RESTORE)
    return outcome


def _check_manifest(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    path = folder / MANIFEST
    digest = content_digest(read_object(path))
    if manifest.digest != digest:
        message = "the manifest was changed after it was written."
        outcome.fault(path, message, f"digest {manifest.digest or 'none'}", f"digest {digest}")
    if folder.name != manifest.experiment_id:
        advice = f"Rename the folder to {manifest.experiment_id}."
        message = "the folder has another name than its experiment."
        outcome.fault(folder, message, manifest.experiment_id, folder.name, advice)
    left_out = manifest.condensed.recorded if manifest.condensed else ()
    for name in (WIDE, SAMPLES):
        if name not in manifest.files and name not in left_out:
            outcome.fault(path, f"the manifest lists no {name}.", name, "none")


def check_hash(
    folder: Path, name: str, sha256: str, outcome: Verification, *, size: int | None = None, advice: str = _RESTORE
) -> bool:
    """Whether the file ``name`` below ``folder`` is there as it was written; else one problem more.

    ``size`` is its length in bytes, where that is known: a file of another length is not read.
    """
    path = folder / name
    expected = f"sha256 {sha256}" + ("" if size is None else f", {size} bytes")
    try:
        actual_size = inside(folder, name).stat().st_size
        actual = sha256_of(path) if size in {None, actual_size} else "not computed"
    except ResultsPathError as error:
        outcome.fault(path, error.message, advice=advice)
    except FileNotFoundError:
        outcome.fault(path, "the file is missing.", expected, "no file", advice)
    except OSError as error:
        advice = "Check its rights and the disk (dmesg)."
        outcome.fault(path, f"the file cannot be read: {error.strerror}.", advice=advice)
    else:
        if actual == sha256:
            return True
        message = "the file was changed after it was written."
        outcome.fault(path, message, expected, f"sha256 {actual}, {actual_size} bytes", advice)
    return False


def _note_strangers(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    # Not of Paths, of which there are many and seldom a stranger.
    known = {os.path.join(folder, name) for name in (*manifest.files, MANIFEST)}  # noqa: PTH118
    actual = {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}  # noqa: PTH118
    outcome.notes += [
        f"{path} is not part of the experiment; it was put there later."
        for path in sorted(map(Path, actual - known))
        if path.is_file()
    ]


def _check_metric(path: Path, metric: str, manifest: Manifest, outcome: Verification) -> None:
    """One row of every series at every time of the grid, each finite or empty."""
    step_s = manifest.experiment.timing.step_s
    counts: defaultdict[str, int] = defaultdict(int)
    try:
        for series, time_s, value, _ in read_cells(path, metric):
            row = counts[series]
            expected_s = manifest.start_s + row * step_s
            if abs(time_s - expected_s) > _GRID_TOLERANCE_S:
                outcome.fault(
                    path, f"row {row} of series {series} is off the grid.", f"{expected_s:.3f}", f"{time_s:.3f}"
                )
                return
            if value is not None and not math.isfinite(value):
                outcome.fault(path, f"row {row} of series {series} is not a number.", "a finite value", repr(value))
                return
            counts[series] = row + 1
    except ResultsPathError as error:
        outcome.fault(path, error.message)
        return
    wrong = {series: count for series, count in counts.items() if count != manifest.rows}
    if wrong or not counts:
        actual = ", ".join(f"{series}: {count}" for series, count in wrong.items()) or "no rows"
        message = "the number of rows is not that of the recording."
        outcome.fault(path, message, f"{manifest.rows} rows each", actual)


def _check_telemetry(path: Path, outcome: Verification) -> None:
    """One table with a time and the host's CPU in every line, and nothing but numbers beside the time."""
    import pyarrow as pa  # a tenth of a second, which a command that reads no table does not need
    from pyarrow import csv, types

    try:
        with storage_errors(path, "read"):
            table = csv.read_csv(path)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        outcome.fault(path, f"it is not a table: {str(error).splitlines()[0][:200]}")
        return
    odd = [name for name in ("timestamp", "host_cpu_percent") if name not in table.column_names]
    if odd:
        outcome.fault(path, "a column is missing.", odd[0], "none")
        return
    for column in table.schema:
        kind, is_time = column.type, column.name == "timestamp"
        is_number = types.is_integer(kind) or types.is_floating(kind)
        if not (types.is_timestamp(kind) if is_time else is_number) and not types.is_null(kind):
            expected = "a time in every line" if is_time else "a number or nothing in every line"
            outcome.fault(path, f"the column {column.name[:60]!r} is odd.", expected, "something else")
            return


def _check_tables(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    """The tables that were made of the metric CSVs still say what those say."""
    grid = Grid(manifest.start_s, manifest.experiment.timing.step_s, manifest.rows)
    rows = wide_rows(folder, grid, manifest.provenance.host.cpus)
    wide = folder / WIDE
    with storage_errors(wide, "read"), wide.open(encoding="utf-8", errors="replace") as stream:
        lines = (",".join(row) for row in itertools.chain([WIDE_COLUMNS], rows))
        for number, (actual, line) in enumerate(itertools.zip_longest(stream, lines), start=1):
            if actual is None or line is None or actual.rstrip("\n") != line:
                message = f"line {number} is not what the metric CSVs say."
                outcome.fault(wide, message, line or "no line", (actual or "no line").strip()[:200])
                break
    if SAMPLES in manifest.files and (metric := differing_samples(folder, folder / SAMPLES)):
        outcome.fault(folder / SAMPLES, f"the values of {metric} are not those of its CSV.")


def judge_experiment(
    folder: Path, experiment: ExperimentSpec, *, rows: int, start_s: float, late_s: float
) -> list[Finding]:
    """Judge the data of an attempt, or of what it became, by what its experiment asks for; ``late_s``: how late a row was read at most."""
    workload, timing = experiment.workload, experiment.timing
    return judge(
        folder,
        rows=rows,
        logged=partial(requests_between_readings, folder, start_s=start_s, step_s=timing.step_s, late_s=late_s),
        open_loop=workload.open_loop,
        in_flight=workload.in_flight,
        rate_window_s=timing.window_s,
        waiting=waiting(experiment.condition),
    )


def _check_quality(folder: Path, manifest: Manifest, outcome: Verification) -> None:
    """Judge the data again: a verdict better than the data deserve is a problem, anything else new a note."""
    # Without a code: of a version that kept none.
    known = {(finding.get("code"), finding.get("metric")) for finding in manifest.findings}
    findings = judge_experiment(
        folder,
        manifest.experiment,
        rows=manifest.rows,
        start_s=manifest.start_s,
        late_s=manifest.answered_within_s,
    )
    for finding in findings:
        if finding.severity is Severity.INVALID and manifest.verdict.status is not Status.INVALID:
            actual, advice = f"verdict {manifest.verdict.status.value}", finding.advice or "Do not use this experiment."
            outcome.fault(folder, finding.message, "data fit to be used", actual, advice)
        elif finding.severity is Severity.DEGRADED and not known & {
            (code, finding.metric) for code in (finding.code, None)
        }:
            outcome.notes.append(f"{folder.name}: {finding.message}")
