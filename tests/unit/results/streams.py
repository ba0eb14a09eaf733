"""Campaigns of servers whose answers are streams, with request tables of known content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.campaign.plan import expand
from harness.results.layout import attempt_folder, iso, replica_folder, replica_log
from harness.results.requests import ANSWER, ANSWERS_LOG, CLIENT, CLIENT_LOG, GAP, GAPS_LOG
from harness.results.writers import ExperimentWriter, finalise
from harness.spec import CampaignSpec, ExperimentSpec
from harness.traffic.records import TokenSource
from tests.unit.results import synthetic
from tests.unit.results.synthetic import METRICS, START_S, Shape, manifest_for

TOKENS, OF_REASONING = 21, 5
Streams = tuple[np.ndarray, np.ndarray]
"""Milliseconds to the first token, and per token after it, of the answers of one replica, which end one after another."""


def write_streams(folder: Path, spec: CampaignSpec, answers: Callable[[ExperimentSpec, int], Streams]) -> Path:
    """The campaign, finished; ``answers``: of each replica of an experiment, evenly over the recording, of 21 tokens each, of which five are reasoning."""
    folder.mkdir(parents=True)
    document = {"format": 3, "campaign_id": "0" * 32, "source": "streams.yaml", "created_at": iso(START_S)}
    (folder / "campaign.json").write_text(json.dumps(document | {"spec": spec.model_dump(mode="json")}))
    for order, experiment in enumerate(expand(spec)):
        start_s, shape = START_S + 600 * order, Shape(record_s=experiment.timing.record_s, step_s=1.0)
        attempt = attempt_folder(folder, experiment.experiment_id, 1)
        random = np.random.default_rng(order)
        with ExperimentWriter(
            attempt,
            workload=experiment.workload.name,
            replicas=experiment.replicas,
            metrics=METRICS,
            start_s=start_s,
            step_s=1.0,
        ) as writer:
            for row in range(experiment.timing.rows):
                writer.write(synthetic._tick(start_s + row, row, [10.0] * experiment.replicas, shape, random))
        for replica in range(experiment.replicas):
            write_answers(attempt, replica, start_s, shape.record_s, *answers(experiment, replica))
        synthetic._write_telemetry(attempt / "telemetry.csv", start_s, shape, random)
        final = folder / experiment.experiment_id
        finalise(attempt, final, manifest_for(experiment, shape, start_s))
    return folder


def write_answers(
    folder: Path, replica: int, start_s: float, record_s: float, ttft_ms: np.ndarray, tpot_ms: np.ndarray
) -> None:
    """What one replica of an attempt leaves: its log of requests, of gaps, and what it said."""
    home = replica_folder(folder, replica)
    home.mkdir(parents=True)
    ttft_ns, tpot_ns = (np.round(1e6 * values).astype(np.int64) for values in (ttft_ms, tpot_ms))
    latency_ns = ttft_ns + (TOKENS - 1) * tpot_ns
    ends_ns = np.round(1e9 * (start_s + np.linspace(0.01, record_s - 0.01, len(ttft_ms)))).astype(np.int64)
    log = np.zeros(len(ttft_ms), CLIENT)
    log["intended_ns"], log["latency_ns"] = ends_ns - latency_ns, latency_ns
    log["ttft_ns"], log["itl_p99_ns"] = ttft_ns, tpot_ns
    log["input_tokens"], log["output_tokens"], log["status"] = 10, TOKENS, 200
    log.tofile(home / CLIENT_LOG)
    answers = np.zeros(len(ttft_ms), ANSWER)
    answers["ttfo_ns"], answers["pieces"], answers["tokenizer_tokens"] = ttft_ns + OF_REASONING * tpot_ns, TOKENS, 10
    answers["token_source"] = TokenSource.USAGE
    answers.tofile(home / ANSWERS_LOG)
    gaps = np.zeros(len(ttft_ms), GAP)
    gaps["start_ns"], gaps["gap_ns"] = ends_ns - tpot_ns, tpot_ns
    gaps.tofile(home / GAPS_LOG)
    (home / "replica.json").write_text(json.dumps({"pid": 100 + replica, "phase": "stopped"}))
    said = replica_log(folder, replica)
    said.parent.mkdir(exist_ok=True)
    said.write_text("serving\n")
