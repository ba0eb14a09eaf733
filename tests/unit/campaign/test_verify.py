"""What happens to a campaign's folder between its end and the day it is read again is found, and hangs nobody."""

import json
import os
import random
import shutil

import pytest

import harness
from harness.analysis.campaign import analyse
from harness.analysis.client_result import read_scenarios
from harness.analysis.report import REPORT_MD, SUMMARY_CSV, SUMMARY_JSON
from harness.campaign import folder as folders
from harness.campaign.journal import Journal, read_events
from harness.campaign.progress import all_campaigns, campaign_status
from harness.campaign.runner import CampaignRunner
from harness.campaign.verify import verify_campaign
from harness.errors import ResultsPathError
from harness.results.files import sha256_of
from harness.results.layout import REPORT_HTML, REPORT_SUMS
from harness.results.manifest import content_digest
from harness.spec import Timing
from tests.support.experiments import campaign
from tests.support.fake_backend import FakeBackend
from tests.support.fake_metrics import FakeGpus
from tests.support.simulated_clock import SimulatedClock

TIMING = Timing(step_s=1, stabilise_s=10, record_s=20, cooldown_s=30)
ONE, TWO = "tiny_r1_time-slicing_rep1", "tiny_r1_time-slicing_rep2"
SUMMED = (REPORT_HTML, REPORT_MD, SUMMARY_CSV, SUMMARY_JSON, "plots/cost.png")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A campaign of two experiments that ran to its end."""
    spec = campaign(timing=TIMING, metrics=["latency_p50", "throughput"], replicas=[1], repeats=2)
    folder = folders.create(tmp_path_factory.mktemp("results"), spec, text="text", source="shipped:test")
    CampaignRunner(folder, FakeBackend(), clock=SimulatedClock(), gpus=FakeGpus).run()
    (folder.path / "plots").mkdir()
    for name in SUMMED:
        (folder.path / name).write_text(f"{name} says 42\n")
    sums = "".join(f"{sha256_of(folder.path / name)}  {name}\n" for name in SUMMED)
    (folder.path / REPORT_SUMS).write_text(sums)
    return folder.path


@pytest.fixture
def path(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / finished.name)


def problems(path):
    return [str(problem) for problem in verify_campaign(path).problems]


def reseal(folder, **changes):
    """Change a manifest so that its hashes fit."""
    file = folder / "manifest.json"
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(content | {"digest": content_digest(content)}))


def listing(experiment, name, target):
    """Let the manifest list ``target`` of the experiment as it is now, called ``name``."""
    files = json.loads((experiment / "manifest.json").read_text())["files"]
    entry = {"sha256": sha256_of(target), "bytes": target.stat().st_size} if target.is_file() else files["wide.csv"]
    reseal(experiment, files=files | {name: entry})


def test_a_finished_campaign_is_whole(path):
    outcome = verify_campaign(path)

    assert outcome.ok, outcome.problems
    assert outcome.notes == []


def test_an_experiment_that_was_done_and_is_gone_is_missed(path):
    shutil.rmtree(path / TWO)

    (problem,) = problems(path)
    assert f"{path / TWO}: the experiment was finished. (expected its folder, found none)" in problem
    assert f"harness resume {path}" in problem


def test_an_experiment_that_was_set_aside_is_not_missed(path):
    shutil.rmtree(path / TWO)
    journal = Journal(path / "state.jsonl")
    journal.append("set-aside", experiment=TWO, why="its verdict is INVALID", place="attempts")
    journal.close()

    outcome = verify_campaign(path)
    assert outcome.ok
    assert outcome.notes == [f"{path}: 1 of 2 experiments are finished."]


def test_lines_that_were_cut_off_the_journal_are_noticed(path):
    state = path / "state.jsonl"
    lines = state.read_bytes().splitlines(keepends=True)
    of_two = next(place for place, line in enumerate(lines) if TWO.encode() in line)
    state.write_bytes(b"".join(lines[:of_two]))

    outcome = verify_campaign(path)
    assert outcome.ok, "a kill may have done it"
    (note,) = outcome.notes
    assert note.startswith(f"{state} does not say that {TWO} was finished: lines were cut off")


def test_an_experiment_copied_over_its_repeat_is_found(path):
    shutil.rmtree(path / TWO)
    shutil.copytree(path / ONE, path / TWO)
    content = json.loads((path / ONE / "manifest.json").read_text())
    reseal(path / TWO, experiment_id=TWO, experiment=content["experiment"] | {"repeat": 2})

    (problem,) = problems(path)
    assert f"{path / TWO}: the experiment holds the recording of {ONE}." in problem


def test_an_experiment_of_another_campaign_is_found(path):
    name = "tiny_r7_time-slicing_rep1"
    shutil.move(path / TWO, path / name)
    reseal(path / name, experiment_id=name)

    assert any(f"{path / name}: the campaign's plan has no such experiment" in problem for problem in problems(path))


def test_every_flipped_bit_of_a_campaigns_own_files_is_found(path):
    for experiment in (ONE, TWO):  # They have tests of their own, and take the time.
        shutil.rmtree(path / experiment)
    found = {len(problems(path))}
    assert found == {2}
    chance = random.Random(1)
    for name in ("campaign.json", "campaign.yaml", "state.jsonl", REPORT_SUMS, *SUMMED):
        content = (path / name).read_bytes()
        for _ in range(30):
            flipped = bytearray(content)
            place = chance.randrange(len(content) - 1)
            flipped[place] ^= 1 << chance.randrange(8)
            (path / name).write_bytes(flipped)
            # A journal or a plan that cannot be read says so instead of what is missing.
            texts = [text for text in problems(path) if "the experiment was finished" not in text]
            assert texts, f"{name}: bit flipped in byte {place}"
        (path / name).write_bytes(content)


def test_a_line_of_an_earlier_version_has_no_checksum_and_is_read(tmp_path):
    (tmp_path / "state.jsonl").write_text('{"at": "2026-01-31T23:59:59.000Z", "event": "campaign-begins"}\n')

    assert [event["event"] for event in read_events(tmp_path / "state.jsonl")] == ["campaign-begins"]


def test_a_table_that_says_something_else_than_the_csv_is_found_although_the_hashes_fit(path):
    experiment = path / ONE
    csv = next(experiment.glob("*throughput*.csv"))
    csv.write_text(csv.read_text().replace("100.0", "900.0"))
    listing(experiment, csv.name, csv)
    assert any("samples.parquet: the values of throughput are not those of its CSV" in text for text in problems(path))

    wide = path / TWO / "wide.csv"
    wide.write_text(wide.read_text().replace(",\n", ",7\n"))
    listing(path / TWO, wide.name, wide)
    assert any("wide.csv: line 2 is not what the metric CSVs say" in text for text in problems(path))


@pytest.mark.parametrize(
    "name", ["../../etc/shadow", "/etc/shadow", "a\0b", "link", "pipe", "latencies", "loop", "x" * 300]
)
def test_only_regular_files_of_the_folder_are_opened(path, name):
    experiment = path / ONE
    (experiment / "latencies").mkdir(exist_ok=True)
    (experiment / "link").symlink_to("/dev/zero")
    (experiment / "loop").symlink_to(experiment / "loop")
    os.mkfifo(experiment / "pipe")
    listing(experiment, name, experiment / "latencies")

    assert len(problems(path)) == 1


def test_a_pipe_in_the_place_of_a_table_is_not_opened(path):
    experiment = path / ONE
    csv = next(experiment.glob("*throughput*.csv"))
    csv.unlink()
    os.mkfifo(csv)
    os.mkfifo(csv.with_name(csv.name.replace("throughput", "latency_p50").replace("Z.csv", "1Z.csv")))

    assert any("throughput" in text for text in problems(path))


def test_damaged_files_are_problems_and_never_a_traceback(path):
    """Hundreds of mutations, most of them with hashes that fit."""
    chance = random.Random(2)
    experiment = path / ONE
    shutil.rmtree(path / TWO)
    names = sorted(str(file.relative_to(experiment)) for file in experiment.rglob("*") if file.is_file())
    sources = {name: (experiment / name).read_bytes() for name in names}
    for _ in range(300):
        name = chance.choice(names)
        (experiment / name).write_bytes(mutated(sources[name], chance))
        if name != "manifest.json" and chance.random() < 0.8:
            listing(experiment, name, experiment / name)
        assert not isinstance(verify_campaign(path), Exception)
        (experiment / name).write_bytes(sources[name])
        (experiment / "manifest.json").write_bytes(sources["manifest.json"])


def mutated(content, chance):
    """The content with a piece cut out, doubled or replaced by what parsers dislike."""
    begin = chance.randrange(len(content) + 1)
    end = min(len(content), begin + chance.choice([0, 1, 8, 64]))
    nasty = [b"", b"\0", b"\xff\xfe", b"NaN", b"1e999", b"[" * 2000, b'"' * 3, b"9" * 5000, b"\n", b",", b"null"]
    return content[:begin] + chance.choice([*nasty, content[begin:end] * 2]) + content[end:]


def test_a_journal_of_anything_else_is_refused_by_line(path):
    state = path / "state.jsonl"
    whole = state.read_bytes()
    for line in (b"[1, 2]", b"\xff\xfe", b'{"at": 1}', b"[" * 5000, b'"text"', b"9" * 5000):
        state.write_bytes(whole + line + b"\n")
        with pytest.raises(ResultsPathError, match=r"line .* is damaged"):
            campaign_status(path)


def test_a_folder_beside_the_attempts_does_not_disturb_their_numbers(path):
    (path / "attempts" / f"{ONE}-1.bak").mkdir()
    (path / "attempts" / f"{ONE}-4").mkdir()

    assert folders.open_folder(path).next_attempt(ONE) == 5


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": []}', "\udcff", "[" * 5000])
def test_a_broken_scenario_file_is_refused_by_name(path, text):
    (path / ONE / "scenario.json").write_text(text, errors="surrogateescape")

    with pytest.raises(ResultsPathError, match=r"scenario\.json"):
        read_scenarios(path)


TELEMETRY_HEAD = b"timestamp,elapsed_s,gpu0_power_w,host_cpu_percent\n"
TELEMETRY_ROW = b"2026-01-31T00:00:00.000Z,0.100,57.0,12.5\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        TELEMETRY_HEAD.replace(b"timestamp", b"time") + TELEMETRY_ROW,
        TELEMETRY_HEAD.replace(b"host_cpu_percent", b"cpu") + TELEMETRY_ROW,
        TELEMETRY_HEAD + TELEMETRY_ROW.replace(b"57.0", b"5\x007.0"),
        TELEMETRY_HEAD + TELEMETRY_ROW + b"2026-01-31T00:00:00.200Z,0.200\n",
        TELEMETRY_HEAD + TELEMETRY_ROW.replace(b"57.0", b"many"),
        TELEMETRY_HEAD + TELEMETRY_ROW.replace(b"2026-01-31T", b"yesterday "),
    ],
    ids=["empty", "no timestamp", "no CPU", "NUL", "ragged", "a word", "no time"],
)
def test_telemetry_that_is_no_table_is_damage_of_its_experiment_alone(path, content):
    (path / ONE / "telemetry.csv").write_bytes(content)
    listing(path / ONE, "telemetry.csv", path / ONE / "telemetry.csv")

    assert any("telemetry.csv" in problem for problem in problems(path))
    damage = {experiment.name: bool(experiment.damage) for experiment in analyse(path).experiments}
    assert damage == {ONE: True, TWO: False}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("findings", [{"severity": "info", "code": [], "metric": "", "message": "", "advice": ""}]),
        ("start_s", 1e18),
        ("start_s", -1.0),
        ("rows", "many"),
    ],
)
def test_a_manifest_that_is_sealed_and_odd_is_named_and_the_others_go_on(path, field, value):
    reseal(path / ONE, **{field: value})

    assert any(f"{ONE}/manifest.json" in problem for problem in problems(path))
    analysis = analyse(path)
    assert [experiment.name for experiment in analysis.experiments] == [TWO]
    assert [(each.name, field in each.reason) for each in analysis.unfinished] == [(ONE, True)]
    statuses = {each.experiment_id: each.status for each in campaign_status(path).experiments}
    assert (statuses[ONE], statuses[TWO] == "damaged") == ("damaged", False)
    with pytest.warns(UserWarning, match=f"{ONE} is left out"):
        assert len(harness.load(path).experiments) == 1


def test_a_campaign_that_cannot_be_read_does_not_take_the_others_from_the_list(path):
    bad = shutil.copytree(path, path.with_name("bad"))
    (bad / "campaign.json").write_text("{")
    notes = []
    assert [each.campaign for each in all_campaigns(path.parent, say=notes.append)] == [path.name]
    assert notes[0].startswith("bad is left out")


def test_a_mode_that_nobody_knows_is_a_sentence(path):
    manifest = json.loads((path / ONE / "manifest.json").read_text())
    manifest["experiment"]["sharing"] = "quantum"
    reseal(path / ONE, experiment=manifest["experiment"])
    assert [each.name for each in analyse(path).unfinished] == [ONE]

    identity = json.loads((path / "campaign.json").read_text())
    identity["spec"]["sharing"] = ["quantum"]
    (path / "campaign.json").write_text(json.dumps(identity | {"digest": content_digest(identity)}))
    with pytest.raises(ResultsPathError, match="sharing"):
        analyse(path)


def scenario(experiment, **results):
    figures = {"achieved_per_s": 9.0, "throughput_samples_per_s": 9.0, "latency_ms": {"p50": 1.0}} | results
    content = {
        "experiment": experiment.name,
        "scenario": "http",
        "results": figures,
        "validity": {"valid": True, "reasons": []},
    }
    (experiment / "scenario.json").write_text(json.dumps(content))
    listing(experiment, "scenario.json", experiment / "scenario.json")


def test_scenarios_leave_out_what_is_odd_or_not_what_its_manifest_says(path):
    for experiment in (ONE, TWO):
        scenario(path / experiment)
    assert len(read_scenarios(path)) == 2
    for harm in (
        lambda: scenario(path / ONE, achieved_per_s="x"),
        lambda: scenario(path / ONE, latency_ms=[1.0]),
        lambda: scenario(path / ONE, limit_met=[]),
        lambda: (path / ONE / "scenario.json").write_text((path / TWO / "scenario.json").read_text()),
    ):
        harm()
        notes = []
        assert [found["experiment"] for found in read_scenarios(path, say=notes.append)] == [TWO]
        assert ONE in notes[0]
