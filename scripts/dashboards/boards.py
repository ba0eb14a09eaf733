"""What the dashboards show."""

from __future__ import annotations

from pathlib import Path

from scripts.dashboards import containers, gpu, inference, machine

DEFAULT_FOLDER = Path(__file__).parents[2] / "templates" / "dashboards"

DASHBOARDS = (
    machine.SYSTEM_RESOURCES,
    gpu.GPU_PERFORMANCE,
    containers.CONTAINER_METRICS,
    machine.SYSTEM_PRESSURE,
    inference.INFERENCE_PERFORMANCE,
)
