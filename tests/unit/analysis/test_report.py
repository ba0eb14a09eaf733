from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harness
from harness.analysis import report, summary
from harness.analysis.campaign import analyse
from harness.analysis.comparability import differences, environment, gpu_names, refuse_unlike, reserved
from harness.analysis.metrics.catalogue import METRICS
from harness.analysis.narrative import answers, caveats, headline, limits
from harness.analysis.pages.tables import _scaling_entry, scaling_tables
from harness.analysis.report import report_of
from harness.analysis.summary import index as index_of
from harness.campaign.publish import publish
from harness.cli import app
from harness.errors import HarnessError, ResultsPathError, UnlikeResultsError
from harness.results.files import sha256_of
from harness.results.manifest import Manifest, Status
from harness.spec import Sharing
from tests.unit.results.synthetic import Shape, experiment_spec, manifest_for, write_campaign, write_experiment

SHAPE = Shape(record_s=20, noise=0.005)
MAX_BYTES_PER_EXPERIMENT = 5_000_000 // 27


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_campaign(
        tmp_path_factory.mktemp("results") / "synthetic", replicas=[1, 3, 8], repeats=2, shape=SHAPE, finished=5
    )
    (folder / "campaign.yaml").write_text("name: synthetic # <b>not bold</b>\n")
    report_of(analyse(folder))
    return folder


