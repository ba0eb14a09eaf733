"""Small labelled images: made or read, trained on, evaluated; accumulation and prefetch change nothing but time and memory."""

import gzip

import pytest
import torch

from harness.replica import registry
from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models.mnist import SIZES, LabelledImages, network, read_idx
from harness.replica.settings import Settings

QUICK = {"model_size": "tiny", "samples": 128}


def made(name="mnist-training", batch_size=16, options=None, **changes):
    options = QUICK | (options or {})
    return registry.load(Settings(workload=name, device="cpu", batch_size=batch_size, options=options, **changes))


def losses(workload, steps=12):
    found = [workload.last_loss for _ in range(steps) if workload.infer()]
    getattr(workload, "close", bool)()
    return found


def idx(path, array):
    header = bytes((0, 0, 8, array.dim())) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    data = header + bytes(array.flatten().tolist())
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.fixture
def files(tmp_path):
    images = torch.arange(21 * 28 * 28).remainder(251).to(torch.uint8).view(21, 28, 28)
    labels = torch.arange(21).remainder(10).to(torch.uint8)
    return {"images": idx(tmp_path / "images.gz", images), "labels": idx(tmp_path / "labels", labels), "samples": 0}


def test_training_learns_what_can_be_learnt_and_says_so_on_images_held_out():
    workload = made(options={"learning_rate": 0.01, "samples": 512})
    before = workload.evaluate()

    losses(workload, 96)

    after = workload.evaluate()
    assert before["accuracy"] < 0.5 < after["accuracy"]
    assert after["loss"] < before["loss"] / 2


@pytest.mark.parametrize("name", ["mnist-training", "resnet50-training", "bert-training"])
def test_a_batch_in_parts_is_the_same_step(name):
    options = {
        "mnist-training": QUICK,
        "resnet50-training": {"model_size": "tiny"},
        "bert-training": {"model_size": "tiny", "tokens": 8},
    }

    def trained(parts):
        settings = Settings(workload=name, device="cpu", batch_size=8, options=options[name] | {"accumulation": parts})
        workload = registry.load(settings)
        if name == "resnet50-training":
            workload.model.eval()  # batch normalisation compares the images of a part, which are not those of the batch
        return losses(workload, 3)

    assert trained(4) == pytest.approx(trained(1), rel=1e-3)


def test_prefetch_takes_the_same_batches_in_the_same_order():
    assert losses(made(options={"prefetch": 3})) == losses(made())


def test_what_prefetch_meets_is_raised_by_the_request(monkeypatch):
    workload = made(options={"prefetch": 1})
    monkeypatch.setattr("harness.replica.models.mnist.as_input", lambda _images: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        losses(workload)


def test_an_epoch_goes_through_every_image_once():
    workload = made(batch_size=32)
    seen = [workload._next_batch() for _ in range(4)]

    together = torch.cat([images for images, _ in seen])
    assert len(torch.unique(together.flatten(1), dim=0)) == 128


@pytest.mark.parametrize(("shape", "expected"), [("mnist", (1, 28, 28)), ("cifar", (3, 32, 32))])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_takes_both_shapes(shape, expected, size):
    settings = Settings(options={"model_size": size, "image_shape": shape, "samples": 6})

    assert LabelledImages(settings).images.shape == (6, *expected)
    with torch.device("meta"):
        assert network(settings)(torch.empty(2, *expected)).shape == (2, 10)


def test_inference_says_accuracy_and_loss_of_what_it_serves():
    workload = made("mnist")
    workload.infer()

    found = workload.evaluate()

    assert 0 <= found["accuracy"] <= 1
    assert found["loss"] > 0
    assert workload.describe()["data"] == "made from seed 0"


def test_a_batch_may_be_larger_than_the_data_of_inference():
    assert made("mnist", batch_size=1000).infer() == 1000


def test_real_files_are_read(files):
    data = LabelledImages(Settings(options=files))

    assert (len(data.labels), len(data.held_out[1])) == (18, 3)
    assert data.images[1, 0, 0, :3].tolist() == [31, 32, 33]
    assert data.labels.tolist()[:12] == [*range(10), 0, 1]
    assert data.source == files["images"]


def test_colour_images_have_four_dimensions(tmp_path):
    options = {
        "images": idx(tmp_path / "i", torch.zeros(14, 3, 32, 32, dtype=torch.uint8)),
        "labels": idx(tmp_path / "l", torch.zeros(14, dtype=torch.uint8)),
    }

    assert LabelledImages(Settings(options=options | {"image_shape": "cifar"})).images.shape == (12, 3, 32, 32)
    with pytest.raises(CannotBeMetError, match="image_shape"):
        LabelledImages(Settings(options=options))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG....", "not an IDX file of bytes: it begins with 89 50 4e 47"),
        (bytes((0, 0, 8, 1, 0, 0, 0, 9)) + b"abc", "9 bytes are announced and 3 are there"),
        (bytes((0, 0, 8, 3, 0, 0)), "not an IDX file"),
        (bytes((0, 0, 13, 1, 0, 0, 0, 1)) + b"abcd", "not an IDX file of bytes"),
    ],
)
def test_what_is_no_idx_file_is_refused(tmp_path, content, told):
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(CannotBeMetError, match=told):
        read_idx(path)


def test_files_that_do_not_belong_together_are_refused(tmp_path, files):
    few = idx(tmp_path / "few", torch.zeros(20, dtype=torch.uint8))
    strange = idx(tmp_path / "strange", torch.full((21,), 11, dtype=torch.uint8))

    for labels, told in ((few, "20"), (strange, "the class 11"), ("/none", "cannot be read")):
        with pytest.raises(CannotBeMetError, match=told):
            LabelledImages(Settings(options=files | {"labels": labels}))
    with pytest.raises(SettingError, match="go together"):
        LabelledImages(Settings(options=files | {"labels": ""}))
    with pytest.raises(CannotBeMetError, match="too few"):
        LabelledImages(Settings(options=files | {"samples": 21}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"accumulation": 3}, "must divide"),
        ({"prefetch": -1}, "prefetch"),
        ({"samples": 8}, "BATCH_SIZE"),
        ({"epochs": -1}, "epochs"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, told):
    with pytest.raises(SettingError, match=told):
        made(options=options)


def test_training_is_evaluated_after_its_epochs_and_goes_on():
    workload = made(options={"epochs": 2, "samples": 64, "model_size": "small"})
    for _ in range(7):
        workload.infer()
    assert "accuracy" not in workload.outcome()
    workload.infer()
    after = workload.outcome()
    assert (after["evaluated_after_steps"], after["training_steps"]) == (8, 8)
    workload.infer()
    assert workload.outcome()["loss"] == after["loss"]


def test_epochs_that_a_recording_is_too_short_for_are_trained_when_asked():
    workload = made(options={"epochs": 1, "samples": 64, "model_size": "small"})
    workload.infer()

    assert 0 <= workload.evaluate()["accuracy"] <= 1
    assert workload.outcome()["evaluated_after_steps"] == 4
