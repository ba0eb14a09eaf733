"""The comparison on one page that needs no network: the decision, the curves, then the questions behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
from harness.analysis.contrasts.comparison import Comparison, settings_of
from harness.analysis.format import DASH
from harness.analysis.pages.curves import Curve, CurveRow, by_workload
from harness.analysis.pages.plot import Picture
from harness.analysis.pages.table import Column, Table, ratio_entry
from harness.analysis.questions import max_replicas, price, recommendation
from harness.analysis.questions.isolation import isolated, overheads
from harness.analysis.questions.question import ComparisonQuery, QuestionAnswer
from harness.analysis.questions.sharing_cost import cost_answer, fairness_answer, switching_answer
from harness.analysis.report import environment, mps_limits, tables_of
from harness.errors import UsageError
from harness.results.files import atomic_write
from harness.sharing.modes import MODES

QUESTIONS: tuple[Callable[[Comparison, ComparisonQuery], QuestionAnswer], ...] = (
    recommendation.answer,
    cost_answer,
    max_replicas.answer,
    fairness_answer,
    switching_answer,
    price.answer,
)
"""In the order of the page: the decision, then what it rests on."""


def answers(comparison: Comparison, query: ComparisonQuery) -> list[QuestionAnswer]:
    """The six questions, answered as far as the measurements go."""
    return [question(comparison, query) for question in QUESTIONS]


def write_page(
    path: Path,
    comparison: Comparison,
    answered: list[QuestionAnswer],
    command: str,
    query: ComparisonQuery | None = None,
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
    query = query or ComparisonQuery()
    manifests, against_first = comparison.manifests(), overheads(comparison)
    modes = [mode for sharing, mode in MODES.items() if sharing in {run.experiment.sharing for run in manifests}]
    meanings = "; ".join(f"{mode.sharing.value}: {mode.meaning}" for mode in modes)
    repeats = [len(cell.used) for arm in comparison.arms for cell in arm.cells.values()]
    content = {
        "comparison": comparison,
        "tests": table_of_tests(comparison),
        "answers": answered,
        "first": manifests[0],
        "mps_limits": mps_limits(manifests),
        "settings_of": settings_of(manifests),
        "meanings": meanings[:1].upper() + meanings[1:],
        "cautions": [mode.caution for mode in modes],
        "runs": len(manifests),
        "fewest": min(repeats),
        "most": max(repeats),
        "command": command,
        "version": harness.__version__,
        "isolation": isolated(comparison, against_first),
        "curves": curves(comparison, query),
        "prices": price.prices(query),
        **tables_of(against_first),
    }
    atomic_write(path, environment().get_template("comparison.html.j2").render(content), replace=True)
    return path


def table_of_tests(comparison: Comparison) -> Table:
    """Every comparison with its tests."""
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


def curves(comparison: Comparison, query: ComparisonQuery) -> list[Picture]:
    """Speed first, then fairness and price; a column for each workload."""
    limit_s = query.latency_limit_s
    limit = "" if limit_s is None else " with the limit (dotted)"
    speed = by_workload(
        comparison,
        "speed",
        f"Throughput of all replicas together with the fitted laws (dashed), and p99 latency{limit}",
        [
            CurveRow(Curve("throughput"), "requests/s", laws=max_replicas.laws(comparison)),
            CurveRow(Curve("latency_p99_exact", scale=1e3), "p99, ms", logarithmic=True, line=limit_s),
        ],
    )
    cost = Curve("cost", pick=lambda cell: price.cost_per_million(cell, query))
    energy = Curve("energy", pick=price.kwh_per_million)
    last = CurveRow(cost, f"cost, {query.currency}".rstrip(", ")) if query.priced else CurveRow(energy, "kWh")
    share = by_workload(
        comparison,
        "share",
        "Throughput of the slowest replica over that of the fastest (1 is fair), and "
        f"{'cost' if query.priced else 'energy'} of a million inferences",
        [CurveRow(Curve("fairness"), "slowest / fastest", line=1.0), last],
    )
    return [picture for picture in (speed, share) if picture]
