"""What a person sees of a running campaign, with a terminal and without one."""

import io
import sys

import pytest
from rich.console import Console

from harness.analysis.format import DASH
from harness.campaign import events
from harness.campaign.events import Now
from harness.cli.progress import LiveBar, PlainLines, _bar, figures
from harness.errors import duration
from harness.results.manifest import Status

STORY = [
    events.CampaignBegins("night-20260101T000000Z", experiments=9, done=2, remaining_s=28_140.0),
    events.StepBegins("resnet50_r8_time-slicing_rep1", 3, 1, "record", 3600.0, 28_000.0),
    events.RowsRecorded(
        "resnet50_r8_time-slicing_rep1",
        360,
        721,
        window_s=20.0,
        now=(Now("all", 2029.4, 0.00708), *(Now(f"replica-{index}", 253.7, None) for index in range(18))),
    ),
    events.Notice("replica 3 was killed by signal 9; last lines: out of memory"),
    events.StepEnds("resnet50_r8_time-slicing_rep1", "record", ok=False, seconds=9.0, reasons=["record: stopped."]),
    events.ExperimentEnds("resnet50_r8_time-slicing_rep1", 3, Status.INVALID, ["record: stopped."], 24_000.0),
]
SENTENCES = [
    "night-20260101T000000Z: 9 experiments, 2 done before; about 7 h 49 min to go",
    "  replica 3 was killed by signal 9; last lines: out of memory",
    "  record: stopped.",
    "[3/9] resnet50_r8_time-slicing_rep1 INVALID: record: stopped.",
]


def test_plain_lines_are_whole_and_carry_no_control_characters(capsys):
    tell = PlainLines()
    for event in STORY:
        tell(event)

    said = capsys.readouterr().err
    assert all(sentence in said for sentence in SENTENCES)
    assert "[3/9] resnet50_r8_time-slicing_rep1: record (60 min 00 s; 7 h 46 min to go)" in said.replace(
        "1 h 00 min", "60 min 00 s"
    )
    assert "360 of 721 rows; last 20 s: 2,029 req/s, p99 7.08 ms" in said
    assert "replica-0" not in said
    assert "\x1b" not in said


def test_a_terminal_gets_a_bar_with_the_time_to_go_and_keeps_what_ended(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # one that cannot move its cursor gets none
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, highlight=False, color_system=None)
    stdout = sys.stdout
    with _bar(console) as progress:
        assert sys.stdout is stdout  # or what goes to a file would go to the screen
        tell = LiveBar(progress)
        for event in STORY[:3]:
            tell(event)
        progress.refresh()
        during = screen.getvalue()
        for event in STORY[3:]:
            tell(event)

    assert "[3/9] resnet50_r8_time-slicing_rep1: record" in during
    assert "360 of 721 rows" in during
    assert "7 h 46 min to go" in during
    assert "last 20 s: 2,029 req/s, p99 7.08 ms" in during
    assert f"replica-15 254 req/s, p99 {DASH}" in during
    assert "and 2 more replicas" in during
    assert "replica-16" not in during
    assert all(sentence in screen.getvalue() for sentence in SENTENCES)


def test_without_colours_the_bar_still_shows_what_is_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    with _bar(Console(file=screen, force_terminal=True, width=80)) as progress:
        tell = LiveBar(progress)
        tell(events.RowsRecorded("resnet50_r1_time-slicing_rep1", 1, 3))
        progress.refresh()
    assert f"{'#' * 10}{'-' * 20} 1 of 3 rows" in screen.getvalue()


def test_a_recording_whose_rows_come_at_the_end_shows_no_figures():
    assert figures(events.RowsRecorded("resnet50_r1_time-slicing_rep1", 1, 2)) == []
    alone = (Now("all", 10.0, 0.1), Now("replica-0", 10.0, 0.1))
    assert figures(events.RowsRecorded("a", 1, 2, 4.0, alone)) == ["last 4 s: 10.0 req/s, p99 100 ms"]


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
