"""Facts about the machine and the software: cheap to collect, and never a reason to fail."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from pathlib import Path

import harness
from harness.host import describe_host
from harness.metrics.nvml import gpu_descriptions
from harness.results.manifest import Gpu, Host, Provenance, Software

_PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "nvidia-ml-py",
    "prometheus_client",
    "prometheus-api-client",
    "pandas",
    "pyarrow",
    "pydantic",
    "psutil",
)
_GIT_TIMEOUT_S = 5


def collect() -> Provenance:
    """Host, GPUs and software of this process. What cannot be read is None, with no exception."""
    gpus, why_none = gpu_descriptions()
    return Provenance(host=_host(), gpus=[Gpu(**gpu) for gpu in gpus], gpus_absent=why_none, software=_software())


def _host() -> Host:
    seen, system, product = describe_host(), platform.system(), None
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    with contextlib.suppress(OSError):
        product = Path("/sys/class/dmi/id/product_name").read_text(encoding="utf-8", errors="replace").strip() or None
    return Host.model_validate(
        {
            **seen,
            "hostname": socket.gethostname(),
            "os": system,
            "cpu_model": seen["cpu_model"] or "unknown",
            "cpus": len(os.sched_getaffinity(0)),
            "virtualization": product,
        }
    )


def _software() -> Software:
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    root = Path(harness.__file__).resolve().parent.parent
    # An image or a copy without .git can say what it was built from.
    commit = _git(root, "rev-parse", "HEAD") or os.environ.get("HARNESS_GIT_COMMIT")
    dirty = None if not (root / ".git").exists() else bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    return Software(
        harness=harness.__version__,
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        packages=packages,
    )


def _git(root: Path, *arguments: str) -> str | None:
    if not (root / ".git").exists():
        return None  # An installed package: a repository further up is somebody else's.
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
