"""``docs/dictionary.md``, from the columns of ``campaign.parquet``."""

from __future__ import annotations

from harness.analysis.campaign_table import dictionary

_HEAD = """# Data dictionary of campaign.parquet

<!-- Written by `python -m scripts.pages` from the catalogue of figures; edit `harness/analysis/` instead. -->

`harness report` and `harness publish` write `campaign.parquet`: one row for each finished experiment, the columns always the same,
so that the tables of several campaigns can be put one below the other. [api.md](api.md#campaignparquet) reads it in three
lines. The file holds this dictionary in its metadata, as JSON under the key `data_dictionary`.

A figure that is missing is null, and `missing_reasons` says why. A damaged experiment has no figure.

| column | type | unit | what it is |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (f"| `{row['name']}` | {row['type']} | {row['unit']} | {row['description']} |\n" for row in dictionary())
    return _HEAD + "".join(rows)
