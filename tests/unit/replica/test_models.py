"""Each built-in model is the published architecture: same parameters, same numbers as `transformers`."""

import math
import os
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from harness.replica import registry
from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import checkpoint, distilbert, execution, resnet50, whisper
from harness.replica.models.whisper import SAMPLE_RATE_HZ, LogMel
from harness.replica.settings import Settings

INFERENCE = tuple(name for name in registry.BUILTIN if not name.endswith("-training"))
TINY = {"model_size": "tiny"}
CPU = torch.device("cpu")


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(autouse=True)
def _quiet_transformers() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.mark.parametrize(
    ("module", "model", "published"),
    [
        (resnet50, resnet50.ResNet, 25_557_032),
        (distilbert, distilbert.DistilBert, 66_955_010),
        (whisper, whisper.Whisper, 72_593_920),
    ],
)
def test_base_size_has_the_published_number_of_parameters(module, model, published):
    with torch.device("meta"):
        assert parameters(model(module.SIZES["base"])) == published


def test_resnet50_loads_a_transformers_checkpoint_and_computes_the_same_logits(tmp_path):
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64, 128], depths=[2, 1, 2], num_labels=7)
    theirs = transformers.ResNetForImageClassification(config).eval()
    for name, buffer in theirs.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    theirs.save_pretrained(tmp_path)
    ours = resnet50.make(Settings(workload="resnet50", checkpoint=tmp_path, batch_size=2, device="cpu"))
    images = ours.pool[0]
    expected = theirs(images).logits
    assert expected.shape == (2, 7)
    torch.testing.assert_close(ours.model(images), expected, rtol=1e-4, atol=1e-4)
    assert ours.answer(images).tolist() == expected.argmax(-1).tolist()


