"""Texts have exactly the tokens that were asked for, by the tokenizer's own count."""

import itertools
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from harness.errors import LoadError
from harness.traffic import questions as asked
from harness.traffic.protocols import UNKNOWN
from harness.traffic.texts import Texts
from tests.support import local_tokenizers
from tests.unit.traffic.engines import engine

LENGTHS = {"input_tokens": {"mean": 9, "stddev": 20, "min": 2, "max": 40}, "output_tokens": {"mean": 3}}


@pytest.fixture
def tokenizer(tmp_path):
    """The path of a tokenizer of letters."""
    local_tokenizers.letters().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def first(count, seed=0, **server):
    return list(itertools.islice(asked.questions(engine(**{"protocol": "openai-chat", **server}), seed), count))


@pytest.mark.parametrize("kind", ["letters", "pieces", "unigram", "words"])
def test_a_text_has_exactly_the_tokens_that_were_asked_for(tmp_path, kind):
    file = tmp_path / "mine.json"
    getattr(local_tokenizers, kind)().save(str(file))
    theirs = Tokenizer.from_file(str(file))
    theirs.no_truncation()
    theirs.no_padding()
    made, chance = Texts(Path(file)), random.Random(1)
    for tokens in (1, 2, 3, 17, 1000):
        text = made.make(tokens, chance)
        assert (
            len(theirs.encode(text, add_special_tokens=False).ids) == made.count(text) == made.known(tokens) == tokens
        )
        assert "<unk>" not in theirs.encode(text, add_special_tokens=False).tokens
    assert made.make(50, random.Random(2)) == made.make(50, random.Random(2)) != made.make(50, random.Random(3))


def test_synthetic_prompts_have_the_drawn_lengths_and_say_them(tokenizer):
    theirs = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found = first(50, requests=LENGTHS | {"tokenizer": str(tokenizer)})
    counted = [len(theirs.encode(question.prompt).ids) for question in found]
    assert counted == [question.input_tokens for question in found]
    assert counted == [len(question.prompt.split()) for question in first(50, requests=LENGTHS)], (
        "the same lengths as without"
    )
    assert {2, 40} < set(counted)
    assert found == first(50, requests=LENGTHS | {"tokenizer": str(tokenizer)})
    assert json.loads(found[0].body)["messages"] == [{"role": "user", "content": found[0].prompt}]


def test_the_prompts_of_a_file_are_counted_and_those_of_a_trace_made_so(tokenizer):
    (tokenizer / "asked.jsonl").write_text('{"prompt": "red sea"}\n{"messages": [1]}\n')
    found = first(2, requests=LENGTHS | {"tokenizer": str(tokenizer), "file": str(tokenizer / "asked.jsonl")})
    assert {(question.prompt, question.input_tokens) for question in found} == {("red sea", 7), ("", UNKNOWN)}
    (tokenizer / "trace.jsonl").write_text(
        "".join(f'{{"timestamp": {at}, "input_length": {at + 3}, "output_length": 1}}\n' for at in range(4))
    )
    trace = {"file": str(tokenizer / "trace.jsonl"), "unit": "ms"}
    found = first(4, requests={"tokenizer": str(tokenizer)}, trace=trace)
    assert [(len(question.prompt), question.input_tokens) for question in found] == [
        (at + 3, at + 3) for at in range(4)
    ]


def test_without_one_nobody_knows_how_many_tokens_a_prompt_has():
    assert {question.input_tokens for question in first(3, requests=LENGTHS)} == {UNKNOWN}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            None,
            "cannot be read: No such file or directory; give a folder with tokenizer.json, or that file. Nothing is fetched",
        ),
        ("{", "is not a tokenizer of the form of tokenizer.json"),
        ('{"model": 1}', "is not a tokenizer of the form of tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_is_said(tmp_path, text, message):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(LoadError, match=message):
        Texts(Path(tmp_path))


def test_one_of_which_no_texts_can_be_made_is_said(tmp_path):
    local_tokenizers.words(count=1).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LoadError, match=r"no text of a given number of tokens can be made with the tokenizer"):
        Texts(Path(tmp_path))
