"""Commands about results: verify, report, compare, export."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from harness.cli import output
from harness.cli.options import Baseline, FailOn, Json, Within, not_negative, positive
from harness.errors import ResultsPathError, StorageError, UsageError, counted
from harness.extras import absent, advice_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.analysis.axes import Family
    from harness.analysis.campaign import CampaignAnalysis
    from harness.analysis.contrasts.comparison import Comparison, Tested
    from harness.analysis.pages.table import Table
    from harness.analysis.questions.first_screen import FirstScreen
    from harness.analysis.questions.question import QuestionAnswer


def verify(
    path: Annotated[
        Path,
        Argument(
            metavar="RESULTS/CAMPAIGN",
            help="Folder of a campaign or of one experiment; or a published set, as everywhere.",
        ),
    ],
    *,
    json: Json = False,
) -> None:
    """Hash, parse and count every result file again; compare it with its manifest, and a campaign with its plan.

    This finds damage, not forgery: who can write the files can write their hashes, too.
    """
    from harness.campaign.verify import verify_campaign
    from harness.results.published import opened

    with opened(path) as folder:
        outcome = verify_campaign(folder).of(path)
    if json:
        output.document(
            {
                "ok": outcome.ok and outcome.experiments > 0,
                "path": str(path),
                "experiments": outcome.experiments,
                "files": outcome.files,
                "problems": [{**asdict(problem), "path": str(problem.path)} for problem in outcome.problems],
                "notes": outcome.notes,
            }
        )
    for note in outcome.notes:
        output.note(f"note: {note}")
    outcome.refuse()
    if not json:
        output.sentence(
            f"{path}: {counted(outcome.experiments, 'experiment')}, {counted(outcome.files, 'file')}, all as their manifests say."
        )


def report(
    path: Annotated[Path, Argument(metavar="RESULTS/CAMPAIGN", help="A campaign, finished or not; or a profile.")],
    *,
    out: Annotated[
        Path | None, Option(help="Folder to write into; default: the campaign's, below results/ for a published set.")
    ] = None,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    within: Within = None,
    json: Json = False,
) -> None:
    """Analyse a campaign, write its report (HTML, Markdown, plots, summaries) and print the figures."""
    from harness.analysis.campaign import analyse
    from harness.analysis.narrative import changed_file
    from harness.analysis.report import report_of
    from harness.campaign.thresholds import judge_analyses, thresholds
    from harness.results.old_profile import is_old_profile
    from harness.results.published import opened

    limits = thresholds(fail_on, baseline, within)
    if is_old_profile(path):
        _report_old_profile(path, out, json=json)
        return
    with opened(path) as folder:
        unpacked = folder != path
        analysis = analyse(folder)
        judged = judge_analyses(limits, [analysis])
        try:
            written = report_of(analysis, out or (Path("results") / folder.name if unpacked else None))
        except StorageError as error:
            raise StorageError(error.message, advice="Write the report elsewhere: --out FOLDER") from error
    for sentence in changed_file(analysis):
        output.note(f"note: {sentence}")
    if absent("matplotlib", "PIL"):
        output.note(f"note: The plots are SVG files. For PNG files: {advice_on('matplotlib')}")
    if json:
        output.document(figures(analysis, written) | judged.document())
    else:
        show_figures(analysis)
        output.sentences(judged.sentences())
        output.result(f"report: {written}")
    judged.refuse()


def _report_old_profile(path: Path, out: Path | None, *, json: bool) -> None:
    """The report of what `harness profile` of an earlier version measured."""
    from harness.analysis.axes import family_of_old
    from harness.analysis.report import report_of_old_profile
    from harness.results.old_profile import read_old_profile

    profile = read_old_profile(path)
    family, written = family_of_old(profile), report_of_old_profile(profile, out)
    if json:
        output.document({**family.to_dict(), "report": str(written)})
    else:
        _show_settings(family)
        output.result(f"report: {written}")


def figures(analysis: CampaignAnalysis, report: Path) -> dict[str, Any]:
    """The report's path and the figures, for ``--json``."""
    from harness.analysis.axes import families
    from harness.analysis.summary import headline

    settings = [family.to_dict() for family in families(analysis)]
    return {"report": str(report), "figures": headline(analysis), **({"settings": settings} if settings else {})}


