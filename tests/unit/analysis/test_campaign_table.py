"""campaign.parquet: every experiment with its figures and units, and a reason for every one that is missing."""

from __future__ import annotations

import io
import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from harness.analysis import campaign_table
from harness.analysis.campaign import analyse
from harness.analysis.campaign_table import COLUMNS, DICTIONARY, REASONS
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.report import report_of
from harness.spec import MpsSpec, Sharing
from tests.unit.results.synthetic import Shape, write_campaign

ROOT = Path(__file__).parents[3]
CODE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), flags=re.DOTALL)
EQUAL = MpsSpec(share=["1/N"])
READERS = [block for block in CODE if "campaign.parquet" in block]
FIGURES = COLUMNS[-1 - len(ALL) : -1]
OF_GPU_USE = {
    "replica_power_watts",
    "replica_energy_joules_per_request",
    "replica_sm_active_percent",
    "gpu_idle_power_watts",
}
"""Null where the idle power was not read."""
UNITS = {
    "joules",
    "seconds",
    "bytes",
    "percent",
    "watts",
    "celsius",
    "cores",
    "ratio",
    "index",
    "request",
    "requests",
    "second",
    "s",
    "mhz",
    "nats",
    "kernels",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modes = (Sharing.TIME_SLICING, Sharing.MPS)
    made = tmp_path_factory.mktemp("results") / "table"
    write_campaign(made, replicas=[1, 3], repeats=2, shape=Shape(record_s=20), sharing=modes, mps=EQUAL)
    report_of(analyse(made))
    return made


def read(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(io.BytesIO(campaign_table.to_parquet(analyse(folder))))


def test_every_experiment_has_a_row_with_the_figures_of_the_report(folder: Path) -> None:
    analysis = analyse(folder)
    table = read(folder).set_index("experiment")
    assert list(table.index) == [experiment.name for experiment in analysis.experiments]
    for experiment in analysis.experiments:
        row = table.loc[experiment.name]
        cell = (
            row["workload"],
            row["sharing"],
            row["replicas"],
            row["condition"],
            row["mps_limits"],
            row["time_slice"],
        )
        assert cell == tuple(experiment.key)
        assert row["mps_share_percent"] == pytest.approx(
            {"mps (1/N)": 100 / experiment.key.replicas}.get(experiment.key.mode, math.nan), nan_ok=True
        )
        assert row["throughput_requests_per_second"] == experiment.figures["throughput"]
        assert row["latency_p99_exact_seconds"] == experiment.figures["latency_p99_exact"]
        assert row["recording_start"].timestamp() == experiment.data.manifest.start_s
    assert table["gpu_power_limit_watts"].unique().tolist() == [62.5]


def test_a_figure_has_a_value_or_a_reason(folder: Path) -> None:
    for _, row in read(folder).iterrows():
        missing = {column.name for column in FIGURES if pd.isna(row[column.name])} | OF_GPU_USE
        reasons = json.loads(row[REASONS])
        assert set(reasons) == missing
        assert all(reasons.values())


def test_a_damaged_experiment_has_the_damage_for_a_reason_and_is_not_used(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "table", replicas=[1], repeats=2, shape=Shape(record_s=20))
    next(folder.glob("*_rep1/wide.csv")).write_text("changed")
    damaged, whole = read(folder).sort_values("experiment").to_dict("records")
    assert (damaged["used"], whole["used"]) == (False, True)
    assert pd.isna(damaged["throughput_requests_per_second"])
    assert "the file was changed" in json.loads(damaged[REASONS])["throughput_requests_per_second"]


def test_a_figure_that_the_workload_does_not_give_is_not_laid_on_the_campaign_alone(folder: Path) -> None:
    reasons = json.loads(read(folder)[REASONS][0])
    assert "the workload does not give it" in reasons["client_ttft_p50_seconds"]


def test_names_are_unique_and_every_figures_name_ends_with_its_unit() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert {column.name.rpartition("_")[2] for column in FIGURES} <= UNITS


def test_the_report_writes_it_with_the_dictionary_and_the_same_campaign_gives_the_same_bytes(folder: Path) -> None:
    written = folder / "campaign.parquet"
    assert f"  {written.name}\n" in (folder / "report.sha256").read_text()
    assert written.read_bytes() == campaign_table.to_parquet(analyse(folder))
    schema = pq.read_schema(written)
    dictionary = json.loads(schema.metadata[DICTIONARY.encode()])
    assert [(row["name"], row["type"]) for row in dictionary] == [(field.name, str(field.type)) for field in schema]


def test_the_page_has_lines_for_each_reader() -> None:
    assert {block.split()[1] for block in READERS} == {"pandas", "polars", "duckdb", "json"}


@pytest.mark.parametrize("block", [block for block in READERS if find_spec(block.split()[1])])
def test_the_lines_of_the_page_read_it(folder: Path, block: str) -> None:
    names: dict[str, object] = {}
    exec(compile(block.replace("results/<campaign>", str(folder)), "api.md", "exec"), names)  # noqa: S102 - our own page
    found: Any = names.get("runs", names.get("units"))
    assert found is None or len(found.collect() if hasattr(found, "collect") else found) > 0
