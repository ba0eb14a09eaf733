"""What a backend cannot do is said when the campaign file is read, before anything is connected to."""

import re

import pytest

from harness.backends import capabilities
from harness.campaign.source import read_source
from harness.errors import CampaignFileError

FILE = """
name: mine
{backend}
workloads: [{{name: resnet50{workload}}}]
{replicas}
{more}
"""
CLUSTER = "backend: kubernetes\nkubernetes: {}"


def read(folder, backend, more="", workload=""):
    path = folder / "mine.yaml"
    replicas = "" if "stress" in more else "replicas: [1]"  # stress counts them itself
    path.write_text(FILE.format(backend=backend, workload=workload, more=more, replicas=replicas))
    return read_source(str(path)).spec


EXAMPLES = {
    "several sharing modes": {"more": "sharing: [time-slicing, mps]"},
    "how long turns under time-slicing are": {"more": "time_slice: [short, long]"},
    "several GPUs that replicas share": {
        "more": "gpus: 2\nsharing: [mps]",
        "cluster": "backend: kubernetes\nkubernetes: {sharing_by: dra}",
    },
    "several shared GPUs for each": {
        "more": "sharing: [time-slicing]\nkubernetes: {gpus_per_replica: 2}",
        "cluster": "backend: kubernetes",
    },
    "limits of each replica under MPS": {"more": "sharing: [mps]\nmps: {share: 1/N}"},
    "scenarios of LoadGen": {"workload": ", scenario: {kind: server, rate: 5}"},
    "scenario `http`": {"workload": ", scenario: {kind: http, rate: 5}"},
    "a server of your own as a command": {"workload": "-mine, server: {command: [serve, '{port}']}"},
    "a server of your own as an image": {"workload": "-mine, server: {image: 'x/y:1', args: ['{port}']}"},
    "a server that runs already": {"workload": "-mine, server: {url: 'http://h:1'}"},
    "one that runs on the asking machine": {"workload": "-mine, server: {url: 'http://localhost:1'}"},
    "a key out of the environment": {"workload": "-mine, server: {url: 'http://h:1', api_key_env: KEY}"},
    "a key out of a Secret": {
        "workload": "-mine, server: {url: 'http://h:1', api_key_env: KEY, secret_env: {KEY: a/b}}"
    },
    "a line of the server's log": {"workload": "-mine, server: {command: [a, '{port}'], ready: {log: up}}"},
    "requests to a server": {"workload": "-mine, server: {url: 'http://h:1', trace: {file: a.jsonl}}"},
    "what a server publishes": {"workload": "-mine, server: {url: 'http://h:1', metrics: {}}"},
    "a sharing mode for": {"more": "sharing: [mps]", "workload": "-mine, server: {url: 'http://h:1'}"},
    "`conditions` of": {"more": "conditions: [{name: b}]", "workload": "-mine, server: {url: 'http://h:1'}"},
    "a workload of your own": {"workload": "-mine, factory: 'mine:make'"},
    "neighbours": {"more": "conditions: [{name: b, neighbours: [{workload: {name: whisper}}]}]"},
    "CPUs of each replica's own": {"workload": ", cpus_per_replica: 1"},
    "layers": {"more": "conditions: [{name: b, layer: {prefix: [env]}}]"},
    "a layer's library out of": {
        "more": "conditions: [{name: b, layer: {preload: /a.so, preload_image: 'x/y:1'}}]",
    },
    "a layer of a server": {
        "more": "conditions: [{name: b, layer: {prefix: [env]}}]",
        "workload": "-mine, server: {command: [a, '{port}']}",
    },
    "`stress`": {"more": "stress: {first: 1, most: 8}"},
    "`timing.stop_when_known`": {"more": "timing: {stop_when_known: {}}"},
    "cool-down until the GPUs are cool": {"more": "timing: {cooldown_gpu_celsius: 50}"},
    "how often `telemetry.csv`": {"more": "timing: {telemetry_interval_s: 0.1}"},
    "pods": {"more": "kubernetes: {}"},
}
BACKENDS = {"local": "backend: local", "kubernetes": CLUSTER}


