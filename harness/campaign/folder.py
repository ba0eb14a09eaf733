"""The folder of one campaign: made once, held by one harness at a time, resumed only as it began."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness import __version__
from harness.campaign.source import SHIPPED_PREFIX
from harness.errors import ConflictError, ResultsPathError, StorageError
from harness.host import FileLock
from harness.results import layout
from harness.results.files import atomic_write, read_document, read_object, storage_errors, sync_folder
from harness.results.manifest import content_digest
from harness.spec import CampaignSpec
from harness.spec.model import first_in_words

LOCK = "lock"
FORMAT_WITHOUT_DIGEST = 1


@dataclass(frozen=True, slots=True)
class CampaignFolder:
    """One campaign on disk, with its spec and the hash of its file as they were when it began; its id marks every process.

    ``source``: the file it was read from, relative to the folder above ``path``; or ``shipped:<name>``.
    """

    path: Path
    campaign_id: str
    spec: CampaignSpec
    source: str
    source_sha256: str

    @property
    def state(self) -> Path:
        """The journal."""
        return self.path / layout.STATE

    def final_folder(self, experiment_id: str) -> Path:
        """Where an experiment lies once it is done."""
        return self.path / experiment_id

    def next_attempt(self, experiment_id: str) -> int:
        """Number of the next attempt, 1-based; one that left a folder is never used again."""
        attempts = self.path / layout.ATTEMPTS
        numbers = [folder.name.rpartition("-")[2] for folder in attempts.glob(f"{experiment_id}-[0-9]*")]
        return max((int(number) for number in numbers if number.isascii() and number.isdigit()), default=0) + 1

    def set_aside(self, experiment_id: str) -> Path:
        """Move a finished experiment that no longer verifies back among the attempts; returns its new place."""
        target = layout.attempt_folder(self.path, experiment_id, self.next_attempt(experiment_id))
        with storage_errors(target):
            target.parent.mkdir(exist_ok=True)
            self.final_folder(experiment_id).rename(target)
            sync_folder(self.path)
        return target

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the campaign. Raises ConflictError when another harness does; the kernel lets go when we die."""
        lock = FileLock(self.path / LOCK)
        with storage_errors(lock.path, "lock"):
            taken = lock.take()
        if not taken:
            raise ConflictError(
                f"the campaign {self.path} is in use by another harness (process {lock.holder}).",
                advice="Wait for it to end, or stop it; then resume.",
            )
        try:
            yield
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Whether a harness holds the campaign; asked without taking the lock, so that nobody who starts trips over it."""
        with storage_errors(self.path / LOCK, "read"):
            return FileLock(self.path / LOCK).is_held()


def create(results: Path, spec: CampaignSpec, *, text: str, source: str) -> CampaignFolder:
    """Make the folder of a new campaign; it appears whole, by one rename. Raises StorageError."""
    stamp = layout.stamp(time.time())
    with storage_errors(results):
        results.mkdir(parents=True, exist_ok=True)
        staging = results / f".{spec.name}-{secrets.token_hex(4)}.tmp"
        staging.mkdir()
        try:
            identity = {
                "format": layout.CAMPAIGN_FORMAT,
                "campaign_id": uuid.uuid4().hex,
                "harness": __version__,
                "created_at": layout.iso(time.time()),
                "source": source if source.startswith(SHIPPED_PREFIX) else os.path.relpath(source, results),
                "source_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "spec": spec.model_dump(mode="json"),
            }
            identity["digest"] = content_digest(identity)
            atomic_write(staging / layout.CAMPAIGN_YAML, text)
            atomic_write(staging / layout.CAMPAIGN_JSON, json.dumps(identity, indent=2) + "\n")
            (staging / layout.ATTEMPTS).mkdir()
            target = _claim(staging, results, f"{spec.name}-{stamp}")
            sync_folder(results)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    return open_folder(target)


def _claim(staging: Path, results: Path, name: str) -> Path:
    """Rename to the first free name; a second campaign of the same second gets ``-2``."""
    for number in range(1, 1000):
        target = results / (name if number == 1 else f"{name}-{number}")
        if target.exists():
            continue
        try:
            staging.rename(target)
        except OSError:
            if target.exists():  # another harness was faster; a rename onto a folder that is not empty fails
                continue
            raise
        return target
    raise StorageError(f"no free name for the campaign {name} in {results}.", advice="Choose another: --results.")


def open_folder(path: Path) -> CampaignFolder:
    """The campaign in ``path``. Raises ResultsPathError, and ConflictError where its campaign.yaml is not the one it began with."""
    identity = _read_identity(path)
    try:
        folder = CampaignFolder(
            path=path,
            campaign_id=str(identity["campaign_id"]),
            spec=CampaignSpec.model_validate_json(json.dumps(identity["spec"]), strict=True),
            source=str(identity["source"]),
            source_sha256=str(identity["source_sha256"]),
        )
    except (KeyError, ValidationError) as error:
        why = first_in_words(error) if isinstance(error, ValidationError) else f"{error.args[0]} is missing"
        raise ResultsPathError(
            f"{path / layout.CAMPAIGN_JSON} was not written by this version of the harness: {why}.",
            advice="Use the version that began the campaign.",
        ) from error
    copy = path / layout.CAMPAIGN_YAML
    with storage_errors(copy, "read"):
        if not copy.exists():
            raise ConflictError(f"{copy} is missing.", advice="Restore it from a backup: nothing is run without it.")
        if not copy.is_file() or hashlib.sha256(read_document(copy)).hexdigest() != folder.source_sha256:
            raise ConflictError(
                f"{copy} is not the campaign file this campaign began with.",
                advice="Put it back as it was, or run the changed file as a new campaign.",
            )
    return folder


def check_source(folder: CampaignFolder) -> None:
    """Compare with the file the campaign was started from, where that still exists. Raises ConflictError."""
    source = folder.path.parent / folder.source
    if folder.source.startswith(SHIPPED_PREFIX) or not source.is_file():
        return
    with storage_errors(source, "read"):
        sha256 = hashlib.sha256(source.read_text(encoding="utf-8").encode()).hexdigest()
    if sha256 != folder.source_sha256:
        raise ConflictError(
            f"{source} changed since the campaign {folder.path} began with it.",
            advice="Run the changed file as a new campaign, or go on with the old text: harness resume --as-started",
        )


def _read_identity(path: Path) -> dict[str, Any]:
    file = path / layout.CAMPAIGN_JSON
    with storage_errors(file, "read"):
        if not file.is_file():
            raise ResultsPathError(
                f"{path} is not a campaign folder: it has no {layout.CAMPAIGN_JSON}.",
                advice="Give a folder below results/, e.g. results/quickstart-20260131T235959Z.",
            )
    identity = read_object(file)
    digest = content_digest(identity)
    if identity.get("digest") != digest and identity.get("format") != FORMAT_WITHOUT_DIGEST:
        raise ResultsPathError(f"{file} was changed after it was written.", advice="Restore it from a backup.")
    return identity
