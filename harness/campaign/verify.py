"""Is a campaign's folder still whole: its experiments, its own records, and is everything there that was done?

This finds damage, not forgery: who can write the files can write their hashes, too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.campaign.folder import CampaignFolder, open_folder
from harness.campaign.journal import Event, read_events
from harness.campaign.plan import planned_ids
from harness.errors import HarnessError, ResultsPathError
from harness.results import layout, old_profile
from harness.results.files import read_object, storage_errors
from harness.results.manifest import content_digest, read_manifest
from harness.results.ro_crate import RO_CRATE, stated_hashes
from harness.results.verification import Verification, check_hash, verify_experiment

_FETCH = f"Fetch the published set again; or, where the campaign went on since, remove {RO_CRATE}."
_OF_THE_REPORT = (layout.SUMMARY_CSV, layout.SUMMARY_JSON, layout.CAMPAIGN_PARQUET)
"""What `report` writes anew."""


def verify_campaign(path: Path) -> Verification:
    """Check every finished experiment of a campaign, its journal, its plan and its report; or one experiment. Raises ResultsPathError."""
    if (path / layout.MANIFEST).is_file():
        return verify_experiment(path)
    if old_profile.is_old_profile(path):
        return _verify_old_profile(path)
    if not path.is_dir():
        raise ResultsPathError(f"{path} is not a folder.", advice="Give the folder of a campaign or an experiment.")
    with storage_errors(path, "read"):
        present = list(layout.experiment_folders(path))
        known = (path / layout.CAMPAIGN_JSON).exists() or (path / layout.ATTEMPTS).is_dir()
    if not present and not known:
        raise ResultsPathError(f"{path} holds no experiment of this harness.", advice="Give the folder of a campaign.")
    outcome = Verification(path)
    for experiment in present:
        outcome.add(verify_experiment(experiment))
    if outcome.ok:
        _check_twins(present, outcome)
        _check_described(path, present, outcome)
    _note_condensed(path, present, outcome)
    _check_records(path, {experiment.name for experiment in present}, outcome)
    _check_report(path, outcome)
    return outcome


def _verify_old_profile(path: Path) -> Verification:
    """Hash every file of a profile of an earlier version, and of its report, again."""
    file, profile = path / old_profile.MANIFEST, old_profile.read_old_profile(path)
    outcome = Verification(path, experiments=len(profile.points), files=len(profile.files))
    manifest = read_object(file)
    said, digest = manifest.get("digest"), content_digest(manifest)
    if said != digest:
        message = "the manifest was changed after it was written."
        outcome.fault(file, message, f"digest {said}", f"digest {digest}")
    for name, (sha256, size) in profile.files.items():
        check_hash(path, name, sha256, outcome, size=size)
    _check_report(path, outcome)
    return outcome


def _check_twins(present: list[Path], outcome: Verification) -> None:
    """No two recordings are the same: their rows carry the time."""
    first: dict[str, Path] = {}
    for folder in present:
        manifest = read_manifest(folder)
        rows = manifest.files[layout.WIDE].sha256
        if manifest.recording and first.setdefault(rows, folder) != folder:
            message = f"the experiment holds the recording of {first[rows].name}."
            outcome.fault(folder, message, "a recording of its own", "a copy")


def _note_condensed(path: Path, present: list[Path], outcome: Verification) -> None:
    """Say what was checked where a set was condensed: not the files that were recorded."""
    if not outcome.ok:
        return
    files: Counter[int] = Counter()
    for made in filter(None, (read_manifest(folder).condensed for folder in present)):
        files[made.resolution_ns] += len(made.recorded)
    for resolution_ns in sorted(files):
        outcome.notes.append(
            f"{path}: {files[resolution_ns]} files are not as they were recorded: instants were rounded to {resolution_ns} ns for "
            "publication; samples.parquet and servers' logs were left out. The hashes checked are those of what is there; the manifests keep "
            "those of the recorded files."
        )


def _check_described(path: Path, present: list[Path], outcome: Verification) -> None:
    """Hold the crate of a published set against the manifests, and against the files that no manifest lists."""
    try:
        stated = stated_hashes(path)
    except HarnessError as error:
        outcome.fault(path, error.message, advice=error.advice)
        return
    listed = {
        f"{folder.name}/{name}": entry.sha256
        for folder in present
        for name, entry in read_manifest(folder).files.items()
    }
    rewritten = _OF_THE_REPORT if (path / layout.REPORT_SUMS).is_file() else ()  # hashed there
    for name, sha256 in stated.items():
        if name not in listed and name not in rewritten:
            check_hash(path, name, sha256, outcome, advice=_FETCH)
    for name, sha256 in listed.items() if stated else ():
        if stated.get(name) != sha256:
            message = f"it does not describe {name} as the manifest does."
            said = f"sha256 {stated[name]}" if name in stated else "nothing"
            outcome.fault(path / RO_CRATE, message, f"sha256 {sha256}", said, _FETCH)


def _check_records(path: Path, present: set[str], outcome: Verification) -> None:
    """Hold the folder against the campaign file and the journal."""
    if not (path / layout.CAMPAIGN_JSON).exists():
        outcome.notes.append(f"{path} holds no {layout.CAMPAIGN_JSON}: it is unknown whether experiments are missing.")
        return
    try:
        folder = open_folder(path)
        events = list(read_events(folder.state))
    except HarnessError as error:
        outcome.fault(path, error.message, advice=error.advice)
        return
    if not events:
        outcome.notes.append(f"{path} holds no {layout.STATE}: it is unknown whether experiments are missing.")
    done = _done(events)
    if events and (untold := sorted(present - done)):
        outcome.notes.append(
            f"{folder.state} does not say that {', '.join(untold)} {'was' if len(untold) == 1 else 'were'} finished: lines "
            "were cut off, and others may be missing; or the campaign was killed right then."
        )
    _check_plan(folder, present, done, outcome)


def _done(events: list[Event]) -> set[str]:
    """Experiments that the journal knows as finished and not set aside since."""
    done: set[str] = set()
    for event in events:
        if event["event"] == "set-aside":
            done.discard(str(event.get("experiment")))
        elif event["event"] == "step-ends" and event.get("step") == "verify" and event.get("ok"):
            done.add(str(event.get("experiment")))
    return done


def _check_plan(folder: CampaignFolder, present: set[str], done: set[str], outcome: Verification) -> None:
    planned = planned_ids(folder.spec)
    again = f"Restore it from a backup, or run it again: harness resume {folder.path}"
    for name in sorted(done - present):
        outcome.fault(folder.path / name, "the experiment was finished.", "its folder", "none", again)
    for name in sorted(present - planned):
        message = "the campaign's plan has no such experiment."
        outcome.fault(folder.path / name, message, advice="Move its folder away.")
    if not folder.spec.open_ended and not planned <= present:
        outcome.notes.append(f"{folder.path}: {len(planned & present)} of {len(planned)} experiments are finished.")


def _check_report(path: Path, outcome: Verification) -> None:
    """Hash what the report is made of, where there is a whole one."""
    sums = path / layout.REPORT_SUMS
    if not sums.is_file():
        if (path / layout.REPORT_HTML).is_file():
            outcome.notes.append(f"{path} holds no {layout.REPORT_SUMS}: write the report again: harness report {path}")
        return
    with storage_errors(sums, "read"):
        lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        expected, _, name = line.partition("  ")
        check_hash(path, name, expected, outcome, advice=f"Write the report again: harness report {path}")
