"""What sudo and ssh say of themselves, word for word as Ansible hands it on, becomes a code and a next step."""

from __future__ import annotations

import pytest

from harness.node.errors import NodeAccessError, NodeUnreachableError, TaskFailedError
from harness.node.events import RunEnded, TaskEnded, TaskOutcome
from harness.node.summary import OBSTACLES, Access, RunSummary, SummaryBuilder, obstacle

# Met on machines: sudo 1.9.13, OpenSSH 9.2, ansible-core 2.19 and newer.
NOT_JSON = "Module result deserialization failed: No start of json char found\n"
REACH = 'Task failed: Data could not be sent to remote host "node". Make sure this host can be reached over ssh: '
SAID = {
    "Task failed: Missing sudo password": Access.SUDO_ASKS,
    "Task failed: Incorrect sudo password": Access.SUDO_DISBELIEVES,
    f"{NOT_JSON}ops is not in the sudoers file.": Access.SUDO_REFUSES,
    f"{NOT_JSON}Sorry, user ops is not allowed to execute '/bin/sh -c x' as root on fresh.": Access.SUDO_REFUSES,
    f"{NOT_JSON}/bin/sh: 1: sudo: Permission denied": Access.SUDO_REFUSES,
    f"{NOT_JSON}/bin/sh: 1: sudo: not found": Access.SUDO_REFUSES,
    f"{REACH}ops@127.0.0.1: Permission denied (publickey,password).": Access.LOGIN_REFUSED,
    f"{REACH}Host key verification failed.": Access.HOST_KEY,
    f"{REACH}ssh: Could not resolve hostname gpu-node: Name or service not known": Access.NO_ADDRESS,
}
LOST = [
    "Failed to connect to the host via ssh: Shared connection to 192.0.2.10 closed.",
    f"{REACH}ssh: connect to host 192.0.2.10 port 22: Connection refused",
    f"{REACH}Connection closed by 192.0.2.10 port 22",
    f"{REACH}mux_client_request_session: read from master failed: Broken pipe",
    f"{REACH}Timeout, server 192.0.2.10 not responding.",
]


def summary(error: str, *, ok: int = 2, outcome: TaskOutcome = TaskOutcome.FAILED) -> RunSummary:
    """A run that ended with this error at its last task, after so many that went well."""
    builder = SummaryBuilder("site.yml", check_mode=False, started_s=0.0)
    builder.add(TaskEnded(1.0, "node", "Look", "preflight", outcome, error=error))
    dark = outcome is TaskOutcome.UNREACHABLE
    counts = dict.fromkeys(("changed", "skipped", "rescued", "ignored"), 0)
    builder.add(RunEnded(2.0, {"node": {**counts, "ok": ok, "failures": int(not dark), "dark": int(dark)}}))
    return builder.build(3.0, exit_code=4 if dark else 2, timed_out=False)


@pytest.mark.parametrize(("said", "code"), SAID.items())
def test_what_is_said_is_known_whenever_it_comes(said: str, code: Access) -> None:
    for had_answered in (True, False):
        found = obstacle(said, had_answered=had_answered)
        assert found is not None
        assert found.code is code


def test_each_of_them_has_been_met() -> None:
    assert {one.code for one in OBSTACLES} == set(SAID.values())


@pytest.mark.parametrize("said", LOST)
def test_a_connection_is_lost_only_where_there_was_one(said: str) -> None:
    found = obstacle(said, had_answered=True)
    assert found is not None
    assert found.code is Access.CONNECTION_LOST
    assert obstacle(said, had_answered=False) is None


def test_a_failure_of_another_kind_is_no_obstacle() -> None:
    said = "/var/lib/x: Permission denied"
    assert obstacle(said, had_answered=True) is None
    with pytest.raises(TaskFailedError):
        summary(said).require_ok()


def test_a_run_says_what_stands_in_the_way_where_and_what_to_do_next() -> None:
    run = summary("Task failed: Missing sudo password")
    assert run.to_dict()["obstacle"] == "sudo-wants-a-password"
    with pytest.raises(NodeAccessError, match=r"^Sudo on node wants a password.*at task 'preflight: Look'") as raised:
        run.require_ok()
    assert "--ask-become-pass" in str(raised.value.advice)
    assert raised.value.exit_code == 10


def test_a_host_that_goes_away_in_the_middle_is_told_from_one_that_never_answered() -> None:
    with pytest.raises(NodeAccessError, match="The connection to node was lost") as raised:
        summary(LOST[0], outcome=TaskOutcome.UNREACHABLE).require_ok()
    assert "run it again" in str(raised.value.advice)
    with pytest.raises(NodeUnreachableError, match="did not answer"):
        summary(LOST[1], ok=0, outcome=TaskOutcome.UNREACHABLE).require_ok()


def test_a_run_that_went_well_has_none() -> None:
    builder = SummaryBuilder("site.yml", check_mode=False, started_s=0.0)
    assert builder.build(1.0, exit_code=0, timed_out=False).to_dict()["obstacle"] is None
