"""The report: one page that needs no network, a Markdown twin, the plots and the summary tables beside them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

import harness
from harness.analysis import campaign_table, goodput, objective, placement, summary
from harness.analysis.axes import families
from harness.analysis.campaign import CampaignAnalysis, Experiment, analyse
from harness.analysis.comparability import gpu_names, reserved
from harness.analysis.format import (
    clipped,
    markdown,
    number,
    quantity,
    with_interval,
)
from harness.analysis.headline import concerns, headline, limits
from harness.analysis.metrics.catalogue import ALL, METRICS, OF_CONFIGURATIONS
from harness.analysis.narrative import absent_of, answers, caveats, remarks
from harness.analysis.pages.curves import overview, scaling, stress_curve
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.png import png
from harness.analysis.pages.settings import pictures as pictures_of_settings
from harness.analysis.pages.svg import chart, document
from harness.analysis.pages.tables import goodput_table, neighbour_table, overhead_table, scaling_tables
from harness.analysis.pages.timeline import timeline
from harness.analysis.questions.condition_overhead import Interference, interference
from harness.data import data_path
from harness.errors import duration
from harness.extras import absent as missing
from harness.results.files import atomic_write, read_document, sha256_of, storage_errors
from harness.results.layout import CAMPAIGN_PARQUET, CAMPAIGN_YAML, REPORT_HTML, REPORT_SUMS, SUMMARY_CSV, SUMMARY_JSON
from harness.results.manifest import Manifest, Status
from harness.sharing.modes import mode_of

REPORT_MD = "report.md"
PLOTS = "plots"
_SHIPPED = "shipped:"


def write_report(folder: Path) -> Path:
    """Analyse a campaign, finished or not, and write its report; see ``analyse`` and ``report_of``."""
    return report_of(analyse(folder))


def report_of(analysis: CampaignAnalysis, out: Path | None = None) -> Path:
    """Write the report of a campaign that was analysed; one that is there already is replaced.

    Args:
        analysis: of the campaign.
        out: folder to write into; None: the campaign's.

    Returns:
        Path of ``report.html``; ``report.md``, ``summary.csv``, ``summary.json``, ``campaign.parquet`` and ``plots/`` lie beside
        it, and last ``report.sha256`` with the hashes of them all.

    Raises:
        StorageError: a file cannot be read or written.
    """
    overall = overview(analysis)
    stress = analysis.spec.stress if analysis.spec else None
    curves = [curve for series in analysis.stress_series if stress and (curve := stress_curve(series, stress))]
    pictures = {name: picture for name in analysis.workloads() if (picture := scaling(analysis, name))}
    timelines = {item.name: timeline(item) for item in analysis.experiments if not item.damage}
    out = out or analysis.folder
    with storage_errors(out / REPORT_SUMS):
        (out / REPORT_SUMS).unlink(missing_ok=True)  # Killed from here on, the report is one that was not finished.
    groups = families(analysis)
    of_settings = {family.title: pictures_of_settings(family) for family in groups}
    drawn = [
        *curves,
        *(picture for several in of_settings.values() for picture in several),
        *([overall] if overall else []),
        *pictures.values(),
        *timelines.values(),
    ]
    files = write_plots(out / PLOTS, drawn)
    atomic_write(out / SUMMARY_CSV, summary.table(analysis).csv(), replace=True)
    atomic_write(out / SUMMARY_JSON, summary.to_json(analysis), replace=True)
    atomic_write(out / CAMPAIGN_PARQUET, campaign_table.to_parquet(analysis), replace=True)
    content = _content(analysis, overall, pictures, timelines) | {
        "stress_curves": curves,
        "files": files,
        "families": groups,
        "family_pictures": of_settings,
    }
    templates = environment()
    atomic_write(out / REPORT_MD, templates.get_template("report.md.j2").render(content), replace=True)
    page = templates.get_template("report.html.j2").render(content)
    atomic_write(out / REPORT_HTML, page, replace=True)
    tables = [SUMMARY_CSV, SUMMARY_JSON, CAMPAIGN_PARQUET]
    written = [REPORT_HTML, REPORT_MD, *tables, *(f"{PLOTS}/{file}" for file in files.values())]
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


def _content(
    analysis: CampaignAnalysis,
    overall: Picture | None,
    pictures: dict[str, Picture],
    timelines: dict[str, Picture],
) -> dict[str, Any]:
    own = {name for cell in analysis.cells for name in cell.own}
    best = goodput.bests(analysis.spec, analysis.stress_series)
    against_first = interference(analysis)
    said = headline(analysis, best, against_first)
    told = [sentence for series in analysis.stress_series for sentence in series.sentences()] + goodput.sentences(best)
    told += [sentence for family in families(analysis) for sentence in family.answers()]
    told += analysis.progress.sentences() if analysis.progress else []
    return {
        "analysis": analysis,
        "goodput": goodput_table(best) if best else None,
        "limits": [f"{each.servers} under {each.sharing}: {each.why}" for each in best],
        "objectives": [*objectives(analysis), *limits(analysis)],
        "headline": said,
        "conditions": against_first.explained(said) if against_first else "",
        "concerns": concerns(analysis),
        "answers": [sentence for sentence in [*told, *answers(analysis)] if sentence not in said],
        "caveats": caveats(analysis),
        "tables": {name: scaling_tables(analysis, name) for name in analysis.workloads()},
        "overall": overall,
        "pictures": pictures,
        "timelines": timelines,
        "metrics": [*METRICS.values(), *(ALL[name] for name in ALL if name in own), *OF_CONFIGURATIONS.values()],
        "counts": {status.value: analysis.count(status) for status in Status},
        "damaged": sum(bool(experiment.damage) for experiment in analysis.experiments),
        "run_command": _run_command(analysis),
        "campaign_yaml": _campaign_yaml(analysis.folder),
        "mps_limits": mps_limits(experiment.data.manifest for experiment in analysis.experiments),
        **tables_of(against_first),
        "has_places": placement.several(each.data.manifest for each in analysis.experiments),
        "version": harness.__version__,
    }


def tables_of(against_first: Interference | None) -> dict[str, Any]:
    """The section about conditions; nothing to show where the campaign names none."""
    return {
        "interference": against_first,
        "overheads": overhead_table(against_first) if against_first else None,
        "neighbours": neighbour_table(against_first) if against_first and against_first.neighbours else None,
    }


def objectives(analysis: CampaignAnalysis) -> list[str]:
    """Whether the experiments met the campaign's objective, the first thing that the report says."""
    judged = objective.objectives(analysis.folder)
    whole = [each for each in analysis.experiments if each.name in judged and not each.damage]
    return objective.in_sentences([(each.data.manifest.experiment, judged[each.name]) for each in whole])


