"""The settings of a replica: what the harness tells it in one variable, what somebody sets by hand, and what is never read."""

import dataclasses
from pathlib import Path

import pytest

from harness.campaign.verdict import ignored_settings
from harness.errors import ReasonCode
from harness.replica.errors import ExitCode, SettingError
from harness.replica.settings import ReadSettings, Settings, from_environment
from harness.spec.replica import BY_HAND, OF_THE_PLACE, VARIABLE, ReplicaSpec
from harness.spec.scenario import ScenarioSpec
from harness.spec.workload import WorkloadSpec

SET = {
    "WORKLOAD": ("whisper", "workload", "whisper"),
    "BATCH_SIZE": ("4", "batch_size", 4),
    "PRECISION": ("bf16", "precision", "bf16"),
    "EXECUTION": ("cuda-graph", "execution", "cuda-graph"),
    "DEVICE": ("cuda", "device", "cuda"),
    "STREAM_PRIORITY": ("high", "stream_priority", "high"),
    "SEED": ("7", "seed", 7),
    "CHECKPOINT": ("/weights", "checkpoint", Path("/weights")),
    "INFERENCE_SLEEP": ("0.25", "inference_sleep_s", 0.25),
    "WARMUP_REQUESTS": ("0", "warmup_requests", 0),
    "TORCH_THREADS": ("3", "torch_threads", 3),
    "WORKLOAD_OPTIONS": ('{"model_size": "tiny", "new_tokens": 3}', "options", {"model_size": "tiny", "new_tokens": 3}),
    "SHARED_CPUS": ("1", "shared_cpus", 1),
    "SCENARIO": ('{"kind": "offline"}', "scenario", ScenarioSpec(kind="offline")),
    "TRACE": ("0", "trace", False),
    "HOST": ("127.0.0.1", "host", "127.0.0.1"),
    "PORT": ("0", "port", 0),
    "REPLICA": ("2", "replica", 2),
    "REPLICA_CPUS": ("8,0,8", "cpus", (0, 8)),
    "REPLICA_DIR": ("/run/replica", "replica_dir", Path("/run/replica")),
    "REPLICA_LOADS": ("1", "loads", True),
    "REPLICA_SHARING": ("modes:join", "sharing", "modes:join"),
    "RUN_SECONDS": ("0.5", "run_s", 0.5),
    "LINGER_SECONDS": ("2", "linger_s", 2.0),
}
"""What is set, and the setting that it becomes."""
ENVIRONMENT = {name: text for name, (text, _, _) in SET.items()}


def read(environment):
    return dataclasses.replace(from_environment(environment), spec=None)


@pytest.mark.parametrize("environment", [{}, {"BATCH_SIZE": "", "CHECKPOINT": " ", "UNRELATED": "ignored"}])
def test_an_unset_or_empty_variable_is_its_default(environment):
    assert read(environment) == Settings()


def test_every_variable_is_read():
    assert SET.keys() == BY_HAND.keys() | OF_THE_PLACE.keys()
    for name in ("INFERENCE_SLEEP", "SCENARIO"):  # which exclude each other
        environment = {other: text for other, text in ENVIRONMENT.items() if other != name}
        meant = {setting: value for other, (_, setting, value) in SET.items() if other != name}
        assert read(environment) == Settings(**meant)
    assert read({"WORKLOAD": "mine.own:make"}).workload == "mine.own:make"


