"""How far a campaign has come, read from its folder without disturbing whoever runs it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.campaign.folder import open_folder
from harness.campaign.journal import read_events
from harness.campaign.plan import estimate
from harness.campaign.repeats import told
from harness.campaign.stages import known_experiments
from harness.errors import ResultsPathError
from harness.results.layout import CAMPAIGN_JSON
from harness.results.manifest import read_manifest

PENDING = "pending"


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """One experiment: its verdict, or how far it is."""

    experiment_id: str
    status: str
    attempts: int
    note: str


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """A campaign: its experiments, whether a harness works on it, the phases still to come, and what it has told so far."""

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
            return "a harness works on it"
        return "finished" if self.done == len(self.experiments) else "no harness works on it (harness resume goes on)"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def campaign_status(path: Path) -> CampaignStatus:
    """Read the state of the campaign in ``path``. Raises ResultsPathError, ConflictError or StorageError."""
    folder = open_folder(path)
    events = list(read_events(folder.state))
    attempts = Counter(e["experiment"] for e in events if e["event"] == "step-begins" and e["step"] == "preflight")
    attempts.subtract(e["experiment"] for e in events if e["event"] == "pauses")  # nothing was tried
    last = {e["experiment"]: e for e in events if "step" in e}
    running = folder.is_locked()
    experiments = known_experiments(folder)
    statuses = []
    pending = []
    for experiment in experiments:
        name = experiment.experiment_id
        if folder.final_folder(name).exists():
            found = read_manifest(folder.final_folder(name)).verdict
            statuses.append(ExperimentStatus(name, found.status.value, attempts[name], "; ".join(found.reasons)))
            continue
        pending.append(experiment)
        note = f"last step: {last[name]['step']}" if name in last else ""
        if name in last and last[name]["event"] in {"waits", "pauses"}:
            note = last[name]["why"]
        statuses.append(ExperimentStatus(name, PENDING, attempts[name], note))
    return CampaignStatus(
        campaign=path.name,
        experiments=statuses,
        done=len(experiments) - len(pending),
        running=running,
        remaining_s=estimate(pending).duration_s,
        answers=told(folder),
    )


def all_campaigns(results: Path) -> list[CampaignStatus]:
    """Every campaign below ``results``, oldest first. Raises ResultsPathError when there is none."""
    folders = [path.parent for path in results.glob(f"*/{CAMPAIGN_JSON}")]
    if not folders:
        raise ResultsPathError(f"{results} holds no campaign.", advice="Start one with: harness run quickstart")
    return [
        campaign_status(folder) for folder in sorted(folders, key=lambda path: (path / CAMPAIGN_JSON).stat().st_mtime)
    ]
