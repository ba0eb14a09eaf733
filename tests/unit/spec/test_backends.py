"""What a backend cannot do is said when the campaign file is read, before anything is connected to."""

import re

import pytest

from harness.errors import CampaignFileError
from harness.spec.load import parse_campaign, require
from harness.spec.model import BACKENDS
from scripts.pages import capabilities

FILE = "name: mine\n{backend}\nworkloads: [{{name: resnet50{workload}}}]\nreplicas: [1]\n{more}\n"
CLUSTER = "backend: kubernetes\nkubernetes: {}"
LAYER = "conditions: [{name: b, layer: {preload: /a.so, preload_image: 'x/y:1'}}]"


def read(backend="", more="", workload=""):
    return parse_campaign(FILE.format(backend=backend, workload=workload, more=more), origin="c.yaml")


EXAMPLES = {
    "kubernetes": {"backend": "kubernetes: {}"},
    "sharing": {"more": "sharing: [green-contexts]"},
    "mps.static_partitions": {"more": "sharing: [mps]\nmps: {static_partitions: true}"},
    "workloads.cpus_per_replica": {"workload": ", cpus_per_replica: 1"},
    "workloads.server.command": {"workload": "-mine, server: {command: [serve, '{port}']}"},
    "workloads.server.image": {"workload": "-mine, server: {image: 'x/y:1', args: ['{port}']}"},
    "workloads.server.url": {"workload": "-mine, server: {url: 'http://localhost:1'}"},
    "workloads.server.api_key_env": {"workload": "-mine, server: {url: 'http://h:1', api_key_env: KEY}"},
    "workloads.server.secret_env": {
        "workload": "-mine, server: {url: 'http://h:1', api_key_env: KEY, secret_env: {KEY: a/b}}"
    },
    "workloads.server.ready.log": {"workload": "-mine, server: {command: [a, '{port}'], ready: {log: up}}"},
    "sweep.one_start": {
        "workload": "-mine, server: {url: 'http://h:1'}",
        "more": "sweep: {concurrency: [1, 2], one_start: true}",
    },
    "conditions.layer.preload_image": {"more": LAYER},
    "timing.telemetry_interval_s": {"more": "timing: {telemetry_interval_s: 0.1}"},
    "timing.start": {"more": "timing: {start: forked}"},
}
ROWS = {place.strip("`"): lacking for place, lacking in capabilities.rows() if "neighbours" not in place}


def test_every_field_that_a_backend_lacks_has_an_example():
    assert ROWS.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", EXAMPLES)
def test_a_field_is_refused_with_its_line_exactly_where_the_table_says_no(place, backend):
    wishes = {"backend": CLUSTER if backend == "kubernetes" else ""} | EXAMPLES[place]
    if wishes["backend"] == "kubernetes: {}" and backend == "kubernetes":
        wishes["backend"] = CLUSTER
    if ROWS[place].backend != backend:
        read(**wishes)
        return
    where = re.escape(place).replace(r"workloads\.", r"workloads\.0\.").replace(r"conditions\.", r"conditions\.0\.")
    with pytest.raises(CampaignFileError, match=rf"c\.yaml:\d+: `{where}`: .*{re.escape(ROWS[place].instead)}"):
        read(**wishes)


def test_neighbours_are_asked_for_what_the_measured_workloads_are():
    beside = "conditions: [{name: b, neighbours: [{workload: {name: whisper, cpus_per_replica: 1}}]}]"
    with pytest.raises(CampaignFileError, match=r"`conditions\.0\.neighbours\.0\.workload\.cpus_per_replica`"):
        read(CLUSTER, beside)


def test_what_was_removed_is_refused_of_a_campaign_that_was_run_with_it():
    spec = read()
    old = spec.workloads[0].model_copy(update={"options": {"int8": True}})
    require(spec, origin="old")
    with pytest.raises(CampaignFileError, match=r"`workloads\.0\.options\.int8`: it was removed"):
        require(spec.model_copy(update={"workloads": [old]}), origin="old")


SERVED = "-mine, server: {url: 'http://h:1'}"
DRA = "backend: kubernetes\nkubernetes: {sharing_by: dra}"


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"more": "time_slice: [short]"}, "`time_slice` is set by claims alone"),
        ({"backend": CLUSTER, "more": "time_slice: [short]"}, "`time_slice` is set by claims alone"),
        ({"backend": DRA, "more": "sharing: [mps]\ntime_slice: long"}, "no effect without time-slicing"),
        ({"backend": CLUSTER, "more": "sharing: [time-slicing, mps]"}, "`sharing` has several modes"),
        ({"backend": "backend: kubernetes\nkubernetes: {gpus_per_replica: 2}"}, "refuses a pod more than one"),
        ({"more": "sharing: [mps]", "workload": SERVED}, "`sharing` mps: resnet50-mine runs already"),
        ({"more": "conditions: [{name: b}]", "workload": SERVED}, "`conditions`: resnet50-mine runs already"),
        (
            {
                "backend": CLUSTER,
                "more": "conditions: [{name: b, layer: {prefix: [env]}}]",
                "workload": "-mine, server: {image: 'x/y:1', args: ['{port}']}",
            },
            "`conditions`: the layer of b needs a command",
        ),
        ({"backend": DRA.replace("dra", "dra, gpus_per_replica: 2")}, "gives each replica one GPU"),
        ({"backend": DRA.replace("dra", "dra, device_plugin_configs: a/b")}, "no effect with `sharing_by: dra`"),
        (
            {"backend": "backend: kubernetes\nkubernetes: {device_plugin_configs: a/b, gpus_per_replica: 0}"},
            "no effect on replicas without a GPU",
        ),
        ({"backend": "backend: kubernetes\nkubernetes: {mig_config: all-1g.18gb}"}, "no effect without `device_plugin"),
        (
            {
                "backend": CLUSTER,
                "workload": "-mine, server: {url: 'http://h:1', api_key_env: KEY, secret_env: {KEY: a/b, OTHER: a/c}}",
            },
            "`secret_env` holds the key that `api_key_env` names, and nothing",
        ),
    ],
)
def test_fields_that_do_not_go_together_are_refused(wishes, said):
    with pytest.raises(CampaignFileError, match=said):
        read(**wishes)


def test_claims_take_every_mode_and_time_slice():
    spec = read(DRA, "sharing: [exclusive, time-slicing, mps, mig]\ntime_slice: [default, short, medium, long]")
    turns = [cell for cell in spec.cells() if cell.sharing.value == "time-slicing"]
    assert [cell.time_slice for cell in turns] == ["default", "short", "medium", "long"]
    assert turns[1].mode == "time-slicing (short)"
    assert turns[1].experiment_id(1) == "resnet50_r1_time-slicing_short_rep1"
    assert read(DRA, "time_slice: long").cells()[0].experiment_id(1) == "resnet50_r1_time-slicing_rep1"
    assert {cell.time_slice for cell in spec.cells() if cell not in turns} == {""}


@pytest.mark.parametrize("modes", [["exclusive"], ["mig"], ["exclusive", "time-slicing", "mps", "mig"]])
def test_one_mode_is_for_the_cluster_to_show_and_several_for_the_plugin_that_can_be_switched(modes):
    configs = "device_plugin_configs: nvidia/configs" if len(modes) > 1 else ""
    spec = read(f"backend: kubernetes\nkubernetes: {{{configs}}}", f"sharing: [{', '.join(modes)}]")
    assert [mode.value for mode in spec.sharing] == modes
