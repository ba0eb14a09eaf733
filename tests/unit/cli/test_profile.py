"""`harness profile` is refused as `run` is: once, before anything is written, with the line that helps."""

from typer.testing import CliRunner

from harness.backends import local_check
from harness.cli import app
from harness.errors import PreflightError


def test_without_torch_a_profile_is_refused_once_and_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(local_check, "absent", lambda *modules: [name for name in modules if name == "torch"])

    done = CliRunner().invoke(app, ["profile", "resnet50", "--batch", "1,8,32", "--results", str(tmp_path / "results")])

    assert isinstance(done.exception, PreflightError)
    assert done.exception.message.count("torch") == 1
    assert "pip install" in done.exception.advice
    assert not (tmp_path / "results").exists()
