"""``server.json``: what the clients saw of servers of the user's own, and whether that meets the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.results import latencies, layout
from harness.results.files import read_object, storage_errors
from harness.spec import ExperimentSpec, ServerSpec
from harness.spec.server import OPENAI
from harness.traffic.figures import NS_PER_MS, NS_PER_S, Window, percentiles_ms
from harness.traffic.slo import Judged, Sample, judge

FILE_NAME = "server.json"
REQUESTS_LOG, GAPS_LOG = "requests.bin", "gaps.bin"
REQUEST = np.dtype(
    [
        (name, "<i8")
        for name in (
            "intended_ns",
            "send_error_ns",
            "latency_ns",
            "ttft_ns",
            "itl_p99_ns",
            "input_tokens",
            "output_tokens",
            "status",
        )
    ]
)
"""As the replicas write it."""
GAP = np.dtype([("end_ns", "<i8"), ("gap_ns", "<i8"), ("status", "<i8")])
OK, UNANSWERED, ABANDONED = 200, -1, -3
HELD_SHARE = 0.95
LATE_MS, LATE_SHARE = 1.0, 0.05
LONG_SHARE = 0.05
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "min_tokens"})
"""Fields of a user's own body that say how long an answer may be."""
HUNG = 2.0
"""A request has no answer after so many times the longest one's: the server hangs."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the clients of one server or of all wrote down.

    Attributes:
        requests: that ended in the recording.
        under_way: requests that had not ended when the recording did.
        gaps: after a token, that ended in the recording or were under way at its end; each with its request's status where
            the request ended without another token, else OK.
        intended: how many requests were meant to be sent in the recording.
    """

    requests: Array
    under_way: Array
    gaps: Array
    intended: int

    @property
    def every(self) -> Array:
        """The requests that an objective is held against."""
        return np.concatenate([self.requests, self.under_way])

    @property
    def well(self) -> Array:
        """The requests that ended in the recording and were answered well."""
        well: Array = self.requests[self.requests["status"] == OK]
        return well


def evaluate(
    experiment: ExperimentSpec, folder: Path, window: Window, *, statuses: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Finding]]:
    """The content of ``server.json``, and what it means for the verdict.

    Args:
        experiment: its workload is a server.
        folder: the attempt.
        window: the recording.
        statuses: what each replica said of itself at its end.

    Raises:
        StorageError: a log cannot be read.
    """
    server = experiment.workload.server
    assert server is not None  # noqa: S101 - the caller's promise
    replicas = sorted((folder / layout.REPLICAS).glob("replica-*"))
    each = [_read(replica, window) for replica in replicas]
    every = Asked(
        np.concatenate([np.empty(0, REQUEST), *(one.requests for one in each)]),
        np.concatenate([np.empty(0, REQUEST), *(one.under_way for one in each)]),
        np.concatenate([np.empty(0, GAP), *(one.gaps for one in each)]),
        sum(one.intended for one in each),
    )
    results = _figures(every, window)
    judged = judge_slo(experiment, every, window)
    content = {
        "schema_version": 1,
        "experiment": experiment.experiment_id,
        "protocol": server.protocol.value,
        "load": server.load_in_words(),
        "replicas": experiment.replicas,
        "results": results,
        "by_server": {path.name: _figures(one, window) for path, one in zip(replicas, each, strict=True)},
        **({"slo": judged.to_dict()} if judged else {}),
    }
    findings = [
        *_failures(every, statuses),
        *_load(server, every, results),
        *_too_long(server, every),
        *_not_judged(server, statuses),
    ]
    if judged is not None:
        findings.append(Finding(Severity.INFO, ReasonCode.SLO, "", judged.sentence()))
    return content, findings


def objectives(campaign: Path) -> dict[str, dict[str, Any]]:
    """What came of the objective in each finished experiment of a campaign, by the experiment's name; as in ``server.json``.

    Raises StorageError or ResultsPathError where one cannot be read.
    """
    files = [folder / FILE_NAME for folder in layout.experiment_folders(campaign)]
    contents = {file.parent.name: read_object(file) for file in files if file.is_file()}
    return {name: content["slo"] for name, content in contents.items() if "slo" in content}


