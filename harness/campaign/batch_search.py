"""How far a batch can be raised: doubled until the GPU's memory is nearly full or throughput grows no more, then bisected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.analysis.format import number
from harness.spec.profile import CapacityGoal

TARGET_PERCENT, MARGIN_PERCENT = 85.0, 2.0
"""Of the GPU's memory: what a found batch may use at most, and how much less is near enough."""
LEAST_GAIN = 0.05
"""Growth of the throughput per doubling: below it, the knee is passed."""
KNEE_SHARE = 0.95
"""Of the greatest throughput: the smallest batch that reaches it is the knee."""
KNEE_WITHIN = 1.25
"""Batches that differ by a smaller factor are not told apart."""
MOST_BISECTIONS = 12


@dataclass(frozen=True, slots=True)
class Tried:
    """One batch size.

    Attributes:
        batch: inputs.
        throughput: inputs/s; None: it did not fit.
        memory_percent: of the GPU's memory at the peak; None: not measured.
        message: why it, or its memory, was not measured; empty when both were.
        out_of_memory: it took more memory than there is.
    """

    batch: int
    throughput: float | None
    memory_percent: float | None
    message: str = ""
    out_of_memory: bool = False

    @property
    def fits(self) -> bool:
        """Whether it ran and left the memory that is to be left."""
        return self.throughput is not None and (self.memory_percent is None or self.memory_percent <= TARGET_PERCENT)


@dataclass(slots=True)
class Search:
    """One search and what it found.

    Attributes:
        tried: every batch size, in its order.
        batch: the answer; None: there is none.
        sentence: the answer in words.
    """

    tried: list[Tried] = field(default_factory=list)
    batch: int | None = None
    sentence: str = ""


def search(measure: Callable[[int], Tried], goal: CapacityGoal, first: int, most: int) -> Search:
    """Raise the batch until the goal is reached.

    Args:
        measure: runs one batch size.
        goal: the knee of the throughput, or the memory; the search for the knee ends at the memory, too.
        first: batch size to begin with.
        most: batch size to end with.
    """
    found = Search()

    def ask(batch: int) -> Tried:
        found.tried.append(measure(batch))
        return found.tried[-1]

    good: list[Tried] = []
    batch = first
    while (tried := ask(batch)).fits:
        if goal is CapacityGoal.MEMORY and tried.memory_percent is None:
            found.sentence = f"How full the GPU's memory is cannot be told: {tried.message}."
            return found
        good.append(tried)
        if batch >= most:
            break
        if goal is CapacityGoal.KNEE and _is_flat(good):
            break
        batch = min(2 * batch, most)
    above = None if tried.fits else tried
    if not good:
        why = tried.message or f"it uses {_percent(tried)} of the GPU's memory"
        found.sentence = f"Not even a batch of {first} can be taken: {why}"
    elif above is not None and not above.out_of_memory and above.throughput is None:
        found.sentence = f"A batch of {above.batch} failed, and not for want of memory: {above.message}"
    elif goal is CapacityGoal.KNEE:
        _find_knee(found, ask, good, above)
    else:
        _fill_memory(found, ask, good, above)
    return found


def _is_flat(good: list[Tried]) -> bool:
    if len(good) < 2:
        return False
    before, after = (tried.throughput or 0.0 for tried in good[-2:])
    return after < before * (1 + LEAST_GAIN)


def _find_knee(found: Search, ask: Callable[[int], Tried], good: list[Tried], above: Tried | None) -> None:
    best = max(tried.throughput or 0.0 for tried in good)
    high = next(tried for tried in good if (tried.throughput or 0.0) >= KNEE_SHARE * best)
    low = max((tried.batch for tried in good if tried.batch < high.batch), default=high.batch)
    while high.batch > KNEE_WITHIN * low and high.batch - low > 1:
        middle = ask((low + high.batch) // 2)
        if middle.fits and (middle.throughput or 0.0) >= KNEE_SHARE * best:
            high = middle
        else:
            low = middle.batch
    found.batch = high.batch
    rate = f"{number(high.throughput or 0.0)} inputs/s"
    if _is_flat(good):
        found.sentence = f"The knee lies at a batch of {high.batch}: {rate}, {KNEE_SHARE:.0%} or more of the most that any batch reached."
    else:
        end = f"the memory is full at {above.batch}" if above else f"{good[-1].batch} was the largest batch allowed"
        found.sentence = f"Throughput still grew when the search ended, as {end}: {rate} at a batch of {high.batch}."


def _fill_memory(found: Search, ask: Callable[[int], Tried], good: list[Tried], above: Tried | None) -> None:
    low, high = good[-1], above
    for _ in range(MOST_BISECTIONS):
        near = (low.memory_percent or 0.0) >= TARGET_PERCENT - MARGIN_PERCENT
        if high is None or near or high.batch - low.batch <= 1:
            break
        middle = ask(_between(low, high))
        if middle.fits:
            low = middle
        else:
            high = middle
    found.batch = low.batch
    share = _percent(low)
    if high is None:
        found.sentence = f"A batch of {low.batch}, the largest allowed, uses {share} of the GPU's memory."
    else:
        why = "runs out of memory" if high.out_of_memory else f"uses {_percent(high)}"
        found.sentence = (
            f"A batch of {low.batch} uses {share} of the GPU's memory, the limit being {TARGET_PERCENT:g} %; "
            f"{high.batch} {why}."
        )


def _between(low: Tried, high: Tried) -> int:
    """The batch at which the memory would be full to the middle of the margin, if it grew evenly; without figures the middle."""
    batch = (low.batch + high.batch) // 2
    if low.memory_percent is not None and high.memory_percent is not None:
        wanted = TARGET_PERCENT - MARGIN_PERCENT / 2 - low.memory_percent
        share = wanted / max(high.memory_percent - low.memory_percent, wanted)
        batch = low.batch + round(share * (high.batch - low.batch))
    return min(max(batch, low.batch + 1), high.batch - 1)


def _percent(tried: Tried) -> str:
    return "an unknown share" if tried.memory_percent is None else f"{tried.memory_percent:.1f} %"
