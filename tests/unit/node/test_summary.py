import json

import pytest

from harness.errors import NodeError
from harness.node.errors import NodeTimeoutError, NodeUnreachableError, TaskFailedError
from harness.node.events import NodeEvent, OutputLine, RunEnded, TaskEnded, TaskOutcome, TaskStarted
from harness.node.summary import RunStatus, SummaryBuilder

ZERO = {"ok": 0, "changed": 0, "skipped": 0, "failures": 0, "dark": 0, "rescued": 0, "ignored": 0}


def builder(*events: NodeEvent) -> SummaryBuilder:
    summary = SummaryBuilder("site.yml", check_mode=False, started_s=100.0)
    for event in events:
        summary.add(event)
    return summary


def failed(host: str, task: str, error: str = "no", at_s: float = 1.0, role: str = "crio") -> TaskEnded:
    return TaskEnded(at_s, host, task, role, TaskOutcome.FAILED, 0.1, error, "roles/crio/tasks/main.yml:7")


def recap(at_s: float = 10.0, **hosts: dict[str, int]) -> RunEnded:
    return RunEnded(at_s, {host: {**ZERO, **counts} for host, counts in hosts.items()})


def test_seconds_per_role_are_wall_clock_from_task_to_task() -> None:
    summary = builder(
        TaskStarted(0.0, "a", "swap"),
        TaskStarted(2.0, "b", "kernel"),
        TaskStarted(5.0, "c", "swap"),
        recap(at_s=9.0, node={"ok": 3}),
    ).build(110.0, exit_code=0, timed_out=False)
    assert [(role.role, role.tasks, role.duration_s) for role in summary.roles] == [
        ("swap", 2, 6.0),
        ("kernel", 1, 3.0),
    ]
    assert summary.duration_s == 10.0


def test_a_run_without_recap_closes_its_last_task_at_the_last_event() -> None:
    summary = builder(
        TaskStarted(0.0, "a", "swap"), TaskEnded(4.0, "n", "a", "swap", TaskOutcome.OK), OutputLine(0.0, "Killed")
    ).build(110.0, exit_code=137, timed_out=False)
    assert summary.roles[0].duration_s == 4.0
    assert summary.status is RunStatus.FAILED


def test_changes_name_their_task_and_count_by_the_recap() -> None:
    summary = builder(
        TaskStarted(0.0, "a", "swap"),
        TaskEnded(1.0, "n", "a", "swap", TaskOutcome.CHANGED, path="p:1"),
        recap(n={"ok": 1, "changed": 1}),
    ).build(101.0, exit_code=0, timed_out=False)
    assert summary.ok
    assert summary.changed == 1
    assert [(record.host, record.role, record.task) for record in summary.changes] == [("n", "swap", "a")]
    assert summary.require_ok() is summary


def test_a_rescued_failure_is_not_reported() -> None:
    summary = builder(failed("n", "rescued"), failed("n", "final"), recap(n={"failures": 1, "rescued": 1})).build(
        101.0, exit_code=2, timed_out=False
    )
    assert [record.task for record in summary.failures] == ["final"]


def test_a_run_with_only_rescued_failures_is_ok() -> None:
    summary = builder(failed("n", "rescued"), recap(n={"ok": 2, "rescued": 1})).build(
        101.0, exit_code=0, timed_out=False
    )
    assert summary.ok
    assert summary.failures == ()


def test_a_failed_task_becomes_an_error_with_cause_host_and_place() -> None:
    summary = builder(
        failed("n", "Install", "no space left"), failed("m", "Install"), recap(n={"failures": 1}, m={"failures": 1})
    )
    with pytest.raises(TaskFailedError, match=r"'crio: Install' failed on n \(and 1 more\): no space left") as caught:
        summary.build(101.0, exit_code=2, timed_out=False).require_ok()
    assert "roles/crio/tasks/main.yml:7" in caught.value.advice
    assert caught.value.exit_code == 10
    assert isinstance(caught.value, NodeError)


def test_unreachable_is_told_apart_from_failed() -> None:
    event = TaskEnded(1.0, "n", "Gathering Facts", "(play)", TaskOutcome.UNREACHABLE, None, "timed out")
    summary = builder(event, recap(n={"dark": 1})).build(101.0, exit_code=4, timed_out=False)
    assert summary.status is RunStatus.UNREACHABLE
    with pytest.raises(NodeUnreachableError, match=r"Host n did not answer.*timed out"):
        summary.require_ok()


def test_a_timeout_says_how_long_it_ran() -> None:
    summary = builder(TaskStarted(0.0, "a", "swap")).build(130.0, exit_code=143, timed_out=True)
    with pytest.raises(NodeTimeoutError, match="after 30 s"):
        summary.require_ok()


def test_a_bad_end_without_a_failed_task_gives_what_ansible_said() -> None:
    summary = builder(OutputLine(1.0, "ERROR! no hosts matched")).build(101.0, exit_code=1, timed_out=False)
    with pytest.raises(TaskFailedError, match="no hosts matched"):
        summary.require_ok()


def test_output_is_bounded() -> None:
    summary = builder(*[OutputLine(1.0, str(number)) for number in range(1000)]).build(
        101.0, exit_code=0, timed_out=False
    )
    assert len(summary.output) == 40
    assert summary.output[-1] == "999"


def test_the_summary_is_json() -> None:
    summary = builder(failed("n", "t"), recap(n={"failures": 1})).build(101.0, exit_code=2, timed_out=False)
    data = json.loads(json.dumps(summary.to_dict()))
    assert data["ok"] is False
    assert data["status"] == "failed"
    assert data["failures"][0]["task"] == "t"
    assert data["started_at"] == "1970-01-01T00:01:40+00:00"
