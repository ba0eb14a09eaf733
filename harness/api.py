"""The Python API: ``harness.load``, ``harness.compare`` and ``harness.run``, with results as tidy pandas tables.

Every table begins with what was run: ``workload``, ``replicas``, ``sharing``, ``condition`` and
``mps_limits``, ``time_slice`` (empty where the campaign names none) and, for one experiment, ``repeat``. Times are datetimes in UTC. Missing is NaN with a ``reason``, never 0.
"""

from __future__ import annotations

import difflib
import io
import json
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.analysis import campaign_table, summary
from harness.analysis.campaign import CampaignAnalysis, analyse, analyse_experiment
from harness.analysis.contrasts.comparison import gathered
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.read import read_experiment
from harness.errors import ResultsPathError, counted
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.rows import series_name
from harness.results.files import storage_errors
from harness.results.layout import CAMPAIGN_JSON, SAMPLES, experiment_folders, workload_folders
from harness.results.manifest import Manifest, read_manifest
from harness.results.published import is_archive, unpack
from harness.results.requests import latency_ns, well
from harness.results.requests import read as read_requests
from harness.results.tables import write_samples

if TYPE_CHECKING:
    from harness.campaign.events import Event
    from harness.spec import CampaignSpec

RUN = ("workload", "replicas", "sharing", "condition", "mps_limits", "time_slice", "repeat")
CELL = RUN[:-1]
_NS = 1e9
_SAMPLES = (*RUN, "timestamp", "metric", "series", "value", "unit", "reason")
_LATENCIES = (*RUN, "series", "start", "latency_s", "recorded")
_COMPARED = (
    *("workload", "replicas", "measure", "of", "against"),
    *("ratio", "ci95_low", "ci95_high", "p", "answer", "outcome"),
)
_FIGURES = (*RUN, "measure", "value", "unit", "reason")


class _Home:
    """A campaign's folder; one that was unpacked goes when nothing uses it any more."""

    def __init__(self, path: Path) -> None:
        if not is_archive(path):
            self.folder = path
            return
        temporary = tempfile.mkdtemp(prefix="harness-")
        weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        self.folder = unpack(path, Path(temporary))


class Experiment:
    """One finished experiment; its ``manifest`` says what its numbers do not: machine, settings, verdict."""

    def __init__(self, folder: Path, home: _Home) -> None:
        self._folder = folder
        self._home = home  # keeps an unpacked archive there
        self.manifest: Manifest = read_manifest(folder)

    def __repr__(self) -> str:
        return f"<Experiment {self.name}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """For a notebook: its verdict with the reasons, and its figures."""
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in self.manifest.verdict.reasons)
        figures = self.summary()[["measure", "value", "unit"]].dropna().to_html(index=False)
        return f"<p>{escape(self.name)}: {self.verdict}</p><ul>{reasons}</ul>{figures}"

    @property
    def name(self) -> str:
        """Its id, e.g. ``resnet50_r3_mps_rep1``."""
        return self.manifest.experiment_id

    @property
    def verdict(self) -> str:
        """VALID, DEGRADED or INVALID."""
        return self.manifest.verdict.status.value

    def samples(self) -> pd.DataFrame:
        """Every row of every metric: ``timestamp``, ``metric``, ``series``, ``value``, ``unit``, ``reason``. Raises StorageError."""
        path = self._folder / SAMPLES
        with storage_errors(path, "read"), tempfile.TemporaryDirectory(prefix="harness-") as temporary:
            if SAMPLES not in self.manifest.files:  # left out of a published set, as it is made of the CSVs
                path = Path(temporary) / SAMPLES
                write_samples(self._folder, path, {name: metric.unit for name, metric in CATALOGUE.items()})
            return self._tidy(pd.read_parquet(path), _SAMPLES)

    def latencies(self) -> pd.DataFrame:
        """Every logged request: ``series`` (the replica), ``start``, ``latency_s``, ``recorded`` (ended within the recording). Raises StorageError."""
        data, frames = read_experiment(self._folder), []
        for workload, folder in workload_folders(self._folder).items():
            table = read_requests(folder)
            if table is None:
                continue
            for replica in table.replicas:
                rows = well(table.of(replica))
                columns = {
                    "series": series_name(f"replica-{replica}", workload),
                    "start": pd.to_datetime(rows["intended_ns"], unit="ns", utc=True),
                    "latency_s": latency_ns(rows) / _NS,
                    "recorded": data.window.holds(rows["end_ns"]),
                }
                frames.append(self._tidy(pd.DataFrame(columns), _LATENCIES))
        return _together(frames, _LATENCIES)

    def summary(self) -> pd.DataFrame:
        """Its figures: ``measure``, ``value``, ``unit``, ``reason``; none has a value when a file is damaged."""
        run = analyse_experiment(self._folder)
        damage = "; ".join(run.damage)
        names = [name for name in ALL if damage or name in run.figures or name in run.absent]
        rows = [
            (name, run.figures.get(name, float("nan")), ALL[name].unit, damage or run.absent.get(name, ""))
            for name in names
        ]
        return self._tidy(pd.DataFrame(rows, columns=["measure", "value", "unit", "reason"]), _FIGURES)

    def _tidy(self, frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
        spec, cell = self.manifest.experiment, self.manifest.experiment.cell
        setting = (spec.workload.name, spec.replicas, spec.sharing.value, spec.condition_name)
        run: tuple[str | int, ...] = (*setting, cell.mps_limits, cell.time_slice, spec.repeat)
        for name, value in zip(RUN, run, strict=True):
            frame[name] = value
        return frame[list(columns)]


class Experiments(list[Experiment]):
    """Experiments in the order of their names; ``experiments["resnet50_r3_mps_rep1"]`` is one by its name."""

    def __getitem__(self, key: Any) -> Any:
        """Raises KeyError, which says what was probably meant."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        by_name = {experiment.name: experiment for experiment in self}
        if key not in by_name:
            close = difflib.get_close_matches(key, by_name, n=1)
            near = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(list(by_name)[:3]) or 'none'}"
            raise KeyError(f"no experiment {key!r} here; {near}{' ...' if not close and len(by_name) > 3 else ''}")
        return by_name[key]


