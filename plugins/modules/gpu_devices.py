#!/usr/bin/python
"""The GPUs of a machine, and what a device plugin has to advertise for them under a way of sharing."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.nvidia_smi import NvidiaSmi

DOCUMENTATION = r"""
{"module": "gpu_devices", "author": ["the project"], "short_description": "Reads the GPUs and MIG instances of a machine and says what its node has to advertise",
 "description": [
  "Asks C(nvidia-smi), changes nothing, and puts the answer into C(ansible_facts.gpu).",
  "Ends with the reason where the GPUs, MIG and the sharing mode are incompatible, before a plugin starts that would only say it in its log."],
 "options": {
  "node": {"type": "str", "required": true, "description": "Name of the machine in the cluster."},
  "wanted": {"type": "bool", "default": true, "description": "Whether GPUs are to be advertised at all; without it nothing is asked."},
  "assumed": {"type": "int", "default": 0, "description": "GPUs counted where there is no C(nvidia-smi); 0 makes that an error."},
  "sharing": {"type": "str", "choices": ["exclusive", "time-slicing", "mps"], "default": "exclusive", "description": "How GPUs are shared."},
  "replicas": {"type": "int", "default": 1, "description": "Slices per device; counts unless O(sharing=exclusive)."},
  "profiles": {"type": "list", "elements": "str", "default": [], "description": "MIG instances that every GPU is going to be divided into; empty leaves them as they are."},
  "mig_strategy": {"type": "str", "choices": ["none", "single", "mixed"], "default": "none", "description": "How MIG instances are named."},
  "resource": {"type": "str", "default": "nvidia.com/gpu", "description": "Name of a whole GPU."}}}