def test_the_page_needs_nothing_else_and_stays_small(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    assert not re.search(r"<script(?!>| type=.application/json.>)", page)
    assert "<img" not in page
    assert len(page.encode()) < 5 * MAX_BYTES_PER_EXPERIMENT
    assert "{{" not in page


@pytest.mark.usefixtures("undrawn")
def test_a_campaign_file_that_is_damaged_keeps_no_figure_from_its_report(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "damaged", replicas=[1], repeats=1, shape=Shape(record_s=4))
    (folder / "campaign.yaml").write_bytes(b"name: scratched\xff\n")
    report_of(analyse(folder))
    assert "name: scratched\ufffd" in (folder / "report.html").read_text()


def test_markdown_links_every_plot_and_keeps_its_tables_whole(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    for link in re.findall(r"\]\((plots/[^)]+)\)", text):
        assert (folder / link).is_file(), link
    assert text.count("](plots/") == 6
    rows = [line for line in text.splitlines() if line.startswith("|")]
    table = rows[:5]
    assert len({line.count("|") for line in table}) == 1, table
    assert [line.split("|")[1].strip() for line in table[2:]] == ["1", "3", "8"]
    assert "1/2" in rows[9]
    assert "resnet50_r8_time-slicing_rep2" in text


def test_the_report_lists_the_hashes_of_its_files(folder: Path) -> None:
    lines = (folder / "report.sha256").read_text().splitlines()
    listed = {name: expected for expected, _, name in (line.partition("  ") for line in lines)}
    assert {name: sha256_of(folder / name) for name in listed} == listed
    made = {str(path.relative_to(folder)) for path in [*folder.glob("plots/*"), *folder.glob("summary.*")]}
    assert set(listed) == {"report.html", "report.md", "campaign.parquet"} | made


@pytest.mark.parametrize(
    ("campaign", "said"),
    [("h200-server-*", r"3 replicas serve \d+ ± 1"), ("h200-engine-*", r"4 replicas serve 48\.7 ± 2\.0")],
)
def test_a_rate_that_was_set_is_called_no_speed(
    campaign: str, said: str, published: Callable[[str], list[Path]]
) -> None:
    (served,) = published(campaign)
    analysis = analyse(served)
    found = " ".join(answers(analysis))
    assert re.search(f"under mps: {said} requests/s; p99 latency goes", found)
    assert "of its solo speed" not in found
    assert "alone" not in found
    assert "From" not in found
    first = " ".join(headline(analysis, [], None))
    assert first.startswith("No clear winner: ")
    assert "throughput" not in first
    kept = ["Latency limit of 15 ms for 99% of the requests: kept in 2 of 15 runs, broken in the others."]
    assert limits(analysis) == (kept if campaign.startswith("h200-server") else [])


@pytest.mark.usefixtures("undrawn")
def test_a_run_at_the_power_cap_says_so_and_the_table_says_how_full_the_gpu_was(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 3, shape=Shape(record_s=20))
    found = analyse(tmp_path)
    (sentence,) = [sentence for sentence in caveats(found) if "power cap" in sentence]
    assert "resnet50 r3 (26%)" in sentence
    report_of(analyse(tmp_path))
    table = (tmp_path / "report.md").read_text()
    assert "SM active" in table
    assert "62.5%" in table


def test_a_campaign_file_that_was_edited_since_is_not_taken_for_the_one_that_was_run(
    folder: Path, tmp_path: Path
) -> None:
    (sentence,) = [each for each in caveats(analyse(folder)) if "campaign.yaml" in each]
    assert "was changed since the campaign began" in sentence
    page = (folder / "report.html").read_text()
    assert sentence in page
    assert "<summary>campaign.yaml, changed since the campaign began</summary>" in page
    assert sentence in (folder / "report.md").read_text()
    write_campaign(tmp_path, replicas=[1], repeats=1, shape=replace(SHAPE, record_s=5))
    assert not [each for each in caveats(analyse(tmp_path)) if "campaign.yaml" in each]


def test_caveats_come_gravest_first(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=4, shape=SHAPE, finished=1)
    write_experiment(tmp_path, "resnet50", 1, 2, replace(SHAPE, status=Status.INVALID))
    write_experiment(tmp_path, "resnet50", 1, 3, replace(SHAPE, status=Status.DEGRADED, scale=0.7))
    found = caveats(analyse(tmp_path))
    places = [
        next(index for index, sentence in enumerate(found) if word in sentence)
        for word in (
            "rep2 is INVALID and left out",
            "not finished",
            "rep3 is DEGRADED",
            "Two runs only",
            "varies by more",
        )
    ]
    assert places == sorted(places)
    assert "replica-0 served nothing." in found[places[0]]
    assert "closed loop" in " ".join(found)


def test_what_was_not_measured_is_said_once_for_each_reason(tmp_path: Path) -> None:
    few = replace(SHAPE, record_s=2)
    write_experiment(tmp_path, "whisper", 1, shape=few)
    write_experiment(tmp_path, "whisper", 3, shape=few)
    found = analyse(tmp_path)
    assert len({cell.estimates["requests"].mean for cell in found.cells}) == 2
    (sentence,) = [sentence for sentence in caveats(found) if "Latency, exact p99" in sentence]
    assert sentence == (
        "Not measured: Latency, exact p99; Exact p99, worst replica (p99 takes at least 100 requests, there are fewer)."
    )


def test_a_campaign_finished_on_another_machine_says_so(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=2, shape=replace(SHAPE, record_s=5))
    found = analyse(tmp_path)
    assert not [sentence for sentence in caveats(found) if "differ" in sentence]
    second = found.experiments[1]
    manifest = second.data.manifest
    gpu = manifest.provenance.gpus[0].model_copy(update={"uuid": "GPU-1"})
    host = manifest.provenance.host.model_copy(update={"kernel": "7.0"})
    provenance = manifest.provenance.model_copy(update={"gpus": [gpu], "host": host})
    data = replace(second.data, manifest=manifest.model_copy(update={"provenance": provenance}))
    found.experiments[1] = replace(second, data=data)
    sentences = " ".join(caveats(found))
    assert "2 different devices of the same model" in sentences
    assert "kernel: 6.14.0-37-generic; 7.0." in sentences


def test_repeats_whose_slices_were_not_the_same_say_so(tmp_path: Path) -> None:
    """The device plugin was told to make more of them in between: one name, and two parts of a GPU."""
    write_campaign(tmp_path, replicas=[1], repeats=2, shape=replace(SHAPE, record_s=5))
    found = analyse(tmp_path)
    found.experiments[:] = [
        _as_pods(experiment, multiprocessors=sms) for experiment, sms in zip(found.experiments, (32, 16), strict=True)
    ]
    assert (
        "The runs of one configuration differ in SMs of each replica (resnet50 with 1, time-slicing): 32 against 16."
        in caveats(found)
    )


def _as_pods(experiment, **said):
    """The same experiment, its replicas in pods that say this of themselves."""
    manifest = experiment.data.manifest
    replicas = [{**replica, "pod": "a", **said} for replica in manifest.replicas]
    return replace(
        experiment, data=replace(experiment.data, manifest=manifest.model_copy(update={"replicas": replicas}))
    )


@pytest.mark.usefixtures("undrawn")
def test_pods_without_a_share_of_a_busy_node_are_a_caveat(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=2, shape=replace(SHAPE, record_s=5))
    found = analyse(tmp_path)
    nothing = {"reserve": {}, "limit": {}, "qos_class": "BestEffort"}

    def told(percent: float, **said: object) -> list[str]:
        for index, experiment in enumerate(found.experiments):
            figures = {**experiment.figures, "cpu_psi": percent + index}
            busy = replace(experiment, figures=figures)
            found.experiments[index] = _as_pods(busy, **said)
        return [sentence for sentence in caveats(found) if "BestEffort" in sentence]

    (sentence,) = told(41.0, **nothing)
    assert "The replicas of 2 experiments reserved nothing" in sentence
    assert "for up to 42% of the time (resnet50_r1_time-slicing_rep2)" in sentence
    assert told(3.0, **nothing) == [], "nobody waited"
    assert told(41.0, reserve={"cpu": "1"}, limit={}, qos_class="Burstable") == []
    page = report_of(found, tmp_path / "as-pods")
    assert "Burstable: cpu 1 reserved" in page.read_text()
    assert "- Pods: Burstable: cpu 1 reserved\n- Software" in (page.parent / "report.md").read_text()


def test_what_pods_were_given_is_told_and_a_difference_is_said() -> None:
    local = manifest_for(experiment_spec("resnet50", 2, 1, SHAPE), SHAPE, 0.0)

    def on_cluster(**said: object) -> Manifest:
        return local.model_copy(update={"replicas": [{"pod": "a", **said}, {"pod": "b", **said}]})

    nothing = on_cluster(reserve={}, limit={}, qos_class="BestEffort")
    some = on_cluster(reserve={"cpu": "2", "memory": "4Gi"}, limit={"memory": "4Gi"}, qos_class="Burstable")
    words = [
        "none",
        "unknown",
        "BestEffort: nothing reserved",
        "Burstable: cpu 2, memory 4Gi reserved; memory 4Gi at most",
    ]
    assert [reserved(one) for one in (local, on_cluster(), nothing, some)] == words
    assert f"pods: {words[2]} against {words[3]}." in differences([nothing, some])
    assert not [sentence for sentence in differences([some, some]) if sentence.startswith("pods")]
    refuse_unlike([nothing, some])


@pytest.mark.parametrize("of_replicas", [True, False], ids=["in pods", "of the harness"])
def test_limits_of_the_cgroup_make_two_machines_unlike(of_replicas: bool) -> None:
    full = manifest_for(experiment_spec("resnet50", 2, 1, SHAPE), SHAPE, 0.0)

    def limited(**limits: float) -> Manifest:
        if of_replicas:
            whole = {"cpus": 8, "memory_bytes": 800_000_000}
            return full.model_copy(update={"replicas": [{"host": {**whole, "limits": limits}}] * 2})
        host = full.provenance.host.model_copy(update={"limits": limits})
        return full.model_copy(update={"provenance": full.provenance.model_copy(update={"host": host})})

    half = limited(cpus=0.5, memory_bytes=400_000_000)
    refuse_unlike([full, limited()])
    refuse_unlike([half, half])
    with pytest.raises(UnlikeResultsError):
        refuse_unlike([full, half])
    assert environment([half])["CPU limit"] == "0.5 CPUs"
    assert {"CPU limit", "memory limit"} <= {line.partition(":")[0] for line in differences([full, half])}


def test_a_limit_that_is_no_less_than_the_machine_has_is_none() -> None:
    full = manifest_for(experiment_spec("resnet50", 1, 1, SHAPE), SHAPE, 0.0)
    host = {"cpus": 32, "memory_bytes": 270_334_464_000, "limits": {"cpus": 32.0, "memory_bytes": 274_877_906_944}}
    wide = full.model_copy(update={"replicas": [{"host": host}]})

    assert environment([wide])["CPU limit"] == environment([wide])["memory limit"] == "none"
    refuse_unlike([wide, full.model_copy(update={"replicas": [{"host": {**host, "limits": {}}}]})])


def test_replicas_that_were_forked_are_said_to_differ_from_those_that_were_not() -> None:
    fresh = manifest_for(experiment_spec("resnet50", 1, 1, SHAPE), SHAPE, 0.0)
    timing = fresh.experiment.timing.model_copy(update={"start": "forked"})
    forked = fresh.model_copy(update={"experiment": fresh.experiment.model_copy(update={"timing": timing})})

    assert differences([fresh, forked]) == ["start of replicas: fresh against forked."]


def _with_sms(sms: int | None, whole: int | None = None, **facts: object) -> Manifest:
    spec = experiment_spec("resnet50", 8, 1, SHAPE).model_copy(update={"sharing": Sharing.MPS})
    gpu = {"gpu": {"multiprocessors": whole}} if whole else {}
    replica = {"multiprocessors": sms, **gpu, **facts}
    return manifest_for(spec, SHAPE, 0.0).model_copy(update={"replicas": [replica] * 8})


def test_cells_whose_replicas_had_unequal_parts_of_a_gpu_are_unlike() -> None:
    slices, share = _with_sms(14, 132, pod="a", gpu_slices=8), _with_sms(16)
    refuse_unlike([slices, slices])
    refuse_unlike([share, _with_sms(16, 132)])
    refuse_unlike([share, _with_sms(None)])
    with pytest.raises(UnlikeResultsError, match=r"SMs of each replica .*: 14 against 16"):
        refuse_unlike([slices, share])
    for one, other in (({"gpu_slices": 8}, {"gpu_slices": 10}), ({}, {"devices": {"nvidia.com/gpucores": "30"}})):
        with pytest.raises(UnlikeResultsError):
            refuse_unlike([_with_sms(None, pod="a", **one), _with_sms(None, pod="a", **other)])


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            _with_sms(14, 132, pod="a", gpu_slices=8),
            "14 of 132 SMs (10.6%) and 1/8 of the memory, from the device plugin",
        ),
        (
            _with_sms(None, pod="a", gpu_slices=8),
            "12% of the multiprocessors and 1/8 of the memory, from the device plugin",
        ),
    ],
)
def test_the_part_of_a_slice_is_what_it_was_and_not_what_it_is_called(manifest: Manifest, said: str) -> None:
    assert report.mps_limits([manifest]) == [said]


