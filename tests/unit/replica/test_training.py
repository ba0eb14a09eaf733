"""A training step is the reference's: same losses, same weights; and what is trained learns what can be learnt."""

import copy
import itertools
import math
import signal

import pytest
import torch
import transformers

from harness.replica import registry
from harness.replica.errors import CannotBeMetError, ExitCode, SettingError, WorkloadError
from harness.replica.graceful_shutdown import RequestAbandoned
from harness.replica.models import distilbert, resnet50
from harness.replica.settings import Settings

TINY = {"model_size": "tiny"}
NAMES = ("resnet50-training", "bert-training")
QUICK = {"resnet50-training": {}, "bert-training": {"tokens": 32, "learning_rate": 1e-3}}


@pytest.fixture
def weights():
    """Random ones, each time the same: of about every sixtieth draw rounding alone makes other losses in the fifth step."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def made(name, options=None, **changes):
    settings = {"workload": name, "device": "cpu", "batch_size": 16, "options": TINY | QUICK[name] | (options or {})}
    return registry.load(Settings(**settings | changes))


def losses(workload, steps):
    return [workload.last_loss for _ in range(steps) if workload.infer()]


def reference_losses(model, optimizer, pool, steps):
    """Plain torch on the library's own model."""
    found = []
    for inputs, labels in itertools.islice(itertools.cycle(pool), steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).logits, labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.usefixtures("weights")
def test_resnet50_training_is_what_plain_torch_makes_of_the_transformers_model(tmp_path):
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2], num_labels=10)
    theirs = transformers.ResNetForImageClassification(config).train()
    theirs.save_pretrained(tmp_path)
    ours = made("resnet50-training", {"learning_rate": 0.1}, checkpoint=tmp_path, batch_size=8)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    expected = reference_losses(theirs, optimizer, ours.pool, 5)
    assert losses(ours, 5) == pytest.approx(expected, rel=1e-4)
    assert expected[4] != pytest.approx(expected[0], rel=0.01), "steps that change nothing would prove nothing"
    name = "resnet.embedder.embedder.normalization.running_mean"
    torch.testing.assert_close(ours.model.state_dict()[name], theirs.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("weights")
def test_bert_training_is_what_plain_torch_makes_of_the_transformers_model(tmp_path):
    sizes = {"dim": 48, "hidden_dim": 96, "n_heads": 4, "n_layers": 2, "vocab_size": 500, "num_labels": 3}
    no_dropout = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), 0.0)
    config = transformers.DistilBertConfig(**sizes, **no_dropout)
    theirs = transformers.DistilBertForSequenceClassification(config).train()
    theirs.save_pretrained(tmp_path)
    ours = made("bert-training", {"learning_rate": 1e-3}, checkpoint=tmp_path, batch_size=8)
    # With the usual eps AdamW's first steps are the signs of the gradients, and where those are small rounding decides.
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.01, eps=1e-3)
    for group in ours._optimizer.param_groups:
        assert group["eps"] == 1e-8
        group["eps"] = 1e-3
    name = "distilbert.transformer.layer.1.ffn.lin1.weight"
    before = theirs.state_dict()[name].clone()
    expected = reference_losses(theirs, optimizer, ours.pool, 5)
    assert losses(ours, 5) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(ours.model.state_dict()[name], theirs.state_dict()[name], rtol=0, atol=1e-6)
    assert (theirs.state_dict()[name] - before).abs().mean() > 2e-5, "steps that change nothing would prove nothing"


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_goes_down_also_on_data_that_were_not_trained_on(name):
    workload = made(name)
    first, *_, last = losses(workload, 48)
    assert first > 0.8 * math.log(10 if name == "resnet50-training" else 2)
    assert last < first / 3
    with torch.no_grad():
        inputs, labels = made(name, replica=7).pool[0]
        unseen = torch.nn.functional.cross_entropy(workload.model(inputs), labels).item()
    assert unseen < first * 0.6
    assert workload.outcome() == {"training_steps": 48, "loss_first": first, "loss_last": last}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_mixed_precision_computes_in_half_and_keeps_whole_weights(name, precision, dtype):
    workload, whole = made(name, precision=precision), made(name)
    seen = []
    layer = next(m for m in workload.model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d))
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    found, expected = losses(workload, 4), losses(whole, 4)
    assert set(seen) == {dtype}
    assert {parameter.dtype for parameter in workload.model.parameters()} == {torch.float32}
    assert found == pytest.approx(expected, rel=0.05)
    assert found != expected


