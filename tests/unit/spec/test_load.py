"""The campaign file: every fault is named with its line and what to do."""

import json
import math
import re

import pytest
from pydantic import ValidationError

from harness.campaign.source import read_source, shipped_names
from harness.errors import CampaignFileError
from harness.metrics.quality import steady_state
from harness.spec import CampaignSpec, KubernetesSpec, Timing, UntilKnown
from harness.spec.load import parse_campaign
from harness.spec.model import first_in_words
from harness.spec.timing import short_by_scrapes
from tests.unit.spec.short_file import CONDITIONS, GOOD, faults, models


def test_a_short_file_is_enough():
    spec = parse_campaign(GOOD, origin="c.yaml")

    assert spec.timing.rows == 25
    assert spec.timing.window_s == 20
    assert [sharing.value for sharing in spec.sharing] == ["time-slicing"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "orderr: random\n", "c.yaml:6: unknown key `orderr`; did you mean `order`?"),
        (GOOD + "timing:\n  stepp_s: 5\n", "c.yaml:7: unknown key `timing.stepp_s`; did you mean `step_s`?"),
        (
            GOOD + "timing:\n  replicas: [1]\n",
            "c.yaml:7: `timing.replicas`: `replicas` is of the whole campaign: write it without",
        ),
        (GOOD.replace("name: resnet50", "name: resnet5"), "unknown workload 'resnet5': did you mean `resnet50`?"),
        (
            GOOD.replace("name: resnet50", "name: resnet50\n    options: {model_sise: tiny}"),
            "c.yaml:5: `workloads.0`: `options`: resnet50 has no option 'model_sise'; did you mean `model_size`?",
        ),
        (
            GOOD.replace("name: resnet50", "name: resnet50\n    batchsize: 2"),
            "`workloads.0.batchsize`; did you mean `batch_size`",
        ),
        (GOOD.replace("[1, 3]", "[0]"), "c.yaml:5: `replicas.0`: must be at least 1 (found 0)."),
        (GOOD.replace("[1, 3]", "[100000]"), "c.yaml:5: `replicas.0`: must be at most 256 (found 100000)."),
        (GOOD.replace("[1, 3]", "[3, 3]"), "`replicas`: 3 is listed twice"),
        (GOOD.replace("[1, 3]", "['3']"), "must be a whole number (found '3'). It is a text: write 3."),
        (GOOD.replace("[1, 3]", "[1e1]"), "must be a whole number (found '1e1'). It is a text: write 10."),
        (GOOD.replace("[1, 3]", "[1.5]"), "c.yaml:5: `replicas.0`: must be a whole number (found 1.5)."),
        (GOOD.replace("[1, 3]", "[three]"), "c.yaml:5: `replicas.0`: must be a whole number (found 'three')."),
        (GOOD.replace("[1, 3]", "['1.5']"), "c.yaml:5: `replicas.0`: must be a whole number (found '1.5')."),
        (GOOD + "timing: {record_s: 1e2}\n", "must be a number (found '1e2'). It is a text: write 100."),
        (GOOD + "timing: {record_s: 1e308}\n", "`timing.record_s`: must be a number (found '1e308')."),
        (GOOD.replace("[1, 3]", "[]"), "c.yaml:5: `replicas`: must have at least 1 item."),
        (GOOD + "sharing: mps\n", "c.yaml:6: `sharing`: must be a list (found 'mps'). Write [mps]."),
        (
            GOOD.replace("name: resnet50", "name: llm\n    server: {command: [serve], trace: a.csv}"),
            "must be an object (found 'a.csv'). Write {file: a.csv}.",
        ),
        (GOOD.replace("- name: resnet50", "- resnet50"), "`workloads.0`: must be an object (found 'resnet50')."),
        (GOOD + "stress: {load: concurrency}\n", "(found 'concurrency'). `concurrency` is a field of `sweep`."),
        (GOOD + "sharing: [timeslicing]\n", "(found 'timeslicing'). Did you mean time-slicing?"),
        (GOOD.replace("[1, 3]", "[true]"), "c.yaml:5: `replicas.0`: must be a whole number (found True)."),
        (GOOD + "timing: {step_s: 7}\n", "c.yaml:6: `timing`: step_s 7 does not divide record_s 120: use"),
        (GOOD + "timing: {step_s: 0.01}\n", "at least 0.1"),
        (GOOD + "timing: {rate_window_s: 6}\n", "rate_window_s is below 4 steps (20 s)"),
        (GOOD + "timing: {telemetry_interval_s: 1}\n", "at most 0.25"),
        (GOOD + "replicas: [1]\n", "c.yaml:6: `replicas` is given twice (first in line 5)."),
        (
            GOOD + "sharing: [mgi]\n",
            "must be 'exclusive', 'time-slicing', 'mps', 'green-contexts', 'mig' or 'as-found' (found 'mgi')",
        ),
        (GOOD + "mps: {equal_share: true}\n", "`mps` has no effect without mps in `sharing`"),
        (
            GOOD + "sharing: [mps]\nmps: {equal_share: true, active_thread_percentage: 50}\n",
            "set the same: keep `share`",
        ),
        (GOOD + "sharing: [mps]\nmps: {active_thread_percentage: 800}\n", "above 0 and at most 100"),
        (GOOD + "sharing: [mps]\nmps: {share: [all, N/2]}\n", "a share is `all`, a number of percent, or a part"),
        (GOOD + "sharing: [mps]\nmps: {share: 0/N}\n", "a share is `all`, a number of percent, or a part"),
        (GOOD + "sharing: [mps]\nmps: {share: [100, all]}\n", "`mps.share`: 'all' is listed twice"),
        (GOOD + "sharing: [mps]\nmps: {pinned_memory_gb: [null, 0]}\n", "`mps.pinned_memory_gb.1`: must be greater"),
        (GOOD.replace("[1, 3]", "[3]") + "sharing: [exclusive]\n", "no count is as low as `gpus` (1)"),
        (GOOD + "exclude: [{}]\n", "say at least one of `sharing`, `replicas` and `share`"),
        (GOOD + "exclude: [{replicas: 8}]\n", "entry 1 of `exclude` matches no cell"),
        (GOOD + "exclude: [{replicas: 1}, {replicas: 3}]\n", "`exclude` leaves no cell"),
        ("{a: b}\n", "c.yaml:1: unknown key `a`; known here: name, "),
        (GOOD + "function-x: 1\n", "c.yaml:6: unknown key `function-x`"),
        (GOOD + "{a: b}: 1\n", "c.yaml:6: a key must be a word"),
        (GOOD + "'{a: b}': 1\n", "c.yaml:6: unknown key `{a: b}`"),
        (GOOD + "order: random\nslo: {ttft_p99_ms: 5}\n", "c.yaml:7: `slo` limits times of tokens"),
        (GOOD + "order: random\ntiming: {preset: short}\nstress: {}\n", "c.yaml:8: `stress` raises the replicas"),
        (GOOD.replace("resnet50", "resnet50\n    precision: fp8"), "Did you mean `options: {fp8: true}`?"),
        (GOOD.replace("resnet50", "resnet50\n    precision: int8"), "(found 'int8'). It was removed: say"),
        (GOOD.replace("resnet50", "resnet50\n    precision: fp61"), "(found 'fp61'). Did you mean fp16?"),
        (GOOD + "order: backwards\n", "'listed', 'interleaved' or 'random'"),
        (GOOD.replace("name: mine\n", ""), "`name` is missing."),
        (GOOD.replace("mine", "My Campaign"), "c.yaml:2: `name`: must be lower-case letters, digits and hyphens, at"),
        (GOOD.replace("name: resnet50", "name: own\n    factory: nonsense"), "`workloads.0.factory`: must match the"),
        (GOOD.replace("name: resnet50", "name: a\n    model: whisper\n    factory: m:f"), "keep one of them"),
        (GOOD.replace("name: resnet50", "name: resnet50\n  - name: resnet50"), "`workloads`: 'resnet50' is listed"),
        (
            GOOD.replace("name: resnet50", "name: resnet50\n    device: cpu\n    execution: cuda-graph"),
            "execution cuda-graph needs a GPU",
        ),
        (CONDITIONS + "  - name: Beside\n", "c.yaml:8: `conditions.1.name`: must be lower-case letters, digits and hy"),
        (CONDITIONS + "  - name: alone\n", "`conditions`: 'alone' is listed twice"),
        (CONDITIONS + "  - {name: b, neighbor: []}\n", "conditions.1.neighbor`; did you mean `neighbours`?"),
        (
            CONDITIONS + "  - {name: b, neighbours: [{workload: {name: resnet5}}]}\n",
            "1.neighbours.0.workload`: unknown",
        ),
        (
            CONDITIONS + "  - {name: b, neighbours: [{workload: {name: whisper}}, {workload: {name: whisper}}]}\n",
            "neighbours`: 'whisper' is listed twice",
        ),
        (
            CONDITIONS + "  - {name: b, neighbours: [{workload: {name: whisper, scenario: {kind: http, rate: 5}}}]}\n",
            "a neighbour cannot have scenario http",
        ),
        (CONDITIONS + "  - {name: b, layer: {}}\n", "a layer needs `prefix`, `environment` or `preload`"),
        (CONDITIONS + "  - {name: b, layer: {prefix: ['']}}\n", "`conditions.1.layer.prefix.0`: must have at least"),
        (CONDITIONS + "  - {name: b, layer: {environment: {'A B': c}}}\n", "`conditions.1.layer.environment.A B`:"),
        (
            CONDITIONS + "  - {name: b, layer: {preload: a.so, environment: {LD_PRELOAD: b.so}}}\n",
            "`preload` sets LD_PRELOAD: keep one of them",
        ),
        *(
            (CONDITIONS + f"  - {{name: b, layer: {layer}}}\n", expected)
            for layer, expected in (
                (
                    "{prefix: [nice], preload_image: 'hook:1'}",
                    "`preload_image` needs `preload`, the library's whole path",
                ),
                ("{preload: lib/a.so, preload_image: 'hook:1'}", "(found 'lib/a.so')"),
                ("{preload: /opt/../a.so, preload_image: 'hook:1'}", "(found '/opt/../a.so')"),
                (r'{preload: "/opt/a.so\n", preload_image: "hook:1"}', r"(found '/opt/a.so\n')"),
                ("{preload: '/opt/$(HOME)/a.so', preload_image: 'hook:1'}", "(found '/opt/$(HOME)/a.so')"),
                ("{preload: '/opt/a.so:b.so', preload_image: 'hook:1'}", "(found '/opt/a.so:b.so')"),
                ("{preload: /opt/a.so, preload_image: 'hook 1'}", "`conditions.1.layer.preload_image`"),
                (r'{preload: /opt/a.so, preload_image: "hook:1\n"}', "`conditions.1.layer.preload_image`"),
                ("{preload: /opt/a.so, preload_image: ''}", "`conditions.1.layer.preload_image`"),
            )
        ),
        (CONDITIONS + "overhead_limit_percent: 0\n", "c.yaml:8: `overhead_limit_percent`: must be greater than 0"),
        ("- 1\n- 2\n", "holds no campaign"),
        ("", "holds no campaign"),
        ("name: [unclosed\n", "is not YAML"),
        ("name: !!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_each_fault_is_named_with_its_line_and_its_mend(text, expected):
    assert expected in faults(text)


def test_all_faults_are_named_at_once():
    message = faults(GOOD.replace("[1, 3]", "[0, 900]") + "orderr: random\nrepeets: 3\n")

    assert message.startswith("c.yaml has 4 faults:")
    assert len(re.findall(r"c\.yaml:\d+:", message)) == 4


def test_variants_of_a_builtin_have_names_of_their_own():
    text = GOOD.replace("name: resnet50", "name: resnet50-fp16\n    model: resnet50\n    precision: fp16")

    assert parse_campaign(text, origin="c.yaml").workloads[0].target == "resnet50"


@pytest.mark.parametrize(
    "model", sorted(set(models()), key=lambda model: model.__name__), ids=lambda model: model.__name__
)
def test_every_field_is_described(model):
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} has no description"


