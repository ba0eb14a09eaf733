"""Campaign files that mean harm, or are none: refused in a sentence, with little work."""

import pytest

from harness.campaign.source import read_source
from harness.errors import CampaignFileError
from harness.spec import CampaignSpec
from harness.spec.load import parse_campaign
from tests.unit.spec.short_file import CONDITIONS, GOOD, faults

OPTION = GOOD.replace("name: resnet50", "name: resnet50\n    options: {x: VALUE}")
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1.0e+400"])
@pytest.mark.parametrize(
    ("text", "line"),
    [(OPTION, 5), (GOOD + "timing:\n  rate_window_s: VALUE\n", 7), (GOOD + "overhead_limit_percent: VALUE\n", 6)],
)
def test_no_number_of_the_file_is_anything_but_finite(text, line, value):
    assert f"c.yaml:{line}: {value} is not a finite number" in faults(text.replace("VALUE", value))


def test_no_model_of_the_file_takes_a_number_that_is_not_finite():
    with pytest.raises(ValueError, match="finite"):
        CampaignSpec.model_validate_json(
            '{"name": "a", "workloads": [{"name": "resnet50", "options": {"x": NaN}}], "replicas": [1]}'
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            GOOD.replace("[1, 3]", "&a [*a]"),
            "c.yaml:5: this is not YAML: an anchor (&) or alias (*) is not allowed here",
        ),
        (BOMB, "c.yaml:1: this is not YAML: an anchor (&)"),
        (GOOD + "description: *a\n", "c.yaml:6: this is not YAML: an anchor (&) or alias (*) is not allowed here"),
        (GOOD.replace("[1, 3]", '[!!int "x"]'), "the tag tag:yaml.org,2002:int is not allowed here"),
        (GOOD.replace("[1, 3]", '[!!float "x"]'), "the tag tag:yaml.org,2002:float is not allowed here"),
        (GOOD + 'description: !!timestamp "x"\n', "c.yaml:6: this is not YAML: the tag"),
        (GOOD.replace("[1, 3]", f"[{'9' * 6000}]"), f"c.yaml:5: {'9' * 24}... is not a readable number"),
        (GOOD + "seed: 9223372036854775808\n", "c.yaml:6: 9223372036854775808 is larger than any number here may be"),
        (GOOD.replace("[1, 3]", "[" * 5000 + "]" * 5000), "c.yaml:5: this is not YAML: lists and mappings lie more"),
        (GOOD + "a\0b: 1\n", "c.yaml:6: this is not YAML: special characters are not allowed"),
        (GOOD + 'description: "a\\0b"\n', "c.yaml:6: a text holds a NUL"),
        (GOOD + 'description: "a\\ud800b"\n', "c.yaml:6: a text holds a NUL or half a character"),
        (GOOD + "2024-01-01: 1\n", "c.yaml:6: unknown key `2024-01-01`"),
        (GOOD + "2024-13-45: 1\n", "c.yaml:6: unknown key `2024-13-45`"),
        (GOOD + "? [a]\n: 1\n", "c.yaml:6: a key must be a word"),
        (GOOD + "<<: {a: 1}\n", "c.yaml:6: unknown key `<<`"),
        (GOOD.replace("[1, 3]", f"[{'1,' * 20_000}]"), "more than 20,000 values"),
        (GOOD + "description: " + "a" * 300_000, "c.yaml is longer than 262,144 characters"),
        (
            GOOD.replace("[1, 3]", str(list(range(1, 257)))) + "sharing: [mps, mig]\nrepeats: 100\n",
            "this is a plan of 51,200 experiments, more than 10,000",
        ),
        (GOOD + "metrics:\n  - throughput\n  - latency_p98\n", "c.yaml:8: unknown metric `latency_p98`; did you"),
        ("name: [unclosed\n", "c.yaml:2: this is not YAML: while parsing a flow sequence"),
    ],
)
def test_a_file_that_means_harm_is_refused_in_a_sentence(text, expected):
    assert expected in refusal(text)


def test_words_that_yaml_takes_for_other_things_stay_words():
    text = CONDITIONS + "  - {name: b, layer: {environment: {ON: 'x', No: 'y'}}}\ndescription: 2024-01-01\n"
    spec = parse_campaign(text, origin="c.yaml")

    assert spec.description == "2024-01-01"
    assert spec.conditions[1].layer.environment == {"ON": "x", "No": "y"}


def test_a_syntax_error_has_its_advice():
    with pytest.raises(CampaignFileError) as caught:
        parse_campaign("name: [unclosed\n", origin="c.yaml")

    assert caught.value.advice


def test_only_the_beginning_of_a_huge_file_is_read(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(CampaignFileError, match="longer than"):
        read_source(str(path))


def refusal(text):
    with pytest.raises(CampaignFileError) as caught:
        parse_campaign(text, origin="c.yaml", metrics=["throughput", "latency_p99"])
    return str(caught.value)
