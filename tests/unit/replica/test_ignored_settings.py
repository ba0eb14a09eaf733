"""Settings that a workload of somebody's own never reads are told, and no fact is made of them."""

from __future__ import annotations

import dataclasses

import pytest

from harness.campaign.verdict import ignored_settings
from harness.errors import ReasonCode
from harness.replica.settings import ReadSettings, Settings
from harness.spec.scenario import ScenarioSpec

GIVEN = Settings(
    workload="mine:make", batch_size=8, precision="fp16", seed=3, torch_threads=2, options={"words": 5, "window": 2}
)


def test_what_nobody_read_is_listed_and_what_is_unknown_is_null() -> None:
    settings = ReadSettings(GIVEN)

    assert settings.batch_size == 8
    assert settings.options.get("words") == 5

    assert settings.ignored({}) == settings.ignored({})  # to ask changes nothing
    assert settings.ignored({}) == {
        "ignored_settings": ["precision", "seed", "threads", "options.window"],
        "precision": None,
        "execution": None,
    }


def test_what_the_workload_describes_has_the_last_word() -> None:
    settings = ReadSettings(GIVEN)
    assert (settings.seed, settings.torch_threads, settings.batch_size, dict(settings.options)) == (
        3,
        2,
        8,
        GIVEN.options,
    )

    assert settings.ignored({"precision": "fp16", "execution": "eager"}) == {"ignored_settings": []}
    assert settings.ignored({"precision": "fp32", "execution": "eager"}) == {"ignored_settings": ["precision"]}


def test_defaults_and_passes_that_the_replica_makes_are_not_ignored() -> None:
    assert ReadSettings(Settings(workload="mine:make")).ignored({})["ignored_settings"] == []
    of_scenario = ReadSettings(Settings(workload="mine:make", batch_size=8, scenario=ScenarioSpec(kind="offline")))
    assert of_scenario.ignored({})["ignored_settings"] == []


@pytest.mark.parametrize(
    "reads",
    [
        lambda settings: dict(settings.options),
        lambda settings: {**settings.options},
        lambda settings: list(settings.options.items()),
        lambda settings: settings.known_options("words", "window"),
        lambda settings: ("words" in settings.options, settings.options["window"]),
        lambda settings: (settings.option("words", 0), settings.number("window", 0.0)),
    ],
)
def test_every_way_of_reading_options_counts(reads) -> None:  # type: ignore[no-untyped-def]
    settings = ReadSettings(GIVEN)

    reads(settings)

    assert not [name for name in settings.ignored({})["ignored_settings"] if name.startswith("options")]


def test_the_settings_still_are_settings() -> None:
    settings = ReadSettings(GIVEN)

    assert isinstance(settings, Settings)
    assert dataclasses.replace(GIVEN, batch_size=2).batch_size == 2
    assert dataclasses.asdict(settings)["options"] == GIVEN.options


def test_the_verdict_names_what_no_replica_took_up() -> None:
    (finding,) = ignored_settings([{"ignored_settings": ["seed", "precision"]}, {"ignored_settings": ["precision"]}])

    assert finding.code is ReasonCode.SETTING_IGNORED
    assert "ignored precision:" in finding.message
    assert ignored_settings([{"ignored_settings": ["precision"]}, {}]) == []
    assert ignored_settings([{}]) == ignored_settings([]) == []
