"""What a server is asked: made from a seed, or taken from files."""

import itertools
import json

import pytest

from harness.traffic import questions as asked
from harness.traffic.protocols import BadAnswerError, body_of, read_whole
from tests.unit.traffic.engines import LENGTHS, engine


def test_questions_repeat_with_the_seed_and_keep_their_bounds():
    lengths = {"input_tokens": {"mean": 10, "stddev": 50, "min": 2, "max": 12}, "output_tokens": {"mean": 7}}

    def first(seed):
        return list(itertools.islice(asked.questions(engine(requests=lengths), seed), 200))

    assert first(1) == first(1) != first(2)
    lengths_found = {len(question.prompt.split()) for question in first(1)}
    assert min(lengths_found) == 2
    assert max(lengths_found) == 12
    assert {question.output_tokens for question in first(1)} == {7}


def test_tensors_are_filled_from_the_seed_and_with_the_prompt():
    tensors = [
        {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": None},
        {"name": "n", "shape": [9], "datatype": "INT8", "data": None},
        {"name": "b", "shape": [1], "datatype": "BOOL", "data": [True]},
        {"name": "t", "shape": [1], "datatype": "BYTES", "data": None},
        {"name": "u", "shape": [1], "datatype": "BYTES", "data": ['say "{prompt}"']},
    ]
    settings = engine(protocol="oip", model="a model", tensors=tensors)

    def first(seed):
        taken = itertools.islice(asked.questions(settings, seed), 2)
        return [json.loads(body_of(settings, question))["inputs"] for question in taken]

    one, two = first(1)
    x, n, b, t, u = one
    assert (x["name"], x["shape"], x["datatype"], len(x["data"])) == ("x", [2, 3], "FP32", 6)
    assert all(0 <= each <= 1 for each in x["data"])
    assert len(n["data"]) == 9
    assert all(type(each) is int and 0 <= each < 100 for each in n["data"])
    assert b["data"] == [True]
    assert u["data"] == [f'say "{t["data"][0]}"']
    assert len(t["data"][0].split()) == LENGTHS["input_tokens"]["mean"]
    assert one[:3] == two[:3], "numbers are drawn once"
    assert one[3:] != two[3:], "texts for each request"
    assert first(1) == first(1) != first(2)
    assert (settings.target, settings.streams) == ("/v2/models/a%20model/infer", False)


@pytest.mark.parametrize("body", [b"{}", b'{"outputs": []}', b'{"outputs": {}}', b"[]", b"x"])
def test_an_answer_without_outputs_is_a_bad_answer(body):
    with pytest.raises(BadAnswerError):
        read_whole(engine(protocol="oip", model="m"), body)


def test_a_file_is_asked_in_turn(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 9}\n\n{"messages": [1]}\n{"body": {"x": 1}}\n')
    found = list(itertools.islice(asked.questions(engine(requests=LENGTHS | {"file": str(path)}), 0), 6))
    assert found[:3] == found[3:]
    assert {question.output_tokens for question in found} == {9, 3}
    assert {"a", ""} == {question.prompt for question in found}


def test_conversations_in_sharegpts_form_are_asked_by_their_first_turn(tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "one"}, {"from": "gpt", "value": "an answer"}]
    others = [[], turns[1:], [{"from": "user", "value": "two"}], [{"from": "human", "value": ""}]]
    path.write_text(
        json.dumps([{"id": str(number), "conversations": each} for number, each in enumerate([turns, *others])])
    )
    found = list(itertools.islice(asked.questions(engine(requests=LENGTHS | {"file": str(path)}), 0), 4))
    assert [question.prompt for question in found] in (["one", "two"] * 2, ["two", "one"] * 2)
    assert {question.output_tokens for question in found} == {3}
