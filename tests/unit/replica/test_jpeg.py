"""Images as JPEG files: what they decode to, and who is refused."""

import pytest
import torch

from harness.replica.errors import CannotBeMetError
from harness.replica.models import image_input, resnet50
from harness.replica.settings import Settings
from harness.spec.scenario import ScenarioSpec

CPU = torch.device("cpu")
SERVER = ScenarioSpec(kind="server", rate=1)


def drawn(seed=1):
    return resnet50.drawn_bytes((3, 48, 40, 3), torch.Generator().manual_seed(seed), detail=8)


@pytest.fixture
def fed():
    """A workload that is fed with JPEGs, whose thread ends with the test."""
    workloads = []

    def make(**changes):
        options = {"model_size": "tiny", "input": "jpeg", "source_pixels": 48} | changes.pop("options", {})
        workloads.append(resnet50.make(Settings(device="cpu", batch_size=3, options=options, **changes)))
        return workloads[-1]

    yield make
    for workload in workloads:
        workload.close()


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
    ours = fed(scenario=scenario)
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
