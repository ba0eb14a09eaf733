"""One finished experiment, read back from its files, and the requests that belong to its recording.

A request belongs to the recording in which it ends, as the replicas' counters see it: under overload it was meant to be sent
long before. Latency and the time to the first token count from the intended time, so that a late client is no excuse.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from harness.analysis.statistics import percentile
from harness.analysis.statistics.distributions import Floats
from harness.errors import ResultsPathError
from harness.metrics.csv_reader import CodedTexts, Columns, read_columns, read_together
from harness.results.files import read_document, read_object, storage_errors
from harness.results.layout import CAMPAIGN_FORMAT, CAMPAIGN_JSON, STATE, TELEMETRY, metric_files
from harness.results.manifest import Manifest, read_manifest
from harness.results.requests import NS_PER_S, RequestTable, Rows, Window, gaps, is_of_requests, read
from harness.spec import CampaignSpec
from harness.spec.model import first_in_words
from harness.traffic.records import ABANDONED, CANCELLED, NOT_SENT, OK, TokenSource

if TYPE_CHECKING:
    import pandas as pd

SET_ASIDE = (CANCELLED, NOT_SENT)
_NO_REQUEST = "no request ended within the recording"
_NO_STREAM = "the answers were no streams of tokens"
_NO_ANSWER = "no answer has a first token after reasoning, or an earlier version recorded the run, which did not separate reasoning"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_GAP = np.dtype([("begin_ns", "<i8"), ("end_ns", "<i8"), ("status", "<i8")])

Array = npt.NDArray[Any]
T = TypeVar("T")


class NotMeasuredError(ValueError):
    """A figure that the experiment does not give; the message is the reason."""


@dataclass(frozen=True)
class ClientRequests:
    """The requests of one recording, of one replica or of all; ``replicas``: who has a log.

    ``rows``: those that ended in it. ``well``: of these, those that were answered well. ``under_way``: those that had begun and not
    ended when it ended. ``gaps``: after a token, that ended in the recording or were under way at its end; each with its request's
    status where the request ended without another token, else OK. ``intended``: how many were meant to be sent in it. In none of
    them are the ``cancelled`` and the ``not_sent``, of which these are the numbers that ended in it.
    """

    window: Window
    rows: Rows
    well: Rows
    under_way: Rows
    gaps: Array
    intended: int
    replicas: tuple[int, ...]
    cancelled: int = 0
    not_sent: int = 0

    @property
    def every(self) -> Rows:
        """The requests that an objective is held against."""
        return np.concatenate([self.rows, self.under_way])

    @property
    def failed(self) -> dict[str, int]:
        """How many were not answered well, by status."""
        return count_statuses(self.rows[self.rows["status"] != OK])

    def seconds(self, what: str) -> Floats:
        """The values of ``latency``, ``ttft``, ``ttfo``, ``tpot``, ``itl`` or ``send_error``. Raises NotMeasuredError where there are none."""
        if what == "itl":
            closed = self.gaps[(self.gaps["status"] == OK) & self.window.holds(self.gaps["end_ns"])]
            values_ns = closed["end_ns"] - closed["begin_ns"]
        else:
            values_ns = times_ns(self.rows if what == "send_error" else self.well, what)
        values: Floats = values_ns[~np.isnan(values_ns)] / NS_PER_S
        if not len(values):
            streamed = (self.well["first_token_ns"] >= 0).any()
            absent = _NO_ANSWER if what == "ttfo" and streamed else _NO_STREAM
            raise NotMeasuredError(absent if len(self.well) else _NO_REQUEST)
        return values

    @property
    def input_tokens_per_s(self) -> float:
        """Of the requests that were answered well."""
        return int(self.well["input_tokens"].clip(0).sum()) / self.window.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that arrived in the recording, of answers that ended well or that the client left when the load ended.

        A stream's first token came when it was seen, the others evenly from it to the end; the tokens of what is no stream came at its
        end. Whole answers counted at their ends make a matter of chance of those that end just before or after the recording; it is done
        where nobody knows how many tokens came of the answers that were left.
        """
        whole, left = self.well["output_tokens"].clip(0), self.under_way[self.under_way["status"] == ABANDONED]
        hidden = (self.well["token_source"] == TokenSource.USAGE_WITH_HIDDEN).any()
        if hidden or ((left["first_token_ns"] >= 0) & (left["pieces"] < 0)).any():
            return int(whole.sum()) / self.window.duration_s
        ended = np.concatenate([self.well, self.under_way[self.under_way["status"] == OK]])
        tokens, pieces = ended["output_tokens"].clip(0), ended["pieces"].clip(0)
        per_piece = tokens[pieces > 0].sum() / pieces.sum() if pieces.any() else 1.0
        arrived = _arrived(ended, tokens, self.window) + _arrived(left, left["pieces"].clip(0) * per_piece, self.window)
        return arrived / self.window.duration_s

    def milliseconds(self, what: str) -> dict[str, float]:
        """Mean and percentiles of ``what``, as far as the sample supports them: a p99 takes 100 requests."""
        known: dict[str, float] = {}
        with suppress(NotMeasuredError):
            values = 1e3 * self.seconds(what)
            known["mean"] = float(values.mean())
            for name, quantile in QUANTILES.items():
                with suppress(ValueError):
                    known[name] = percentile(values, quantile)
        return {name: round(value, 6) for name, value in known.items()}