def test_what_the_harness_tells_is_read_whole_and_variables_of_a_shell_change_none_of_it():
    spec = ReplicaSpec(workload=WorkloadSpec(name="mine", factory="a:make", batch_size=8), settle_s=3, record_s=9)
    settings = from_environment(ENVIRONMENT | spec.environment())
    assert settings.spec == spec
    assert (settings.workload, settings.batch_size, settings.device, settings.port) == ("a:make", 8, "auto", 0)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("BATCH_SIZE", "0", "BATCH_SIZE: must be at least 1"),
        ("BATCH_SIZE", "two", "BATCH_SIZE: must be a whole number"),
        ("TORCH_THREADS", "0", "TORCH_THREADS: must be at least 1"),
        ("PORT", "65536", "PORT: must be at most 65535"),
        ("SEED", "-1", "SEED: must be at least 0"),
        ("PRECISION", "int8", "PRECISION: must be 'fp32', 'fp16' or 'bf16'"),
        ("INFERENCE_SLEEP", "-0.1", "INFERENCE_SLEEP: must be at least 0"),
        ("INFERENCE_SLEEP", "nan", "INFERENCE_SLEEP: must be a finite number"),
        ("REPLICA_CPUS", "a", "REPLICA_CPUS: "),
        ("RUN_SECONDS", "-1", "RUN_SECONDS: "),
        ("WORKLOAD", "resnet5", r"WORKLOAD: unknown workload 'resnet5': did you mean `resnet50`"),
        ("WORKLOAD_OPTIONS", "{", "WORKLOAD_OPTIONS is not JSON"),
        ("WORKLOAD_OPTIONS", "[1]", "WORKLOAD_OPTIONS: must be an object"),
        ("WORKLOAD_OPTIONS", '{"model_size": [1]}', "WORKLOAD_OPTIONS: model_size "),
        ("SCENARIO", '{"kind": "server"}', "SCENARIO: .*needs `rate`"),
        ("SCENARIO", '{"kind": "offlin"}', "SCENARIO: kind "),
        (VARIABLE, "{", f"{VARIABLE}: "),
        (VARIABLE, '{"workload": {"name": "resnet50"}, "unknown": 1}', f"{VARIABLE}: unknown"),
    ],
)
def test_a_wrong_value_names_the_variable(name, value, says):
    with pytest.raises(SettingError, match=says) as caught:
        from_environment({name: value})
    assert caught.value.exit_code is ExitCode.BAD_SETTING


def test_an_option_keeps_the_kind_of_its_default():
    settings = Settings(options={"flag": True, "count": 3})
    assert settings.option("flag", default=False) is True
    assert settings.option("count", 1) == 3
    assert settings.option("absent", "default") == "default"
    with pytest.raises(SettingError, match="flag must be a int"):
        settings.option("flag", 1)


def test_an_unknown_option_is_named_with_the_nearest_known_one():
    settings = Settings(workload="whisper", options={"new_token": 3})
    with pytest.raises(SettingError, match=r"whisper has no option 'new_token'; did you mean `new_tokens`"):
        settings.known_options("model_size", "new_tokens")


def test_replicas_that_differ_in_name_alone_get_different_numbers():
    numbers = {from_environment({"REPLICA_NAME": name}).replica for name in ("tiny-7d4-abcde", "tiny-7d4-fghij")}

    assert len(numbers) == 2
    assert from_environment({"REPLICA_NAME": "tiny-7d4-abcde", "REPLICA": "3"}).replica == 3


GIVEN = Settings(
    workload="mine:make", batch_size=8, precision="fp16", seed=3, torch_threads=2, options={"words": 5, "window": 2}
)


def test_what_nobody_read_is_listed_and_what_is_unknown_is_null():
    settings = ReadSettings(GIVEN)

    assert settings.batch_size == 8
    assert settings.options.get("words") == 5

    assert settings.ignored({}) == settings.ignored({})  # to ask changes nothing
    assert settings.ignored({}) == {
        "ignored_settings": ["precision", "seed", "threads", "options.window"],
        "precision": None,
        "execution": None,
    }


def test_what_the_workload_describes_has_the_last_word():
    settings = ReadSettings(GIVEN)
    assert (settings.seed, settings.torch_threads, settings.batch_size, dict(settings.options)) == (
        3,
        2,
        8,
        GIVEN.options,
    )

    assert settings.ignored({"precision": "fp16", "execution": "eager"}) == {"ignored_settings": []}
    assert settings.ignored({"precision": "fp32", "execution": "eager"}) == {"ignored_settings": ["precision"]}


def test_defaults_and_passes_that_the_replica_makes_are_not_ignored():
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
def test_every_way_of_reading_options_counts(reads):
    settings = ReadSettings(GIVEN)

    reads(settings)

    assert not [name for name in settings.ignored({})["ignored_settings"] if name.startswith("options")]


def test_the_settings_still_are_settings():
    settings = ReadSettings(GIVEN)

    assert isinstance(settings, Settings)
    assert dataclasses.replace(GIVEN, batch_size=2).batch_size == 2
    assert dataclasses.asdict(settings)["options"] == GIVEN.options


def test_the_verdict_names_what_no_replica_took_up():
    (finding,) = ignored_settings([{"ignored_settings": ["seed", "precision"]}, {"ignored_settings": ["precision"]}])

    assert finding.code is ReasonCode.SETTING_IGNORED
    assert "ignored precision:" in finding.message
    assert ignored_settings([{"ignored_settings": ["precision"]}, {}]) == []
    assert ignored_settings([{}]) == ignored_settings([]) == []
