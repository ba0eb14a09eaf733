"""The reasons of a verdict carry codes, so that no program reads their sentences."""

from __future__ import annotations

import pytest

from harness.backends.base import KILLED_FOR_MEMORY, ReplicaDeath
from harness.campaign.verdict import give_verdict
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.results.manifest import Status, Verdict


@pytest.mark.parametrize(
    ("exit_code", "reason", "neighbour", "code"),
    [
        (4, "", "", ReasonCode.OUT_OF_MEMORY),
        (137, "OOMKilled", "", ReasonCode.OUT_OF_MEMORY),
        (137, f"{KILLED_FOR_MEMORY} (cgroup limit 0.4 GB)", "", ReasonCode.OUT_OF_MEMORY),
        (137, "", "", ReasonCode.REPLICA_DIED),
        (None, "the node is gone", "", ReasonCode.REPLICA_DIED),
        (4, "", "noisy", ReasonCode.NEIGHBOUR_DIED),
    ],
)
def test_a_death_says_what_it_was_of(exit_code: int | None, reason: str, neighbour: str, code: ReasonCode) -> None:
    death = ReplicaDeath(0, 0.0, exit_code, ["out of memory"], reason, neighbour)

    assert death.code is code


def test_every_reason_has_its_code_and_is_said_once() -> None:
    flaw = Finding(Severity.DEGRADED, ReasonCode.UNSTEADY, "throughput", "It was not steady.", "Wait.")
    failure = Finding(Severity.INVALID, ReasonCode.METRICS, "", "record: nobody answered.")

    verdict = give_verdict(
        [flaw, flaw],
        failures=[failure],
        deaths=[ReplicaDeath(0, 0.0, 4)],
        unclean_ends=["replica-1 was killed."],
        replicas=2,
    )

    assert verdict.status is Status.INVALID
    assert [code for code, _ in verdict.coded_reasons] == [
        ReasonCode.METRICS,
        ReasonCode.UNSTEADY,
        ReasonCode.OUT_OF_MEMORY,
        ReasonCode.UNCLEAN_END,
    ]
    assert len(verdict.advice) == 2


def test_the_reasons_of_an_older_version_have_an_unknown_cause() -> None:
    old = {"status": "DEGRADED", "reasons": ["replica 1 exited with 4; last lines: out of memory."], "advice": []}

    assert Verdict.model_validate(old).coded_reasons == [(ReasonCode.UNKNOWN, old["reasons"][0])]
