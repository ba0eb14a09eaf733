"""ResNet-50 fed with bytes or JPEGs, and with its normalisations folded: the same answers by other ways; on a CPU."""

import itertools

import pytest
import torch

from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import image_input, resnet50
from harness.replica.models.image_input import DEVIATION, MEAN, Feed, FromBytes, OnDemand
from harness.replica.models.layers import FoldedConvolution
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

CPU = torch.device("cpu")
OFFLINE = ScenarioSpec(kind="offline")
SERVER = ScenarioSpec(kind="server", rate=1)


def made(batch_size=3, **changes):
    options = {"model_size": "tiny"} | changes.pop("options", {})
    return resnet50.make(Settings(device="cpu", batch_size=batch_size, options=options, **changes))


@pytest.fixture
def fed():
    """Workloads that are fed with bytes, whose threads end with the test."""
    workloads = []

    def make(**changes):
        options = {"input": "host-uint8"} | changes.pop("options", {})
        workloads.append(made(options=options, **changes))
        return workloads[-1]

    yield make
    for workload in workloads:
        workload.close()


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_bytes_become_normalised_numbers_in_the_models_layout(dtype, apart, layout):
    images = torch.randint(256, (2, 24, 24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images[0, 0, 0], images[0, 0, 1] = 0, 255
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    expected = (images.permute(0, 3, 1, 2) / 255 - mean) / deviation

    found = FromBytes(24, dtype, layout, CPU)(images)

    assert found.dtype is dtype
    assert found.is_contiguous(memory_format=layout)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=apart)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_images_of_another_size_are_resized(dtype):
    halves = torch.full((1, 40, 40, 3), 50, dtype=torch.uint8)
    halves[:, :, 20:] = 150

    found = FromBytes(20, dtype, torch.channels_last, CPU)(halves)

    assert found.shape == (1, 3, 20, 20)
    small = FromBytes(20, dtype, torch.channels_last, CPU)(halves[:, ::2, ::2])
    torch.testing.assert_close(found, small, rtol=0.01, atol=0.01)


def test_a_feed_brings_every_batch_in_turn_and_never_overwrites_one_in_use():
    batches = [torch.full((2, 2, 2, 3), value, dtype=torch.uint8) for value in (1, 2, 3, 4, 5)]
    feed = Feed(batches, CPU)

    seen = [feed.through(lambda batch: batch.clone(), 2).unique().tolist() for _ in range(12)]
    feed.close()

    assert seen == [[value] for value in itertools.islice(itertools.cycle([1, 2, 3, 4, 5]), 12)]
    assert not any(thread.is_alive() for thread in feed._thread._threads)


def test_what_fails_while_feeding_is_raised_where_the_batch_is_awaited():
    shapes = [torch.zeros(1, size, size, 3, dtype=torch.uint8) for size in (2, 5)]
    feed = Feed(shapes, CPU)
    feed.through(lambda batch: batch, 1)

    with pytest.raises(RuntimeError, match="size of tensor"):
        feed.through(lambda batch: batch, 1)
    feed.close()


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_get_the_answers_that_their_numbers_get(fed, channels_last):
    ours = fed(options={"channels_last": channels_last, "source_pixels": 48})
    plain = made(options={"channels_last": channels_last})
    images = ours.pool[0]

    numbers = FromBytes(32, torch.float32, torch.contiguous_format, CPU)(images)

    assert images.shape == (3, 48, 48, 3)
    torch.testing.assert_close(ours.model(images), plain.model(numbers), rtol=1e-4, atol=1e-4)
    assert ours.describe()["input"] == "host-uint8"
    assert ours.describe()["parameters"] == plain.describe()["parameters"]
    expected = [ours.answer(batch).tolist() for batch in ours.pool]
    assert [ours._answers.next(ours._forward, 3).tolist() for _ in range(6)] == [*expected, *expected[:2]]
    assert len(set(map(tuple, expected))) > 1, "one answer to everything would prove nothing"
    assert ours.infer() == 3


def test_offline_is_fed_ahead_and_what_comes_at_times_of_its_own_is_not(fed):
    offline, server = fed(scenario=OFFLINE), fed(scenario=SERVER)

    assert [offline.serve_up_to()(inputs) for inputs in (3, 2)] == [3, 2]
    assert offline.begin_up_to() is None
    begin = server.begin_up_to()
    one, other = begin(3), begin(2)
    expected = [server.answer(batch).tolist() for batch in server.pool]
    assert [one().tolist(), other()[:2].tolist()] == [expected[0], expected[1][:2]], "each has its own answers"
    assert len(set(map(tuple, expected))) > 1, "one answer to everything would prove nothing"
    assert server.infer() == 3


def test_what_is_brought_on_demand_is_of_the_size_that_is_asked_for_and_overwritten_two_batches_later():
    source = OnDemand([torch.full((2, 2, 2, 3), value, dtype=torch.uint8) for value in (1, 2, 3)], CPU)

    first, second = (source.through(lambda batch: batch, inputs) for inputs in (2, 1))
    assert [first.unique().tolist(), second[:1].unique().tolist()] == [[1], [2]]
    assert source.through(lambda batch: batch, 1)[:, 0, 0, 0].tolist() == [3, 1], "the second place is what it was"
    assert first[0].unique().tolist() == [3]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_folded_normalisations_change_no_answer(precision, tmp_path):
    state = made(seed=4).model.state_dict()
    generator = torch.Generator().manual_seed(5)
    for name, tensor in state.items():
        if name.endswith(("running_mean", "normalization.bias")):
            tensor.normal_(generator=generator)
        elif name.endswith(("running_var", "normalization.weight")):
            tensor.uniform_(0.5, 2.0, generator=generator)
    torch.save(state, tmp_path / "weights.pt")
    plain, folded = (
        made(precision=precision, checkpoint=tmp_path / "weights.pt", options={"fold_norms": fold})
        for fold in (False, True)
    )

    expected, found = (one.model(plain.pool[0]).float() for one in (plain, folded))

    torch.testing.assert_close(
        found, expected, rtol=0, atol=(1e-4 if precision == "fp32" else 0.05) * expected.abs().max()
    )
    assert not any(isinstance(one, torch.nn.BatchNorm2d) for one in folded.model.modules())
    assert sum(isinstance(one, FoldedConvolution) for one in folded.model.modules()) == 9
    assert folded.describe()["fused_convolutions"] == 0, "cuDNN's are a GPU's"


def test_an_input_on_the_device_is_there_before_its_request():
    workload = made(options={"input": "device"})

    assert workload.infer() == 3
    assert workload.describe()["input"] == "device"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input": "disk"}, "'disk' is not one of host, device, host-uint8, jpeg"),
        ({"source_pixels": 64}, "set input to host-uint8 or jpeg, too"),
    ],
)
def test_what_makes_no_sense_is_refused(options, says):
    with pytest.raises(SettingError, match=says):
        made(options=options)


