"""Columns and rows make the same file, byte for byte."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.rows import MetricColumn, MetricRow, RowStatistics
from harness.results.layout import MAX_REASON
from harness.results.writers import ExperimentWriter, float_texts

START_S = 1_800_000_000.0
TIMES_S = [START_S + 5 * place for place in range(4)]
COLUMNS = [
    MetricColumn("throughput", "replica-0", [1.5, 2, 1e-300, 0.1], ["", "", "", ""]),
    MetricColumn(
        "throughput", "all", [1.5, float("nan"), 3.0, float("nan")], ["", "gone, quite", "", 'he said "no"\nand left']
    ),
    MetricColumn("io_psi", "node-a.b", [0.0, -0.0, 1e22, 0], ["", "", "x" * 2 * MAX_REASON, ""]),
]


def written(folder, write):
    options = {"workload": "resnet50", "replicas": 1, "metrics": ["throughput", "io_psi"]}
    with ExperimentWriter(folder, start_s=START_S, step_s=5.0, **options) as writer:
        write(writer)
    return {path.name: path.read_bytes() for path in folder.iterdir()}, writer.rows


def row_of(column, place, time_s):
    reason = column.reasons[place]
    return MetricRow(column.metric, column.series, time_s, None if reason else column.values[place], reason)


def by_rows(writer):
    for place, time_s in enumerate(TIMES_S):
        writer.write([row_of(column, place, time_s) for column in COLUMNS])


def test_columns_and_rows_make_the_same_files(tmp_path):
    rows, counted = written(tmp_path / "rows", by_rows)
    columns, also_counted = written(tmp_path / "columns", lambda writer: writer.write_columns(TIMES_S, COLUMNS))
    assert columns == rows
    assert counted == also_counted == {"throughput": 8, "io_psi": 4}
    table = list(csv.DictReader(next(iter(columns.values())).decode().splitlines(keepends=True)))
    assert len(table) in {4, 8}


@given(st.lists(st.floats() | st.floats(-1e-3, 1e-3) | st.integers(-(10**18), 10**18).map(float)))
def test_every_float_is_written_as_python_writes_it(values):
    assert float_texts(values) == [repr(value) for value in values]


def test_pieces_join(tmp_path):
    def in_pieces(writer):
        for first in (0, 2):
            pieces = [
                MetricColumn(c.metric, c.series, c.values[first : first + 2], c.reasons[first : first + 2])
                for c in COLUMNS
            ]
            writer.write_columns(TIMES_S[first : first + 2], pieces)

    assert written(tmp_path / "pieces", in_pieces)[0] == written(tmp_path / "rows", by_rows)[0]


def test_a_metric_that_was_not_announced_is_a_defect(tmp_path):
    with pytest.raises(KeyError):
        written(
            tmp_path,
            lambda writer: writer.write_columns(TIMES_S, [MetricColumn("cpu_psi", "node", [1.0] * 4, [""] * 4)]),
        )


def test_columns_and_rows_count_the_same():
    rows, columns = RowStatistics(), RowStatistics()
    for place, time_s in enumerate(TIMES_S):
        rows.add([row_of(column, place, time_s) for column in COLUMNS])
    for column in COLUMNS:
        columns.add_column(column)
    assert rows.summaries(["throughput", "io_psi"]) == columns.summaries(["throughput", "io_psi"])
