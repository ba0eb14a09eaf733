import json
from collections.abc import Callable

import pytest

from harness.errors import NodeUnreachableError, PlaybookError, UsageError
from harness.node.checks import registered
from harness.node.expected import Expected
from harness.node.verify import CheckResult, NodeVerdict, NotApplicableCheck, judge, selected, until_ok
from tests.unit.node.healthy import BOOT_ID, VARIABLES, machine, node


def verdict(*, ok: bool) -> NodeVerdict:
    return NodeVerdict("n", BOOT_ID, "2026-01-01T00:00:00+00:00", [CheckResult("swap/now", ok, "none", "none")])


def answers(*given: NodeVerdict | Exception) -> Callable[[], NodeVerdict]:
    left = list(given)

    def once() -> NodeVerdict:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return once


def test_the_document_has_the_promised_shape() -> None:
    document = json.loads(json.dumps(judge("n", node(machine()), registered()).to_dict()))
    assert set(document) == {"ok", "host", "boot_id", "checked_at", "checks", "not_applicable"}
    assert document["ok"] is True
    assert document["boot_id"] == BOOT_ID
    assert set(document["checks"][0]) == {"name", "ok", "expected", "found", "advice", "journal"}


def test_nothing_judged_is_not_well() -> None:
    empty = NodeVerdict("n", BOOT_ID, "", [], [NotApplicableCheck("kernel/psi", "told off")])
    assert not empty.ok


def test_areas_select_and_unknown_ones_are_refused() -> None:
    assert {check.area for check in selected(["swap", "crio"])} == {"swap", "crio"}
    assert selected([]) == list(registered())
    assert selected(["roles"]) == []
    with pytest.raises(UsageError, match="no checks in swop") as caught:
        selected(["swop"])
    assert "swap" in caught.value.advice


def test_waiting_ends_with_the_first_good_verdict() -> None:
    good = verdict(ok=True)
    once = answers(verdict(ok=False), NodeUnreachableError("booting"), good)
    assert until_ok(once, wait_s=5.0, retry_s=0.01) is good


def test_waiting_ends_with_the_last_bad_verdict() -> None:
    bad = verdict(ok=False)
    assert until_ok(answers(*[bad] * 20), wait_s=0.05, retry_s=0.02) is bad


def test_without_waiting_there_is_one_verdict() -> None:
    bad = verdict(ok=False)
    assert until_ok(answers(bad), wait_s=0.0, retry_s=0.01) is bad


def test_a_machine_that_stays_silent_is_an_error() -> None:
    silent = NodeUnreachableError("gone")
    with pytest.raises(NodeUnreachableError, match="gone"):
        until_ok(answers(*[silent] * 20), wait_s=0.05, retry_s=0.02)


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(PlaybookError, match="no value for crio_version, node_gpu"):
        Expected.from_variables({**VARIABLES, "crio_version": "", "node_gpu": None})


def test_false_is_a_value() -> None:
    assert Expected.from_variables({**VARIABLES, "preflight_psi_required": False}).preflight_psi_required is False


def test_a_worker_has_its_own_name() -> None:
    expected = Expected.from_variables({**VARIABLES, "group_names": ["workers", "nodes"]})
    assert (expected.kind, expected.node_name) == ("worker", "second")


def test_without_named_users_it_is_whoever_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "grace")
    variables = {**VARIABLES, "control_plane_kubeconfig_users": []}
    assert Expected.from_variables(variables).kubeconfig_users == ("grace",)
    assert Expected.from_variables({**variables, "ansible_user": "ubuntu"}).kubeconfig_users == ("ubuntu",)