def read_requests(table: RequestTable, folder: Path, window: Window, replica: int | None = None) -> ClientRequests:
    """The requests of a recording, of one replica or of all, from the table of the run and the logs of gaps in its folder.

    Raises ResultsPathError where a file is not ours, StorageError where it cannot be read.
    """
    rows = table.rows if replica is None else table.of(replica)
    replicas = table.replicas if replica is None else (replica,)
    streams = (rows["first_token_ns"] >= 0).any()
    between = [_gaps(gaps(folder, index), table.of(index), window) for index in replicas] if streams else []
    aside = window.holds(rows["end_ns"])
    cancelled, not_sent = (int((aside & (rows["status"] == status)).sum()) for status in SET_ASIDE)
    rows = rows[~np.isin(rows["status"], SET_ASIDE)]
    ended = rows[window.holds(rows["end_ns"])]
    return ClientRequests(
        window,
        ended,
        ended[ended["status"] == OK],
        rows[_under_way(rows["intended_ns"], rows["end_ns"], window)],
        np.concatenate([np.empty(0, _GAP), *between]),
        int(window.holds(rows["intended_ns"]).sum()),
        replicas,
        cancelled,
        not_sent,
    )


def times_ns(rows: Rows, what: str) -> Floats:
    """``latency``, ``ttft``, ``ttfo``, ``tpot`` or ``send_error`` of each row, nanoseconds; NaN where it has none.

    ``ttfo`` is the time to the first token of the answer itself, after reasoning. ``tpot`` is the mean time of each output token after the first, of streams with more than one.
    """
    since = {"latency": "end_ns", "ttft": "first_token_ns", "ttfo": "first_answer_ns", "send_error": "sent_ns"}
    if what in since:
        instants = rows[since[what]]
        return np.where(instants >= 0, instants - rows["intended_ns"], np.nan)
    sent = rows["token_source"] != TokenSource.USAGE_WITH_HIDDEN  # else the number is of tokens that never came
    streamed, further = (rows["first_token_ns"] >= 0) & sent, rows["output_tokens"] - 1
    spent_ns = np.where(streamed & (further > 0), rows["end_ns"] - rows["first_token_ns"], np.nan)
    per_token_ns: Floats = spent_ns / np.maximum(further, 1)
    return per_token_ns