@pytest.mark.parametrize("backend", capabilities.BACKENDS)
@pytest.mark.parametrize("feature", capabilities.FEATURES, ids=lambda one: one.name)
def test_a_campaign_that_asks_for_it_is_refused_exactly_where_the_table_says_no(tmp_path, feature, backend):
    (wishes,) = [dict(wishes) for start, wishes in EXAMPLES.items() if feature.name.startswith(start)]
    backends = {**BACKENDS, "kubernetes": wishes.pop("cluster", CLUSTER)}
    if feature.name.startswith("pods") and backend == "kubernetes":
        wishes = {}  # its section is there already
    why, instead = feature.lacking.get(backend, ("", ""))
    if not why:
        assert list(feature.asked(read(tmp_path, backends[backend], **wishes)))
        return
    assert feature.cell(backend).endswith(f": {why}")
    with pytest.raises(CampaignFileError, match=re.escape(f": {why}. {instead}")):
        read(tmp_path, backends[backend], **wishes)


def test_claims_take_every_mode_and_time_slice_and_nothing_of_the_device_plugins(tmp_path):
    claims = "backend: kubernetes\nkubernetes: {sharing_by: dra}"
    spec = read(
        tmp_path, claims, "sharing: [exclusive, time-slicing, mps, mig]\ntime_slice: [default, short, medium, long]"
    )
    turns = [cell for cell in spec.cells() if cell.sharing.value == "time-slicing"]
    assert [cell.time_slice for cell in turns] == ["default", "short", "medium", "long"]
    assert turns[1].mode == "time-slicing (short)"
    assert turns[1].experiment_id(1) == "resnet50_r1_time-slicing_short_rep1"
    assert read(tmp_path, claims, "time_slice: long").cells()[0].experiment_id(1) == "resnet50_r1_time-slicing_rep1"
    assert {cell.time_slice for cell in spec.cells() if cell not in turns} == {""}
    for more, said in (
        (", gpus_per_replica: 2", "gives each replica one GPU"),
        (", device_plugin_configs: a/b", "`device_plugin_configs` has no effect with `sharing_by: dra`"),
    ):
        with pytest.raises(CampaignFileError, match=said):
            read(tmp_path, claims.replace("dra", f"dra{more}"))
    with pytest.raises(CampaignFileError, match="`time_slice` has no effect without time-slicing"):
        read(tmp_path, claims, "sharing: [mps]\ntime_slice: long")


def test_several_modes_are_taken_where_the_device_plugin_can_be_switched(tmp_path):
    switched = "backend: kubernetes\nkubernetes: {device_plugin_configs: nvidia/plugin-configs}"
    spec = read(tmp_path, switched, "sharing: [exclusive, time-slicing, mps, mig]")
    assert len(spec.sharing) == 4
    on_cpu = switched.replace("}", ", gpus_per_replica: 0}")
    with pytest.raises(CampaignFileError, match="`device_plugin_configs` has no effect on replicas without a GPU"):
        read(tmp_path, on_cpu)
    with pytest.raises(CampaignFileError, match="`mig_config` has no effect without `device_plugin_configs`"):
        read(tmp_path, "backend: kubernetes\nkubernetes: {mig_config: all-1g.18gb}")


@pytest.mark.parametrize("mode", ["exclusive", "time-slicing", "mps", "mig"])
def test_one_mode_is_for_the_cluster_to_show(tmp_path, mode):
    assert read(tmp_path, CLUSTER, f"sharing: [{mode}]").sharing[0].value == mode


def test_a_server_that_runs_already_has_one_secret_its_key(tmp_path):
    server = "-mine, server: {url: 'http://h:1', api_key_env: KEY, secret_env: {KEY: a/b, OTHER: a/c}}"
    with pytest.raises(CampaignFileError, match="`secret_env` holds the key that `api_key_env` names, and nothing"):
        read(tmp_path, CLUSTER, workload=server)
