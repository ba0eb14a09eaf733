"""What is said of how answers were counted and sent."""

import numpy as np
import pytest

from harness.analysis.answers import findings_of_answers, token_sources
from harness.analysis.read import read_requests, times_ns
from harness.errors import ReasonCode
from harness.results.requests import ROW, RequestTable, Window
from harness.traffic.records import NONE, OK, TokenSource

MS = 1_000_000


def rows(number=20, **values):
    """Answers of 10 tokens, one in a piece, every 10 ms after the first."""
    answers = np.zeros(number, ROW)
    usual = {
        "status": OK, "intended_ns": 0, "sent_ns": 0, "first_token_ns": 100 * MS, "first_answer_ns": 100 * MS, "end_ns": 190 * MS,
        "input_tokens": 30, "output_tokens": 10, "pieces": 10, "token_source": TokenSource.USAGE, "tokenizer_tokens": NONE,
    }  # fmt: skip
    for name, value in (usual | values).items():
        answers[name] = value
    return answers


def said(answers, tmp_path):
    requests = read_requests(RequestTable(answers, ()), tmp_path, Window(0, 1))
    return [finding.code for finding in findings_of_answers(requests)]


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({}, []),
        ({"token_source": TokenSource.PIECES}, [ReasonCode.TOKENS_NOT_SAID]),
        ({"token_source": TokenSource.USAGE_WITH_HIDDEN, "output_tokens": 90}, [ReasonCode.TOKENS_HIDDEN]),
        ({"output_tokens": 12}, []),
        ({"output_tokens": 13}, [ReasonCode.TOKENS_PER_PIECE]),
        ({"output_tokens": 13, "token_source": TokenSource.LISTED}, [ReasonCode.TOKENS_PER_PIECE]),
        ({"first_token_ns": 190 * MS - 100_000}, [ReasonCode.STREAM_BUFFERED]),
        ({"first_token_ns": 189 * MS}, []),
        ({"first_token_ns": 190 * MS, "pieces": 3, "output_tokens": 3}, []),
        ({"tokenizer_tokens": 20}, []),
        ({"tokenizer_tokens": 31}, [ReasonCode.TOKENIZER_DISAGREES]),
        ({"tokenizer_tokens": 100, "input_tokens": 190}, [ReasonCode.TOKENIZER_DISAGREES]),
        ({"pieces": NONE, "token_source": NONE, "output_tokens": NONE}, []),
        ({"status": -2, "token_source": TokenSource.PIECES}, []),
    ],
)
def test_what_changes_the_meaning_of_a_figure_is_said(values, codes, tmp_path):
    assert said(rows(**values), tmp_path) == codes


def test_few_answers_of_many_are_not_worth_a_word_but_for_hidden_tokens(tmp_path):
    mixed = rows()
    mixed["token_source"][:5] = TokenSource.PIECES
    assert said(mixed, tmp_path) == []
    assert token_sources(mixed) == {"pieces": 5, "usage": 15}
    mixed["token_source"][0] = TokenSource.USAGE_WITH_HIDDEN
    assert said(mixed, tmp_path) == [ReasonCode.TOKENS_HIDDEN]


def test_tokens_that_were_never_sent_give_no_time_per_token():
    answers = rows(2, output_tokens=[10, 70], token_source=[TokenSource.USAGE, TokenSource.USAGE_WITH_HIDDEN])
    assert times_ns(answers, "tpot").tolist()[0] == 10 * MS
    assert np.isnan(times_ns(answers, "tpot")[1])


def test_the_first_token_of_the_answer_comes_after_reasoning():
    answers = rows(2, first_answer_ns=[150 * MS, NONE])
    assert times_ns(answers, "ttft").tolist() == [100 * MS, 100 * MS]
    assert times_ns(answers, "ttfo").tolist()[0] == 150 * MS
    assert np.isnan(times_ns(answers, "ttfo")[1])
