"""Which server recorded an experiment is written down, and its password is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.metrics.promql import PrometheusSource
from harness.results import from_prometheus
from harness.results.from_prometheus import read_source, save_source


def test_the_password_of_an_address_is_not_written(tmp_path: Path) -> None:
    save_source(tmp_path, PrometheusSource("http://name:s3cr3t@prometheus:9090/base", "default", ("pod-0",)))

    assert "s3cr3t" not in (tmp_path / "prometheus.json").read_text()
    assert read_source(tmp_path).url == "http://prometheus:9090/base"


def test_the_neighbours_of_an_experiment_are_kept_and_older_files_have_none(tmp_path: Path) -> None:
    origin = PrometheusSource(
        "http://prometheus:9090", "default", ("pod-0",), neighbours={"noisy": ("noisy-1", "noisy-0")}
    )
    save_source(tmp_path, origin)
    written = json.loads((tmp_path / "prometheus.json").read_text())

    assert read_source(tmp_path) == origin
    [beside] = origin.neighbour_replicas()
    assert (beside.workload, beside.replicas) == ("noisy", ("noisy-1", "noisy-0"))
    assert beside.dialect.replicas == 'namespace="default",pod=~"noisy-1|noisy-0"'
    assert not PrometheusSource.from_dict(
        {name: value for name, value in written.items() if name != "neighbours"}
    ).neighbours


def test_the_last_rename_of_an_export_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(from_prometheus, "sync_folder", synced.append)
    monkeypatch.setattr(from_prometheus, "_collect_into", lambda _server, folder, *_: folder.mkdir())
    from_prometheus.collect(None, tmp_path / "out", None)  # type: ignore[arg-type]
    assert synced == [tmp_path]
    assert (tmp_path / "out").is_dir()
