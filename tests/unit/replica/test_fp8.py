"""DistilBERT's matrices and ResNet-50's convolutions in FP8: near the numbers of the others, and refused where it cannot be."""

import pytest
import torch

from harness.replica.errors import SettingError
from harness.replica.models import distilbert, resnet50
from harness.replica.models.fp8 import LARGEST, Fp8Linear, to_fp8
from harness.replica.settings import Settings


def made(precision="bf16", **options):
    settings = Settings(
        workload="distilbert", device="cpu", precision=precision, batch_size=4, options={"model_size": "tiny"} | options
    )
    return distilbert.make(settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_matrix_in_fp8_is_near_what_it_was(dtype):
    generator = torch.Generator().manual_seed(3)
    linear = torch.nn.Linear(256, 64).to(dtype)
    linear.weight.data.normal_(0, 3.0, generator=generator)
    x = torch.randn(5, 7, 256, generator=generator).to(dtype)

    with torch.inference_mode():
        expected, found = linear(x).float(), Fp8Linear(linear)(x)

    assert (found.dtype, found.shape) == (dtype, (5, 7, 64))
    assert 0.005 < apart(found, expected) < 0.06, "three bits after the point: some per cent, and not the same numbers"


def test_what_is_too_large_for_fp8_is_its_largest_number_and_not_none():
    linear = torch.nn.Linear(16, 16).bfloat16()
    torch.nn.init.eye_(linear.weight)
    torch.nn.init.zeros_(linear.bias)

    found = Fp8Linear(linear)(torch.full((1, 16), 1e4).bfloat16())

    torch.testing.assert_close(found.float(), torch.full((1, 16), LARGEST), rtol=0.01, atol=0)


def test_the_model_says_how_many_matrices_are_in_fp8_and_gives_about_the_same_logits():
    plain, fp8 = made(), made(fp8=True)

    with torch.inference_mode():
        expected, found = (one.model(plain.pool[0]).float() for one in (plain, fp8))

    assert fp8.describe()["fp8_matrices"] == 13
    assert fp8.describe()["parameters"] == plain.describe()["parameters"]
    assert "fp8_matrices" not in plain.describe()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15 * float(expected.abs().max()))
    assert fp8.infer() == 4


CONVOLVED = {"model_size": "tiny", "fold_norms": True, "channels_last": True}


def resnet(precision="bf16", **options):
    settings = Settings(device="cpu", precision=precision, batch_size=4, options=CONVOLVED | options)
    return resnet50.make(settings)


def apart(found, expected):
    """Root mean square of the difference, as a share of what was expected."""
    return (found.float() - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()


@pytest.mark.parametrize("source", ["host", "host-uint8"])
def test_the_logits_of_convolutions_are_near_those_of_the_others(source):
    plain, fp8 = resnet(input=source), resnet(input=source, fp8=True)

    with torch.inference_mode():
        expected, logits = (made.model(plain.pool[1]).float() for made in (plain, fp8))

    assert 0.01 < apart(logits, expected) < 0.12, "rounded to a few bits, and not the same numbers"
    assert fp8.describe()["fp8_convolutions"] == 8, "all but the stem"
    assert fp8.describe()["parameters"] == plain.describe()["parameters"]
    assert "fp8_convolutions" not in plain.describe()
    assert fp8.infer() == 4
    plain.close()
    fp8.close()


def test_what_is_too_large_is_the_largest_number():
    assert to_fp8(torch.tensor([1e4, -1e4, 0.0, 2.6, -2.6])).float().tolist() == [LARGEST, -LARGEST, 0.0, 2.5, -2.5]


@pytest.mark.parametrize(
    ("make", "precision", "options", "says"),
    [
        (made, "fp32", {}, "needs PRECISION fp16 or bf16"),
        (resnet, "fp32", {}, "needs PRECISION fp16 or bf16"),
        (resnet, "bf16", {"fold_norms": False}, "needs fold_norms and channels_last"),
    ],
)
def test_what_fp8_does_not_go_with_is_refused(make, precision, options, says):
    with pytest.raises(SettingError, match=says):
        make(precision, fp8=True, **options)
