"""The comparison on one page that needs no network: the decision, the curves, then the questions behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness
from harness.analysis.campaign import CampaignAnalysis
from harness.analysis.comparability import gpu_names
from harness.analysis.comparison_model import Answer, ComparisonQuery
from harness.analysis.contrasts.comparison import Comparison
from harness.analysis.format import DASH
from harness.analysis.pages.curves import Curve, CurveRow, by_workload
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Column, Table, ratio_entry
from harness.analysis.questions import context_switch, cost_of_sharing, fairness, max_replicas, price, recommendation
from harness.analysis.questions.condition_overhead import Interference, interference
from harness.analysis.questions.isolation_choice import NOT_MEASURED, ONE_MODE, IsolationChoice, isolation_choices
from harness.analysis.questions.max_replicas import laws
from harness.analysis.questions.price import cost_per_million, kwh_per_million, prices
from harness.analysis.report import environment, mps_limits, tables_of
from harness.errors import UsageError
from harness.results import Manifest
from harness.results.files import atomic_write
from harness.sharing.modes import MODES

QUESTIONS: tuple[Callable[[Comparison, ComparisonQuery], Answer], ...] = (
    recommendation.answer,
    cost_of_sharing.answer,
    max_replicas.answer,
    fairness.answer,
    context_switch.answer,
    price.answer,
)
"""In the order of the page: the decision, then what it rests on."""


def answers(comparison: Comparison, query: ComparisonQuery) -> list[Answer]:
    """The six questions, answered as far as the measurements go."""
    return [question(comparison, query) for question in QUESTIONS]


def overheads(comparison: Comparison) -> Interference | None:
    """Every condition of one campaign against its first, paired by repeat; None without conditions, or with several such campaigns."""
    alone = _with_conditions(comparison)
    return interference(alone) if alone else None


@dataclass(frozen=True, slots=True)
class Isolation:
    """What there is to say of the goal of being isolated from neighbours.

    Attributes:
        best: the mode for every service that was measured beside neighbours under several modes.
        instead: why no mode can be named, in a sentence, with what is known; empty where one is.
        conditions: what those are that all this names.
        apart: with which settings and GPU that was measured, where it was by a campaign that stands beside the others.
    """

    best: list[IsolationChoice]
    instead: list[str]
    conditions: str
    apart: str

    @property
    def sentences(self) -> list[str]:
        """All of it."""
        conditions = [f"({self.conditions}.)"] if self.conditions else []
        return [*(one.sentence for one in self.best), *self.instead, *conditions, *([self.apart] if self.apart else [])]


def isolated(comparison: Comparison, found: Interference | None) -> Isolation:
    """Which mode isolates best from neighbours, or why the campaigns do not say."""
    with_conditions = _with_conditions(comparison)
    conditions = with_conditions.spec.conditions if with_conditions and with_conditions.spec else []
    if found is None or with_conditions is None or not any(one.neighbours for one in conditions):
        return Isolation([], [NOT_MEASURED], "", "")
    best = isolation_choices(comparison, with_conditions, found)
    instead = [] if best else [ONE_MODE, *found.worst()]
    explained = found.explained([*(one.sentence for one in best), *instead])
    return Isolation(best, instead, explained, _apart(comparison))


def _with_conditions(comparison: Comparison) -> CampaignAnalysis | None:
    return comparison.beside or (comparison.analyses[0] if len(comparison.analyses) == 1 else None)


def _apart(comparison: Comparison) -> str:
    if comparison.beside is None:
        return ""
    manifests = [one.data.manifest for one in comparison.beside.experiments]
    settings = ", ".join(f"{name} with {words}" for name, words in _settings_of(manifests).items())
    where = gpu_names(manifests[0]) if manifests[0].gpus else "no GPU"
    return f"Measured apart: {comparison.beside.name}, {settings}, on {where}."


def write_page(
    path: Path, comparison: Comparison, answered: list[Answer], command: str, query: ComparisonQuery | None = None
) -> Path:
    """Write the page; one that is there already is replaced.

    Args:
        path: of the file, ending in .html.
        comparison: what is compared.
        answered: the questions.
        command: the command line that makes the page again.
        query: what the answers were given for.

    Raises:
        UsageError: the folder does not exist, or the name is not that of a page.
        StorageError: it cannot be written.
    """
    if path.suffix != ".html" or not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be the page: it takes a name ending in .html in a folder that exists.",
            advice="E.g. --html comparison.html",
        )
    manifests, against_first = comparison.manifests(), overheads(comparison)
    modes = [mode for sharing, mode in MODES.items() if sharing in {run.experiment.sharing for run in manifests}]
    repeats = [len(cell.used) for arm in comparison.arms for cell in arm.cells.values()]
    content = {
        "comparison": comparison,
        "tests": _tests(comparison),
        "answers": answered,
        "first": manifests[0],
        "mps_limits": mps_limits(manifests),
        "settings_of": _settings_of(manifests),
        "meanings": _first_upper("; ".join(f"{mode.sharing.value}: {mode.meaning}" for mode in modes)),
        "cautions": [mode.caution for mode in modes],
        "runs": len(manifests),
        "fewest": min(repeats),
        "most": max(repeats),
        "command": command,
        "version": harness.__version__,
        "isolation": isolated(comparison, against_first),
        "curves": curves(comparison, query or ComparisonQuery()),
        "prices": prices(query or ComparisonQuery()),
        **tables_of(against_first),
    }
    atomic_write(path, environment().get_template("comparison.html.j2").render(content), replace=True)
    return path


def _tests(comparison: Comparison) -> Table:
    columns = [
        Column("Workload", words=True),
        Column("Replicas"),
        *(Column(title, words=True) for title in ("Measure", "Of", "Against")),
        Column("Ratio"),
        Column("Answer", words=True),
        *map(Column, ("p, Holm", "Mann-Whitney p", "Hedges' g", "Cliff's delta")),
    ]
    rows = []
    for key, a, b, contrast in comparison.tests:
        effect = contrast.effect
        numbers = (contrast.corrected_p, effect.mann_whitney_p, effect.hedges_g, effect.cliffs_delta)
        shown = [DASH if value is None else f"{value:.2g}" for value in numbers]
        where = [key.workload, key.replicas, contrast.metric, b, a]
        rows.append([*where, ratio_entry(contrast.ratio), contrast.sentence, *shown])
    return Table(columns, rows, "Every comparison with its tests")


def _first_upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _settings_of(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Of each workload, what of its settings decides its speed, in a few words; all that there are."""
    found: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        workload = manifest.experiment.workload
        server, size = workload.server, f"batch {workload.batch_size}"
        if workload.batch_size > 1 and round(manifest.inputs_per_request or 0) == workload.batch_size:
            size += f" ({workload.batch_size} inputs a request)"
        own = f"{size}, {workload.precision.value}, {workload.execution.value}"
        found.setdefault(workload.name, {})[server.load_in_words() if server else own] = None
    return {name: " or ".join(words) for name, words in found.items()}


