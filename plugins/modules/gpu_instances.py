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
    """Divides GPUs one by one into these instances."""

    def __init__(self, module: Any) -> None:
        self.module, self.smi = module, NvidiaSmi(module)
        self.profiles: list[str] = module.params["profiles"]

    def fail(self, what: str, advice: str) -> None:
        """Ends the module."""
        self.module.fail_json(msg=f"{what}; {advice}.")

    def others(self) -> list[dict[str, Any]]:
        """GPUs that are divided otherwise, or not at all. Ends the module where one has no MIG, or a process."""
        devices = self.smi.devices()
        if not devices:
            self.fail("the driver shows no GPU", "see `dmesg | grep -i nvrm`, or reboot")
        for device in devices:
            if device["mig"] is None:
                self.fail(
                    f"{name_of(device)} does not support MIG", "remove device_plugin_mig_profiles from this machine"
                )
        found = [one for one in devices if not one["mig"] or sorted(one["instances"]) != sorted(self.profiles)]
        for device in found:
            query = ("-i", str(device["index"]), "--query-compute-apps=pid", "--format=csv,noheader")
            if pids := self.smi.ask(*query).split():
                self.fail(f"processes {', '.join(pids)} run on {name_of(device)}", "end them; nothing was changed")
        return found

    def do(self, device: dict[str, Any], *words: str) -> str:
        """What nvidia-smi says; ends the module where it fails."""
        code, said = self.smi.run(*words)
        if code != 0:
            self.fail(
                f"nvidia-smi {' '.join(words)} ended with {code} on {name_of(device)}: {said[-400:]}",
                f"`nvidia-smi mig -i {device['index']} -lgip` lists the profiles and how many of each fit",
            )
        return str(said)

    def divide(self, device: dict[str, Any]) -> None:
        """Bring one GPU to its instances."""
        index = str(device["index"])
        if not device["mig"]:
            said = self.do(device, "-i", index, "-mig", "1")
            if not any(one["index"] == device["index"] and one["mig"] for one in self.smi.devices()):
                self.fail(
                    f"{name_of(device)} does not turn MIG on: {said}",
                    "stop what holds the GPU (DCGM, persistence daemons, displays), or reboot; then run this again",
                )
        elif device["instances"]:
            self.do(device, "mig", "-i", index, "-dci")
            self.do(device, "mig", "-i", index, "-dgi")
        self.do(device, "mig", "-i", index, "-cgi", ",".join(self.profiles), "-C")


def name_of(device: dict[str, Any]) -> str:
    """A GPU as messages call it."""
    return f"GPU {device['index']} ({device['name']})"


def layout(device: dict[str, Any], instances: list[str]) -> str:
    """A line of the diff."""
    return f"{name_of(device)}: {', '.join(sorted(instances)) or 'undivided'}\n"


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    divider = Divider(module)
    devices = divider.others()
    diff = {"before": "".join(layout(device, device["instances"]) for device in devices)}
    diff["after"] = "".join(layout(device, divider.profiles) for device in devices)
    for device in [] if module.check_mode else devices:
        divider.divide(device)
    module.exit_json(changed=bool(devices), divided=[device["index"] for device in devices], diff=diff)


if __name__ == "__main__":
    main()
