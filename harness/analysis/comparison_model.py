"""One question of the comparison page, and its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.analysis.campaign import Cell
from harness.analysis.contrasts.comparison import Place, Pool, Setup
from harness.analysis.figure_style import Picture
from harness.analysis.pages.table import Table
from harness.errors import UsageError
from harness.sharing.modes import MODES

_MOST = 1_000_000_000
"""Of a limit in milliseconds, and of a price: more is a slip, and its square no number."""
_LONGEST_CURRENCY = 12


@dataclass(slots=True)
class Answer:
    """What the measurements say to one question.

    Attributes:
        name: anchor on the page.
        question: as asked.
        how: how the figures are defined, in a sentence or two.
        sentences: the answer; empty when nothing measured says anything.
        table: the figures with their intervals.
        pictures: plots.
        missing: which measurements would answer what these do not.
        table_first: whether the table is the answer, and the sentences say the same in words.
    """

    name: str
    question: str
    how: str
    sentences: list[str] = field(default_factory=list)
    table: Table | None = None
    pictures: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    table_first: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What the reader of the page gave.

    Attributes:
        latency_limit_s: p99 that must be kept; None: no limit.
        price_per_gpu_hour: of one GPU; None: not given.
        price_per_kwh: of electric energy; None: not given.
        currency: of both; empty: not given.
    """

    latency_limit_s: float | None = None
    price_per_gpu_hour: float | None = None
    price_per_kwh: float | None = None
    currency: str = ""


NOTHING_ASKED = Asked()


def asked(
    latency_limit_ms: float | None, price_per_gpu_hour: float | None, price_per_kwh: float | None, currency: str = ""
) -> Asked:
    """What was asked, checked. Raises UsageError for a limit or a price that cannot be one."""
    given = {
        "--latency-limit-ms": latency_limit_ms,
        "--price-per-gpu-hour": price_per_gpu_hour,
        "--price-per-kwh": price_per_kwh,
    }
    for option, value in given.items():
        free = option.startswith("--price") and value == 0
        if value is not None and not free and not (0 < value <= _MOST):
            raise UsageError(
                f"{option} {value:g} cannot be: it takes a positive number up to {_MOST:,}.", advice=f"E.g. {option} 50"
            )
    if not all(sign.isprintable() for sign in currency) or len(currency) > _LONGEST_CURRENCY:
        raise UsageError(
            f"--currency {currency!r:.40} cannot be: it takes a word of at most {_LONGEST_CURRENCY} characters.",
            advice="E.g. --currency USD",
        )
    limit_s = None if latency_limit_ms is None else latency_limit_ms / 1e3
    return Asked(limit_s, price_per_gpu_hour, price_per_kwh, currency)


def cells(pool: Pool) -> Iterator[tuple[str, Setup, int, Cell]]:
    """Every cell that is compared: workload, setup, replicas, cell; by workload, then replicas, then setup."""
    for workload in pool.workloads():
        for count in counts(pool, workload):
            for setup in pool.setups:
                cell = setup.cells.get(Place(workload, count))
                if cell is not None:
                    yield workload, setup, count, cell


def counts(pool: Pool, workload: str) -> list[int]:
    """Replica counts that some setup measured of a workload, rising."""
    return sorted({count for setup in pool.setups for count in setup.counts(workload)})


def runs(setup: Setup, workload: str, measure: str) -> dict[int, list[float]]:
    """Replica count to one measure of every repeat, where there is any."""
    found = {count: setup.cells[Place(workload, count)].figures(measure) for count in setup.counts(workload)}
    return {count: figures for count, figures in found.items() if figures}


def missing_modes(pool: Pool) -> list[str]:
    """Sharing modes that were not measured, and how to measure them."""
    settable = [mode for mode in MODES.values() if mode.switch_command]
    measured = [mode.sharing.value for mode in settable if mode.sharing in {setup.sharing for setup in pool.setups}]
    wanted = [mode.sharing.value for mode in settable if not mode.own_instance and mode.sharing not in measured]
    if not wanted or not measured:
        return []  # all were, or there are only servers whose mode is not the harness's to set
    every = ", ".join(measured + wanted)
    return [f"Not measured: {', '.join(wanted)}. A campaign with sharing: [{every}] would tell."]
