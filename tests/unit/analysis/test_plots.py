from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from harness.analysis import figure_style
from harness.analysis.campaign import analyse
from harness.analysis.chart import chart
from harness.analysis.figure_style import new_figure
from harness.analysis.report import write_report
from harness.analysis.scaling_plots import overview, scaling
from harness.analysis.timeline_plots import timeline
from harness.results import Manifest, Status, finalise
from harness.results.layout import metric_files
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


def colours(png: bytes) -> int:
    image = Image.open(io.BytesIO(png))
    return len(image.convert("RGB").getcolors(1_000_000) or [])


def truncated(folder: Path, rows: int) -> Manifest:
    """An INVALID experiment whose recording was stopped after ``rows`` rows."""
    shape = Shape(record_s=10, status=Status.INVALID)
    spec = experiment_spec("resnet50", 1, 1, shape)
    attempt = folder / "attempts" / "one"
    manifest = write_attempt(attempt, spec, shape, START_S)
    for file in metric_files(attempt).values():
        lines = file.path.read_text().splitlines()
        series = len({line.split(",")[2] for line in lines[1:]})
        file.path.write_text("\n".join(lines[: 1 + rows * series]) + "\n")
    manifest = manifest.model_copy(update={"rows": rows})
    finalise(attempt, folder / spec.experiment_id, manifest)
    return manifest


def test_plots_are_drawn_without_touching_the_global_state(tmp_path: Path) -> None:
    before = plt.get_fignums(), plt.rcParams["font.size"]
    found = analyse(write_campaign(tmp_path / "c", replicas=[1, 3], repeats=1, shape=SHAPE))
    picture = scaling(found, "resnet50")
    assert picture is not None
    assert picture.file == "scaling-resnet50.png"
    assert colours(picture.image) > 10
    assert picture.chart.drawing.count("<svg viewBox") == len(json.loads(picture.chart.data))
    assert "1 replica 17" in picture.alt
    assert (plt.get_fignums(), plt.rcParams["font.size"]) == before


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", replicas=[1, 3], repeats=1, shape=SHAPE)
    first, second = scaling(analyse(folder), "resnet50"), scaling(analyse(folder), "resnet50")
    assert first == second


def test_one_workload_has_no_overview_and_two_have(tmp_path: Path) -> None:
    assert overview(analyse(write_campaign(tmp_path / "one", replicas=[1, 3], repeats=1, shape=SHAPE))) is None
    workloads = ["resnet50", "distilbert"]
    both = analyse(write_campaign(tmp_path / "two", workloads=workloads, replicas=[1, 3], repeats=1, shape=SHAPE))
    picture = overview(both)
    assert picture is not None
    assert "resnet50: 1 replica 1.00" in picture.alt
    assert "distilbert" in picture.alt


def test_several_modes_share_one_legend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sharing in (Sharing.TIME_SLICING, Sharing.MPS):
        for replicas in (1, 3):
            write_experiment(tmp_path, "resnet50", replicas, shape=replace(SHAPE, sharing=sharing))
    drawn: list[Figure] = []
    monkeypatch.setattr("harness.analysis.figure_style.to_png", lambda figure: drawn.append(figure) or b"")
    picture = scaling(analyse(tmp_path), "resnet50")
    (figure,) = drawn
    assert {key.name for key in picture.chart.keys} == {"ideal", "time-slicing", "mps"}
    assert ">mps<" not in picture.chart.drawing
    latency = figure.axes[1]
    assert [text.get_text() for text in latency.get_legend().get_texts()] == ["p50", "p95", "p99"]
    looks = {(line.get_color(), line.get_linestyle()) for line in latency.lines if line.get_linestyle() != "None"}
    assert len(looks) == 2 * 3


def test_a_palette_changes_no_colour_by_more_than_an_eye_may_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = []

    def compare(figure: Figure) -> bytes:
        whole = io.BytesIO()
        figure.savefig(whole, format="png", dpi=figure_style._DPI)
        pixels = in_a_palette(figure)
        drawn, kept = (np.asarray(Image.open(file).convert("RGB"), int) for file in (whole, io.BytesIO(pixels)))
        most.append(np.abs(drawn - kept).max())
        return pixels

    in_a_palette = figure_style.to_png
    monkeypatch.setattr(figure_style, "to_png", compare)
    scaling(analyse(write_campaign(tmp_path / "c", replicas=[1, 3])), "resnet50")

    assert most[0] <= 20


