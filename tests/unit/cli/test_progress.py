"""What a person sees of a running campaign, with a terminal and without one."""

import io
import re
import sys

import pytest
from rich.console import Console

from harness.analysis.format import DASH
from harness.campaign import events
from harness.campaign.events import Now
from harness.cli import output
from harness.cli.progress import LiveBar, PlainLines, _bar
from harness.errors import duration
from harness.results.manifest import Status

RUN = "resnet50_r8_time-slicing_rep1"
WINDOWS = [(2000.0, 0.006), (2100.0, 0.008)]
STORY = [
    events.CampaignBegins("night-20260101T000000Z", experiments=9, done=2, remaining_s=28_140.0),
    events.StepBegins(RUN, 3, 1, "record", 3600.0, 28_000.0),
    *(events.RowsRecorded(RUN, row, 3, 20.0, (Now("all", *window),)) for row, window in enumerate(WINDOWS, start=1)),
    events.Notice("replica 3 was killed by signal 9; last lines: out of memory"),
    events.StepEnds(RUN, "record", ok=False, seconds=9.0, reasons=["record: stopped."]),
    events.ExperimentEnds(RUN, 3, Status.INVALID, ["record: stopped."], 24_000.0),
    events.StepBegins("resnet50_r8_time-slicing_rep2", 4, 1, "deploy", None, 24_000.0),
]
SENTENCES = [
    "night-20260101T000000Z: 9 experiments, 2 done before; about 7 h 49 min to go",
    "  replica 3 was killed by signal 9; last lines: out of memory",
    f"[3/9] {RUN} INVALID: 2,050 req/s, p99 ~7.00 ms (6 h 40 min to go): record: stopped.",
]
STEPS = [f"[3/9] {RUN}: record (1 h 00 min; 7 h 46 min to go)", "  record: stopped."]


@pytest.fixture(autouse=True)
def quiet():
    yield
    output.use_verbose(False)


@pytest.mark.parametrize("verbose", [False, True])
def test_a_pipe_gets_a_line_for_each_experiment_and_of_each_step_when_asked(capsys, verbose):
    output.use_verbose(verbose)
    tell = PlainLines()
    for event in STORY:
        tell(event)

    said = [line[len("00:00:00 ") :] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in said if line in SENTENCES] == SENTENCES
    assert set(STEPS) <= set(said) if verbose else said == SENTENCES
    assert "\x1b" not in "".join(said)


def screen_after(story, *, width=80, height=24, titles=None, **settings):
    """What is drawn once all that has happened, without what scrolled by."""
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=width, height=height, highlight=False, **settings)
    stdout = sys.stdout
    with _bar(console) as progress:
        assert sys.stdout is stdout  # or what goes to a file would go to the screen
        tell = LiveBar(progress, titles)
        for event in story:
            tell(event)
        drawn.truncate(0)
        progress.refresh()
        return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()).splitlines()]


def test_a_run_without_a_gpu_is_called_one_of_the_cpu(capsys, monkeypatch):
    titles = {
        name: name.replace("_time-slicing_", "_CPU_").replace("_", " ") for name in (RUN, STORY[-1].experiment_id)
    }
    tell = PlainLines(titles)
    for event in STORY:
        tell(event)
    monkeypatch.setenv("TERM", "xterm")
    _, row, _ = screen_after(STORY, titles=titles, color_system=None)[-3:]

    said = capsys.readouterr().err
    assert "[3/9] resnet50 r8 CPU rep1 INVALID" in said
    assert "time-slicing" not in said
    assert row.split()[:3] == ["resnet50", "r8", "CPU"]


@pytest.mark.parametrize("width", [60, 80])
def test_a_terminal_gets_a_row_for_each_configuration_and_a_bar_of_the_campaign(monkeypatch, width):
    monkeypatch.setenv("TERM", "xterm")  # one that cannot move its cursor gets none
    titles, row, bar = screen_after(STORY, width=width, color_system=None)[-3:]

    assert titles.split() == ["configuration", "runs", "req/s", "p99"]
    assert row.split() == ["resnet50", "r8", "time-slicing", "1", "2,050", "~7.00", "ms", "deploy"]
    assert bar.endswith(" 3 of 9 runs 6 h 40 min to go")


def test_the_screen_keeps_the_configurations_that_ran_last(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    story = [events.ExperimentEnds(f"m_r{place}_mps_rep1", place, Status.VALID, [], 1.0) for place in range(1, 31)]
    lines = screen_after(story, height=10, color_system=None)

    assert [line.split()[1] for line in lines if line.startswith("m ")] == [f"r{place}" for place in range(25, 31)]
    assert "and 24 more configurations above" in lines
    assert not [line for line in lines if DASH not in line and line.startswith("m ")]  # rows came at the end


def test_without_colours_the_bar_still_shows_what_is_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    begun = events.CampaignBegins("c", experiments=4, done=0, remaining_s=60.0)
    recorded = [events.StepBegins(RUN, 2, 1, "record", 1.0, 30.0), events.RowsRecorded(RUN, 1, 1)]

    assert screen_after([begun, *recorded])[-1].startswith(f"{'#' * 7}{'-' * 13} 1 of 4 runs")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (9.96, "10.0 s"),
        (59, "59 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (36_180, "10 h 03 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text
