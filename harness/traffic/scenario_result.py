"""``scenario.json``: an experiment's result in the shape of a benchmark's, with its validity and why.

MLPerf-like and never an MLPerf result. The figures are of the recording, from the raw logs; beside them stands what
LoadGen said of its own test, which lies within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ReasonCode, ResultsPathError
from harness.metrics.quality import Finding, Severity
from harness.results import layout
from harness.results.files import read_object, sha256_of, storage_errors
from harness.results.manifest import Provenance, read_manifest
from harness.spec import ExperimentSpec, ScenarioKind
from harness.traffic.figures import NS_PER_MS, Served, Window, of_generator, of_replicas, to_dict

NOTE = "MLPerf-like; not an MLPerf result."
FILE_NAME = "scenario.json"
LOAD_LOG = "load/requests.bin"
RULES_S = 600.0
"""MLPerf's rules ask for tests of at least this long."""
LIMIT_SHARE = 0.99
HELD_SHARE = 0.95
LATE_SHARE = 0.05
LATE_MS = 1.0
_LOADGEN = frozenset(ScenarioKind) - {ScenarioKind.HTTP}


def evaluate(
    experiment: ExperimentSpec,
    folder: Path,
    window: Window,
    *,
    statuses: Sequence[Mapping[str, Any]],
    provenance: Provenance,
) -> tuple[dict[str, Any], list[Finding]]:
    """The content of ``scenario.json``, and what it means for the verdict.

    Args:
        experiment: it has a scenario.
        folder: the attempt, before its logs become tables.
        window: the recording.
        statuses: what each replica said of itself at its end.
        provenance: of the machine.

    Raises:
        StorageError: a log cannot be read.
    """
    scenario = experiment.workload.scenario
    assert scenario is not None  # noqa: S101 - the caller's promise
    served = _served(scenario.kind, folder, window)
    results = to_dict(served, window, inputs_per_request=experiment.workload.inputs_per_request)
    if scenario.rate is not None:
        results = {"intended_per_s": scenario.rate * experiment.replicas, **results}
    if scenario.latency_limit_ms is not None and len(served.latency_ns):
        within = float((served.latency_ns <= scenario.latency_limit_ms * NS_PER_MS).mean())
        results |= {"within_limit": round(within, 6), "limit_met": within >= LIMIT_SHARE}
    tests = [_loadgen_test(status) for status in statuses] if scenario.kind in _LOADGEN else []
    findings = [*_rate_findings(experiment, served, results), *_generator_findings(served, results)]
    reasons = [*(finding.message for finding in findings), *_test_reasons(tests)]
    content = {
        "schema_version": 1,
        "note": NOTE,
        "timestamp": layout.iso(window.begin_s),
        "experiment": experiment.experiment_id,
        **_machine(provenance, statuses),
        **_work(experiment),
        "scenario": scenario.kind.value,
        "parameters": scenario.model_dump(mode="json", exclude_none=True, exclude={"kind"}),
        "results": results,
        "validity": {"valid": not reasons, "reasons": reasons},
        "loadgen": tests,
    }
    told = [
        Finding(Severity.INFO, ReasonCode.REMARK, "", f"MLPerf-like {scenario.kind.value}: {reason}")
        for reason in _test_reasons(tests)
    ]
    return content, [*findings, *told]


def read_scenarios(path: Path, *, say: Callable[[str], None] = lambda _note: None) -> list[dict[str, Any]]:
    """The ``scenario.json`` of every finished experiment of a campaign, or of one experiment.

    ``say`` is told of one that is damaged, and left out. Raises ResultsPathError where there is none, StorageError where
    one cannot be read.
    """
    if not path.is_dir():
        raise ResultsPathError(f"{path} is not a folder.", advice="Give the folder of a campaign or of an experiment.")
    folders = [path] if (path / layout.MANIFEST).is_file() else list(layout.experiment_folders(path))
    found: list[dict[str, Any]] = []
    damage: list[ResultsPathError] = []
    for folder in folders:
        file = folder / FILE_NAME
        with storage_errors(file, "read"):
            present = file.is_file()
        try:
            found += [_read(file)] if present else []
        except ResultsPathError as error:
            damage.append(error)
            say(f"{folder.name} is left out: {error.message}")
    if damage and not found:
        raise damage[0]
    if not found:
        raise ResultsPathError(
            f"{path} holds no experiment with a scenario.",
            advice="Give a workload of the campaign file a `scenario`; see docs/scenarios.md.",
        )
    return found


