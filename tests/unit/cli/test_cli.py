"""The command line as a user meets it: a process, its output and its exit code."""

import json
import os
import shlex
import subprocess
import sys
import threading

import pytest
import typer
from typer.testing import CliRunner

from harness.campaign.folder import create
from harness.campaign.source import TEMPLATES, shipped_names
from harness.cli import MOVED, app, listed
from harness.cli.options import not_negative
from harness.clock import SystemClock
from harness.errors import EXIT_CODES, DeviceInUseError, UsageError
from harness.host import LOCKS_VARIABLE, DeviceLocks
from harness.metrics.nvml import GpuFacts
from tests.support import forked
from tests.support.experiments import campaign


def harness(*words, cwd=None, **environment):
    return forked.harness(*words, cwd=cwd, environment={**os.environ, "COLUMNS": "120", **environment})


WINDOW = ["export", "out", "--prometheus", "http://127.0.0.1:9", "--start", "2026-01-31T12:00:00Z", "--namespace", "n"]


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["archive", "results/x", "--out", "kept"], "snapshot"),
        (["profile", "resnet50", "--seed", "3"], "--write FILE"),
        (["leaderboard", "results"], "harness status"),
        (["publish", "results/x", "--sign=key"], "minisign"),
        (["verify", "x.tar.xz", "--signed-by", "signers"], "minisign"),
        (["verify-node", "--profile", "cis"], "kube-bench"),
    ],
)
def test_what_was_removed_names_what_to_use_instead(words, instead):
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert refused.value.exit_code == 2
    assert instead in refused.value.advice


@pytest.mark.parametrize("old", MOVED)
def test_a_command_that_moved_works_under_its_old_name_and_says_the_new_one(old):
    before, now = (CliRunner().invoke(app, [*name.split(), "--help"]) for name in (old, MOVED[old]))

    assert (before.exit_code, before.stdout) == (0, now.stdout)
    assert before.stderr == f"note: harness {old} is now: harness {MOVED[old]}\n"
    assert f"\n  {old} " not in CliRunner().invoke(app, ["--help"]).stdout


def test_help_groups_all_commands_and_exit_codes_and_cuts_none_short():
    said = harness("--help", COLUMNS="80").stdout
    panels = ["Start here:", "Run:", "Results:", "Node and cluster:", "Advanced:", "Exit codes:"]
    places = [said.index(panel) for panel in panels]

    assert places == sorted(places)
    for name, info in listed().items():
        place = places[panels.index(f"{info.rich_help_panel}:")]
        assert f"\n  {name} " in said[place : min(after for after in places if after > place)]
        assert info.callback.__doc__
    assert all(f" {code} " in " ".join(said.split()) for code in EXIT_CODES)
    assert "..." not in said[places[0] :]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "wanted", "example"),
    [
        ("verify", "RESULTS/CAMPAIGN: Folder of a campaign or of one experiment", "verify results/mine"),
        ("plan", "FILE_OR_NAME: A campaign file, or one that is shipped", "plan quickstart"),
    ],
)
def test_a_command_without_what_it_needs_says_what_and_how(command, wanted, example, tmp_path):
    folder = tmp_path / "results" / "mine"
    folder.mkdir(parents=True)
    (folder / "campaign.yaml").touch()
    done = harness(command, cwd=tmp_path)

    assert done.returncode == 2
    assert f"harness {command} needs {wanted}" in done.stderr
    assert done.stderr.endswith(f"harness {example}\n")