def test_what_pods_do_not_always_see_of_a_gpu_is_said_and_not_refused() -> None:
    known = manifest_for(experiment_spec("resnet50", 2, 1, SHAPE), SHAPE, 0.0)

    def other(**facts: object) -> Manifest:
        gpus = [gpu.model_copy(update=facts) for gpu in known.provenance.gpus]
        return known.model_copy(update={"provenance": known.provenance.model_copy(update={"gpus": gpus})})

    refuse_unlike([known, other(power_limit_w=None, clock_sm_max_mhz=None)])
    for facts in ({"driver": "1.2.3"}, {"driver": None}):
        with pytest.raises(UnlikeResultsError, match="GPU driver"):
            refuse_unlike([known, other(**facts)])


def test_the_gpus_are_those_that_replicas_ran_on() -> None:
    manifest = manifest_for(experiment_spec("resnet50", 2, 1, SHAPE), SHAPE, 0.0)
    other = manifest.provenance.gpus[0].model_copy(update={"uuid": "GPU-1"})
    provenance = manifest.provenance.model_copy(update={"gpus": [*manifest.provenance.gpus, other, other]})

    def ran_on(uuid: str, second: str = "") -> Manifest:
        replica = {"device_uuid": uuid, "second_device_uuid": second}
        return manifest.model_copy(update={"provenance": provenance, "replicas": [replica]})

    first = manifest.provenance.gpus[0].uuid
    assert gpu_names(ran_on(first)) == "Synthetic GPU"
    assert gpu_names(ran_on(first, "GPU-1")) == "3 x Synthetic GPU", "both of one replica"
    assert gpu_names(ran_on("MIG-of-one-of-them")) == "3 x Synthetic GPU"


