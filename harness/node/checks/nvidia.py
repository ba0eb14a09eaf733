"""The host side of the GPU: toolkit, handler and device description, and a managed driver with what runs beside it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.node.checks.host import (
    DROP_INS,
    RUNTIME_ADVICE,
    crio_drop_ins,
    crio_settings,
    judge_packages,
    old_runtimes,
    version_parts,
)
from harness.node.checks.registry import Node, Observation, check, listed, needs, no, reading, same
from harness.node.expected import NVIDIA_PACKAGES

_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_DRIVER = "/proc/driver/nvidia/version"
_REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
_AGAIN = "Run the nvidia_toolkit role again (--tags nvidia_toolkit)"
LIBRARIES = ("find", "/usr/lib", "/usr/lib64", "-name", "libnvidia-ml.so.*.*")
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)$", re.MULTILINE)
_DRIVER_AGAIN = "Run the nvidia_driver role again (--tags nvidia_driver)"
_PCI = "/sys/bus/pci/devices"
_GPU = re.compile(r"^pci:v000010DEd.*bc03", re.MULTILINE)
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_PERSISTENCE = "nvidia-persistenced.service"
_FABRIC = "nvidia-fabricmanager.service"
_SWITCH = re.compile(r"^pci:v000010DEd.*bc06sc80", re.MULTILINE)
_GPU_ID = re.compile(r"^pci:v000010DEd0000([0-9A-F]{4})sv.*bc03", re.MULTILINE)
_TURING = 0x1E00


def require_gpu(node: Node) -> None:
    """Let nodes without a GPU through, as NotApplicableError."""
    gpu = node.expected.node_gpu
    needs(gpu != "absent", "the inventory says that this node has no GPU (node_gpu: absent)")
    there = gpu != "auto" or has_driver(node) or _GPU.search(devices(node))
    needs(there, "there is no NVIDIA GPU on the PCI bus, and none is required (node_gpu: auto)")


def has_driver(node: Node) -> bool:
    """Whether a driver of NVIDIA's is loaded."""
    return node.machine.read(_DRIVER) is not None


def is_only_assumed(node: Node) -> bool:
    """Whether the inventory assumes a GPU, and there is none that could be asked."""
    return node.expected.node_gpu == "assumed" and not has_driver(node)


def require_real_gpu(node: Node) -> None:
    """Let nodes without a GPU, and those whose GPU is assumed, through, as NotApplicableError."""
    require_gpu(node)
    needs(not is_only_assumed(node), "there is no GPU to ask (node_gpu: assumed)")


def devices(node: Node) -> str:
    """What the PCI bus says that its devices are, a line each; a machine without that bus has none."""
    search = ("find", "-L", _PCI, "-maxdepth", "2", "-name", "modalias", "-exec", "cat", "{}", "+")
    return node.machine.command(*search).stdout


def _driver_version(node: Node) -> str:
    """Of the driver that is loaded; ``none`` where none is."""
    seen = _VERSION.search(node.machine.read(_DRIVER) or "")
    return seen[1] if seen else "none"


gpu_check = partial(check, when=require_gpu)


@gpu_check(
    "nvidia/library", "Reboot: the driver was upgraded while another one is loaded, and no new process gets a GPU."
)
def library_is_of_the_loaded_driver(node: Node) -> Observation:
    """The driver's library and the loaded module have the same version."""
    loaded, versions = _driver_version(node), _LIBRARY.findall(node.machine.command(*LIBRARIES).stdout)
    needs(loaded != "none" and versions, "there is no loaded driver with a library of its own to compare")
    return Observation(loaded in versions, f"libnvidia-ml.so.{loaded}, as is loaded", listed(versions))


@gpu_check("nvidia/driver", "Install the driver, reboot, and run again; or set node_gpu: absent.")
def driver_is_loaded(node: Node) -> Observation:
    """The NVIDIA driver is loaded, and new enough for the torch of the workload image."""
    gpu = node.expected.node_gpu
    needs(gpu != "assumed", "the GPU is assumed and not looked for (node_gpu: assumed)")
    version, least = _driver_version(node), node.expected.preflight_gpu_driver_min
    good = version != "none" and version_parts(version) >= version_parts(least)
    return Observation(good, f"at least {least}, as the torch of the workload image needs", version)


