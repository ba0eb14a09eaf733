"""Sharing modes at the same load: tokens per second of a GPU against those of a user, and the configurations that no other beats.

The axes are MLPerf Endpoints': output tokens per second of each GPU, and 1000 / p90 of the time per output token in milliseconds. At
the same load per GPU (``sweep: {concurrency: [...], per: gpu}``) modes and replica counts are compared with one replica alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.campaign import CampaignAnalysis, Cell
from harness.analysis.contrasts.contrast import Contrast, Contrasts
from harness.analysis.format import DASH, replicas_in_words
from harness.analysis.pages.plot import Panel, Picture, PlotSeries, interval_series
from harness.analysis.pages.table import Column, Entry, Table, figure_entry, ratio_entry
from harness.analysis.statistics import Estimate
from harness.sharing.modes import mode_of
from harness.spec.sweep import Per

PER_GPU, PER_USER = "output_tokens_per_gpu", "tokens_per_user"


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """What a sweep of one workload measured, of one condition: its configurations by load, then as the campaign lists them."""

    title: str
    cells: Sequence[Cell]
    contrasts: Contrasts

    @property
    def modes(self) -> list[str]:
        """The sharing modes, with limits of MPS."""
        return list(dict.fromkeys(cell.mode for cell in self.cells))

    def front(self, mode: str, replicas: int | None = None) -> list[Cell]:
        """Those of a mode, with so many replicas (None: any), that no other of them beats on both axes; the most tokens per user first."""
        front: list[Cell] = []
        known = self._known(mode, replicas)
        for cell in sorted(known, key=lambda cell: (_mean(cell, PER_USER), _mean(cell, PER_GPU)), reverse=True):
            if not front or _mean(cell, PER_GPU) > _mean(front[-1], PER_GPU):
                front.append(cell)
        return front

    def _known(self, mode: str, replicas: int | None) -> list[Cell]:
        of_mode = [cell for cell in self.cells if cell.mode == mode and _known(cell)]
        return [cell for cell in of_mode if replicas in (None, cell.replicas)]

    def baseline(self, cell: Cell) -> Cell | None:
        """What a configuration is held against under the same load; None for that one itself.

        At the same load per GPU the fewest replicas, of a mode with a GPU of their own where there is one; else as many replicas under
        the first mode.
        """
        alike = [other for other in self.cells if other.workload == cell.workload and other.used]
        if cell.load and cell.load.per is Per.GPU:
            alike.sort(key=lambda other: (other.replicas, not mode_of(other.sharing).own_gpu))
        else:
            alike = [other for other in alike if other.replicas == cell.replicas]
        return alike[0] if alike and alike[0] is not cell else None

    def against_baseline(self, cell: Cell) -> Contrast | None:
        """Tokens per GPU against those of the baseline; None where one of them has none."""
        baseline = self.baseline(cell)
        return self.contrasts.of(baseline, cell, PER_GPU) if baseline else None

    def table(self) -> Table:
        """Every configuration with both figures and what the mode costs at that load."""
        fronts = [cell for mode in self.modes for cell in self.front(mode)]
        columns = [
            Column("Load", "load"),
            Column("Replicas", "replicas"),
            Column("Sharing", "sharing", words=True),
            Column("Tokens/s per GPU", PER_GPU),
            Column("Tokens/s per user", PER_USER),
            Column("Of the baseline", "ratio"),
            Column("Against", "baseline", words=True),
            Column("Answer", "answer", words=True),
            Column("On the front", "front", words=True),
        ]
        rows = [[*self._row(cell), "yes" if any(cell is other for other in fronts) else ""] for cell in self.cells]
        unit = next((cell.load.unit for cell in self.cells if cell.load), "")
        return Table(columns, rows, f"{self.title}: load in {unit}")

    def _row(self, cell: Cell) -> list[object]:
        baseline, contrast = self.baseline(cell), self.against_baseline(cell)
        figures = [_entry(cell, name) for name in (PER_GPU, PER_USER)]
        ratio = ratio_entry(contrast.ratio) if contrast else Entry(DASH)
        against = f"{baseline.mode}, {baseline.replicas}" if baseline else ""
        load = f"{cell.load.value:g}" if cell.load else ""
        return [load, cell.replicas, cell.mode, *figures, ratio, against, contrast.sentence if contrast else ""]

    def picture(self) -> Picture | None:
        """The front of each mode and number of replicas with its intervals, and every configuration as a dot; None without streams."""
        series: list[PlotSeries] = []
        ways = dict.fromkeys((cell.mode, cell.replicas) for cell in self.cells if _known(cell))
        for colour, (mode, replicas) in enumerate(ways):
            front, known = self.front(mode, replicas), self._known(mode, replicas)
            name = f"{mode}, {replicas_in_words(replicas)}"
            line = interval_series(
                _means(front, PER_USER), [cell.estimates[PER_GPU] for cell in front], 1.0, colour, name
            )
            dots = PlotSeries(x=_means(known, PER_USER), y=_means(known, PER_GPU), name=name, colour=colour, runs=True)
            series += [line, dots]
        if not series:
            return None
        panel = Panel(
            title="Output tokens/s per GPU",
            x_label="tokens/s per user (1000 / p90 of ms per token)",
            series=series,
            x_range=(0.0, 1.05 * max(x for points in series for x in points.x)),
        )
        readable = "".join(sign if sign.isalnum() else "-" for sign in self.title)
        title = f"{self.title}: what a GPU serves against what a user gets"
        return Picture(f"pareto-{readable}", title, [panel], 1, (560, 300), png=True)


def load_sweeps(analysis: CampaignAnalysis) -> list[LoadSweep]:
    """Those of workloads whose answers are streams; none where the campaign sweeps no load."""
    contrasts = Contrasts([analysis])
    groups: dict[str, list[Cell]] = {}
    for cell in analysis.cells:
        if cell.load and _estimated(cell):
            family = cell.experiments[0].data.manifest.experiment.workload.family
            groups.setdefault(", ".join(filter(None, [family, cell.condition])), []).append(cell)
    for cells in groups.values():
        cells.sort(key=lambda cell: cell.load.value if cell.load else 0.0)
    return [LoadSweep(title, cells, contrasts) for title, cells in groups.items()]


def _estimated(cell: Cell) -> bool:
    return any(name in cell.estimates for name in (PER_GPU, PER_USER))


def _known(cell: Cell) -> bool:
    return all(name in cell.estimates for name in (PER_GPU, PER_USER))


def _mean(cell: Cell, name: str) -> float:
    return cell.estimates[name].mean


def _means(cells: Sequence[Cell], name: str) -> list[float]:
    return [_mean(cell, name) for cell in cells]


def _entry(cell: Cell, name: str) -> Entry:
    estimate: Estimate | None = cell.estimates.get(name)
    return figure_entry(estimate, "", cell.absent.get(name, "not measured"))
