"""ResNet-50's convolutions in FP8 and INT8, as a CPU computes them: near the numbers of the others, and refused where it cannot be."""

import pytest
import torch

from harness.replica.errors import SettingError
from harness.replica.models import resnet50
from harness.replica.models.quantised import FORMATS, LARGEST, to_bytes
from harness.replica.settings import Settings

OPTIONS = {"model_size": "tiny", "fold_norms": True, "channels_last": True}


def made(precision="bf16", **options):
    settings = Settings(device="cpu", precision=precision, batch_size=4, options=OPTIONS | options)
    return resnet50.make(settings)


@pytest.mark.parametrize(("name", "least", "most"), [("fp8", 0.01, 0.12), ("int8", 0.002, 0.04)])
@pytest.mark.parametrize("source", ["host", "host-uint8"])
def test_the_logits_are_near_those_of_the_others(name, least, most, source):
    plain, ours = made(input=source), made(input=source, **{name: True})

    with torch.inference_mode():
        expected, found = (one.model(plain.pool[1]).float() for one in (plain, ours))

    apart = (found - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert least < apart < most, "rounded to a few bits, and not the same numbers"
    assert ours.describe()[f"{name}_convolutions"] == 8, "all but the stem"
    assert ours.describe()["parameters"] == plain.describe()["parameters"]
    assert f"{name}_convolutions" not in plain.describe()
    assert ours.infer() == 4
    plain.close()
    ours.close()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_too_large_is_the_largest_number_and_halves_of_bytes_are_rounded(name):
    dtype, most = FORMATS[name], LARGEST[FORMATS[name]]

    found = to_bytes(torch.tensor([1e4, -1e4, 0.0, 2.6, -2.6]), dtype).float().tolist()

    assert found == [most, -most, 0.0, *((3.0, -3.0) if name == "int8" else (2.5, -2.5))]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fp8": True, "int8": True}, "two formats of the same convolutions"),
        ({"fp8": True, "precision": "fp32"}, "goes with PRECISION fp16 or bf16"),
        ({"int8": True, "fold_norms": False}, "needs fold_norms and channels_last"),
        ({"int8": 8}, "int8 must be a bool"),
    ],
)
def test_what_does_not_go_together_is_refused(options, says):
    with pytest.raises(SettingError, match=says):
        made(**options)
