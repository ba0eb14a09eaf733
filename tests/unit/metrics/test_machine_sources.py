"""The real sources: this machine's processes and pressure files, and NVML behind a stand-in for its module."""

# ruff: noqa: N802 - NVML's own names

import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from harness.metrics.catalogue import PRESSURE_SOURCES, Source
from harness.metrics.machine import KernelPressure, ProcessTrees, ProcessUsage
from harness.metrics.nvml import NvmlGpus, gpu_descriptions, gpu_facts
from harness.metrics.rows import Missing

BURN = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


@pytest.fixture
def spawn():
    started = []

    def run(code):
        started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_cpu_and_memory_of_a_process(spawn):
    process = spawn(BURN.format(0.2) + "data = bytearray(50_000_000); print('ready', flush=True); time.sleep(60)")
    process.stdout.readline()
    usage = ProcessTrees([process.pid]).read()[0]
    assert isinstance(usage, ProcessUsage)
    assert 0.15 <= usage.cpu_s <= 2
    assert usage.memory_bytes > 50_000_000


def test_children_count_while_they_run_and_after(spawn):
    child = f"import subprocess, sys\n{BURN.format(0.2)}print('ready', flush=True)\nsys.stdin.readline()\n"
    parent = spawn(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(0.5)\n"
        "child.communicate(b'x'); print('waited', flush=True); time.sleep(60)"
    )
    child_pid = int(parent.stdout.readline())
    trees = ProcessTrees([parent.pid], refresh_s=0)
    running = trees.read()[0]
    assert trees.pids(0) == {parent.pid, child_pid}
    parent.stdout.readline()
    ended = trees.read()[0]
    assert isinstance(running, ProcessUsage)
    assert isinstance(ended, ProcessUsage)
    assert running.cpu_s > 0.15  # the parent alone has used a few hundredths; readings are in ticks of 10 ms
    assert ended.cpu_s >= running.cpu_s - 0.05  # its time has passed on to its parent
    assert ended.memory_bytes < running.memory_bytes
    assert trees.pids(0) == {parent.pid}


def test_children_are_not_searched_for_at_every_reading(spawn, monkeypatch):
    process = spawn("import time; time.sleep(60)")
    trees = ProcessTrees([process.pid], refresh_s=60)
    searches = []
    monkeypatch.setattr("harness.metrics.machine._parents", lambda: searches.append(1) or [])
    for _ in range(3):
        trees.read()
    assert searches == [1]


def test_a_process_that_ended_is_missing_even_as_a_zombie(spawn):
    process = spawn("pass")
    trees = ProcessTrees([process.pid])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert trees.read() == [Missing("the replica's process has ended")]
    process.wait()
    assert trees.read() == [Missing("the replica's process has ended")]
    assert ProcessTrees([process.pid]).read() == [Missing("the replica's process has ended")]


def test_a_process_whose_memory_the_kernel_has_taken_already_has_ended(monkeypatch):
    trees = ProcessTrees([os.getpid()])
    monkeypatch.setattr("harness.metrics.machine._usage", lambda _process: (1.0, 0.0))

    assert isinstance(trees.read()[0], Missing)


def pressure_files(folder, text="some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0 total=1\n"):
    for name in ("cpu", "memory", "io"):
        (folder / name).write_text(text)
    return KernelPressure(folder)


def test_pressure_is_read_in_seconds_or_is_missing_with_the_reason(tmp_path):
    assert "boot with psi=1" in KernelPressure(tmp_path).read(Source.CPU_PRESSURE).reason
    assert {pressure_files(tmp_path).read(source) for source in PRESSURE_SOURCES} == {2.5}
    assert "no line `some`" in pressure_files(tmp_path, "\n").read(Source.IO_PRESSURE).reason


@pytest.mark.skipif(not os.path.exists("/proc/pressure/cpu"), reason="this kernel has no PSI")  # noqa: PTH110
def test_this_kernel_says_how_long_it_stalled():
    pressure = KernelPressure()
    before = pressure.read(Source.CPU_PRESSURE)
    time.sleep(0.01)
    assert pressure.read(Source.CPU_PRESSURE) >= before >= 0


class NVMLError(Exception):
    pass


