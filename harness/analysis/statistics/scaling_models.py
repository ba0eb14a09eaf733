"""How a figure grows with the number of replicas: the simplest law that the measurements do not contradict.

Laws are fitted to the single runs, on logarithms (least squares), so that a spread in percent is the same everywhere.
Whether one fits is the lack-of-fit test: do the means miss the curve by more than the repeats scatter? It takes
repeats, and more replica counts than the law has parameters. Sources: Amdahl 1967; Gunther 1993 (universal
scalability law); Denning and Buzen 1978 (bounds of a closed system); Draper and Smith (lack of fit).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.statistics import SIGNIFICANCE, Estimate, student
from harness.analysis.statistics.distributions import Floats, f_tail, least_squares

_EXACT = 1e-12
_EQUAL = 1e-6
"""Residuals that differ by less, relatively, are those of one curve: Amdahl's with s = 1 is a bottleneck."""


@dataclass(frozen=True, slots=True)
class Law:
    """A curve over replica counts, from counts and positive parameters.

    ``parameters``: their names; the first is the value at one replica, or the level. ``bounded``: those that are at most 1.
    ``shown``: those without which it is another law: their intervals must lie above 0.
    """

    name: str
    formula: str
    curve: Callable[[Floats, Floats], Floats]
    parameters: tuple[str, ...]
    bounded: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()


THROUGHPUT_LAWS = (
    Law("linear", "X(n) = r n", lambda n, p: p[0] * n, ("r",)),
    Law("bottleneck", "X(n) = min(r n, C)", lambda n, p: np.minimum(p[0] * n, p[1]), ("r", "C")),
    Law(
        "bottleneck with a switching cost",
        "X(1) = r, X(n > 1) = r / (1 + w)",
        lambda n, p: np.where(n > 1, p[0] / (1 + p[1]), p[0]),
        ("r", "w"),
        shown=frozenset({"w"}),
    ),
    Law(
        "Amdahl",
        "X(n) = r n / (1 + s (n - 1))",
        lambda n, p: p[0] * n / (1 + p[1] * (n - 1)),
        ("r", "s"),
        frozenset({"s"}),
    ),
    Law(
        "universal scalability",
        "X(n) = r n / (1 + s (n - 1) + k n (n - 1))",
        lambda n, p: p[0] * n / (1 + p[1] * (n - 1) + p[2] * n * (n - 1)),
        ("r", "s", "k"),
        frozenset({"s"}),
    ),
)
"""Of the total throughput, the simplest first; r: rate of one, C: ceiling, w: cost of a turn as a share of the work, s: serial share, k: crosstalk."""