"""

# As the control daemon itself checks (compute capability 7.5 and newer); fewer on older devices.
MPS_CLIENTS_MAX = 48
FAMILIES = {
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
}
"""Of GPUs from this compute capability on."""


def contradictions(devices: list[dict[str, Any]], sharing: str, replicas: int, mig_strategy: str) -> list[str]:
    """Why this cannot be advertised; each says what to do."""
    found = []
    if sharing != "exclusive" and replicas < 2:
        found.append(f"{sharing} needs at least 2 slices per GPU, not {replicas}: raise device_plugin_replicas")
    if sharing == "mps" and mig_strategy != "none":
        found.append("MPS is not supported on MIG instances: share them by time-slicing, or turn MIG off")
    if sharing == "mps" and replicas > MPS_CLIENTS_MAX:
        found.append(
            f"an MPS server accepts at most {MPS_CLIENTS_MAX} clients, not {replicas}: lower device_plugin_replicas"
        )
    for device in devices:
        name = f"GPU {device['index']} ({device['name']})"
        if device["mig"] and mig_strategy == "none":
            found.append(
                f"{name} has MIG on: set device_plugin_mig_strategy, or `nvidia-smi -i {device['index']} -mig 0`"
            )
        elif device["mig"] and not device["instances"]:
            found.append(
                f"{name} has MIG on and no instance: set device_plugin_mig_profiles, or make some (`nvidia-smi mig -cgi ... -C`)"
            )
        elif not device["mig"] and mig_strategy == "single":
            found.append(f"{name} has MIG off, and `single` wants every GPU divided: use mixed, or turn MIG on")
    profiles = {profile for device in devices for profile in device["instances"]}
    if mig_strategy == "single" and len(profiles) > 1:
        found.append(f"`single` wants one profile, there are {', '.join(sorted(profiles))}: use mixed")
    return found


def resources(devices: list[dict[str, Any]], mig_strategy: str, whole: str) -> dict[str, int]:
    """Devices by the resource name that the plugin gives them."""
    count: Counter[str] = Counter()
    prefix = whole.rpartition("/")[0]
    for device in devices:
        if not device["instances"] or mig_strategy == "none":
            count[whole] += 1
        elif mig_strategy == "single":
            count[whole] += len(device["instances"])
        else:
            count.update(f"{prefix}/mig-{profile.replace('+', '.')}" for profile in device["instances"])
    return dict(sorted(count.items()))


def config(sharing: str, replicas: int, mig_strategy: str) -> str:
    """Name of a way of sharing: alike on all nodes that share alike."""
    slices = [] if sharing == "exclusive" else [str(replicas)]
    return "-".join([sharing, *slices, *([] if mig_strategy == "none" else [mig_strategy])])


def features(devices: list[dict[str, Any]], sharing: str, replicas: int, mig_strategy: str) -> dict[str, str]:
    """Labels under the names and with the values of GPU feature discovery, which goes by the first GPU where they differ."""
    known = [device for device in devices if device["uuid"]]
    if not known:
        return {}
    first = known[0]
    product, count = "-".join(first["name"].split()), len(known)
    labels = {} if first["memory_mib"] is None else {"gpu.memory": str(first["memory_mib"])}
    if mig_strategy == "single":  # an instance's memory is not told
        profiles, labels = [profile for one in known for profile in one["instances"]], {}
        product, count = f"{product}-MIG-{profiles[0].replace('+', '.')}", len(profiles)
    if first["compute_capability"]:
        major, _, minor = first["compute_capability"].partition(".")
        families = [name for least, name in FAMILIES.items() if least <= (int(major), int(minor))]
        labels["gpu.family"] = families[-1] if families else "undefined"
        labels |= {"gpu.compute.major": major, "gpu.compute.minor": minor}
    labels |= {
        "gpu.product": product if sharing == "exclusive" else f"{product}-SHARED",
        "gpu.count": str(count),
        "gpu.replicas": "1" if sharing == "exclusive" else str(replicas),
        "gpu.sharing-strategy": "none" if sharing == "exclusive" else sharing,
        "mig.capable": str(any(one["mig"] is not None for one in known)).lower(),
        **({} if mig_strategy == "none" else {"mig.strategy": mig_strategy}),
    }
    return {f"nvidia.com/{name}": value for name, value in sorted(labels.items())}


def read(module: Any, assumed: int) -> list[dict[str, Any]]:
    """Every device with its instances; stand-ins where nothing can be asked and some are assumed."""
    if module.get_bin_path("nvidia-smi") is not None:
        return NvidiaSmi(module).devices()
    if assumed == 0:
        module.fail_json(
            msg="there is no nvidia-smi on this machine, so its GPUs cannot be counted. Install the driver's"
            " utilities (nvidia-utils-580-server), or set device_plugin_gpus_assumed."
        )
    device = {"uuid": "", "name": "assumed", "compute_mode": "Default", "mig": False, "instances": []}
    return [{"index": index, **device} for index in range(assumed)]


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    asked = module.params
    devices = read(module, asked["assumed"]) if asked["wanted"] else []
    if asked["profiles"]:
        # As they are once the machine is divided into these instances.
        devices = [{**device, "mig": True, "instances": asked["profiles"]} for device in devices]
    if asked["wanted"] and not devices:
        module.fail_json(
            msg="the driver shows no GPU (`nvidia-smi -L` is empty): see `dmesg | grep -i nvrm`, or reboot."
        )
    # A hypervisor makes a vGPU, whose name ends with its memory in GB and the letter of its licence.
    virtual = [device for device in devices if re.search(r"-\d{1,2}[ABCQ]$", device["name"])]
    if guests := [f"GPU {device['index']} ({device['name']})" for device in virtual]:
        module.warn(
            f"{asked['node']}: {', '.join(guests)} is a virtual GPU (vGPU). Without a licence it is slowed down after minutes (`nvidia-smi -q | grep"
            " -i licen`), its neighbours on the host are in every figure, and it has neither MIG nor locked clocks of its own."
        )
    wrong = contradictions(devices, asked["sharing"], asked["replicas"], asked["mig_strategy"]) if devices else []
    if devices and asked["profiles"] and asked["mig_strategy"] == "none":
        wrong = ["device_plugin_mig_profiles divides the GPUs: set device_plugin_mig_strategy to single or mixed"]
    if wrong:
        module.fail_json(msg=f"{asked['node']}: {'; '.join(wrong)}. Nothing was changed.")
    slices = 1 if asked["sharing"] == "exclusive" else asked["replicas"]
    found = resources(devices, asked["mig_strategy"], asked["resource"])
    advertised = {name: count * slices for name, count in found.items()}
    facts = {
        "node": asked["node"],
        "devices": devices,
        "profiles": asked["profiles"],
        "config": config(asked["sharing"], asked["replicas"], asked["mig_strategy"]),
        "sharing": asked["sharing"],
        "replicas": slices,
        "mig_strategy": asked["mig_strategy"],
        "resources": found,
        "advertised": advertised,
        "features": features(devices, asked["sharing"], asked["replicas"], asked["mig_strategy"]),
    }
    module.exit_json(changed=False, ansible_facts={"gpu": facts})


if __name__ == "__main__":
    main()
