"""The host side of the GPU: toolkit, handler and device description."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from harness.node.checks.crio import DROP_INS, RUNTIME_ADVICE, old_runtimes, settings, version_parts
from harness.node.checks.packages import judge_packages
from harness.node.checks.registry import CannotLookError, Node, NotApplicableError, Observation, check, listed

_CONFIG = "/etc/nvidia-container-runtime/config.toml"
DRIVER = "/proc/driver/nvidia/version"
_REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
_AGAIN = "Run the nvidia_toolkit role again (--tags nvidia_toolkit)"
_EXECUTABLE = 0o111
_PCI = "/sys/bus/pci/devices"
_GPU = re.compile(r"^pci:v000010DEd.*bc03", re.MULTILINE)
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")


def require_gpu(node: Node) -> None:
    """Let nodes without a GPU through, as NotApplicableError."""
    gpu = node.expected.gpu
    if gpu == "absent":
        raise NotApplicableError("the inventory says that this node has no GPU (nvidia_toolkit_gpu: absent)")
    if gpu == "auto" and node.machine.read(DRIVER) is None and not _GPU.search(devices(node)):
        raise NotApplicableError(
            "there is no NVIDIA GPU on the PCI bus, and none is required (nvidia_toolkit_gpu: auto)"
        )


def devices(node: Node) -> str:
    """What the PCI bus says that its devices are, a line each; a machine without that bus has none."""
    return node.machine.command(
        "find", "-L", _PCI, "-maxdepth", "2", "-name", "modalias", "-exec", "cat", "{}", "+"
    ).stdout


def driver_version(node: Node) -> str:
    """Of the driver that is loaded; ``none`` where none is."""
    found = _VERSION.search(node.machine.read(DRIVER) or "")
    return found[1] if found else "none"


def _executable(node: Node, path: object) -> bool:
    state = node.machine.stat(str(path)) if path else None
    return state is not None and bool(state.mode & _EXECUTABLE)


@check("nvidia/driver", advice="Install the driver, reboot, and run again; or set nvidia_toolkit_gpu: absent.")
def driver_is_loaded(node: Node) -> Observation:
    """The NVIDIA driver is loaded, and new enough for the torch of the workload image."""
    require_gpu(node)
    if node.expected.gpu == "assumed":
        raise NotApplicableError("the GPU is assumed and not looked for (nvidia_toolkit_gpu: assumed)")
    version, least = driver_version(node), node.expected.driver_min
    good = version != "none" and version_parts(version) >= version_parts(least)
    return Observation(
        good, f"a loaded NVIDIA driver of at least {least}, as the torch of the workload image needs", version
    )


@check("nvidia/packages", advice=f"{_AGAIN}.")
def packages_are_pinned(node: Node) -> Observation:
    """The toolkit is at its version and held."""
    require_gpu(node)
    return judge_packages(node, node.expected.nvidia_packages)


@check(
    "nvidia/handler",
    advice=f"{_AGAIN}; CRI-O does not start with a handler that lacks monitor_path.",
    unit="crio.service",
)
def handler_is_complete(node: Node) -> Observation:
    """The handler names a runtime and a monitor, and both are there."""
    require_gpu(node)
    name = node.expected.handler
    handler: dict[str, Any] = settings(node).get("runtimes", {}).get(name, {})
    bad = [key for key in ("runtime_path", "monitor_path") if not _executable(node, handler.get(key))]
    found = f"{handler or 'no such handler'} (missing or not executable: {listed(bad)})"
    return Observation(not bad, f"handler {name} with runtime_path and monitor_path", found)


@check(
    "nvidia/not-default", advice=f"Remove default_runtime = nvidia from {DROP_INS}: pods ask for it by runtime class."
)
def handler_is_not_the_default(node: Node) -> Observation:
    """Pods that ask for no GPU get none."""
    require_gpu(node)
    default = settings(node).get("default_runtime", "CRI-O's own")
    return Observation(default != node.expected.handler, "another default runtime", str(default))


@check("nvidia/low-level-runtimes", advice=f"{_AGAIN}: it names the runtimes by absolute path. {RUNTIME_ADVICE}")
def low_level_runtimes_are_found(node: Node) -> Observation:
    """The toolkit hands over to a runtime that is there and new enough, whatever PATH says."""
    require_gpu(node)
    try:
        toolkit = tomllib.loads(node.text(_CONFIG)).get("nvidia-container-runtime", {})
    except tomllib.TOMLDecodeError as error:
        raise CannotLookError(f"{_CONFIG} is not TOML: {error}") from error
    runtimes = toolkit.get("runtimes", [])
    good = bool(runtimes) and all(path.startswith("/") and _executable(node, path) for path in runtimes)
    old = old_runtimes(node, runtimes) if good else []
    return Observation(good and not old, f"absolute paths of executables in {_CONFIG}", listed(old or runtimes))


@check("nvidia/cdi-refresh", advice=f"{_AGAIN}.", unit="nvidia-cdi-refresh.service")
def description_is_refreshed(node: Node) -> Observation:
    """The devices are described anew at every boot, and no older description stands in the way."""
    require_gpu(node)
    units = {name: node.machine.unit(name).enabled for name in _REFRESH}
    stale = node.machine.stat("/etc/cdi/nvidia.yaml") is not None
    good = all(enabled == "enabled" for enabled in units.values()) and not stale
    found = ", ".join(f"{name} {enabled or 'absent'}" for name, enabled in units.items())
    return Observation(
        good, "both units enabled, no /etc/cdi/nvidia.yaml", f"{found}, copy in /etc/cdi: {'yes' if stale else 'no'}"
    )


@check(
    "nvidia/cdi",
    advice="`systemctl start nvidia-cdi-refresh.service`, then read its journal.",
    unit="nvidia-cdi-refresh.service",
)
def devices_are_described(node: Node) -> Observation:
    """The description of the devices is there."""
    require_gpu(node)
    if node.expected.gpu == "assumed" and node.machine.read(DRIVER) is None:
        raise NotApplicableError("there is no GPU to describe (nvidia_toolkit_gpu: assumed)")
    text = node.machine.read("/var/run/cdi/nvidia.yaml") or ""
    return Observation(
        "nvidia.com/gpu" in text, "nvidia.com/gpu in /var/run/cdi/nvidia.yaml", f"{len(text)} characters"
    )
