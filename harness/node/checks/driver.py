"""A managed NVIDIA driver: its version, its modules, its holds, and what runs beside it."""

from __future__ import annotations

import re

from harness.node.checks.nvidia import DRIVER, devices, driver_version, require_gpu
from harness.node.checks.registry import Node, NotApplicableError, Observation, check, listed
from harness.node.expected import Driver

_AGAIN = "Run the nvidia_driver role again (--tags nvidia_driver)"
_PERSISTENCE = "nvidia-persistenced.service"
_FABRIC = "nvidia-fabricmanager.service"
_SWITCH = re.compile(r"^pci:v000010DEd.*bc06sc80", re.MULTILINE)
_GPU_ID = re.compile(r"^pci:v000010DEd0000([0-9A-F]{4})sv.*bc03", re.MULTILINE)
_TURING = 0x1E00


def managed(node: Node) -> Driver:
    """The driver that the role keeps; raises NotApplicableError where it keeps none."""
    require_gpu(node)
    if node.expected.driver is None:
        raise NotApplicableError("somebody else installs the driver (nvidia_driver_state is not managed)")
    return node.expected.driver


def _wants_open(node: Node, modules: str) -> bool:
    old = [one for one in _GPU_ID.findall(devices(node)) if int(one, 16) < _TURING]
    return modules == "open" or (modules == "auto" and not old)


@check("driver/version", advice="Reboot where another one is still loaded, or run playbooks/upgrade.yml to change it.")
def driver_is_the_pinned_one(node: Node) -> Observation:
    """The managed driver that is loaded is the one of the table."""
    wanted = managed(node).version
    found = driver_version(node)
    return Observation(found == wanted, wanted, found)


@check("driver/modules", advice=f"{_AGAIN}, and reboot: the other kind is still loaded.")
def modules_are_of_the_kind_wanted(node: Node) -> Observation:
    """The kernel modules of a managed driver are the open or the proprietary ones, as the GPUs or the inventory want."""
    wanted = "open" if _wants_open(node, managed(node).modules) else "proprietary"
    text = node.machine.read(DRIVER)
    found = "none" if text is None else "open" if "Open Kernel Module" in text else "proprietary"
    return Observation(found == wanted, f"{wanted} modules", found)


@check("driver/nouveau", advice=f"{_AGAIN}, and reboot.")
def nouveau_is_off(node: Node) -> Observation:
    """The driver nouveau is neither loaded nor let in at the next boot, where NVIDIA's is managed."""
    managed(node)
    loaded = node.machine.stat("/sys/module/nouveau") is not None
    barred = "blacklist nouveau" in (node.machine.read("/etc/modprobe.d/node-nvidia-driver.conf") or "")
    found = f"{'loaded' if loaded else 'not loaded'}, {'blacklisted' if barred else 'not blacklisted'}"
    return Observation(barred and not loaded, "not loaded, blacklisted", found)


@check("driver/held", advice=f"{_AGAIN}; it holds them.")
def driver_and_kernel_are_held(node: Node) -> Observation:
    """A managed driver and the kernel that it was built for are held: neither is upgraded without the other."""
    driver = managed(node)
    kernel = node.output("uname", "-r").strip()
    package = "nvidia-open" if _wants_open(node, driver.modules) else "cuda-drivers"
    fabric = [driver.fabric_manager] if _SWITCH.search(devices(node)) else []
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
        if name in present and not _at(present[name].version, driver.version)
    ]
    return Observation(
        not loose, f"{listed(pinned)} {driver.version} and the kernel {kernel} held", f"not so: {listed(loose)}"
    )


def _at(version: str, wanted: str) -> bool:
    return version == wanted or version.startswith(f"{wanted}-")


@check("driver/persistence", advice=f"{_AGAIN}.", unit=_PERSISTENCE)
def persistence_daemon_runs(node: Node) -> Observation:
    """The persistence daemon of a managed driver runs now and at every boot."""
    managed(node)
    unit = node.machine.unit(_PERSISTENCE)
    good = unit.active == "active" and unit.enabled in ("enabled", "static")
    return Observation(good, f"{_PERSISTENCE} active and enabled", f"{unit.active}, {unit.enabled or unit.load}")


@check("driver/fabric-manager", advice=f"Install it at the driver's version, or {_AGAIN.lower()}.", unit=_FABRIC)
def fabric_manager_runs(node: Node) -> Observation:
    """Fabric Manager runs where the GPUs are joined by NVSwitches, whoever installs the driver."""
    require_gpu(node)
    if not _SWITCH.search(devices(node)):
        raise NotApplicableError("the PCI bus has no NVSwitch")
    if node.machine.read(DRIVER) is None:
        raise NotApplicableError("no driver is loaded that it could serve")
    unit = node.machine.unit(_FABRIC)
    return Observation(unit.active == "active", f"{_FABRIC} active", unit.active)
