"""``--fail-on``: what a pipeline is told of a plan, a run, a report and a comparison, and by which exit code."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from harness.analysis import report
from harness.analysis.campaign import analyse
from harness.analysis.objective import fewest_requests, share_interval
from harness.campaign import preflight, thresholds
from harness.cli import app, campaign, main, output
from harness.errors import (
    DegradedError,
    ExperimentsFailedError,
    FailOn,
    HarnessError,
    Issue,
    IssueLevel,
    ObjectiveMissedError,
    PreflightError,
    RegressionError,
    ResultsPathError,
    StorageError,
    UsageError,
)
from harness.results.layout import STATE
from harness.results.manifest import Status
from harness.results.requests import Window
from harness.spec.load import parse_campaign
from tests.unit.results.synthetic import Shape, write_campaign

PLAN = """
name: gate
workloads: [{name: resnet50, device: cpu}]
replicas: [1, 3]
repeats: 3
"""
SERVED = """
name: served
workloads:
  - name: llm
    server: {url: ['http://127.0.0.1:9', 'http://127.0.0.1:8'], protocol: openai-chat, model: m, rate: 10}
replicas: [1, 2]
slo: {latency_p99_ms: 500}
timing: {record_s: SECONDS}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(name: str, *, seed: int, repeats: int = 3, finished: int | None = None, **changes: Any) -> Path:
        return write_campaign(
            tmp_path_factory.mktemp("r") / name,
            replicas=(1, 3),
            repeats=repeats,
            finished=finished,
            shape=Shape(**{"record_s": 5, "seed": seed, **changes}),
        )

    return make


@pytest.fixture(scope="module")
def baseline(folder: Callable[..., Path]) -> Path:
    return folder("baseline", seed=0)


