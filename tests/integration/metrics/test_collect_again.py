"""``harness export --from`` against a real Prometheus: the same rows again."""

import json
import shutil

import pytest

from harness.metrics.promql import PrometheusSource
from harness.results.from_prometheus import save_source
from harness.results.layout import attempt_folder
from harness.results.writers import finalise
from tests.integration.metrics.prometheus_server import NEEDED, backfill, prometheus
from tests.support import forked
from tests.support.ports import free_port
from tests.unit.results.synthetic import START_S, Shape, experiment_spec, manifest_for, write_attempt

pytestmark = NEEDED

PODS = ("resnet50-b", "resnet50-a")
SHAPE = Shape(gpu=False, record_s=30.0)
BEFORE_S, AFTER_S = 12, 40


def lines():
    """What a cluster's Prometheus scraped: two pods (one restarted, with an awkward label), a GPU, a node, and others."""
    for second in range(-BEFORE_S, AFTER_S):
        time_s = START_S + second + 0.123
        for number, pod in enumerate(PODS):
            served = 1000 + (7 + number) * second + (second % 3) / 7
            if number and second > 20:
                served = (second - 20) * 7.25
            labels = f'namespace="inference",pod="{pod}",node="n1",note="a \\"b\\" \\\\ c, or d"'
            yield f"inference_requests_total{{{labels}}} {served!r} {time_s:.3f}"
            for bound, share in (("0.01", 0.4), ("0.02", 0.9), ("+Inf", 1.0)):
                yield f'inference_latency_seconds_bucket{{{labels},le="{bound}"}} {served * share!r} {time_s:.3f}'
            yield f"inference_latency_seconds_sum{{{labels}}} {served * 0.012!r} {time_s:.3f}"
            yield f"inference_latency_seconds_count{{{labels}}} {served!r} {time_s:.3f}"
            work = f'namespace="inference",pod="{pod}",container="replica"'
            yield f"container_cpu_usage_seconds_total{{{work}}} {100 + second * 0.9!r} {time_s:.3f}"
            yield f"container_memory_working_set_bytes{{{work}}} {1e9 + second!r} {time_s:.3f}"
        for gauge in ("GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP"):
            yield f'DCGM_FI_DEV_{gauge}{{node="n1",gpu="0"}} {50 + second % 5} {time_s:.3f}'
        for kind in ("cpu", "memory", "io"):
            yield f'node_pressure_{kind}_waiting_seconds_total{{node="n1"}} {100 + second / 9!r} {time_s:.3f}'
        yield f'somebody_else{{x="1"}} {"NaN" if second % 2 else "+Inf"} {time_s:.3f}'


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with prometheus(folder, database=backfill(folder, list(lines()))) as address:
        yield address


@pytest.fixture
def campaign(url, tmp_path):
    """A campaign with two experiments, one of which no Prometheus recorded."""
    folder = tmp_path / "campaign"
    for replicas, origin in ((2, PrometheusSource(url, "inference", PODS, ("n1",))), (1, None)):
        recorded(folder, experiment_spec("resnet50", replicas, 1, SHAPE), origin)
    return folder


def recorded(campaign, spec, origin):
    attempt = attempt_folder(campaign, spec.experiment_id, 1)
    write_attempt(attempt, spec, SHAPE, START_S)
    if origin:
        save_source(attempt, origin)
    finalise(attempt, campaign / spec.experiment_id, manifest_for(spec, SHAPE, START_S))
    return campaign / spec.experiment_id


@pytest.fixture
def experiment(campaign):
    return campaign / "resnet50_r2_time-slicing_rep1"


def harness(*words):
    return forked.harness(*words)


def tables(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.csv")}


def test_an_experiment_is_collected_again_as_it_was_recorded(experiment, tmp_path):
    done = harness("export", tmp_path / "again", "--from", experiment)

    assert done.returncode == 0, done.stderr
    found = tables(tmp_path / "again")
    assert len(found) == 15
    [counted] = [text.decode() for name, text in found.items() if "_r2_total_count_" in name]
    rows = [line.split(",") for line in counted.splitlines()[1:]]
    assert len(rows) == 3 * 31
    assert sum(row[4] != "" for row in rows) == 0
    summary = json.loads((tmp_path / "again" / "export.json").read_text())
    assert summary["replicas"] == list(PODS)  # in the order of the recording, not of the alphabet
    assert summary["identities"]["gpu-0"] == {"gpu": "0", "node": "n1"}


def test_a_campaign_is_collected_whole_or_says_why_not(url, campaign, experiment, tmp_path):
    shutil.rmtree(campaign / "resnet50_r1_time-slicing_rep1")
    second = recorded(
        campaign, experiment_spec("resnet50", 2, 2, SHAPE), PrometheusSource(url, "inference", PODS[::-1], ("n1",))
    )
    done = harness("export", tmp_path / "both", "--from", campaign)
    assert done.returncode == 0, done.stderr
    assert harness("export", tmp_path / "one", "--from", experiment).returncode == 0
    assert tables(tmp_path / "both" / experiment.name) == tables(tmp_path / "one")
    other = tables(tmp_path / "both" / second.name)
    assert other.keys() == tables(tmp_path / "one").keys()
    assert other != tables(tmp_path / "one"), "its replicas are the other way round"

    down = f"http://127.0.0.1:{free_port()}"
    done = harness("export", tmp_path / "none", "--from", campaign, "--prometheus", down)
    assert done.returncode == 9, done.stderr
    assert "cannot be reached" in done.stderr
    assert list((tmp_path / "none").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["export", "OUT"], 2, "the export needs --prometheus"),
        (["export", "OUT", "--prometheus", "http://x"], 2, "the export needs --start"),
        (["export", "OUT", "--from", "EXPERIMENT", "--start", "2026-01-01T00:00:00Z"], 2, "--from says already"),
        (["export", "OUT", "--from", "LOCAL"], 2, "it was not recorded by a Prometheus server"),
        (["export", "OUT", "--from", "CAMPAIGN"], 2, "it was not recorded by a Prometheus server"),
        (["export", "OUT", "--from", "NOWHERE"], 2, "there is no file and no folder"),
        (["export", "OUT", "--from", "EMPTY"], 2, "holds no finished experiment"),
        (["export", "EMPTY", "--from", "EXPERIMENT"], 6, "never overwritten"),
        (["export", "OUT", "--from", "EXPERIMENT", "--prometheus", "DOWN"], 9, "cannot be reached"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_leaves_nothing(experiment, campaign, tmp_path, words, code, sentence):
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {
        "OUT": tmp_path / "out",
        "EXPERIMENT": experiment,
        "CAMPAIGN": campaign,
        "LOCAL": campaign / "resnet50_r1_time-slicing_rep1",
        "NOWHERE": tmp_path / "nowhere",
        "EMPTY": empty,
        "DOWN": f"http://127.0.0.1:{free_port()}",
    }
    done = harness(*(places.get(word, word) for word in words))

    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
