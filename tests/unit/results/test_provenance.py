from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.metrics.nvml import describe
from harness.results import provenance
from harness.results.manifest import Gpu


def test_the_facts_of_this_machine_are_those_of_this_machine() -> None:
    facts = provenance.collect()
    assert facts.host.cpus == len(os.sched_getaffinity(0))
    assert facts.host.kernel == os.uname().release
    assert facts.host.memory_bytes == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.01)
    assert facts.software.packages["torch"].startswith("2.")
    assert bool(facts.gpus) != bool(facts.gpus_absent)


def test_collecting_is_cheap() -> None:
    provenance.collect()
    began_s = time.process_time()  # a busy machine does not count
    provenance.collect()
    assert time.process_time() - began_s < 2


def test_an_installed_package_claims_no_commit_of_a_repository_further_up(tmp_path: Path) -> None:
    assert provenance._git(tmp_path, "rev-parse", "HEAD") is None


def test_a_gpu_that_answers_only_some_questions_is_still_described() -> None:
    class Refused(Exception):  # noqa: N818 - stands in for NVMLError
        pass

    def refuse(*_: object) -> None:
        raise Refused

    nvml = SimpleNamespace(
        NVMLError=Refused,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetIndex=lambda _: 5,
        nvmlDeviceGetName=lambda _: "Tesla",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=123),
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlSystemGetCudaDriverVersion=lambda: 13010,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 62500,
        nvmlDeviceGetMaxClockInfo=refuse,
        nvmlDeviceGetApplicationsClock=refuse,
        nvmlDeviceGetMigMode=refuse,
        nvmlDeviceGetComputeMode=lambda _: 3,
    )
    gpu = Gpu(**describe(nvml, "handle"))
    assert (gpu.index, gpu.name, gpu.cuda, gpu.power_limit_w, gpu.compute_mode) == (
        5,
        "Tesla",
        "13.1",
        62.5,
        "exclusive-process",
    )
    assert gpu.clock_sm_max_mhz is None
    assert gpu.mig is None
