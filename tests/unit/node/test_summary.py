"""What Ansible says of a run becomes records, a summary, and the error that says what failed where and what to do next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.errors import NodeAccessError, NodeTimeoutError, NodeUnreachableError, TaskFailedError
from harness.node.events import (
    MAX_ERROR_CHARACTERS,
    OBSTACLES,
    NodeEvent,
    OutputLine,
    PlayStarted,
    RunEnded,
    RunStatus,
    RunSummary,
    SummaryBuilder,
    TaskEnded,
    TaskOutcome,
    TaskStarted,
    clip,
    host_error,
    obstacle,
    translate,
)

AT, AT_S = "2026-01-02T03:04:05.500000+00:00", 1767323045.5
ZERO = {"ok": 0, "changed": 0, "skipped": 0, "failures": 0, "dark": 0, "rescued": 0, "ignored": 0}
FAILED = {"host": "n", "task": "t", "task_path": "/x/y.yml:3", "res": {"msg": "no", "rc": 1}}


@pytest.mark.parametrize(
    ("raw", "event"),
    [
        (("playbook_on_play_start", {"name": "Node"}), PlayStarted(AT_S, "Node")),
        (("playbook_on_task_start", {"name": "Install", "role": "crio"}), TaskStarted(AT_S, "Install", "crio")),
        (("playbook_on_task_start", {"name": "Facts"}), TaskStarted(AT_S, "Facts", "(play)")),
        (
            ("runner_on_ok", {"host": "n", "task": "t", "role": "swap", "res": {"changed": True}}),
            TaskEnded(AT_S, "n", "t", "swap", TaskOutcome.CHANGED),
        ),
        (
            ("runner_on_failed", FAILED),
            TaskEnded(AT_S, "n", "t", "(play)", TaskOutcome.FAILED, "no", "/x/y.yml:3"),
        ),
        (
            ("runner_on_failed", {**FAILED, "ignore_errors": True}),
            TaskEnded(AT_S, "n", "t", "(play)", TaskOutcome.IGNORED, "no", "/x/y.yml:3"),
        ),
        (
            ("runner_on_unreachable", {"host": "n", "task": "t", "res": {"msg": "timed out", "unreachable": True}}),
            TaskEnded(AT_S, "n", "t", "(play)", TaskOutcome.UNREACHABLE, "timed out"),
        ),
        (
            ("playbook_on_stats", {"ok": {"a": 3}, "processed": {"a": 1}, "dark": {"b": 1}, "changed": {"a": 2}}),
            RunEnded(AT_S, {"a": {**ZERO, "ok": 3, "changed": 2}, "b": {**ZERO, "dark": 1}}),
        ),
        (("runner_on_start", {"host": "n"}), None),
        (("EOF", {}), None),
    ],
)
def test_an_event_of_ansible_is_a_record_or_nothing(raw: tuple[str, dict[str, Any]], event: NodeEvent | None) -> None:
    kind, data = raw
    assert translate({"event": kind, "created": AT, "event_data": data}) == event


def test_talk_is_kept_and_empty_talk_is_not() -> None:
    assert translate({"event": "warning", "created": AT, "stdout": " careful\n"}) == OutputLine(AT_S, "careful")
    assert translate({"event": "verbose", "created": AT, "stdout": " \n"}) is None


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "failed", "stderr": "why", "stdout": "noise"}, "failed\nwhy"),
        ({"msg": "why", "stderr": "why"}, "why"),
        ({"msg": "non-zero return code", "stdout": "the reason"}, "non-zero return code\nthe reason"),
        ({"msg": "x", "results": [{"item": "a"}, {"item": "b", "failed": True, "msg": "no b"}]}, "b: no b"),
        ({"censored": "hidden", "msg": "s3cret"}, "the task hides its output (no_log)"),
        ({}, "the host gave no reason"),
    ],
)
def test_why_a_task_failed_is_in_the_hosts_own_words(result: dict[str, Any], said: str) -> None:
    assert host_error(result) == said


def test_clip_keeps_both_ends() -> None:
    clipped = clip("begin" + "x" * 10_000 + "end")
    assert (clipped[:5], clipped[-3:]) == ("begin", "end")
    assert len(clipped) < MAX_ERROR_CHARACTERS + 100
    assert clip("short ") == "short"


def built(*events: NodeEvent, exit_code: int = 0, timed_out: bool = False, ended_s: float = 110.0) -> RunSummary:
    summary = SummaryBuilder("site.yml", check_mode=False, started_s=100.0)
    for event in events:
        summary.add(event)
    return summary.build(ended_s, exit_code=exit_code, timed_out=timed_out)


def failed(host: str, task: str, error: str = "no") -> TaskEnded:
    return TaskEnded(1.0, host, task, "crio", TaskOutcome.FAILED, error, "roles/crio/tasks/main.yml:7")


def recap(at_s: float = 10.0, **hosts: dict[str, int]) -> RunEnded:
    return RunEnded(at_s, {host: {**ZERO, **counts} for host, counts in hosts.items()})


def test_seconds_per_role_are_wall_clock_from_task_to_task() -> None:
    started = [TaskStarted(0.0, "a", "swap"), TaskStarted(2.0, "b", "kernel"), TaskStarted(5.0, "c", "swap")]
    summary = built(*started, recap(at_s=9.0, node={"ok": 3}))
    assert [(role.role, role.tasks, role.duration_s) for role in summary.roles] == [
        ("swap", 2, 6.0),
        ("kernel", 1, 3.0),
    ]
    assert summary.duration_s == 10.0
    killed = TaskEnded(4.0, "n", "a", "swap", TaskOutcome.OK), OutputLine(0.0, "Killed")
    cut = built(TaskStarted(0.0, "a", "swap"), *killed, exit_code=137)
    assert (cut.roles[0].duration_s, cut.status) == (4.0, RunStatus.FAILED)


def test_changes_name_their_task_and_count_by_the_recap() -> None:
    ended = TaskEnded(1.0, "n", "a", "swap", TaskOutcome.CHANGED, path="p:1")
    summary = built(TaskStarted(0.0, "a", "swap"), ended, recap(n={"ok": 1, "changed": 1}))
    assert (summary.ok, summary.changed) == (True, 1)
    assert [(record.host, record.role, record.task) for record in summary.changes] == [("n", "swap", "a")]
    assert summary.require_ok() is summary
    assert summary.to_dict()["obstacle"] is None


def test_a_rescued_failure_is_not_reported() -> None:
    summary = built(failed("n", "rescued"), failed("n", "final"), recap(n={"failures": 1, "rescued": 1}), exit_code=2)
    assert [record.task for record in summary.failures] == ["final"]
    assert built(failed("n", "rescued"), recap(n={"ok": 2, "rescued": 1})).failures == ()


@pytest.mark.parametrize(
    ("summary", "error", "said"),
    [
        (
            built(
                failed("n", "Install", "no space left"), failed("m", "Install"), recap(n={"failures": 1}), exit_code=2
            ),
            TaskFailedError,
            r"'crio: Install' failed on n \(and 1 more\): no space left",
        ),
        (
            built(
                TaskEnded(1.0, "n", "Gathering Facts", "(play)", TaskOutcome.UNREACHABLE, "timed out"),
                recap(n={"dark": 1}),
                exit_code=4,
            ),
            NodeUnreachableError,
            "Host n did not answer.*timed out",
        ),
        (
            built(TaskStarted(0.0, "a", "swap"), exit_code=143, timed_out=True, ended_s=130.0),
            NodeTimeoutError,
            "after 30 s",
        ),
        (built(OutputLine(1.0, "ERROR! no hosts matched"), exit_code=1), TaskFailedError, "no hosts matched"),
    ],
)
def test_a_run_that_did_not_end_well_says_why(summary: RunSummary, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        summary.require_ok()
    assert getattr(raised.value, "exit_code", None) == 10


def test_output_is_bounded_and_the_summary_is_json() -> None:
    output = [OutputLine(1.0, str(number)) for number in range(1000)]
    summary = built(*output, failed("n", "t"), recap(n={"failures": 1}), exit_code=2)
    document = json.loads(json.dumps(summary.to_dict()))
    assert (document["ok"], document["status"], document["failures"][0]["task"]) == (False, "failed", "t")
    assert document["failures"][0]["path"] == "roles/crio/tasks/main.yml:7"
    assert document["started_at"] == "1970-01-01T00:01:40+00:00"
    assert (len(document["output"]), document["output"][-1]) == (40, "999")


# Met on machines: sudo 1.9.13, OpenSSH 9.2, ansible-core 2.19 and newer.
NOT_JSON = "Module result deserialization failed: No start of json char found\n"
REACH = 'Task failed: Data could not be sent to remote host "node". Make sure this host can be reached over ssh: '
SAID = {
    "Task failed: Missing sudo password": "sudo-wants-a-password",
    "Task failed: Incorrect sudo password": "sudo-password-wrong",
    f"{NOT_JSON}ops is not in the sudoers file.": "sudo-refuses",
    f"{NOT_JSON}Sorry, user ops is not allowed to execute '/bin/sh -c x' as root on fresh.": "sudo-refuses",
    f"{NOT_JSON}/bin/sh: 1: sudo: Permission denied": "sudo-refuses",
    f"{NOT_JSON}/bin/sh: 1: sudo: not found": "sudo-refuses",
    f"{REACH}ops@127.0.0.1: Permission denied (publickey,password).": "login-refused",
    f"{REACH}Host key verification failed.": "host-key-changed",
    f"{REACH}ssh: Could not resolve hostname gpu-node: Name or service not known": "host-unknown",
}
LOST = [
    "Failed to connect to the host via ssh: Shared connection to 192.0.2.10 closed.",
    f"{REACH}ssh: connect to host 192.0.2.10 port 22: Connection refused",
    f"{REACH}Connection closed by 192.0.2.10 port 22",
    f"{REACH}mux_client_request_session: read from master failed: Broken pipe",
    f"{REACH}Timeout, server 192.0.2.10 not responding.",
]


@pytest.mark.parametrize(
    ("said", "had_answered", "code"),
    [
        *((said, had_answered, code) for said, code in SAID.items() for had_answered in (True, False)),
        *((said, had_answered, "connection-lost" if had_answered else None) for said in LOST for had_answered in (True, False)),
        ("/var/lib/x: Permission denied", True, None),
    ],
)  # fmt: skip
def test_what_sudo_and_ssh_say_is_known(said: str, had_answered: bool, code: str | None) -> None:
    found = obstacle(said, had_answered=had_answered)
    assert (found and found.code) == code


def test_each_obstacle_has_been_met() -> None:
    assert {known.code for known in OBSTACLES} == set(SAID.values())


def ended_with(error: str, *, ok: int = 2, unreachable: bool = False) -> RunSummary:
    outcome = TaskOutcome.UNREACHABLE if unreachable else TaskOutcome.FAILED
    counts = {"ok": ok, "failures": int(not unreachable), "dark": int(unreachable)}
    ended = TaskEnded(1.0, "node", "Look", "preflight", outcome, error=error)
    return built(ended, recap(node=counts), exit_code=4 if unreachable else 2)


def test_a_run_says_what_stands_in_the_way_where_and_what_to_do_next() -> None:
    run = ended_with("Task failed: Missing sudo password")
    assert run.to_dict()["obstacle"] == "sudo-wants-a-password"
    with pytest.raises(NodeAccessError, match=r"^Sudo on node wants a password.*at task 'preflight: Look'") as raised:
        run.require_ok()
    assert "--ask-become-pass" in raised.value.advice
    with pytest.raises(NodeAccessError, match="The connection to node was lost"):
        ended_with(LOST[0], unreachable=True).require_ok()
    with pytest.raises(NodeUnreachableError, match="did not answer"):
        ended_with(LOST[1], ok=0, unreachable=True).require_ok()
    with pytest.raises(TaskFailedError):
        ended_with("/var/lib/x: Permission denied").require_ok()
