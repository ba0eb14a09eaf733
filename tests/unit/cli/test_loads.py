"""What ``plan`` and ``validate`` say of the files that servers are asked from."""

import json

import pytest
from typer.testing import CliRunner

from harness.campaign import preflight
from harness.cli import app, output

BURST = "Timestamp,Request tokens,Response tokens\n5,3,2\n6,3,0\n7,4,2\n7,4,2\n"


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    monkeypatch.setattr(output, "_json_mode", False)
    monkeypatch.setattr(preflight, "check", lambda *_: [])


@pytest.fixture
def campaign(tmp_path):
    def write(content, **trace):
        file = tmp_path / "trace.csv"
        if content is not None:
            file.write_text(content)
        server = {"command": ["x", "{port}"], "protocol": "openai-chat", "trace": {"file": str(file), **trace}}
        spec = {"name": "t", "workloads": [{"name": "llm", "server": server}], "replicas": [1, 2]}
        (tmp_path / "t.yaml").write_text(json.dumps(spec))
        return tmp_path / "t.yaml"

    return write


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_what_a_trace_holds_is_said(campaign, command):
    file = campaign(BURST, factor=2)
    done = CliRunner().invoke(app, [command, str(file), "--json"])
    load = json.loads(done.stdout)["loads"]["llm"]
    assert load == load | {
        "file": "trace.csv", "shape": "BurstGPT", "requests": 3, "sessions": 0, "dropped": {"failed": 1}, "same_time": 1,
        "unit": "s", "unit_from": "the form of BurstGPT", "length_s": 1.0, "mean_per_s": 2.0, "highest_per_s": 2.0,
    }  # fmt: skip
    said = CliRunner().invoke(app, [command, str(file)]).stdout
    assert said.count("Load: trace.csv (BurstGPT): 3 requests") == 1


def test_a_file_whose_unit_is_not_known_fails_validation_until_it_is_said(campaign):
    file = campaign("timestamp,input_length,output_length\n1,2,3\n2,2,3\n")
    assert CliRunner().invoke(app, ["validate", str(file)]).exit_code != 0
    assert CliRunner().invoke(app, ["validate", str(campaign(None, unit="ms"))]).exit_code == 0


def test_a_file_that_is_elsewhere_is_not_described(campaign):
    done = CliRunner().invoke(app, ["validate", str(campaign(None)), "--json"])
    assert json.loads(done.stdout)["loads"] == {}
