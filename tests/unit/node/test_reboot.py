from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import NodeError, StorageError, UsageError
from harness.node import verify
from harness.node.events import NodeEvent, RunStatus, RunSummary, TaskRecord
from harness.node.verify import BootState, CheckResult, NodeVerdict, RebootTest, VerifyRequest, compare, unconverged

GOOD = CheckResult("swap/now", ok=True, expected="none", found="none")
BAD = CheckResult("swap/now", ok=False, expected="none", found="/swap.img", advice="turn it off")
OTHER = CheckResult("crio/service", ok=True, expected="active", found="active")


def verdict(boot_id: str, *checks: CheckResult, host: str = "n") -> NodeVerdict:
    return NodeVerdict(host, boot_id, "2026-01-01T00:00:00+00:00", list(checks))


def run(*, changed: int = 0, failures: Sequence[TaskRecord] = ()) -> RunSummary:
    counts = {"ok": 3, "changed": changed, "skipped": 0, "failures": len(failures), "dark": 0}
    changes = tuple(TaskRecord("n", "swap", f"task {number}") for number in range(changed))
    status = RunStatus.FAILED if failures else RunStatus.OK
    return RunSummary("site.yml", status, False, "", 1.0, {"n": counts}, tuple(failures), changes, (), ())


BEFORE = BootState("n", "one", ("swap/now", "crio/service"))


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (verdict("two", GOOD, OTHER), ()),
        (verdict("one", GOOD, OTHER), ("has not rebooted",)),
        (verdict("two", BAD, OTHER), ("/swap.img", "turn it off")),
        (verdict("two", GOOD), ("no longer judged by crio/service",)),
        (verdict("two", GOOD, OTHER, host="m"), ("n was judged before the reboot and not after",)),
    ],
)
def test_what_is_wrong_after_a_reboot_is_one_problem(after: NodeVerdict, problem: Sequence[str]) -> None:
    problems = compare([BEFORE], [after])
    assert len(problems) == bool(problem)
    assert all(part in problems[0] for part in problem)


def test_a_second_run_that_changes_something_or_fails_is_a_problem() -> None:
    assert unconverged(run()) == []
    (problem,) = unconverged(run(changed=12))
    assert "changed 12 things: swap: task 0 (n); swap: task 1 (n)" in problem
    assert "task 10" not in problem
    (problem,) = unconverged(run(failures=[TaskRecord("n", "crio", "Install", error="no space")]))
    assert "no space" in problem


class Story:
    """The machine as the test meets it: verdicts one after another, runs written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *verdicts: NodeVerdict, connection: str = "ssh") -> None:
        self.verdicts = list(verdicts)
        self.waits: list[float] = []
        self.runs: list[str] = []
        self.steps: list[str] = []
        self.second = run()
        monkeypatch.setattr(verify, "verify", self._verify)
        monkeypatch.setattr(verify, "resolve", lambda *_, **__: {"n": {"ansible_connection": connection}})
        monkeypatch.setattr(RebootTest, "_play", self._play)

    def _verify(self, _project: Path, request: VerifyRequest) -> list[NodeVerdict]:
        self.waits.append(request.wait_s)
        return [self.verdicts.pop(0)]

    def _play(self, playbook: Path) -> RunSummary:
        self.runs.append(str(playbook))
        return self.second

    def test(self) -> RebootTest:
        def listener(_event: NodeEvent) -> None:
            pass

        return RebootTest(Path(), VerifyRequest(wait_s=60.0), listener, self.steps.append)


def test_the_whole_test_judges_reboots_judges_and_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, verdict("one", GOOD), verdict("two", GOOD))
    report = story.test().run()
    assert report.ok
    assert story.runs == ["playbooks/reboot.yml", "site.yml"]
    assert story.waits == [0.0, 60.0]
    assert [step.split()[0] for step in story.steps] == ["judging", "rebooting", "judging", "converging"]
    document = report.to_dict()
    assert document["ok"] is True
    assert document["before"][0]["boot_id"] == "one"
    assert document["after"][0]["boot_id"] == "two"


def test_a_node_that_is_unwell_before_is_not_rebooted_and_leaves_no_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    story = Story(monkeypatch, verdict("one", BAD))
    with pytest.raises(NodeError, match="not well before the reboot"):
        story.test().run()
    assert story.runs == []
    with pytest.raises(NodeError, match="not well before the reboot"):
        Story(monkeypatch, verdict("one", BAD)).test().save_state(tmp_path / "state.json")
    assert not (tmp_path / "state.json").exists()


def test_the_machine_we_are_on_is_not_rebooted(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch, connection="local")
    with pytest.raises(UsageError, match="cannot watch its own reboot") as caught:
        story.test().run()
    assert "--before" in caught.value.advice
    assert story.runs == []


def test_two_halves_make_the_same_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    Story(monkeypatch, verdict("one", GOOD, OTHER)).test().save_state(state)
    story = Story(monkeypatch, verdict("two", GOOD, OTHER))
    report = story.test().compare_state(state)
    assert report.ok
    assert report.reboot_s is None
    assert story.runs == ["site.yml"]
    unbooted = Story(monkeypatch, verdict("one", GOOD, OTHER)).test().compare_state(state)
    assert not unbooted.ok


@pytest.mark.parametrize("text", ["", "{}", '[{"host": "n"}]', "[1]"])
def test_a_file_that_is_no_state_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    if text == "{}":
        state.unlink()
    with pytest.raises(UsageError, match="not a state saved before a reboot"):
        Story(monkeypatch).test().compare_state(state)


def test_a_state_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        Story(monkeypatch, verdict("one", GOOD)).test().save_state(tmp_path / "none" / "state.json")
