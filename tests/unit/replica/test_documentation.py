"""docs/workloads.md says what the code does: its tables and its example cannot drift."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.replica import registry
from harness.replica.errors import ExitCode
from harness.replica.metrics import RequestMetrics
from harness.replica.models import whisper
from harness.replica.registry import BUILTIN
from harness.replica.settings import Settings, from_environment
from harness.spec.replica import OF_ITS_START, VARIABLES
from harness.spec.workload import WORKLOAD_OPTIONS

TEXT = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text()


def rows(section: str) -> dict[str, list[str]]:
    """The table of a section: what is in back quotes in the first column, to the other columns."""
    text = TEXT.partition(f"## {section}\n")[2].partition("\n## ")[0]
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        names = re.findall(r"`([^`]+)`", cells[0]) or [cells[0]]
        if line.startswith("|") and not line.startswith("|---"):
            table |= dict.fromkeys((name.strip("| ") for name in names), cells[1:])
    return table


def test_every_variable_that_is_read_is_documented_and_no_other():
    assert set(rows("Settings")) - {"Variable"} == VARIABLES - OF_ITS_START.keys()


@pytest.mark.parametrize(
    "variable", ["WORKLOAD", "BATCH_SIZE", "PRECISION", "EXECUTION", "DEVICE", "SEED", "WARMUP_REQUESTS", "REPLICA"]
)
def test_defaults_are_the_documented_ones(variable):
    assert rows("Settings")[variable][0].strip("`") == str(getattr(from_environment({}), variable.lower()))


def test_every_metric_is_documented_with_its_kind():
    documented = {name: cells[0] for name, cells in rows("What a replica publishes").items() if name != "Metric"}
    metrics = RequestMetrics()
    own = {name: loaded(name).published() for name in ("notebook",)}
    metrics.publish(*(family for families in own.values() for family in families))
    published = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(metrics.render())
    }
    assert documented == published
    for workload, families in own.items():
        for family in families:
            names = re.findall(r"# TYPE (\S+)", family.render())
            assert all(rows("What a replica publishes")[name][1] == f"`{workload}`" for name in names)


def loaded(name, **changes):
    return registry.load(Settings(workload=name, device="cpu", batch_size=2, options={"model_size": "tiny"}, **changes))


@pytest.mark.parametrize("name", ["notebook", "resnet50-training", "bert-training"])
def test_what_comes_of_a_workload_is_documented(name):
    text = TEXT.partition("## What a replica publishes\n")[2].partition("\n## ")[0]
    assert all(f"`{fact}`" in text for fact in loaded(name).outcome())


@pytest.mark.parametrize("name", BUILTIN)
def test_every_option_is_documented_and_no_other(name):
    documented = set(re.findall(r"`(\w+)`", rows("The built-in workloads")[name][-1])) - {
        "base",
        "tiny",
        "true",
        "false",
    }
    assert documented == set(WORKLOAD_OPTIONS[name])


def test_every_exit_code_is_documented():
    documented = {int(code) for code in rows("How it ends") if code.isdigit()}
    assert documented == set(ExitCode)


def test_every_built_in_workload_is_documented():
    assert set(rows("The built-in workloads")) - {"Workload"} == set(BUILTIN)
    assert f"{', '.join(map(str, whisper.CLIPS_S[:-1]))} and {whisper.CLIPS_S[-1]} s" in TEXT
