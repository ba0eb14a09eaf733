"""Commands about results that others read: publish, reproduce, scenarios."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from harness.cli import output
from harness.cli.options import Force, Json, NoWait, Verbose, positive
from harness.errors import NotReproducedError, UsageError, duration

if TYPE_CHECKING:
    from harness.analysis.contrasts.reproduction import Reproduction
    from harness.campaign.source import CampaignSource
    from harness.spec import CampaignSpec, KubernetesSpec, ServerSpec

_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
_OF_THE_NODES = "localhost/"
"""Where images are that a node's owner put there: no registry has them."""


def _nanoseconds(resolution: str) -> int:
    match = re.fullmatch(r"(\d+)(ns|us|ms)", resolution)
    size_ns = int(match[1]) * _UNITS_NS[match[2]] if match else 0
    if not 0 < size_ns <= _UNITS_NS["ms"]:
        raise typer.BadParameter("a time from 1ns, which rounds nothing, to 1ms is expected, e.g. 1us")
    return size_ns


def publish(
    path: Annotated[
        Path, Argument(metavar="RESULTS/CAMPAIGN", help="Folder of a campaign, or a published set to make anew.")
    ],
    *,
    out: Annotated[
        Path | None, Option(help="The archive, NAME.tar.xz; default: beside the folder, named like it.")
    ] = None,
    resolution: Annotated[
        int | None,
        Option(
            metavar="TIME",
            parser=_nanoseconds,
            help="Round instants to this, e.g. 1us, which its manifests say: an archive of half the size or less.",
        ),
    ] = None,
    author: Annotated[list[str] | None, Option(help='Who made it: "NAME" or "NAME <ORCID>"; may be repeated.')] = None,
    licence: Annotated[
        str | None, Option("--license", help="Its terms: an SPDX identifier as CC-BY-4.0, or a URL.")
    ] = None,
    partial: Annotated[bool, Option("--partial", help="Publish what is finished of a campaign that is not.")] = False,
    citation: Annotated[
        Path | None, Option(help="Authors, license, title, doi or url from a file in the form of CITATION.cff.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify a campaign and make one archive of it, described as RO-Crate, which every command reads."""
    from harness.campaign.publish import publish as make_archive
    from harness.results.ro_crate import citation as cited

    stated = cited(citation, author or (), licence)
    made = make_archive(
        path,
        out,
        citation=stated,
        resolution_ns=resolution,
        say=lambda note: output.note(f"note: {note}"),
        partial=partial,
    )
    missing = [name for name, value in (("author", stated.authors), ("license", stated.licence)) if not value]
    if missing:
        output.note(f"note: {' and '.join(missing)} not stated in it: add --{' --'.join(missing)}, or --citation FILE.")
    if json:
        output.document({"archive": str(made), "bytes": made.stat().st_size})
    else:
        output.result(f"{made}: {made.stat().st_size / 1e6:.1f} MB, verified. Read it with: harness report {made}")


def reproduce(
    archive: Annotated[
        Path, Argument(metavar="ARCHIVE", help="A published set, or the folder of a campaign that is finished.")
    ],
    *,
    against: Annotated[
        list[Path] | None,
        Option(
            metavar="RESULTS/CAMPAIGN",
            help="Compare with this campaign, which ran again already, and run nothing. May be repeated.",
        ),
    ] = None,
    within: Annotated[
        float, Option(callback=positive, help="Percent that a figure may differ and still agree.")
    ] = 10.0,
    measure: Annotated[
        list[str] | None,
        Option(help="What decides; may be repeated. Default: throughput, latency_p50_exact and energy."),
    ] = None,
    most: Annotated[
        int | None,
        Option(
            "--max-repeats",
            min=1,
            max=100,
            help="Repeats of a configuration here, at most: more than were published run where their spread asks for it.",
            show_default="four times those published",
        ),
    ] = None,
    results: Annotated[
        Path | None, Option(help="Folder that holds the campaigns' folders.", show_default="results")
    ] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Run the archive's own commands, modules and images without asking.")
    ] = False,
    force: Force = False,
    no_wait: NoWait = False,
    verbose: Verbose = False,  # noqa: ARG001 - output.is_verbose says it
    json: Json = False,
) -> None:
    """Run a published campaign again here, with its own commands, and compare each configuration.

    What the archive has this machine run is shown first, and asked about unless --yes is given.
    """
    from harness.analysis.campaign import analyse
    from harness.analysis.contrasts.reproduction import more_repeats, reproduction, wanted
    from harness.campaign.planners import most_repeats, published_source, refuse_same, with_more_repeats
    from harness.host import WAIT_S
    from harness.results.published import opened

    if against and (results or force or most):
        raise UsageError(
            "with --against nothing is run, so --results, --force and --max-repeats have no effect.",
            advice="Leave them out; or leave --against out, to run the campaign again.",
        )
    with ExitStack() as stack:
        published = stack.enter_context(opened(archive))
        source = published_source(published, archive)
        most = most_repeats(source, most)
        analysis = analyse(published)
        measures = wanted(analysis, measure, within=within / 100)  # before hours of running
        folders = list(against or [])
        if against:
            ran = [analyse(stack.enter_context(opened(folder))) for folder in against]
            refuse_same(published, *(run.folder for run in ran))
        else:
            output.note(_what_it_takes(source, most, within))
            _ask_about([*_foreign_code(source.spec)], archive, yes=yes)
            into = results or Path("results")
            run_again = partial(
                _run_again, archive=archive, results=into, force=force, wait_s=0.0 if no_wait else WAIT_S
            )
            folders = [run_again(source, before=[])]
            ran = [analyse(folders[0])]
            if more := more_repeats(analysis, ran[0], measures, within=within / 100, most=most):
                further = with_more_repeats(source, more)
                output.note(f"the spread of these repeats asks for {further.spec.repeats} more: {_runs(further.spec)}")
                folders.append(run_again(further, before=folders))
                ran.append(analyse(folders[1]))
        result = reproduction(analysis, ran[0], more=ran[1:], within=within / 100, measures=measures)
    if json:
        names = {"campaign": str(folders[0]), "more": [str(folder) for folder in folders[1:]]}
        output.document({"archive": str(archive), **names, **result.to_dict()})
    else:
        _print_reproduction(result)
    _refuse_other_figures(result, archive, folders)


def _what_it_takes(source: CampaignSource, most: int, within: float) -> str:
    """How many runs and minutes, and why there may be more than were published."""
    spec = source.spec
    if spec.open_ended:
        return f"the published campaign finds the number of its repeats itself: at most {_runs(spec)}"
    if most <= spec.most_repeats:
        return f"as published: {_runs(spec)}"
    further = _runs(spec.model_copy(update={"repeats": most - spec.most_repeats}))
    none = f"none with --max-repeats {spec.most_repeats}"
    return f"as published: {_runs(spec)}. Where these are inconclusive within {within:g}%, more follow: at most {further}, {none}"


def _ask_about(lines: Sequence[str], archive: Path, *, yes: bool) -> None:
    """Show what of others would run here; without ``--yes`` it needs a yes at the terminal, for nothing to run unseen."""
    for line in lines:
        output.note(line)
    if not lines or yes:
        return
    advice = f"Read what it does, above; to agree: harness reproduce {archive} --yes"
    if not sys.stdin.isatty():
        raise UsageError(
            f"{archive} has this done as its author wrote it, and there is no terminal to ask at.", advice=advice
        )
    agreed = False
    with suppress(typer.Abort):  # Ctrl-C, or the end of the input
        agreed = typer.confirm("Do this here as the archive's author wrote it?", err=True)
    if not agreed:
        raise UsageError("nothing was run.", advice=advice)


def _foreign_code(spec: CampaignSpec) -> Iterator[str]:
    """What the campaign's author has this machine or cluster run, and which keys it has them send elsewhere."""
    neighbours = [neighbour.workload for condition in spec.conditions for neighbour in condition.neighbours]
    for workload in (*spec.workloads, *neighbours):
        if workload.server is not None:
            yield from _of_server(workload.name, workload.server)
        if workload.factory is not None:
            yield f"imports the workload {workload.name}: {workload.factory}"
    for condition in spec.conditions:
        if condition.layer is not None:
            yield f"replicas under {condition.name}: {condition.layer.in_words}"
    if spec.kubernetes is not None:
        yield from _of_cluster(spec.kubernetes)


def _of_server(name: str, server: ServerSpec) -> Iterator[str]:
    import shlex

    if server.of_this_machine:
        yield f"runs the command of {name}: {shlex.join(server.command)}"
    elif server.image is not None:
        yield f"runs the image of {name}: {shlex.join([server.image, *server.command])}"
    if server.client is not None:
        yield f"imports the client of {name}: {server.client}"
    if server.url and server.api_key_env is not None:
        yield f"sends the content of {server.api_key_env} to {', '.join(server.url)}"


def _of_cluster(cluster: KubernetesSpec) -> Iterator[str]:
    if not cluster.image.startswith(_OF_THE_NODES):
        yield f"runs replicas from the image {cluster.image}"
    access = cluster.prometheus_access
    token = access.token_file or access.token_env
    if cluster.prometheus_url is not None and token is not None:
        yield f"sends the content of {token} to {cluster.prometheus_url}"


def _runs(spec: CampaignSpec) -> str:
    """``24 runs, about 3 min 10 s``."""
    from harness.campaign.plan import expand, most

    return f"{len(expand(spec))} runs, about {duration(most(spec).total_s)}"


def _run_again(
    source: CampaignSource, *, archive: Path, before: Sequence[Path], results: Path, force: bool, wait_s: float
) -> Path:
    """Run the campaign to its end, after those of the same reproduction that ran before; returns its folder."""
    from harness.campaign.preflight import prepare
    from harness.cli.progress import run_shown

    folder = prepare(source, results, force=force, say=output.note, wait_s=wait_s)
    against = " ".join(f"--against {ran}" for ran in (*before, folder.path))
    output.note(
        f"running again as {folder.path}; after an interruption: harness resume {folder.path}, then harness reproduce "
        f"{archive} {against}"
    )
    run_shown(folder, wait_s=wait_s)
    return folder.path


def _print_reproduction(result: Reproduction) -> None:
    from harness.analysis.format import replicas_in_words
    from harness.analysis.statistics import Outcome

    output.sentences(f"differs here: {sentence}" for sentence in result.environment)
    if not result.environment:
        output.sentence("The environment is the same: GPU, driver, CPU, memory and versions.")
    for cell in result.cells:
        output.result()
        key = cell.key
        where = (key.workload, cell.mode, replicas_in_words(key.replicas), key.condition)
        output.sentence(", ".join(filter(None, where)))
        headers = ["measure", "published", "here", "here / published", "outcome"]
        output.table(headers, [line.words for line in cell.lines])
        reasons = dict.fromkeys(line.why for line in cell.lines if line.why)
        output.sentences(f"{Outcome.INCONCLUSIVE.value}: {why}" for why in reasons)
    output.result()
    outcomes = (Outcome.AGREES, Outcome.DIFFERS, Outcome.INCONCLUSIVE)
    counts = ", ".join(f"{outcome.value} {result.counted(outcome)}" for outcome in outcomes)
    output.sentence(f"Configurations within {100 * result.within:g}%: {counts}.")


def _refuse_other_figures(result: Reproduction, archive: Path, again: Sequence[Path]) -> None:
    from harness.analysis.statistics import Outcome

    different = [
        "/".join(map(str, filter(None, (cell.key.workload, cell.mode, cell.key.replicas, cell.key.condition))))
        for cell in result.cells
        if cell.outcome is Outcome.DIFFERS
    ]
    if different or not result.counted(Outcome.AGREES):
        what = f"{len(different)} of {len(result.cells)} cells differ ({', '.join(different)})"
        raise NotReproducedError(
            f"{again[0]} does not give the figures of {archive}: {what if different else 'no cell is known to agree'}.",
            advice="See first what differs in the environment, which is listed above; harness report shows the runs.",
        )


def scenarios(
    path: Annotated[Path, Argument(metavar="RESULTS/CAMPAIGN", help="Folder of a campaign, or of an experiment.")],
    *,
    json: Json = False,
) -> None:
    """Show what LoadGen and the load generator measured: rates, percentiles, limits, validity. MLPerf-like."""
    from harness.analysis.client_result import NOTE, read_scenarios
    from harness.results.published import opened

    with opened(path) as folder:
        measured = read_scenarios(folder, say=output.note)
    if json:
        output.document({"note": NOTE, "scenarios": measured})
        return
    output.sentence(NOTE)
    headers = ["scenario", "rate", "answered/s", "samples/s", "p50 ms", "p90 ms", "p99 ms", "limit", "valid"]
    output.table(headers, [row for scenario in measured for row in ([scenario["experiment"]], _scenario_row(scenario))])
    for scenario in measured:
        output.sentences(f"{scenario['experiment']}: {reason}" for reason in scenario["validity"]["reasons"])


def _scenario_row(scenario: dict[str, Any]) -> list[str]:
    results = scenario["results"]
    rates = [results.get(name) for name in ("intended_per_s", "achieved_per_s", "throughput_samples_per_s")]
    figures = [*rates, *(results["latency_ms"].get(name) for name in ("p50", "p90", "p99"))]
    return [
        f"  {scenario['scenario']}",
        *("-" if figure is None else f"{figure:.4g}" for figure in figures),
        {True: "met", False: "broken", None: "-"}[results.get("limit_met")],
        "yes" if scenario["validity"]["valid"] else "no",
    ]
