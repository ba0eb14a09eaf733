"""What is said of victims who live and serve no more, and of who ran out of memory."""

import time
from dataclasses import replace

import pytest

from harness.backends.base import ReplicaDeath
from harness.campaign.verdict import crashes, lack_of_memory
from harness.errors import ReasonCode
from harness.metrics.quality import Severity
from harness.results import layout
from harness.results.requests import Window
from harness.spec import ConditionSpec, NeighbourSpec, WorkloadSpec
from harness.traffic.records import RecordLog
from tests.support.experiments import experiment

BEGIN_S = time.time()
WINDOW = Window(BEGIN_S, BEGIN_S + 20)
CRASH = ReplicaDeath(0, BEGIN_S + 10, 1, ("replica: serving crash", "replica: crashed as asked."), neighbour="crash")
LATE = replace(CRASH, noticed_at_s=WINDOW.end_s + 12.3)


def beside(name, replicas=2):
    condition = ConditionSpec(name="beside", neighbours=[NeighbourSpec(workload=WorkloadSpec(name=name))])
    return experiment(replicas=replicas, condition=condition)


def served(folder, replica, *at_s):
    place = layout.replica_folder(folder, replica)
    place.mkdir(parents=True)
    log = RecordLog(place / "latencies.bin")
    for second in at_s:
        log.append(round((BEGIN_S + second) * 1e9), 1_000_000)
    log.close()


@pytest.mark.parametrize(
    ("requests_s", "crash", "code", "severity", "says"),
    [
        ([[1, 11, 12], [5, 15]], CRASH, ReasonCode.VICTIM_SURVIVED, Severity.INFO, "and served 3 requests in the 10.0 s after it, 10.0 s into"),
        ([[1, 11, 12], [5]], CRASH, ReasonCode.VICTIM_DIED, Severity.DEGRADED, "did not survive: replica-1 lives and served nothing"),
        ([[1]], CRASH, ReasonCode.VICTIM_DIED, Severity.INVALID, "did not survive: replica-0 lives and served nothing"),
        ([[1, 11], [2]], LATE, ReasonCode.NOT_JUDGED, Severity.DEGRADED, "12.3 s after the recording"),
    ],
    ids=["all serve on", "one does not", "nobody does", "after the last row"],
)  # fmt: skip
def test_who_lives_and_serves_no_more_has_not_survived(tmp_path, requests_s, crash, code, severity, says):
    for replica, at_s in enumerate(requests_s):
        served(tmp_path, replica, *at_s)

    [effect] = crashes(beside("crash", replicas=len(requests_s)), tmp_path, WINDOW, [crash])

    assert (effect.code, effect.severity) == (code, severity)
    assert says in effect.message
    assert effect.message.endswith("exited with 1; last lines: replica: crashed as asked.")


@pytest.mark.parametrize(
    ("said", "deaths", "severity", "says"),
    [
        ([{"memory_refusals": 7, "held_bytes_most": 5_000_000_000}], [], Severity.INFO, "7 times with 5.0 GB held at most; of the measured replicas none"),
        ([{"memory_refusals": 7}], [ReplicaDeath(1, 0.0, 4)], Severity.INFO, "of the measured replicas replica 1."),
        ([{}], [ReplicaDeath(1, 0.0, 4)], Severity.INFO, "Out of memory: of the measured replicas replica 1. What memory-hog held it did not say."),
        ([{}], [], Severity.DEGRADED, "is not known: it did not say what it held."),
        ([{"memory_refusals": 0, "held_bytes_most": 10**9}], [ReplicaDeath(1, 0.0, 1)], Severity.DEGRADED, "is not known: it held at most 1.0 GB"),
    ],
)  # fmt: skip
def test_the_verdict_says_who_ran_out_of_memory(said, deaths, severity, says):
    [effect] = lack_of_memory(beside("memory-hog"), deaths, {"memory-hog": said})

    assert effect.severity is severity
    assert says in effect.message


def test_without_such_a_neighbour_there_is_nothing_to_say(tmp_path):
    other = beside("dram-hog")

    assert [*crashes(other, tmp_path, WINDOW, []), *lack_of_memory(other, [], {"dram-hog": [{}]})] == []
