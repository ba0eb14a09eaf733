"""The control group that a benchmark puts a process into, with the weight of a pod: on a tree of files as a node has it."""

import pytest

from tests.benchmarks.beside_pod import BesidePod, NoGroupError

UID = "8a8439be-138b-479c-96d3-3137b7d17026"


@pytest.mark.parametrize(
    ("place", "file"),
    [
        (f"cpu/kubepods/burstable/pod{UID}", "cpu.shares"),
        (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice", "cpu.weight"),
    ],
)
def test_it_stands_beside_the_pods_with_its_weight_and_is_no_pods_to_a_kubelet(tmp_path, place, file):
    pod = tmp_path / place
    pod.mkdir(parents=True)
    (pod / file).write_text("1024\n")

    group = BesidePod(tmp_path, UID).__enter__()

    assert (group.path.parent, group.weight) == (pod.parent, 1024)
    assert (group.path / file).read_text() == "1024"
    assert "pod" not in group.path.name, "a kubelet would end what is in it when the pod is gone"


def test_a_machine_that_is_not_the_pods_node_is_said(tmp_path):
    with pytest.raises(NoGroupError, match=f"No control group below {tmp_path} is that of pod {UID}: is this the"):
        BesidePod(tmp_path, UID).__enter__()