def show_figures(analysis: CampaignAnalysis, *, printed: Sequence[str] = ()) -> None:
    """Print what the report begins with but for what was ``printed``, and a line of figures per configuration."""
    from harness.analysis.axes import families
    from harness.analysis.goodput import bests
    from harness.analysis.narrative import concerns, headline
    from harness.analysis.pages.tables import short_tables
    from harness.analysis.questions.condition_overhead import interference

    for sentence in headline(analysis, bests(analysis.spec, analysis.stress_series), interference(analysis)):
        if sentence not in printed:
            output.sentence(sentence)
    for family in families(analysis):
        _show_settings(family, printed=printed)
    if analysis.cells:
        for table in short_tables(analysis):
            output.show(table)
    if weak := concerns(analysis):
        output.sentence(f"Caveats: {'; '.join(weak)}.")


def _show_settings(family: Family, *, printed: Sequence[str] = ()) -> None:
    """Print a line for every setting of a workload, and what follows from them."""
    output.show(family.short_table())
    output.result()
    for variant in family.variants:
        if variant.failure:
            output.sentence(f"{variant.name}: {variant.failure}")
    missing = [why for variant in family.variants if variant.finding for why in variant.finding.missing]
    for sentence in (*family.answers(), *(f"missing: {why}" for why in dict.fromkeys(missing))):
        if sentence not in printed:
            output.sentence(sentence)


