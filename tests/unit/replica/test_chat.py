"""GPT-2 as published, token by token: the same choices as `transformers`, and how long the first one took."""

import json

import pytest
import torch
import transformers

from harness.metrics.exposition import ReplicaParser
from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.metrics import RequestMetrics
from harness.replica.models import chat
from harness.replica.settings import Settings

PROMPT_TOKENS, NEW_TOKENS, END_TOKEN = 12, 20, 9


@pytest.fixture(scope="module")
def theirs():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        n_embd=48, n_layer=3, n_head=4, vocab_size=300, n_positions=64,
        eos_token_id=END_TOKEN, bos_token_id=END_TOKEN, initializer_range=0.3,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def made(checkpoint=None, **changes):
    options = changes.pop("options", {"prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS})
    settings = {"workload": "chat", "device": "cpu", "batch_size": 2, "checkpoint": checkpoint, "options": options}
    return chat.make(Settings(**settings | changes))


def tiny(**options):
    return made(options={"model_size": "tiny"} | options)


def generated(theirs, prompts):
    """The library's own generation, greedy and of a fixed length."""
    mask = torch.ones_like(prompts)
    lengths = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    return theirs.generate(prompts, attention_mask=mask, do_sample=False, pad_token_id=END_TOKEN, **lengths)[
        :, PROMPT_TOKENS:
    ]


def test_it_loads_a_transformers_checkpoint_and_chooses_the_same_tokens(tmp_path, theirs):
    theirs.save_pretrained(tmp_path)
    ours = made(tmp_path)
    with ours.serving():
        for prompts in ours.pool[:2]:
            tokens = ours.generate(prompts)
            assert tokens.tolist() == generated(theirs, prompts).tolist()
            assert len(set(tokens.flatten().tolist())) > 5, "random weights that say one token would prove nothing"


def test_a_text_before_leaves_nothing_in_the_one_after(tmp_path, theirs):
    theirs.save_pretrained(tmp_path)
    ours = made(tmp_path)
    with ours.serving():
        first = [ours.generate(prompts).tolist() for prompts in ours.pool]
        assert [ours.generate(prompts).tolist() for prompts in reversed(ours.pool)] == first[::-1]


def test_a_checkpoint_of_the_bare_network_is_the_same(tmp_path, theirs):
    bare = theirs.transformer
    torch.save(bare.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(theirs.config.to_dict()))
    ours = made(tmp_path)
    with ours.serving():
        assert ours.generate(ours.pool[0]).tolist() == generated(theirs, ours.pool[0]).tolist()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    torch.save({"resnet.weight": torch.zeros(3)}, tmp_path / "weights.pt")
    with pytest.raises(CannotBeMetError, match=r"lacks 28 tensors \(transformer\.h\.0"):
        made(tmp_path / "weights.pt", options={"model_size": "tiny"})


def test_the_end_of_a_text_is_never_chosen(tmp_path, theirs):
    theirs.save_pretrained(tmp_path)
    ours = made(tmp_path)
    with ours.serving():
        choices = ours.generate(ours.pool[0])
        ours.model.end_token = int(choices[0, 0])
        assert int(choices[0, 0]) not in ours.generate(ours.pool[0])[0]


def test_tokens_and_times_are_what_the_recorder_reads():
    workload = tiny(prompt_tokens=8, new_tokens=5)
    metrics = RequestMetrics()
    metrics.publish(workload.published())
    with workload.serving():
        assert [workload.infer() for _ in range(3)] == [2, 2, 2]
    sample = ReplicaParser().parse(metrics.render().decode())
    first, rest = (
        sample.families[name]
        for name in ("inference_time_to_first_token_seconds", "inference_time_per_output_token_seconds")
    )
    assert sample.counters[sample.families["inference_tokens_total"].at] == 3 * 2 * 5
    assert sample.counters[first.at + 1] == sample.counters[rest.at + 1] == 3
    assert sample.counters[rest.at] > 0
    assert sample.counters[first.at] > 0
    assert workload.outcome() == {"tokens": 30}


def test_an_answer_of_one_token_has_no_time_per_further_token():
    workload = tiny(prompt_tokens=8, new_tokens=1)
    with workload.serving():
        workload.infer()
        assert workload.generate(workload.pool[0]).shape == (2, 1)
    _, first, rest = workload.published()
    assert "seconds_count 1\n" in first.render()
    assert "seconds_count 0\n" in rest.render()


def test_the_whole_length_of_the_model_can_be_used():
    workload = tiny(prompt_tokens=200, new_tokens=56)
    with workload.serving():
        assert workload.generate(workload.pool[0]).shape == (2, 56)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt_tokens": 200, "new_tokens": 57}, "together 256 at most"),
        ({"prompt_tokens": 0}, "must be 1 or more"),
        ({"new_tokens": 0}, "must be 1 or more"),
        ({"new_tokens": 1.5}, "must be a int"),
        ({"tokens": 3}, "did you mean new_tokens"),
    ],
)
def test_lengths_that_cannot_be_are_refused(options, says):
    with pytest.raises(SettingError, match=says):
        tiny(**options)
