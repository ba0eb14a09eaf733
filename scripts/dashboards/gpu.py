"""The GPUs, as DCGM sees them."""

from __future__ import annotations

from harness.metrics.catalogue import CATALOGUE, Level
from scripts.dashboards.model import Dashboard, Panel, Query, Variable
from scripts.dashboards.queries import DEVICE, per_device, rate

_GPU = "{{node}} GPU {{gpu}}"
_SHOWN = ("gpu_utilization", "gpu_memory", "gpu_power", "gpu_temperature")
_UNITS = {"percent": "percent", "bytes": "bytes", "watts": "watt", "degrees Celsius": "celsius"}


def _largest(gauge: str, scale: str = "") -> str:
    """A device's own value: the exporter may repeat it for every pod on the device."""
    return f"{scale}max by (node, gpu) ({gauge}{{{DEVICE}}})"


def _recorded(name: str, legend: str = _GPU) -> Query:
    return Query(f"{name}{{{DEVICE}}}", legend)


_MEMORY_PERCENT = _recorded("gpu:memory_usage:percent")

GPU_PERFORMANCE = Dashboard(
    uid="gpu-performance",
    title="GPU Performance",
    about="Utilisation, memory, temperature, power and clocks of every GPU. Values are the device's, whoever shares it; "
    "a GPU that MIG divides has no utilisation.",
    variables=[
        # Of a GPU that MIG divides there is no utilisation; every GPU has a temperature.
        Variable("node", "Node", "DCGM_FI_DEV_GPU_TEMP", "node"),
        Variable("gpu", "GPU", 'DCGM_FI_DEV_GPU_TEMP{node=~"$node"}', "gpu"),
    ],
    rows={
        "Now": [
            Panel(
                "Load",
                [_recorded("gpu:load:score")],
                "stat",
                "percent",
                "The larger of utilisation and memory in use: what keeps the next replica out.",
                width=6,
                height=6,
                bands=True,
            ),
            Panel(
                "Utilisation",
                [per_device("gpu_utilization")],
                "gauge",
                "percent",
                width=6,
                height=6,
                maximum=100,
                bands=True,
            ),
            Panel("Memory", [_MEMORY_PERCENT], "gauge", "percent", width=6, height=6, maximum=100, bands=True),
            Panel("Temperature", [per_device("gpu_temperature")], "stat", "celsius", width=3, height=6),
            Panel("Power", [per_device("gpu_power")], "stat", "watt", width=3, height=6),
        ],
        "All GPUs": [
            Panel("Utilisation", [per_device("gpu_utilization")], unit="percent", maximum=100),
            Panel("Memory in use", [per_device("gpu_memory")], unit="bytes"),
            Panel("Memory in percent", [_MEMORY_PERCENT], unit="percent", maximum=100),
            Panel(
                "Temperature", [per_device("gpu_temperature")], unit="celsius", about="An alert fires above 80 degrees."
            ),
            Panel("Power", [per_device("gpu_power")], unit="watt"),
            Panel(
                "Energy",
                [Query(f"max by (node, gpu) ({rate('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION', DEVICE)}) / 1000", _GPU)],
                unit="watt",
                about="Mean power from the device's energy counter, which misses no peak between two readings.",
            ),
            Panel("SM clock", [Query(_largest("DCGM_FI_DEV_SM_CLOCK", "1000000 * "), _GPU)], unit="hertz"),
            Panel("Memory clock", [Query(_largest("DCGM_FI_DEV_MEM_CLOCK", "1000000 * "), _GPU)], unit="hertz"),
            Panel(
                "Memory copies",
                [Query(_largest("DCGM_FI_DEV_MEM_COPY_UTIL"), _GPU)],
                unit="percent",
                about="Share of the time in which memory was read or written.",
                maximum=100,
            ),
            Panel(
                "Last error (XID)",
                [Query(_largest("DCGM_FI_DEV_XID_ERRORS"), _GPU)],
                about="0: none since the driver was loaded.",
            ),
            *(
                Panel(metric.title, [per_device(name)], unit=_UNITS.get(metric.unit, "short"), about=metric.description)
                for name, metric in CATALOGUE.items()
                if metric.level is Level.DEVICE and name not in _SHOWN
            ),
        ],
        "GPU by GPU": [
            Panel(
                "GPU $gpu",
                [
                    per_device("gpu_utilization", "{{node}} utilisation"),
                    _recorded("gpu:memory_usage:percent", "{{node}} memory"),
                    per_device("gpu_power", "{{node}} power", unit="watt"),
                    per_device("gpu_temperature", "{{node}} temperature", unit="celsius"),
                ],
                unit="percent",
                maximum=None,
                repeat="gpu",
            ),
        ],
    },
)
