"""A layer that would not be there is refused before anything starts."""

import sys

import pytest

from harness.backends.local_check import check_machine
from harness.backends.workload_check import check_layer, check_layer_of_image
from harness.errors import IssueLevel
from harness.spec import ConditionSpec, LayerSpec
from tests.support.experiments import experiment, neighbour

LIBRARY = sys.executable  # an ELF file that is on every machine


def found(**layer):
    condition = ConditionSpec(name="hooked", layer=LayerSpec(**layer))
    return [finding.message for finding in check_layer(experiment(condition=condition))]


@pytest.mark.parametrize(
    "layer", [{"prefix": ["env", "-u", "NOTHING"]}, {"environment": {"HOOK_LOG": "off"}}, {"preload": LIBRARY}]
)
def test_a_layer_that_can_be_is_fine(layer):
    assert found(**layer) == []


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            {"prefix": ["no-such-hypervisor", "run"]},
            "the layer of condition hooked starts with no-such-hypervisor, and there is no such command.",
        ),
        ({"preload": "libnone.so"}, "preloads libnone.so, and that is not a shared library."),
        ({"preload": __file__}, "and that is not a shared library."),
        (
            {"environment": {"PORT": "80", "WORKLOAD": "x", "A": "b"}},
            "sets PORT, WORKLOAD, which the harness sets itself.",
        ),
    ],
)
def test_a_layer_that_cannot_be_is_an_error(layer, expected):
    [message] = found(**layer)

    assert expected in message


def test_without_a_layer_there_is_nothing_to_find():
    assert list(check_layer(experiment())) == []
    assert list(check_layer(experiment(condition=ConditionSpec(name="alone")))) == []


def test_neighbours_are_checked_like_the_measured_workload():
    lost = neighbour().model_copy(
        update={"workload": neighbour().workload.model_copy(update={"factory": "no_such_module:make"})}
    )
    hungry = neighbour(name="hungry").model_copy(
        update={"workload": neighbour(name="hungry").workload.model_copy(update={"memory_gb": 100_000.0})}
    )
    condition = ConditionSpec(name="beside", neighbours=[lost, hungry])

    errors = [
        one.message for one in check_machine([experiment(condition=condition)]) if one.severity is IssueLevel.ERROR
    ]

    assert any("the workload noisy is no_such_module:make" in message for message in errors)
    assert any(
        "2 replicas of tiny and 1 replica of noisy and 1 replica of hungry need about 100000.6 GB" in message
        for message in errors
    )


def test_in_a_pod_the_library_is_the_images_and_the_pods_own_variables_are_taken():
    def told(**layer):
        condition = ConditionSpec(name="hooked", layer=LayerSpec(**layer))
        return [one.message for one in check_layer_of_image(experiment(condition=condition))]

    assert told(prefix=["only-in-the-image"], preload="/opt/only-in-the-image.so") == []
    assert told(preload="./hook.so") == [
        "the layer of condition hooked preloads ./hook.so, and on a cluster that is a library of the replicas' image."
    ]
    assert told(environment={"REPLICA_NAME": "a", "WORKLOAD": "b"}) == [
        "the layer of condition hooked sets REPLICA_NAME, WORKLOAD, which the harness sets itself."
    ]
