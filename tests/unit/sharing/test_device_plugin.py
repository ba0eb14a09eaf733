"""How a node's GPUs are shared is read off the node and its device plugin, and a campaign that says otherwise is refused."""

import pytest
import yaml

from harness.errors import IssueLevel
from harness.sharing.device_plugin import check_sharing, observed, slices_per_gpu
from harness.spec import KubernetesSpec, MpsLimits, Sharing
from tests.support.experiments import experiment

SPEC = KubernetesSpec()
EXCLUSIVE, SLICED, MPS, MIG = Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS, Sharing.MIG


def node(**labels):
    named = {f"nvidia.com/{key.replace('__', '.').replace('_', '-')}": value for key, value in labels.items()}
    return {
        "metadata": {"name": "n1", "labels": named},
        "spec": {},
        "status": {"allocatable": {"nvidia.com/gpu": "10"}},
    }


def plugin(config, where="n1"):
    """A pod of our device plugin, as templates/kubernetes/gpu/device-plugin.yaml.j2 makes it."""
    notes = {"gpu-sharing-harness/config": yaml.safe_dump(config)}
    return {"metadata": {"name": "device-plugin-x", "annotations": notes}, "spec": {"nodeName": where}}


def of_plugin(sharing=None, mig="none"):
    shared = {"sharing": {sharing: {"resources": []}}} if sharing else {}
    return plugin({"version": "v1", "flags": {"migStrategy": mig}, **shared})


@pytest.mark.parametrize(
    ("labels", "pods", "modes"),
    [
        ({}, [], set()),
        ({"gpu__sharing_strategy": "none"}, [], {EXCLUSIVE}),
        ({"gpu__sharing_strategy": "time-slicing"}, [], {SLICED}),
        ({"gpu__sharing_strategy": "mps"}, [], {MPS}),
        ({"gpu__sharing_strategy": "none", "mig__strategy": "single"}, [], {MIG}),
        ({"mps__capable": "true"}, [], {MPS}),
        ({"gpu__product": "NVIDIA-A100-SXM4-40GB-SHARED"}, [], {SLICED, MPS}),
        ({}, [of_plugin()], {EXCLUSIVE}),
        ({}, [of_plugin("timeSlicing")], {SLICED}),
        ({"mps__capable": "true"}, [of_plugin("mps")], {MPS}),
        ({}, [of_plugin(mig="single")], {MIG}),
        ({}, [of_plugin("timeSlicing", mig="mixed")], {MIG, SLICED}),
        ({}, [plugin({"sharing": {"mps": {}}}, where="another node")], set()),
    ],
)
def test_the_mode_is_what_labels_and_plugin_say(labels, pods, modes):
    assert observed(node(**labels), pods, SPEC) == modes


def of_gke(**labels):
    one = node()
    one["metadata"]["labels"] = {f"cloud.google.com/gke-gpu-{key.replace('_', '-')}": labels[key] for key in labels}
    return one


@pytest.mark.parametrize(
    ("labels", "modes"),
    [
        ({"sharing_strategy": "time-sharing"}, {SLICED}),
        ({"sharing_strategy": "mps"}, {MPS}),
        ({"partition_size": "1g.10gb"}, {MIG}),
        ({"partition_size": "1g.10gb", "sharing_strategy": "time-sharing"}, {MIG, SLICED}),
        ({"driver_version": "latest"}, set()),
    ],
)
def test_the_mode_of_a_node_pool_of_gke_is_what_its_labels_say(labels, modes):
    assert observed(of_gke(**labels), [], SPEC) == modes


def test_mps_of_gke_is_refused_which_pods_without_the_nodes_ipc_would_not_be_under():
    for sharing in (MPS, SLICED):
        (finding,) = check_sharing([of_gke(sharing_strategy="mps")], [], SPEC, [experiment(sharing=sharing)])
        assert finding.severity is IssueLevel.ERROR
        assert "node n1 has GKE's MPS, for pods that share the node's IPC" in finding.message


def found(sharing, labels, spec=SPEC):
    findings = list(check_sharing([node(**labels)], [], spec, [experiment(sharing=sharing)]))
    return {finding.severity: f"{finding.message} {finding.advice}" for finding in findings}


def test_a_mode_that_the_node_visibly_does_not_have_is_refused_with_what_to_do():
    told = found(MPS, {"gpu__sharing_strategy": "time-slicing"})[IssueLevel.ERROR]
    assert "node n1 shares its GPUs by time-slicing, and the campaign says mps." in told
    assert "harness sharing mps --replicas N; or say what there is: `sharing: [time-slicing]`" in told
    assert "harness sharing exclusive --mig" in found(MIG, {"gpu__sharing_strategy": "none"})[IssueLevel.ERROR]


def test_the_mode_that_there_is_gets_no_remark_and_one_that_nobody_shows_gets_one():
    assert found(SLICED, {"gpu__sharing_strategy": "time-slicing"}) == {}
    assert "time-slicing is taken on trust" in found(SLICED, {})[IssueLevel.WARNING]


def test_replicas_without_a_gpu_share_none():
    on_cpu = KubernetesSpec(gpus_per_replica=0)
    assert found(SLICED, {}, on_cpu) == {}
    assert "sharing mps means nothing for replicas without a GPU" in found(MPS, {}, on_cpu)[IssueLevel.ERROR]


OF_4 = plugin({"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}})


@pytest.mark.parametrize(
    ("labels", "pods", "number"),
    [
        ({}, [], None),
        ({"gpu__count": "2"}, [], 5),
        ({"gpu__count": "2", "gpu__replicas": "8"}, [], 8),
        ({"gpu__replicas": "8"}, [OF_4], 4),
    ],
)
def test_the_slices_of_a_gpu_are_what_plugin_and_labels_say(labels, pods, number):
    assert slices_per_gpu(node(**labels), pods, SPEC) == number


@pytest.mark.parametrize(
    ("limits", "labels", "said"),
    [
        (MpsLimits(share="1/N"), {}, []),
        (MpsLimits(share=10, pinned_memory_gb=20), {"gpu__memory": "81559"}, []),
        (None, {}, []),
        (
            MpsLimits(share="2/N"),
            {},
            ["are to have 50 % of a GPU's multiprocessors each, and the device plugin gives each of 4"],
        ),
        (MpsLimits(), {}, ["are to have 100 % of a GPU's multiprocessors"]),
        (
            MpsLimits(share="1/N", pinned_memory_gb=22),
            {"gpu__memory": "81559"},
            ["`mps.pinned_memory_gb` of 22 is more than the 21.4 GB"],
        ),
    ],
)
def test_a_client_of_mps_has_at_most_its_slices_part(limits, labels, said):
    of = [experiment(sharing=MPS, replicas=4, mps=limits)]
    errors = [
        one.message for one in check_sharing([node(**labels)], [OF_4], SPEC, of) if one.severity is IssueLevel.ERROR
    ]
    assert len(errors) == len(said)
    assert all(sentence in error for sentence, error in zip(said, errors, strict=True))


def test_limits_on_a_node_that_does_not_show_its_slices_are_taken_on_trust():
    of = [experiment(sharing=MPS, replicas=4, mps=MpsLimits(share="1/N"))]
    (finding,) = check_sharing([node(gpu__sharing_strategy="mps")], [], SPEC, of)
    assert (finding.severity, "does not show how many slices" in finding.message) == (IssueLevel.WARNING, True)
