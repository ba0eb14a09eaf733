"""How a node's GPUs are shared is read off the node and its device plugin, and a campaign that says otherwise is refused."""

import pytest
import yaml

from harness.errors import IssueLevel
from harness.sharing.lending import check_sharing, lending
from harness.spec import KubernetesSpec, MpsLimits, Sharing
from tests.support.experiments import experiment

SPEC = KubernetesSpec()
EXCLUSIVE, SLICED, MPS, MIG = Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS, Sharing.MIG


def node(_lends=10, _gke=False, _notes=(), **labels):
    """A node with these labels, ``__`` for a point, ``_`` for a hyphen."""
    prefix = "cloud.google.com/gke-gpu-" if _gke else "nvidia.com/"
    named = {f"{prefix}{key.replace('__', '.').replace('_', '-')}": value for key, value in labels.items()}
    return {
        "metadata": {
            "name": "n1",
            "labels": named,
            "annotations": dict.fromkeys(_notes, "GPU-1,10,15360,100,Tesla T4,0,true:"),
        },
        "spec": {},
        "status": {"allocatable": {SPEC.gpu_resource: str(_lends)}},
    }


def plugin(sharing=None, mig="none", where="n1", replicas=4):
    """A pod of our device plugin, as roles/device_plugin/templates/device-plugin.yaml.j2 makes it."""
    shared = (
        {"sharing": {sharing: {"resources": [{"name": SPEC.gpu_resource, "replicas": replicas}]}}} if sharing else {}
    )
    notes = {"gpu-sharing-harness/config": yaml.safe_dump({"version": "v1", "flags": {"migStrategy": mig}, **shared})}
    return {"metadata": {"name": "device-plugin-x", "annotations": notes}, "spec": {"nodeName": where}}


T4 = node(
    1,
    gpu__product="Tesla-T4",
    mig__capable="false",
    mig__strategy="single",
    gpu__sharing_strategy="none",
    gpu__replicas="1",
    gpu__count="1",
)
"""As the GPU operator labels every node, MIG or not."""
WHOLE = {"gpu__sharing_strategy": "none", "gpu__replicas": "1", "gpu__count": "1"}
H100 = {"mig__strategy": "single", "mig__capable": "true", **WHOLE}
HAMI = "hami.io/node-nvidia-register"


@pytest.mark.parametrize(
    ("there", "pods", "modes"),
    [
        (node(), [], set()),
        (node(gpu__sharing_strategy="none"), [], {EXCLUSIVE}),
        (node(gpu__sharing_strategy="time-slicing"), [], {SLICED}),
        (node(gpu__sharing_strategy="mps"), [], {MPS}),
        (node(mps__capable="true"), [], {MPS}),
        (node(gpu__product="NVIDIA-A100-SXM4-40GB-SHARED"), [], {SLICED, MPS}),
        (node(), [plugin()], {EXCLUSIVE}),
        (node(), [plugin("timeSlicing")], {SLICED}),
        (node(mps__capable="true"), [plugin("mps")], {MPS}),
        (node(), [plugin("mps", where="another node")], set()),
        # MIG is there where something says that instances exist.
        (T4, [], {EXCLUSIVE}),
        (node(1, **H100, mig__config="all-disabled"), [], {EXCLUSIVE}),
        (node(7, **H100 | {"gpu__count": "7"}, mig__config="all-1g.10gb"), [], {MIG}),
        (node(7, **H100 | {"gpu__count": "7"}, gpu__slices__gi="1"), [], {MIG}),
        (node(7, **H100 | {"gpu__count": "7"}, gpu__product="NVIDIA-H100-MIG-1g.10gb"), [], {MIG}),
        (node(1, **H100 | {"mig__strategy": "mixed"}, mig__config="all-balanced"), [], {EXCLUSIVE}),
        (node(), [plugin(mig="single")], {MIG}),
        (node(), [plugin("timeSlicing", mig="single")], {MIG, SLICED}),
        (node(), [plugin("timeSlicing", mig="mixed")], {SLICED}),
        # Somebody lends more than is said, or less.
        (node(10, **WHOLE), [], {SLICED, MPS}),
        (node(10, **WHOLE, _notes=[HAMI]), [], {SLICED, MPS}),
        (node(10, _notes=[HAMI]), [], {SLICED, MPS}),
        (node(10, **WHOLE | {"gpu__replicas": "10", "gpu__sharing_strategy": "time-slicing"}), [], {SLICED}),
        (node(1, **WHOLE | {"gpu__replicas": "10", "gpu__sharing_strategy": "time-slicing"}), [], {EXCLUSIVE}),
        (node(4, **WHOLE), [plugin("mps")], {MPS}),
        # Google's node pools.
        (node(_gke=True, sharing_strategy="time-sharing"), [], {SLICED}),
        (node(_gke=True, sharing_strategy="mps"), [], {MPS}),
        (node(_gke=True, partition_size="1g.10gb"), [], {MIG}),
        (node(_gke=True, partition_size="1g.10gb", sharing_strategy="time-sharing"), [], {MIG, SLICED}),
        (node(_gke=True, driver_version="latest"), [], set()),
    ],
)
def test_the_mode_is_what_all_that_a_node_shows_adds_up_to(there, pods, modes):
    assert lending(there, pods, SPEC).modes == modes


