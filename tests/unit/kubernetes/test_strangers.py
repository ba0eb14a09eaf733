"""Pods of others are those that come while replicas run, not those of a place whose pods could not be read before."""

from types import SimpleNamespace

from harness.backends.kubernetes.strangers import Strangers
from harness.errors import BackendError


def pod(place):
    holds = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"metadata": {"name": place, "uid": place}, "spec": {"nodeName": place, "containers": [holds]}}


def test_the_first_look_at_a_place_is_the_first_that_succeeds(tmp_path):
    away = {"n2"}

    def listing(_kind, *, fields):
        place = fields.removeprefix("spec.nodeName=")
        if place in away:
            raise BackendError("the API server does not answer.")
        return [pod(place)]

    strangers = Strangers(SimpleNamespace(list=listing), ["n1", "n2"], "mine")
    strangers.look()
    away.clear()
    strangers.look()

    assert list(strangers.findings(tmp_path / "telemetry.csv", [])) == []