class FakeNvml:
    """As much of ``pynvml`` as is used; two devices, unless told otherwise."""

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION, NVML_SUCCESS = 1, 0
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 2, 3, 5
    NVML_GPM_METRIC_DRAM_BW_UTIL, NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 10, 20, 21
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 60, 61
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    def __init__(self, *, devices=2, init_error=None, power_error=None, processes=(), mps=None, monitored=True):
        self.devices, self.init_error, self.power_error = devices, init_error, power_error
        self.processes, self.shut = processes, 0
        self.monitored, self.samples, self.time = monitored, 0, 0
        if mps is not None:
            self.nvmlDeviceGetMPSComputeRunningProcesses = lambda _handle: mps

    def nvmlInit(self):
        if self.init_error:
            raise NVMLError(self.init_error)

    def nvmlShutdown(self):
        self.shut += 1

    def nvmlDeviceGetCount(self):
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}{handle}-aaaa"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=90 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=1000 + handle)

    def nvmlDeviceGetPowerUsage(self, _handle):
        if self.power_error:
            raise NVMLError(self.power_error)
        return 123_456

    def nvmlDeviceGetTemperature(self, _handle, _sensor):
        return 55

    def nvmlDeviceGetClockInfo(self, _handle, clock):
        return {1: 1980, 2: 2619}[clock]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle):
        return 4

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle):
        return 5_000

    def nvmlGpmQueryDeviceSupport(self, _handle):
        return SimpleNamespace(isSupportedDevice=int(self.monitored))

    def nvmlGpmSampleAlloc(self):
        self.samples += 1
        return SimpleNamespace()

    def nvmlGpmSampleFree(self, _sample):
        self.samples -= 1

    def nvmlGpmSampleGet(self, _handle, sample):
        self.time += 1
        sample.taken = self.time

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(8)])

    def nvmlGpmMetricsGet(self, asked):
        """A metric's value: its number, and how many samples ago the interval began; occupancy is not known."""
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = 3 if metric.metricId == self.NVML_GPM_METRIC_SM_OCCUPANCY else self.NVML_SUCCESS
            metric.value = metric.metricId + (asked.sample2.taken - asked.sample1.taken) / 100

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):
        return self.processes


def process(pid, used):
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.fixture(autouse=True)
def no_visible_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_idle_power_is_that_of_a_gpu_on_which_nobody_computes():
    assert NvmlGpus(FakeNvml()).idle_power() == {"GPU-00-aaaa": 123.456, "GPU-11-aaaa": 123.456}
    taken = NvmlGpus(FakeNvml(processes=[process(7, 300)])).idle_power()["GPU-00-aaaa"]
    assert "process 7" in taken.reason
    assert NvmlGpus(FakeNvml(power_error="Not Supported")).idle_power()["GPU-00-aaaa"] == Missing("NVML: Not Supported")
    assert NvmlGpus(FakeNvml(devices=0)).idle_power() == {}


def test_every_device_is_read_in_units_of_the_catalogue():
    gpus = NvmlGpus(FakeNvml(processes=[process(7, 300)], mps=[process(8, 400)]), activity=True)
    assert (gpus.absent, gpus.count) == ("", 2)
    usage = gpus.read()[1]
    assert usage.gauges == {
        "utilization_percent": 91,
        "memory_bytes": 1001,
        "power_w": 123.456,
        "temperature_celsius": 55,
    }
    assert usage.process_memory_bytes == {7: 300, 8: 400}
    telemetry = gpus.read_telemetry()[0]
    assert (telemetry["sm_clock_mhz"], telemetry["memory_clock_mhz"]) == (1980, 2619)
    assert (telemetry["throttle_reasons"], telemetry["energy_j"]) == (4, 5.0)


def test_what_the_processors_did_is_told_from_reading_to_reading():
    library = FakeNvml(devices=1)
    gpus = NvmlGpus(library, activity=True)
    for _ in range(3):
        activity = gpus.read_telemetry()[0]
        assert (activity["sm_active_percent"], activity["tensor_active_percent"]) == (2.01, 5.01)
        assert activity["sm_occupancy_percent"] == Missing("NVML: not on this GPU")
        assert activity["pcie_received_bytes_per_s"] == pytest.approx(21.01 * 2**20, rel=1e-5)
        assert activity["nvlink_sent_bytes_per_s"] == pytest.approx(61.01 * 2**20, rel=1e-5)
    gpus.close()
    NvmlGpus(library).read()  # who reads no activity keeps no samples of it
    assert library.samples == 0


@pytest.mark.parametrize(
    ("metric_id", "value"),
    # Six digits, as many as the counters can tell; the double adds 0.01 to each.
    [(8.422458806165011, 8.43246), (math.nan, Missing("NVML: no number"))],
)
def test_an_activity_has_the_digits_that_its_counters_can_tell_or_is_missing(metric_id, value):
    library = FakeNvml(devices=1)
    library.NVML_GPM_METRIC_SM_UTIL = metric_id
    activity = NvmlGpus(library, activity=True).read_telemetry()[0]
    assert (activity["sm_active_percent"], activity["tensor_active_percent"]) == (value, 5.01)


