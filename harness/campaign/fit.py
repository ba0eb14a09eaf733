"""A campaign that asks for the best sharing mode, fitted to the machine and to its budget, with what was left out and why.

What this machine cannot do is left out, and the rest goes on; a budget that answers nothing is refused with the smallest that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from harness.analysis.contrasts.until_known import rivals
from harness.backends.base import make_backend
from harness.campaign.plan import estimate, one_experiment
from harness.campaign.preflight import refuse_errors
from harness.campaign.settings import Setting, with_settings
from harness.campaign.source import GIVEN, SHIPPED_PREFIX, CampaignSource, source_of
from harness.errors import Issue, IssueLevel, PreflightError, UsageError, duration
from harness.metrics.nvml import gpu_facts
from harness.sharing.modes import mode_of
from harness.spec import CampaignSpec, CellSpec, Device
from harness.spec.model import LOCAL

FASTEST_START = 0.5
"""Of the usual time to start replicas: how many blocks there may be is reckoned with it, and how many there are is seen."""
MOST_BLOCKS, FEWEST_BLOCKS = 30, 4
AROUND_S = 10.0
"""To begin a campaign, to import what its replicas are forked with, and to write what came of it."""
_OPTION = "fitted:"


def fitted(source: CampaignSource, *, force: bool = False, say: Callable[[str], None]) -> CampaignSource:
    """The same campaign, or what of it can be measured here within its budget; ``say`` hears what was left out.

    Any but one that asks for the best mode stays as it is. Raises PreflightError (no GPU, a GPU in use, nothing can be measured) and
    UsageError (a budget too short for any answer).
    """
    wanted = source.spec.until_known
    if wanted is None or not wanted.best_mode:
        return source
    if source.spec.backend == LOCAL:
        _refuse_machine(source.spec, force=force)
    if not force:
        source = _without_what_cannot_be(source, say)
    if wanted.budget is None:
        return source
    source = _within_budget(source, wanted.budget_s, say)
    return _changed(source, (("repeats", "until_known", "max"), most_blocks(source.spec, wanted.budget_s)))


def _refuse_machine(spec: CampaignSpec, *, force: bool) -> None:
    """Raise PreflightError where there is no GPU for what needs one, or where others compute on it."""
    if all(workload.device is Device.CPU for workload in spec.workloads):
        return
    gpus, why_none = gpu_facts()
    if not gpus and any(workload.device is Device.CUDA for workload in spec.workloads):
        raise PreflightError(
            f"{spec.name} compares ways to share a GPU, and there is none here ({why_none}).",
            advice="What works without a GPU: harness run quickstart",
        )
    pids = sorted({pid for gpu in gpus[: spec.gpus] for pid in gpu.processes})
    if pids and not force:
        raise PreflightError(
            f"other processes compute on the GPU: {', '.join(map(_named, pids))}.",
            advice="End them, or wait for them: they would be measured, too.",
        )


def _named(pid: int) -> str:
    try:
        return f"{pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return str(pid)


def _without_what_cannot_be(source: CampaignSource, say: Callable[[str], None]) -> CampaignSource:
    """Without modes, and numbers of replicas, that preflight refuses; refused altogether where too little is left."""
    spec = source.spec
    backend = make_backend(spec, campaign_id="plan")
    cells = spec.cells()
    errors: dict[int, list[Issue]] = {}
    for place, cell in enumerate(cells):
        issues = backend.check([one_experiment(spec, cell, 1)])
        errors[place] = [issue for issue in issues if issue.severity is IssueLevel.ERROR]
    refused = {place: issues for place, issues in errors.items() if issues}
    if not refused:
        return source
    every_issue = list(dict.fromkeys(issue for issues in refused.values() for issue in issues))
    if len(refused) == len(cells):
        refuse_errors(every_issue)
    possible = [cell for place, cell in enumerate(cells) if place not in refused]
    modes = [mode for mode in spec.sharing if any(cell.sharing is mode for cell in possible)]
    for mode in spec.sharing:
        if mode not in modes:
            issue = next(issues[0] for place, issues in refused.items() if cells[place].sharing is mode)
            say(f"left out: {mode.value}. {issue.message} {issue.advice}".rstrip())
    too_many = {cells[place].replicas: issues[0] for place, issues in refused.items() if cells[place].sharing in modes}
    for count, issue in sorted(too_many.items()):
        say(f"left out: {count} replicas. {issue.message}")
    counts = [count for count in spec.replicas if count not in too_many]
    if not counts:
        refuse_errors(every_issue)
    return _narrowed(source, sharing=modes, replicas=counts)


def _within_budget(source: CampaignSource, budget_s: float, say: Callable[[str], None]) -> CampaignSource:
    """The whole design, or one without what the decision can do without: fewer replicas first, then the replica alone."""
    for smaller in (source, *_smaller(source)):
        least_s = least_budget_s(smaller.spec)
        if least_s <= budget_s:
            if smaller is not source:
                left, whole = (
                    ", ".join(_in_words(cell) for cell in design.spec.cells()) for design in (smaller, source)
                )
                say(f"{whole} would take {duration(least_budget_s(source.spec))} at least; so this measures {left}.")
            return smaller
    raise UsageError(
        f"a budget of {duration(budget_s)} is too short for any answer: {_in_words_of(smaller.spec)} take {duration(least_s)}.",
        advice=f"--budget {math.ceil(least_s / 10) * 10}s",
    )


def least_budget_s(spec: CampaignSpec) -> float:
    """What it takes until the first look, at least."""
    wanted = spec.until_known
    looked_at = wanted.first_look if wanted else 1
    return looked_at * block_s(spec, spec.cells()) + AROUND_S


def _smaller(source: CampaignSource) -> list[CampaignSource]:
    """The design with fewer configurations, by and by; those that the question is about stay."""
    spec, designs = source.spec, []
    decisive = [cell for group in rivals(spec.cells()) for cell in group]
    counts = [count for count in spec.replicas if any(cell.replicas == count for cell in decisive)]
    own = [mode for mode in spec.sharing if mode_of(mode).own_gpu]
    if len(spec.replicas) > len(counts):
        singles = [count for count in spec.replicas if count <= spec.gpus] if own else []
        designs.append(_narrowed(source, replicas=list(dict.fromkeys([*singles, *counts]))))
    shared = [mode for mode in spec.sharing if mode not in own]
    if own and not any(cell.sharing in own for cell in decisive):
        designs.append(_narrowed(source, sharing=shared, replicas=counts))
    return designs


def most_blocks(spec: CampaignSpec, budget_s: float) -> int:
    """Blocks that the budget may come to where replicas start as fast as they can: the error is divided over so many looks."""
    wanted = spec.until_known
    first = wanted.first_look if wanted else 1
    whole_s = block_s(spec, spec.cells(), FASTEST_START)
    asked_s = block_s(spec, [cell for group in rivals(spec.cells()) for cell in group], FASTEST_START)
    later = (budget_s - first * whole_s) / asked_s
    return min(max(first + math.ceil(later), FEWEST_BLOCKS), MOST_BLOCKS)


def block_s(spec: CampaignSpec, cells: Sequence[CellSpec], start: float = 1.0) -> float:
    """Seconds of one run of each of the cells, where replicas take ``start`` of the usual time to start."""
    cost = estimate([one_experiment(spec, cell, 1) for cell in cells])
    return cost.duration_s + start * cost.starts_s


def _in_words(cell: CellSpec) -> str:
    return f"{cell.mode} x {cell.replicas}"


def _in_words_of(spec: CampaignSpec) -> str:
    wanted = spec.until_known
    looks = wanted.first_look if wanted else 1
    return f"{looks} runs each of {', '.join(_in_words(cell) for cell in spec.cells())}"


def _narrowed(source: CampaignSource, **axes: Sequence[Any]) -> CampaignSource:
    """The same with these modes or numbers of replicas alone, and nothing that speaks of others."""
    before = source.spec
    after = before.model_copy(update=axes).without_what_has_no_effect()
    written = after.model_dump(mode="json", exclude_none=True)
    names = [name for name in CampaignSpec.model_fields if getattr(after, name) != getattr(before, name)]
    return _changed(source, *(((name,), written.get(name)) for name in names)) if names else source


def _changed(source: CampaignSource, *changes: tuple[tuple[str, ...], Any]) -> CampaignSource:
    name = source.origin.rpartition(":")[2].rpartition("/")[2]
    text = with_settings(source.text, [Setting(place, value, _OPTION) for place, value in changes], origin=name)
    # What was changed is no longer that file: going on with it later compares it with none.
    return source_of(text, name, source.origin if source.origin.startswith(SHIPPED_PREFIX) else GIVEN)
