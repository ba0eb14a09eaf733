"""A gauge of the GPU is one record of the catalogue and one entry of the reader; everything else follows from the two."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# In a process of its own, because tables are made of the catalogue when modules are imported.
ADDED = """
import harness.metrics.catalogue as catalogue
import harness.metrics.nvml as nvml

# The two places, as their files would have it.
fan = catalogue._device("gpu_fan", "GPU fan", "percent", "fan_percent", "DCGM_FI_DEV_FAN_SPEED", 100.0, "Speed of the fan.")
catalogue.STANDARD["gpu_fan"] = catalogue.CATALOGUE["gpu_fan"] = fan
nvml.GAUGES["fan_percent"] = lambda nvml, gpu: nvml.nvmlDeviceGetFanSpeed(gpu)

import sys
from pathlib import Path

from harness.analysis.report import write_report
from harness.metrics import telemetry
from harness.metrics.prometheus.telemetry import FIELDS
from harness.metrics.row_builder import Reading, TickComputer
from scripts.dashboards import DASHBOARDS, rendered
from scripts.pages import metrics as page
from tests.unit.metrics.test_machine_sources import FakeNvml
from tests.unit.results import synthetic

FakeNvml.nvmlDeviceGetFanSpeed = lambda self, gpu: 70 + gpu
gpus = nvml.NvmlGpus(FakeNvml(devices=1), activity=True)
computer = TickComputer([], [fan], gpus.count, 4000, lambda index: frozenset())
rows = synthetic._tick
def tick(time_s, *arguments):
    computer.observe(round(time_s * 1000), Reading(gpus=gpus.read()), counting=True)
    return rows(time_s, *arguments) + computer.rows(round(time_s * 1000))
synthetic._tick = tick
folder = synthetic.write_campaign(Path(sys.argv[1]) / "c", replicas=[1], repeats=1, shape=synthetic.Shape(record_s=5))
(csv,) = folder.glob("*/resnet50_r1_gpu_fan_*.csv")
assert ",gpu-0,70.0," in csv.read_text(), csv.read_text()
report = write_report(folder)
assert '<th scope="row" class="words">GPU fan</th><td>70' in report.read_text()
assert ",gpu_fan,%,70.0," in (folder / "summary.csv").read_text()
assert FIELDS["fan_percent"] == (("DCGM_FI_DEV_FAN_SPEED",), 1.0)
assert "gpu0_fan_percent" in telemetry.columns([0])
assert gpus.read_telemetry()[0]["fan_percent"] == 70
assert "| `gpu_fan` | percent | gauge | `gpu-N` | Speed of the fan. |" in page.page()
assert "| `gpu_fan` | NVML, of the device: `fan_percent` |" in page.page()
(gpu,) = [rendered(dashboard) for dashboard in DASHBOARDS if dashboard.uid == "gpu-performance"]
assert '"title": "GPU fan"' in gpu and "DCGM_FI_DEV_FAN_SPEED" in gpu
print("everywhere")
"""


def test_a_gauge_in_catalogue_and_reader_reaches_csv_report_dashboard_telemetry_and_docs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines()[-1:] == ["everywhere"], done.stderr


def test_one_module_speaks_with_nvml():
    speaking = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "harness").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr.startswith("nvml"))
        or (isinstance(node, ast.Import) and any(name.name == "pynvml" for name in node.names))
    }

    assert speaking == {"harness/metrics/nvml.py"}
