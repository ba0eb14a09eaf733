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


def _profiled(gauge: str) -> Query:
    """A share between 0 and 1 that DCGM also knows of each instance of a GPU that MIG divides."""
    return Query(f"100 * max by (node, gpu, GPU_I_ID) ({gauge}{{{DEVICE}}})", f"{_GPU} {{{{GPU_I_ID}}}}")


_USED, _FREE = _largest("DCGM_FI_DEV_FB_USED"), _largest("DCGM_FI_DEV_FB_FREE")
_IN_USE = f"100 * {_USED} / ({_USED} + {_FREE})"
_MEMORY_PERCENT = Query(_IN_USE, _GPU)
_UTILISATION = per_device("gpu_utilization").expr
_LOAD = Query(f"{_UTILISATION} >= {_IN_USE} or {_IN_USE}", _GPU)
_UTILISATION_ABOUT = (
    "Share of the time in which a kernel ran, however small: two replicas that share a GPU read 100% under every mode."
)
_MEMORY_ABOUT = "Memory that is allocated, of what can be."
_TEMPERATURE_ABOUT = "An alert fires above 80 degrees."
_POWER_ABOUT = "What the device draws at the moment, idle power included."

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
                [_LOAD],
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
                _UTILISATION_ABOUT,
                width=6,
                height=6,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Memory",
                [_MEMORY_PERCENT],
                "gauge",
                "percent",
                _MEMORY_ABOUT,
                width=6,
                height=6,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Temperature",
                [per_device("gpu_temperature")],
                "stat",
                "celsius",
                _TEMPERATURE_ABOUT,
                width=3,
                height=6,
            ),
            Panel("Power", [per_device("gpu_power")], "stat", "watt", _POWER_ABOUT, width=3, height=6),
        ],
        "All GPUs": [
            Panel(
                "Utilisation", [per_device("gpu_utilization")], unit="percent", about=_UTILISATION_ABOUT, maximum=100
            ),
            Panel("Memory in use", [per_device("gpu_memory")], unit="bytes", about=_MEMORY_ABOUT),
            Panel("Memory in percent", [_MEMORY_PERCENT], unit="percent", about=_MEMORY_ABOUT, maximum=100),
            Panel("Temperature", [per_device("gpu_temperature")], unit="celsius", about=_TEMPERATURE_ABOUT),
            Panel("Power", [per_device("gpu_power")], unit="watt", about=_POWER_ABOUT),
            Panel(
                "Energy",
                [Query(f"max by (node, gpu) ({rate('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION', DEVICE)}) / 1000", _GPU)],
                unit="watt",
                about="Mean power from the device's energy counter, which misses no peak between two readings.",
            ),
            Panel(
                "SM clock",
                [Query(_largest("DCGM_FI_DEV_SM_CLOCK", "1000000 * "), _GPU)],
                unit="hertz",
                about="Of the multiprocessors. It falls when the power cap or the temperature holds the GPU back.",
            ),
            Panel(
                "Memory clock",
                [Query(_largest("DCGM_FI_DEV_MEM_CLOCK", "1000000 * "), _GPU)],
                unit="hertz",
                about="Of the GPU's memory.",
            ),
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
                    Query(_IN_USE, "{{node}} memory"),
                    per_device("gpu_power", "{{node}} power", unit="watt"),
                    per_device("gpu_temperature", "{{node}} temperature", unit="celsius"),
                ],
                unit="percent",
                about="Utilisation and memory on the left, power and temperature on the right.",
                maximum=None,
                repeat="gpu",
            ),
        ],
        "SM activity, where DCGM's profiling fields are read": [
            Panel(
                "SM activity",
                [_profiled("DCGM_FI_PROF_SM_ACTIVE")],
                unit="percent",
                about="Mean share of the time in which a multiprocessor had work, by MIG instance where there are some: it tells sharing modes apart where "
                "utilisation reads 100%. Empty unless DCGM's exporter has DCGM_FI_PROF_SM_ACTIVE among its counters and the "
                "right to profile (SYS_ADMIN); dcgm_exporter_profiling: true gives both to the exporter of this project.",
                maximum=100,
            ),
            Panel(
                "Tensor core activity",
                [_profiled("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")],
                unit="percent",
                about="Share of the time in which the tensor cores computed (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE).",
                maximum=100,
            ),
        ],
    },
)
