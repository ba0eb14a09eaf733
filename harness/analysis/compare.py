"""Sides held against each other, cell by cell, without reading more into it than there is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.analysis.campaign import Cell, shared
from harness.analysis.contrasts.comparison import Place, Pool, Setup
from harness.analysis.statistics import Difference, Estimate, difference, holm, ratio

COMPARED = ("throughput", "latency_p50_exact", "latency_p95_exact", "latency_p99_exact", "energy")


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one cell on two sides.

    Attributes:
        place: workload and replicas.
        measure: its name.
        a: label of the setup that the other is held against.
        b: label of the other.
        ratio: of b's mean over a's, with its 95 % interval; None when a mean is not positive.
        difference: the tests and effect sizes of b against a.
    """

    place: Place
    measure: str
    a: str
    b: str
    ratio: Estimate | None
    difference: Difference


@dataclass(frozen=True, slots=True)
class Lonely:
    """A cell that no other side has."""

    place: Place
    label: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two sides have in common.

    Attributes:
        by: what the sides differ in.
        sides: in order; each cell is held against the first side that has it.
        lines: p-values are corrected for all of them together (Holm).
        lonely: cells of one side only, where there are several sides.
        unlike: what else is not the same everywhere, one sentence each.
    """

    by: str
    sides: list[str]
    lines: list[Line]
    lonely: list[Lonely] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)


def compare(pool: Pool) -> Comparison:
    """Hold every setup against the first side that measured the same."""
    pairs: list[tuple[Place, Setup, Setup]] = []
    lonely: list[Lonely] = []
    for rest in dict.fromkeys(setup.rest for setup in pool.setups):
        rivals = [setup for setup in pool.setups if setup.rest == rest]
        for place in dict.fromkeys(place for setup in rivals for place in setup.cells):
            first, *others = [setup for setup in rivals if place in setup.cells]
            pairs += [(place, first, other) for other in others]
            lonely += [Lonely(place, first.label)] if not others and len(pool.sides) > 1 else []
    lines = [
        _line(place, name, a, b)
        for place, a, b in pairs
        for name in COMPARED
        if a.cells[place].figures(name) and b.cells[place].figures(name)
    ]
    return Comparison(pool.by.value, pool.sides, _corrected(lines), lonely, pool.unlike)


def relative(top: Cell, bottom: Cell, measure: str, *, first: int | None = None) -> Estimate | None:
    """Ratio of one measure of two cells; None where one of them does not have it, or is not positive.

    ``first``: see ``statistics.ratio``.
    """
    try:
        return ratio(top.figures(measure), bottom.figures(measure), shared(top, bottom), first=first)
    except ValueError:
        return None


def _line(place: Place, measure: str, a: Setup, b: Setup) -> Line:
    first, second = a.cells[place], b.cells[place]
    return Line(
        place,
        measure,
        a.label,
        b.label,
        relative(second, first, measure),
        difference(first.figures(measure), second.figures(measure), shared(first, second)),
    )


def _corrected(lines: list[Line]) -> list[Line]:
    tested = [index for index, line in enumerate(lines) if line.difference.welch_p is not None]
    adjusted = holm([lines[index].difference.welch_p or 0.0 for index in tested])
    for index, p in zip(tested, adjusted, strict=True):
        lines[index] = replace(lines[index], difference=replace(lines[index].difference, adjusted_p=p))
    return lines
