"""The host side of the GPU: toolkit, handler and device description, and a managed driver with what runs beside it."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from harness.node.checks.crio import DROP_INS, RUNTIME_ADVICE, judge_packages, old_runtimes, settings, version_parts
from harness.node.checks.registry import CannotLookError, Node, NotApplicableError, Observation, check, listed
from harness.node.expected import NVIDIA_PACKAGES, Expected

_CONFIG = "/etc/nvidia-container-runtime/config.toml"
DRIVER = "/proc/driver/nvidia/version"
_REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
_AGAIN = "Run the nvidia_toolkit role again (--tags nvidia_toolkit)"
_EXECUTABLE = 0o111
_PCI = "/sys/bus/pci/devices"
_GPU = re.compile(r"^pci:v000010DEd.*bc03", re.MULTILINE)
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_DRIVER_AGAIN = "Run the nvidia_driver role again (--tags nvidia_driver)"
_PERSISTENCE = "nvidia-persistenced.service"
_FABRIC = "nvidia-fabricmanager.service"
_SWITCH = re.compile(r"^pci:v000010DEd.*bc06sc80", re.MULTILINE)
_GPU_ID = re.compile(r"^pci:v000010DEd0000([0-9A-F]{4})sv.*bc03", re.MULTILINE)
_TURING = 0x1E00


def require_gpu(node: Node) -> None:
    """Let nodes without a GPU through, as NotApplicableError."""
    gpu = node.expected.nvidia_toolkit_gpu
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
    seen = _VERSION.search(node.machine.read(DRIVER) or "")
    return seen[1] if seen else "none"


def _executable(node: Node, path: object) -> bool:
    state = node.machine.stat(str(path)) if path else None
    return state is not None and bool(state.mode & _EXECUTABLE)


@check("nvidia/driver", advice="Install the driver, reboot, and run again; or set nvidia_toolkit_gpu: absent.")
def driver_is_loaded(node: Node) -> Observation:
    """The NVIDIA driver is loaded, and new enough for the torch of the workload image."""
    require_gpu(node)
    if node.expected.nvidia_toolkit_gpu == "assumed":
        raise NotApplicableError("the GPU is assumed and not looked for (nvidia_toolkit_gpu: assumed)")
    version, least = driver_version(node), node.expected.preflight_gpu_driver_min
    good = version != "none" and version_parts(version) >= version_parts(least)
    return Observation(
        good, f"a loaded NVIDIA driver of at least {least}, as the torch of the workload image needs", version
    )


@check("nvidia/packages", advice=f"{_AGAIN}.")
def packages_are_pinned(node: Node) -> Observation:
    """The toolkit is at its version and held."""
    require_gpu(node)
    return judge_packages(node, dict.fromkeys(NVIDIA_PACKAGES, node.expected.nvidia_toolkit_version))


@check(
    "nvidia/handler",
    advice=f"{_AGAIN}; CRI-O does not start with a handler that lacks monitor_path.",
    unit="crio.service",
)
def handler_is_complete(node: Node) -> Observation:
    """The handler names a runtime and a monitor, and both are there."""
    require_gpu(node)
    name = node.expected.nvidia_toolkit_handler
    handler: dict[str, Any] = settings(node).get("runtimes", {}).get(name, {})
    bad = [key for key in ("runtime_path", "monitor_path") if not _executable(node, handler.get(key))]
    seen = f"{handler or 'no such handler'} (missing or not executable: {listed(bad)})"
    return Observation(not bad, f"handler {name} with runtime_path and monitor_path", seen)


@check(
    "nvidia/not-default", advice=f"Remove default_runtime = nvidia from {DROP_INS}: pods ask for it by runtime class."
)
def handler_is_not_the_default(node: Node) -> Observation:
    """Pods that ask for no GPU get none."""
    require_gpu(node)
    default = settings(node).get("default_runtime", "CRI-O's own")
    return Observation(default != node.expected.nvidia_toolkit_handler, "another default runtime", str(default))


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
    seen = ", ".join(f"{name} {enabled or 'absent'}" for name, enabled in units.items())
    return Observation(
        good, "both units enabled, no /etc/cdi/nvidia.yaml", f"{seen}, copy in /etc/cdi: {'yes' if stale else 'no'}"
    )


@check(
    "nvidia/cdi",
    advice="`systemctl start nvidia-cdi-refresh.service`, then read its journal.",
    unit="nvidia-cdi-refresh.service",
)
def devices_are_described(node: Node) -> Observation:
    """The description of the devices is there."""
    require_gpu(node)
    if node.expected.nvidia_toolkit_gpu == "assumed" and node.machine.read(DRIVER) is None:
        raise NotApplicableError("there is no GPU to describe (nvidia_toolkit_gpu: assumed)")
    text = node.machine.read("/var/run/cdi/nvidia.yaml") or ""
    return Observation(
        "nvidia.com/gpu" in text, "nvidia.com/gpu in /var/run/cdi/nvidia.yaml", f"{len(text)} characters"
    )


def managed(node: Node) -> Expected:
    """What is expected of a driver that the role keeps; raises NotApplicableError where it keeps none."""
    require_gpu(node)
    if node.expected.nvidia_driver_state != "managed":
        raise NotApplicableError("somebody else installs the driver (nvidia_driver_state is not managed)")
    return node.expected


def _wants_open(node: Node, modules: str) -> bool:
    old = [gpu_id for gpu_id in _GPU_ID.findall(devices(node)) if int(gpu_id, 16) < _TURING]
    return modules == "open" or (modules == "auto" and not old)


@check("driver/version", advice="Reboot where another one is still loaded, or run playbooks/upgrade.yml to change it.")
def driver_is_the_pinned_one(node: Node) -> Observation:
    """The managed driver that is loaded is the one of the table."""
    wanted = managed(node).nvidia_driver_version
    seen = driver_version(node)
    return Observation(seen == wanted, wanted, seen)


@check("driver/modules", advice=f"{_DRIVER_AGAIN}, and reboot: the other kind is still loaded.")
def modules_are_of_the_kind_wanted(node: Node) -> Observation:
    """The kernel modules of a managed driver are the open or the proprietary ones, as the GPUs or the inventory want."""
    wanted = "open" if _wants_open(node, managed(node).nvidia_driver_modules) else "proprietary"
    text = node.machine.read(DRIVER)
    seen = "none" if text is None else "open" if "Open Kernel Module" in text else "proprietary"
    return Observation(seen == wanted, f"{wanted} modules", seen)


@check("driver/nouveau", advice=f"{_DRIVER_AGAIN}, and reboot.")
def nouveau_is_off(node: Node) -> Observation:
    """The driver nouveau is neither loaded nor let in at the next boot, where NVIDIA's is managed."""
    managed(node)
    loaded = node.machine.stat("/sys/module/nouveau") is not None
    barred = "blacklist nouveau" in (node.machine.read("/etc/modprobe.d/node-nvidia-driver.conf") or "")
    seen = f"{'loaded' if loaded else 'not loaded'}, {'blacklisted' if barred else 'not blacklisted'}"
    return Observation(barred and not loaded, "not loaded, blacklisted", seen)


