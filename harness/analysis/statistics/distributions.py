"""Student's t, F and least squares within bounds; a test holds them against scipy, which is 140 MB.

The incomplete beta function is Abramowitz and Stegun's continued fraction 26.5.8, evaluated as Lentz does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_EPSILON = 1e-15
_TERMS = 10_000
_STEPS = 200
_NEARLY_NORMAL = 1e4
_NARROW, _WIDEST = 1e-9, 1e12


def student_cdf(freedom: float, t: float) -> float:
    """Probability that Student's t with these degrees of freedom is at most ``t``."""
    below = _beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t)) / 2
    return below if t < 0 else 1 - below


@lru_cache(maxsize=4096)
def student_quantile(freedom: float, probability: float) -> float:
    """The value that Student's t does not exceed with this probability, which is above 0.5.

    By Newton's method from the normal quantile: the curve is concave there, so that every step stays below the value.
    """
    z = NormalDist().inv_cdf(probability)
    if freedom > _NEARLY_NORMAL:  # Cornish and Fisher's expansion; infinity is the normal law
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom * freedom)
    t, log_height = z, math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    for _ in range(_STEPS):
        density = math.exp(log_height - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (student_cdf(freedom, -t) - (1 - probability)) / density
        t += step
        if abs(step) <= _EPSILON * t:
            break
    return t


def f_tail(above: float, below: float, value: float) -> float:
    """Probability that F with these degrees of freedom, of its two variances, exceeds ``value``."""
    whole = below + above * value
    return _beta(below / 2, above / 2, below / whole, above * value / whole)


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function at ``x``; ``rest`` is 1 - x, given apart so that none is rounded away."""
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, rest, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = lower
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for term in (even, odd):
            upper, lower = 1 + term / upper, 1 / (1 + term * lower)
            fraction *= upper * lower
        if abs(fraction - before) <= _EPSILON * fraction:
            break
    return math.exp(log_front) * fraction / a


def least_squares(
    misses: Callable[[Floats], Floats], start: Sequence[float], highest: Sequence[float]
) -> tuple[Floats, Floats, float]:
    """The parameters, above 0 and up to ``highest``, with the least sum of squared misses, by Levenberg and Marquardt.

    Returns:
        The parameters, the derivatives of the misses by them, and half of the sum of squares.
    """
    scale = np.asarray(start, dtype=float)
    ends = _NARROW * scale, np.asarray(highest, dtype=float)
    at = np.clip(scale, *ends)
    missed = misses(at)
    damping = 1e-3
    slopes = _slopes(misses, at, scale)
    for _ in range(_STEPS):
        pull = slopes.T @ missed
        free = ~(((at <= ends[0]) & (pull > 0)) | ((at >= ends[1]) & (pull < 0)))
        square = (slopes.T @ slopes)[np.ix_(free, free)]
        weights = np.maximum(np.diag(square), _NARROW / scale[free] ** 2)
        moved = at.copy()
        moved[free] -= np.linalg.solve(square + damping * np.diag(weights), pull[free])
        moved = np.clip(moved, *ends)
        there = misses(moved)
        if there @ there < missed @ missed:
            gained = 1 - float(there @ there) / float(missed @ missed)
            still = bool(np.all(np.abs(moved - at) <= _NARROW * scale))
            at, missed, damping = moved, there, damping / 10
            slopes = _slopes(misses, at, scale)
            if still and gained < _EPSILON:
                break
        elif damping > _WIDEST:
            break
        else:
            damping *= 10
    return at, slopes, float(missed @ missed) / 2


def _slopes(misses: Callable[[Floats], Floats], at: Floats, scale: Floats) -> Floats:
    """Forward differences: where a law has a kink, those of one side, and not of neither."""
    width = 1.5e-8 * np.maximum(at, 1e-3 * scale)
    missed = misses(at)
    return np.stack([(misses(at + step) - missed) / step.sum() for step in np.diag(width)], axis=1)
