"""What a recording says of why it was as long as it was."""

from harness.campaign.stopping import StopRule
from harness.spec import StopWhenKnown


def test_what_could_never_be_judged_is_not_called_wide(tmp_path):
    judge = StopRule(StopWhenKnown(min_s=30), tmp_path, replicas=1, start_s=0.0, step_s=5.0)
    assert not judge.due(6)

    assert judge.record(rows=7, planned_rows=7)["why"] == (
        "Recorded to the end (30 s): how well throughput, latency_p50_exact, latency_p99_exact were known could not be judged before."
    )