def test_a_figure_of_fewer_runs_than_the_line_says_of_how_many_it_is(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "some", replicas=[1], repeats=3, shape=Shape(record_s=4))
    (folder / "resnet50_r1_time-slicing_rep2" / "requests.parquet").unlink()
    (cell,) = analyse(folder).cells
    assert _scaling_entry(cell, "latency_p99_exact").small[-1] == "of 2 runs"
    assert len(_scaling_entry(cell, "throughput").small) == 1


def test_summary_csv_has_a_line_for_every_measure_of_every_cell(folder: Path) -> None:
    with (folder / "summary.csv").open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 3 * (len(METRICS) + 2)
    by_name = {(line["replicas"], line["measure"]): line for line in lines}
    throughput = by_name["3", "throughput"]
    assert float(throughput["ci95_low"]) < float(throughput["mean"]) < float(throughput["ci95_high"])
    assert throughput["runs"] == "2"
    alone = by_name["8", "throughput"]
    assert (alone["ci95_low"], alone["cv"]) == ("", "")
    assert "no interval" in alone["reason"]
    fairness = by_name["1", "fairness"]
    assert fairness["mean"] == ""
    assert "shares with no other" in fairness["reason"]


def test_summary_json_is_strict_json_and_names_what_is_left_out(tmp_path: Path) -> None:
    write_experiment(tmp_path, "resnet50", 1, 1, SHAPE)
    write_experiment(tmp_path, "resnet50", 1, 2, replace(SHAPE, status=Status.INVALID))
    document = json.loads(summary.to_json(analyse(tmp_path)))
    (cell,) = document["cells"]
    assert cell["runs"] == ["resnet50_r1_time-slicing_rep1"]
    assert cell["left_out"] == ["resnet50_r1_time-slicing_rep2"]
    assert cell["measures"]["throughput"]["n"] == 1
    assert [item["used"] for item in document["experiments"]] == [True, False]