@gpu_check("nvidia/packages", f"{_AGAIN}.")
def packages_are_pinned(node: Node) -> Observation:
    """The toolkit is at its version and held."""
    return judge_packages(node, dict.fromkeys(NVIDIA_PACKAGES, node.expected.nvidia_toolkit_version))


@gpu_check(
    "nvidia/handler", f"{_AGAIN}; CRI-O does not start with a handler that lacks monitor_path.", unit="crio.service"
)
def handler_is_complete(node: Node) -> Observation:
    """The handler names a runtime and a monitor, and both are there."""
    name = node.expected.nvidia_toolkit_handler
    handler: dict[str, Any] = crio_settings(node).get("runtimes", {}).get(name, {})
    bad = [key for key in ("runtime_path", "monitor_path") if not node.executable(handler.get(key))]
    files = [file for file, runtime in crio_drop_ins(node).items() if name in runtime.get("runtimes", {})]
    seen = f"{handler or 'no such handler'}{_winner(files)} (missing or not executable: {listed(bad)})"
    return Observation(not bad, f"handler {name} with runtime_path and monitor_path", seen)


@gpu_check("nvidia/not-default", f"Remove default_runtime = nvidia from {DROP_INS}: pods ask for it by runtime class.")
def handler_is_not_the_default(node: Node) -> Observation:
    """Pods that ask for no GPU get none."""
    default = crio_settings(node).get("default_runtime", "CRI-O's own")
    files = [file for file, runtime in crio_drop_ins(node).items() if "default_runtime" in runtime]
    ok = default != node.expected.nvidia_toolkit_handler
    return Observation(ok, "another default runtime", f"{default}{_winner(files)}")


def _winner(files: list[str]) -> str:
    """Whose word counts, of drop-ins that say the same thing."""
    over = f", which is read after {listed(files[:-1])} and wins" if files[1:] else ""
    return f", said by {files[-1]}{over}" if files else ""


@gpu_check("nvidia/low-level-runtimes", f"{_AGAIN}: it names the runtimes by absolute path. {RUNTIME_ADVICE}")
def low_level_runtimes_are_found(node: Node) -> Observation:
    """The toolkit's low-level runtime exists and is new enough."""
    with reading(f"{_CONFIG} is not TOML"):
        runtimes = tomllib.loads(node.text(_CONFIG)).get("nvidia-container-runtime", {}).get("runtimes", [])
    good = bool(runtimes) and all(path.startswith("/") and node.executable(path) for path in runtimes)
    old = old_runtimes(node, runtimes) if good else []
    return Observation(good and not old, f"absolute paths of executables in {_CONFIG}", listed(old or runtimes))


@gpu_check("nvidia/cdi-refresh", f"{_AGAIN}.", unit=_REFRESH[1])
def description_is_refreshed(node: Node) -> Observation:
    """The devices are described again at every boot, without older descriptions."""
    bad = [f"{name} not enabled" for name in _REFRESH if node.machine.unit(name).enabled != "enabled"]
    bad += ["/etc/cdi/nvidia.yaml"] if node.machine.stat("/etc/cdi/nvidia.yaml") is not None else []
    return no(bad, "both units enabled, no /etc/cdi/nvidia.yaml")


@check(
    "nvidia/cdi", f"`systemctl start {_REFRESH[1]}`, then read its journal.", unit=_REFRESH[1], when=require_real_gpu
)
def devices_are_described(node: Node) -> Observation:
    """The description of the devices is there."""
    text = node.machine.read("/var/run/cdi/nvidia.yaml") or ""
    return Observation(
        "nvidia.com/gpu" in text, "nvidia.com/gpu in /var/run/cdi/nvidia.yaml", f"{len(text)} characters"
    )


@check(
    "nvidia/persistence",
    f"Install nvidia-persistenced at the driver's version, then: {_AGAIN}.",
    unit=_PERSISTENCE,
    when=require_real_gpu,
)
def driver_stays_awake(node: Node) -> Observation:
    """GPUs keep clocks and power limits between two users (persistence)."""
    modes = node.output("nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader").split()
    return Observation(bool(modes) and "Disabled" not in modes, "persistence mode enabled", listed(modes))