def test_the_schema_is_json_and_refuses_unknown_keys():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(CampaignSpec.model_json_schema()))
    good = {"name": "mine", "workloads": [{"name": "resnet50"}], "replicas": [1]}

    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "orderr": "random"}, schema)


def test_what_is_shipped_is_valid_and_the_scaling_matrix_is_the_published_one():
    specs = {name: read_source(name).spec for name in shipped_names()}

    assert set(specs) == {"mlperf-like", "quickstart", "replica-scaling", "sharing", "smoke"}
    assert all(spec.name == name for name, spec in specs.items())
    scaling = specs["replica-scaling"]
    assert [workload.name for workload in scaling.workloads] == ["resnet50", "distilbert", "whisper"]
    assert scaling.replicas == [1, 3, 8]
    timing = scaling.timing
    assert (timing.stabilise_s, timing.record_s, timing.cooldown_s, timing.rows) == (300, 3600, 120, 721)


def test_a_phase_counts_before_the_preset_and_what_was_read_is_read_alike_again():
    timing = parse_campaign(GOOD + "timing: {preset: long, record_s: 600}\n", origin="c.yaml").timing

    assert (timing.stabilise_s, timing.record_s, timing.cooldown_s) == (300, 600, 120)
    assert Timing.model_validate(timing.model_dump(mode="json")) == timing
    assert "did you mean" in faults(GOOD + "timing: {presett: long}\n")
    assert "'short', 'standard' or 'long'" in faults(GOOD + "timing: {preset: longer}\n")


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("", (1, 5, 10, 0)),
        ("timing: {drain_timeout_s: 20}\n", (1, 5, 10, 0)),
        ("timing: {record_s: 40}\n", (5, 30, 40, 10)),
        ("timing: {preset: standard}\n", (5, 30, 120, 10)),
        ("timing: {stop_when_known: {}}\n", (5, 30, 120, 10)),
        ("backend: kubernetes\nkubernetes: {}\n", (5, 5, 40, 0)),
        ("backend: kubernetes\nkubernetes: {scrape_interval_s: 1}\n", (1, 5, 10, 0)),
        ("backend: kubernetes\nkubernetes: {scrape_interval_s: 15}\ntiming: {drain_timeout_s: 20}\n", (15, 5, 120, 0)),
        ("backend: kubernetes\nkubernetes: {}\ntiming: {preset: short, record_s: 60}\n", (5, 5, 60, 0)),
        ("backend: kubernetes\nkubernetes: {}\ntiming: {stop_when_known: {}}\n", (5, 30, 120, 10)),
    ],
)
def test_repeats_until_known_are_short_where_no_phase_is_given(text, phases):
    until_known = GOOD.replace("repeats: 2\n", "") + "repeats: {until_known: {}}\n"
    timing = parse_campaign(until_known + text, origin="c.yaml").timing

    assert (timing.step_s, timing.stabilise_s, timing.record_s, timing.cooldown_s) == phases
    assert parse_campaign(GOOD, origin="c.yaml").timing == Timing()