LATENCY_LAWS = (
    Law("constant", "L(n) = a", lambda n, p: p[0] + 0 * n, ("a",)),
    Law("proportional", "L(n) = a n", lambda n, p: p[0] * n, ("a",)),
    Law("queue behind a bottleneck", "L(n) = max(a, b n)", lambda n, p: np.maximum(p[0], p[1] * n), ("a", "b")),
    Law("affine", "L(n) = a + b (n - 1)", lambda n, p: p[0] + p[1] * (n - 1), ("a", "b")),
)
"""Of a latency, the simplest first."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One law fitted, its parameters with 95% intervals (Student's t on the linearised problem).

    ``fits``: whether the measurements do not contradict it, by the ``p`` of the lack-of-fit test; None when that cannot be tested.
    ``off``: largest deviation of a measured mean from the curve, as a share of it. ``residual``: sum of squared logarithms.
    """

    law: Law
    parameters: dict[str, Estimate]
    fits: bool | None
    p: float | None
    off: float
    residual: float

    def at(self, replicas: int) -> float:
        """The curve's value."""
        values = np.array([estimate.mean for estimate in self.parameters.values()])
        return float(self.law.curve(np.array([float(replicas)]), values)[0])


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the measurements say of a family of laws.

    ``best``: the simplest that is not contradicted; None for the ``reason``. ``nearest``: that with the least residual among those
    that can be tested. ``advice``: what to measure in order to know more; empty when nothing would help.
    """

    best: Fit | None
    nearest: Fit | None
    reason: str = ""
    advice: str = ""


def scaling_law(runs: Mapping[int, Sequence[float]], laws: Sequence[Law] = THROUGHPUT_LAWS) -> Scaling:
    """The simplest law, of those given from the simplest on, that the runs (by replica count, all positive) do not contradict."""
    counts = sorted(count for count, figures in runs.items() if figures)
    if len(counts) < 2:
        return Scaling(None, None, "it takes at least two replica counts", "Measure more counts in `replicas`.")
    tried = [_fit(law, runs, counts) for law in laws if len(law.parameters) <= len(counts)]
    tested = [fit for fit in tried if fit.fits is not None]
    if not tested:
        reason = "nothing says how far a curve may be off, without repeats and more counts than it has parameters"
        return Scaling(None, None, reason, "Measure more counts in `replicas`, with `repeats: 3`.")
    nearest = min(tested, key=lambda fit: fit.residual)
    fitting = [fit for fit in tested if fit.fits and all(fit.parameters[name].low for name in fit.law.shown)]
    if fitting:
        fewest = len(fitting[0].law.parameters)
        same = [fit for fit in fitting if len(fit.law.parameters) == fewest]
        least = min(fit.residual for fit in same) * (1 + _EQUAL)
        return Scaling(next(fit for fit in same if fit.residual <= least), nearest)
    untested = [law.name for law in laws if law.name not in {fit.law.name for fit in tested}]
    advice = ""
    if untested:
        advice = f"More counts in `replicas` would test the laws that have too many parameters for these ({', '.join(untested)})."
    return Scaling(None, nearest, f"none fits of {', '.join(fit.law.name for fit in tested)}", advice)


def _fit(law: Law, runs: Mapping[int, Sequence[float]], counts: Sequence[int]) -> Fit:
    n = np.array([float(count) for count in counts for _ in runs[count]])
    logs = np.log(np.array([figure for count in counts for figure in runs[count]], dtype=float))

    def misses(theta: Floats) -> Floats:
        return np.asarray(np.log(law.curve(n, theta)) - logs, dtype=float)

    highest = [1.0 if name in law.bounded else np.inf for name in law.parameters]
    starts = _starts(law, runs, counts)
    parameters, slopes, cost = min(
        (least_squares(misses, start, highest) for start in starts), key=lambda fitted: fitted[2]
    )
    residual = 2 * cost
    means = np.array([np.mean(np.log(runs[count])) for count in counts])
    gaps = means - np.log(law.curve(np.array(counts, dtype=float), parameters))
    scatter = residual - sum(len(runs[count]) * gap**2 for count, gap in zip(counts, gaps, strict=True))
    # ``scatter``: of the repeats around their own mean.
    p = _lack_of_fit(residual, max(scatter, 0.0), len(counts) - len(law.parameters), len(n) - len(counts))
    return Fit(
        law,
        _intervals(law, parameters, slopes, residual, len(n)),
        None if p is None else p >= SIGNIFICANCE,
        p,
        float(np.max(np.abs(np.expm1(gaps)))),
        residual,
    )


def _starts(law: Law, runs: Mapping[int, Sequence[float]], counts: Sequence[int]) -> list[list[float]]:
    """Where to begin: the first count gives the level; shapes are tried small and large."""
    first, last = float(np.mean(runs[counts[0]])), float(np.mean(runs[counts[-1]]))
    level = {"r": first / counts[0], "C": last, "a": first, "b": last / counts[-1], "s": 0.1, "k": 0.01, "w": 0.1}
    small = [level[name] for name in law.parameters]
    large = [{"s": 0.8, "k": 0.1, "b": last / counts[-1] / 2}.get(name, level[name]) for name in law.parameters]
    return [small, large] if large != small else [small]


def _lack_of_fit(residual: float, scatter: float, freedom: int, repeats: int) -> float | None:
    """P that means which follow the curve miss it by this much; None without a degree of freedom to tell."""
    if freedom < 1 or repeats < 1:
        return None
    lack = max(residual - scatter, 0.0)
    if scatter <= _EXACT:
        return 1.0 if lack <= _EXACT else 0.0
    return float(f_tail(freedom, repeats, lack / freedom / (scatter / repeats)))


def _intervals(law: Law, values: Floats, jacobian: Floats, residual: float, runs: int) -> dict[str, Estimate]:
    freedom, information = runs - len(values), jacobian.T @ jacobian
    note, halves = "", np.zeros(len(values))
    if freedom <= 0:
        note = "as many parameters as runs"
    elif np.linalg.matrix_rank(information) < len(values):
        note = "the runs cannot separate it from the other parameters"
    else:
        halves = student(freedom) * np.sqrt(np.diag(np.linalg.inv(information)) * residual / freedom)
    intervals = {}
    for name, value, half in zip(law.parameters, values.tolist(), halves.tolist(), strict=True):
        low, high = max(0.0, value - half), value + half
        high = min(1.0, high) if name in law.bounded else high
        intervals[name] = Estimate(value, None if note else low, None if note else high, runs, None, note)
    return intervals


def knee(fit: Fit) -> float | None:
    """Replicas at which a bottleneck is reached; None for a law without one."""
    if fit.law.name != "bottleneck":
        return None
    return fit.parameters["C"].mean / fit.parameters["r"].mean


def most_within(fit: Fit, limit: float, highest: int) -> int:
    """The largest count up to ``highest`` at which a rising curve is within the limit; 0 when it is beyond at once."""
    within = [count for count in range(1, highest + 1) if fit.at(count) <= limit * (1 + _EXACT)]
    return max(within, default=0)