@check("driver/held", advice=f"{_DRIVER_AGAIN}; it holds them.")
def driver_and_kernel_are_held(node: Node) -> Observation:
    """A managed driver and the kernel that it was built for are held: neither is upgraded without the other."""
    wanted = managed(node)
    version = wanted.nvidia_driver_version
    kernel = node.output("uname", "-r").strip()
    package = "nvidia-open" if _wants_open(node, wanted.nvidia_driver_modules) else "cuda-drivers"
    fabric = [wanted.nvidia_driver_fabric_manager] if _SWITCH.search(devices(node)) else []
    present = node.machine.packages()
    loose = [
        name
        for name in (package, *fabric, f"linux-image-{kernel}", f"linux-headers-{kernel}")
        if name not in present or not (present[name].installed and present[name].held)
    ]
    pinned = [package, *fabric]
    loose += [
        f"{name} {present[name].version}"
        for name in pinned
        if name in present and not _at(present[name].version, version)
    ]
    return Observation(
        not loose, f"{listed(pinned)} {version} and the kernel {kernel} held", f"not so: {listed(loose)}"
    )


def _at(version: str, wanted: str) -> bool:
    return version == wanted or version.startswith(f"{wanted}-")


@check("driver/persistence", advice=f"{_DRIVER_AGAIN}.", unit=_PERSISTENCE)
def persistence_daemon_runs(node: Node) -> Observation:
    """The persistence daemon of a managed driver runs now and at every boot."""
    managed(node)
    unit = node.machine.unit(_PERSISTENCE)
    good = unit.active == "active" and unit.enabled in ("enabled", "static")
    return Observation(good, f"{_PERSISTENCE} active and enabled", f"{unit.active}, {unit.enabled or unit.load}")


@check("driver/fabric-manager", advice=f"Install it at the driver's version, or {_DRIVER_AGAIN.lower()}.", unit=_FABRIC)
def fabric_manager_runs(node: Node) -> Observation:
    """Fabric Manager runs where the GPUs are joined by NVSwitches, whoever installs the driver."""
    require_gpu(node)
    if not _SWITCH.search(devices(node)):
        raise NotApplicableError("the PCI bus has no NVSwitch")
    if node.machine.read(DRIVER) is None:
        raise NotApplicableError("no driver is loaded that it could serve")
    unit = node.machine.unit(_FABRIC)
    return Observation(unit.active == "active", f"{_FABRIC} active", unit.active)
