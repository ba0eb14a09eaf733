from typing import Any

from harness.node.events import (
    MAX_ERROR_CHARACTERS,
    OutputLine,
    PlayStarted,
    RunEnded,
    TaskEnded,
    TaskOutcome,
    TaskStarted,
    clip,
    host_error,
    translate,
)

AT = "2026-01-02T03:04:05.500000+00:00"


def raw(event: str, **data: Any) -> dict[str, Any]:
    return {"event": event, "created": AT, "event_data": data}


def ended(raw_event: dict[str, Any]) -> TaskEnded:
    event = translate(raw_event)
    assert isinstance(event, TaskEnded)
    return event


def test_a_play_and_a_task_begin() -> None:
    assert translate(raw("playbook_on_play_start", name="Node")) == PlayStarted(1767323045.5, "Node")
    assert translate(raw("playbook_on_task_start", name="Install", role="crio")) == TaskStarted(
        1767323045.5, "Install", "crio"
    )


def test_a_task_outside_roles_says_so() -> None:
    assert translate(raw("playbook_on_task_start", name="Facts")) == TaskStarted(1767323045.5, "Facts", "(play)")


def test_a_result_that_changed_is_changed() -> None:
    event = ended(raw("runner_on_ok", host="n", task="t", role="swap", res={"changed": True}, duration=0.25))
    assert event == TaskEnded(1767323045.5, "n", "t", "swap", TaskOutcome.CHANGED, 0.25)


def test_a_failure_carries_the_hosts_words_and_the_place() -> None:
    event = ended(raw("runner_on_failed", host="n", task="t", task_path="/x/y.yml:3", res={"msg": "no", "rc": 1}))
    assert (event.outcome, event.error, event.path) == (TaskOutcome.FAILED, "no", "/x/y.yml:3")
    assert event.duration_s is None


def test_an_ignored_failure_is_no_failure() -> None:
    event = ended(raw("runner_on_failed", host="n", task="t", ignore_errors=True, res={"msg": "no"}))
    assert event.outcome is TaskOutcome.IGNORED


def test_unreachable_has_its_reason() -> None:
    event = ended(raw("runner_on_unreachable", host="n", task="t", res={"msg": "timed out", "unreachable": True}))
    assert (event.outcome, event.error) == (TaskOutcome.UNREACHABLE, "timed out")


def test_the_recap_counts_every_host_even_the_dark_ones() -> None:
    event = translate(raw("playbook_on_stats", ok={"a": 3}, processed={"a": 1}, dark={"b": 1}, changed={"a": 2}))
    assert isinstance(event, RunEnded)
    assert event.counts["a"]["ok"] == 3
    assert event.counts["a"]["changed"] == 2
    assert event.counts["b"]["dark"] == 1
    assert event.counts["b"]["ok"] == 0


def test_talk_is_kept_and_empty_talk_is_not() -> None:
    assert translate({"event": "warning", "created": AT, "stdout": " careful\n"}) == OutputLine(1767323045.5, "careful")
    assert translate({"event": "verbose", "created": AT, "stdout": " \n"}) is None


def test_events_nobody_needs_are_dropped() -> None:
    assert translate(raw("runner_on_start", host="n")) is None
    assert translate({"event": "EOF"}) is None


def test_error_joins_message_and_stderr_once() -> None:
    assert host_error({"msg": "failed", "stderr": "why", "stdout": "noise"}) == "failed\nwhy"
    assert host_error({"msg": "why", "stderr": "why"}) == "why"


def test_error_takes_stdout_only_where_stderr_is_silent() -> None:
    assert host_error({"msg": "non-zero return code", "stdout": "the reason"}) == "non-zero return code\nthe reason"


def test_error_names_the_failed_items_of_a_loop_only() -> None:
    result = {
        "msg": "One or more items failed",
        "results": [{"item": "a"}, {"item": "b", "failed": True, "msg": "no b"}],
    }
    assert host_error(result) == "b: no b"


def test_error_of_a_hidden_task_shows_nothing() -> None:
    assert host_error({"censored": "hidden", "msg": "s3cret"}) == "the task hides its output (no_log)"


def test_error_without_words_says_so() -> None:
    assert host_error({}) == "the host gave no reason"


def test_clip_keeps_both_ends() -> None:
    text = "begin" + "x" * 10_000 + "end"
    clipped = clip(text)
    assert clipped.startswith("begin")
    assert clipped.endswith("end")
    assert len(clipped) < MAX_ERROR_CHARACTERS + 100
    assert clip("short ") == "short"
