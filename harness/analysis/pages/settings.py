"""The pictures of what is varied: a workload's settings; and the page of an old profile."""

from __future__ import annotations

import json
from pathlib import Path

from harness import __version__
from harness.analysis.axes import BATCH, Family, family_of_old
from harness.analysis.bottleneck import Cause
from harness.analysis.pages.plot import Panel, Picture, PlotSeries, ReferenceLine, interval_series
from harness.results.files import atomic_write, sha256_of, storage_errors
from harness.results.layout import REPORT_HTML, REPORT_SUMS, SUMMARY_JSON
from harness.results.old_profile import OldProfile

_MEMORY = "gpu_memory_peak_percent"
_PANELS = (
    ("inputs", 1.0, "Throughput (inputs/s)"),
    ("latency_mean", 1e3, "Mean latency of a request (ms)"),
    (_MEMORY, 1.0, "Peak GPU memory (%)"),
)
LIMIT_PERCENT = 85.0
_MOST_BARS = 24


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
    panels = [_panel(family, name, scale, title) for name, scale, title in _PANELS]
    alt = ", ".join(f"{each.name} {each.estimates['inputs'].mean:.4g} inputs/s" for each in family.measured)
    title = f"{family.title}: speed and memory against the batch size"
    return Picture(_file(family, "batch"), title, alt, panels, 3, (280, 220), png=True)


def _panel(family: Family, name: str, scale: float, title: str) -> Panel:
    series = []
    for index, (label, variants) in enumerate(family.curves().items()):
        known = [(variant.values[BATCH], variant.estimates[name]) for variant in variants if name in variant.estimates]
        if known:
            sizes = [float(size) for size, _ in known]
            series.append(interval_series(sizes, [each for _, each in known], scale, index, label))
    if not series:
        reasons = [variant.missing.get(name, "") for variant in family.measured]
        return Panel(title=title, absent=next(filter(None, reasons), "not measured"))
    rules = [ReferenceLine(LIMIT_PERCENT, f"{LIMIT_PERCENT:g} %", dashes="--")] if name == _MEMORY else []
    return Panel(title=title, x_label="batch size", series=series, rules=rules, doubling=True)


def _where_time_goes(family: Family) -> Picture | None:
    """The share of the time that each cause explains, one bar a setting; None where no metric says."""
    variants = [each for each in family.measured if each.finding and any(each.finding.shares.values())][:_MOST_BARS]
    if not variants:
        return None
    labels = [variant.name for variant in variants]
    places = [float(place) for place in range(len(variants))]
    starts, series = [0.0] * len(variants), []
    for colour, cause in enumerate(Cause):
        shares = [100 * ((each.finding.shares[cause] or 0.0) if each.finding else 0.0) for each in variants]
        ends = [start + share for start, share in zip(starts, shares, strict=True)]
        series.append(PlotSeries(x=ends, y=places, name=cause.value, colour=colour, starts=starts, labels=labels))
        starts = ends
    alt = "; ".join(f"{variant.name}: {variant.held_back}" for variant in variants)
    panel = Panel(title="Share of the time that each cause explains (%)", series=series, x_range=(0, 100))
    title = f"{family.title}: where the time goes; what is left empty is not explained"
    size = (640.0, 28.0 * len(variants) + 60)
    return Picture(_file(family, "time"), title, alt, [panel], 1, size, png=True)


def write_old_report(profile: OldProfile, out: Path | None = None) -> Path:
    """Write the report of a profile that an earlier version measured; one that is there already is replaced. Raises StorageError."""
    from harness.analysis.report import PLOTS, REPORT_MD, environment, write_plots  # which draws these pictures, too

    out, family = out or profile.folder, family_of_old(profile)
    with storage_errors(out / REPORT_SUMS):
        (out / PLOTS).mkdir(parents=True, exist_ok=True)
        (out / REPORT_SUMS).unlink(missing_ok=True)  # Killed from here on, the report is one that was not finished.
    drawn = pictures(family)
    plots = write_plots(out / PLOTS, drawn)
    content = {
        "profile": profile,
        "families": [family],
        "family_pictures": {family.title: drawn},
        "files": plots,
        "version": __version__,
    }
    templates = environment()
    files: dict[str, bytes | str] = {
        REPORT_HTML: templates.get_template("old_profile.html.j2").render(content),
        REPORT_MD: templates.get_template("old_profile.md.j2").render(content),
        SUMMARY_JSON: json.dumps(family.to_dict(), indent=1) + "\n",
    }
    for name, data in files.items():
        atomic_write(out / name, data, replace=True)
    with storage_errors(out, "read"):
        names = [*files, *(f"{PLOTS}/{file}" for file in plots.values())]
        sums = "".join(f"{sha256_of(out / name)}  {name}\n" for name in names)
    atomic_write(out / REPORT_SUMS, sums, replace=True)
    return out / REPORT_HTML