HEAVY = {
    "pydantic",
    "numpy",
    "pandas",
    "scipy",
    "torch",
    "yaml",
    "jinja2",
    "psutil",
    "rich",
    "kubernetes",
    "matplotlib",
}


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--help"], 0), (["--version"], 0), (["rnu"], 2), (["plan", "--help"], 0), (["plan", "x", "-y"], 2)],
)
def test_help_and_typing_errors_load_nothing_heavy(words, code):
    script = f"""
import atexit, sys
sys.argv[0] = "harness"
atexit.register(lambda: print("loaded", *{{name.partition(".")[0] for name in sys.modules}} & {HEAVY!r}, file=sys.stderr))
from harness.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, "loaded")


def test_running_and_verifying_wait_for_no_library_of_the_analysis(tmp_path):
    script = (
        "import sys, pathlib, harness.campaign.runner, harness.campaign.verify, tests.unit.results.synthetic as made;"
        "folder = made.write_campaign(pathlib.Path(sys.argv[1]), replicas=[1], repeats=1);"
        "assert harness.campaign.verify.verify_campaign(folder).ok;"
        "print({'pandas', 'scipy', 'matplotlib', 'torch', 'kubernetes'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "made")], capture_output=True, text=True, check=False
    )
    assert done.stdout == "set()\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["run"], "harness run needs FILE_OR_NAME"),
        (["run", "quikstart"], "did you mean `quickstart`?"),
        (["plan", "quickstart", "--resluts", "x"], "--results"),
        (["resume", "/nowhere"], "is not a campaign folder"),
        (["export", "x", "--step-s", "ten"], "'--step-s': must be a number."),
        (["sharing", "timeslicing"], "Did you mean time-slicing?"),
        (["verify", "/nowhere"], "there is no file and no folder /nowhere"),
        (["init", ""], "what follows init is empty"),
        (["run", "quickstart", "--results", ""], "what follows --results is empty"),
        (["report", "/nowhere", "--out="], "--out is empty"),
        (["export", "out", "--step-s", "0"], "is not a finite number above 0"),
        (["export", "out", "--duration-s", "nan"], "is not a finite number above 0"),
        (["export", "out", "--timeout-s", "-inf"], "is not a finite number above 0"),
        ([*WINDOW, "--step-s", "1e-300"], "Choose a longer step, or a shorter duration."),
        ([*WINDOW, "--step-s", "0.001", "--duration-s", "1e300"], "Choose a longer step, or a shorter duration."),
    ],
)
def test_a_slip_of_the_keyboard_gets_a_hint_and_exit_code_2(words, said):
    done = harness(*words)

    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_closed_streams_lead_nowhere_and_keep_their_numbers(tmp_path):
    command = f"{shlex.quote(sys.executable)} -m harness init mine.yaml --for scaling"
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), closed
        written = (tmp_path / "mine.yaml").read_text()
        assert "written. Edit it" not in written
        assert "name: mine" in written
        (tmp_path / "mine.yaml").unlink()


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "? ?.yaml written"), ("utf-8", "é \udcff.yaml written")])
def test_a_terminal_without_a_sign_gets_a_question_mark_and_no_traceback(tmp_path, encoding, shown):
    done = subprocess.run(
        [sys.executable, "-m", "harness", "init", b"\xc3\xa9 \xff.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": encoding + ":strict"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(errors="surrogateescape").startswith(shown)


def test_errors_are_json_where_a_machine_reads():
    done = harness("plan", "quikstart", "--json")

    assert done.stdout == ""
    error = json.loads(done.stderr)
    assert (error["error"], error["exit_code"]) == ("CampaignFileError", 2)


def test_init_writes_a_valid_campaign_once(tmp_path):
    file = tmp_path / "mine.yaml"

    assert harness("init", file).returncode == 0
    assert harness("init", file).returncode == 2
    assert json.loads(harness("validate", file, "--json").stdout)["experiments"] == 9


def test_init_takes_and_completes_a_purpose(tmp_path):
    file = tmp_path / "mine.yaml"
    purposes = {path.stem for path in TEMPLATES.glob("*.yaml")}

    refused = harness("init", file, "--for", "shaing")
    assert (refused.returncode, file.exists()) == (2, False)
    assert all(f"'{purpose}'" in refused.stderr for purpose in purposes)
    assert refused.stderr.endswith("Did you mean sharing?\n")
    assert harness("init", tmp_path / "absent" / "mine.yaml").returncode == 2
    completed = harness(_HARNESS_COMPLETE="complete_bash", COMP_WORDS="harness init mine.yaml --for ", COMP_CWORD="4")
    assert set(completed.stdout.split()) == purposes | {"profile"}
    profile = harness("init", file, "--for", "profile")
    assert (profile.returncode, file.exists()) == (2, False)
    assert harness("init", file, "--for", "kubernetes").returncode == 0
    assert json.loads(harness("validate", file, "--json").stdout)["experiments"] == 9


@pytest.mark.parametrize(
    ("campaign", "experiments", "rows", "duration_s"),
    [
        ("replica-scaling", 9, 721, 36_180),
        ("name: short\nworkloads: [{name: resnet50}]\nreplicas: [1]\n", 1, 25, 160),
    ],
)
def test_a_plan_counts_rows_files_and_seconds(tmp_path, campaign, experiments, rows, duration_s):
    if "\n" in campaign:
        (tmp_path / "short.yaml").write_text(campaign)
        campaign = tmp_path / "short.yaml"
    plan = json.loads(harness("plan", campaign, "--results", tmp_path, "--json").stdout)

    assert [experiment["rows"] for experiment in plan["experiments"]] == [rows] * experiments
    assert (plan["csv_files"], plan["duration_s"]) == (15 * experiments, duration_s)
    assert not list(tmp_path.glob("*-2*"))


def test_doctor_and_schema_speak_json():
    checks = {check["name"] for check in json.loads(harness("doctor", "--json").stdout)["checks"]}

    assert {"python", "packages", "gpu", "psi", "memory"} <= checks
    assert json.loads(harness("schema").stdout)["additionalProperties"] is False


def test_status_of_one_campaign_and_of_all(tmp_path):
    assert harness("status", "--results", tmp_path).returncode == 2
    folder = create(tmp_path, campaign(), text="x", source="shipped:x")

    status = json.loads(harness("status", folder.path, "--json").stdout)

    assert (status["done"], status["running"]) == (0, False)
    assert [experiment["status"] for experiment in status["experiments"]] == ["pending", "pending"]
    assert json.loads(harness("status", "--results", tmp_path, "--json").stdout) == [status]
    said = " ".join(harness("status", folder.path).stdout.split())
    assert f"Continue with: harness resume {folder.path}." in said


def test_verifying_nothing_is_no_success(tmp_path):
    folder = create(tmp_path, campaign(), text="x", source="shipped:x")

    assert harness("verify", folder.path).returncode == 5


@pytest.mark.parametrize("command", ["schema", "--help"])
def test_a_reader_that_leaves_is_no_crash(command):
    done_with, stdout = os.pipe()
    os.close(done_with)
    with os.fdopen(stdout, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "harness", command], stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )

    assert (done.returncode, done.stderr) == (141, "")


def test_the_shell_completes_commands_and_campaigns_that_are_shipped_and_ones_own(tmp_path):
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "night.yml").touch()
    (tmp_path / "notes.txt").touch()

    def offered(begun):
        words = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": f"harness run {begun}", "COMP_CWORD": "2"}
        return set(harness(cwd=tmp_path, **words).stdout.split())

    commands = harness(_HARNESS_COMPLETE="complete_bash", COMP_WORDS="harness re", COMP_CWORD="1")
    assert {"report", "resume"} <= set(commands.stdout.split())
    assert offered("") == {*shipped_names(), "mine.yaml", "campaigns/"}
    assert offered("campaigns/n") == {"campaigns/night.yml"}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_prices_and_waits_are_finite(value):
    with pytest.raises(typer.BadParameter, match="is not a finite number of 0 or more"):
        not_negative(value)
    assert not_negative(0.0) == 0.0
    assert not_negative(None) is None


def test_a_profile_on_a_cluster_needs_to_know_which(tmp_path):
    file = tmp_path / "local.yaml"
    assert harness("init", str(file), "--for", "sharing").returncode == 0
    assert harness("init", str(file), "--for", "sharing").returncode == 2  # and is not written over

    done = harness("profile", "resnet50", "--kubernetes", str(file), cwd=tmp_path)

    assert done.returncode == 2
    assert "the campaign file has no section `kubernetes`" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["local.yaml"]

    file.write_text(file.read_text() + "backend: kubernetes\nkubernetes: {kubeconfig: absent.conf}\n")
    done = harness("profile", "resnet50", "--kubernetes", str(file), "--capacity", "memory", cwd=tmp_path)
    assert (done.returncode, "There is no kubeconfig at absent.conf" in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("campaign", ["smoke", "sharing"])
def test_a_gpu_in_use_ends_a_run_at_once_when_asked_before_anything_is_written(tmp_path, monkeypatch, campaign):
    monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path / "locks"))
    gpus = [GpuFacts("a GPU", 1, 1, uuid="GPU-a", processes=(1,))]  # that of the other harness
    for module in ("backends.devices", "campaign.fit"):
        monkeypatch.setattr(f"harness.{module}.gpu_facts", lambda: (gpus, ""))
    held = DeviceLocks(["GPU-a"])
    held.take(SystemClock(), threading.Event(), print)
    words = ["run", campaign, "--results", str(tmp_path / "results"), "--no-wait"]
    try:
        with pytest.raises(DeviceInUseError) as refused:
            CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        held.release()

    assert (refused.value.exit_code, (tmp_path / "results").exists()) == (15, False)