def judge_slo(experiment: ExperimentSpec, asked: Asked, window: Window) -> Judged | None:
    """Hold the requests against the campaign's objective; None where it has none."""
    slo = experiment.slo
    if slo is None:
        return None
    every, gaps = asked.every, asked.gaps
    well, abandoned = every["status"] == OK, every["status"] == ABANDONED
    of_requests = every["intended_ns"], _ended_ns(every)
    in_vain = _in_vain(every) & (not experiment.workload.open_loop)  # a rate asks on
    samples, met = [], well.copy()
    for name, field, limit_ms in (
        ("ttft_p99_ms", "ttft_ns", slo.ttft_p99_ms),
        ("latency_p99_ms", "latency_ns", slo.latency_p99_ms),
    ):
        if limit_ms is not None:
            limit_ns = limit_ms * NS_PER_MS
            met &= every[field] <= limit_ns
            known = well | (abandoned & (field == "ttft_ns") & (every["ttft_ns"] >= 0))
            within = known & (every[field] <= limit_ns)
            undecided = abandoned & ~known & (every["latency_ns"] <= limit_ns)
            missed = ~within & ~undecided
            samples.append(Sample(name, limit_ms, every[field][known], *of_requests, missed, undecided, in_vain))
    if slo.itl_p99_ms is not None:
        limit_ns = slo.itl_p99_ms * NS_PER_MS
        met &= every["itl_p99_ns"] <= limit_ns
        above, cut = gaps["gap_ns"] > limit_ns, gaps["status"] != OK
        undecided = (gaps["status"] == ABANDONED) & ~above
        of_gaps, missed = (gaps["end_ns"] - gaps["gap_ns"], gaps["end_ns"]), (above | cut) & ~undecided
        closed_ns = gaps["gap_ns"][~cut]
        samples.append(Sample("itl_p99_ms", slo.itl_p99_ms, closed_ns, *of_gaps, missed, undecided, _in_vain(gaps)))
    if slo.error_rate is not None:
        samples.append(Sample("error_rate", slo.error_rate, None, *of_requests, ~well & ~abandoned, abandoned, in_vain))
    goodput = int(met[: len(asked.requests)].sum())
    return judge(samples, window, goodput_per_s=goodput / window.duration_s)


def _in_vain(records: Array) -> npt.NDArray[np.bool_]:
    """Which ended without anything from the server."""
    found: npt.NDArray[np.bool_] = np.isin(records["status"], (UNANSWERED, ABANDONED))
    return found


def _ended_ns(requests: Array) -> Array:
    ended: Array = requests["intended_ns"] + requests["latency_ns"]
    return ended


