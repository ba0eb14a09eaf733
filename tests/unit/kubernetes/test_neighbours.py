"""Whether a neighbour is beside a measured replica, by what both say of themselves."""

import pytest

from harness.backends.kubernetes.replica_check import apart


def at(node, gpu="", replica=0, **more):
    return {"replica": replica, "pod": f"pod-{replica}", "node": node, "gpu_uuid": gpu, **more}


@pytest.mark.parametrize(
    ("measured", "noisy", "by_node", "said"),
    [
        ([at("a", "G1")], [at("a", "G1")], False, ""),
        ([at("a", "G1")], [at("a", "G2")], False, "replica 0 (pod pod-0) is on GPU G1, where no neighbour is."),
        ([at("a", "G1"), at("a", "G2", 1)], [at("a", "G1"), at("a", "G2", 1)], False, ""),
        (
            [at("a", "G1"), at("a", "G2", 1)],
            [at("a", "G1")],
            False,
            "replica 1 (pod pod-1) is on GPU G2, where no neighbour is.",
        ),
        (
            [at("a", "G1")],
            [at("a", "G1"), at("a", "G2", 1)],
            False,
            "replica 1 of the neighbour noisy (pod pod-1) is on GPU G2, where no measured replica is.",
        ),
        ([at("a", "G1")], [at("a")], False, "replica 0 (pod pod-0) is on GPU G1, where no neighbour is."),
        (
            [at("a")],
            [at("a")],
            False,
            "replica 0 (pod pod-0) does not say on which GPU it is, so that nobody knows whether it shares one.",
        ),
        # A neighbour that works on the CPU disturbs the host.
        ([at("a", "G1")], [at("a", device="cpu")], False, ""),
        ([at("a", "G1")], [at("b", device="cpu")], False, "replica 0 (pod pod-0) is on node a, where no neighbour is."),
        # Whole GPUs, instances, or none.
        ([at("a", "G1")], [at("a", "G2")], True, ""),
        ([at("a")], [at("b")], True, "replica 0 (pod pod-0) is on node a, where no neighbour is."),
    ],
)
def test_who_is_not_beside_whom(measured, noisy, by_node, said):
    assert apart(measured, {"noisy": noisy}, by_node=by_node) == said
