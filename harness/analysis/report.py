"""The pages, which need no network: the report with a Markdown twin, plots and summary tables beside it; and the comparison."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

import harness
from harness.analysis import campaign_table, goodput, objective, summary
from harness.analysis.axes import families, family_of_old
from harness.analysis.axes import pictures as pictures_of_settings
from harness.analysis.campaign import CampaignAnalysis, MeasuredRun
from harness.analysis.comparability import gpu_names, part_of_gpu, places, places_in_words, reserved
from harness.analysis.contrasts.comparison import Comparison, settings_of
from harness.analysis.format import (
    markdown,
    mode_name,
    number,
    quantity,
    under,
    with_interval,
)
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS, OF_REPLICAS
from harness.analysis.narrative import absent_of, answers, caveats, concerns, concerns_of_all, headline, limits, remarks
from harness.analysis.pages.curves import overview, runs_strip, scaling, stress_curve, timeline
from harness.analysis.pages.plot import Picture, png
from harness.analysis.pages.svg import chart, document
from harness.analysis.pages.tables import goodput_table, neighbour_table, overhead_table, scaling_tables, table_of_tests
from harness.analysis.questions import max_replicas
from harness.analysis.questions.condition_overhead import Interference, interference, neighbour_plot
from harness.analysis.questions.first_screen import FirstScreen
from harness.analysis.questions.matched_load import load_sweeps
from harness.analysis.questions.question import ComparisonQuery, QuestionAnswer, labels
from harness.analysis.questions.recommendation import goals_table
from harness.analysis.questions.sharing_cost import (
    BUSY_PERCENT,
    cost_answer,
    fairness_answer,
    price_answer,
    prices,
    switching_answer,
)
from harness.data import data_path
from harness.errors import UsageError, clipped, duration
from harness.extras import absent as missing
from harness.results.files import atomic_write, read_document, sha256_of, storage_errors
from harness.results.layout import CAMPAIGN_PARQUET, CAMPAIGN_YAML, REPORT_HTML, REPORT_SUMS, SUMMARY_CSV, SUMMARY_JSON
from harness.results.manifest import Manifest, Status
from harness.results.old_profile import OldProfile
from harness.sharing.modes import MODES, mode_of

REPORT_MD = "report.md"
PLOTS = "plots"
_SHIPPED = "shipped:"


def report_of(analysis: CampaignAnalysis, out: Path | None = None) -> Path:
    """Write the report of a campaign that was analysed, into ``out`` or its folder; one that is there already is replaced.

    Returns the path of ``report.html``; ``report.md``, ``summary.csv``, ``summary.json``, ``campaign.parquet`` and ``plots/`` lie
    beside it, and last ``report.sha256`` with the hashes of them all. Raises StorageError.
    """
    content = _content(analysis)
    drawn = [
        *content["stress_curves"],
        *content["sweep_pictures"].values(),
        *itertools.chain.from_iterable(content["family_pictures"].values()),
        *([content["overall"]] if content["overall"] else []),
        *content["pictures"].values(),
        *content["timelines"].values(),
    ]
    tables: dict[str, str | bytes] = {
        SUMMARY_CSV: summary.table(analysis).csv(),
        SUMMARY_JSON: summary.to_json(analysis),
        CAMPAIGN_PARQUET: campaign_table.to_parquet(analysis),
    }
    return _write(out or analysis.folder, "report", content, drawn, tables)


def report_of_old_profile(profile: OldProfile, out: Path | None = None) -> Path:
    """The same of a profile that an earlier version measured. Raises StorageError."""
    family = family_of_old(profile)
    drawn = pictures_of_settings(family)
    content = {
        "profile": profile,
        "families": [family],
        "family_pictures": {family.title: drawn},
        "version": harness.__version__,
    }
    tables: dict[str, str | bytes] = {SUMMARY_JSON: json.dumps(family.to_dict(), indent=1) + "\n"}
    return _write(out or profile.folder, "old_profile", content, drawn, tables)


def _write(
    out: Path,
    template: str,
    content: Mapping[str, Any],
    pictures: Sequence[Picture],
    tables: Mapping[str, str | bytes],
) -> Path:
    """Write plots, tables and pages, and last their hashes; returns the path of the page."""
    with storage_errors(out / REPORT_SUMS):
        (out / REPORT_SUMS).unlink(missing_ok=True)  # Killed from here on, the report is one that was not finished.
    plots = write_plots(out / PLOTS, pictures)
    templates = environment()
    pages = {
        name: templates.get_template(f"{template}.{kind}.j2").render(content, files=plots)
        for name, kind in ((REPORT_MD, "md"), (REPORT_HTML, "html"))
    }
    for name, text in {**tables, **pages}.items():
        atomic_write(out / name, text, replace=True)
    written = [REPORT_HTML, REPORT_MD, *tables, *(f"{PLOTS}/{file}" for file in plots.values())]
    with storage_errors(out, "read"):
        sums = "".join(f"{sha256_of(out / name)}  {name}\n" for name in written)
    atomic_write(out / REPORT_SUMS, sums, replace=True)
    return out / REPORT_HTML


def write_plots(folder: Path, pictures: Sequence[Picture]) -> dict[str, str]:
    """The file of each picture by its name: PNGs where there is matplotlib, else all are SVGs."""
    with_png = not missing("matplotlib", "PIL")
    files = {picture.name: f"{picture.name}.{'png' if picture.png and with_png else 'svg'}" for picture in pictures}
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        name = files[picture.name]
        atomic_write(folder / name, png(picture) if name.endswith(".png") else document(picture), replace=True)
        with storage_errors(folder):
            (folder / f"{picture.name}.{'svg' if name.endswith('.png') else 'png'}").unlink(missing_ok=True)
    return files


def _content(analysis: CampaignAnalysis) -> dict[str, Any]:
    own, yaml = {name for cell in analysis.cells for name in cell.own}, analysis.folder / CAMPAIGN_YAML
    stress = analysis.spec.stress if analysis.spec else None
    manifests = [experiment.data.manifest for experiment in analysis.experiments]
    best = goodput.bests(analysis.spec, analysis.stress_series)
    against_first = interference(analysis)
    said = headline(analysis, best, against_first)
    groups, sweeps = families(analysis), load_sweeps(analysis)
    judged = objective.objectives(analysis.folder)
    whole = [run for run in analysis.experiments if run.name in judged and not run.damage]
    further = [
        *(sentence for series in analysis.stress_series for sentence in series.sentences()),
        *goodput.sentences(best),
        *(sentence for family in groups for sentence in family.answers()),
        *(analysis.progress.sentences() if analysis.progress else []),
        *answers(analysis),
    ]
    source = analysis.source.removeprefix(_SHIPPED) if analysis.source.startswith(_SHIPPED) else CAMPAIGN_YAML
    return {
        "analysis": analysis,
        "goodput": goodput_table(best) if best else None,
        "limits": [f"{ladder.servers} {under(ladder.mode)}: {ladder.why}" for ladder in best],
        "objectives": [
            *objective.in_sentences([(run.data.manifest.experiment, judged[run.name]) for run in whole]),
            *limits(analysis),
        ],
        "headline": said,
        "conditions": against_first.explained(said) if against_first else "",
        "concerns": concerns(analysis),
        "answers": [sentence for sentence in further if sentence not in said],
        "caveats": caveats(analysis),
        "tables": {name: scaling_tables(analysis, name) for name in analysis.workloads()},
        "overall": overview(analysis),
        "pictures": {name: picture for name in analysis.workloads() if (picture := scaling(analysis, name))},
        "strip": runs_strip(analysis),
        "timelines": {run.name: timeline(run) for run in analysis.experiments if not run.damage},
        "stress_curves": [
            curve for series in analysis.stress_series if stress and (curve := stress_curve(series, stress))
        ],
        "sweeps": sweeps,
        "sweep_pictures": {sweep.title: picture for sweep in sweeps if (picture := sweep.picture())},
        "families": groups,
        "family_pictures": {family.title: pictures_of_settings(family) for family in groups},
        "metrics": [
            *METRICS.values(),
            *(ALL[name] for name in ALL if name in own),
            *OF_REPLICAS.values(),
            *OF_CONFIGURATIONS.values(),
        ],
        "counts": {status.value: analysis.count(status) for status in Status},
        "damaged": sum(bool(run.damage) for run in analysis.experiments),
        "run_command": f"harness run {source}",
        "campaign_yaml": read_document(yaml).decode(errors="replace") if yaml.is_file() else "",
        "mps_limits": mps_limits(manifests),
        **tables_of(against_first),
        "has_places": any(len(places(manifest)) > 1 for manifest in manifests),
        "version": harness.__version__,
    }


def tables_of(against_first: Interference | None) -> dict[str, Any]:
    """The section about conditions; nothing to show where the campaign names none."""
    return {
        "interference": against_first,
        "overheads": overhead_table(against_first) if against_first else None,
        "neighbours": neighbour_table(against_first) if against_first and against_first.neighbours else None,
    }


def environment() -> jinja2.Environment:
    """The templates with their filters, compiled once. Raises HarnessError when they cannot be found."""
    return _environment(data_path("templates/report"))


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "chart": chart,
        "gpu_names": gpu_names,
        "reserved": reserved,
        "number": number,
        "duration": duration,
        "quantity": quantity,
        "interval": with_interval,
        "clipped": clipped,
        "mode_name": mode_name,
        "percents": lambda text: re.sub(r"(?<=\d) %", "%", text),
        "settings": _settings,
        "places": lambda experiment: places_in_words(experiment.data.manifest),
        "absent": absent_of,
        "remarks": remarks,
        "gib": lambda size: "unknown" if size is None else quantity(float(size), "bytes"),
        "md": lambda text: markdown(str(text)),
    }
    return environment


def mps_limits(manifests: Iterable[Manifest]) -> list[str]:
    """What MPS allowed each replica, in words, wherever it was used."""
    under_mps = [manifest for manifest in manifests if mode_of(manifest.experiment.sharing).takes_limits]
    return list(dict.fromkeys(map(_limits, under_mps)))


def _limits(manifest: Manifest) -> str:
    """Of a replica; on a cluster within what the device plugin gives each slice of a GPU."""
    own = manifest.experiment.mps.in_words() if manifest.experiment.mps else "no limit"
    in_slices = any(replica.get("pod") and not replica.get("claim") for replica in manifest.replicas)
    if not in_slices:
        return own
    slices = sorted({int(replica["gpu_slices"]) for replica in manifest.replicas if replica.get("gpu_slices")})
    memory = f"1/{' or 1/'.join(map(str, slices))}" if slices else "its part"
    # The plugin rounds a slice's percentage down, and MPS its SMs.
    percent = " or ".join(f"{100 // number}%" for number in slices) or "its part"
    sms = part_of_gpu(manifest) or f"{percent} of the multiprocessors"
    plugin = f"{sms} and {memory} of the memory, from the device plugin"
    return f"{own} (of {plugin})" if manifest.experiment.mps else plugin


def _settings(experiment: MeasuredRun) -> str:
    """How the workload ran, in a few words."""
    workload = experiment.data.manifest.experiment.workload
    devices = {str(replica["device"]) for replica in experiment.data.manifest.replicas if replica.get("device")}
    if workload.server is not None:
        return f"server of your own ({workload.server.protocol.value}), {workload.server.load_in_words()}"
    words = [
        workload.target,
        f"batch {workload.batch_size}",
        workload.precision,
        workload.execution.value,
        f"ran on {', '.join(sorted(devices)) or workload.device.value}",
        f"CPU threads each: {workload.threads}" if workload.threads else "",
        f"{workload.inference_sleep_s:g} s between requests" if workload.inference_sleep_s else "",
        f"checkpoint {workload.checkpoint}" if workload.checkpoint else f"random weights, seed {workload.seed}",
        ", ".join(f"{name} {value}" for name, value in workload.options.items()),
    ]
    return ", ".join(word for word in words if word)


_QUESTIONS: tuple[Callable[[Comparison, ComparisonQuery], QuestionAnswer], ...] = (
    cost_answer,
    max_replicas.answer,
    fairness_answer,
    switching_answer,
    price_answer,
)
"""What the decision rests on, in the order of the page."""


def answer_all(comparison: Comparison, query: ComparisonQuery) -> list[QuestionAnswer]:
    """The questions behind the decision, answered as far as the measurements go."""
    return [question(comparison, query) for question in _QUESTIONS]


def write_comparison(
    path: Path, decision: FirstScreen, answered: Sequence[QuestionAnswer], command: str, query: ComparisonQuery
) -> Path:
    """Write the comparison on one page: the decision, then the questions behind it; one that is there is replaced.

    ``command`` makes the page again. Raises UsageError where the folder does not exist or the name does not end in .html, StorageError.
    """
    if path.suffix != ".html" or not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be the page: it takes a name ending in .html in a folder that exists.",
            advice="E.g. --html comparison.html",
        )
    comparison, against_first = decision.comparison, decision.interference
    manifests = comparison.manifests()
    modes = [mode for sharing, mode in MODES.items() if sharing in {run.experiment.sharing for run in manifests}]
    repeats = [len(cell.used) for arm in comparison.arms for cell in arm.cells.values()]
    content = {
        "comparison": comparison,
        "decision": decision,
        "goals": goals_table(decision.choices) if decision.choices else None,
        "tests": table_of_tests(comparison),
        "answers": answered,
        "first": manifests[0],
        "mps_limits": mps_limits(manifests),
        "settings_of": settings_of(manifests),
        "meanings": ". ".join(
            f"{mode_name(mode.sharing.value)[:1].upper()}{mode_name(mode.sharing.value)[1:]}: {mode.meaning}"
            for mode in modes
            if mode.needs_gpu or manifests[0].gpus
        ),
        "runs": len(manifests),
        "fewest": min(repeats),
        "most": max(repeats),
        "command": command,
        "version": harness.__version__,
        "isolation": decision.isolation,
        "neighbour_plot": neighbour_plot(against_first, labels(comparison)) if against_first else None,
        "caveats": concerns_of_all([*comparison.analyses, *([comparison.beside] if comparison.beside else [])]),
        "prices": prices(query),
        "busy_percent": BUSY_PERCENT,
        "bounded": [mode for mode in MODES.values() if mode.most_processes],
        **tables_of(against_first),
    }
    atomic_write(path, environment().get_template("comparison.html.j2").render(content), replace=True)
    return path