def test_a_folder_that_is_no_campaign_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ResultsPathError):
        report_of(analyse(tmp_path))
    assert not list(tmp_path.iterdir())


def test_missing_templates_are_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "__file__", str(tmp_path / "harness" / "__init__.py"))
    with pytest.raises(HarnessError, match=r"templates/report is neither at .* nor at"):
        report.environment()


@pytest.mark.usefixtures("undrawn")
def test_where_replicas_ran_is_in_every_table_as_soon_as_it_is_more_than_one_place(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[3], repeats=1, shape=replace(SHAPE, record_s=5))
    found = analyse(tmp_path)
    report.report_of(found)
    assert "| Where |" not in (tmp_path / "report.md").read_text()

    seats = [("n1", "GPU-1a2b3c4d-5e6f"), ("n2", "GPU-77777777-0000"), ("n1", "GPU-1a2b3c4d-5e6f")]
    (run,) = found.experiments
    replicas = [{"node": node, "gpu_uuid": gpu, "device_uuid": gpu} for node, gpu in seats]
    manifest = run.data.manifest.model_copy(update={"replicas": replicas})
    found.experiments[0] = found.cells[0].experiments[0] = replace(run, data=replace(run.data, manifest=manifest))
    report.report_of(found)
    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert "| Replicas | Where | Verdict |" in text
    assert "| 3 | 2 + 1 on 2 GPUs of 2 nodes | VALID |" in text
    assert " | n1 GPU-1a2b3c4d: replicas 0, 2; n2 GPU-77777777: replica 1 | " in text
    assert '<td role="cell" class="words wrap">2 + 1 on 2 GPUs of 2 nodes</td>' in page
    assert "Ran on n1 GPU-1a2b3c4d: replicas 0, 2; n2 GPU-77777777: replica 1." in page


