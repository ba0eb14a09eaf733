"""Which sharing mode is best, asked until it is known: the judge, the plan fitted to machine and budget, the decision."""

from contextlib import closing
from dataclasses import replace
from math import sqrt

import pytest
import yaml
from numpy.random import default_rng

from harness.analysis.campaign import analyse
from harness.analysis.contrasts.comparison import By, gather
from harness.analysis.contrasts.until_known import RepeatProgress, State, judge, rivals
from harness.analysis.narrative import headline
from harness.analysis.questions.decision import Certainty, decisions
from harness.campaign import fit, planners
from harness.campaign.fit import fitted, least_budget_s
from harness.campaign.journal import Journal
from harness.campaign.settings import changes
from harness.campaign.source import GIVEN, given, read_source
from harness.cli.decision import decisions_of, watched
from harness.errors import CampaignFileError, CampaignInterruptedError, Issue, IssueLevel, PreflightError, UsageError
from harness.metrics.nvml import GpuFacts
from harness.spec import Repeats, Sharing, UntilKnown
from tests.benchmarks.five_minutes import ROOT, is_clear, tallies, whole_sets
from tests.support.experiments import campaign
from tests.unit.campaign.test_repeats import Stage

WANTED = UntilKnown(question="best-mode", compare=["throughput", "energy"], max=8)
MODES = [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS]
GPU = GpuFacts(name="Test GPU", uuid="GPU-1", total_bytes=10**11, free_bytes=10**11)


def cells(**changes):
    wanted = Repeats(until_known=WANTED)
    return campaign(**{"sharing": MODES, "replicas": [1, 3, 8], "repeats": wanted} | changes).cells()


def ran(matrix, blocks, figures):
    """``figures``: by mode a function of the block, or a constant."""
    runs = {}
    for block in range(1, blocks + 1):
        for cell in matrix:
            spread = 1 + 0.001 * ((block * 7 + cell.replicas) % 3)
            values = figures.get((cell.sharing.value, cell.replicas), figures.get(cell.sharing.value, {}))
            runs[cell.experiment_id(block)] = {name: value * spread for name, value in values.items()}
    return runs


def test_one_replica_shares_with_nobody_and_the_most_that_several_modes_have_are_compared():
    matrix = cells()

    assert [(cell.sharing.value, cell.replicas) for cell in matrix] == [
        ("exclusive", 1),
        ("time-slicing", 3),
        ("time-slicing", 8),
        ("mps", 3),
        ("mps", 8),
    ]
    assert [[(cell.sharing.value, cell.replicas) for cell in group] for group in rivals(matrix)] == [
        [("time-slicing", 8), ("mps", 8)]
    ]


def test_it_ends_when_the_best_is_known_by_every_metric():
    matrix = cells()
    clear = {"exclusive": {"throughput": 1, "energy": 1}, "time-slicing": {"throughput": 2, "energy": 1}}
    known = judge(WANTED, matrix, ran(matrix, 2, clear | {"mps": {"throughput": 4, "energy": 0.5}}))

    assert (known.blocks, known.following) == (2, [])
    assert {(verdict.cell.sharing.value, verdict.state) for verdict in known.verdicts} == {("mps", State.BEST)}
    one = judge(WANTED, matrix, ran(matrix, 1, clear | {"mps": {"throughput": 4, "energy": 0.5}}))
    assert (one.blocks, one.following) == (1, matrix)


def test_what_is_equal_ends_as_equal_and_what_is_open_has_blocks_of_the_modes_it_is_about():
    matrix = cells()
    runs = ran(matrix, 2, {mode: {"throughput": 2, "energy": 1} for mode in ("exclusive", "time-slicing", "mps")})
    equal = judge(WANTED, matrix, runs)
    runs[matrix[2].experiment_id(2)] = {"throughput": 3, "energy": 1}
    wide = judge(WANTED, matrix, runs)

    assert {verdict.state for verdict in equal.verdicts} <= {State.EQUAL, State.OPEN}
    assert wide.verdicts[0].state is State.OPEN
    assert [(cell.sharing.value, cell.replicas) for cell in wide.following] == [("time-slicing", 8), ("mps", 8)]


