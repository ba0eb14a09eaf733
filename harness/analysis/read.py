"""One finished experiment, read back from its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from pydantic import ValidationError

from harness.analysis.statistics.distributions import Floats
from harness.errors import ResultsPathError
from harness.metrics.csv_reader import CodedTexts, Columns, read_columns, read_together
from harness.results.files import read_document, read_object, storage_errors
from harness.results.layout import CAMPAIGN_FORMAT, CAMPAIGN_JSON, REQUESTS, STATE, TELEMETRY, metric_files
from harness.results.manifest import Manifest, read_manifest
from harness.results.requests import RequestTable, Window, is_of_requests, read, well
from harness.spec import CampaignSpec
from harness.spec.model import first_in_words

if TYPE_CHECKING:
    import pandas as pd

_NS = 1e9


T = TypeVar("T")


class NotMeasuredError(ValueError):
    """A figure that the experiment does not give; the message is the reason."""


@dataclass(frozen=True)
class ExperimentData:
    """The files of one experiment; each is read when it is asked for.

    Attributes:
        folder: of the experiment.
        manifest: its manifest.
        kept: what was read, by metric or file; None keeps none.
    """

    folder: Path
    manifest: Manifest
    kept: dict[str, Any] | None = field(default=None, kw_only=True, repr=False, compare=False)

    def keeping(self) -> Self:
        """The same, reading each table once: for many figures of one experiment, and gone with them."""
        return replace(self, kept={})

    @property
    def duration_s(self) -> float:
        """Seconds between the first and the last row."""
        return (self.manifest.rows - 1) * self.manifest.experiment.timing.step_s

    @cached_property
    def _together(self) -> dict[str, Columns]:
        return {} if self.kept is None else read_together(self._metric_paths)

    @cached_property
    def _metric_paths(self) -> dict[str, Path]:
        return {metric: file.path for metric, file in metric_files(self.folder).items()}

    def table(self, metric: str) -> pd.DataFrame:
        """The metric's values: one row per time (index ``elapsed_s``), one column per series, NaN where missing.

        Raises NotMeasuredError with the reason when there is not a single value.
        """
        return self._kept(metric, lambda: self._read(metric))

    def _kept(self, name: str, read: Callable[[], T]) -> T:
        if self.kept is None:
            return read()
        if name not in self.kept:
            self.kept[name] = read()
        kept: T = self.kept[name]
        return kept

    def _read(self, metric: str) -> pd.DataFrame:
        import pandas as pd  # half a second, which a campaign that only runs does not need

        if metric not in self._metric_paths:
            raise NotMeasuredError("the campaign did not ask for it")
        path = self._metric_paths[metric]
        with storage_errors(path, "read"):
            elapsed_s, series, values, reasons = self._together.get(metric) or read_columns(path)
        if np.isnan(values).all():
            raise NotMeasuredError(_commonest(reasons))
        # By hand, because DataFrame.pivot_table takes ten times as long as everything else here.
        times_s, rows = np.unique(elapsed_s, return_inverse=True)
        names, columns = np.unique(np.array(series.words, dtype=object), return_inverse=True)
        cells = np.full((len(times_s), len(names)), np.nan)
        cells[rows, columns[series.places]] = values
        given = ~np.isnan(cells).all(axis=0)
        index = pd.Index(times_s, name="elapsed_s")
        # Names as objects: pandas' own texts are Arrow's, and to look for one among a few takes as long as to read the file.
        return pd.DataFrame(cells[:, given], index, pd.Index(names[given], name="series", dtype=object))

    def series(self, metric: str, name: str) -> pd.Series[float]:
        """One series of a metric, without its missing values. Raises NotMeasuredError."""
        return self._column(metric, name).dropna()

    def values(self, metric: str, name: str) -> Floats:
        """The same without its times, which takes a third of the time. Raises NotMeasuredError."""
        values: Floats = np.asarray(self._column(metric, name), dtype=np.float64)
        return values[~np.isnan(values)]

    def _column(self, metric: str, name: str) -> pd.Series[float]:
        table = self.table(metric)
        if name not in table:
            raise NotMeasuredError(f"{metric} has no series {name}")
        return table[name]

    @property
    def window(self) -> Window:
        """From the first row to the last."""
        return Window(self.manifest.start_s, self.manifest.start_s + self.duration_s)

    def requests(self) -> RequestTable:
        """Every request. Raises NotMeasuredError when part of it is not there: the rest is not the experiment."""
        listed = [name for name in self.manifest.files if is_of_requests(name)]
        present = sum((self.folder / name).is_file() for name in listed)
        if present < len(listed):
            raise NotMeasuredError(f"{present} of {len(listed)} logs of requests are there")
        table = self._kept(REQUESTS, lambda: read(self.folder))
        if table is None:
            raise NotMeasuredError("the replicas wrote no latency log")
        return table

    def served_rates(self) -> dict[int, float]:
        """Requests per second that each replica's log has in the recording. Raises NotMeasuredError."""
        table, window = self.requests(), self.window
        rows = well(table.rows)
        inside = rows["replica"][window.holds(rows["end_ns"])]
        return {replica: int((inside == replica).sum()) / self.duration_s for replica in table.replicas}

    def telemetry(self) -> pd.DataFrame:
        """The fast series within the recording, index ``elapsed_s`` since its start. Raises NotMeasuredError."""
        return self._kept(TELEMETRY, self._read_telemetry)

    def _read_telemetry(self) -> pd.DataFrame:
        import pandas as pd

        path = self.folder / TELEMETRY
        if not path.is_file():
            raise NotMeasuredError("no telemetry was recorded")
        with storage_errors(path, "read"):
            frame = pd.read_csv(path)
        frame.columns = frame.columns.astype(object)  # as those of a table
        times = pd.to_datetime(frame["timestamp"], utc=True, format="ISO8601")
        frame["elapsed_s"] = (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds() - self.manifest.start_s
        inside = frame["elapsed_s"].between(0, self.duration_s)
        return frame[inside].drop(columns="timestamp").set_index("elapsed_s")


def read_experiment(folder: Path) -> ExperimentData:
    """Open a finished experiment. Raises ResultsPathError when it is none."""
    return ExperimentData(folder, read_manifest(folder))


def read_campaign(folder: Path) -> dict[str, Any]:
    """What ``campaign.json`` says; empty when there is none. Raises ResultsPathError when it is damaged."""
    path = folder / CAMPAIGN_JSON
    with storage_errors(path, "read"):
        if not path.is_file():
            return {}
    identity = read_object(path)
    if identity.get("format", CAMPAIGN_FORMAT) not in range(1, CAMPAIGN_FORMAT + 1):
        raise ResultsPathError(
            f"{path} has the format {identity['format']!r:.40}, which this version of the harness does not know.",
            advice="Read it with the version that wrote it, or a newer one.",
        )
    try:
        identity["spec"] = CampaignSpec.model_validate_json(json.dumps(identity.get("spec")))
    except ValidationError as error:
        raise ResultsPathError(
            f"{path} is damaged, in its campaign: {first_in_words(error)}.", advice="Restore it from a backup."
        ) from error
    return identity


def has_ended(folder: Path) -> bool:
    """Whether the last thing in the campaign's journal is its end."""
    *_, last = [{}, *_events(folder)]
    return last.get("event") == "campaign-ends"


def last_steps(folder: Path) -> dict[str, str]:
    """How far each experiment came, in words, from the campaign's journal; a torn last line is left out."""
    found: dict[str, str] = {}
    for event in _events(folder):
        name, step = event.get("experiment"), event.get("step")
        if name and step and event.get("event") == "step-begins":
            found[name] = f"attempt {event.get('attempt')} was stopped in the step {step}"
        elif name and event.get("event") == "step-ends" and event.get("reasons"):
            found[name] = f"attempt {event.get('attempt')}: {'; '.join(event['reasons'])}"
    return found


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / STATE
    with storage_errors(path, "read"):
        lines = read_document(path).splitlines() if path.is_file() else []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _commonest(reasons: CodedTexts) -> str:
    counts = np.bincount(reasons.places, minlength=len(reasons.words)).tolist()
    given = {text: count for text, count in zip(reasons.words, counts, strict=True) if text}
    return max(given, key=given.__getitem__) if given else "nothing was recorded"