def curves(comparison: Comparison, query: ComparisonQuery) -> list[Picture]:
    """Speed first, then fairness and price; a column for each workload."""
    limit_s = query.latency_limit_s
    limit = "" if limit_s is None else " with the limit (dotted)"
    speed = by_workload(
        comparison,
        "speed",
        f"Throughput of all replicas together with the fitted laws (dashed), and p99 latency{limit}",
        [
            CurveRow(Curve("throughput"), "requests/s", laws=laws(comparison)),
            CurveRow(Curve("latency_p99_exact", scale=1e3), "p99, ms", logarithmic=True, line=limit_s),
        ],
    )
    priced = query.price_per_gpu_hour is not None or query.price_per_kwh is not None
    cost = Curve("cost", pick=lambda cell: cost_per_million(cell, query))
    energy = Curve("energy", pick=kwh_per_million)
    last = CurveRow(cost, f"cost, {query.currency}".rstrip(", ")) if priced else CurveRow(energy, "kWh")
    share = by_workload(
        comparison,
        "share",
        "Throughput of the slowest replica over that of the fastest (1 is fair), and "
        f"{'cost' if priced else 'energy'} of a million inferences",
        [CurveRow(Curve("fairness"), "slowest / fastest", line=1.0), last],
    )
    return [picture for picture in (speed, share) if picture]
