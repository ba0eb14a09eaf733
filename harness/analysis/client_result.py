"""What whoever asked saw in one run, beside the metrics: how far its load can be trusted, and the files that say so.

``scenario.json`` is the result of a scenario in the shape of a benchmark's, MLPerf-like and never an MLPerf result; beside it
stands what LoadGen said of its own test, which lies within the recording. ``server.json`` is that of servers of the user's
own. ``slo.json`` is what came of the objective of any other workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis import objective
from harness.analysis.answers import findings_of_answers, remark, token_sources
from harness.analysis.read import ClientRequests, count_statuses, read_requests
from harness.errors import ReasonCode, ResultsPathError, counted
from harness.metrics.quality import Finding, Severity
from harness.results import layout
from harness.results.files import read_object, sha256_of, storage_errors
from harness.results.manifest import Provenance, read_manifest
from harness.results.requests import (
    LATENCY,
    NS_PER_MS,
    ROW,
    RequestTable,
    Window,
    latency_ns,
    read,
    records_of,
    to_rows,
)
from harness.spec import ExperimentSpec, ScenarioKind, ServerSpec
from harness.spec.server import LANGUAGE
from harness.traffic.records import ABANDONED, OK

NOTE = "MLPerf-like; not an MLPerf result."
SCENARIO, SERVER, SLO = "scenario.json", objective.SERVER_FILE_NAME, objective.FILE_NAME
RULES_S = 600.0
"""MLPerf's rules ask for tests of at least this long."""
LIMIT_SHARE = 0.99
HELD_SHARE = 0.95
LATE_MS, LATE_SHARE = 1.0, 0.05
LONG_SHARE = 0.05
REFUSED = 429
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "max_output_tokens", "options", "parameters"})
"""Fields of a user's own body that say how long an answer may be."""
HUNG = 2.0
"""A request has no answer after so many times the longest one's: the server hangs."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClientResult:
    """Contents of files by name, and what they mean for the verdict."""

    files: Mapping[str, Document]
    findings: Sequence[Finding]


def evaluate(
    experiment: ExperimentSpec,
    folder: Path,
    window: Window,
    *,
    statuses: Sequence[Mapping[str, Any]],
    provenance: Provenance,
) -> ClientResult:
    """What the requests of an attempt in this folder say of scenario, server and objective.

    ``statuses``: what each replica said of itself at its end. Raises ResultsPathError where a log is not ours, StorageError where it
    cannot be read.
    """
    workload = experiment.workload
    if workload.scenario is None and workload.server is None and experiment.slo is None:
        return ClientResult({}, [])
    table = read(folder) or RequestTable(np.empty(0, ROW), ())
    requests = read_requests(table, folder, window)
    slo: Document = {}
    looks = len(objective.look_times(experiment.timing))
    if judged := objective.judge_experiment(experiment, folder, requests, looks):
        slo = {"slo": judged.to_dict() | ({"looks": looks} if looks > 1 else {})}
    files: dict[str, Document] = {}
    findings: list[Finding] = []
    if workload.scenario is not None:
        files[SCENARIO], findings = _scenario(experiment, folder, requests, statuses, provenance, slo)
    head = {"schema_version": 1, "experiment": experiment.experiment_id}
    if workload.server is not None:
        by_server = {
            path.name: _figures(read_requests(table, folder, window, int(path.name.rpartition("-")[2])))
            for path in sorted((folder / layout.REPLICAS).glob("replica-*"))
        }
        about = {"protocol": workload.server.protocol.value, "load": workload.server.load_in_words()}
        results = {"replicas": experiment.replicas, "results": _figures(requests), "by_server": by_server}
        files[SERVER] = {**head, **about, **results, **slo}
        findings = [*_server_findings(workload.server, requests, statuses, slo)]
    elif slo:
        files[SLO] = {**head, **slo}
    if slo:
        findings = [*findings, Finding(Severity.INFO, ReasonCode.SLO, "", slo["slo"]["said"])]
    return ClientResult(files, findings)


def read_scenarios(path: Path, *, say: Callable[[str], None] = lambda _note: None) -> list[Document]:
    """The ``scenario.json`` of every finished experiment of a campaign, or of one experiment.

    ``say`` is told of one that is damaged, and left out. Raises ResultsPathError where there is none, StorageError where
    one cannot be read.
    """
    if not path.is_dir():
        raise ResultsPathError(f"{path} is not a folder.", advice="Give the folder of a campaign or of an experiment.")
    folders = [path] if (path / layout.MANIFEST).is_file() else list(layout.experiment_folders(path))
    documents: list[Document] = []
    damage: list[ResultsPathError] = []
    for file in (folder / SCENARIO for folder in folders):
        with storage_errors(file, "read"):
            if not file.is_file():
                continue
        try:
            documents.append(_read_scenario(file))
        except ResultsPathError as error:
            damage.append(error)
            say(f"{file.parent.name} is left out: {error.message}")
    if damage and not documents:
        raise damage[0]
    if not documents:
        raise ResultsPathError(
            f"{path} holds no experiment with a scenario.",
            advice="Give a workload of the campaign file a `scenario`; see docs/scenarios.md.",
        )
    return documents


def _read_scenario(file: Path) -> Document:
    entry = read_manifest(file.parent).files.get(SCENARIO)
    with storage_errors(file, "read"):
        same = entry is not None and sha256_of(file) == entry.sha256
    if not same:
        raise ResultsPathError(
            f"{file} is damaged: the file was changed after it was written.", advice="Restore it from a backup."
        )
    content = read_object(file)
    if not _is_scenario(content):
        raise ResultsPathError(f"{file} is no {SCENARIO} of this harness.", advice="Restore it from a backup.")
    return content


def _is_scenario(content: Document) -> bool:
    """Whether it has what readers take for granted: a hash says that a file is the author's, not that it is right."""
    try:
        results = content["results"]
        numbers = [results.get("intended_per_s"), results["achieved_per_s"], results["throughput_samples_per_s"]]
        texts = [content["experiment"], content["scenario"], *content["validity"]["reasons"]]
        flags = [results.get("limit_met"), content["validity"]["valid"]]
        return (
            all(isinstance(number, int | float | None) for number in (*numbers, *results["latency_ms"].values()))
            and all(isinstance(text, str) for text in texts)
            and all(isinstance(flag, bool | None) for flag in flags)
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _scenario(
    experiment: ExperimentSpec,
    folder: Path,
    requests: ClientRequests,
    statuses: Sequence[Mapping[str, Any]],
    provenance: Provenance,
    slo: Document,
) -> tuple[Document, list[Finding]]:
    scenario, workload = experiment.workload.scenario, experiment.workload
    assert scenario is not None  # noqa: S101 - the caller's promise
    seconds, of_http, completed = requests.window.duration_s, scenario.kind is ScenarioKind.HTTP, len(requests.well)
    # The times that the model took, as if they were requests.
    logs = sorted((folder / layout.REPLICAS).glob(f"replica-*/{layout.SERVICES}"))
    served = [to_rows(records_of(log, LATENCY), number) for number, log in enumerate(logs)]
    service = RequestTable(np.concatenate([np.empty(0, ROW), *served]), ())
    results: Document = {} if scenario.rate is None else {"intended_per_s": scenario.rate * experiment.replicas}
    results |= {
        "duration_s": round(seconds, 6),
        "requests": completed,
        "offered_per_s": round(requests.intended / seconds, 6) if of_http else None,
        "achieved_per_s": round(completed / seconds, 6),
        "throughput_samples_per_s": round(completed * workload.inputs_per_request / seconds, 6),
        "latency_ms": requests.milliseconds("latency"),
        "service_ms": read_requests(service, folder, requests.window).milliseconds("latency"),
    }
    codes = requests.rows["status"]
    if of_http and len(requests.rows):
        results |= {
            "send_error_ms": requests.milliseconds("send_error"),
            "statuses": count_statuses(requests.rows),
        }
    answered = requests.rows[~((codes > 0) & (codes != OK))]  # refusals have no latency
    if scenario.latency_limit_ms is not None and len(answered):
        good = (answered["status"] == OK) & (latency_ns(answered) <= scenario.latency_limit_ms * NS_PER_MS)
        results |= {"within_limit": round(float(good.mean()), 6), "limit_met": bool(good.mean() >= LIMIT_SHARE)}
    # What LoadGen said of the test in each replica; empty where that had not ended.
    tests = (
        [] if of_http else [dict(status.get("scenario", {}).get("rounds", {}).get("test", {})) for status in statuses]
    )
    findings = [*_scenario_findings(experiment, requests, results), *_late(requests, results, "load generator", slo)]
    of_tests = list(_test_reasons(tests))
    reasons = [*(finding.message for finding in findings), *of_tests]
    gpus = provenance.used_by(statuses)
    gpu = gpus[0] if gpus else None
    content = {
        "schema_version": 1,
        "note": NOTE,
        "timestamp": layout.iso(requests.window.begin_s),
        "experiment": experiment.experiment_id,
        "gpu_name": gpu and gpu.name,
        "gpus": len(gpus),
        "gpu_absent": provenance.gpus_absent,
        "gpu_memory_bytes": gpu and gpu.memory_bytes,
        "driver_version": gpu and gpu.driver,
        "cuda_version": gpu and gpu.cuda,
        "cpu_model": provenance.host.cpu_model,
        "workload": workload.name,
        "model": workload.target,
        "batch_size": workload.batch_size,
        "precision": workload.precision,
        "execution": workload.execution.value,
        "replicas": experiment.replicas,
        "sharing": experiment.sharing.value,
        "mps_limits": experiment.cell.mps_limits,
        "time_slice": experiment.cell.time_slice,
        "scenario": scenario.kind.value,
        "parameters": scenario.model_dump(mode="json", exclude_none=True, exclude={"kind"}),
        "results": results,
        "validity": {"valid": not reasons, "reasons": reasons},
        "loadgen": tests,
    }
    remarks = [remark(ReasonCode.REMARK, f"MLPerf-like {scenario.kind.value}: {reason}") for reason in of_tests]
    return content, [*findings, *remarks]


def _test_reasons(tests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why LoadGen's tests are not valid, by LoadGen's word and by ours."""
    for index, test in enumerate(tests):
        if not test:
            yield f"LoadGen's test in replica {index} had not ended when the recording did."
            continue
        if test["validity"] != "VALID":
            why = " ".join(str(test.get(key, "")) for key in ("invalid_reason", "early_stopping_result")).split()
            yield f"LoadGen in replica {index} says {test['validity']}: {' '.join(why) or 'no reason given'}"
        if test["duration_s"] < RULES_S:
            yield f"the test in replica {index} lasted {test['duration_s']:.1f} s; MLPerf's rules ask for {RULES_S:g}."


def _scenario_findings(
    experiment: ExperimentSpec, requests: ClientRequests, results: Mapping[str, Any]
) -> Iterator[Finding]:
    """The rate was not held, requests were refused, or the limit was broken."""
    scenario = experiment.workload.scenario
    assert scenario is not None  # noqa: S101 - the caller's promise
    failed = requests.failed
    refused = failed.pop(str(REFUSED), 0)
    # A generator that was lost sends nothing, and its requests are wanted all the same.
    offered = requests.intended if results["offered_per_s"] is not None else 0
    wanted = max(results.get("intended_per_s", 0.0) * results["duration_s"], offered)
    unheld = list(_rate_not_held(wanted, results, refused=refused)) if scenario.open_loop else []
    yield from unheld
    if refused and not unheld:
        yield remark(ReasonCode.REQUESTS_REFUSED, f"{refused} requests were refused (429, queue full).")
    yield from _failed(failed, len(requests.rows), "replicas")
    if results.get("limit_met") is False:
        yield remark(
            ReasonCode.LATENCY_LIMIT,
            f"The latency limit is broken: {results['within_limit']:.2%} of the requests were answered within "
            f"{scenario.latency_limit_ms:g} ms, and 99% must be.",
        )


def _rate_not_held(
    wanted: float, results: Mapping[str, Any], *, refused: int = 0, otherwise: int = 0
) -> Iterator[Finding]:
    """Fewer were answered than were wanted, by more than chance; ``otherwise``: how many others were answered in another way."""
    if wanted - results["requests"] - otherwise > max((1 - HELD_SHARE) * wanted, 3 * math.sqrt(wanted)):
        message = (
            f"The rate cannot be held: {wanted / results['duration_s']:.4g} requests per second were intended and "
            f"{results['achieved_per_s']:.4g} answered{f'; {refused} were refused (429, queue full)' if refused else ''}."
        )
        advice = (
            "The throughput is what the replicas can do; latencies grow as long as such a load lasts. Lower `rate`."
        )
        yield Finding(Severity.DEGRADED, ReasonCode.RATE_NOT_HELD, "throughput", message, advice)


def _failed(failed: Mapping[str, int], requests: int, whose: str, first: str = "") -> Iterator[Finding]:
    """So many got no proper answer, by status."""
    if failed:
        kinds = ", ".join(f"{count} x {status}" for status, count in failed.items())
        message = (
            f"{sum(failed.values())} of {requests} requests failed ({kinds}; 0: no connection, -1: none in time, "
            f"-2: not a proper answer, -3: none yet when the load ended).{f' The first: {first}.' if first else ''}"
        )
        yield Finding(Severity.DEGRADED, ReasonCode.REQUESTS_FAILED, "", message, f"Look at the {whose}' logs.")


def _late(requests: ClientRequests, results: Mapping[str, Any], who: str, slo: Document) -> list[Finding]:
    """Whoever sends was late by more than what can be neglected beside the latency, the first token and the limits, or decides one."""
    late_ms = results.get("send_error_ms", {}).get("p99")
    times_ms = [
        p99 for what in ("latency_ms", "ttft_ms", "ttfo_ms") if (p99 := results.get(what, {}).get("p99")) is not None
    ]
    parts = slo["slo"]["parts"] if slo else {}
    times_ms += [part["limit"] for name, part in parts.items() if name.startswith(("latency", "ttf"))]
    decided = objective.decided_by_lateness(slo["slo"]) if slo else []
    neglected = late_ms is None or not times_ms or late_ms <= max(LATE_MS, LATE_SHARE * min(times_ms))
    if neglected and not decided:
        return []
    how_late = "" if late_ms is None else f": {late_ms:.3g} ms at p99 of {len(requests.rows)} requests"
    message = f"The {who} itself was late{how_late}."
    if decided:
        message += f" That decides {', '.join(map(objective.title_of, decided))} of the objective."
    advice = (
        "Give it a free CPU core, a lower `rate`, or more requests in flight (`max_clients`, `max_in_flight`); its lateness is "
        "part of the latencies."
    )
    return [Finding(Severity.DEGRADED, ReasonCode.GENERATOR_LATE, "", message, advice)]


def _figures(requests: ClientRequests) -> Document:
    """The metrics of one server or of all, under their names in ``server.json``."""
    seconds = requests.window.duration_s
    return {
        "duration_s": round(seconds, 6),
        "requests": len(requests.well),
        "intended_per_s": round(requests.intended / seconds, 6),
        "achieved_per_s": round(len(requests.well) / seconds, 6),
        "failed": requests.failed,
        "under_way_at_end": len(requests.under_way),
        "abandoned": int((requests.under_way["status"] == ABANDONED).sum()),
        "cancelled": requests.cancelled,
        "not_sent": requests.not_sent,
        **{
            f"{what}_ms": requests.milliseconds(what)
            for what in ("latency", "ttft", "ttfo", "tpot", "itl", "send_error")
        },
        "token_sources": token_sources(requests.well),
        "input_tokens_per_s": round(requests.input_tokens_per_s, 6),
        "output_tokens_per_s": round(requests.output_tokens_per_s, 6),
    }


def _server_findings(
    server: ServerSpec, requests: ClientRequests, statuses: Sequence[Mapping[str, Any]], slo: Document
) -> Iterator[Finding]:
    results, every = _figures(requests), requests.every
    # Of what was abandoned, only what no answer took half as long as has failed.
    hung = latency_ns(every) > HUNG * latency_ns(every[every["status"] == OK]).max(initial=0)
    failed = count_statuses(every[(every["status"] != OK) & ((every["status"] != ABANDONED) | hung)])
    first = next((text for status in statuses if (text := status.get("load", {}).get("first_failure"))), "unknown")
    yield from _failed(failed, len(every), "servers", first)
    if server.open_loop:
        yield from _rate_not_held(requests.intended, results, otherwise=sum(requests.failed.values()))
    yield from _late(requests, results, "client", slo)
    yield from _set_aside(requests)
    if repeated := sum(status.get("load", {}).get("repeated", 0) for status in statuses):
        yield remark(
            ReasonCode.REMARK,
            f"{counted(repeated, 'request')} sent once more, because the server had closed the kept connection: their latencies hold both.",
        )
    yield from _too_long(server, requests)
    yield from findings_of_answers(requests)
    if server.image:  # the clients beside the servers could not see everything
        hidden = {
            "whether it computes on a GPU": [status for status in statuses if not status.get("device")],
            "whether it is a client of MPS": [
                status for status in statuses if status.get("mps_pipe_directory") is None
            ],
        }
        for what, unseen in hidden.items():
            if unseen:
                yield remark(
                    ReasonCode.NOT_JUDGED,
                    f"Not judged: {what}, of the server of replica {', '.join(str(status['replica']) for status in unseen)}, whose "
                    "processes the client beside it may not see. What the node shows is all that is known.",
                )
    elif server.url:
        yield remark(
            ReasonCode.NOT_JUDGED,
            "Not judged: where these servers compute and how they share a GPU, for they ran already and the harness set nothing of "
            f"it. What is recorded of this machine is {'not theirs' if server.elsewhere else 'not theirs alone'}.",
        )


def _set_aside(requests: ClientRequests) -> Iterator[Finding]:
    """What counts neither as a success nor as a failure."""
    if requests.cancelled:
        yield remark(
            ReasonCode.REMARK,
            f"{counted(requests.cancelled, 'request')} cancelled by the client, as `requests.cancel` says: neither successes nor failures.",
        )
    if requests.not_sent:
        yield remark(
            ReasonCode.REMARK,
            f"{counted(requests.not_sent, 'turn')} of sessions not sent, because a turn before them failed or was cancelled.",
        )


def _too_long(server: ServerSpec, requests: ClientRequests) -> list[Finding]:
    """Answers have more tokens than any request has asked for."""
    length = server.requests.output_tokens
    if server.trace or server.requests.file or not _LIMITS.isdisjoint(server.extra_body):
        return []  # the most that was asked for is not in the campaign file
    most = length.max if length.stddev else min(max(round(length.mean), length.min), length.max)
    longer = int((requests.well["output_tokens"] > most).sum())
    if server.protocol not in LANGUAGE or longer <= LONG_SHARE * len(requests.well):
        return []
    message = (
        f"{longer} of {len(requests.well)} answers have more tokens than the {most} that were asked for at most: the server ignores "
        "`max_tokens`, and its latencies are those of longer answers."
    )
    advice = "Limit the answers where the server is started, or ask with the field that it reads, in `extra_body`."
    return [Finding(Severity.DEGRADED, ReasonCode.SETTING_IGNORED, "", message, advice)]