@pytest.mark.parametrize(
    ("there", "pods", "denied", "stranger"),
    [
        (T4, [], [], ""),
        (
            node(10, **WHOLE),
            [],
            ["nvidia.com/gpu.sharing-strategy=none says exclusive"],
            "an unknown program",
        ),
        (node(10, **WHOLE, _notes=[HAMI]), [], ["sharing-strategy=none says exclusive"], f"HAMi (annotation {HAMI})"),
        (
            node(gpu__sharing_strategy="mps"),
            [plugin("timeSlicing")],
            ["nvidia.com/gpu.sharing-strategy=mps says mps"],
            "",
        ),
        (node(mps__capable="true", gpu__sharing_strategy="time-slicing"), [], ["mps.capable=true says mps"], ""),
        (
            node(1, gpu__count="1", gpu__replicas="8", gpu__sharing_strategy="time-slicing"),
            [],
            ["sharing-strategy=time-slicing says time-slicing"],
            "",
        ),
    ],
)
def test_each_source_that_says_otherwise_is_named(there, pods, denied, stranger):
    how = lending(there, pods, SPEC)
    assert len(how.denied) == len(denied)
    assert all(words in said for words, said in zip(denied, how.denied, strict=True))
    assert how.stranger.startswith(stranger)
    assert bool(how.stranger) == bool(stranger)


@pytest.mark.parametrize(("pipe", "words"), [("", "time-slicing"), ("/mps/pipe", "mps"), (None, "mps or time-slicing")])
def test_what_a_pod_sees_of_itself_tells_modes_apart_that_its_node_leaves_open(pipe, words):
    assert lending(node(10, **WHOLE), [], SPEC).in_words({"mps_pipe_directory": pipe}) == words


def test_whoever_divides_gpus_by_annotations_is_not_taken_for_the_plugin():
    fractions = KubernetesSpec(gpu_resource=None, scheduler_name="kai-scheduler", annotations={"gpu-fraction": "0.5"})
    assert IssueLevel.ERROR in found(EXCLUSIVE, T4, fractions)
    assert "kai-scheduler" in found(SLICED, T4, fractions)[IssueLevel.WARNING]


def test_mps_of_gke_is_refused_which_pods_without_the_nodes_ipc_would_not_be_under():
    for sharing in (MPS, SLICED):
        (finding,) = check_sharing([node(_gke=True, sharing_strategy="mps")], [], SPEC, [experiment(sharing=sharing)])
        assert finding.severity is IssueLevel.ERROR
        assert "node n1 has GKE's MPS, for pods that share the node's IPC" in finding.message


def found(sharing, there, spec=SPEC):
    findings = list(check_sharing([there], [], spec, [experiment(sharing=sharing)]))
    return {finding.severity: f"{finding.message} {finding.advice}" for finding in findings}


def test_a_mode_that_the_node_visibly_does_not_have_is_refused_with_what_to_do():
    told = found(MPS, node(gpu__sharing_strategy="time-slicing"))[IssueLevel.ERROR]
    assert "node n1 shares its GPUs by time-slicing, as the label nvidia.com/gpu.sharing-strategy" in told
    assert "harness node sharing mps --replicas N; or say what there is: `sharing: [time-slicing]`" in told
    assert "harness node sharing exclusive --mig" in found(MIG, node(gpu__sharing_strategy="none"))[IssueLevel.ERROR]


def test_the_mode_that_there_is_gets_no_remark_and_one_that_nobody_shows_gets_one():
    assert found(SLICED, node(gpu__sharing_strategy="time-slicing")) == {}
    assert "time-slicing is taken on trust" in found(SLICED, node())[IssueLevel.WARNING]


def test_replicas_without_a_gpu_share_none():
    on_cpu = KubernetesSpec(gpus_per_replica=0)
    assert found(SLICED, node(), on_cpu) == {}
    assert "sharing mps means nothing for replicas without a GPU" in found(MPS, node(), on_cpu)[IssueLevel.ERROR]


OF_4 = plugin("mps")


@pytest.mark.parametrize(
    ("labels", "pods", "number"),
    [
        ({}, [], None),
        ({"gpu__count": "2"}, [], 5),
        ({"gpu__count": "2", "gpu__replicas": "8"}, [], 8),
        ({"gpu__replicas": "8"}, [OF_4], 4),
        (WHOLE, [], 10),
    ],
)
def test_the_slices_of_a_gpu_are_what_plugin_and_labels_say(labels, pods, number):
    assert lending(node(**labels), pods, SPEC).slices == number


@pytest.mark.parametrize(
    ("limits", "labels", "said"),
    [
        (MpsLimits(share="1/N"), {}, []),
        (MpsLimits(share=10, pinned_memory_gb=20), {"gpu__memory": "81559"}, []),
        (None, {}, []),
        (
            MpsLimits(share="2/N"),
            {},
            ["are to have 50% of a GPU's multiprocessors each, and the device plugin gives each of 4"],
        ),
        (MpsLimits(), {}, ["are to have 100% of a GPU's multiprocessors"]),
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
