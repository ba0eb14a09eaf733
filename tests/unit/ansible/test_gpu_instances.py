"""GPUs divided into MIG instances: what is wanted comes about once, and nobody is cut off."""

import pytest
import tree
from fake_module import Failed, FakeModule, ended

from tests.support.fake_nvidia_smi import Gpu, answer

module = tree.module("gpu_instances")
THREE = ["3g.71gb", "2g.35gb", "1g.18gb"]


def run(monkeypatch, gpus, profiles, *, check_mode=False):
    """What the module returns, and the commands that changed something."""
    fake = FakeModule(lambda words: (*answer(gpus, words[1:]), ""), check_mode=check_mode, profiles=profiles)
    return ended(monkeypatch, module, fake)


def test_gpus_are_divided_once(monkeypatch):
    gpus = [Gpu("GPU-a"), Gpu("GPU-b", mig=True)]
    first, again = run(monkeypatch, gpus, THREE), run(monkeypatch, gpus, THREE[::-1])
    assert (first["changed"], first["divided"], again["changed"]) == (True, [0, 1], False)
    assert [gpu.instances for gpu in gpus] == [THREE, THREE]
    assert first["diff"]["before"] == "GPU 0 (NVIDIA H200): undivided\nGPU 1 (NVIDIA H200): undivided\n"
    assert first["diff"]["after"].splitlines()[0] == "GPU 0 (NVIDIA H200): 1g.18gb, 2g.35gb, 3g.71gb"


def test_other_instances_give_way(monkeypatch):
    gpus = [Gpu("GPU-a", mig=True, instances=["7g.141gb"]), Gpu("GPU-b", mig=True, instances=list(THREE))]
    assert run(monkeypatch, gpus, THREE)["divided"] == [0]
    assert gpus[0].instances == THREE


def test_check_mode_says_what_would_come_and_touches_nothing(monkeypatch):
    gpus = [Gpu("GPU-a")]
    assert run(monkeypatch, gpus, THREE, check_mode=True)["changed"] is True
    assert gpus == [Gpu("GPU-a")]


@pytest.mark.parametrize(
    ("gpus", "profiles", "message"),
    [
        ([], THREE, "the driver shows no GPU"),
        (
            [Gpu("GPU-a"), Gpu("GPU-b", mig=None, name="NVIDIA A16")],
            THREE,
            r"GPU 1 \(NVIDIA A16\) does not support MIG",
        ),
        ([Gpu("GPU-a"), Gpu("GPU-b", pids=[41, 42])], THREE, "processes 41, 42 run on GPU 1 .*; end them; nothing was"),
    ],
)
def test_what_cannot_be_divided_leaves_every_gpu_as_it_is(monkeypatch, gpus, profiles, message):
    before = [Gpu(**vars(gpu)) for gpu in gpus]
    with pytest.raises(Failed, match=message):
        run(monkeypatch, gpus, profiles)
    assert gpus == before


@pytest.mark.parametrize(
    ("gpu", "profiles", "message"),
    [
        (Gpu("GPU-a", held=True), THREE, "does not turn MIG on: .*In use by another client.*; stop what holds the GPU"),
        (
            Gpu("GPU-a"),
            ["4g.71gb", "4g.71gb"],
            "ended with 19 on GPU 0 .*Insufficient Resources.*; `nvidia-smi mig -i 0 -lgip`",
        ),
        (Gpu("GPU-a"), ["large"], "Unable to parse the GPU instance profile large"),
    ],
)
def test_a_driver_that_does_not_do_it_is_quoted(monkeypatch, gpu, profiles, message):
    with pytest.raises(Failed, match=f"(?s){message}"):
        run(monkeypatch, [gpu], profiles)
