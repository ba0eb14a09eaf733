"""What the base installation leaves out, and what to install for it."""

from __future__ import annotations

import importlib.util

EXTRA_OF = {
    "torch": "replica",
    "safetensors": "replica",
    "mlperf_loadgen": "replica",
    "grpc": "grpc",
    "kubernetes": "kubernetes",
    "tokenizers": "tokenizer",
    "fastapi": "serve",
    "uvicorn": "serve",
    "matplotlib": "plot",
    "PIL": "plot",
    "ansible_runner": "node",
    "testinfra": "node",
}


def advice_on(module: str) -> str:
    """What to install for a module; empty for one that no extra brings."""
    extra = EXTRA_OF.get(module.partition(".")[0])
    return f"pip install 'gpu-sharing-harness[{extra}]'" if extra else ""


def absent(*modules: str) -> list[str]:
    """Those of the modules that are not installed; imports none."""
    return [name for name in modules if importlib.util.find_spec(name) is None]
