"""What a local replica leaves behind is read, or is missing, and never a traceback."""

import types

import pytest

from harness.backends.local_replica import LocalReplica, ReplicaSlot
from harness.errors import BackendError
from harness.spec import WorkloadSpec


@pytest.fixture
def replica(tmp_path):
    slot = ReplicaSlot(WorkloadSpec(name="tiny", factory="a:b"), 0, tmp_path)
    return LocalReplica(slot, {}, types.SimpleNamespace(start=lambda *_, **__: None))


def test_the_end_of_a_log_is_told(replica):
    replica.log.parent.mkdir(parents=True)
    replica.log.write_text("first\n\n  last \n")

    assert replica.last_lines() == ["first", "last"]


def test_a_log_that_somebody_took_away_said_nothing(replica):
    assert replica.last_lines() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "\udcff", "[" * 5000])
def test_a_status_of_anything_else_is_none(replica, text):
    (replica.log.parents[1] / "replicas" / "replica-0" / "replica.json").write_text(text, errors="surrogateescape")

    assert replica.status() == {}
    with pytest.raises(BackendError):
        replica.target()
    with pytest.raises(BackendError):
        replica.gpu_pids()
