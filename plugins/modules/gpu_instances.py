#!/usr/bin/python
"""Every GPU of a machine divided into the MIG instances that are wanted."""

from __future__ import annotations

from typing import Any

from ..module_utils.documented import documented
from ..module_utils.nvidia_smi import NvidiaSmi

DOCUMENTATION = r"""
{"module": "gpu_instances", "author": ["the project"], "short_description": "Divides every GPU of a machine into MIG instances",
 "description": [
  "Turns MIG on where it is off, and makes the instances that are wanted; a GPU that has exactly these is left alone.",
  "Other instances of a GPU are removed first. A GPU on which processes run is not touched; nor is any other then.",
  "Instances end with a reboot, and on Hopper and newer MIG with them; this module makes them for now."],
 "options": {
  "profiles": {"type": "list", "elements": "str", "required": true, "description": "Profiles that each GPU is divided into, as C(nvidia-smi mig -lgip) names them, e.g. V(1g.18gb), each as often as it is wanted."}}}
"""


class Divider:
    """Divides GPUs one by one.

    Args:
        module: whose commands are run.
        profiles: of the instances wanted on each GPU.
    """

    def __init__(self, module: Any, profiles: list[str]) -> None:
        self._module = module
        self._smi = NvidiaSmi(module)
        self._profiles = profiles

    def others(self) -> list[dict[str, Any]]:
        """GPUs that are divided otherwise, or not at all. Ends the module where one has no MIG."""
        found = self._smi.devices()
        if not found:
            self._fail("the driver shows no GPU", "see `dmesg | grep -i nvrm`, or reboot")
        for device in found:
            if device["mig"] is None:
                self._fail(
                    f"{_name(device)} does not support MIG", "remove device_plugin_mig_profiles from this machine"
                )
        return [one for one in found if not one["mig"] or sorted(one["instances"]) != sorted(self._profiles)]

    def refuse_busy(self, devices: list[dict[str, Any]]) -> None:
        """End the module where processes run on one of these GPUs."""
        for device in devices:
            pids = self._smi.ask(
                "-i", str(device["index"]), "--query-compute-apps=pid", "--format=csv,noheader"
            ).split()
            if pids:
                self._fail(f"processes {', '.join(pids)} run on {_name(device)}", "end them; nothing was changed")

    def divide(self, device: dict[str, Any]) -> None:
        """Bring one GPU to its instances."""
        index = str(device["index"])
        if not device["mig"]:
            said = self._do(device, "-i", index, "-mig", "1")
            if not self._mig_is_on(device):
                self._fail(
                    f"{_name(device)} does not turn MIG on: {said}",
                    "stop what holds the GPU (DCGM, persistence daemons, displays), or reboot; then run this again",
                )
        elif device["instances"]:
            self._do(device, "mig", "-i", index, "-dci")
            self._do(device, "mig", "-i", index, "-dgi")
        self._do(device, "mig", "-i", index, "-cgi", ",".join(self._profiles), "-C")

    def _mig_is_on(self, device: dict[str, Any]) -> bool:
        return any(one["index"] == device["index"] and one["mig"] for one in self._smi.devices())

    def _do(self, device: dict[str, Any], *words: str) -> str:
        code, said = self._smi.run(*words)
        if code != 0:
            self._fail(
                f"nvidia-smi {' '.join(words)} ended with {code} on {_name(device)}: {said[-400:]}",
                f"`nvidia-smi mig -i {device['index']} -lgip` lists the profiles and how many of each fit",
            )
        return str(said)

    def _fail(self, what: str, advice: str) -> None:
        self._module.fail_json(msg=f"{what}; {advice}.")


def _name(device: dict[str, Any]) -> str:
    return f"GPU {device['index']} ({device['name']})"


def _layout(devices: list[dict[str, Any]], profiles: list[str] | None = None) -> str:
    """One line for each GPU, for the diff."""
    lines = []
    for device in devices:
        instances = sorted(device["instances"] if profiles is None else profiles)
        lines.append(f"{_name(device)}: {', '.join(instances) or 'undivided'}\n")
    return "".join(lines)


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    profiles = module.params["profiles"]
    divider = Divider(module, profiles)
    devices = divider.others()
    divider.refuse_busy(devices)
    if not module.check_mode:
        for device in devices:
            divider.divide(device)
    module.exit_json(
        changed=bool(devices),
        divided=[device["index"] for device in devices],
        diff={"before": _layout(devices), "after": _layout(devices, profiles)},
    )


if __name__ == "__main__":
    main()
