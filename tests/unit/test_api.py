"""The Python API: the published figures as tidy tables, a comparison, a campaign run with progress, and its notebook."""

from __future__ import annotations

import ast
import functools
import gc
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import harness
from harness import api
from harness.campaign import events
from harness.campaign.publish import publish
from harness.errors import CampaignFileError, ResultsPathError, UsageError
from harness.spec import MpsSpec, Sharing
from tests.support.experiments import campaign
from tests.support.fake_backend import FakeBackend
from tests.support.fake_metrics import FakeGpus
from tests.support.simulated_clock import SimulatedClock
from tests.unit.results.synthetic import METRICS, Shape, write_campaign

SHAPE = Shape(record_s=20)
DOCS = Path(__file__).parents[2] / "docs"
RUN = ["workload", "replicas", "sharing", "condition", "mps_limits", "time_slice", "repeat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modes = (Sharing.TIME_SLICING, Sharing.MPS)
    return write_campaign(
        tmp_path_factory.mktemp("results") / "api",
        replicas=[3],
        repeats=2,
        shape=SHAPE,
        sharing=modes,
        mps=MpsSpec(share=["1/N"]),
    )


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    return publish(folder)


def test_importing_the_package_imports_nothing_else() -> None:
    script = "import sys, harness; print(sorted(name for name in sys.modules if name.partition('.')[0] in {'harness', 'pandas'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == ["harness"]


def test_the_names_of_the_api_are_there_and_no_others() -> None:
    import harness.traffic.generator

    for name in ("Campaign", "Experiment", "compare", "load", "run"):
        assert getattr(harness, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'open'"):
        harness.open  # noqa: B018


def test_an_experiment_is_had_by_its_name_and_a_notebook_shows_tables(folder: Path) -> None:
    measured = harness.load(folder)
    experiment = measured.experiments["resnet50_r3_mps_rep1"]

    assert experiment is measured.experiments[0] is measured["resnet50_r3_mps_rep1"]
    assert experiment in measured
    assert [name in measured for name in ("resnet50_r3_mps_rep1", "resnet50_r3_mps_rep3")] == [True, False]
    assert ([*measured], len(measured)) == (measured.experiments, 4)
    assert measured.experiments[:2] == [*measured][:2]
    with pytest.raises(KeyError, match="did you mean 'resnet50_r3_mps_rep2'"):
        measured["resnet50_r3_mps_rep3"]
    with pytest.raises(KeyError, match=r"no experiment 'x' here; there are resnet50_r3_mps_rep1, .* \.\.\."):
        measured["x"]
    assert dir(harness) == ["Campaign", "Experiment", "__version__", "compare", "load", "run"]
    shown = measured._repr_html_()
    assert all(f"<td>{run.name}</td>" in shown for run in measured.experiments)
    assert "<td>throughput</td>" in experiment._repr_html_()
    assert "<th>ratio</th>" in harness.compare(measured)._repr_html_()
    assert repr(measured) == "<Campaign api: 4 experiments>"


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_an_experiment_gives_tidy_tables(kind: str, request: pytest.FixtureRequest) -> None:
    experiment = harness.load(request.getfixturevalue(kind)).experiments[0]
    gc.collect()  # an unpacked archive stays for the experiment that is left of it
    assert (experiment.name, experiment.verdict) == ("resnet50_r3_mps_rep1", "VALID")
    samples, latencies, figures = experiment.samples(), experiment.latencies(), experiment.summary()
    for table in (samples, latencies, figures):
        assert list(table.columns[:7]) == RUN
        assert table[RUN].drop_duplicates().to_numpy().tolist() == [["resnet50", 3, "mps", "", "1/N", "", 1]]
    assert set(samples["metric"]) == set(METRICS)
    assert str(samples["timestamp"].dtype) == "datetime64[ms, UTC]"
    assert str(latencies["start"].dtype) == "datetime64[ns, UTC]"
    recorded = latencies[latencies["recorded"]]
    assert (~latencies["recorded"]).any()
    start = pd.Timestamp(experiment.manifest.start_s, unit="s", tz="UTC")
    assert (recorded["start"] + pd.to_timedelta(recorded["latency_s"], unit="s")).min() >= start
    by_measure = figures.set_index("measure")["value"]
    assert by_measure["requests"] == len(recorded)
    assert by_measure["latency_mean"] == pytest.approx(recorded["latency_s"].mean())
    assert figures.set_index("measure")["unit"]["latency_mean"] == "s"


def test_a_campaign_gives_what_its_report_says(folder: Path, archive: Path) -> None:
    loaded = harness.load(str(folder))
    assert [len(loaded.experiments), loaded.name] == [4, "api"]
    assert len(loaded.samples()) == sum(len(experiment.samples()) for experiment in loaded.experiments)
    summary = loaded.summary()
    cell = summary[summary["sharing"] == "mps"].set_index("measure")
    alone = [each.summary().set_index("measure")["value"] for each in loaded.experiments if "_r3_mps" in each.name]
    assert cell["mean"]["throughput"] == pytest.approx(sum(each["throughput"] for each in alone) / 2)
    assert cell["runs"]["throughput"] == 2
    pd.testing.assert_frame_equal(harness.load(archive).summary(), summary)
    table = loaded.table().set_index("experiment")["throughput_requests_per_second"]
    alone_by_name = {each.name: each.summary().set_index("measure")["value"] for each in loaded.experiments}
    assert table.to_dict() == {name: figures["throughput"] for name, figures in alone_by_name.items()}


def test_a_comparison_gives_ratio_interval_and_answer(folder: Path, archive: Path) -> None:
    found = harness.compare(harness.load(archive))
    (row,) = found[(found["measure"] == "throughput") & (found["replicas"] == 3)].to_dict("records")
    assert (row["of"], row["against"]) == ("mps (1/N)", "time-slicing")
    assert row["ci95_low"] < row["ratio"] < row["ci95_high"]
    assert row["answer"]
    pd.testing.assert_frame_equal(harness.compare(folder), found)
    with pytest.raises(UsageError, match="given twice"):
        harness.compare(folder, folder)
    with pytest.raises(ResultsPathError, match="no campaign to compare"):
        harness.compare()


def test_a_damaged_experiment_has_reasons_and_no_figures(archive: Path) -> None:
    (experiment, *_) = harness.load(archive).experiments
    (experiment._folder / "wide.csv").write_text("changed")
    figures = experiment.summary()
    assert figures["value"].isna().all()
    assert figures["reason"].str.contains("the file was changed").all()


def test_an_unpacked_archive_goes_with_the_last_that_uses_it(archive: Path) -> None:
    loaded = harness.load(archive)
    unpacked = loaded.folder
    assert unpacked.is_dir()
    del loaded
    gc.collect()
    assert not unpacked.exists()


def test_what_is_no_campaign_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ResultsPathError, match="holds no campaign"):
            harness.load(path)


def test_a_campaign_runs_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.campaign import preflight, runner

    monkeypatch.setattr("harness.backends.base.make_backend", lambda _spec, _id=None, **_: FakeBackend())
    monkeypatch.setattr(preflight, "make_backend", lambda _spec, **_: FakeBackend())
    fast = functools.partial(runner.CampaignRunner, clock=SimulatedClock(), gpus=FakeGpus)
    monkeypatch.setattr(runner, "CampaignRunner", fast)
    seen: list[events.Event] = []
    spec = campaign(metrics=["throughput"], replicas=[1])
    content = spec.model_dump(mode="json", exclude_unset=True)
    for given in (spec, content):
        done = harness.run(given, results=tmp_path / "results", on_event=seen.append)
        assert [experiment.name for experiment in done.experiments] == ["tiny_r1_time-slicing_rep1"]
    ended = [event.experiment_id for event in seen if isinstance(event, events.ExperimentEnds)]
    assert ended == ["tiny_r1_time-slicing_rep1"] * 2
    with pytest.raises(CampaignFileError, match="the campaign given"):
        harness.run({"name": "incomplete"}, results=tmp_path)


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS)
    cells = json.loads((DOCS / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for source in code:
        exec(compile(source, "notebook.ipynb", "exec"), names)  # noqa: S102 - our own notebook
    assert not names["differences"].empty


def test_the_page_names_every_column() -> None:
    page = (DOCS / "api.md").read_text()
    for column in {*api._SAMPLES, *api._LATENCIES, *api._FIGURES, *api.summary.COLUMNS}:
        assert f"`{column}`" in page, column
