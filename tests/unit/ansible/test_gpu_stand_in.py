"""The nvidia-smi of machines whose GPUs are none answers what the modules ask, as the real one would."""

import importlib
import subprocess

import pytest
import tree

from tests.node.machine import gpu

GPUS = [
    gpu.Gpu(0, "GPU-aa", "NVIDIA A100-SXM4-40GB", 40960, "8.0"),
    gpu.Gpu(1, "GPU-bb", "NVIDIA A100-SXM4-40GB", 40960, "8.0"),
]


@pytest.fixture
def smi(tmp_path):
    """What it prints for these words, in any shell."""
    mode = tmp_path / "mode"
    mode.write_text("Default\n")
    program = tmp_path / "nvidia-smi"
    program.write_text(gpu.nvidia_smi(GPUS, "580.159.04", str(mode)))

    def answer(*words):
        return subprocess.run(["sh", program, *words], capture_output=True, text=True, check=True).stdout

    return answer


def test_the_modules_read_its_gpus(smi):
    smi_module = importlib.import_module(tree.module("gpu_devices").NvidiaSmi.__module__)
    devices, remarks = smi_module.parse_devices(smi(f"--query-gpu={smi_module.FIELDS}", "--format=csv,noheader"))
    assert remarks == []
    assert [gpu.Gpu(*(device[name] for name in gpu.Gpu._fields)) for device in devices] == GPUS
    assert {(device["compute_mode"], device["mig"]) for device in devices} == {("Default", False)}
    assert smi("-L").splitlines()[1] == "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)"


def test_the_mps_daemon_sets_the_compute_mode(smi):
    smi("-i", "GPU-bb", "-c", "EXCLUSIVE_PROCESS")
    assert smi("--query-gpu=compute_mode", "--format=csv,noheader") == "Exclusive_Process\nExclusive_Process\n"
    smi("-i", "GPU-bb", "-c", "DEFAULT")
    assert smi("-i", "0", "--query-gpu=index,compute_mode", "--format=csv,noheader") == "0, Default\n"
