"""A node of a cluster with two GPUs: how many slices each is, which replica had which, and what a part of N means there."""

import contextlib
from types import SimpleNamespace

import pytest
import yaml

from harness.analysis.comparability import places_in_words, spread
from harness.backends.kubernetes import monitoring, nodes, pods
from harness.errors import BackendError, IssueLevel
from harness.metrics.promql import PrometheusSource
from harness.results.manifest import Manifest, Software
from harness.sharing import device_plugin
from harness.sharing.cluster import AsLent
from harness.sharing.lending import check_sharing, lending
from harness.sharing.mode import PodSharing
from harness.spec import KubernetesSpec, MpsLimits, Sharing
from harness.spec.condition import ConditionSpec
from tests.support.experiments import experiment, neighbour

GPU = "nvidia.com/gpu"
SPEC = KubernetesSpec()
EXCLUSIVE, SLICED, MPS = Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS
BESIDE = ConditionSpec(name="beside", neighbours=[neighbour()])


def node(lends, **labels):
    marks = {f"nvidia.com/{key.replace('__', '.').replace('_', '-')}": value for key, value in labels.items()}
    status = {kind: {GPU: str(lends)} for kind in ("allocatable", "capacity")}
    status["conditions"] = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.count": "2", **marks}}, "spec": {}, "status": status}


TIMES_8 = {"gpu__replicas": "8", "gpu__sharing_strategy": "time-slicing"}
MPS_8 = {"gpu__replicas": "8", "gpu__sharing_strategy": "mps"}


@pytest.mark.parametrize(
    ("there", "modes", "slices"),
    [
        (node(2, gpu__sharing_strategy="none"), {EXCLUSIVE}, 1),
        (node(16, **TIMES_8), {SLICED}, 8),
        (node(16, **MPS_8), {MPS}, 8),
        (node(8, **MPS_8), {MPS}, 8),  # the plugin lends fewer than the labels promise: it restarts, or one GPU is sick
        (node(2, **TIMES_8), {EXCLUSIVE}, 1),
        (node(16), {SLICED, MPS}, None),  # somebody slices them, and does not say how
    ],
)
def test_slices_are_counted_for_each_gpu_of_the_node(there, modes, slices):
    how = lending(there, [], SPEC)
    assert how.modes == modes
    assert slices is None or how.slices == slices


CONFIGS = {
    "whole": {},
    "sliced-8": {"timeSlicing": {"resources": [{"name": GPU, "replicas": 8}]}},
    **{f"mps-{n}": {"mps": {"resources": [{"name": GPU, "replicas": n}]}} for n in (2, 4, 8)},
}


@pytest.mark.parametrize(
    ("wishes", "gpus", "per_replica", "chosen", "lent"),
    [
        ({"sharing": MPS, "replicas": 8}, [2], 1, "mps-4", 8),
        ({"sharing": MPS, "replicas": 8}, [1], 1, "mps-8", 8),
        ({"sharing": MPS, "replicas": 8}, [1, 1], 1, "mps-4", 4),
        ({"sharing": MPS, "replicas": 9}, [2], 1, "mps-8", 16),
        ({"sharing": MPS, "replicas": 4, "condition": BESIDE}, [2], 1, "mps-4", 8),
        ({"sharing": SLICED, "replicas": 16}, [2], 1, "sliced-8", 16),
        ({"sharing": SLICED, "replicas": 17}, [2], 1, None, None),
        ({"sharing": EXCLUSIVE, "replicas": 2}, [2], 1, "whole", 2),
        ({"sharing": EXCLUSIVE, "replicas": 3}, [2], 1, None, None),
        ({"sharing": EXCLUSIVE, "replicas": 1}, [2], 2, "whole", 2),  # it spans both
        ({"sharing": EXCLUSIVE, "replicas": 2}, [2], 2, None, None),
        ({"sharing": EXCLUSIVE, "replicas": 1}, [1, 1], 2, None, None),  # no node has two
    ],
)
def test_the_configuration_is_chosen_for_all_gpus_of_the_nodes(wishes, gpus, per_replica, chosen, lent):
    spec = KubernetesSpec(device_plugin_configs="gpu/plugin", gpus_per_replica=per_replica)
    data = {name: yaml.safe_dump({"version": "v1", "sharing": shared}) for name, shared in CONFIGS.items()}
    configurations = device_plugin.read(lambda _path: {"data": data}, spec)
    if chosen is None:
        with pytest.raises(BackendError, match="no configuration of gpu/plugin gives"):
            device_plugin.choose(configurations, experiment(**wishes), gpus, spec)
        return
    entry = device_plugin.choose(configurations, experiment(**wishes), gpus, spec)
    assert (entry.name, entry.lent(gpus[0])) == (chosen, lent)


@pytest.mark.parametrize(
    ("on", "gpus", "share", "refused"),
    [
        ("aabbaabb", 2, "1/N", ""),
        ("aaaaaaaa", 1, "1/N", ""),
        (
            "aaaabbbb",
            1,
            "1/N",
            "reckoned with 8 replicas on a GPU, since the campaign says `gpus: 1`, and the device plugin has put 4 on GPU-a, 4",
        ),
        ("aaaaabbb", 2, "1/N", "5 on GPU-a, 3 on GPU-b"),
        (
            "aaaaaaaa",
            2,
            "2/N",
            "reckoned with 4 replicas on a GPU, since the campaign says `gpus: 2`, and the device plugin has put 8 on GPU-a",
        ),
        ("aab", 2, "1/N", ""),
        ("a", 2, "1/N", ""),
        ("aaaabbbb", 1, 12.5, ""),
        ("aaaabbbb", 1, "all", ""),
        ("aaaabbb?", 1, "1/N", ""),  # not every replica says where it is
    ],
)
def test_a_part_of_n_is_of_the_replicas_that_are_on_a_gpu(on, gpus, share, refused):
    statuses = [{"device_uuid": "" if where == "?" else f"GPU-{where}"} for where in on]
    there = [{"metadata": {"name": f"p{index}"}, "spec": {"nodeName": "n1"}} for index in range(len(on))]
    of = experiment(sharing=MPS, replicas=len(on), gpus=gpus, mps=MpsLimits(share=share))
    api = SimpleNamespace(list=lambda _path: [])

    def observe():
        return AsLent(SPEC).observe(api, of, [node(16, **MPS_8)], there, statuses)

    if refused:
        with pytest.raises(BackendError) as raised:
            observe()
        assert refused in raised.value.message
        return
    assert [(shared.mode, shared.slices) for shared in observe()] == [("mps", 8)] * len(on)


