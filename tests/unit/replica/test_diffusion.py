"""Diffusion: the network has the published shape, and the steps lead from noise to the image that is in it."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from harness.replica import registry
from harness.replica.errors import CannotBeMetError, SettingError
from harness.replica.models import diffusion
from harness.replica.models.layers import fill_randomly
from harness.replica.settings import Settings

PUBLISHED = {"small": 32_963_360, "medium": 130_512_416, "large": 675_129_632}


def made(options=None, **changes):
    options = {"model_size": "tiny", "steps": 4} | (options or {})
    return registry.load(Settings(**{"workload": "diffusion", "device": "cpu", "options": options} | changes))


@pytest.fixture
def network():
    model = diffusion.DiT(diffusion.SIZES["tiny"])
    with torch.no_grad():
        fill_randomly(model, 1)
    return model.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("size", PUBLISHED)
def test_every_size_has_the_published_number_of_parameters(size):
    with torch.device("meta"):
        model = diffusion.DiT(diffusion.SIZES[size])
        classes = torch.empty(2, dtype=torch.long)
        assert model(torch.empty(2, 4, 32, 32), classes, classes).shape == (2, 4, 32, 32)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[size]


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_whoever_knows_the_noise_is_led_to_the_image(steps, monkeypatch):
    workload = made({"steps": steps, "guidance": 1.0}, batch_size=2)
    image, noise = torch.rand(2, 4, 8, 8), workload.pool[0]
    _, kept = diffusion.schedule(steps)
    asked = []

    def know_the_noise(_latents, times, _classes):
        asked.append(int(times[0]))
        return noise

    monkeypatch.setattr(workload.model, "forward", know_the_noise)

    found = workload.answer(kept[0].sqrt() * image + (1 - kept[0]).sqrt() * noise)

    torch.testing.assert_close(found, image, rtol=0, atol=1e-4)
    assert len(asked) == steps
    assert asked == sorted(asked, reverse=True)


def test_guidance_goes_from_no_class_towards_the_class_and_beyond():
    guided, plain = made({"steps": 1, "guidance": 3.0}, batch_size=2), made({"steps": 1, "guidance": 1.0}, batch_size=2)
    latents, times = guided.pool[0], torch.tensor([999, 999])
    of_class, of_none = (
        guided.model(latents, times, classes) for classes in (guided.classes, torch.tensor([1000, 1000]))
    )
    kept = diffusion.schedule(1)[1][0]

    def image(noise):
        return (latents - (1 - kept).sqrt() * noise) / kept.sqrt()

    torch.testing.assert_close(guided.answer(latents), image(of_none + 3 * (of_class - of_none)), rtol=1e-3, atol=0.05)
    torch.testing.assert_close(plain.answer(latents), image(of_class), rtol=1e-3, atol=0.05)
    assert (of_class - of_none).abs().max() > 0.01, "classes that are all the same would prove nothing"


def test_attention_is_torch_s_own(network):
    ours = network.blocks[0].attn
    theirs = nn.MultiheadAttention(32, 2, batch_first=True)
    theirs.in_proj_weight, theirs.in_proj_bias = nn.Parameter(ours.qkv.weight), nn.Parameter(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    x = torch.randn(2, 16, 32)

    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-4, atol=1e-5)


def test_every_number_comes_back_to_its_place(network):
    linear = network.final_layer.linear
    linear.weight.zero_()
    linear.bias.copy_(torch.arange(32))
    noise = network(torch.randn(1, 4, 8, 8), torch.tensor([5]), torch.tensor([7]))
    assert noise[0, :, :2, :2].tolist() == [[[c, c + 8], [c + 16, c + 24]] for c in range(4)]
    assert torch.equal(noise, noise[:, :, :2, :2].repeat(1, 1, 4, 4))


def test_a_patch_s_noise_is_where_the_patch_is(network):
    network.pos_embed.zero_()
    latents, time, some_class = torch.randn(1, 4, 8, 8), torch.tensor([300]), torch.tensor([7])
    rolled = network(latents.roll((2, 4), (2, 3)), time, some_class)

    torch.testing.assert_close(rolled, network(latents, time, some_class).roll((2, 4), (2, 3)), rtol=1e-3, atol=1e-4)


def test_places_differ_by_column_and_row():
    places = diffusion.position_table(4, 32).view(4, 4, 32)
    assert torch.equal(places[0, :, :16], places[3, :, :16])
    assert torch.equal(places[:, 0, 16:], places[:, 3, 16:])
    assert len(torch.unique(places.flatten(0, 1), dim=0)) == 16


def test_a_checkpoint_of_its_size_gives_the_same_images(tmp_path):
    trained = made(seed=3)
    save_file(trained.model.state_dict(), tmp_path / "model.safetensors")
    loaded, random = made(checkpoint=tmp_path), made()
    loaded.classes = random.classes = trained.classes  # they come from the seed, too
    noise = trained.pool[0]

    assert torch.equal(loaded.answer(noise), trained.answer(noise))
    assert not torch.equal(random.answer(noise), trained.answer(noise))
    with pytest.raises(CannotBeMetError, match=r"not one of this model: it .*lacks"):
        made({"model_size": "small"}, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps 0 is not between 1 and 1000"),
        ({"steps": 1001}, "steps 1001 is not between 1 and 1000"),
        ({"guidance": "much"}, "guidance must be a number, e.g. 4, not 'much'"),
        ({"model_size": "xl"}, "'xl' is not one of small, medium, large, tiny"),
    ],
)
def test_what_cannot_be_is_said(options, says):
    with pytest.raises(SettingError, match=says):
        made(options)
