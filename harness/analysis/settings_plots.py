"""The pictures of what is varied or raised: a workload's settings, a load until it breaks; and the page of an old profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from harness import __version__
from harness.analysis.axes import BATCH, Family, Variant, family_of_old
from harness.analysis.bottleneck import Cause
from harness.analysis.chart import FAINT, PALETTE
from harness.analysis.figure_style import (
    MARKERS,
    Picture,
    doubling,
    finished,
    from_zero,
    interval_curve,
    new_figure,
    say_absent,
    style,
)
from harness.analysis.stress import LoadPoint, StressSeries, in_words
from harness.results.files import atomic_write, sha256_of, storage_errors
from harness.results.layout import REPORT_HTML, REPORT_SUMS, SUMMARY_JSON
from harness.results.old_profile import OldProfile
from harness.spec import StressLoad, StressSpec

_MEMORY = "gpu_memory_peak_percent"
_PANELS = (
    ("inputs", 1.0, "Throughput (inputs/s)"),
    ("latency_mean", 1e3, "Mean latency of a request (ms)"),
    (_MEMORY, 1.0, "Peak GPU memory (%)"),
)
LIMIT_PERCENT = 85.0
_MOST_BARS = 24
_MS = 1e3
_LOADS = {StressLoad.REPLICAS: "replicas", StressLoad.RATE: "requests/s per replica", StressLoad.BATCH: "batch size"}
_BROKEN = PALETTE[1]


def pictures(family: Family) -> list[Picture]:
    """Those that there is something to draw for."""
    return [picture for picture in (_curves(family), _where_time_goes(family)) if picture is not None]


def _file(family: Family, what: str) -> str:
    readable = "".join(character if character.isalnum() else "-" for character in family.title)
    return f"{what}-{readable}"


def _curves(family: Family) -> Picture | None:
    """Throughput, latency and memory of every curve against the batch size; None where that is one."""
    if BATCH not in family.axes or not family.measured:
        return None
    with style():
        figure = new_figure(12, 3.8)
        for axes, (name, scale, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
            axes.set_title(title)
            if not _draw(axes, family, name, scale):
                reasons = [variant.missing.get(name, "") for variant in family.measured]
                say_absent(axes, next(filter(None, reasons), "not measured"))
                continue
            if name == _MEMORY:
                axes.axhline(LIMIT_PERCENT, color=FAINT, linestyle="--", label=f"{LIMIT_PERCENT:g} %")
            doubling(axes)
            axes.set_xlabel("batch size")
            from_zero(axes)
        figure.axes[0].legend(loc="best")
        figure.subplots_adjust(left=0.055, right=0.99, top=0.9, bottom=0.14, wspace=0.2)
        alt = ", ".join(f"{each.name} {each.estimates['inputs'].mean:.4g} inputs/s" for each in family.measured)
        title = f"{family.title}: speed and memory against the batch size"
        return finished(figure, _file(family, "batch"), title, alt)


def _draw(axes: Axes, family: Family, name: str, scale: float) -> bool:
    drawn = False
    for index, (label, variants) in enumerate(family.curves().items()):
        found = [(variant.values[BATCH], variant.estimates[name]) for variant in variants if name in variant.estimates]
        if found:
            drawn = True
            look = (PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)], "-")
            interval_curve(axes, [batch for batch, _ in found], [each for _, each in found], scale, look, label)
    return drawn


def _where_time_goes(family: Family) -> Picture | None:
    """The share of the time that each cause explains, one bar a setting; None where no metric says."""
    variants = [each for each in family.measured if each.finding and any(each.finding.shares.values())][:_MOST_BARS]
    if not variants:
        return None
    with style():
        figure = new_figure(10, 1.3 + 0.32 * len(variants))
        axes = figure.subplots()
        _stack(axes, variants)
        axes.set_title("Share of the time that each cause explains (%)")
        axes.set_xlim(0, 100)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=len(Cause))
        figure.tight_layout()
        alt = "; ".join(f"{variant.name}: {variant.held_back}" for variant in variants)
        title = f"{family.title}: where the time goes; what is left empty is not explained"
        return finished(figure, _file(family, "time"), title, alt)


def _stack(axes: Axes, variants: Sequence[Variant]) -> None:
    names = [variant.name for variant in variants]
    left = [0.0] * len(variants)
    for colour, cause in zip(PALETTE, Cause, strict=False):
        widths = [100 * ((each.finding.shares[cause] or 0.0) if each.finding else 0.0) for each in variants]
        axes.barh(names, widths, left=left, color=colour, label=cause.value, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]


def stress_curve(series: StressSeries, stress: StressSpec) -> Picture | None:
    """Throughput and limited percentiles (p99 without a limit) of every point; None before any has figures."""
    measured = [point for point in series.points if point.run.figures]
    if not measured:
        return None
    limits: dict[str, float | None] = {each.value: limit for each, limit in stress.latency_limit_ms.items()}
    with style():
        figure = new_figure(10, 3.7)
        left, right = figure.subplots(1, 2)
        _draw_points(left, measured, "throughput", 1.0, PALETTE[0], "throughput")
        left.set_title("Throughput (requests/s)")
        for index, (percentile, limit_ms) in enumerate((limits or {"p99": None}).items()):
            colour = PALETTE[2 + index]
            _draw_points(right, measured, f"latency_{percentile}_exact", _MS, colour, percentile)
            if limit_ms is not None:
                right.axhline(limit_ms, color=colour, linestyle=":", label=f"limit of {percentile}")
        right.set_title("Latency (ms)")
        for axes in (left, right):
            _mark(axes, series)
        figure.subplots_adjust(left=0.06, right=0.985, top=0.9, bottom=0.15, wspace=0.14)
        told = ", ".join(
            f"{in_words(point.load, series.unit)} {point.run.figures['throughput'].mean:.4g} requests/s ({point.grade})"
            for point in measured
        )
        name = f"stress-{series.name.replace(' under ', '-').replace(', ', '-').replace(' ', '-')}"
        return finished(figure, name, f"{series.name}: load until it breaks", f"{series.name}: {told}")


def _draw_points(axes: Axes, points: Sequence[LoadPoint], name: str, scale: float, colour: str, label: str) -> None:
    found = [(point, point.run.figures[name]) for point in points if point.run.figures[name].mean > 0]
    if not found:
        say_absent(axes, points[-1].run.figures[name].note)
        return
    loads = [point.load for point, _ in found]
    look = (colour, MARKERS[PALETTE.index(colour)], "-")
    interval_curve(axes, loads, [estimate for _, estimate in found], scale, look, label)


def _mark(axes: Axes, series: StressSeries) -> None:
    """The axis of the load, the last good point, and the broken one even where it has no figures."""
    doubling(axes)
    axes.set_xlabel(_LOADS[series.unit])
    if series.last_good is not None:
        axes.axvline(series.last_good.load, color=FAINT, linestyle="--", label="last good point")
    if series.broken is not None:
        axes.axvline(series.broken.load, color=_BROKEN, linestyle="--", label=f"breaks: {series.broken.failure_mode}")
    if axes.has_data():
        from_zero(axes)
    axes.legend(loc="best")


def write_old_report(profile: OldProfile, out: Path | None = None) -> Path:
    """Write the report of a profile that an earlier version measured; one that is there already is replaced. Raises StorageError."""
    from harness.analysis.report import PLOTS, REPORT_MD, environment  # which draws these pictures, too

    out, family = out or profile.folder, family_of_old(profile)
    with storage_errors(out / REPORT_SUMS):
        (out / PLOTS).mkdir(parents=True, exist_ok=True)
        (out / REPORT_SUMS).unlink(missing_ok=True)  # Killed from here on, the report is one that was not finished.
    drawn = pictures(family)
    content = {
        "profile": profile,
        "families": [family],
        "family_pictures": {family.title: drawn},
        "version": __version__,
    }
    templates = environment()
    files: dict[str, bytes | str] = {
        REPORT_HTML: templates.get_template("old_profile.html.j2").render(content),
        REPORT_MD: templates.get_template("old_profile.md.j2").render(content),
        SUMMARY_JSON: json.dumps(family.to_dict(), indent=1) + "\n",
        **{f"{PLOTS}/{picture.file}": picture.image for picture in drawn},
    }
    for name, data in files.items():
        atomic_write(out / name, data, replace=True)
    with storage_errors(out, "read"):
        sums = "".join(f"{sha256_of(out / name)}  {name}\n" for name in files)
    atomic_write(out / REPORT_SUMS, sums, replace=True)
    return out / REPORT_HTML
