"""An index of results: one table over all campaigns below a folder that verify, with the reason for each that does not."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.analysis.campaign import Cell, analyse
from harness.analysis.comparability import gpu_names
from harness.analysis.format import DASH, replicas_in_words, with_interval
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.statistics import Estimate
from harness.campaign.folder import open_folder
from harness.campaign.verify import verify_campaign
from harness.errors import HarnessError, ResultsPathError
from harness.results.files import sha256_of, storage_errors
from harness.results.layout import CAMPAIGN_JSON
from harness.results.published import SUFFIX, is_archive, opened
from harness.spec.sharing import mode_in_words

_UNUSED = "none of its runs can be used: they are INVALID"
FIGURES = ("inputs", "throughput", "latency_p99_exact", "energy")


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of one verified campaign.

    Attributes:
        workload, sharing, replicas, condition, mps_limits, time_slice: which.
        batch_size: inputs in one request.
        precision: of the weights.
        execution: eager, or how else the model runs.
        paced: whether requests came at a rate that was set, so that throughput is that rate.
        gpu: models of the GPUs used.
        figures: measure to its mean over the repeats.
        runs: repeats that were used.
        verdict: VALID or DEGRADED.
        source: file or folder below the one that was looked at.
        sha256: of the archive; of a folder, that of its plan.
    """

    workload: str
    sharing: str
    replicas: int
    condition: str
    mps_limits: str
    time_slice: str
    batch_size: int
    precision: str
    execution: str
    paced: bool
    gpu: str
    figures: dict[str, Estimate]
    runs: int
    verdict: str
    source: str
    sha256: str

    @property
    def mode(self) -> str:
        """The sharing mode with what MPS allows each replica, or how long a turn is."""
        return mode_in_words(self.sharing, self.mps_limits, self.time_slice)

    @property
    def load(self) -> str:
        """Who says how many requests there are."""
        return "set rate" if self.paced else "closed loop"

    def figures_in_words(self) -> list[str]:
        """Of ``FIGURES``, a dash where there is none."""
        return [with_interval(self.figures[name], ALL[name].unit) if name in self.figures else DASH for name in FIGURES]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """All cells, by workload and then the most inputs per second first; and what was refused, with the reason."""

    entries: list[Entry]
    refused: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"entries": [asdict(entry) for entry in self.entries], "refused": self.refused}

    def to_markdown(self) -> str:
        """One table, and the refused below it. Names come from somebody else: none can be markup."""
        headers = ["workload", "GPU", "sharing", "replicas", "condition", "load", "batch", "precision", "execution"]
        headers += ["inputs", "requests", "exact p99", "energy per request", "runs", "verdict", "campaign", "sha256"]
        lines = [_row(headers), _row(["---"] * len(headers)), *map(_entry_row, self.entries)]
        if self.refused:
            lines += [
                "",
                "Not listed:",
                "",
                *(f"- {_plain(name)}: {_plain(why)}" for name, why in self.refused.items()),
            ]
        return "\n".join(lines)


def leaderboard(folder: Path, *, say: Callable[[str], None] = lambda _sentence: None) -> Leaderboard:
    """Verify every campaign and every published set directly in a folder, and list those that hold what they should.

    Args:
        folder: that has them.
        say: told which is read.

    Raises:
        ResultsPathError: it is no folder, or nothing in it is a campaign that can be listed.
        StorageError: it cannot be read.
    """
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "is not there"
        raise ResultsPathError(f"{folder} {wrong}.", advice="Give the folder that holds campaigns or archives.")
    if (folder / CAMPAIGN_JSON).exists():
        raise ResultsPathError(
            f"{folder} is one campaign, and the list is of all in a folder.",
            advice=f"Give the folder that holds it, {folder.absolute().parent}, or read it alone: harness report {folder}",
        )
    entries: list[Entry] = []
    refused: dict[str, str] = {}
    known: dict[str, str] = {}
    for path in _candidates(folder):
        say(f"verifying {printable(str(path))}")
        try:
            if path.is_symlink():
                raise ResultsPathError(f"{path} is a link.", advice="Copy what it leads to.")
            with opened(path) as campaign:
                verify_campaign(campaign).of(path).refuse()
                identity = open_folder(campaign).campaign_id
                if identity in known:
                    refused[path.name] = f"the same campaign as {known[identity]}"
                    continue
                cells = analyse(campaign).cells
                without = [cell for cell in cells if not cell.used]
                if len(without) == len(cells):
                    refused[path.name] = _UNUSED
                    continue
                refused |= {f"{path.name}, {_where(cell)}": _UNUSED for cell in without}
                digest = _digest(path, campaign)
                entries += [_entry(cell, path.name, digest) for cell in cells if cell.used]
                known[identity] = path.name
        except HarnessError as error:
            refused[path.name] = " ".join(error.message.split())
    if not entries:
        reasons = "; ".join(printable(f"{name}: {why.rstrip('.')}") for name, why in refused.items()) or "it holds none"
        raise ResultsPathError(
            f"{folder} holds no campaign that can be listed: {reasons}.",
            advice="Give the folder that holds campaigns or archives of `harness publish`.",
        )
    entries.sort(key=lambda entry: (entry.workload, -_rate(entry)))
    return Leaderboard(entries, refused)


def _candidates(folder: Path) -> Iterator[Path]:
    with storage_errors(folder, "read"):
        for path in sorted(folder.iterdir()):
            if path.name.endswith(SUFFIX) or (path.is_dir() and (path / CAMPAIGN_JSON).exists()):
                yield path


def _digest(path: Path, campaign: Path) -> str:
    with storage_errors(path, "read"):
        return sha256_of(path if is_archive(path) else campaign / CAMPAIGN_JSON)


def _where(cell: Cell) -> str:
    return ", ".join(filter(None, (cell.workload, cell.mode, replicas_in_words(cell.replicas), cell.condition)))


def _entry(cell: Cell, source: str, digest: str) -> Entry:
    manifest = cell.used[0].data.manifest
    return Entry(
        **cell.key._asdict(),
        batch_size=manifest.experiment.workload.batch_size,
        precision=str(manifest.experiment.workload.precision),
        execution=str(manifest.experiment.workload.execution),
        paced=cell.paced,
        gpu=gpu_names(manifest),
        figures={name: cell.estimates[name] for name in FIGURES if name in cell.estimates},
        runs=len(cell.used),
        verdict=cell.badge,
        source=source,
        sha256=digest,
    )


def _entry_row(entry: Entry) -> str:
    names = [entry.workload, entry.gpu, entry.mode, str(entry.replicas), entry.condition, entry.load]
    words = [*names, str(entry.batch_size), entry.precision, entry.execution]
    return _row(
        [
            *map(_plain, words),
            *entry.figures_in_words(),
            str(entry.runs),
            entry.verdict,
            _plain(entry.source),
            entry.sha256[:12],
        ]
    )


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def printable(text: str) -> str:
    """In one line that leaves a terminal alone."""
    return "".join(character if character.isprintable() else " " for character in text)


def _plain(text: str) -> str:
    return re.sub(r"([\\|`\[\]])", r"\\\1", html.escape(printable(text), quote=False))


def _rate(entry: Entry) -> float:
    rate = entry.figures.get("inputs") or entry.figures.get("throughput")
    return rate.mean if rate else 0.0
