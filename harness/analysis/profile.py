"""A profile analysed: every cell's figures over its repeats, what holds it back, and how far the batch goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import bottleneck
from harness.analysis.bottleneck import Finding
from harness.analysis.format import number, quantity, with_interval
from harness.analysis.statistics import Estimate, t_interval
from harness.results.profile import COLUMNS, Outcome, Point, ProfileManifest, read_manifest
from harness.spec.profile import ProfileCell


@dataclass(frozen=True, slots=True)
class CellProfile:
    """One setting.

    Attributes:
        cell: what ran.
        points: one a repeat.
        estimates: by figure; what no repeat measured is not there.
        missing: reasons, by figure.
        finding: what holds it back; None: it was not measured.
    """

    cell: ProfileCell
    points: Sequence[Point]
    estimates: Mapping[str, Estimate]
    missing: Mapping[str, str]
    finding: Finding | None

    @property
    def held_back(self) -> str:
        """What holds it back in one sentence, or how it ended without a figure."""
        return self.finding.sentence if self.finding else f"{self.points[0].outcome.value}."

    @property
    def failure(self) -> str:
        """Why a repeat was not measured; empty when all were."""
        failed = next((point for point in self.points if point.outcome is not Outcome.MEASURED), None)
        return f"{failed.outcome.value}: {failed.message}" if failed else ""

    def mean(self, figure: str) -> float | None:
        """Over the repeats."""
        estimate = self.estimates.get(figure)
        return None if estimate is None else estimate.mean


@dataclass(frozen=True, slots=True)
class ProfileAnalysis:
    """The whole profile."""

    folder: Path
    manifest: ProfileManifest
    cells: Sequence[CellProfile]

    @property
    def measured(self) -> list[CellProfile]:
        """Cells with figures."""
        return [cell for cell in self.cells if cell.estimates]

    def series(self) -> dict[str, list[CellProfile]]:
        """Measured cells that differ in the batch alone, ascending."""
        found: dict[str, list[CellProfile]] = {}
        for cell in sorted(self.measured, key=lambda each: each.cell.batch_size):
            found.setdefault(cell.cell.series, []).append(cell)
        return found

    def answers(self) -> list[str]:
        """What a reader wants to know first: the fastest setting, what holds it back, and how far the batch goes."""
        told = [f"{curve.series}: {curve.sentence}" for curve in self.manifest.curves]
        if not self.measured:
            return ["Nothing could be measured.", *told]
        best = max(self.measured, key=lambda each: each.estimates["throughput_inputs_per_s"].mean)
        rate = with_interval(best.estimates["throughput_inputs_per_s"], "inputs/s")
        latency = quantity(best.estimates["latency_mean_s"].mean, "s")
        sentences = [f"The fastest setting is {best.cell.name}: {rate}, {latency} per request."]
        if best.finding is not None:
            why = best.finding.sentence[:1].lower() + best.finding.sentence[1:]
            sentences.append(" ".join((f"At this setting: {why}", *best.finding.evidence, *best.finding.following)))
        sentences += told
        learnt = [each for each in self.measured if "accuracy" in each.estimates]
        if learnt:
            top = max(learnt, key=lambda each: each.estimates["accuracy"].mean)
            loss = top.mean("loss")
            more = "" if loss is None else f", loss {number(loss)}"
            sentences.append(f"The best accuracy is {top.estimates['accuracy'].mean:.1%}{more}, of {top.cell.name}.")
        return [sentence.strip() for sentence in sentences]


def analyse_profile(folder: Path) -> ProfileAnalysis:
    """Read and judge a finished profile. Raises ResultsPathError."""
    manifest = read_manifest(folder)
    cells: dict[str, list[Point]] = {}
    for point in sorted(manifest.points, key=lambda each: (each.cell.series, each.cell.batch_size, each.repeat)):
        cells.setdefault(point.cell.name, []).append(point)
    return ProfileAnalysis(folder, manifest, [_cell(points) for points in cells.values()])


def _cell(points: Sequence[Point]) -> CellProfile:
    measured = [point for point in points if point.outcome is Outcome.MEASURED]
    estimates = {
        name: t_interval(values)
        for name in COLUMNS
        if (values := [point.figures[name] for point in measured if name in point.figures])
    }
    missing = {name: reason for point in measured for name, reason in point.missing.items() if name not in estimates}
    means = {name: estimate.mean for name, estimate in estimates.items()}
    finding = bottleneck.find(means, missing) if measured else None
    return CellProfile(points[0].cell, points, estimates, missing, finding)