def _arrived(rows: Rows, tokens: Array, window: Window) -> float:
    """How many of the ``tokens`` of each row arrived in the window."""
    begin_ns, over_ns = round(window.begin_s * NS_PER_S), round(window.end_s * NS_PER_S)
    first_ns, end_ns = rows["first_token_ns"], rows["end_ns"]
    streamed = (first_ns >= 0) & (end_ns > first_ns)
    inside_ns = np.minimum(end_ns, over_ns) - np.maximum(first_ns, begin_ns)
    evenly = inside_ns.clip(0) / np.maximum(end_ns - first_ns, 1)
    further = tokens - np.minimum(tokens, 1)
    of_streams = np.minimum(tokens, 1) * window.holds(first_ns) + further * evenly
    return float(np.where(streamed, of_streams, tokens * window.holds(end_ns)).sum())


def count_statuses(rows: Rows) -> dict[str, int]:
    """How many rows have each status, by its number."""
    return {str(status): count for status, count in sorted(Counter(rows["status"].tolist()).items())}


def _gaps(log: Rows, rows: Rows, window: Window) -> Array:
    between = np.empty(len(log), _GAP)
    between["begin_ns"] = log["start_ns"]
    between["end_ns"] = log["start_ns"] + log["gap_ns"]
    between["status"] = OK
    failed = rows[rows["status"] != OK]
    for status in np.unique(failed["status"]):
        last = np.isin(between["end_ns"], failed["end_ns"][failed["status"] == status])
        between["status"][last] = status
    between = between[~np.isin(between["status"], SET_ASIDE)]
    begin_ns, end_ns = between["begin_ns"], between["end_ns"]
    return between[window.holds(end_ns) | _under_way(begin_ns, end_ns, window)]


def _under_way(begin_ns: Array, end_ns: Array, window: Window) -> npt.NDArray[np.bool_]:
    """What had begun and not ended when the recording ended."""
    over_ns = round(window.end_s * NS_PER_S)
    return np.logical_and(begin_ns < over_ns, end_ns >= over_ns)


@dataclass(frozen=True)
class ExperimentData:
    """The files of one experiment; each is read when it is asked for.

    ``kept``: what was read, by metric or file; None keeps none but the requests.
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
        return metric_files(self.folder)

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
        table = self.table(metric)
        if name not in table:
            raise NotMeasuredError(f"{metric} has no series {name}")
        return table[name].dropna()

    @property
    def window(self) -> Window:
        """From the first row to the last."""
        return Window(self.manifest.start_s, self.manifest.start_s + self.duration_s)

    @cached_property
    def requests(self) -> ClientRequests:
        """What whoever asked saw in the recording. Raises NotMeasuredError when part of it is not there."""
        listed = [name for name in self.manifest.files if is_of_requests(name)]
        present = sum((self.folder / name).is_file() for name in listed)
        if present < len(listed):
            raise NotMeasuredError(f"{present} of {len(listed)} logs of requests are there")
        if (table := read(self.folder)) is None:
            raise NotMeasuredError("the replicas wrote no latency log")
        return read_requests(table, self.folder, self.window)

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


def read_journal(folder: Path) -> tuple[dict[str, str], bool]:
    """How far each experiment came, in words, and whether the campaign has ended; damaged lines of its journal are left out."""
    path, steps, last = folder / STATE, {}, ""
    with storage_errors(path, "read"):
        lines = read_document(path).splitlines() if path.is_file() else []
    for line in lines:
        with suppress(ValueError, RecursionError, AttributeError):
            event = json.loads(line)
            last, name, attempt = event.get("event"), event.get("experiment"), f"attempt {event.get('attempt')}"
            if name and event.get("step") and last == "step-begins":
                steps[name] = f"{attempt} was stopped in the step {event['step']}"
            elif name and last == "step-ends" and event.get("reasons"):
                steps[name] = f"{attempt}: {'; '.join(event['reasons'])}"
    return steps, last == "campaign-ends"


def _commonest(reasons: CodedTexts) -> str:
    counts = np.bincount(reasons.places, minlength=len(reasons.words)).tolist()
    given = {text: count for text, count in zip(reasons.words, counts, strict=True) if text}
    return max(given, key=given.__getitem__) if given else "nothing was recorded"
