"""CSVs that are read together give what each gives alone, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.metrics import csv_reader
from harness.metrics.csv_reader import Columns, read_columns, read_together

HEAD = "timestamp,elapsed_s,series,value,reason\n"
ONE = f"{HEAD}t0,0.0,replica-1,1.5,\nt0,0.0,replica-0,,gone\nt1,0.25,replica-1,,gone\nt1,0.25,replica-0,0.1,\n"
OTHER = f"{HEAD}t0,0.0,all,,no counter\nt1,0.25,all,2e-3,\nt2,0.5,replica-0,7,\n"


def written(folder: Path, *texts: str) -> dict[str, Path]:
    paths = {str(place): folder / f"{place}.csv" for place in range(len(texts))}
    for path, text in zip(paths.values(), texts, strict=True):
        path.write_text(text)
    return paths


def plain(columns: Columns) -> list[object]:
    elapsed_s, names, values, reasons = columns
    missing = [None if np.isnan(value) else value for value in values.tolist()]
    return [elapsed_s.tolist(), names.words, names.places.tolist(), missing, reasons.words, reasons.places.tolist()]


def test_together_they_give_what_each_gives_alone_and_series_keep_their_order(tmp_path: Path) -> None:
    paths = written(tmp_path, ONE, OTHER, HEAD, ONE)
    together = read_together(paths)
    assert {name: plain(columns) for name, columns in together.items()} == {
        name: plain(read_columns(path)) for name, path in paths.items()
    }
    assert together["1"][1].words == ["all", "replica-0"]
    assert together["0"][1].words == ["replica-1", "replica-0"]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        ONE.removesuffix("\n"),
        f"{ONE}\n",
        ONE.replace("gone", '"gone\nfor good"'),
        ONE.replace("gone", '"gone'),
        ONE.replace("1.5", "fast"),
        ONE.replace("elapsed_s,series", "series,elapsed_s"),
        ONE.replace("t1,", "t1,1,"),
    ],
)
def test_one_that_is_not_as_it_was_written_is_read_alone(tmp_path: Path, damaged: str) -> None:
    assert read_together(written(tmp_path, OTHER, damaged, ONE)) == {}


def test_one_that_is_not_there_is_read_alone(tmp_path: Path) -> None:
    assert read_together({**written(tmp_path, ONE), "gone": tmp_path / "gone.csv"}) == {}


def test_a_large_one_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "_SMALL_BYTES", len(OTHER))
    assert read_together(written(tmp_path, ONE, OTHER, HEAD)).keys() == {"1", "2"}
