"""How far a campaign has come, read from its folder without disturbing whoever runs it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.campaign.folder import open_folder
from harness.campaign.journal import read_events
from harness.campaign.plan import estimate
from harness.campaign.planners import planner_of
from harness.errors import HarnessError, ResultsPathError
from harness.results.layout import CAMPAIGN_JSON
from harness.results.manifest import read_manifest

PENDING, RUNNING, DAMAGED = "pending", "running", "damaged"


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """One experiment: its verdict, or how far it is."""

    experiment_id: str
    status: str
    attempts: int
    note: str


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """A campaign: its experiments, whether it is running, the time still to come, and what it has told so far."""

    campaign: str
    experiments: list[ExperimentStatus]
    done: int
    running: bool
    remaining_s: float
    answers: list[str]

    @property
    def activity(self) -> str:
        """One phrase for people."""
        if self.running:
            return "running"
        return "finished" if self.done == len(self.experiments) else "not running"


def campaign_status(path: Path, now_s: float | None = None) -> CampaignStatus:
    """Read the state of the campaign in the folder ``path``. Raises ResultsPathError, ConflictError or StorageError."""
    folder = open_folder(path)
    events = list(read_events(folder.state))
    begun = [e for e in events if e["event"] == "step-begins" and e["step"] == "preflight"]
    attempts = Counter(e["experiment"] for e in begun)
    attempts.subtract(e["experiment"] for e in events if e["event"] == "pauses")  # nothing was tried
    began_s = {e["experiment"]: datetime.fromisoformat(e["at"]).timestamp() for e in begun}
    last = {e["experiment"]: e for e in events if "step" in e}
    now, now_s = events[-1] if events else {}, time.time() if now_s is None else now_s
    running, planner = folder.is_locked(), planner_of(folder)
    statuses, done, remaining_s, starts = [], 0, 0.0, set[str]()
    for experiment in planner.known():
        name = experiment.experiment_id
        if folder.final_folder(name).exists():
            try:
                verdict = read_manifest(folder.final_folder(name)).verdict
                status, note = verdict.status.value, "; ".join(verdict.reasons)
            except ResultsPathError as error:  # its manifest is damaged: the others are as they are
                status, note = DAMAGED, error.message
            statuses.append(ExperimentStatus(name, status, attempts[name], note))
            done += 1
            continue
        cost = estimate([experiment])
        to_go_s = cost.duration_s + (0.0 if experiment.start in starts else cost.starts_s)
        starts.add(experiment.start)
        status, note = PENDING, f"last step: {last[name]['step']}" if name in last else ""
        if name in last and last[name]["event"] in {"waits", "pauses"}:
            note = last[name]["why"]
        elif running and now.get("experiment") == name and "step" in now:
            status, note = RUNNING, last[name]["step"]
            to_go_s -= now_s - began_s[name]
        remaining_s += max(to_go_s, 0.0)
        statuses.append(ExperimentStatus(name, status, attempts[name], note))
    return CampaignStatus(
        campaign=path.name,
        experiments=statuses,
        done=done,
        running=running,
        remaining_s=remaining_s,
        answers=planner.answers(),
    )


def all_campaigns(results: Path, *, say: Callable[[str], None] = lambda _note: None) -> list[CampaignStatus]:
    """Every campaign below ``results``, oldest first; ``say`` is told of one that cannot be read. Raises ResultsPathError when there is none."""
    folders = [path.parent for path in results.glob(f"*/{CAMPAIGN_JSON}")]
    if not folders:
        raise ResultsPathError(f"{results} holds no campaign.", advice="Start one with: harness run quickstart")
    campaigns = []
    for folder in sorted(folders, key=lambda path: (path / CAMPAIGN_JSON).stat().st_mtime):
        try:
            campaigns.append(campaign_status(folder))
        except HarnessError as error:
            say(f"{folder.name} is left out: {error.message}")
    return campaigns
