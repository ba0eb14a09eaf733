"""Which server recorded an experiment is written down, and its password is not."""

from __future__ import annotations

from pathlib import Path

from harness.metrics.prometheus.recording_target import Origin
from harness.results.origin import read_origin, save_origin


def test_the_password_of_an_address_is_not_written(tmp_path: Path) -> None:
    save_origin(tmp_path, Origin("http://name:s3cr3t@prometheus:9090/base", "default", ("pod-0",)))

    assert "s3cr3t" not in (tmp_path / "prometheus.json").read_text()
    assert read_origin(tmp_path).url == "http://prometheus:9090/base"