def drawn(seed=1):
    return resnet50.drawn_bytes((3, 48, 40, 3), torch.Generator().manual_seed(seed), detail=8)


def test_a_file_is_a_fraction_of_its_bytes_and_decodes_to_nearly_them():
    images = drawn()

    files = image_input.encoded(images, image_input.decoder(CPU))

    assert files.shape == tuple(images.shape)
    assert sum(map(len, files.files)) < images.nbytes / 3
    apart = (files.decoded().int() - images.int()).abs().float().mean()
    assert float(apart) < 4
    assert float((drawn(2).int() - images.int()).abs().float().mean()) > 40, "other images are far from these"


def test_a_part_of_a_batch_is_of_its_first_files():
    files = image_input.encoded(drawn(), image_input.decoder(CPU))

    assert files[:2].shape == (2, 48, 40, 3)
    torch.testing.assert_close(files[:2].decoded(), files.decoded()[:2], rtol=0, atol=0)


@pytest.mark.parametrize("scenario", [None, SERVER])
def test_files_get_the_answers_of_what_they_decode_to(fed, scenario):
    ours = fed(scenario=scenario, options={"input": "jpeg", "source_pixels": 48})
    decoded = [image_input.encoded(batch, image_input.decoder(CPU)).decoded() for batch in ours.pool]
    expected = [ours.model(batch) for batch in decoded]

    found = [ours._answers.begin(lambda batch: ours.model(batch).clone(), 3)() for _ in decoded]

    assert [classes.tolist() for classes in found[-2:]] == [one.argmax(-1).tolist() for one in expected[-2:]]
    assert ours.infer() == 3
    facts = ours.describe()
    assert facts["input"] == "jpeg"
    assert 100 < facts["jpeg_mean_bytes"] < 48 * 48 * 3 / 2


def test_a_gpu_without_torchvision_s_nvjpeg_is_refused_with_what_to_do():
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        pass
    else:
        pytest.skip("torchvision is here")

    with pytest.raises(CannotBeMetError, match="install the torchvision of this torch, or set input to host-uint8"):
        image_input.decoder(torch.device("cuda"))
