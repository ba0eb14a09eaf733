"""The percentiles of streams are those of the request table, everywhere, and a histogram's stand beside them under names of their own."""

import csv
import io

import numpy as np
import pytest

from harness.analysis import summary
from harness.analysis.campaign import analyse
from harness.analysis.metrics.run import Run
from harness.analysis.pages.tables import short_tables
from harness.analysis.read import read_experiment
from harness.results.requests import NS_PER_S, gaps, read
from harness.spec import CampaignSpec
from harness.traffic.records import nearest_rank
from tests.unit.results.streams import write_streams

LIMIT_MS = 120
PERCENTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def answers(experiment, replica):
    random = np.random.default_rng([experiment.repeat, replica])
    return random.lognormal(4, 1, 700), random.lognormal(2, 1, 700)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    spec = CampaignSpec.model_validate(
        {
            "name": "exact",
            "workloads": [{"name": "llm", "server": {"command": ["serve", "{port}"], "protocol": "openai-chat"}}],
            "replicas": [2],
            "repeats": 2,
            "slo": {"ttft_p90_ms": LIMIT_MS, "error_rate": 0.01},
            "timing": {"step_s": 1, "record_s": 10, "stabilise_s": 1, "cooldown_s": 0},
        }
    )
    return analyse(write_streams(tmp_path_factory.mktemp("r") / "exact", spec, answers))


def of_the_table(folder, what, quantile):
    """By hand: the value of nearest rank among all requests of the recording, seconds."""
    table, window = read(folder), read_experiment(folder).window
    rows = table.rows[window.holds(table.rows["end_ns"])]
    spent = rows["end_ns"] - rows["first_token_ns"]
    between = np.concatenate([gaps(folder, replica) for replica in table.replicas])
    values = {
        "latency": rows["end_ns"] - rows["intended_ns"],
        "ttft": rows["first_token_ns"] - rows["intended_ns"],
        "ttfo": rows["first_answer_ns"] - rows["intended_ns"],
        "tpot": spent / (rows["output_tokens"] - 1),
        "itl": between["gap_ns"][window.holds(between["start_ns"] + between["gap_ns"])],
    }[what]
    return np.sort(values)[nearest_rank(len(values), quantile) - 1] / NS_PER_S


def arrivals(row, window):
    """By hand: how many tokens of a stream arrived within the window, the first when it was seen and the others evenly to the end."""
    first, end, further = int(row["first_token_ns"]), int(row["end_ns"]), int(row["output_tokens"]) - 1
    begin, over = round(window.begin_s * NS_PER_S), round(window.end_s * NS_PER_S)
    inside = min(end, over) - max(first, begin)
    return (begin <= first < over) + further * max(inside, 0) / (end - first)


def rates_of_the_table(folder):
    """By hand: what the answers within the recording come to, and a second of it."""
    table, window = read(folder), read_experiment(folder).window
    rows = table.rows[window.holds(table.rows["end_ns"])]
    good = rows["first_token_ns"] - rows["intended_ns"] <= LIMIT_MS * 1e6
    return {
        "requests": len(rows),
        "latency_mean": np.mean(rows["end_ns"] - rows["intended_ns"]) / NS_PER_S,
        "output_tokens_per_s": sum(arrivals(row, window) for row in table.rows) / window.duration_s,
        "goodput": good.sum() / window.duration_s,
    }


@pytest.mark.parametrize("name", ["requests", "latency_mean", "output_tokens_per_s", "goodput"])
def test_the_summary_has_the_rates_of_the_request_table(analysis, name):
    lines = {line["measure"]: line for line in csv.DictReader(io.StringIO(summary.table(analysis).csv()))}
    exact = [rates_of_the_table(run.data.folder)[name] for run in analysis.experiments]
    assert all(exact)
    assert [run.figures[name] for run in analysis.experiments] == pytest.approx(exact, rel=1e-12)
    assert float(lines[name]["mean"]) == pytest.approx(np.mean(exact), rel=1e-12)


def test_the_energy_of_1000_tokens_is_that_of_the_tokens_in_the_recording(analysis):
    for run in analysis.experiments:
        tokens = rates_of_the_table(run.data.folder)["output_tokens_per_s"] * run.data.duration_s
        joules, _ = Run(run.data).energy_j
        assert run.figures["energy_per_1000_tokens"] == pytest.approx(1000 * joules / tokens, rel=1e-12)


@pytest.mark.parametrize("what", ["ttft", "ttfo", "itl", "tpot", "latency"])
def test_the_summary_has_the_quantiles_of_the_request_table(analysis, what):
    lines = {line["measure"]: line for line in csv.DictReader(io.StringIO(summary.table(analysis).csv()))}
    for percent, quantile in PERCENTS.items():
        exact = [of_the_table(run.data.folder, what, quantile) for run in analysis.experiments]
        assert [run.figures[f"{what}_{percent}_exact"] for run in analysis.experiments] == exact
        assert float(lines[f"{what}_{percent}_exact"]["mean"]) == np.mean(exact)


def test_the_table_at_the_end_of_a_run_shows_the_same(analysis):
    _, streams = short_tables(analysis)
    (row,) = streams.records()
    for what in ("ttft", "itl", "tpot"):
        mean_s = np.mean([of_the_table(run.data.folder, what, 0.99) for run in analysis.experiments])
        assert float(row[f"{what} p99"].replace(",", "")) == pytest.approx(1e3 * mean_s, rel=0.01)