def test_the_shortest_series_on_a_cluster_can_be_judged():
    timing = Timing(**short_by_scrapes(5.0))

    assert steady_state([10.0] * timing.rows).judged
    assert not steady_state([10.0] * (timing.rows - 1)).judged


def test_a_folder_or_a_device_in_place_of_a_campaign_file_says_which_command_takes_it(tmp_path):
    said = {}
    for name, inside in {"empty": "", "files": "mine.yaml", "results": "campaign.json"}.items():
        (tmp_path / name).mkdir()
        if inside:
            (tmp_path / name / inside).touch()
        with pytest.raises(CampaignFileError, match="is a folder, and no campaign file") as refused:
            read_source(str(tmp_path / name))
        said[name] = refused.value.advice
    assert said["empty"] == "Write one with: harness init FILE"
    assert said["files"] == f"Give a file of it, e.g. {tmp_path}/files/mine.yaml"
    assert f"harness resume {tmp_path}/results." in said["results"]
    with pytest.raises(CampaignFileError, match="/dev/zero is not a regular file"):
        read_source("/dev/zero")


def test_an_unknown_campaign_gets_a_suggestion():
    with pytest.raises(CampaignFileError, match="did you mean `quickstart`"):
        read_source("quikstart")


CLUSTER = GOOD + "backend: kubernetes\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLUSTER, "backend kubernetes needs a section `kubernetes`"),
        (GOOD + "backend: slurm\n", "c.yaml:6: `backend`: must be 'local' or 'kubernetes'"),
        (CLUSTER + "kubernetes: {contex: a}\n", "c.yaml:7: unknown key `kubernetes.contex`; did you mean `context`?"),
        (CLUSTER + "kubernetes: {namespace: My Place}\n", "`kubernetes.namespace`: must match the pattern"),
        (CLUSTER + "kubernetes: {image: 'a b'}\n", "'a b' is not an image reference"),
        (CLUSTER + "kubernetes: {image: r.example/Team/w:1}\n", "'r.example/Team/w:1' is not an image reference"),
        (CLUSTER + "kubernetes: {image: 'r.example/w:'}\n", "'r.example/w:' is not an image reference"),
        (
            CLUSTER + "kubernetes: {image: 'https://r.example/w:1'}\n",
            "'https://r.example/w:1' is not an image reference",
        ),
        (
            CLUSTER + "kubernetes: {image: 'r.example/w@sha256:12'}\n",
            "'r.example/w@sha256:12' is not an image reference",
        ),
        (CLUSTER + "kubernetes: {kind: statefulset}\n", "`kubernetes.kind`: must be 'deployment' or 'job'"),
        (CLUSTER + "kubernetes: {tolerations: [{efect: NoSchedule}]}\n", "did you mean `effect`?"),
        (CLUSTER + "kubernetes: {tolerations: [{key: a, value: b}]}\n", "operator Exists takes no `value`"),
        (CLUSTER + "kubernetes: {tolerations: [{operator: Equal, value: b}]}\n", "operator Equal needs a `key`"),
        (CLUSTER + "kubernetes: {labels: {a b: c}}\n", "must match the pattern"),
        (CLUSTER + "kubernetes: {labels: {a: -c}}\n", "must match the pattern"),
        (CLUSTER + "kubernetes: {labels: {gpu-sharing-harness/campaign: c}}\n", "is set by the harness: leave it out"),
        (CLUSTER + "kubernetes: {annotations: {prometheus.io/port: '1'}}\n", "is set by the harness: leave it out"),
        (CLUSTER + "kubernetes: {image_pull_secrets: [My_Secret]}\n", "must match the pattern"),
        (CLUSTER + "kubernetes: {prometheus_access: {token_file: a}}\n", "give `prometheus_url`"),
        (
            CLUSTER + "kubernetes: {prometheus_url: 'http://a', prometheus_access: {token_file: a, token_env: B}}\n",
            "both give the token",
        ),
        (CLUSTER + "kubernetes: {prometheus_access: {tenant: 'a b'}}\n", "must match the pattern"),
        (CLUSTER + "kubernetes: {queue_name: a}\n", "`queue_name` needs `kind: job`"),
        (CLUSTER + "kubernetes: {run_as_user: 0}\n", "at least 1"),
        (CLUSTER + "kubernetes: {node_affinity: [{key: a, operator: In}]}\n", "operator In needs `values`"),
        (CLUSTER + "kubernetes: {node_affinity: [{key: a, operator: Exists, values: [b]}]}\n", "takes no `values`"),
    ],
)
def test_a_cluster_is_described_strictly(text, expected):
    assert expected in faults(text)


