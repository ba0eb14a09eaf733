"""At what price? Energy, GPU time and money for a million inferences."""

from __future__ import annotations

from harness.analysis.campaign import Cell, MeasuredRun, shared
from harness.analysis.contrasts.comparison import Comparison
from harness.analysis.contrasts.contrast import Value
from harness.analysis.format import replicas_in_words, with_interval
from harness.analysis.pages.table import figure_entry
from harness.analysis.questions.question import ColumnOf, ComparisonQuery, QuestionAnswer, cell_table
from harness.analysis.statistics import Estimate, t_interval

MILLION = 1e6
_J_PER_KWH = 3.6e6
_S_PER_H = 3600.0


def kwh_per_million(cell: Cell) -> Estimate | None:
    """GPU energy of a million inferences, kWh, over the repeats; None where no energy was measured."""
    return over_runs(cell, _kwh)


def gpu_hours_per_million(cell: Cell) -> Estimate | None:
    """GPU hours that a million inferences take, over the repeats; None where no throughput was measured."""
    return over_runs(cell, _gpu_hours)


def cost_per_million(cell: Cell, query: ComparisonQuery) -> Estimate | None:
    """Price of a million inferences, in the currency of the prices given; None without a price or without its figure.

    With a price for energy and no energy measured there is none: half of a cost is no cost.
    """
    return over_runs(cell, lambda run: _cost(run, query)) if query.priced else None


def cost_of_run(query: ComparisonQuery) -> Value | None:
    """Gives that of one run, where it has what a price was given for; None without a price."""
    return (lambda run: _cost(run, query)) if query.priced else None


def answer(comparison: Comparison, query: ComparisonQuery) -> QuestionAnswer:
    """Energy, GPU hours and cost of every configuration."""
    columns: dict[str, ColumnOf] = {
        "Energy": lambda _arm, cell: figure_entry(kwh_per_million(cell), "kWh", cell.absent.get("energy", "")),
        "GPU time": lambda _arm, cell: figure_entry(
            gpu_hours_per_million(cell), "h", cell.absent.get("throughput", "")
        ),
    }
    missing = []
    if not any(kwh_per_million(cell) for *_, cell in comparison.cells()):
        missing.append("Energy takes a GPU that tells its power.")
    if query.priced:
        columns["Cost"] = lambda _arm, cell: figure_entry(
            cost_per_million(cell, query), query.currency, cell.absent.get("energy", "no throughput")
        )
    else:
        missing.append("For money, give prices: harness compare ... --price-per-gpu-hour 3.50 --price-per-kwh 0.25")
    return QuestionAnswer(
        "price",
        "At what price?",
        "Energy is that of the GPUs, idle power included; GPU hours are those of the GPUs that the campaign used. An inference "
        "is one input, as the replicas counted them." + (f" Prices: {prices(query)}." if query.priced else ""),
        [sentence for workload in comparison.workloads() if (sentence := _sentence(comparison, workload, query))],
        cell_table(comparison, columns),
        missing=missing,
    )


def prices(query: ComparisonQuery) -> str:
    """Those that were given, e.g. ``3.5 USD per GPU hour, 0.25 USD per kWh``; empty without any."""
    given = ((query.price_per_gpu_hour, "GPU hour"), (query.price_per_kwh, "kWh"))
    unit = f" {query.currency}" if query.currency else ""
    return ", ".join(f"{price:g}{unit} per {what}" for price, what in given if price is not None)


def _sentence(comparison: Comparison, workload: str, query: ComparisonQuery) -> str:
    """The cheapest way of a workload, and the dearest."""
    known = [
        (estimate, arm.label, count)
        for name, arm, count, cell in comparison.cells()
        if name == workload and (estimate := cost_per_million(cell, query) if query.priced else kwh_per_million(cell))
    ]
    if not known:
        return ""
    cheap, dear = min(known, key=lambda way: way[0].mean), max(known, key=lambda way: way[0].mean)
    unit, verb = (query.currency, "cost") if query.priced else ("kWh", "take")
    head = f"{workload}: a million inferences {verb} {with_interval(cheap[0], unit)} with {replicas_in_words(cheap[2])} under {cheap[1]}"
    if cheap is dear:
        return f"{head}."
    return f"{head}, and {with_interval(dear[0], unit)} with {replicas_in_words(dear[2])} under {dear[1]}."


def over_runs(cell: Cell, value: Value) -> Estimate | None:
    """The mean of what the runs that are used have."""
    known = [figure for run in cell.used if (figure := value(run)) is not None]
    return t_interval(known, shared(cell)) if known else None


def _kwh(run: MeasuredRun) -> float | None:
    energy_j = run.measured.figures.get("energy")
    inputs = run.data.manifest.inputs_per_request
    if energy_j is None or not inputs:
        return None
    return energy_j / inputs * MILLION / _J_PER_KWH


def _gpu_hours(run: MeasuredRun) -> float | None:
    inputs = run.measured.figures.get("inputs")
    return MILLION / inputs / _S_PER_H * run.data.manifest.experiment.gpus if inputs else None


def _cost(run: MeasuredRun, query: ComparisonQuery) -> float | None:
    hours, kwh = _gpu_hours(run), _kwh(run)
    if (query.price_per_gpu_hour is not None and hours is None) or (query.price_per_kwh is not None and kwh is None):
        return None
    return (query.price_per_gpu_hour or 0.0) * (hours or 0.0) + (query.price_per_kwh or 0.0) * (kwh or 0.0)
