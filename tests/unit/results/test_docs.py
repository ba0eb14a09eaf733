"""The page about results names everything that is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.metrics.catalogue import ALL
from harness.errors import ReasonCode
from harness.results import layout
from harness.results.manifest import Manifest, Status

PAGE = (Path(__file__).parents[3] / "docs" / "results.md").read_text()


@pytest.mark.parametrize("field", Manifest.model_fields)
def test_every_field_of_the_manifest_is_documented(field: str) -> None:
    table = PAGE.partition("## manifest.json")[2].partition("## verify")[0]
    assert f"`{field}`" in table


def test_every_reason_code_is_documented() -> None:
    table = PAGE.partition("### Reason codes")[2].partition("## verify")[0]
    assert [code for code in ReasonCode if f"`{code}`" not in table] == []


@pytest.mark.parametrize("measure", [*ALL, "speed_up", "efficiency"])
def test_every_figure_is_documented(measure: str) -> None:
    assert f"`{measure}`" in PAGE.partition("## Figures of the report")[2]


def test_names_of_files_and_columns_are_those_of_the_code() -> None:
    for name in (layout.MANIFEST, layout.WIDE, layout.SAMPLES, layout.TELEMETRY, layout.STATE, layout.CAMPAIGN_JSON):
        assert name in PAGE
    assert ",".join(layout.METRIC_COLUMNS) in PAGE
    assert ",".join(layout.WIDE_COLUMNS) in PAGE
    assert all(status.value in PAGE for status in Status)
