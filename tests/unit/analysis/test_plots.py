"""Plots are data: what a page tells is what was measured, and page and file draw the same."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from harness.analysis.campaign import analyse
from harness.analysis.pages.curves import overview, scaling, timeline
from harness.analysis.pages.plot import Panel, Picture, PlotSeries, ReferenceLine, linear_ticks, log_ticks, png, thinned
from harness.analysis.pages.svg import chart, document
from harness.analysis.report import report_of, write_plots
from harness.results.layout import metric_files
from harness.results.manifest import Manifest, Status
from harness.results.writers import finalise
from harness.spec import Sharing
from tests.unit.results.synthetic import (
    METRICS,
    START_S,
    Shape,
    experiment_spec,
    manifest_for,
    write_attempt,
    write_campaign,
    write_experiment,
)

SHAPE = Shape(record_s=10)
SVG = "{http://www.w3.org/2000/svg}"


def truncated(folder: Path, rows: int) -> Manifest:
    """An INVALID experiment whose recording was stopped after ``rows`` rows."""
    shape = Shape(record_s=10, status=Status.INVALID)
    spec = experiment_spec("resnet50", 1, 1, shape)
    attempt = folder / "attempts" / "one"
    manifest = write_attempt(attempt, spec, shape, START_S)
    for file in metric_files(attempt).values():
        lines = file.read_text().splitlines()
        series = len({line.split(",")[2] for line in lines[1:]})
        file.write_text("\n".join(lines[: 1 + rows * series]) + "\n")
    manifest = manifest.model_copy(update={"rows": rows})
    finalise(attempt, folder / spec.experiment_id, manifest)
    return manifest


def test_one_workload_has_no_overview_and_two_have(tmp_path: Path) -> None:
    assert overview(analyse(write_campaign(tmp_path / "one", replicas=[1, 3], repeats=1, shape=SHAPE))) is None
    workloads = ["resnet50", "distilbert"]
    both = analyse(write_campaign(tmp_path / "two", workloads=workloads, replicas=[1, 3], repeats=1, shape=SHAPE))
    picture = overview(both)
    assert "resnet50: 1 at 1, " in picture.alt
    assert {key.name.rpartition(": ")[2] for key in chart(picture).keys} == {"ideal", *workloads}


def test_several_modes_are_told_apart_by_colour_and_their_percentiles_by_dashes(tmp_path: Path) -> None:
    for sharing in (Sharing.TIME_SLICING, Sharing.MPS):
        for replicas in (1, 3):
            write_experiment(tmp_path, "resnet50", replicas, shape=replace(SHAPE, sharing=sharing))
    picture = scaling(analyse(tmp_path), "resnet50")
    assert {key.name for key in chart(picture).keys} == {"ideal", "time-slicing", "mps"}
    lines = [series for series in picture.panels[1].series if not series.runs]
    assert {(line.name, line.dashes) for line in lines} == {
        (name, dashes) for name in ("time-slicing", "mps") for dashes in (":", "--", "-")
    }


def test_what_a_chart_tells_is_what_was_measured(tmp_path: Path) -> None:
    analysis = analyse(write_campaign(tmp_path / "c", replicas=[1, 3], repeats=3, shape=replace(SHAPE, noise=0.05)))
    picture = scaling(analysis, "resnet50")
    assert picture is not None
    drawn = chart(picture)
    assert drawn == chart(picture)
    panels = {panel["title"]: panel for panel in json.loads(drawn.data)}
    ideal, means, runs = panels["Throughput (requests/s)"]["series"]
    estimates = [cell.estimates["throughput"] for cell in analysis.cells]
    assert means["x"] == ideal["x"] == [1, 3]
    for name, key in (("mean", "y"), ("low", "low"), ("high", "high")):
        assert means[key] == pytest.approx([getattr(each, name) for each in estimates], rel=1e-5)
    assert runs["y"] == pytest.approx([value for cell in analysis.cells for value in cell.figures("throughput")])
    assert [len(series["x"]) for series in panels["Efficiency (% of ideal)"]["series"] if series.get("run")] == [6]


def test_two_restless_runs_flatten_no_panel_and_reach_below_nothing(tmp_path: Path) -> None:
    for repeat, scale in ((1, 1.0), (2, 0.2)):
        for replicas in (1, 3):
            write_experiment(tmp_path, "resnet50", replicas, repeat, replace(SHAPE, scale=scale))
    analysis = analyse(tmp_path)
    picture = scaling(analysis, "resnet50")
    throughput, _, efficiency, *_ = picture.panels
    assert (analysis.cells[1].estimates["efficiency"].high or 0) > 10
    assert efficiency.y_axis()[0] == 0
    assert efficiency.y_axis()[1] < 400
    assert min(low for series in throughput.series for low in series.low) == 0


PANELS = (
    Panel(
        title="a < b",
        series=[PlotSeries(x=[1, 2], y=[1, 2], low=[0.5, 1], high=[2, 90], name="one & two", markers=True)],
    ),
    Panel(title="far", series=[PlotSeries(x=[1, 64], y=[3, 900], colour=1)], logarithmic=True, doubling=True),
    Panel(title="bars", series=[PlotSeries(x=[-1, 3], y=[0, 1], low=[-2, 2], high=[0, 4], labels=["less", "more"])]),
    Panel(
        title="gaps",
        series=[PlotSeries(x=[0, 1, 2, 3], y=[1, math.nan, 2, 3])],
        rules=[ReferenceLine(2, "limit"), ReferenceLine(1, vertical=True)],
    ),
    Panel(title="nothing", absent="no GPU was there"),
)
PICTURE = Picture("all", "All kinds", PANELS, 2, (240, 200), png=True)


def test_every_kind_of_panel_is_drawn_for_a_page_and_as_files() -> None:
    drawn = chart(PICTURE)
    page = ET.fromstring(drawn.drawing)  # noqa: S314 - ours
    assert len(page.findall("div/svg")) == len(PANELS)
    whole = ET.fromstring(document(PICTURE))  # noqa: S314 - ours
    texts = [text.text for text in whole.iter(f"{SVG}text")]
    assert {"a < b", "less", "not measured: no GPU was there", "a < b: one & two", "gaps: limit"} <= set(texts)
    image = Image.open(io.BytesIO(png(PICTURE)))
    assert image.width == 2 * 240 / 72 * 150
    assert len(image.convert("RGB").getcolors(1_000_000) or []) > 10


def test_hover_values_lie_where_they_are_drawn_and_a_cut_interval_has_an_arrow() -> None:
    first, far, bars, gaps, nothing = json.loads(chart(PICTURE).data)
    assert first["y"][1] == pytest.approx(4.4)
    assert first["series"][0]["high"] == [2, 90]
    assert "h6l-3 -4z" in chart(PICTURE).drawing
    assert (far["x"][4], far["y"][4]) == (1, 1)
    assert bars["series"][0]["worth"] == [-1, 3]
    assert bars["series"][0]["of"] == ["less", "more"]
    assert gaps["series"][0]["y"] == [1, None, 2, 3]
    assert nothing["series"] == []


def test_a_long_line_keeps_its_extremes_and_its_nothing() -> None:
    values = np.sin(np.arange(5000.0))
    values[1234], values[3000:3500] = 7.0, np.nan
    series = thinned(PlotSeries(x=np.arange(5000.0).tolist(), y=values.tolist(), name="p99"))
    assert len(series.x) <= 240
    assert series.x[list(series.y).index(7.0)] == 1234
    assert np.nanmin(series.y) == np.nanmin(values)
    assert np.isnan(series.y).any()


@pytest.mark.parametrize(("low", "high"), [(0, 1.1), (0, 2700), (0.5, 9.9), (1e-6, 3e-6), (0, 1e9)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= high * (1 + 1e-9) for tick in ticks)
    assert len(log_ticks(low or high / 50, high)) >= 2


def test_without_matplotlib_every_plot_is_an_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_plots(tmp_path, [PICTURE]) == {"all": "all.png"}
    monkeypatch.setattr("harness.analysis.report.missing", lambda *_names: ["matplotlib"])
    assert write_plots(tmp_path, [PICTURE]) == {"all": "all.svg"}
    assert [path.name for path in tmp_path.iterdir()] == ["all.svg"]


def test_no_usable_run_has_no_curve(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, shape=Shape(record_s=10, status=Status.INVALID))
    assert scaling(analyse(tmp_path), "resnet50") is None


@pytest.mark.parametrize("gpu", [True, False])
def test_a_timeline_has_its_panels_with_and_without_a_gpu(tmp_path: Path, gpu: bool) -> None:
    write_experiment(tmp_path, "resnet50", 3, shape=Shape(record_s=10, gpu=gpu))
    picture = timeline(analyse(tmp_path).experiments[0])
    titles = [panel.title for panel in picture.panels]
    assert ("GPU power (W)" in titles, "Pressure (% of time stalled)" in titles) == (gpu, not gpu)
    assert not [panel.absent for panel in picture.panels if panel.absent]
    named = {series.name: series.colour for panel in picture.panels for series in panel.series if series.name}
    assert {"p50", "p99", "all", "each replica"} <= named.keys()
    assert len(set(named.values())) == len(named)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_recording_stopped_after_a_row_or_two_is_reported(tmp_path: Path, rows: int) -> None:
    truncated(tmp_path, rows)
    page = report_of(analyse(tmp_path)).read_text()
    assert "INVALID" in page
    assert "nan" not in (tmp_path / "summary.csv").read_text()


def test_an_experiment_that_recorded_nothing_is_reported(tmp_path: Path) -> None:
    shape = Shape(record_s=10, status=Status.INVALID)
    spec = experiment_spec("resnet50", 1, 1, shape)
    reasons = dict.fromkeys(METRICS, "not recorded: deploy: the replica died")
    manifest = manifest_for(spec, shape, START_S).model_copy(update={"absent_metrics": reasons, "replicas": []})
    (tmp_path / "attempt").mkdir()
    finalise(tmp_path / "attempt", tmp_path / spec.experiment_id, manifest)
    page = report_of(analyse(tmp_path)).read_text()
    assert "the replica died" in page
    assert "no experiment can be used" in page.lower()
