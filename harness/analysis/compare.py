"""Two campaigns held against each other, cell by cell, without reading more into it than there is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.analysis.campaign import CampaignAnalysis, Cell, Key, analyse
from harness.analysis.statistics import Difference, difference, holm

COMPARED = ("throughput", "latency_p50", "latency_p95", "latency_p99", "energy")


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one cell in both campaigns."""

    key: Key
    measure: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """Campaign b against campaign a.

    Attributes:
        a: name of the first campaign.
        b: name of the second.
        lines: one per cell and measure that both have; p-values are corrected for all of them together (Holm).
        only_a: cells that only a has usable runs of.
        only_b: likewise for b.
        settings: what else differs between the two (GPU, driver, precision...), one sentence each.
    """

    a: str
    b: str
    lines: list[Line]
    only_a: list[Key] = field(default_factory=list)
    only_b: list[Key] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)


def compare(a: Path, b: Path) -> Comparison:
    """Compare two campaign folders.

    Raises:
        ResultsPathError: one of them is no campaign.
        StorageError: a file cannot be read.
    """
    first, second = analyse(a), analyse(b)
    cells_a, cells_b = _usable(first), _usable(second)
    lines = [
        Line(key, name, difference(cells_a[key].figures(name), cells_b[key].figures(name)))
        for key in cells_a
        if key in cells_b
        for name in COMPARED
        if cells_a[key].figures(name) and cells_b[key].figures(name)
    ]
    return Comparison(
        a=first.name,
        b=second.name,
        lines=_corrected(lines),
        only_a=[key for key in cells_a if key not in cells_b],
        only_b=[key for key in cells_b if key not in cells_a],
        settings=_settings_that_differ(first, second),
    )


def _usable(analysis: CampaignAnalysis) -> dict[Key, Cell]:
    return {cell.key: cell for cell in analysis.cells if cell.used}


def _corrected(lines: list[Line]) -> list[Line]:
    tested = [index for index, line in enumerate(lines) if line.difference.welch_p is not None]
    adjusted = holm([lines[index].difference.welch_p or 0.0 for index in tested])
    for index, p in zip(tested, adjusted, strict=True):
        lines[index] = replace(lines[index], difference=replace(lines[index].difference, adjusted_p=p))
    return lines


def _settings_that_differ(a: CampaignAnalysis, b: CampaignAnalysis) -> list[str]:
    first, second = _settings(a), _settings(b)
    return [
        f"{name}: {first.get(name, 'none')} against {second.get(name, 'none')}."
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def _settings(analysis: CampaignAnalysis) -> dict[str, str]:
    """What should be the same on both sides, in words; several values are joined."""
    found: dict[str, set[str]] = {}
    for experiment in analysis.experiments:
        manifest = experiment.data.manifest
        facts = manifest.provenance
        settings = {
            "CPU": facts.host.cpu_model,
            "CPUs": str(facts.host.cpus),
            "kernel": facts.host.kernel,
            "GPU": ", ".join(gpu.name for gpu in facts.gpus) or "none",
            "GPU driver": ", ".join(sorted({gpu.driver or "unknown" for gpu in facts.gpus})) or "none",
            "Python": facts.software.python,
            "harness": facts.software.git_commit or facts.software.harness,
            **{f"package {name}": version for name, version in facts.software.packages.items()},
        }
        workload = manifest.experiment.workload
        for name in ("target", "batch_size", "precision", "execution", "device", "threads", "inference_sleep_s"):
            settings[f"{workload.name}'s {name}"] = str(getattr(workload, name))
        for name, value in settings.items():
            found.setdefault(name, set()).add(value)
    return {name: " and ".join(sorted(values)) for name, values in found.items()}