def test_a_count_that_does_not_fit_under_one_mode_gives_way_to_the_next():
    matrix = cells()
    figures = {mode: {"throughput": 2, "energy": 1} for mode in ("exclusive", "time-slicing")}
    progress = judge(
        WANTED, matrix, ran(matrix, 2, figures | {("mps", 3): {"throughput": 4, "energy": 0.5}, ("mps", 8): {}})
    )

    assert [cell.replicas for cell in progress.rivals[0]] == [3, 3]
    assert {verdict.state for verdict in progress.verdicts} == {State.BEST}


@pytest.fixture
def machine(monkeypatch):
    """A GPU, on which nothing speaks against anything but what a test says."""
    refused = {}

    class Backend:
        def check(self, experiments):
            return [
                Issue(IssueLevel.ERROR, "sharing", why, "")
                for experiment in experiments
                for of, why in refused.items()
                if of in {experiment.sharing, experiment.replicas}
            ]

    monkeypatch.setattr(fit, "gpu_facts", lambda: ([GPU], ""))
    monkeypatch.setattr(fit, "make_backend", lambda *_, **__: Backend())
    return refused


def of(budget="5m", *settings):
    return read_source("sharing", changes("sharing", settings, budget=budget))


@pytest.mark.usefixtures("machine")
def test_the_shipped_campaign_fits_its_five_minutes():
    said = []
    source = fitted(of(), say=said.append)

    assert said == []
    assert least_budget_s(source.spec) < source.spec.until_known.budget_s == 300
    assert source.spec.until_known.max >= 4


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("budget", "left"), [("120s", 3), ("80s", 2)])
def test_a_short_budget_gets_fewer_configurations_and_says_so(budget, left):
    said = []
    spec = fitted(of(budget), say=said.append).spec

    assert len(spec.cells()) == left
    assert {cell.replicas for cell in rivals(spec.cells())[0]} == {8}
    assert len(said) == 1


@pytest.mark.usefixtures("machine")
def test_a_budget_for_no_answer_is_refused_with_the_smallest_that_works():
    with pytest.raises(UsageError) as refused:
        fitted(of("60s"), say=print)

    smallest = refused.value.advice.removeprefix("--budget ")
    assert fitted(of(smallest), say=lambda _: None)


def test_a_mode_that_cannot_be_set_is_left_out_and_the_rest_goes_on(machine):
    machine[Sharing.MPS] = "there is no nvidia-cuda-mps-control on this machine."
    said = []
    spec = fitted(of(), say=said.append).spec

    assert spec.sharing == [Sharing.EXCLUSIVE, Sharing.TIME_SLICING]
    assert "mps" in said[0]


def test_a_model_that_does_not_fit_eight_times_is_measured_with_fewer(machine):
    machine[8] = "8 replicas need more memory than there is."
    said = []
    spec = fitted(of(), say=said.append).spec

    assert spec.replicas == [1, 3]
    assert "8 replicas" in said[0]