def compare(
    campaigns: Annotated[
        list[Path],
        Argument(
            metavar="RESULTS/CAMPAIGN...", help="Folders of campaigns, or published sets; the first is the baseline."
        ),
    ],
    *,
    by: Annotated[
        str | None,
        Option(
            help="What the sides differ in: campaign, sharing (with limits of MPS), condition, workload, share (limits of MPS) or "
            "time-slice. Default: campaign where several measured the same, else sharing, or workload where several servers ran under one mode."
        ),
    ] = None,
    html: Annotated[Path | None, Option(help="Also write the page that decides, with plots and every table.")] = None,
    latency_limit_ms: Annotated[
        float | None,
        Option(
            help="Limit of the p99 latency: how many replicas of a GPU keep it, and which mode serves most within it?"
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, Option(callback=not_negative, help="Price of one GPU for an hour.")
    ] = None,
    price_per_kwh: Annotated[
        float | None, Option(callback=not_negative, help="Price of a kWh of the GPUs' energy.")
    ] = None,
    currency: Annotated[str, Option(help="Currency of these prices, e.g. USD.")] = "",
    unlike: Annotated[bool, Option("--unlike", help="Compare even results of unlike machines.")] = False,
    details: Annotated[
        bool, Option("--details", help="Also print every test and the answers behind the decision.")
    ] = False,
    fail_on: FailOn = None,
    within: Within = None,
    json: Json = False,
) -> None:
    """Compare campaigns, sharing modes or conditions: which is best for what, how sure that is, and what it costs."""
    import shlex
    import sys

    from harness.analysis.contrasts.comparison import gathered
    from harness.analysis.questions.first_screen import first_screen
    from harness.analysis.questions.question import comparison_query
    from harness.analysis.questions.recommendation import goals_table
    from harness.analysis.report import answer_all, write_comparison
    from harness.campaign.thresholds import judge_analyses, thresholds

    _refuse_many(campaigns)
    limits = thresholds(fail_on, None, within, campaigns=len(campaigns), latency_limit_ms=latency_limit_ms)
    query = comparison_query(latency_limit_ms, price_per_gpu_hour, price_per_kwh, currency)
    with gathered(campaigns, by, unlike=unlike) as comparison:
        judged = judge_analyses(limits, comparison.analyses)
        answered = answer_all(comparison, query)
        first = first_screen(comparison, query)
        goals = goals_table(first.choices) if first.choices else None
        command = shlex.join(["harness", *sys.argv[1:]])
        page = write_comparison(html, first, answered, command, query) if html else None
        conditions = first.interference.sentences() if first.interference else []
        document = {
            "by": comparison.by.value,
            "sides": comparison.sides,
            "lines": [_line(tested) for tested in comparison.tests],
            "lonely": [{"place": key, "label": label} for key, label in comparison.lonely],
            "unlike": comparison.unlike,
            **first.document(),
            "decision": goals.records() if goals else [],
            "choices": [choice.document() for choice in first.choices],
            "questions": [answer.document() for answer in answered],
            "page": None if page is None else str(page),
            "isolation": first.isolation.sentences,
            "overheads": conditions,
        }
    if json:
        output.document(document | judged.document())
    else:
        _print_comparison(first, goals, answered, conditions, details=details)
        if page is not None:
            output.result(f"\npage: {page}")
        output.sentences(judged.sentences())
    judged.refuse()


def _refuse_many(paths: Sequence[Path]) -> None:
    """Where one path is a folder of campaigns, list them and raise UsageError: which of them are meant is not known."""
    import shlex

    from harness.results.layout import CAMPAIGN_JSON
    from harness.results.published import SUFFIX

    for path in paths:
        inside = [*(identity.parent for identity in path.glob(f"*/{CAMPAIGN_JSON}")), *path.glob(f"*{SUFFIX}")]
        if not inside or (path / CAMPAIGN_JSON).is_file():
            continue
        if not output.is_json():
            try:
                print_index(path, json=False)
            except ResultsPathError:  # no report was written of any
                output.sentences(str(campaign) for campaign in sorted(inside))
        names = shlex.join(map(str, sorted(inside)[:2]))
        raise UsageError(
            f"{path} holds {counted(len(inside), 'campaign')}: which are compared?",
            advice=f"E.g. harness compare {names}",
        )


def print_index(folder: Path, *, json: bool) -> None:
    """Print what the campaigns and archives of a folder measured."""
    from harness.analysis.summary import index

    measured = index(folder)
    table = measured.table
    if json:
        output.document({"configurations": table.records(), "refused": measured.refused})
        return
    shown = [index for index, column in enumerate(table.columns) if column.key not in {"workload", "campaign"}]
    lines: dict[str, list[list[str]]] = {}
    for row, cells in zip(measured.rows, table.texts, strict=True):
        heading = f"\n{row['workload']}: {row['campaign']}"
        lines.setdefault(heading, [[heading]]).append([cells[index] for index in shown])
    output.table([table.titles[index] for index in shown], itertools.chain(*lines.values()))
    for name, reason in measured.refused.items():
        output.sentence(f"not listed: {name}: {reason}")


def _line(tested: Tested) -> dict[str, Any]:
    """One test for a program."""
    from harness.analysis.campaign import shared
    from harness.analysis.statistics import t_interval

    contrast = tested.contrast
    share = shared(contrast.baseline, contrast.candidate)
    a, b = (
        asdict(t_interval(cell.figures(contrast.metric), share)) for cell in (contrast.baseline, contrast.candidate)
    )
    change = b["mean"] / a["mean"] - 1
    difference = {"a": a, "b": b, "change": change, "welch_p": contrast.p}
    return {
        "place": tested.key,
        "measure": contrast.metric,
        "a": tested.a,
        "b": tested.b,
        "ratio": asdict(contrast.ratio),
        "difference": {**difference, "adjusted_p": contrast.corrected_p},
        "outcome": contrast.outcome.value,
        "answer": contrast.sentence,
        "paired": contrast.paired,
        "family": contrast.family,
    }


def _print_comparison(
    first: FirstScreen, goals: Table | None, answered: list[QuestionAnswer], conditions: list[str], *, details: bool
) -> None:
    """The plain table, the sentence, then the goals; with ``details`` every test and all answers."""
    comparison = first.comparison
    for sentence in comparison.unlike:
        output.note(f"differs: {sentence}")
    if len(comparison.sides) == 1:
        further = " Add --by workload to compare the workloads." if len(comparison.workloads()) > 1 else ""
        output.note(f"one side only ({comparison.sides[0]}): there is nothing to compare it with.{further}")
    if first.table:
        output.show(first.table)
        output.result()
    output.entry(first.sentence)
    if goals:
        output.result()
        output.show(goals)
    for gap in comparison.missing_modes():
        output.entry(f"({gap})")
    if details:
        _print_tests(comparison)
    _print_answers(first, answered, conditions, details=details)
    if not details:
        output.note(
            f"\n{len(comparison.tests)} tests and {len(answered)} more answers: add --details, or --html PAGE.html"
        )


def _print_answers(first: FirstScreen, answered: list[QuestionAnswer], conditions: list[str], *, details: bool) -> None:
    """What neighbours cost, and the answers behind the decision."""
    sections = {"What do neighbours cost?": first.isolation.sentences} if first.choices else {}
    if details or not first.isolation.apart:
        sections["What does each condition cost?"] = conditions
    for question, lines in sections.items():
        if lines:
            output.sentence("\n".join([f"\n{question}", *(f"  {line}" for line in lines)]))
    for answer in answered if details else ():
        said = answer.takeaway or ("" if answer.table else "Not measured.")
        output.sentence("\n".join(filter(None, [f"\n{answer.question}", said and f"  {said}"])))
        if answer.table:
            output.show(answer.table)
        output.sentences(f"  ({gap})" for gap in answer.missing)


def _print_tests(comparison: Comparison) -> None:
    from harness.analysis.format import percent_more, replicas_in_words

    by_pair: dict[str, list[list[str]]] = {}
    for key, a, b, contrast in comparison.tests:
        title = f"\n{key.workload}, {replicas_in_words(key.replicas)}: {b} / {a}"
        by_pair.setdefault(title, []).append([contrast.metric, percent_more(contrast.ratio), contrast.sentence])
    for title, rows in by_pair.items():
        output.entry(title)
        output.table(["metric", "difference", "answer"], rows)
    for key, label in comparison.lonely:
        output.sentence(f"only {label}: {key.workload} with {key.replicas}")


def export(
    out: Annotated[Path, Argument(help="Folder to write into; must not exist.")],
    *,
    recorded: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="RESULTS/CAMPAIGN",
            help="Collect this experiment again, or all of a campaign: replicas, times and metrics as it recorded them.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None, Option(help="The server, e.g. http://127.0.0.1:9090; with --from, default: the one that recorded.")
    ] = None,
    start: Annotated[
        str | None, Option(help="First row, ISO-8601 with zone, e.g. 2026-01-31T12:00:00Z; floored to the step.")
    ] = None,
    duration_s: Annotated[float, Option(callback=positive, help="Seconds from the first row to the last.")] = 3600.0,
    step_s: Annotated[float, Option(callback=positive, help="Seconds between rows.")] = 5.0,
    window_s: Annotated[
        float | None, Option(callback=positive, help="Window of rates and quantiles; default 4 steps.")
    ] = None,
    namespace: Annotated[str | None, Option(help="The pods' namespace, in a cluster.")] = None,
    pods: Annotated[str, Option(help="Regular expression of the pods' names, in a cluster.")] = ".+",
    job: Annotated[str | None, Option(help="The scrape job, without a cluster.")] = None,
    by: Annotated[str, Option(help="Label that distinguishes replicas without a cluster.")] = "instance",
    workload: Annotated[str, Option(help="First part of the file names.")] = "workload",
    metric: Annotated[
        list[str] | None, Option(help="A metric of the catalogue; may be repeated. Default: all.")
    ] = None,
    timeout_s: Annotated[float, Option(callback=positive, help="Seconds that one query may take.")] = 30.0,
    json: Json = False,
) -> None:
    """Export a recording from a Prometheus server into the metric CSVs that a campaign writes.

    Either a recorded experiment or campaign once more (--from), or any window of any server (--prometheus, --start, and
    --namespace or --job).
    """
    if recorded is not None:
        if any(value is not None for value in (start, namespace, job, metric)):
            raise UsageError(
                "--from says already what to export: --start, --namespace, --job and --metric do not go with it.",
                advice="Leave them out, or leave --from out.",
            )
        from harness.campaign.publish import collect_again
        from harness.results.published import opened

        with opened(recorded) as folder:
            summaries = collect_again(folder, out, url=prometheus, timeout_s=timeout_s)
        if json:
            output.document(summaries)
        else:
            for folder_name, summary in summaries.items():
                _print_export(folder_name, summary)
        return
    from harness.metrics.prometheus.client import PrometheusServer
    from harness.results.from_prometheus import dialect_of, export_folder

    if prometheus is None or start is None:
        raise UsageError(
            f"the export needs {'--start' if prometheus else '--prometheus'}.",
            advice="Or give a recorded experiment: harness export OUT --from EXPERIMENT",
        )
    dialect = dialect_of(namespace, pods, job, by)
    with PrometheusServer(prometheus, timeout_s=timeout_s) as server:
        summary = export_folder(
            out,
            server,
            dialect,
            workload=workload,
            start=start,
            duration_s=duration_s,
            step_s=step_s,
            window_s=window_s or 4 * step_s,
            metrics=metric,
        )
    if json:
        output.document(summary)
    else:
        _print_export(str(out), summary)


def _print_export(out: str, summary: dict[str, Any]) -> None:
    for name, reason in summary["absent"].items():
        output.note(f"{name} is absent: {reason}")
    if absent := summary.get("telemetry", {}).get("gpu_absent"):
        output.note(f"telemetry.csv is absent: {absent}")
    for remark in summary["notes"]:
        output.note(f"note: {remark}")
    output.result(
        f"{out}: {counted(len(summary['metrics']), 'metric')} of {counted(len(summary['replicas']), 'replica')}, "
        f"{counted(summary['rows'], 'row')} each."
    )