def _run_command(analysis: CampaignAnalysis) -> str:
    name = analysis.source.removeprefix(_SHIPPED) if analysis.source.startswith(_SHIPPED) else CAMPAIGN_YAML
    return f"harness run {name}"


def _campaign_yaml(folder: Path) -> str:
    path = folder / CAMPAIGN_YAML
    with storage_errors(path, "read"):
        return read_document(path).decode(errors="replace") if path.is_file() else ""


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
        "settings": _settings,
        "places": lambda experiment: placement.in_words(experiment.data.manifest),
        "absent": absent_of,
        "remarks": remarks,
        "gib": lambda size: "unknown" if size is None else quantity(float(size), "bytes"),
        "md": lambda text: markdown(str(text)),
    }
    return environment


def mps_limits(manifests: Iterable[Manifest]) -> list[str]:
    """What MPS allowed each replica, in words, wherever it was used."""
    return list(dict.fromkeys(_limits(one) for one in manifests if mode_of(one.experiment.sharing).concurrent))


def _limits(manifest: Manifest) -> str:
    """Of a replica; on a cluster within what the device plugin gives each slice of a GPU."""
    own = manifest.experiment.mps.in_words() if manifest.experiment.mps else "no limit"
    in_slices = any(replica.get("pod") and not replica.get("claim") for replica in manifest.replicas)
    if not in_slices:
        return own
    slices = sorted({int(replica["gpu_slices"]) for replica in manifest.replicas if replica.get("gpu_slices")})
    part = f"1/{' or 1/'.join(map(str, slices))}" if slices else "its part"
    plugin = f"{part} of multiprocessors and memory, from the device plugin"
    return f"{own} (of {plugin})" if manifest.experiment.mps else plugin


def _settings(experiment: Experiment) -> str:
    """How the workload ran, in a few words."""
    workload = experiment.data.manifest.experiment.workload
    devices = {str(replica["device"]) for replica in experiment.data.manifest.replicas if replica.get("device")}
    if workload.server is not None:
        return f"server of your own ({workload.server.protocol.value}), {workload.server.load_in_words()}"
    words = [
        workload.target,
        f"batch {workload.batch_size}",
        workload.precision.value,
        workload.execution.value,
        f"ran on {', '.join(sorted(devices)) or workload.device.value}",
        f"CPU threads each: {workload.threads}" if workload.threads else "",
        f"{workload.inference_sleep_s:g} s between requests" if workload.inference_sleep_s else "",
        f"checkpoint {workload.checkpoint}" if workload.checkpoint else f"random weights, seed {workload.seed}",
        ", ".join(f"{name} {value}" for name, value in workload.options.items()),
    ]
    return ", ".join(word for word in words if word)