def test_what_a_chart_says_is_what_was_plotted(tmp_path: Path) -> None:
    found = analyse(write_campaign(tmp_path / "c", replicas=[1, 3], repeats=3, shape=replace(SHAPE, noise=0.05)))
    picture = scaling(found, "resnet50")
    panels = {panel["title"]: panel for panel in json.loads(picture.chart.data)}
    means, ideal, *runs = panels["Throughput (requests/s)"]["series"]
    estimates = [cell.estimates["throughput"] for cell in found.cells]
    assert means["x"] == ideal["x"] == [1, 3]
    for name, key in (("mean", "y"), ("low", "low"), ("high", "high")):
        assert means[key] == pytest.approx([getattr(each, name) for each in estimates], rel=1e-5)
    assert [sorted(run["y"]) for run in runs] == [pytest.approx(sorted(c.figures("throughput"))) for c in found.cells]
    efficiency = panels["Efficiency (% of ideal)"]["series"]
    assert [len(series["x"]) for series in efficiency if series.get("run")] == [3, 3]


def test_two_restless_runs_flatten_no_panel_and_reach_below_nothing(tmp_path: Path) -> None:
    for repeat, scale in ((1, 1.0), (2, 0.2)):
        for replicas in (1, 3):
            write_experiment(tmp_path, "resnet50", replicas, repeat, replace(SHAPE, scale=scale))
    found = analyse(tmp_path)
    picture = scaling(found, "resnet50")
    throughput, _, efficiency, *_ = json.loads(picture.chart.data)
    assert found.cells[1].efficiency.high > 10
    assert efficiency["y"][0] == 0
    assert efficiency["y"][1] < 400
    assert min(low for series in throughput["series"] for low in series.get("low", [])) == 0
    assert all(cell.estimates["throughput"].low == 0 for cell in found.cells)


def test_a_long_line_keeps_its_extremes_and_its_nothing() -> None:
    figure = new_figure(4, 3)
    axes = figure.subplots()
    values = np.sin(np.arange(5000.0))
    values[1234], values[3000:3500] = 7.0, np.nan
    axes.plot(np.arange(5000.0), values, label="p99")
    (series,) = json.loads(chart(figure, "long", "A long line", "It has one peak")[0].data)[0]["series"]
    assert len(series["x"]) <= 240
    assert series["x"][series["y"].index(7.0)] == 1234
    assert min(y for y in series["y"] if y is not None) == pytest.approx(np.nanmin(values), rel=1e-5)
    assert None in series["y"]


def test_no_usable_run_has_no_curve(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, shape=Shape(record_s=10, status=Status.INVALID))
    assert scaling(analyse(tmp_path), "resnet50") is None


@pytest.mark.parametrize("gpu", [True, False])
def test_a_timeline_has_its_panels_with_and_without_a_gpu(tmp_path: Path, gpu: bool) -> None:
    write_experiment(tmp_path, "resnet50", 3, shape=Shape(record_s=10, gpu=gpu))
    picture = timeline(analyse(tmp_path).experiments[0])
    assert ("gpu power" in picture.alt) is gpu
    assert ("pressure" in picture.alt) is not gpu
    assert picture.file.endswith(".svg")
    titles = [text.text for text in ET.fromstring(picture.image).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - ours
    assert {"Throughput (requests/s)", "p50", "p99", "all", "each replica"} <= set(titles)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_recording_stopped_after_a_row_or_two_is_reported(tmp_path: Path, rows: int) -> None:
    truncated(tmp_path, rows)
    page = write_report(tmp_path).read_text()
    assert "INVALID" in page
    assert "nan" not in (tmp_path / "summary.csv").read_text()


def test_an_experiment_that_recorded_nothing_is_reported(tmp_path: Path) -> None:
    shape = Shape(record_s=10, status=Status.INVALID)
    spec = experiment_spec("resnet50", 1, 1, shape)
    reasons = dict.fromkeys(METRICS, "not recorded: deploy: the replica died")
    manifest = manifest_for(spec, shape, START_S).model_copy(update={"absent_metrics": reasons, "replicas": []})
    (tmp_path / "attempt").mkdir()
    finalise(tmp_path / "attempt", tmp_path / spec.experiment_id, manifest)
    page = write_report(tmp_path).read_text()
    assert "the replica died" in page
    assert "no experiment can be used" in page.lower()