def test_every_field_of_a_cluster_has_a_default():
    assert parse_campaign(CLUSTER + "kubernetes: {}\n", origin="c").kubernetes == KubernetesSpec()


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ("{stop_when_known: {min_s: 3600}}", "stop_when_known.min_s 3600 must be below record_s 120"),
        ("{stop_when_known: {metrics: [latency_p90]}}", "'energy' or 'objective'"),
        ("{stop_when_known: {metrics: [throughput, throughput]}}", "'throughput' is listed twice"),
        ("{stop_when_known: {metrics: []}}", "at least 1 item"),
        ("{stop_when_known: {relative_half_width: 0}}", "greater than 0"),
    ],
)
def test_a_recording_that_can_never_be_known_is_a_fault(timing, expected):
    assert expected in faults(GOOD + f"timing: {timing}\n")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("repeats: 0\n", "`repeats`: must be at least 1"),
        ("repeats: {until_known: {max: 2}}\n", "`max` of 2 is less than the 3 repeats"),
        ("repeats: {until_known: {within: 0}}\n", "`repeats.until_known.within`: must be greater than 0"),
        ("repeats: {until_known: {within: .nan}}\n", "not a finite number"),
        ("repeats: {until_known: {decide: 1}}\n", "`repeats.until_known.decide`: must be less than 1"),
        ("repeats: {until_known: {compare: [p42]}}\n", "'throughput', 'latency_p50_exact'"),
        ("repeats: {until_known: {compare: [throughput, throughput]}}\n", "'throughput' is listed twice"),
        ("repeats: {until_known: {budget: 2 days}}\n", "must match the pattern"),
        ("repeats: {until_known: {budget: 1 min}}\n", "of 1 min is too short to know anything: the 3 repeats of 2"),
        ("repeats: {until_known: {maxx: 5}}\n", "did you mean `max`?"),
        ("repeats: {until_known: {}}\norder: listed\n", "`order` must be interleaved or random"),
        ("repeats: {until_known: {}}\nstress: {}\n", "`stress` takes a number of `repeats`"),
    ],
)
def test_repeats_that_can_never_tell_are_a_fault(more, expected):
    text = GOOD.replace("replicas: [1, 3]\n", "") if "stress" in more else GOOD

    assert expected in faults(text + more)


