"""``docs/dictionary.md``, from the columns of ``campaign.parquet``."""

from __future__ import annotations

from harness.analysis.campaign_table import dictionary
from harness.analysis.metrics.catalogue import ALL
from scripts.pages.percentiles import merged

_SAID_ABOVE = {
    "; nearest rank over all requests of the recording, at the sender": "",
    "Mean over the rows of all replicas together; the workload says it itself": "Published",
    "From the intended time of a request to": "To",
}
_HEAD = """# Data dictionary of campaign.parquet

<!-- Written by `python -m scripts.pages` from the catalogue of figures; edit `harness/analysis/` instead. -->

`harness report` and `harness publish` write `campaign.parquet` ([how to read it](api.md#campaignparquet)): one row per finished experiment,
always with these columns. The file's metadata has this dictionary as JSON (`data_dictionary`).

A missing metric is null, and `missing_reasons` says why. A damaged experiment has no metrics. A name in braces stands for one column each.
Exact percentiles are nearest ranks over all requests of the recording, timed by the sender from the intended time of a request.
*Published*: the mean over the rows of all replicas together, of what the workload itself publishes.

| column | type | unit | what it is |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    titles = {metric.column: f"{metric.title}. " for metric in ALL.values()}
    rows = []
    for row in dictionary():
        words = row["description"].removeprefix(titles.get(row["name"], ""))  # the column's own name says it
        for long, short in _SAID_ABOVE.items():
            words = words.replace(long, short)
        rows.append(f"| `{row['name']}` | {row['type']} | {row['unit']} | {words} |\n")
    return _HEAD + "".join(merged(rows)).replace("|  |", "| |")
