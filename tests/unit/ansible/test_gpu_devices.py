"""What a node has to advertise, from what nvidia-smi says and the way of sharing."""

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("gpu_devices")

ROW = "0, GPU-aa, NVIDIA A16, Default, [N/A], 15356 MiB, 8.6\n1, GPU-bb, NVIDIA A16, Default, [N/A], 15356 MiB, 8.6\n"
MIG_ROW = "0, GPU-aa, NVIDIA H200, Default, Enabled, 143771 MiB, 9.0\n1, GPU-bb, NVIDIA H200, Default, Disabled, 143771 MiB, 9.0\n"
MIG_LIST = """\
GPU 0: NVIDIA H200 (UUID: GPU-aa)
  MIG 1g.18gb     Device  0: (UUID: MIG-1)
  MIG 1g.18gb     Device  1: (UUID: MIG-2)
  MIG 3g.71gb+me  Device  2: (UUID: MIG-3)
GPU 1: NVIDIA H200 (UUID: GPU-bb)
"""


def run(monkeypatch, row=ROW, listing="", *, smi="/usr/bin/nvidia-smi", code=0, **changed):
    """The fact that the module makes."""
    params = {"node": "n", "wanted": True, "assumed": 0, "sharing": "time-slicing", "replicas": 10}
    params |= {"profiles": [], "mig_strategy": "none", "resource": "nvidia.com/gpu", **changed}
    fake = FakeModule(lambda words: (code, listing if words[1] == "-L" else row, ""), **params)
    fake.get_bin_path = lambda _name: smi
    result = ended(monkeypatch, module, fake)
    assert result["changed"] is False
    return result["ansible_facts"]["gpu"]


@pytest.mark.parametrize(
    ("changed", "advertised"),
    [
        ({"sharing": "exclusive"}, {"nvidia.com/gpu": 2}),
        ({"sharing": "time-slicing", "replicas": 10}, {"nvidia.com/gpu": 20}),
        ({"sharing": "mps", "replicas": 4}, {"nvidia.com/gpu": 8}),
        ({"wanted": False}, {}),
    ],
)
def test_a_node_advertises_its_gpus_times_the_slices(monkeypatch, changed, advertised):
    assert run(monkeypatch, **changed)["advertised"] == advertised


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"sharing": "exclusive"}, "exclusive"),
        ({"sharing": "mps", "replicas": 4}, "mps-4"),
        ({"sharing": "time-slicing", "replicas": 10}, "time-slicing-10"),
    ],
)
def test_a_way_of_sharing_has_a_name(monkeypatch, changed, name):
    found = run(monkeypatch, **changed)
    assert (found["config"], found["sharing"]) == (name, changed["sharing"])
    assert module.config("exclusive", 10, "mixed") == "exclusive-mixed"


def test_instances_have_a_resource_each_when_mixed(monkeypatch):
    found = run(monkeypatch, MIG_ROW, MIG_LIST, sharing="exclusive", mig_strategy="mixed")
    assert found["advertised"] == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.18gb": 2, "nvidia.com/mig-3g.71gb.me": 1}
    assert found["devices"][0]["instances"] == ["1g.18gb", "1g.18gb", "3g.71gb+me"]
    assert run(monkeypatch, MIG_ROW, MIG_LIST, mig_strategy="mixed", replicas=2)["advertised"]["nvidia.com/gpu"] == 2


def test_what_the_machine_is_going_to_be_divided_into_counts_as_if_it_were(monkeypatch):
    row, wanted = MIG_ROW.replace("Enabled", "Disabled"), ["3g.71gb", "4g.71gb"]
    found = run(monkeypatch, row, MIG_LIST, sharing="exclusive", mig_strategy="mixed", profiles=wanted)
    assert found["advertised"] == {"nvidia.com/mig-3g.71gb": 2, "nvidia.com/mig-4g.71gb": 2}
    assert found["profiles"] == wanted


def test_instances_count_as_gpus_when_single(monkeypatch):
    listing = MIG_LIST.split("  MIG 3g", maxsplit=1)[0]
    found = run(monkeypatch, MIG_ROW.splitlines()[0], listing, sharing="exclusive", mig_strategy="single")
    assert found["advertised"] == {"nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("row", "listing", "changed", "message"),
    [
        (ROW, "", {"replicas": 1}, "at least 2 slices"),
        (ROW, "", {"sharing": "mps", "replicas": 49}, "at most 48 clients"),
        (ROW, "", {"sharing": "mps", "mig_strategy": "mixed"}, "MPS is not supported on MIG"),
        (ROW, "", {"mig_strategy": "single"}, "wants every GPU divided"),
        (MIG_ROW, MIG_LIST, {}, "GPU 0 .* has MIG on: set device_plugin_mig_strategy"),
        (MIG_ROW, "GPU 0: NVIDIA H200 (UUID: GPU-aa)\n", {"mig_strategy": "mixed"}, "MIG on and no instance"),
        (MIG_ROW, MIG_LIST, {"mig_strategy": "single"}, "there are 1g.18gb, 3g.71gb.me: use mixed"),
        (ROW, "", {"profiles": ["1g.18gb"]}, "set device_plugin_mig_strategy to single or mixed"),
        ("", "", {}, "the driver shows no GPU"),
    ],
)
def test_what_does_not_go_together_ends_before_anything_is_changed(monkeypatch, row, listing, changed, message):
    with pytest.raises(Failed, match=message):
        run(monkeypatch, row, listing, **changed)