@pytest.fixture(scope="module")
def slower(folder: Callable[..., Path]) -> Path:
    return folder("slower", seed=200, scale=0.7, status=Status.DEGRADED)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is drawn elsewhere, which takes seconds; and nothing on this machine speaks against a plan."""
    monkeypatch.setattr(report, "report_of", lambda analysis, out=None: (out or analysis.folder) / "report.html")
    monkeypatch.setattr(output, "_json_mode", False)
    monkeypatch.setattr(preflight, "check", lambda *_: [])


def call(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def failure(done: Result) -> HarnessError:
    assert isinstance(done.exception, HarnessError), done.output
    return done.exception


def plan(tmp_path: Path, text: str, *words: object) -> Result:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    return call("plan", file, "--results", tmp_path, *words)


@pytest.mark.parametrize("command", ["plan", "run", "resume", "report", "compare"])
def test_a_typing_error_is_told_with_what_there_is(command: str) -> None:
    done = call(command, "x", "--fail-on", "regresion")
    assert done.exit_code == 2
    assert "'regresion' is not one of 'slo', 'regression', 'degraded', 'invalid'" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "smoke", "--fail-on", "slo"], "has no `slo`"),
        (["run", "smoke", "--fail-on", "slo"], "has no `slo`"),
        (["run", "smoke", "--fail-on", "regression"], "Add --baseline"),
        (["report", "x", "--fail-on", "regression"], "Add --baseline"),
        (["report", "x", "--baseline", "y"], "no effect without --fail-on regression"),
        (["compare", "x", "y", "--within", "5"], "no effect without --fail-on regression"),
        (["compare", "x", "--fail-on", "regression"], "give the baseline first"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_is_read_or_run(words: list[str], said: str) -> None:
    assert isinstance(failure(call(*words)), UsageError)
    assert said in str(failure(call(*words)))


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [("", "", ["--within", "100"]), ("resnet50", "whisper", []), ("repeats: 3", "repeats: 1", [])],
)
def test_a_baseline_that_cannot_be_compared_with_is_refused_before_hours_of_running(
    baseline: Path, tmp_path: Path, old: str, new: str, more: list[str]
) -> None:
    words = ["--fail-on", "regression", "--baseline"]
    assert isinstance(failure(plan(tmp_path, PLAN.replace(old, new), *words, baseline, *more)), UsageError)


def test_a_baseline_is_looked_at_before_hours_of_running(
    baseline: Path, folder: Callable[..., Path], tmp_path: Path
) -> None:
    words = ["--fail-on", "regression", "--baseline"]
    assert plan(tmp_path, PLAN, *words, baseline).exception is None
    assert isinstance(failure(plan(tmp_path, PLAN, *words, tmp_path / "nowhere")), ResultsPathError)
    assert failure(plan(tmp_path, PLAN, *words, folder("single", seed=300, repeats=1))).exit_code == 2


@pytest.mark.parametrize("asked", [[], ["invalid"], ["degraded"]])
def test_a_plan_that_preflight_refuses_fails_as_its_run_would(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Issue(IssueLevel.ERROR, "disk", "the disk is full.", "Free some."),
        Issue(IssueLevel.WARNING, "load", "busy."),
    ]
    monkeypatch.setattr(preflight, "check", lambda *_: found)
    done = plan(tmp_path, PLAN, *(word for reason in asked for word in ("--fail-on", reason)), "--json")
    assert isinstance(failure(done), PreflightError)
    reasons = [(each["reason"], each["exit_code"]) for each in json.loads(done.stdout)["failed_on"]]
    assert reasons == [("preflight", 3), *([("degraded", 14)] if asked == ["degraded"] else [])]


def test_a_plan_says_each_of_several_errors_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Issue(IssueLevel.ERROR, "disk", f"disk {name} is full.", "Free some.") for name in ("a", "b")]
    monkeypatch.setattr(preflight, "check", lambda *_: found)
    done = plan(tmp_path, PLAN)
    assert [done.stdout.count(f"preflight error: disk {name} is full. Free some.") for name in ("a", "b")] == [1, 1]
    assert (
        str(failure(done)) == "preflight found 2 errors, so harness run would refuse this campaign. Fix each of them."
    )
    assert isinstance(failure(done), PreflightError)


def test_a_plan_with_warnings_fails_where_degraded_runs_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check", lambda *_: [Issue(IssueLevel.WARNING, "load", "busy.", "Wait.")])
    assert plan(tmp_path, PLAN, "--fail-on", "invalid").exception is None
    error = failure(plan(tmp_path, PLAN, "--fail-on", "degraded"))
    assert (type(error), error.exit_code, error.message) == (DegradedError, 14, "Preflight warns: busy.")


def test_a_plan_too_short_for_its_objective_fails(tmp_path: Path) -> None:
    error = failure(plan(tmp_path, SERVED.replace("SECONDS", "30"), "--fail-on", "slo"))
    assert isinstance(error, ObjectiveMissedError)
    assert error.message.startswith(
        "llm: 10 requests/s to each server make about 300 requests in 30 s. The objective can"
    )
    assert plan(tmp_path, SERVED.replace("SECONDS", "40"), "--fail-on", "slo").exception is None
    without_rate = SERVED.replace(", rate: 10", "").replace("SECONDS", "30")
    assert thresholds.too_short(parse_campaign(without_rate, origin="")) == []


@pytest.mark.parametrize(("most", "enough"), [(8, False), (16, True)])
def test_a_plan_that_raises_the_rate_is_judged_by_the_load_it_may_come_to(
    tmp_path: Path, most: int, enough: bool
) -> None:
    raised = f"{SERVED}stress: {{load: rate, first: 2, most: {most}}}\n".replace("rate: 10", "rate: 1")
    text = raised.replace("[1, 2]", "[1]").replace("SECONDS", "30")

    spec = parse_campaign(text, origin="")
    done = plan(tmp_path, text, "--json")

    assert bool(thresholds.too_short(spec)) is not enough
    point = json.loads(done.stdout)["point"]
    assert (point["duration_s"], point["starts_s"]) == (30 + 30 + 10, pytest.approx(4.8))


@pytest.mark.parametrize("allowed", [0.01, 0.001])
def test_so_many_requests_of_which_none_is_missed_keep_a_share_and_one_less_does_not(allowed: float) -> None:
    def upper(number: int) -> float:
        at_ns = np.linspace(0, 10e9, number, dtype=np.int64)
        return share_interval(np.zeros(number, bool), at_ns, Window(0.0, 10.0))[1]

    assert upper(fewest_requests(allowed)) <= allowed < upper(fewest_requests(allowed) - 1)


def test_a_report_fails_on_what_is_worse_degraded_or_missing(
    baseline: Path, slower: Path, folder: Callable[..., Path]
) -> None:
    assert call("report", baseline, "--fail-on", "invalid", "--fail-on", "degraded").exception is None
    degraded = failure(call("report", slower, "--fail-on", "degraded"))
    assert isinstance(degraded, DegradedError)
    assert degraded.message.startswith("6 of 6 experiments are DEGRADED: ")

    against = call("report", slower, "--fail-on", "regression", "--baseline", baseline)
    assert isinstance(failure(against), RegressionError)
    assert "resnet50/time-slicing/3: throughput, requests/s: " in failure(against).message
    counts = against.stdout.splitlines()[-2]
    assert counts.startswith("slower against the baseline, figures within 10%: worse ")
    assert counts.endswith("better 0, agrees 0, inconclusive 0.")
    better = call("report", baseline, "--fail-on", "regression", "--baseline", slower)
    assert better.exception is None, better.output
    assert "worse 0, better " in better.stdout
    itself = call("report", baseline, "--fail-on", "regression", "--baseline", baseline)
    assert isinstance(failure(itself), UsageError)

    unfinished = folder("unfinished", seed=400, finished=4)
    missing = failure(call("report", unfinished, "--fail-on", "degraded"))
    assert isinstance(missing, ExperimentsFailedError)
    assert missing.message.startswith("2 of 6 experiments are MISSING: ")
    assert isinstance(failure(call("report", baseline, "--fail-on", "slo")), UsageError)


def test_runs_that_cannot_be_compared_do_not_pass(baseline: Path, folder: Callable[..., Path]) -> None:
    broken = folder("broken", seed=500, status=Status.INVALID)
    error = failure(call("report", broken, "--fail-on", "regression", "--baseline", baseline))
    assert isinstance(error, RegressionError)
    assert "Nothing could be compared with the baseline" in error.message


def test_a_comparison_takes_the_first_campaign_as_the_baseline(baseline: Path, slower: Path) -> None:
    done = call("compare", baseline, slower, "--fail-on", "regression", "--fail-on", "degraded", "--json")
    assert failure(done).exit_code == 13
    found = json.loads(done.stdout)
    assert [(each["reason"], each["exit_code"]) for each in found["failed_on"]] == [
        ("regression", 13),
        ("degraded", 14),
    ]
    assert "slower/resnet50_r1_time-slicing_rep1" in found["failed_on"][1]["message"]
    (against,) = found["regression"]
    assert (against["campaign"], against["outcome"]) == ("slower", "differs")
    assert len(against["worse"]) == sum(len(cell["measures"]) for cell in against["cells"])
    before, after = analyse(baseline), analyse(slower)
    for pair, within in (([after, before], None), ([before, after], 90.0)):
        assert not thresholds.judge_analyses(
            thresholds.thresholds([FailOn.REGRESSION], None, within, campaigns=2), pair
        ).failures


def test_a_limit_of_the_p99_is_the_objective_of_any_workload(baseline: Path) -> None:
    p99_ms = [1e3 * cell.estimates["latency_p99_exact"].mean for cell in analyse(baseline).cells]
    for limit_ms, code in ((3 * max(p99_ms), 0), (max(p99_ms), 11), (min(p99_ms) / 3, 11)):
        done = call("compare", baseline, "--latency-limit-ms", limit_ms, "--fail-on", "slo", "--json")
        reasons = [each["exit_code"] for each in json.loads(done.stdout)["failed_on"]]
        assert reasons == [code] * bool(code)


def test_a_folder_of_campaigns_is_listed_and_compared_with_nothing(baseline: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(baseline, tmp_path / name)
    done = call("compare", tmp_path, "--fail-on", "invalid")

    error = failure(done)
    assert (error.exit_code, error.message) == (2, f"{tmp_path} holds 2 campaigns: which are compared?")
    assert error.advice.endswith(f"harness compare {tmp_path / 'a'} {tmp_path / 'b'}")
    assert done.stdout.split() == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_a_report_that_cannot_be_written_says_what_writes_it_elsewhere(
    baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise StorageError("Cannot write report.html: Permission denied.", advice="Choose another folder.")

    monkeypatch.setattr(report, "report_of", full)
    assert "--out" in failure(call("report", baseline)).advice


def test_of_several_failures_all_are_told_and_the_lowest_code_is_taken() -> None:
    asked = thresholds.thresholds([FailOn.DEGRADED, FailOn.SLO])
    statuses = {"a": Status.DEGRADED.value, "b": Status.VALID.value, "c": Status.INVALID.value}
    judged = asked.judge(statuses, {"a": {"outcome": "fail"}, "b": {"outcome": "pass"}})
    assert [each.exit_code for each in judged.failures] == [4, 11, 14]
    with pytest.raises(
        ExperimentsFailedError,
        match=r"1 of 3 .* c\. The objective .* a \(fail\)\. 1 of 3 .*: a\. The report says why\.$",
    ):
        judged.refuse()
    with pytest.raises(ObjectiveMissedError, match="no experiment was judged"):
        asked.judge({"b": Status.VALID.value}, {}).refuse()


@pytest.mark.parametrize("drawn", [True, False])
def test_a_run_fails_on_what_its_report_would_have_failed_on(
    baseline: Path, slower: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, drawn: bool
) -> None:
    monkeypatch.setattr(output, "_json_mode", True)
    analysis = analyse(slower)
    outcome: Any = SimpleNamespace(statuses={each.name: each.status for each in analysis.experiments}, invalid=[])
    run: Any = SimpleNamespace(path=slower, spec=analysis.spec, state=slower / STATE)
    asked = thresholds.thresholds([FailOn.REGRESSION, FailOn.DEGRADED], baseline)
    with pytest.raises(RegressionError):
        campaign._finish(outcome, run, asked, report=drawn)
    found = json.loads(capsys.readouterr().out)
    assert [each["reason"] for each in found["failed_on"]] == ["regression", "degraded"]
    assert ("figures" in found) is drawn


def test_a_run_fails_on_invalid_experiments_in_any_case(slower: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {"a": Status.INVALID, "b": Status.INVALID, "c": Status.VALID}
    outcome: Any = SimpleNamespace(statuses=statuses, invalid=["b"])
    run: Any = SimpleNamespace(path=slower, spec=analyse(slower).spec, state=slower / STATE)
    with pytest.raises(ExperimentsFailedError, match="1 of 2 experiments are INVALID: b") as refused:
        campaign._finish(outcome, run, thresholds.thresholds(None), report=False)
    assert "harness resume --retry-invalid" in refused.value.advice
    assert capsys.readouterr().out.startswith("results: ")


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")],
    ids=["a thread", "a process"],
)
def test_no_more_threads_or_processes_is_a_sentence_and_an_exit_code(monkeypatch, capsys, failure):
    def none_left(**_):
        raise failure

    monkeypatch.setattr("harness.cli._command", lambda: none_left)
    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 8
    assert "No more threads or processes can be started" in capsys.readouterr().err
