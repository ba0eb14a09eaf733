"""What is looked at before an hour is spent: disk, the results folder, what the backend needs; and the folder of a new campaign."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.backends.base import IMAGE, Backend, make_backend
from harness.campaign.folder import CampaignFolder, create
from harness.campaign.plan import at_most_gb, certain, check_limits, estimate, most
from harness.campaign.source import CampaignSource
from harness.errors import AwayError, ImageError, Issue, IssueLevel, PreflightError, ReasonCode
from harness.spec import ExperimentSpec

DISK_RESERVE_BYTES = 200_000_000


def check(experiments: Sequence[ExperimentSpec], results: Path, backend: Backend) -> list[Issue]:
    """Everything that speaks against running ``experiments`` into ``results``; nothing is started or written."""
    return [*_check_folder(results), *_check_disk(experiments, results), *backend.check(experiments)]


def refuse_errors(issues: Sequence[Issue], *, under_way: bool = False) -> None:
    """Raise PreflightError when one of them is an error; names all of them. It costs one experiment of a campaign that is under way.

    Raises, under way:
        AwayError: nothing refuses but what may come back by itself.
        ImageError: an image cannot be had.
    """
    errors = [issue for issue in issues if issue.severity is IssueLevel.ERROR]
    if not errors:
        return
    message = " ".join(issue.message for issue in errors)
    advice = " ".join(dict.fromkeys(issue.advice for issue in errors if issue.advice))
    if under_way and all(issue.away for issue in errors):
        raise AwayError(message, advice=advice)
    if under_way and any(issue.check == IMAGE for issue in errors):
        raise ImageError(message, advice=advice)
    code = min((issue.code for issue in errors), key=[ReasonCode.OUT_OF_MEMORY, ReasonCode.REFUSED].index)
    raise PreflightError(message, advice=advice, code=code)


def existing_parent(path: Path) -> Path:
    """The nearest folder above ``path`` (or itself) that exists."""
    path = path.absolute()
    return next(parent for parent in [path, *path.parents] if parent.exists())


def _check_folder(results: Path) -> list[Issue]:
    parent = existing_parent(results)
    if not parent.is_dir():
        message = f"the results folder {results} cannot be made: {parent} is a file."
    elif not os.access(parent, os.W_OK | os.X_OK):
        message = f"the results folder {results} cannot be written: no write access to {parent}."
    else:
        return []
    return [Issue(IssueLevel.ERROR, "results", message, "Choose another folder with --results.")]


def _check_disk(experiments: Sequence[ExperimentSpec], results: Path) -> list[Issue]:
    needed = estimate(experiments).disk_bytes + DISK_RESERVE_BYTES
    free = shutil.disk_usage(existing_parent(results)).free
    if free >= needed:
        return []
    # The upper estimate may be far above the truth; only the next experiment's share is refused outright.
    largest = max((estimate([experiment]).disk_bytes for experiment in experiments), default=0) + DISK_RESERVE_BYTES
    severity = IssueLevel.ERROR if free < largest else IssueLevel.WARNING
    message = (
        f"{free / 1e9:.1f} GB are free for {results}: the plan may write up to {at_most_gb(needed - DISK_RESERVE_BYTES)}, "
        f"and {at_most_gb(DISK_RESERVE_BYTES)} have to stay free."
    )
    return [Issue(severity, "disk", message, "Free some space, or choose another disk with --results.")]


def prepare(source: CampaignSource, results: Path, *, force: bool, say: Callable[[str], None]) -> CampaignFolder:
    """Look at everything that speaks against a campaign, ``say`` it, and make its folder below ``results``; ``force``: despite errors.

    Raises:
        UsageError: it is larger than it may be.
        PreflightError: this machine cannot run it.
        StorageError: ``results`` cannot be written.
    """
    check_limits(source.spec, most(source.spec))
    issues = check(certain(source.spec), results, make_backend(source.spec, campaign_id="preflight"))
    for issue in issues:
        if force or issue.severity is not IssueLevel.ERROR:
            say(f"{issue.severity.value}: {issue.message} {issue.advice}".rstrip())
    if not force:
        refuse_errors(issues)
    return create(results, source.spec, text=source.text, source=source.origin)