def test_a_machine_without_nvidia_smi_is_an_error_unless_its_gpus_are_assumed(monkeypatch):
    with pytest.raises(Failed, match="no nvidia-smi"):
        run(monkeypatch, smi=None)
    assert run(monkeypatch, smi=None, assumed=3)["advertised"] == {"nvidia.com/gpu": 30}


def test_what_a_row_does_not_say_is_left_out_and_a_broken_gpu_is_named_beside_the_others(monkeypatch):
    rows = (
        "WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n"
        "0, GPU-aa, NVIDIA GB10, Default, [N/A], [N/A], 12.1\n"
        "1, GPU-bb, NVIDIA A100, [GPU requires reset], [GPU requires reset], 81920 MiB, 8.0\n"
        "2, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]\n"
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n"
        "4, GPU-dd, Orin (nvgpu), [N/A], [N/A], [N/A], [N/A]\n"
    )
    warned = []
    monkeypatch.setattr(FakeModule, "warn", lambda _self, text: warned.append(text), raising=False)
    found = run(monkeypatch, rows, sharing="exclusive")
    assert [(device["index"], device["memory_mib"]) for device in found["devices"]] == [(0, None), (4, None)]
    assert found["advertised"] == {"nvidia.com/gpu": 2}
    assert "nvidia.com/gpu.memory" not in found["features"]
    assert found["features"]["nvidia.com/gpu.family"] == "blackwell"
    assert [text.partition(":")[0] for text in warned] == [
        "nvidia-smi said",
        "GPU 1 (GPU-bb) is broken and left out",
        "GPU 2 ([Unknown Error]) is broken and left out",
        "nvidia-smi said",
    ]
    assert run(monkeypatch, rows, sharing="exclusive", code=15)["devices"] == found["devices"]
    jetson = run(monkeypatch, rows.splitlines()[-1], sharing="exclusive")["features"]
    assert "nvidia.com/gpu.compute.major" not in jetson


@pytest.mark.parametrize(
    ("name", "said"),
    [("NVIDIA A16-4Q", True), ("GRID V100D-8C", True), ("NVIDIA A16", False), ("NVIDIA H100-80GB", False)],
)
def test_a_gpu_that_a_hypervisor_made_is_said_to_be_one(monkeypatch, name, said):
    warned = []
    monkeypatch.setattr(FakeModule, "warn", lambda _self, text: warned.append(text), raising=False)
    run(monkeypatch, ROW.replace("NVIDIA A16", name))
    assert [f"GPU 0 ({name}), GPU 1 ({name}) is a virtual GPU" in text for text in warned] == [True] * said


def test_a_driver_that_fails_is_quoted(monkeypatch):
    with pytest.raises(Failed, match="ended with 18: Driver/library version mismatch"):
        run(monkeypatch, "Driver/library version mismatch", code=18)


def test_a_node_has_the_labels_of_gpu_feature_discovery(monkeypatch):
    found = run(monkeypatch, sharing="time-slicing", replicas=10)["features"]
    assert found == {
        "nvidia.com/gpu.product": "NVIDIA-A16-SHARED",
        "nvidia.com/gpu.memory": "15356",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "10",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "6",
        "nvidia.com/mig.capable": "false",
    }
    whole = run(monkeypatch, sharing="exclusive")["features"]
    assert [whole[f"nvidia.com/gpu.{name}"] for name in ("product", "replicas", "sharing-strategy")] == [
        "NVIDIA-A16",
        "1",
        "none",
    ]


def test_instances_that_count_as_gpus_are_the_product_and_their_memory_is_not_told(monkeypatch):
    listing = MIG_LIST.split("  MIG 3g", maxsplit=1)[0]
    row = MIG_ROW.splitlines()[0]
    found = run(monkeypatch, row, listing, sharing="exclusive", mig_strategy="single")["features"]
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]) == ("NVIDIA-H200-MIG-1g.18gb", "2")
    assert (found["nvidia.com/mig.capable"], found["nvidia.com/mig.strategy"]) == ("true", "single")
    assert "nvidia.com/gpu.memory" not in found


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("12.0", "blackwell"),
        ("3.5", "undefined"),
    ],
)
def test_a_family_goes_by_the_compute_capability(monkeypatch, capability, family):
    assert run(monkeypatch, ROW.replace("8.6", capability))["features"]["nvidia.com/gpu.family"] == family


@pytest.mark.parametrize("changed", [{"wanted": False}, {"smi": None, "assumed": 2}])
def test_gpus_that_nobody_has_seen_have_no_features(monkeypatch, changed):
    assert run(monkeypatch, **changed)["features"] == {}
