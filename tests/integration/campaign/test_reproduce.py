"""A campaign of real replicas is published, runs again from its archive alone, and is compared cell by cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness.analysis.statistics import Outcome
from harness.campaign.folder import open_folder
from harness.campaign.verify import verify_campaign
from tests.support import forked
from tests.support.campaigns import Campaign

CAMPAIGN = """
name: published
workloads:
  - {name: tiny, factory: "tests.support.tiny_workload:steady", warmup_requests: 1}
replicas: [1, 2]
repeats: 2
timing: {step_s: 0.1, stabilise_s: 0, record_s: 0.5, cooldown_s: 0}
metrics: [throughput]
"""


def test_a_campaign_goes_round_from_its_archive(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, CAMPAIGN)
    campaign.measured()
    campaign.file.unlink()
    archive = tmp_path / "published.tar.xz"
    made = forked.harness("publish", campaign.path, "--out", archive)
    assert made.returncode == 0, made.stderr

    again = ("reproduce", archive, "--results", tmp_path / "here", "--max-repeats", "3", "--json")
    unseen = forked.harness(*again)
    assert (unseen.returncode, (tmp_path / "here").exists()) == (2, False)
    assert "imports the workload tiny: tests.support.tiny_workload:steady" in unseen.stderr
    done = forked.harness(*again, "--yes")

    said = " ".join(done.stderr.split())
    assert re.search(
        r"as published: 4 runs, about \d+.* s\. Where these are inconclusive .* at most 2 runs, about",
        said.partition("running")[0],
    ), said
    found = json.loads(done.stdout)
    # Recordings of half a second may agree, differ or leave it open: each has its exit code.
    outcomes = {cell["outcome"] for cell in found["cells"]}
    assert outcomes <= {outcome.value for outcome in Outcome}
    assert done.returncode == (12 if "differs" in outcomes or "agrees" not in outcomes else 0), done.stderr
    ran = open_folder(Path(found["campaign"]))
    assert ran.path.parent == tmp_path / "here"
    assert ran.spec == open_folder(campaign.path).spec
    assert verify_campaign(ran.path).ok
    assert [cell["replicas"] for cell in found["cells"]] == [1, 2]
    assert found["environment"] == []
    for more in map(open_folder, map(Path, found["more"])):
        assert more.path.parent == tmp_path / "here"
        assert (more.spec.repeats, verify_campaign(more.path).ok) == (1, True)
    # Without running: the same answer.
    given = [word for path in (ran.path, *found["more"]) for word in ("--against", path)]
    assert json.loads(forked.harness("reproduce", archive, *given, "--json").stdout) == found