def _read(file: Path) -> dict[str, Any]:
    entry = read_manifest(file.parent).files.get(FILE_NAME)
    content = read_object(file)
    try:
        results = content["results"]
        numbers = [
            results.get("intended_per_s"),
            results["achieved_per_s"],
            results["throughput_samples_per_s"],
            *results["latency_ms"].values(),
        ]
        texts = [content["experiment"], content["scenario"], *content["validity"]["reasons"]]
        _ = {True: 0, False: 0, None: 0}[results.get("limit_met")], content["validity"]["valid"]
        whole = all(isinstance(number, int | float | None) for number in numbers) and all(
            isinstance(text, str) for text in texts
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsPathError(
            f"{file} is no {FILE_NAME} of this harness: {error}.", advice="Restore it from a backup."
        ) from error
    with storage_errors(file, "read"):
        same = entry is not None and sha256_of(file) == entry.sha256
    if not whole or not same:
        why = "the file was changed after it was written" if not same else "a figure is no number"
        raise ResultsPathError(f"{file} is damaged: {why}.", advice="Restore it from a backup.")
    return content


def _served(kind: ScenarioKind, folder: Path, window: Window) -> Served:
    replicas = sorted((folder / layout.REPLICAS).glob("replica-*"))
    services = [path / layout.SERVICES for path in replicas if (path / layout.SERVICES).is_file()]
    if kind is ScenarioKind.HTTP:
        return of_generator(folder / LOAD_LOG, services, window)
    logs = [path / layout.RAW_LATENCIES for path in replicas if (path / layout.RAW_LATENCIES).is_file()]
    return of_replicas(logs, services, window)


def _machine(provenance: Provenance, statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    gpus = provenance.used_by(statuses)
    gpu = gpus[0] if gpus else None
    return {
        "gpu_name": gpu.name if gpu else None,
        "gpus": len(gpus),
        "gpu_absent": provenance.gpus_absent,
        "gpu_memory_bytes": gpu.memory_bytes if gpu else None,
        "driver_version": gpu.driver if gpu else None,
        "cuda_version": gpu.cuda if gpu else None,
        "cpu_model": provenance.host.cpu_model,
    }


def _work(experiment: ExperimentSpec) -> dict[str, Any]:
    workload = experiment.workload
    return {
        "workload": workload.name,
        "model": workload.target,
        "batch_size": workload.batch_size,
        "precision": workload.precision.value,
        "execution": workload.execution.value,
        "replicas": experiment.replicas,
        "sharing": experiment.sharing.value,
        "mps_limits": experiment.cell.mps_limits,
        "time_slice": experiment.cell.time_slice,
    }


def _loadgen_test(status: Mapping[str, Any]) -> dict[str, Any]:
    """What LoadGen said of the test in one replica; empty when that had not ended."""
    test: dict[str, Any] = status.get("scenario", {}).get("rounds", {}).get("test", {})
    return dict(test)


def _test_reasons(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why LoadGen's tests are not valid, by LoadGen's word and by ours."""
    reasons = []
    for index, test in enumerate(tests):
        if not test:
            reasons.append(f"LoadGen's test in replica {index} had not ended when the recording did.")
            continue
        if test["validity"] != "VALID":
            why = " ".join(str(test.get(key, "")) for key in ("invalid_reason", "early_stopping_result")).split()
            reasons.append(f"LoadGen in replica {index} says {test['validity']}: {' '.join(why) or 'no reason given'}")
        if test["duration_s"] < RULES_S:
            reasons.append(
                f"the test in replica {index} lasted {test['duration_s']:.1f} s; MLPerf's rules ask for {RULES_S:g}."
            )
    return reasons


def _rate_findings(experiment: ExperimentSpec, served: Served, results: Mapping[str, Any]) -> list[Finding]:
    """The rate was not held, requests were refused, or the limit was broken."""
    scenario = experiment.workload.scenario
    assert scenario is not None  # noqa: S101 - the caller's promise
    findings = []
    # A generator that was lost sends nothing, and its requests are wanted all the same.
    wanted = max(results.get("intended_per_s", 0.0) * results["duration_s"], served.offered or 0.0)
    missing = wanted - served.completed
    refused = sum(count for status, count in served.statuses.items() if status == "429")
    if (
        scenario.open_loop
        and served.completed < HELD_SHARE * wanted
        and missing > 3 * math.sqrt(wanted)  # not by the chance of Poisson arrivals alone
    ):
        message = (
            f"The rate cannot be held: {wanted / results['duration_s']:.4g} requests per second were intended and "
            f"{results['achieved_per_s']:.4g} answered{f'; {refused} were refused (429, queue full)' if refused else ''}."
        )
        findings.append(
            Finding(
                Severity.DEGRADED,
                ReasonCode.RATE_NOT_HELD,
                "throughput",
                message,
                "The throughput is what the replicas can do; latencies grow as long as such a load lasts. Lower `rate`.",
            )
        )
    elif refused:
        message = f"{refused} requests were refused (429, queue full)."
        findings.append(Finding(Severity.INFO, ReasonCode.REQUESTS_REFUSED, "", message))
    failed = sum(count for status, count in served.statuses.items() if status not in {"200", "429"})
    if failed:
        findings.append(
            Finding(
                Severity.DEGRADED,
                ReasonCode.REQUESTS_FAILED,
                "",
                f"{failed} of {sum(served.statuses.values())} requests got no proper answer: {results['statuses']} (0: no connection, -1: none in time).",
                "Look at the replicas' logs.",
            )
        )
    if results.get("limit_met") is False:
        findings.append(
            Finding(
                Severity.INFO,
                ReasonCode.LATENCY_LIMIT,
                "",
                f"The latency limit is broken: {results['within_limit']:.2%} of the requests were answered within "
                f"{scenario.latency_limit_ms:g} ms, and 99 % must be.",
            )
        )
    return findings


def _generator_findings(served: Served, results: Mapping[str, Any]) -> list[Finding]:
    """The generator was late by more than what can be neglected."""
    late_ms = results.get("send_error_ms", {}).get("p99")
    latency_ms = results["latency_ms"].get("p99")
    if late_ms is None or latency_ms is None or late_ms <= max(LATE_MS, LATE_SHARE * latency_ms):
        return []
    return [
        Finding(
            Severity.DEGRADED,
            ReasonCode.GENERATOR_LATE,
            "",
            f"The load generator itself was late: {late_ms:.3g} ms at p99 of {len(served.send_error_ns)} requests.",
            "Give it a free CPU core, more `max_clients`, or a lower `rate`; its lateness is part of the latencies.",
        )
    ]
