"""The table that run, resume and report end with, and what it does where there is little room."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from harness.analysis import report, summary
from harness.analysis.campaign import analyse
from harness.analysis.metrics.catalogue import STREAM_HEADLINE
from harness.analysis.narrative import concerns, headline
from harness.analysis.pages import tables
from harness.analysis.pages.table import Table
from harness.analysis.questions.question import QuestionAnswer
from harness.analysis.statistics import Estimate
from harness.analysis.summary import index
from harness.campaign.thresholds import Thresholds
from harness.cli import app, campaign, output
from harness.cli.results import _print_answers, show_figures
from harness.errors import counted
from harness.results.layout import STATE
from harness.results.manifest import Status
from harness.spec import Sharing
from tests.unit.results.synthetic import Shape, write_campaign, write_experiment

SHAPE = Shape(record_s=5)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    folder = write_campaign(tmp_path_factory.mktemp("results") / "made", replicas=[1, 3], repeats=2, shape=SHAPE)
    for repeat, status in ((1, Status.DEGRADED), (2, Status.VALID)):
        write_experiment(folder, "resnet50", 3, repeat, replace(SHAPE, sharing=Sharing.MPS, status=status))
    write_experiment(folder, "resnet50", 1, 1, replace(SHAPE, sharing=Sharing.MPS, status=Status.INVALID))
    return analyse(folder)


def shown(analysis, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    show_figures(analysis)
    said = capsys.readouterr()
    return [line for line in said.out.splitlines() if line not in around(analysis)], said.err


def around(analysis):
    """What is said before the table, and after it."""
    answer = headline(analysis, [], None)
    assert answer
    return [*answer, f"Caveats: {'; '.join(concerns(analysis))}."]


def test_the_answer_comes_before_the_table_and_what_weakens_it_after(analysis, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    *answer, weak = around(analysis)
    show_figures(analysis)
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(answer)] == answer
    assert lines[len(answer)].startswith("workload ")
    assert lines[-1] == weak
    assert "1 of 7 runs are INVALID and left out" in weak

    show_figures(analysis, printed=answer)
    assert capsys.readouterr().out.startswith("workload "), "nothing is said twice"


def test_the_table_has_a_line_per_cell_with_its_figures_and_verdict(analysis, capsys, monkeypatch):
    (header, *lines), said = shown(analysis, capsys, monkeypatch, 200)
    assert header.split("  ")[0] == "workload"
    assert header.split()[1:] == ["sharing", "replicas", "requests/s", "p50", "ms", "p99", "ms", "J/req", "verdict"]
    first = analysis.cells[0].estimates
    assert f"{1e3 * first['latency_p99_exact'].mean:.2f}" in lines[0]
    assert " ± " in lines[0]
    assert {(line.split()[1], line.split()[2]): line.split()[-1] for line in lines} == {
        ("time-slicing", "1"): "VALID",
        ("time-slicing", "3"): "VALID",
        ("mps", "1"): "INVALID",
        ("mps", "3"): "DEGRADED",
    }
    assert not said
    assert max(map(len, [header, *lines])) <= 80


@pytest.mark.parametrize("columns", [70, 55])
def test_cells_are_folded_until_a_line_has_room_and_no_figure_goes(analysis, capsys, monkeypatch, columns):
    lines, _ = shown(analysis, capsys, monkeypatch, columns)
    cell = analysis.cells[0]
    assert max(map(len, lines)) <= columns
    assert {"requests/s", cell.badge} <= set(" ".join(lines).split()), "words stay whole"
    p99 = 1e3 * cell.estimates["latency_p99_exact"].mean
    assert f"{p99:.2f}" in " ".join(lines)


@pytest.mark.parametrize(("gpu", "shown_as"), [(True, "time-slicing"), (False, "CPU")])
def test_a_run_without_a_gpu_is_shown_as_of_the_cpu_and_keeps_its_mode_in_files(tmp_path, gpu, shown_as):
    folder = write_campaign(tmp_path / "made", replicas=[1], repeats=1, shape=replace(SHAPE, gpu=gpu))
    (cell,) = analyse(folder).cells

    assert (cell.sharing, cell.key.mode, cell.mode) == ("time-slicing", "time-slicing", shown_as)
    (table,) = tables.short_tables(analyse(folder))
    assert shown_as in table.texts[0]
    report.report_of(analyse(folder))
    assert [row["sharing"] for row in index(tmp_path).rows] == [shown_as]


def test_servers_of_streams_end_with_the_exact_figures_of_their_clients(analysis, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    streams = {name: Estimate(0.001 * place, None, None, 1, None) for place, name in enumerate(STREAM_HEADLINE, 1)}
    cell = replace(analysis.cells[0], estimates=analysis.cells[0].estimates | streams)
    show_figures(replace(analysis, cells=[cell, *analysis.cells[1:]]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:-1])) <= 80
    (line,) = [line for line in lines if line.endswith("6.00")]
    assert line.split()[-6:] == ["1.00", "2.00", "3.00", "4.00", "5.00", "6.00"]
    (first, *others) = summary.headline(replace(analysis, cells=[cell, *analysis.cells[1:]]))
    assert first["measures"]["ttft_p99_exact"]["mean"] == 0.002
    assert not [other for other in others if streams.keys() & other["measures"].keys()]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_verdicts_have_a_colour_in_a_terminal_that_wants_it(monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    output.table(["a", "verdict", "b"], [["x", "VALID", "y"]])
    second = sys.stdout.getvalue().splitlines()[1]
    assert second == ("x  \033[32mVALID\033[0m    y" if coloured else "x  VALID    y")


def test_a_table_without_room_folds_its_widest_cells_and_keeps_words_and_colours(monkeypatch):
    monkeypatch.setenv("COLUMNS", "34")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    rows = [["resnet50_r1"], ["3.04 times (2.78 to 3.32)", "no significant difference"], ["none", "INVALID"]]
    output.table(["ratio", "answer"], rows)
    assert sys.stdout.getvalue().splitlines() == [
        "ratio             answer",
        "resnet50_r1",
        "3.04 times (2.78  \033[33mno significant\033[0m",
        "to 3.32)          \033[33mdifference\033[0m",
        "none              \033[31mINVALID\033[0m",
    ]


def test_sentences_end_between_words_in_a_terminal_and_leave_commands_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    said = "The campaign was interrupted; go on with: harness resume results/a-long-name"
    monkeypatch.setattr(sys, "stdout", Terminal())
    output.sentence(said)
    *lines, command = sys.stdout.getvalue().splitlines()
    assert " ".join([*lines, command]) == said
    assert max(map(len, lines)) <= 30
    assert command == "harness resume results/a-long-name"
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # a pipe, where lines are searched for
    output.sentence(said)
    assert sys.stdout.getvalue() == f"{said}\n"


def test_compare_has_room_in_80_columns_and_says_in_json_what_it_says_to_people(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_json_mode", False)
    monkeypatch.setenv("COLUMNS", "80")
    modes = [Sharing.TIME_SLICING, Sharing.MPS]
    folder = write_campaign(
        tmp_path / "a-campaign-with-a-long-name", replicas=[1, 3], repeats=2, shape=SHAPE, sharing=modes
    )
    plain = CliRunner().invoke(app, ["compare", str(folder), "--details"]).stdout
    document = json.loads(CliRunner().invoke(app, ["compare", str(folder), "--json"]).stdout)

    lines = plain.partition("\nWhat do neighbours cost?")[0].splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(plain.split())
    assert document["sentence"] in words
    for row in document["table"]:
        assert f"{row['mode']} {row['replicas']} {row['throughput']}" in words
    assert len(document["choices"]) >= len(document["decision"]) > 3
    assert all(answer["answer"] in words for answer in document["questions"])
    assert all(f"{line['place'][0]}, {line['place'][1]} replica" in words for line in document["lines"])


@pytest.fixture
def written(monkeypatch):
    """What the report was made of; the drawing takes seconds, and is tested elsewhere."""
    found = []

    def report_of(analysis, out=None):
        found.append(analysis)
        return (out or analysis.folder) / "report.html"

    monkeypatch.setattr(report, "report_of", report_of)
    monkeypatch.setattr(output, "_json_mode", False)
    monkeypatch.setenv("COLUMNS", "80")
    return found


def test_report_prints_the_figures_then_its_path_and_json_has_the_same(analysis, written):
    folder = str(analysis.folder)
    plain = CliRunner().invoke(app, ["report", folder]).stdout.splitlines()
    document = json.loads(CliRunner().invoke(app, ["report", folder, "--json"]).stdout)

    assert "\033" not in "".join(plain)
    assert plain[-1] == f"report: {document['report']}" == f"report: {folder}/report.html"
    assert len(written) == 2
    header, *lines = [line for line in plain[:-1] if line not in around(analysis)]
    assert header.startswith("workload ")
    for cell, line in zip(document["figures"], lines, strict=True):
        assert [cell["workload"], cell["sharing"], str(cell["replicas"])] == line.split()[:3]
        assert cell["verdict"] == line.split()[-1]
        measures = cell["measures"]
        assert set(measures) | set(cell["absent"]) == {"throughput", "latency_p50_exact", "latency_p99_exact", "energy"}
        assert not measures or f"{1e3 * measures['latency_p99_exact']['mean']:.2f}" in line


@pytest.mark.parametrize("wanted", [True, False])
def test_run_and_resume_end_with_the_figures_of_the_report_that_they_wrote(analysis, written, capsys, wanted):
    outcome = SimpleNamespace(statuses={}, invalid=[])
    folder = SimpleNamespace(path=analysis.folder, spec=analysis.spec, state=analysis.folder / STATE)

    campaign._finish(outcome, folder, Thresholds(frozenset()), report=wanted)

    *lines, last = capsys.readouterr().out.splitlines()
    assert last == (f"report: {folder.path}/report.html" if wanted else f"results: {folder.path}")
    table = [line.split()[0] for line in lines if line not in around(analysis)]
    assert table == (["workload", *["resnet50"] * 4] if wanted else [])
    assert len(written) == wanted


def test_one_is_counted_as_one():
    assert [counted(1, "replica", "need"), counted(2, "replica", "need"), counted(1200, "row")] == [
        "1 replica needs",
        "2 replicas need",
        "1,200 rows",
    ]


def test_only_an_answer_without_any_value_is_called_not_measured(capsys):
    table = Table.of([{"Workload": "resnet50", "Throughput": "306"}], words=1)
    given = [QuestionAnswer("cost", "What does it cost?", table=table), QuestionAnswer("price", "At what price?")]

    _print_answers(SimpleNamespace(isolation=SimpleNamespace(apart=""), choices=[]), given, [], details=True)

    cost, price = capsys.readouterr().out.split("\nAt what price?\n")
    assert cost.splitlines()[1:] == ["What does it cost?", "Workload  Throughput", "resnet50  306"]
    assert price == "  Not measured.\n"