def test_repeats_until_known_take_their_defaults_and_a_budget_in_words():
    spec = parse_campaign(GOOD + "repeats: {until_known: {budget: 7.5 h}}\n", origin="c.yaml")

    assert (spec.most_repeats, spec.until_known.within, spec.until_known.decide) == (30, 0.05, 0.95)
    assert spec.until_known.budget_s == 27_000
    assert [UntilKnown(budget=given).budget_s for given in ("90min", "600 s", None)] == [5400, 600, math.inf]


def test_a_test_of_loadgen_is_not_cut_short():
    workload = "    scenario: {kind: server, rate: 10}\n"
    text = GOOD.replace("  - name: resnet50\n", "  - name: resnet50\n" + workload)

    assert "would cut LoadGen's test of resnet50 short" in faults(text + "timing: {stop_when_known: {}}\n")


def test_stopping_when_known_takes_its_defaults():
    spec = parse_campaign(GOOD + "timing: {stop_when_known: {}}\n", origin="c.yaml")

    assert spec.timing.stop_when_known.relative_half_width == 0.02
    assert [metric.value for metric in spec.timing.stop_when_known.metrics] == [
        "throughput",
        "latency_p50_exact",
        "latency_p99_exact",
    ]


STRESS = GOOD.replace("replicas: [1, 3]\n", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "stress: {}\n", "leave `replicas` out"),
        (STRESS + "stress: {first: 8, most: 4}\n", "`most` 4 is below `first` 8"),
        (STRESS + "stress: {first: 1.5}\n", "replicas are whole numbers, and 1.5 is none"),
        (STRESS + "stress: {most: 1000}\n", "above the 256 replicas"),
        (STRESS + "stress: {factor: 2, step: 1}\n", "keep one of them"),
        (STRESS + "stress: {latency_limit_ms: {p99: 0}}\n", "`stress.latency_limit_ms.p99`: must be greater than 0"),
        (STRESS + "stress: {latency_limit_ms: {p90: 1}}\n", "'p50', 'p95' or 'p99'"),
        (STRESS + "stress: {}\nconditions: [{name: a}]\n", "compares no `conditions`"),
        (STRESS + "stress: {load: rate}\n", "`replicas` is missing"),
        (STRESS + "stress: {price_per_kwh: 0.3}\n", "give the `slo`"),
        (STRESS + "stress: {precision: 0.001}\n", "at least 0.01"),
        (STRESS + "replicas: [2]\nstress: {load: rate}\n", "resnet50 has no rate to raise"),
        (STRESS, "`replicas` is missing"),
    ],
)
def test_a_load_that_cannot_be_raised_is_a_fault(text, expected):
    assert expected in faults(text)