def _read(replica: Path, window: Window) -> Asked:
    log = replica / REQUESTS_LOG
    if not log.is_file():
        return Asked(np.empty(0, REQUEST), np.empty(0, REQUEST), np.empty(0, GAP), 0)
    with storage_errors(log, "read"):
        every = np.fromfile(log, dtype=REQUEST, count=log.stat().st_size // REQUEST.itemsize)
    ended_ns = _ended_ns(every)
    return Asked(
        every[window.holds(ended_ns)],
        every[_under_way(every["intended_ns"], ended_ns, window)],
        _gaps(latencies.read(replica / GAPS_LOG), every, window),
        int(window.holds(every["intended_ns"]).sum()),
    )


def _gaps(records: Array, requests: Array, window: Window) -> Array:
    gaps = np.empty(len(records), GAP)
    gaps["end_ns"] = latencies.ended_ns(records)
    gaps["gap_ns"] = records["latency_ns"]
    gaps["status"] = OK
    failed = requests[requests["status"] != OK]
    for status in np.unique(failed["status"]):
        last = np.isin(gaps["end_ns"], _ended_ns(failed[failed["status"] == status]))
        gaps["status"][last] = status
    return gaps[window.holds(gaps["end_ns"]) | _under_way(records["start_ns"], gaps["end_ns"], window)]


def _under_way(begin_ns: Array, end_ns: Array, window: Window) -> npt.NDArray[np.bool_]:
    """What had begun and not ended when the recording ended."""
    over_ns = window.end_s * NS_PER_S
    found: npt.NDArray[np.bool_] = (begin_ns < over_ns) & (end_ns >= over_ns)
    return found


def _figures(asked: Asked, window: Window) -> dict[str, Any]:
    """The figures of one server or of all, under their names in the file."""
    requests, well, seconds = asked.requests, asked.well, window.duration_s
    closed = (asked.gaps["status"] == OK) & window.holds(asked.gaps["end_ns"])
    return {
        "duration_s": round(seconds, 6),
        "requests": len(well),
        "intended_per_s": round(asked.intended / seconds, 6),
        "achieved_per_s": round(len(well) / seconds, 6),
        "failed": _statuses(requests),
        "under_way_at_end": len(asked.under_way),
        "abandoned": int((asked.under_way["status"] == ABANDONED).sum()),
        "latency_ms": percentiles_ms(well["latency_ns"]),
        "ttft_ms": percentiles_ms(well["ttft_ns"][well["ttft_ns"] >= 0]),
        "itl_ms": percentiles_ms(asked.gaps["gap_ns"][closed]),
        "send_error_ms": percentiles_ms(requests["send_error_ns"]),
        "input_tokens_per_s": round(int(well["input_tokens"].clip(0).sum()) / seconds, 6),
        "output_tokens_per_s": round(int(well["output_tokens"].clip(0).sum()) / seconds, 6),
    }


def _statuses(requests: Array) -> dict[str, int]:
    """How many were not answered well, by status."""
    failed = Counter(requests["status"][requests["status"] != OK].tolist())
    return {str(status): count for status, count in sorted(failed.items())}


def _not_judged(server: ServerSpec, statuses: Sequence[Mapping[str, Any]]) -> list[Finding]:
    if server.image:
        return _unseen(statuses)
    if not server.url:
        return []
    message = (
        "Not judged: where these servers compute and how they share a GPU, for they ran already and the harness set nothing of it. "
        f"What is recorded of this machine is {'not theirs' if server.elsewhere else 'not theirs alone'}."
    )
    return [Finding(Severity.INFO, ReasonCode.NOT_JUDGED, "", message)]


def _unseen(statuses: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Of servers in pods, what the clients beside them could not see."""
    hidden = {
        "whether it computes on a GPU": [one["replica"] for one in statuses if not one.get("device")],
        "whether it is a client of MPS": [one["replica"] for one in statuses if one.get("mps_pipe_directory") is None],
    }
    return [
        Finding(
            Severity.INFO,
            ReasonCode.NOT_JUDGED,
            "",
            f"Not judged: {what}, of the server of replica {', '.join(map(str, replicas))}, whose processes the client beside it "
            "may not see. What the node shows is all that is known.",
        )
        for what, replicas in hidden.items()
        if replicas
    ]


def _failures(asked: Asked, statuses: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What got no proper answer; of what was abandoned, only what no answer took half as long as."""
    every = asked.every
    hung = every["latency_ns"] > HUNG * every["latency_ns"][every["status"] == OK].max(initial=0)
    failed = _statuses(every[(every["status"] != ABANDONED) | hung])
    if not failed:
        return []
    said = next((text for each in statuses if (text := each.get("load", {}).get("first_failure"))), "")
    kinds = ", ".join(f"{count} x {status}" for status, count in failed.items())
    message = (
        f"{sum(failed.values())} of {len(every)} requests failed ({kinds}; 0: no connection, -1: none in time, "
        f"-2: not a proper answer, -3: none yet when the load ended). The first: {said or 'unknown'}."
    )
    return [Finding(Severity.DEGRADED, ReasonCode.REQUESTS_FAILED, "", message, "Look at the servers' logs.")]


def _too_long(server: ServerSpec, asked: Asked) -> list[Finding]:
    """Answers have more tokens than any request has asked for."""
    length = server.requests.output_tokens
    if server.trace or server.requests.file or not _LIMITS.isdisjoint(server.extra_body):
        return []  # the most that was asked for is not in the campaign file
    most = length.max if length.stddev else min(max(round(length.mean), length.min), length.max)
    longer = int((asked.well["output_tokens"] > most).sum())
    if server.protocol not in OPENAI or longer <= LONG_SHARE * len(asked.well):
        return []
    message = (
        f"{longer} of {len(asked.well)} answers have more tokens than the {most} that were asked for at most: the server ignores "
        "`max_tokens`, and its latencies are those of longer answers."
    )
    advice = "Limit the answers where the server is started, or ask with the field that it reads, in `extra_body`."
    return [Finding(Severity.DEGRADED, ReasonCode.SETTING_IGNORED, "", message, advice)]


def _load(server: ServerSpec, asked: Asked, results: Mapping[str, Any]) -> list[Finding]:
    """The rate was not held, or the client itself was late."""
    findings = []
    missing = asked.intended - results["requests"] - sum(results["failed"].values())
    if server.open_loop and missing > max((1 - HELD_SHARE) * asked.intended, 3 * asked.intended**0.5):
        message = (
            f"The rate cannot be held: {results['intended_per_s']:.4g} requests per second were intended and "
            f"{results['achieved_per_s']:.4g} answered."
        )
        advice = "The throughput is what the servers can do; latencies grow as long as such a load lasts. Lower `rate`."
        findings.append(Finding(Severity.DEGRADED, ReasonCode.RATE_NOT_HELD, "throughput", message, advice))
    late_ms, latency_ms = results["send_error_ms"].get("p99"), results["latency_ms"].get("p99")
    if late_ms is not None and latency_ms is not None and late_ms > max(LATE_MS, LATE_SHARE * latency_ms):
        message = f"The client itself was late: {late_ms:.3g} ms at p99 of {len(asked.requests)} requests."
        advice = (
            "Leave it a free CPU core, raise `max_in_flight`, or lower the load; its lateness is part of the latencies."
        )
        findings.append(Finding(Severity.DEGRADED, ReasonCode.GENERATOR_LATE, "", message, advice))
    return findings
