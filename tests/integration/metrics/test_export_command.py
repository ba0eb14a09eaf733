"""``harness export`` against a real Prometheus: the CSVs, the summary, and every way to ask for it wrongly."""

import csv
import json
import time
from datetime import UTC, datetime

import pytest

from tests.integration.metrics.prometheus_server import NEEDED, backfill, prometheus
from tests.support import forked
from tests.support.ports import free_port

pytestmark = NEEDED

ROWS, STEP_S, REPLICAS = 13, 5, 11
START_S = int(time.time() - 9 * 3600) // 60 * 60
START = datetime.fromtimestamp(START_S, UTC).isoformat()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    lines = [
        f'inference_requests_total{{job="known",instance="pod-{replica}"}} {100 * (replica + 1) * scrape} {START_S + scrape * STEP_S}'
        for replica in range(REPLICAS)
        for scrape in range(ROWS)
    ]
    with prometheus(folder, database=backfill(folder, lines)) as address:
        yield address


def export(*words):
    return forked.harness("export", *words)


@pytest.fixture
def asked(url, tmp_path):
    return [tmp_path / "out", "--prometheus", url, "--start", START, "--duration-s", 60, "--metric", "total_count"]


def test_the_csv_holds_every_replica_in_natural_order(asked):
    done = export(*asked, "--job", "known")

    assert done.returncode == 0, done.stderr
    [file] = asked[0].glob("workload_r11_total_count_*.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    last = {row["series"]: float(row["value"]) for row in rows if row["elapsed_s"] == "60.0"}
    assert [last[f"replica-{replica}"] for replica in range(REPLICAS)] == [
        1200.0 * (replica + 1) for replica in range(REPLICAS)
    ]
    assert last["all"] == 1200.0 * sum(range(1, REPLICAS + 1))
    summary = json.loads((asked[0] / "export.json").read_text())
    assert summary["replicas"] == [f"pod-{replica}" for replica in range(REPLICAS)]


def test_what_exists_is_not_overwritten(asked):
    assert export(*asked, "--job", "known").returncode == 0

    again = export(*asked, "--job", "known")

    assert again.returncode == 6
    assert "never overwritten" in again.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "either a namespace"),
        (["--job", "known", "--namespace", "both"], 2, "either a namespace"),
        (["--job", "nobody"], 9, "holds no series"),
        (["--job", "known", "--start", "yesterday"], 2, "is not an ISO-8601 time"),
        (["--job", "known", "--start", "2026-01-01T00:00:00"], 2, "with a time zone"),
        (["--job", "known", "--duration-s", "61"], 2, "does not divide"),
        (["--job", "known", "--metric", "total_cuont"], 2, "Did you mean total_count"),
        (["--job", "known", "--prometheus", f"http://127.0.0.1:{free_port()}"], 9, "127.0.0.1"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(asked, words, code, sentence):
    done = export(*asked, *words)

    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not asked[0].exists()