def _managed(node: Node) -> None:
    require_gpu(node)
    ours = node.expected.nvidia_driver_state == "managed"
    needs(ours, "the roles do not install the driver (nvidia_driver_state is not managed)")


def _wants_open(node: Node) -> bool:
    modules = node.expected.nvidia_driver_modules
    old = [gpu_id for gpu_id in _GPU_ID.findall(devices(node)) if int(gpu_id, 16) < _TURING]
    return modules == "open" or (modules == "auto" and not old)


def _repository(node: Node) -> Mapping[str, Any]:
    """What is another of the driver in NVIDIA's repository for the node's distribution; most have nothing."""
    words = dict(
        line.split("=", 1) for line in (node.machine.read("/etc/os-release") or "").splitlines() if "=" in line
    )
    release = "-".join(words.get(key, "").strip('"') for key in ("ID", "VERSION_ID"))
    return node.expected.versions_driver_repositories.get(release, {})


def _wanted_version(node: Node) -> str:
    """The inventory's own, else that of the distribution, which only the machine knows."""
    wanted, usual = node.expected.nvidia_driver_version, node.expected.versions.get("nvidia_driver")
    return str(_repository(node).get("version", wanted)) if wanted == usual else wanted


driver_check = partial(check, when=_managed)


@driver_check("driver/version", "Reboot where another one is still loaded, or run playbooks/upgrade.yml to change it.")
def driver_is_the_pinned_one(node: Node) -> Observation:
    """The managed driver that is loaded is the one of the table."""
    return same(_wanted_version(node), _driver_version(node))


@driver_check("driver/modules", f"{_DRIVER_AGAIN}, and reboot: the other kind is still loaded.")
def modules_are_of_the_kind_wanted(node: Node) -> Observation:
    """A managed driver has the kernel modules (open or proprietary) that the GPUs or the inventory need."""
    text = node.machine.read(_DRIVER)
    seen = "none" if text is None else "open" if "Open Kernel Module" in text else "proprietary"
    return same("open" if _wants_open(node) else "proprietary", seen)


@driver_check("driver/nouveau", f"{_DRIVER_AGAIN}, and reboot.")
def nouveau_is_off(node: Node) -> Observation:
    """With a managed driver, nouveau is neither loaded now nor at the next boot."""
    loaded = node.machine.stat("/sys/module/nouveau") is not None
    barred = "blacklist nouveau" in (node.machine.read("/etc/modprobe.d/node-nvidia-driver.conf") or "")
    seen = f"{'loaded' if loaded else 'not loaded'}, {'blacklisted' if barred else 'not blacklisted'}"
    return same("not loaded, blacklisted", seen)


@driver_check("driver/held", f"{_DRIVER_AGAIN}; it holds them.")
def driver_and_kernel_are_held(node: Node) -> Observation:
    """A managed driver and its kernel are held."""
    fabric = [node.expected.nvidia_driver_fabric_manager] if _SWITCH.search(devices(node)) else []
    driver = _repository(node).get("open", ["nvidia-open"]) if _wants_open(node) else ["cuda-drivers"]
    kernel = node.output("uname", "-r").strip()
    versions = dict.fromkeys([*driver, *fabric], _wanted_version(node))
    return judge_packages(node, versions | {f"linux-image-{kernel}": "", f"linux-headers-{kernel}": ""})


@driver_check("driver/persistence", f"{_DRIVER_AGAIN}.", unit=_PERSISTENCE)
def persistence_daemon_runs(node: Node) -> Observation:
    """The persistence daemon of a managed driver runs now and at every boot."""
    unit = node.machine.unit(_PERSISTENCE)
    good = unit.active == "active" and unit.enabled in ("enabled", "static")
    return Observation(good, f"{_PERSISTENCE} active and enabled", f"{unit.active}, {unit.enabled or unit.load}")


@gpu_check("driver/fabric-manager", f"Install it at the driver's version, or {_DRIVER_AGAIN.lower()}.", unit=_FABRIC)
def fabric_manager_runs(node: Node) -> Observation:
    """Fabric Manager runs where NVSwitches join the GPUs, whatever installed the driver."""
    needs(_SWITCH.search(devices(node)), "the PCI bus has no NVSwitch")
    needs(has_driver(node), "no driver is loaded that it could serve")
    return same("active", node.machine.unit(_FABRIC).active)
