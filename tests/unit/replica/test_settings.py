"""The environment of a replica: every variable, and what is said when one is wrong."""

from pathlib import Path

import pytest

from harness.replica.errors import ExitCode, SettingError
from harness.replica.settings import Settings, from_environment


def test_an_empty_environment_gives_the_documented_defaults():
    settings = from_environment({})
    assert settings == Settings()
    assert (settings.workload, settings.batch_size, settings.precision, settings.execution) == (
        "resnet50",
        1,
        "fp32",
        "eager",
    )
    assert (settings.inference_sleep_s, settings.warmup_requests, settings.port) == (0.0, 5, 8000)
    assert settings.torch_threads is None
    assert settings.replica_dir is None


def test_every_variable_is_read():
    settings = from_environment(
        {
            "WORKLOAD": "whisper",
            "BATCH_SIZE": "4",
            "PRECISION": "bf16",
            "EXECUTION": "cuda-graph",
            "DEVICE": "cuda",
            "SEED": "7",
            "CHECKPOINT": "/weights",
            "INFERENCE_SLEEP": "0.25",
            "WARMUP_REQUESTS": "0",
            "TORCH_THREADS": "3",
            "WORKLOAD_OPTIONS": '{"model_size": "tiny", "new_tokens": 3}',
            "HOST": "127.0.0.1",
            "PORT": "0",
            "REPLICA": "2",
            "REPLICA_DIR": "/run/replica",
            "SHARED_CPUS": "1",
            "UNRELATED": "ignored",
        }
    )
    assert settings == Settings(
        workload="whisper",
        batch_size=4,
        precision="bf16",
        execution="cuda-graph",
        device="cuda",
        seed=7,
        checkpoint=Path("/weights"),
        inference_sleep_s=0.25,
        warmup_requests=0,
        torch_threads=3,
        shared_cpus=1,
        options={"model_size": "tiny", "new_tokens": 3},
        host="127.0.0.1",
        port=0,
        replica=2,
        replica_dir=Path("/run/replica"),
    )


def test_an_empty_variable_is_an_unset_one():
    assert from_environment({"BATCH_SIZE": "", "CHECKPOINT": " ", "TORCH_THREADS": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("BATCH_SIZE", "0", "BATCH_SIZE: 0 is not between 1 and"),
        ("BATCH_SIZE", "two", "BATCH_SIZE: 'two' is not a whole number"),
        ("TORCH_THREADS", "0", "TORCH_THREADS: 0 is not between 1 and"),
        ("PORT", "65536", "PORT: 65536 is not between 0 and 65535"),
        ("SEED", "-1", "SEED: -1 is not between"),
        ("PRECISION", "int8", "PRECISION: 'int8' is not one of fp32, fp16, bf16"),
        ("EXECUTION", "fast", "EXECUTION: 'fast' is not one of"),
        ("DEVICE", "tpu", "DEVICE: 'tpu' is not one of"),
        ("INFERENCE_SLEEP", "-0.1", "INFERENCE_SLEEP: -0.1 is not"),
        ("INFERENCE_SLEEP", "nan", "INFERENCE_SLEEP: nan is not"),
        ("INFERENCE_SLEEP", "long", "INFERENCE_SLEEP: 'long' is not a number"),
        ("WORKLOAD_OPTIONS", "{", "WORKLOAD_OPTIONS is not JSON"),
        ("WORKLOAD_OPTIONS", "[1]", "must be a JSON object"),
        ("WORKLOAD_OPTIONS", '{"a": [1]}', r"a must be a string, a number or a boolean, not \[1\]"),
        ("WORKLOAD_OPTIONS", '{"a": null}', "not None"),
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
    with pytest.raises(SettingError, match=r"whisper has no option 'new_token'; did you mean new_tokens\?"):
        settings.known_options("model_size", "new_tokens")


def test_replicas_that_differ_in_name_alone_get_different_numbers():
    numbers = {from_environment({"REPLICA_NAME": name}).replica for name in ("tiny-7d4-abcde", "tiny-7d4-fghij")}

    assert len(numbers) == 2
    assert from_environment({"REPLICA_NAME": "tiny-7d4-abcde", "REPLICA": "3"}).replica == 3


def test_a_time_to_run_is_none_or_seconds():
    assert from_environment({}).run_s is None
    assert from_environment({"RUN_SECONDS": "0.5", "LINGER_SECONDS": "2"}).run_s == 0.5
    with pytest.raises(SettingError, match="RUN_SECONDS"):
        from_environment({"RUN_SECONDS": "-1"})