def test_distilbert_loads_a_transformers_checkpoint_and_computes_the_same_logits(tmp_path):
    config = transformers.DistilBertConfig(dim=48, hidden_dim=96, n_heads=4, n_layers=3, vocab_size=500, num_labels=5)
    theirs = transformers.DistilBertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = distilbert.make(Settings(workload="distilbert", checkpoint=tmp_path, batch_size=3, device="cpu"))
    expected = theirs(ours.pool[0]).logits
    assert expected.shape == (3, 5)
    torch.testing.assert_close(ours.model(ours.pool[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def their_whisper() -> transformers.WhisperForConditionalGeneration:
    torch.manual_seed(3)
    sizes = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
    }
    config = transformers.WhisperConfig(
        d_model=48,
        vocab_size=300,
        decoder_start_token_id=7,
        eos_token_id=9,
        bos_token_id=9,
        pad_token_id=9,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.3,
        **sizes,
    )
    return transformers.WhisperForConditionalGeneration(config).eval()


def greedily(model, mel, start_token, end_token, new_tokens):
    """The slow way: the whole text through the whole decoder for every token."""
    states = model.model.encoder(mel).last_hidden_state
    tokens = torch.full((len(mel), 1), start_token)
    for _ in range(new_tokens):
        logits = model(encoder_outputs=(states,), decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        logits[:, end_token] = -math.inf
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    return tokens[:, 1:]


def test_whisper_loads_a_transformers_checkpoint_and_chooses_the_same_tokens(tmp_path, their_whisper):
    their_whisper.save_pretrained(tmp_path)
    settings = Settings(workload="whisper", checkpoint=tmp_path, batch_size=2, device="cpu", options={"new_tokens": 12})
    ours = whisper.make(settings)
    assert [tuple(clip.shape) for clip in ours.pool] == [(2, 16_000 * seconds) for seconds in (3, 5, 7)]
    extractor = transformers.WhisperFeatureExtractor()
    for sound in ours.pool:
        mel = extractor(list(sound.numpy()), sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt").input_features
        expected = greedily(their_whisper, mel, start_token=7, end_token=9, new_tokens=12)
        tokens = ours.answer(sound)
        assert tokens.tolist() == expected.tolist()
        assert tokens.shape == (2, 12)
        assert 9 not in tokens, "it never ends early"
        assert len(set(tokens.flatten().tolist())) > 3, "random weights that say one token would prove nothing"


@pytest.mark.parametrize(("duration_s", "bands"), [*((seconds, 80) for seconds in whisper.CLIPS_S), (3, 128)])
def test_log_mel_equals_the_transformers_feature_extractor(duration_s, bands):
    """Later models have 128 bands."""
    sound = whisper.synthetic_speech(2, duration_s, torch.Generator().manual_seed(duration_s))
    extractor = transformers.WhisperFeatureExtractor(feature_size=bands)
    expected = extractor(list(sound.numpy()), sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt").input_features
    assert expected.shape == (2, bands, 3000)
    torch.testing.assert_close(LogMel(bands, CPU)(sound), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", INFERENCE)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_tiny_size_serves_in_every_precision(name, precision):
    workload = registry.load(Settings(workload=name, precision=precision, batch_size=3, device="cpu", options=TINY))
    assert [workload.infer() for _ in range(4)] == [3, 3, 3, 3]
    facts = workload.describe()
    assert facts["device"] == "cpu"
    assert facts["weights"] == "random, seed 0"
    assert {parameter.dtype for parameter in workload.model.parameters()} == {
        {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    }


@pytest.mark.parametrize("name", INFERENCE)
def test_weights_come_from_the_seed_and_inputs_from_seed_and_replica(name):
    def made(**changes):
        workload = registry.load(Settings(workload=name, device="cpu", options=TINY, **changes))
        return workload.model.state_dict(), workload.pool

    weights, inputs = made(seed=5)
    weights_of_other_replica, inputs_of_other_replica = made(seed=5, replica=1)
    weights_of_other_seed, _ = made(seed=6)
    again, inputs_again = made(seed=5)
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert all(torch.equal(weights[key], weights_of_other_replica[key]) for key in weights)
    assert not all(torch.equal(weights[key], weights_of_other_seed[key]) for key in weights)
    assert all(torch.equal(one, two) for one, two in zip(inputs, inputs_again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(inputs, inputs_of_other_replica, strict=True))


@pytest.mark.parametrize(("module", "model"), [(resnet50, resnet50.ResNet), (distilbert, distilbert.DistilBert)])
def test_random_weights_of_the_base_size_keep_half_precision_finite(module, model):
    built = checkpoint.build(lambda: model(module.SIZES["base"]), Settings(precision="fp16"), CPU)
    images_or_tokens = torch.randn(1, 3, 64, 64).half() if module is resnet50 else torch.randint(30_000, (1, 16))
    logits = built(images_or_tokens)
    assert torch.isfinite(logits).all()
    assert logits.std() > 1e-3, "activations must not die out either: tiny numbers are slow ones on a CPU"


class TestCheckpoints:
    def tiny_state(self) -> dict[str, torch.Tensor]:
        return resnet50.make(Settings(device="cpu", seed=11, options=TINY)).model.state_dict()

    def loaded(self, path: Path) -> dict[str, torch.Tensor]:
        return resnet50.make(Settings(device="cpu", checkpoint=path, options=TINY)).model.state_dict()

    @pytest.mark.parametrize(
        ("name", "save", "given"),
        [
            ("weights.pt", torch.save, "weights.pt"),
            ("weights.pt", lambda state, path: torch.save({"state_dict": state, "epoch": 3}, path), "weights.pt"),
            ("weights.safetensors", save_file, "weights.safetensors"),
            ("pytorch_model.bin", torch.save, "."),
        ],
        ids=["torch.save", "wrapped", "safetensors", "folder"],
    )
    def test_every_kind_of_file_is_read(self, tmp_path, name, save, given):
        save(self.tiny_state(), tmp_path / name)
        loaded, state = self.loaded(tmp_path / given), self.tiny_state()
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[key], state[key]) for key in loaded)

    def test_code_in_a_pickle_is_not_run(self, tmp_path):
        class Bomb:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "run",))

        torch.save({"weight": Bomb()}, tmp_path / "weights.pt")
        with pytest.raises(CannotBeMetError, match="not a readable checkpoint"):
            self.loaded(tmp_path / "weights.pt")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
    def test_a_damaged_file_is_named(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"not a checkpoint at all" * 20)
        with pytest.raises(CannotBeMetError, match=f"{name} is not a readable checkpoint"):
            self.loaded(tmp_path / name)

    @pytest.mark.parametrize(
        ("given", "says"),
        [("nowhere", r"no file or folder .*nowhere"), (".", r"holds none of model\.safetensors")],
    )
    def test_what_is_missing_is_named(self, tmp_path, given, says):
        with pytest.raises(CannotBeMetError, match=says):
            self.loaded(tmp_path / given)

    def test_another_models_checkpoint_is_refused_with_the_first_differences(self, tmp_path):
        state = self.tiny_state()
        state["classifier.1.bias"] = torch.zeros(3)
        del state["resnet.embedder.embedder.convolution.weight"]
        torch.save(state, tmp_path / "weights.pt")
        with pytest.raises(CannotBeMetError, match=r"lacks 1 tensors .*embedder.*bias is \(3,\), not \(10,\)"):
            self.loaded(tmp_path / "weights.pt")

    def test_a_config_that_makes_no_sense_is_refused(self, tmp_path):
        torch.save(self.tiny_state(), tmp_path / "pytorch_model.bin")
        (tmp_path / "config.json").write_text('{"embedding_size": "many"}')
        with pytest.raises(CannotBeMetError, match="embedding_size = 'many'"):
            self.loaded(tmp_path)


def test_replicas_on_the_cpu_share_the_last_of_the_cpus_there_are():
    before = os.sched_getaffinity(0)
    try:
        workload = registry.load(Settings(device="cpu", shared_cpus=1, options={"model_size": "tiny"}))
        assert os.sched_getaffinity(0) == {max(before)}
        assert workload.describe()["cpus"] == [max(before)]
        execution.prepare_device(Settings(device="cpu", shared_cpus=9))  # no more than there are
        assert os.sched_getaffinity(0) == {max(before)}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        (Settings(device="cuda"), CannotBeMetError, "cuda is demanded"),
        (Settings(device="cpu", execution="cuda-graph"), CannotBeMetError, "cuda-graph needs a GPU"),
        (Settings(device="cpu", stream_priority="high"), CannotBeMetError, "streams are a GPU's"),
        (Settings(options={"model_size": "huge"}), SettingError, "'huge' is not one of base, tiny"),
        (Settings(options={"model_size": 3}), SettingError, "must be a str"),
        (Settings(workload="distilbert", options={"tokens": 513}), SettingError, "not between 1 and 512"),
        (Settings(workload="whisper", options={"new_tokens": 0}), SettingError, "not between 1 and 444"),
    ],
)
def test_what_cannot_be_met_is_said(settings, error, says):
    if settings.device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(error, match=says):
        registry.load(settings)