class Campaign:
    """One campaign's results: ``experiments`` that are finished, and its ``folder``, unpacked as long as this object is used."""

    def __init__(self, path: Path) -> None:
        self._home = _Home(path)
        self.folder = self._home.folder
        self.name = self.folder.resolve().name
        folders = list(experiment_folders(self.folder)) if self.folder.is_dir() else []
        if not folders and not (self.folder / CAMPAIGN_JSON).is_file():
            raise ResultsPathError(
                f"{path} holds no campaign.", advice="Give the folder of a campaign below results/, or a published set."
            )
        self.experiments = Experiments()
        for folder in folders:
            try:
                self.experiments.append(Experiment(folder, self._home))
            except ResultsPathError as error:  # of a damaged manifest: the others go on
                warnings.warn(f"{folder.name} is left out: {error.message}", stacklevel=3)

    def __getitem__(self, name: str) -> Experiment:
        """The experiment of this name. Raises KeyError, which says what was probably meant."""
        experiment: Experiment = self.experiments[name]
        return experiment

    def __contains__(self, wanted: object) -> bool:
        """Whether it has this experiment, or one of this name."""
        return any(wanted in (experiment, experiment.name) for experiment in self.experiments)

    def __iter__(self) -> Iterator[Experiment]:
        """Its experiments, in the order of their names."""
        return iter(self.experiments)

    def __len__(self) -> int:
        """How many are finished."""
        return len(self.experiments)

    def __repr__(self) -> str:
        return f"<Campaign {self.name}: {counted(len(self), 'experiment')}>"

    def _repr_html_(self) -> str:
        """For a notebook: every experiment with its verdict."""
        rows = [(experiment.name, experiment.verdict) for experiment in self.experiments]
        table = pd.DataFrame(rows, columns=["experiment", "verdict"]).to_html(index=False)
        return f"<p>{escape(self.name)}: {counted(len(rows), 'experiment')}</p>{table}"

    def samples(self) -> pd.DataFrame:
        """``samples`` of all experiments."""
        return _together([experiment.samples() for experiment in self.experiments], _SAMPLES)

    def summary(self) -> pd.DataFrame:
        """The report's figures, over the repeats: a row per cell and measure, as in ``summary.csv``.

        INVALID and damaged experiments are left out. Every file is verified, which takes a while the first time.
        """
        frame = summary.table(self.analysis).frame()
        numbers = ["mean", "ci95_low", "ci95_high", "cv"]
        rest = [name for name in summary.COLUMNS if name not in CELL]
        return frame.astype(dict.fromkeys(numbers, "float64"))[[*CELL, *rest]]

    def table(self) -> pd.DataFrame:
        """Every experiment with its figures, a row each, as in ``campaign.parquet``; units are in the columns' names."""
        return pd.read_parquet(io.BytesIO(campaign_table.to_parquet(self.analysis)))

    @cached_property
    def analysis(self) -> CampaignAnalysis:
        """What the report is made of; read once, when it is first asked for."""
        return analyse(self.folder)