@pytest.mark.parametrize("name", NAMES)
def test_weights_come_from_the_seed_and_data_from_seed_and_replica(name):
    one, again = made(name, seed=5), made(name, seed=5)
    replica, other = made(name, seed=5, replica=1), made(name, seed=6)
    assert all(torch.equal(w, v) for w, v in zip(one.model.parameters(), replica.model.parameters(), strict=True))
    assert not all(torch.equal(w, v) for w, v in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert torch.equal(one.pool[0][0], again.pool[0][0])
    assert not torch.equal(one.pool[0][0], replica.pool[0][0])
    turns = len(one.pool) + 1
    assert losses(one, turns) == losses(again, turns)
    assert one.steps == turns


def test_images_have_the_shape_of_cifar_10():
    (images, labels), *_ = made("resnet50-training", batch_size=3).pool
    assert [(tuple(part.shape), part.dtype) for part in (images, labels)] == [
        ((3, 3, 32, 32), torch.float32),
        ((3,), torch.int64),
    ]
    with torch.device("meta"):
        base = resnet50.ResNet(resnet50.TRAINING_SIZES["base"])
    assert sum(parameter.numel() for parameter in base.parameters()) == 23_528_522


def test_channels_last_is_the_same_training():
    plain, last = (made("resnet50-training", {"channels_last": value}, batch_size=4) for value in (False, True))
    assert last.pool[0][0].is_contiguous(memory_format=torch.channels_last)
    assert losses(last, 3) == pytest.approx(losses(plain, 3), rel=1e-3)


def test_every_class_has_words_of_its_own():
    tokens, labels = distilbert.labelled_texts((64, 400), 2, 1000, torch.Generator().manual_seed(0))
    words = distilbert.CLASS_WORDS
    share = [(tokens[labels == label] // words == label).float().mean().item() for label in (0, 1)]
    other = [(tokens[labels == label] // words == 1 - label).float().mean().item() for label in (0, 1)]
    assert min(share) > 3 * max(other)


def test_a_drain_ends_a_backward_pass_in_its_middle():
    workload = made("resnet50-training")
    workload.infer()

    def abandon(_number, _frame):
        raise RequestAbandoned

    def loss_that_sets_the_alarm(inputs, labels, loss_of=workload._loss_of):
        loss = loss_of(inputs, labels)
        loss.register_hook(lambda _gradient: signal.setitimer(signal.ITIMER_REAL, 0.0005) and None)
        return loss

    workload._loss_of = loss_that_sets_the_alarm
    before = signal.signal(signal.SIGALRM, abandon)
    try:
        with pytest.raises(RequestAbandoned):
            workload.infer()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gradients = [parameter.grad is not None for parameter in workload.model.parameters()]
    assert not all(gradients), "it went on to the end"
    assert workload.steps == 1


def test_a_loss_that_is_no_number_ends_the_replica():
    workload = made("bert-training", {"learning_rate": 1e30})
    with pytest.raises(WorkloadError, match=r"the loss of training step \d is .*lower learning_rate") as caught:
        losses(workload, 5)
    assert caught.value.exit_code is ExitCode.FAILED


def test_a_checkpoint_is_where_it_starts(tmp_path):
    trained = made("resnet50-training", seed=3)
    trained.infer()
    state = copy.deepcopy(trained.model.state_dict())
    torch.save(state, tmp_path / "weights.pt")
    tuned = made("resnet50-training", checkpoint=tmp_path / "weights.pt").model.state_dict()
    assert all(torch.equal(state[name], tuned[name]) for name in state if not name.endswith("num_batches_tracked"))
    torch.save(distilbert.DistilBert(distilbert.SIZES["tiny"]).state_dict(), tmp_path / "text.pt")
    with pytest.raises(CannotBeMetError, match="not one of this model"):
        made("resnet50-training", checkpoint=tmp_path / "text.pt")


@pytest.mark.parametrize(
    ("name", "changes", "error", "says"),
    [
        ("bert-training", {"execution": "cuda-graph", "precision": "fp16"}, SettingError, "cannot look at; use bf16"),
        ("bert-training", {"execution": "cuda-graph"}, CannotBeMetError, "cuda-graph needs a GPU"),
        ("bert-training", {"options": {"tokens": 513}}, SettingError, "not between 1 and 512"),
        ("resnet50-training", {"options": {"learning_rate": "1e-3"}}, SettingError, "number, e.g. 0.05, not '1e-3'"),
        ("resnet50-training", {"options": {"learning_rate": -0.1}}, SettingError, "must be a number"),
        ("resnet50-training", {"options": {"model_size": "huge"}}, SettingError, "'huge' is not one of base, tiny"),
    ],
)
def test_what_cannot_be_trained_is_said(name, changes, error, says):
    if changes == {"execution": "cuda-graph"} and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    settings = {"workload": name, "device": "cpu", "batch_size": 4} | changes
    with pytest.raises(error, match=says):
        registry.load(Settings(**settings))