def test_a_gpu_without_performance_monitoring_says_so():
    activity = NvmlGpus(FakeNvml(monitored=False), activity=True).read_telemetry()[0]
    assert "Hopper and newer" in activity["sm_active_percent"].reason


def test_what_one_device_cannot_do_is_missing_and_the_rest_is_not():
    usage = NvmlGpus(FakeNvml(power_error="Not Supported", processes=[process(7, None)])).read()[0]
    assert usage.gauges["power_w"] == Missing("NVML: Not Supported")
    assert usage.process_memory_bytes == Missing("NVML does not give memory per process here")
    assert usage.gauges["utilization_percent"] == 90


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (FakeNvml(init_error="NVML Shared Library Not Found"), "no NVIDIA driver: libnvidia-ml.so.1 not found"),
        (FakeNvml(init_error="Driver Not Loaded"), "no NVIDIA driver: NVML says Driver Not Loaded"),
        (FakeNvml(devices=0), "no GPU"),
    ],
)
def test_no_device_has_a_reason_in_the_same_words_everywhere(library, reason):
    gpus = NvmlGpus(library)
    assert reason in gpus.absent
    assert (gpus.count, gpus.read(), gpus.read_telemetry()) == (0, [], [])
    for ask in (gpu_facts, gpu_descriptions):
        assert not library.init_error or ask(library) == ([], gpus.absent)


@pytest.mark.parametrize(
    ("visible", "utilizations"),
    [("1", [91]), ("1,0", [91, 90]), ("GPU-11", [91]), ("0,7,1", [90]), ("", []), ("MIG-abc", [90, 91])],
)
def test_only_devices_that_the_replicas_see_are_read(monkeypatch, visible, utilizations):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [usage.gauges["utilization_percent"] for usage in NvmlGpus(FakeNvml()).read()] == utilizations


@pytest.mark.parametrize(
    ("used", "utilizations"), [(["GPU-11-aaaa"], [91]), (["GPU-00-aaaa", "GPU-11-aaaa"], [90, 91]), ([], [])]
)
def test_a_device_that_nobody_uses_is_not_read(used, utilizations):
    gpus = NvmlGpus(FakeNvml(), used=used, activity=True)
    assert [usage.gauges["utilization_percent"] for usage in gpus.read()] == utilizations
    assert len(gpus.read_telemetry()) == gpus.count == len(utilizations)
    assert gpus.absent == ("" if used else "no GPU: no replica uses one")


class HalfBrokenNvml(FakeNvml):
    """A GB10, whose memory is the machine's, a GPU that fell off the bus, and a vGPU that says little."""

    NVML_CLOCK_SM = NVML_CLOCK_MEM = 0

    def __init__(self):
        super().__init__(devices=3)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index == 1:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, _handle):
        raise NVMLError("Not Supported")

    def nvmlDeviceGetName(self, handle):
        return ["NVIDIA GB10", None, "NVIDIA A10-8Q"][handle]

    def nvmlDeviceGetIndex(self, handle):
        return handle

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def refuse(*_):
            raise NVMLError("Not Supported")

        return refuse if name.startswith("nvmlDevice") else lambda: "590.44.01"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13010


def test_what_a_gpu_does_not_say_is_empty_and_a_broken_one_is_named_beside_the_others():
    gpus, why = gpu_facts(HalfBrokenNvml())
    assert [(gpu.name, gpu.total_bytes, gpu.free_bytes) for gpu in gpus] == [
        ("NVIDIA GB10", None, None),
        ("NVIDIA A10-8Q", None, None),
    ]
    assert why == "GPU 1 is broken: NVML says GPU is lost"
    described, why_none = gpu_descriptions(HalfBrokenNvml())
    assert ([(gpu["index"], gpu["memory_bytes"]) for gpu in described], why_none) == ([(0, None), (2, None)], "")
    usage = NvmlGpus(HalfBrokenNvml()).read()
    assert [gpu.gauges["memory_bytes"] for gpu in usage] == [Missing("NVML: Not Supported")] * 2


def test_a_library_of_another_version_than_the_driver_wants_a_reboot():
    for said in ("Driver/library version mismatch", "RM has detected an NVML/RM version mismatch."):
        assert "reboot" in NvmlGpus(FakeNvml(init_error=said)).absent


def test_the_driver_is_let_go_once():
    library = FakeNvml()
    gpus = NvmlGpus(library)
    gpus.close()
    gpus.close()
    assert library.shut == 1
