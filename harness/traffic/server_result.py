"""``server.json``: what the clients saw of servers of the user's own, and whether that meets the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config import ExperimentSpec, ServerSpec
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.results import latencies, layout
from harness.results.files import read_object, storage_errors
from harness.traffic.figures import NS_PER_MS, Window, percentiles_ms
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
OK = 200
HELD_SHARE = 0.95
LATE_MS, LATE_SHARE = 1.0, 0.05

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests and gaps that ended in the recording, of all servers, and how many requests were meant to be sent in it."""

    requests: Array
    gaps: Array
    intended: int

    @property
    def well(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered well."""
        answered: npt.NDArray[np.bool_] = self.requests["status"] == OK
        return answered

    @property
    def ended_ns(self) -> Array:
        """When each request ended."""
        ended: Array = self.requests["intended_ns"] + self.requests["latency_ns"]
        return ended


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
        np.concatenate([np.empty(0, latencies.RECORD), *(one.gaps for one in each)]),
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
    findings = [*_failures(every, statuses), *_load(server, every, results)]
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
    requests, well = asked.requests, asked.well
    samples, met = [], well.copy()
    for name, field, limit_ms in (
        ("ttft_p99_ms", "ttft_ns", slo.ttft_p99_ms),
        ("latency_p99_ms", "latency_ns", slo.latency_p99_ms),
    ):
        if limit_ms is not None:
            within = well & (requests[field] <= limit_ms * NS_PER_MS)
            met &= within
            samples.append(Sample(name, limit_ms, requests[field][well], asked.ended_ns, ~within))
    if slo.itl_p99_ms is not None:
        limit_ns = slo.itl_p99_ms * NS_PER_MS
        met &= requests["itl_p99_ns"] <= limit_ns
        gaps = asked.gaps
        ended_ns = gaps["start_ns"] + gaps["latency_ns"]
        samples.append(
            Sample("itl_p99_ms", slo.itl_p99_ms, gaps["latency_ns"], ended_ns, gaps["latency_ns"] > limit_ns)
        )
    if slo.error_rate is not None:
        samples.append(Sample("error_rate", slo.error_rate, None, asked.ended_ns, ~well))
    return judge(samples, window, goodput_per_s=int(met.sum()) / window.duration_s)


def _read(replica: Path, window: Window) -> Asked:
    log = replica / REQUESTS_LOG
    if not log.is_file():
        return Asked(np.empty(0, REQUEST), np.empty(0, latencies.RECORD), 0)
    with storage_errors(log, "read"):
        every = np.fromfile(log, dtype=REQUEST, count=log.stat().st_size // REQUEST.itemsize)
    gaps = latencies.read(replica / GAPS_LOG)
    return Asked(
        every[window.holds(every["intended_ns"] + every["latency_ns"])],
        gaps[window.holds(gaps["start_ns"] + gaps["latency_ns"])],
        int(window.holds(every["intended_ns"]).sum()),
    )


def _figures(asked: Asked, window: Window) -> dict[str, Any]:
    """The figures of one server or of all, under their names in the file."""
    requests, seconds = asked.requests, window.duration_s
    well = requests[asked.well]
    failed = requests["status"][~asked.well]
    return {
        "duration_s": round(seconds, 6),
        "requests": len(well),
        "intended_per_s": round(asked.intended / seconds, 6),
        "achieved_per_s": round(len(well) / seconds, 6),
        "failed": {str(status): count for status, count in sorted(Counter(failed.tolist()).items())},
        "latency_ms": percentiles_ms(well["latency_ns"]),
        "ttft_ms": percentiles_ms(well["ttft_ns"][well["ttft_ns"] >= 0]),
        "itl_ms": percentiles_ms(asked.gaps["latency_ns"]),
        "send_error_ms": percentiles_ms(requests["send_error_ns"]),
        "input_tokens_per_s": round(int(well["input_tokens"].clip(0).sum()) / seconds, 6),
        "output_tokens_per_s": round(int(well["output_tokens"].clip(0).sum()) / seconds, 6),
    }


def _failures(asked: Asked, statuses: Sequence[Mapping[str, Any]]) -> list[Finding]:
    failed = Counter(asked.requests["status"][~asked.well].tolist())
    if not failed:
        return []
    said = next((text for each in statuses if (text := each.get("load", {}).get("first_failure"))), "")
    kinds = ", ".join(f"{count} x {status}" for status, count in sorted(failed.items()))
    message = (
        f"{failed.total()} of {len(asked.requests)} requests failed ({kinds}; 0: no connection, -1: none in time, "
        f"-2: not a proper answer). The first: {said or 'unknown'}."
    )
    return [Finding(Severity.DEGRADED, ReasonCode.REQUESTS_FAILED, "", message, "Look at the servers' logs.")]


def _load(server: ServerSpec, asked: Asked, results: Mapping[str, Any]) -> list[Finding]:
    """The rate was not held, or the client itself was late."""
    findings = []
    missing = asked.intended - results["requests"] - sum(results["failed"].values())
    if server.rate is not None and missing > max((1 - HELD_SHARE) * asked.intended, 3 * asked.intended**0.5):
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
