"""Commands about campaigns: init, validate, plan, doctor, run, resume, status, schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from harness import errors
from harness.cli import decision, output
from harness.cli.options import (
    AddedModes,
    Baseline,
    Budget,
    CampaignPath,
    FailOn,
    Force,
    Json,
    NoWait,
    OnCluster,
    Report,
    Results,
    Set,
    Verbose,
    Within,
    WorkloadName,
)
from harness.errors import CampaignFileError, LoadError, PreflightError, UsageError, counted, duration

if TYPE_CHECKING:
    from harness.analysis.campaign import CampaignAnalysis
    from harness.campaign.folder import CampaignFolder
    from harness.campaign.plan import CampaignCost
    from harness.campaign.runner import CampaignOutcome
    from harness.campaign.source import CampaignSource
    from harness.campaign.thresholds import Thresholds
    from harness.spec import CampaignSpec
    from harness.traffic.datasets import LoadFacts


def _campaigns(begun: str) -> list[str]:
    """What completes a campaign: those that are shipped, and folders and YAML files of one's own."""
    from harness.campaign.source import shipped_names

    own = [f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{begun}*")] if begun[:1] != "/" else []
    own = [path for path in own if path.endswith(("/", ".yaml", ".yml")) and not path.startswith(".")]
    return [*(name for name in shipped_names() if name.startswith(begun)), *own]


CampaignFile = Annotated[
    str,
    Argument(
        metavar="FILE_OR_NAME",
        help="A campaign file, or one that is shipped: sharing, quickstart, smoke, replica-scaling, mlperf-like.",
        autocompletion=_campaigns,
    ),
]


def init(
    file: Annotated[Path, Argument(help="The file to write; must not exist.")],
    *,
    purpose: Annotated[
        Literal["sharing", "scaling", "serving", "profile", "kubernetes"] | None,
        Option("--for", help="A short file for this purpose; default: one with every field."),
    ] = None,
) -> None:
    """Write a commented campaign file to start from."""
    from shlex import quote

    from harness.campaign.source import starter_for, starter_text
    from harness.results.files import atomic_write

    if purpose == "profile":
        raise UsageError(
            "a profile of one workload needs no campaign file, so none was written.",
            advice="harness profile resnet50 --capacity knee, and with --write FILE the file of that campaign",
        )
    if file.exists():
        raise UsageError(f"{file} exists already, and is not written over.", advice="Give another name, or remove it.")
    if not file.parent.is_dir():
        raise UsageError(
            f"there is no folder {file.parent} to write {file.name} into.", advice=f"mkdir -p {quote(str(file.parent))}"
        )
    atomic_write(file, starter_for(purpose, file.stem) if purpose else starter_text(file.stem))
    output.sentence(f"{file} written. Edit it, then: harness plan {quote(str(file))}")


def validate(file: CampaignFile, *, json: Json = False) -> None:
    """Check a campaign file, every line of it."""
    from harness.campaign.plan import expand, loads
    from harness.campaign.source import read_source

    source = read_source(file)
    experiments = expand(source.spec)
    try:
        load = loads(experiments)
    except LoadError as error:
        raise CampaignFileError(error.message, advice="Fix it, or say in the campaign file how to read it.") from error
    if json:
        counts = {"ok": True, "campaign": source.spec.name, "experiments": len(experiments)}
        output.document({**counts, "loads": _documents(load)})
    else:
        count = f"{'at most ' if source.spec.open_ended else ''}{counted(len(experiments), 'experiment')}"
        output.sentence(f"{file} is a valid campaign of {count}.")
        _show(load)


def plan(
    file: CampaignFile,
    *,
    results: Results = Path("results"),
    budget: Budget = None,
    settings: Set = None,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    within: Within = None,
    json: Json = False,
) -> None:
    """Show the matrix, the hours, the disk, and what preflight would say. Starts and writes nothing.

    Exits with 3 where preflight refuses, as `run` would; with --fail-on also where the results could not pass: an objective
    that the recording is too short for (11), with `degraded` also where preflight warns (14).
    """
    from harness.backends.base import make_backend
    from harness.campaign import preflight
    from harness.campaign.fit import fitted
    from harness.campaign.plan import (
        certain,
        check_limits,
        dearest_point,
        estimate,
        expand,
        gives_gpus,
        loads,
        matrix,
        most,
    )
    from harness.campaign.settings import changes
    from harness.campaign.source import read_source
    from harness.campaign.thresholds import thresholds

    wanted = thresholds(fail_on, baseline, within)
    source = fitted(read_source(file, changes(file, settings or (), budget=budget)), say=output.note)
    wanted.refuse_unanswerable(source.spec)
    experiments = expand(source.spec)
    cost = most(source.spec)
    check_limits(source.spec, cost)
    sure = certain(source.spec)
    least = estimate(sure)
    findings = preflight.check(sure, results, make_backend(source.spec, campaign_id="plan"))
    judged = wanted.of_plan(source.spec, findings)
    try:
        load = loads(experiments)
    except LoadError:  # preflight says so
        load = {}
    if json:
        output.document(
            {
                "campaign": source.spec.name,
                "experiments": [
                    {"id": spec.experiment_id, "rows": spec.timing.rows, "duration_s": spec.timing.phases_s}
                    for spec in experiments
                ],
                "metrics": experiments[0].metrics,
                "csv_files": len(experiments) * len(experiments[0].metrics),
                **asdict(cost),
                "certain": {"experiments": len(sure), **asdict(least)},
                **({"point": asdict(dearest_point(source.spec))} if source.spec.stress else {}),
                "preflight": [
                    {name: str(getattr(issue, name)) for name in ("severity", "check", "message", "advice")}
                    for issue in findings
                ],
                "loads": _documents(load),
                **judged.document(),
            }
        )
        judged.refuse()
        return
    spec, timing = source.spec, source.spec.timing
    cut_short = spec.open_ended or timing.stop_when_known is not None
    files = len(experiments) * len(experiments[0].metrics)
    output.sentence(
        f"{'At most ' if cut_short else ''}{counted(len(experiments), 'experiment')}, {files} metric CSVs, "
        f"{_cost(cost)} (more where models are compiled)."
    )
    if cost.duration_s < estimate(experiments).duration_s:
        output.sentence("These hours are those of its budget, which ends it before all of the experiments are run.")
    if spec.stress is not None:
        output.sentence(_of_points(spec))
    if spec.until_known is not None:
        output.sentence(f"At least {len(sure)} experiments (below), {_cost(least)}.")
    output.sentence(
        f"Each: {duration(timing.stabilise_s)} to stabilise, {duration(timing.record_s)} recorded ({timing.rows} rows), "
        f"{duration(timing.cooldown_s)} to cool down."
    )
    if spec.one_start:
        output.sentence(f"{counted(cost.starts, 'start')} of the replicas: one serves all loads of a repeat, in turn.")
    _show(load)
    output.result()
    output.table(*matrix(sure if spec.until_known else experiments, gpus=gives_gpus(spec)))
    output.result()
    for issue in findings:
        output.sentence(f"preflight {issue.severity.value}: {issue.message} {issue.advice}".rstrip())
    if not findings:
        output.sentence("preflight: no problems.")
    judged.refuse()


def _documents(load: Mapping[str, LoadFacts]) -> dict[str, dict[str, Any]]:
    return {name: facts.model_dump(mode="json") for name, facts in load.items()}


def _show(load: Mapping[str, LoadFacts]) -> None:
    """What is in the files of requests; those that several workloads are asked from, once."""
    for words in dict.fromkeys(facts.in_words() for facts in load.values()):
        output.sentence(f"Load: {words}")


def _of_points(spec: CampaignSpec) -> str:
    """How long a stress campaign lasts at most, and what one of its points costs."""
    from harness.campaign.plan import dearest_point, expand, most

    points, cost, dearest = len(expand(spec)), most(spec), dearest_point(spec)
    return f"At most {counted(points, 'point')} in {duration(cost.total_s)}; a point costs {_cost(dearest)}."


def _cost(cost: CampaignCost) -> str:
    from harness.campaign.plan import at_most_gb

    starts = f"roughly {duration(cost.starts_s)} to start and end replicas"
    return f"{duration(cost.duration_s)} of phases, {starts}, at most {at_most_gb(cost.disk_bytes)}"


def doctor(
    file: Annotated[
        str | None, Argument(metavar="[FILE]", help="Campaign file to run on that cluster; only with --kubernetes.")
    ] = None,
    *,
    kubernetes: Annotated[
        bool, Option("--kubernetes", help="Look at a cluster; 3 is the exit code if it lacks something.")
    ] = False,
    namespace: Annotated[str | None, Option(help="Namespace to look at, in place of the campaign's.")] = None,
    json: Json = False,
) -> None:
    """Look at this machine or at a cluster: what can be measured there, what cannot, and why."""
    from harness.campaign.preflight import examine, examine_cluster, of_campaign

    if not kubernetes and (file or namespace):
        raise UsageError(
            "a campaign file and --namespace are of use on a cluster alone.",
            advice="Add --kubernetes, or leave them out.",
        )
    checks, access = examine_cluster(*of_campaign(file, namespace)) if kubernetes else (examine(), "")
    ok = all(check.ok for check in checks if check.required)
    if json:
        output.document({"ok": ok, "checks": [asdict(check) for check in checks], "access": access})
    else:
        marks = ["ok" if check.ok else "NO" if check.required else "--" for check in checks]
        rows = [[mark, check.name, check.found] for mark, check in zip(marks, checks, strict=True)]
        output.table(["", "check", "found"], rows)
        for check in checks:
            if check.advice:
                output.sentence(f"{check.name}: {check.advice}")
        if access:
            output.result(f"\nWhat an administrator applies (kubectl apply -f FILE):\n\n{access}")
    if kubernetes and not ok:
        raise typer.Exit(PreflightError.exit_code)


def run(
    file: CampaignFile,
    *,
    results: Results = Path("results"),
    force: Force = False,
    no_wait: NoWait = False,
    verbose: Verbose = False,  # noqa: ARG001 - output.is_verbose says it
    report: Report = True,
    workload: WorkloadName = None,
    mode: AddedModes = None,
    budget: Budget = None,
    kubernetes: OnCluster = None,
    settings: Set = None,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    within: Within = None,
    json: Json = False,  # noqa: ARG001 - output.is_json says it
) -> None:
    """Run a campaign to the end and write its report.

    `harness run sharing` needs no file: which sharing mode is best on this GPU, in five minutes.
    """
    from harness.campaign.fit import fitted
    from harness.campaign.preflight import alone
    from harness.campaign.settings import changes
    from harness.campaign.source import read_source
    from harness.campaign.thresholds import thresholds
    from harness.host import WAIT_S

    limits = thresholds(fail_on, baseline, within)
    wanted = changes(file, settings or (), workload=workload, modes=mode or (), budget=budget, kubernetes=kubernetes)
    source = read_source(file, wanted)
    with alone(source.spec, output.note, 0.0 if no_wait else WAIT_S):
        source = fitted(source, force=force, say=output.note)
    run_source(source, results, limits, force=force, no_wait=no_wait, report=report)


def run_source(
    source: CampaignSource,
    results: Path,
    wanted: Thresholds,
    *,
    force: bool = False,
    no_wait: bool,
    report: bool = True,
) -> None:
    """Run what a file or a command says, and tell what came of it."""
    from harness.campaign.preflight import prepare
    from harness.cli.progress import run_shown
    from harness.host import WAIT_S

    wanted.refuse_unanswerable(source.spec)
    if source.spec.stress is not None:
        output.note(_of_points(source.spec))
    for failure in wanted.of_plan(source.spec, ()).failures:
        output.note(f"warning: {failure}")
    wait_s = 0.0 if no_wait else WAIT_S
    folder = prepare(source, results, force=force, say=output.note, wait_s=wait_s)
    with decision.watched(folder):
        outcome = run_shown(folder, wait_s=wait_s)
    _finish(outcome, folder, wanted, report=report)


def resume(
    campaign: CampaignPath,
    *,
    as_started: Annotated[
        bool,
        Option("--as-started", help="Go on with the campaign file as it was, although the original changed since."),
    ] = False,
    no_wait: NoWait = False,
    verbose: Verbose = False,  # noqa: ARG001 - output.is_verbose says it
    report: Report = True,
    retry_invalid: Annotated[
        bool, Option("--retry-invalid", help="Run INVALID experiments again; the old ones are kept among the attempts.")
    ] = False,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    within: Within = None,
    json: Json = False,  # noqa: ARG001 - output.is_json says it
) -> None:
    """Go on with a campaign that was interrupted or killed; what is finished is not repeated."""
    from harness.campaign.folder import check_source, open_folder
    from harness.campaign.thresholds import thresholds
    from harness.cli.progress import run_shown
    from harness.host import WAIT_S
    from harness.results.manifest import Status
    from harness.results.old_profile import refuse_to_resume

    wanted = thresholds(fail_on, baseline, within)
    refuse_to_resume(campaign)
    folder = open_folder(campaign)
    if not as_started:
        check_source(folder)
    wanted.refuse_unanswerable(folder.spec)
    with decision.watched(folder):
        outcome = run_shown(folder, (Status.INVALID,) if retry_invalid else (), wait_s=0.0 if no_wait else WAIT_S)
    _finish(outcome, folder, wanted, report=report)


def _finish(outcome: CampaignOutcome, folder: CampaignFolder, wanted: Thresholds, *, report: bool) -> None:
    """Write the report and print what came of the campaign; the live view has ended, which takes stdout for itself."""
    from harness.analysis.objective import in_sentences, objectives
    from harness.analysis.pages.tables import goodput_table
    from harness.campaign.planners import planner_of
    from harness.cli.results import figures, show_figures
    from harness.results.manifest import Status, read_manifest

    planner, slo = planner_of(folder), objectives(folder.path)
    answers, best = planner.answers(), planner.bests()
    answer: dict[str, object] = {"campaign": str(folder.path), "experiments": outcome.statuses}
    answer |= {planner.kind: answers} if answers else {}
    answer |= {"slo": slo} if slo else {}
    answer |= {"goodput": [ladder.to_dict() for ladder in best]} if best else {}
    analysis: CampaignAnalysis | None = None
    if report or wanted.baseline:
        from harness.analysis.campaign import analyse

        analysis = analyse(folder.path)
    made = decision.decisions_of(folder, analysis)
    if made:
        answers = []
        answer["decisions"] = [it.document() for it in made]
    if not output.is_json():
        decision.show(made)
    if report and analysis:
        from harness.analysis.report import report_of

        output.note("writing the report")
        answer |= figures(analysis, report_of(analysis)) | decision.page(folder, analysis)
    explained = outcome.statuses.keys() - outcome.invalid
    also_invalid = replace(wanted, wanted=wanted.wanted | {errors.FailOn.INVALID})
    judged = also_invalid.judge(
        {name: end for name, end in outcome.statuses.items() if end is not Status.INVALID or name not in explained},
        slo,
        wanted.against_baseline(analysis) if analysis else (),
        advice=f"The report says why. Run them again with: harness resume --retry-invalid {folder.path}",
    )
    if output.is_json():
        output.document(answer | judged.document())
    else:
        runs = [(read_manifest(folder.path / name).experiment, met) for name, met in slo.items()]
        sentences = [*answers, *in_sentences(runs)]
        output.sentences(sentences)
        if best:
            output.show(goodput_table(best))
        if report and analysis:
            show_figures(analysis, printed=[*sentences, *(it.headline for it in made)])
        output.sentences(judged.sentences())
        output.result(f"report: {answer['report']}" if report else f"results: {folder.path}")
        if "page" in answer:
            output.result(f"page: {answer['page']}")
    judged.refuse()


def status(
    campaign: Annotated[
        Path | None,
        Argument(
            metavar="[RESULTS/CAMPAIGN]",
            help="Folder of one campaign, or of several with their results; without it, all below --results.",
        ),
    ] = None,
    *,
    results: Results = Path("results"),
    json: Json = False,
) -> None:
    """Show how far a campaign has come, running or not; of a folder of campaigns or archives, what they measured."""
    from harness.campaign.progress import all_campaigns, campaign_status
    from harness.cli.results import print_index
    from harness.results.layout import CAMPAIGN_JSON
    from harness.results.published import opened

    if campaign is None:
        listed = all_campaigns(results, say=lambda note: output.note(f"note: {note}"))
        if json:
            output.document([asdict(known) for known in listed])
            return
        rows = [
            [str(results / known.campaign), f"{known.done} of {len(known.experiments)}", known.activity]
            for known in listed
        ]
        output.table(["campaign", "done", ""], rows)
        return
    if campaign.is_dir() and not (campaign / CAMPAIGN_JSON).is_file():
        print_index(campaign, json=json)
        return
    with opened(campaign) as folder:
        progress = campaign_status(folder)
    if json:
        output.document(asdict(progress))
        return
    runs = [[run.experiment_id, run.status, run.attempts, run.note] for run in progress.experiments]
    output.table(["experiment", "status", "attempts", "note"], runs)
    output.result()
    output.sentences(progress.answers)
    to_go = f"; about {duration(round(progress.remaining_s))} to go" if progress.done < len(runs) else ""
    output.sentence(f"{progress.done} of {len(runs)} done; {progress.activity}{to_go}.")
    if campaign.is_dir() and to_go and not progress.running:
        output.sentence(
            f"Continue with: harness resume {campaign}. Check the finished runs with: harness verify {campaign}."
        )


def schema() -> None:
    """Print the JSON Schema of the campaign file."""
    from harness.spec import CampaignSpec

    output.document(CampaignSpec.model_json_schema())