@pytest.mark.parametrize(
    ("gpus", "replicas", "share", "said"),
    [(1, 8, "1/N", True), (2, 8, "1/N", False), (1, 1, "1/N", False), (1, 8, 10, False)],
)
def test_preflight_says_that_a_part_of_n_is_reckoned_with_fewer_gpus_than_there_are(gpus, replicas, share, said):
    of = experiment(sharing=MPS, replicas=replicas, gpus=gpus, mps=MpsLimits(share=share))
    issues = check_sharing([node(16, **MPS_8)], [], SPEC, [of])
    warned = [issue for issue in issues if issue.severity is IssueLevel.WARNING]
    assert ["spreads 8 over 2 GPUs" in issue.message for issue in warned] == [True] * said


def replica(index, *uuids):
    made = pods.PodReplica(index, f"p{index}", f"u{index}", "n1", "inference", 8000)
    return made.on_gpus(uuids, PodSharing("exclusive", 1))


@pytest.mark.parametrize(
    ("on", "wanted"),
    [
        ([("GPU-a", "GPU-b"), ("GPU-c",)], ("GPU-a", "GPU-b", "GPU-c")),  # one that spans two, beside one on a third
        ([("GPU-a",), ("GPU-a",)], ("GPU-a",)),
        ([("GPU-a",), ()], ()),
    ],
)
def test_both_gpus_of_a_replica_that_spans_two_are_recorded(monkeypatch, on, wanted):
    asked = []
    monkeypatch.setattr(PrometheusSource, "with_gpus", lambda self, _server, uuids: asked.append(tuple(uuids)) or self)
    server = SimpleNamespace(url="http://p", impatient=lambda _s: contextlib.nullcontext())
    monitoring.origin(server, SPEC, [replica(index, *uuids) for index, uuids in enumerate(on)])
    [uuids] = asked
    assert ("" in uuids) == (not wanted)
    assert not wanted or tuple(dict.fromkeys(uuids)) == wanted


def test_both_are_in_the_manifest():
    spans = {"device_uuid": "GPU-a", "second_device_uuid": "GPU-b", "node": "n1", "device_name": "NVIDIA H200"}
    beside = {"device_uuid": "GPU-c", "node": "n1", "device_name": "NVIDIA H200"}
    software = Software(harness="1", git_commit=None, python="3", packages={})
    made = nodes.provenance([], [spans, beside], software)
    assert [gpu.uuid for gpu in made.gpus] == ["GPU-a", "GPU-b", "GPU-c"]


@pytest.mark.parametrize(("asked_for", "on", "paid"), [(1, "aab", 2), (2, "ab", 2), (2, "aa", 2), (1, "??", 1)])
def test_what_is_paid_for_is_what_replicas_were_on_and_no_less_than_what_was_asked_for(asked_for, on, paid):
    """`gpus` is 1 unless the campaign says more, and a device plugin spreads replicas over all that there are."""
    replicas = [{"device_uuid": "" if where == "?" else f"GPU-{where}"} for where in on]
    made = Manifest.model_construct(experiment=experiment(gpus=asked_for), replicas=replicas)
    assert made.gpus_paid == paid


def test_a_server_that_spans_two_gpus_and_names_none_is_paid_for_by_what_its_pod_holds():
    def held(limits, extra=()):
        container = {"name": pods.CONTAINER, "image": "i", "resources": {"limits": limits}}
        metadata = {"name": "p0", "uid": "u0", "namespace": "n", "annotations": {pods.PORT_ANNOTATION: "8000"}}
        return pods.as_replica({"metadata": metadata, "spec": {"containers": [container]}}, 0, extra=extra).facts

    spans = held({GPU: 2, "cpu": "1"})
    assert spans["gpus_held"] == 2
    assert "gpus_held" not in held({GPU: 1})
    assert "gpus_held" not in held({"nvidia.com/mig-1g.10gb": 2})
    assert "gpus_held" not in held({GPU: 1, "nvidia.com/gpumem": 10_000}, extra=["nvidia.com/gpumem"])
    assert Manifest.model_construct(experiment=experiment(), replicas=[spans]).gpus_paid == 2


def test_the_report_says_which_replica_had_which_gpus():
    spans = {"gpu_uuid": "GPU-aaaaaaaa", "second_device_uuid": "GPU-bbbbbbbb", "node": "n1"}
    beside = {"gpu_uuid": "GPU-cccccccc", "node": "n1"}
    made = Manifest.model_construct(replicas=[spans, beside, beside])
    assert (
        places_in_words(made)
        == "n1 GPU-aaaaaaaa: replica 0; n1 GPU-bbbbbbbb: replica 0; n1 GPU-cccccccc: replicas 1, 2"
    )
    assert spread([made]) == "2 + 1 + 1 on 3 GPUs of 1 node"