def test_a_stress_campaign_begins_with_its_first_point():
    spec = parse_campaign(STRESS + "stress: {first: 2, most: 20, factor: 1.5}\n", origin="c.yaml")

    assert spec.replicas == [2]
    assert [cell.replicas for cell in spec.cells()] == [2, 3, 4, 6, 9, 13, 19, 20]
    again = CampaignSpec.model_validate_json(json.dumps(spec.model_dump(mode="json")), strict=True)
    assert again == spec


def test_a_raised_rate_names_its_points():
    workload = "    scenario: {kind: http, rate: 1}\nreplicas: [2]\n"
    text = STRESS.replace("  - name: resnet50\n", "  - name: resnet50\n" + workload)
    spec = parse_campaign(text + "stress: {load: rate, first: 12.5, most: 50}\n", origin="c.yaml")

    assert [cell.experiment_id(1) for cell in spec.cells()] == [
        f"resnet50-rate-{rate}_r2_time-slicing_rep1" for rate in ("12-5", "25", "50")
    ]
    assert [cell.workload.scenario.rate for cell in spec.cells()] == [12.5, 25, 50]
    assert {cell.workload.target for cell in spec.cells()} == {"resnet50"}


def test_loads_that_lie_close_together_are_named_apart():
    workload = "    scenario: {kind: http, rate: 1}\nreplicas: [2]\n"
    text = STRESS.replace("  - name: resnet50\n", "  - name: resnet50\n" + workload)
    spec = parse_campaign(text + "stress: {load: rate, first: 100000, most: 100002, step: 0.5}\n", origin="c.yaml")

    assert [cell.workload.name for cell in spec.cells()] == [
        f"resnet50-rate-{rate}" for rate in ("100000", "100000-5", "100001", "100001-5", "100002")
    ]


@pytest.mark.parametrize("raised", ["step: 1.0e-12", "step: 1.0e-300", "factor: 1.0000000000000002"])
def test_a_load_raised_in_endless_steps_is_a_fault(raised):
    assert "more than 256 points" in faults(GOOD + f"stress: {{load: rate, first: 1, most: 2, {raised}}}\n")


def test_a_place_is_named_without_the_kind_of_value_that_was_tried():
    with pytest.raises(ValidationError) as wrong:
        CampaignSpec.model_validate({"name": "a", "workloads": [{"name": "resnet50"}], "replicas": [1], "repeats": -5})
    assert first_in_words(wrong.value) == "repeats must be at least 1"
