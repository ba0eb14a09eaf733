"""What a backend cannot do is said when the campaign file is read, before anything is connected to."""

import pytest

from harness.campaign.source import read_source
from harness.errors import CampaignFileError

FILE = """
name: mine
{backend}
workloads: [{{name: resnet50{workload}}}]
replicas: [1]
{more}
"""
CLUSTER = "backend: kubernetes\nkubernetes: {}"


def read(folder, backend, more="", workload=""):
    path = folder / "mine.yaml"
    path.write_text(FILE.format(backend=backend, workload=workload, more=more))
    return read_source(str(path)).spec


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        (
            {"more": "sharing: [time-slicing, mps]"},
            r"cannot compare sharing time-slicing and mps: .*device_plugin_configs.*harness sharing MODE",
        ),
        (
            {"more": "sharing: [mps]\nmps: {equal_share: true}"},
            r"`mps` has no effect: .* harness sharing mps --replicas N",
        ),
        (
            {"more": "conditions: [{name: b, neighbours: [{workload: {name: whisper}}]}]"},
            "neighbours need backend local",
        ),
        ({"more": "conditions: [{name: b, layer: {prefix: [env]}}]"}, "layers need backend local"),
        ({"more": "timing: {stop_when_known: {}}"}, "stop_when_known` needs backend local"),
        ({"workload": ", scenario: {kind: http, rate: 5}"}, "scenario http, which runs with backend local only"),
        (
            {"workload": "-mine, server: {command: [serve, '{port}']}"},
            "a server of your own, which runs with backend local",
        ),
    ],
)
def test_a_cluster_refuses_what_this_machine_takes(tmp_path, wishes, expected):
    read(tmp_path, "backend: local", **wishes)
    with pytest.raises(CampaignFileError, match=expected):
        read(tmp_path, CLUSTER, **wishes)


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
