"""What MPS allows each replica, as a campaign file says it."""

import pytest

from harness.spec import CampaignSpec, MpsLimits, MpsSpec


@pytest.mark.parametrize(
    ("share", "label", "identity", "of_8"),
    [
        ("all", "", "", None),
        (100, "", "", None),
        (12.5, "12.5%", "12.5pct", 12.5),
        ("1/N", "1/N", "1-over-n", 12.5),
        ("2 / N", "2/N", "2-over-n", 25),
        ("16/N", "16/N", "16-over-n", 100),
    ],
)
def test_a_share_of_mps_has_one_form_a_label_and_a_percentage(share, label, identity, of_8):
    found = MpsLimits(share=share, swept=True)

    assert (found.label, found.identity, found.percentage(8)) == (label, identity, of_8)
    assert MpsLimits(share=share).identity == ""
    assert MpsLimits.model_validate_json(found.model_dump_json()) == found


def test_one_value_is_a_list_of_one():
    assert MpsSpec.model_validate({"share": "1/N", "pinned_memory_gb": 2}).limits() == [
        MpsLimits(share="1/N", pinned_memory_gb=2)
    ]


@pytest.mark.parametrize(
    ("earlier", "share"),
    [
        ({"equal_share": True, "active_thread_percentage": None}, "1/N"),
        ({"equal_share": False, "active_thread_percentage": 50}, 50),
        ({"equal_share": False, "active_thread_percentage": None}, "all"),
    ],
)
def test_limits_that_an_earlier_version_wrote_are_read(earlier, share):
    written = {**earlier, "pinned_memory_gb": 2.0}

    assert MpsLimits.model_validate(written) == MpsLimits(share=share, pinned_memory_gb=2)
    assert MpsSpec.model_validate(written).limits() == [MpsLimits(share=share, pinned_memory_gb=2)]


def test_what_is_excluded_is_no_cell_of_the_matrix():
    excluded = [
        {"sharing": "time-slicing", "replicas": 1},
        {"sharing": "mps", "replicas": 1},
        {"share": "2/N", "replicas": 2},
    ]
    spec = CampaignSpec.model_validate(
        {
            "name": "x",
            "workloads": [{"name": "resnet50"}],
            "sharing": ["exclusive", "time-slicing", "mps"],
            "mps": {"share": ["all", "2/N"]},
            "replicas": [1, 2, 4],
            "exclude": excluded,
        }
    )
    assert [(cell.mode, cell.replicas) for cell in spec.cells()] == [
        ("exclusive", 1),
        ("time-slicing", 2),
        ("time-slicing", 4),
        ("mps", 2),
        ("mps", 4),
        ("mps (2/N)", 4),
    ]