@pytest.mark.usefixtures("machine")
def test_what_was_fitted_is_compared_with_no_file_when_it_goes_on(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(of().text)

    assert fitted(read_source(str(file)), say=print).origin == GIVEN
    assert fitted(of(), say=print).origin == "shipped:sharing"


def test_with_a_mode_goes_what_speaks_of_it_alone(machine):
    machine[Sharing.MPS] = "there is no nvidia-cuda-mps-control on this machine."
    excluded = "exclude=[{share: 1/N, replicas: 3}, {sharing: time-slicing, replicas: 3}]"
    spec = fitted(of("5m", "mps={share: [all, 1/N]}", excluded), say=lambda _: None).spec

    assert spec.mps is None
    assert [(left_out.sharing, left_out.replicas) for left_out in spec.exclude] == [(Sharing.TIME_SLICING, 3)]


def test_what_speaks_against_every_configuration_is_said_once(machine):
    machine.update(dict.fromkeys(MODES, "no driver."))

    with pytest.raises(PreflightError) as refused:
        fitted(of(), say=print)
    assert str(refused.value).count("no driver.") == 1


def test_a_value_set_in_every_item_is_written_in_each():
    text = "name: x\nworkloads: [{name: resnet50}, {name: whisper}]\nreplicas: [1]\n"
    changed = changes("x", ["workloads.options={a: [1]}"])(text)

    assert "&" not in changed
    assert [item["options"] for item in yaml.safe_load(changed)["workloads"]] == [{"a": [1]}] * 2


@pytest.mark.usefixtures("machine")
def test_without_a_gpu_or_on_one_in_use_nothing_is_run(monkeypatch):
    monkeypatch.setattr(fit, "gpu_facts", lambda: ([replace(GPU, processes=(2**22 + 1, 2**22 + 2))], ""))
    with pytest.raises(PreflightError, match=f"{2**22 + 1}, {2**22 + 2}"):
        fitted(of(), say=print)
    monkeypatch.setattr(fit, "gpu_facts", lambda: ([], "no driver"))
    with pytest.raises(PreflightError, match="no driver"):
        fitted(of(), say=print)


@pytest.mark.parametrize(
    ("setting", "error", "names"),
    [
        ("timing.record_s=-1", CampaignFileError, "timing.record_s"),
        ("timing.recrod_s=1", CampaignFileError, "timing.recrod_s"),
        ("workloads.batch_size=many", CampaignFileError, "workloads.0.batch_size"),
        ("workloads.3.batch_size=1", UsageError, "workloads.3.batch_size"),
        ("name.first=1", UsageError, "name.first"),
        ("timing", UsageError, "timing"),
        ("description=2026-13-45", UsageError, "description"),
        ("workloads.².batch_size=1", CampaignFileError, "workloads.0.²"),
    ],
)
def test_a_setting_is_checked_like_the_file_and_the_error_names_its_key(setting, error, names):
    with pytest.raises(error, match=names):
        of("5m", setting)


def test_settings_change_the_campaign_that_is_kept():
    source = of("2 min", "timing.record_s=4", "workloads.batch_size=8", "repeats.until_known.within=0.02")

    assert (source.spec.timing.record_s, source.spec.workloads[0].batch_size) == (4, 8)
    assert source.spec.until_known.budget_s == 120
    assert "timing.record_s=4" in source.text
    assert read_source("sharing").text != source.text


def test_a_workload_is_built_in_a_factory_or_of_a_file(tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("name: x\nreplicas: [1]\nworkloads: [{name: mine, server: {url: 'http://127.0.0.1:1'}}]\n")

    def named(workload):
        return changes("sharing", workload=workload)

    assert read_source("sharing", named("whisper")).spec.workloads[0].name == "whisper"
    assert read_source("sharing", named("my.own_model:make")).spec.workloads[0].factory == "my.own_model:make"
    assert "127.0.0.1" in named(str(file))("name: x\nsharing: [mps]\n")


def test_a_cluster_is_that_of_a_kubeconfig_or_of_a_campaign_file(tmp_path):
    kubeconfig, file = tmp_path / "kubeconfig", tmp_path / "cluster.yaml"
    kubeconfig.write_text("apiVersion: v1\nclusters: []\n")
    file.write_text("name: x\nkubernetes: {namespace: mine, sharing_by: dra}\n")
    text = "name: sharing\nworkloads: [{name: resnet50, device: cuda}]\nreplicas: [2]\n"

    def spec(path):
        return given(changes("sharing", ["sharing=[time-slicing]"], kubernetes=path)(text)).spec

    assert spec(kubeconfig).kubernetes.kubeconfig == str(kubeconfig)
    assert spec(file).kubernetes.namespace == "mine"
    assert (spec(file).backend, spec(file).timing.preset) == ("kubernetes", "short")


def test_a_mode_is_added_to_those_of_the_file():
    assert read_source("sharing", changes("sharing", modes=["mig"])).spec.sharing == [*MODES, Sharing.MIG]
    text = "name: x\nworkloads: [{name: resnet50}]\nreplicas: [2]\n"
    assert given(changes("x", modes=["mps"])(text)).spec.sharing == [Sharing.TIME_SLICING, Sharing.MPS]
    with pytest.raises(UsageError, match="--mode migg"):
        read_source("sharing", changes("sharing", modes=["migg"]))


class ModesStage(Stage):
    """Under MPS two replicas serve twice as much."""

    def sources(self, replicas):
        self.now = self.now.replace("_r2_mps", "_r1_mps")
        return super().sources(replicas)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    on = ModesStage(tmp_path_factory.mktemp("results"), question="best-mode", max=6)
    return on, on.run()


def test_a_campaign_ends_with_its_decision(ended):
    on, outcome = ended
    (made,) = decisions(gather([on.folder.path], By.SHARING))
    (best,) = [best for best in made.by_metric if best.metric == "throughput"]

    assert (best.certainty, best.best.sharing) == (Certainty.BEST, "mps")
    assert best.gain.ratio.mean == pytest.approx(2, rel=0.1)
    assert made.document()["by_metric"][0]["best"] == "mps"
    assert {known.certainty for known in made.by_metric if known.metric == "energy"} == {Certainty.NOT_MEASURED}
    assert len(outcome.statuses) < 24


def test_the_judge_and_the_comparison_give_one_verdict_and_one_interval(ended):
    on, _ = ended
    (verdict,) = analyse(on.folder.path).progress.verdicts
    (made,) = decisions(gather([on.folder.path], By.SHARING))

    assert (verdict.state, verdict.estimate) == (State.BEST, made.by_metric[0].gain.ratio)


def test_the_decision_is_the_same_in_the_report_and_in_the_terminal(ended):
    on, _ = ended
    analysis = analyse(on.folder.path)

    assert headline(analysis, [], None) == [it.headline for it in decisions_of(on.folder, analysis)]


def test_what_is_known_is_shown_when_it_is_interrupted(ended, capsys):
    on, _ = ended
    with pytest.raises(CampaignInterruptedError), watched(on.folder):
        raise CampaignInterruptedError("by ctrl-c", advice="")

    (made,) = decisions_of(on.folder)
    assert made.sentence.split(":")[0] in capsys.readouterr().out


def test_a_budget_with_no_time_for_whole_blocks_has_some_for_what_decides(tmp_path):
    """Of four configurations at 10 s each."""
    on = ModesStage(tmp_path, question="best-mode", max=6, budget="100 s")
    outcome = on.run()

    assert sorted(outcome.statuses) == sorted(
        [*(f"tiny_r{replicas}_{mode}_rep1" for replicas in (1, 2) for mode in ("time-slicing", "mps"))]
        + [f"tiny_r2_{mode}_rep2" for mode in ("time-slicing", "mps")]
    )
    assert {verdict.state for verdict in analyse(on.folder.path).progress.verdicts} <= {State.BEST, State.OPEN}


def test_a_block_without_what_decides_ends_the_campaign_where_the_budget_has_no_time_for_it(tmp_path, monkeypatch):
    on = ModesStage(tmp_path, question="best-mode", max=6, budget="1 h")
    first, *others = on.folder.spec.cells()
    progress = RepeatProgress(0, [], [first], [others])
    monkeypatch.setattr(planners, "judge", lambda *_: progress)
    monkeypatch.setattr(planners.UntilKnownPlanner, "_expected_s", lambda _, block: 10_000.0 * len(block))
    with closing(Journal(on.folder.state)) as journal:
        assert planners.planner_of(on.folder, journal).following() == []

    assert [event["experiments"] for event in on.journal(planners.BLOCKS_END)] == [[first.experiment_id(1)]]


def test_equal_modes_are_rarely_told_apart():
    """Spreads are alike, and tenfold apart; over 120 made-up campaigns each."""
    matrix = [cell for cell in cells() if cell.replicas == 8]
    metrics = ["throughput", "latency_p99_exact", "energy"]
    wanted, random = UntilKnown(question="best-mode", compare=metrics, max=8), default_rng(1)
    for spreads in ((0.02, 0.02), (0.003, 0.03)):
        false = 0
        for _ in range(120):
            runs = {
                cell.experiment_id(block): {metric: 1 + spread * random.standard_normal() for metric in metrics}
                for cell, spread in zip(matrix, spreads, strict=True)
                for block in range(1, wanted.max + 1)
            }
            false += any(verdict.state is State.BEST for verdict in judge(wanted, matrix, runs).verdicts)
        assert false / 120 < 0.05 + 3 * sqrt(0.05 * 0.95 / 120)


def test_five_minutes_name_no_other_mode_than_a_published_set():
    """A small one; all of them: tests/benchmarks/five_minutes.py."""
    (published,) = whole_sets(sorted((ROOT / "examples" / "h200").glob("h200-activity-2*")))
    counts, others, _ = tallies(default_rng(1), published, 30, 1.0)

    assert others == 0
    assert all(is_clear(best) for best in published.whole.values())
    assert min(tally.right for tally in counts.values()) >= 27
