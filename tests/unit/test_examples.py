"""The result sets that are shipped hold what their manifests say, and what the README says of them."""

from pathlib import Path

import pytest

from harness.results.experiment import verify_campaign

ROOT = Path(__file__).parents[2]
CAMPAIGNS = sorted(path.parent for path in ROOT.glob("examples/*/*/campaign.json"))


def test_there_is_a_result_set():
    assert CAMPAIGNS


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.name)
def test_every_shipped_result_set_verifies(campaign):
    outcome = verify_campaign(campaign)

    assert outcome.ok, outcome.problems[0]
    assert outcome.experiments == 27