@pytest.mark.usefixtures("undrawn")
def test_the_index_lists_campaigns_and_archives_by_their_summaries(tmp_path: Path) -> None:
    for name, scale in (("slow", 0.5), ("fast", 1.0)):
        write_campaign(tmp_path / name, replicas=[1, 3], repeats=2, shape=replace(SHAPE, record_s=5, scale=scale))
        report.report_of(analyse(tmp_path / name))
    publish(tmp_path / "fast", tmp_path / "set.tar.xz")
    (tmp_path / "slow" / "summary.csv").write_text("changed")
    write_campaign(tmp_path / "unread", replicas=[1], repeats=1, shape=replace(SHAPE, record_s=5))
    (tmp_path / "damaged.tar.xz").write_bytes(b"nothing of ours")
    found = index_of(tmp_path)
    assert [(row["campaign"], row["replicas"], row["verdict"]) for row in found.table.records()] == [
        (name, replicas, "VALID") for name in ("fast", "set.tar.xz") for replicas in ("3", "1")
    ]
    assert found.refused.keys() == {"slow", "unread", "damaged.tar.xz"}
    assert "report" in found.refused["slow"]
    told = CliRunner().invoke(app, ["status", str(tmp_path)], catch_exceptions=False).stdout
    assert "\nresnet50: set.tar.xz\n" in told
    assert "not listed: damaged.tar.xz" in told
    with pytest.raises(ResultsPathError, match="it holds none"):
        index_of(tmp_path / "fast" / "plots")


@pytest.mark.parametrize("metrics", [["throughput", "gpu_utilization"], ["throughput", "cpu_usage"]])
def test_a_campaign_of_two_metrics_has_a_report(tmp_path: Path, metrics: list[str]) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=1, shape=replace(SHAPE, record_s=5))
    found = analyse(tmp_path)
    for cell in found.cells:
        for name in {"gpu_memory", "gpu_power", "gpu_temperature", "gpu_utilization", "cpu_usage"} - set(metrics):
            cell.estimates.pop(name, None)
        cell.estimates["gpu_sm_active"] = cell.estimates["throughput"]
    first, more, *_ = scaling_tables(found, "resnet50")
    assert len(first.titles) <= 6
    assert ("SM active" in more.titles, "GPU use" in more.titles) == (True, False)


@pytest.mark.usefixtures("undrawn")
def test_what_a_stranger_wrote_is_no_markup_and_no_command_of_a_terminal(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=1, shape=replace(SHAPE, record_s=5))
    (plan,) = tmp_path.glob("campaign.json")
    content = json.loads(plan.read_text())
    content["spec"]["description"] = "<img src=x onerror=alert(1)> \x1b]0;owned\x07\u202etxt"
    plan.write_text(json.dumps(content))
    report.report_of(analyse(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "&lt;img src=x onerror=alert(1)&gt; txt" in " ".join(text.split())
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


@pytest.mark.usefixtures("undrawn")
def test_repeats_until_known_are_named_by_their_limit_and_an_unknown_format_is_refused(tmp_path: Path) -> None:
    write_campaign(tmp_path, replicas=[1], repeats=1, shape=replace(SHAPE, record_s=5))
    plan = tmp_path / "campaign.json"
    content = json.loads(plan.read_text())
    content["spec"] |= {"repeats": {"until_known": {"max": 7}}, "order": "interleaved"}
    plan.write_text(json.dumps(content))
    page = report_of(analyse(tmp_path)).read_text()
    assert "<li><b>up to 7</b><span>repeats</span></li>" in page
    plan.write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(ResultsPathError, match="format 99"):
        analyse(tmp_path)