def load(path: str | PathLike[str]) -> Campaign:
    """Open a campaign: its folder, or the archive that ``harness publish`` made. Raises ResultsPathError and StorageError."""
    return Campaign(Path(path))


def compare(*campaigns: Campaign | str | PathLike[str], by: str | None = None, unlike: bool = False) -> pd.DataFrame:
    """Hold campaigns, sharing modes or conditions against each other, as ``harness compare`` does.

    ``by``: ``campaign``, ``sharing``, ``condition``, ``workload``, ``share`` (limits under MPS) or ``time-slice``; None: campaigns
    when several measured the same, else sharing modes, else conditions. ``unlike``: compare even results of unlike machines.

    Returns a row per workload, replicas and measure: ``ratio`` of ``of`` over ``against`` with its 95% interval, ``p`` (corrected
    for the family that docs/comparing.md names), the ``answer`` in words and its code ``outcome``.

    Raises UsageError, UnlikeResultsError and ResultsPathError.
    """
    paths = [campaign.folder if isinstance(campaign, Campaign) else Path(campaign) for campaign in campaigns]
    if not paths:
        raise ResultsPathError("there is no campaign to compare.", advice="Give one or more.")
    known = {campaign.folder: campaign for campaign in campaigns if isinstance(campaign, Campaign)}
    with gathered(
        paths, by, unlike=unlike, read=lambda folder: known[folder].analysis if folder in known else analyse(folder)
    ) as comparison:
        rows = [
            (
                *(tested.key.workload, tested.key.replicas, tested.contrast.metric, tested.b, tested.a),
                *(tested.contrast.ratio.mean, tested.contrast.ratio.low, tested.contrast.ratio.high),
                *(tested.contrast.corrected_p, tested.contrast.sentence, tested.contrast.outcome.value),
            )
            for tested in comparison.tests
        ]
    frame = pd.DataFrame(rows, columns=list(_COMPARED))
    return frame.astype(dict.fromkeys(["ratio", "ci95_low", "ci95_high", "p"], "float64"))


def run(
    campaign: str | PathLike[str] | CampaignSpec | Mapping[str, Any],
    *,
    results: str | PathLike[str] = "results",
    on_event: Callable[[Event], None] = lambda _event: None,
    force: bool = False,
    wait: bool = True,
) -> Campaign:
    """Run a campaign (a file, the name of a shipped one, or what such a file says) to its end, as ``harness run`` does, without a report.

    ``on_event`` is told of every step, one of ``harness.campaign.events``, also from threads of the backend; ``force``: despite
    errors of preflight; ``wait``: up to a minute, for another harness that measures on the same GPU.

    Raises CampaignFileError, PreflightError, DeviceInUseError, CampaignInterruptedError (``harness resume`` goes on) and others.
    """
    from harness.backends.base import make_backend
    from harness.campaign.events import Notice
    from harness.campaign.preflight import prepare
    from harness.campaign.runner import CampaignRunner
    from harness.campaign.source import given, read_source
    from harness.host import WAIT_S

    if isinstance(campaign, str | PathLike):
        source = read_source(str(campaign))
    else:
        content = campaign if isinstance(campaign, Mapping) else campaign.model_dump(mode="json", exclude_unset=True)
        source = given(json.dumps(content, indent=2, default=str))
    wait_s = WAIT_S if wait else 0.0
    folder = prepare(source, Path(results), force=force, say=lambda sentence: on_event(Notice(sentence)), wait_s=wait_s)
    backend = make_backend(folder.spec, folder.campaign_id)
    CampaignRunner(folder, backend, listener=on_event, wait_s=wait_s).run()
    return load(folder.path)


def _together(frames: list[pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(columns))
