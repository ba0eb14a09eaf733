# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""The GPUs and MIG instances of a machine, as nvidia-smi tells them."""

from __future__ import annotations

import re
from typing import Any

FIELDS = "index,uuid,name,compute_mode,mig.mode.current,memory.total,compute_cap"


_UNSAID = ("", "[N/A]", "N/A", "[Not Supported]", "[Not Found]")


def parse_devices(rows: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of ``nvidia-smi --query-gpu`` as devices without their instances, and a sentence for each line that is none.

    mig is None where there is no MIG, memory_mib where the driver does not say it (GB10, Jetson, vGPU). A GPU that is broken,
    which it says in a field in brackets, is no device.
    """
    devices, remarks = [], []
    for row in filter(None, map(str.strip, rows.splitlines())):
        index, *fields = (field.strip() for field in row.split(","))
        if not index.isdigit() or len(fields) != FIELDS.count(","):
            remarks.append(f"nvidia-smi said: {row[:200]}")
            continue
        fault = next((field for field in fields if field.startswith("[") and field not in _UNSAID), "")
        if fault:
            remarks.append(
                f"GPU {index} ({fields[0]}) is broken and left out: {fault}; `nvidia-smi -r -i {index}`, or reboot."
            )
            continue
        uuid, name, compute_mode, mig, memory, capability = ("" if field in _UNSAID else field for field in fields)
        device = {"index": int(index), "uuid": uuid, "name": name, "compute_mode": compute_mode, "instances": []}
        device |= {"memory_mib": int(memory.partition(" ")[0]) if memory else None, "compute_capability": capability}
        devices.append({**device, "mig": {"Enabled": True, "Disabled": False}.get(mig)})
    return devices, remarks


def parse_instances(listing: str) -> dict[str, list[str]]:
    """Profiles of the MIG instances in ``nvidia-smi -L`` by the UUID of their GPU."""
    found: dict[str, list[str]] = {}
    gpu = ""
    for line in listing.splitlines():
        if match := re.match(r"GPU \d+:.*\(UUID: (GPU-\S+)\)", line):
            gpu = match[1]
        elif match := re.match(r"\s+MIG (\S+)\s+Device", line):
            found.setdefault(gpu, []).append(match[1])
    return found


class NvidiaSmi:
    """Asks nvidia-smi for a module."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code, and what it said on both streams."""
        code, out, err = self.module.run_command(["nvidia-smi", *words])
        return int(code), f"{out}\n{err}".strip()

    def ask(self, *words: str) -> str:
        """Standard output; ends the module with nvidia-smi's own words when it fails."""
        code, out, err = self.module.run_command(["nvidia-smi", *words])
        if code != 0:
            self.module.fail_json(
                msg=f"nvidia-smi {' '.join(words)} ended with {code}: {(out or err).strip()[-400:]}"
                " A driver whose library and kernel module differ wants a reboot; `dmesg | grep -i nvrm` says more."
            )
        return str(out)

    def devices(self) -> list[dict[str, Any]]:
        """Every device with the profiles of its instances; warns of what is none."""
        words = (f"--query-gpu={FIELDS}", "--format=csv,noheader")
        code, said = self.run(*words)
        devices, remarks = parse_devices(said)
        if code != 0 and not devices:
            self.ask(*words)
        for remark in remarks:
            self.module.warn(remark)
        instances = parse_instances(self.ask("-L")) if any(device["mig"] for device in devices) else {}
        return [{**device, "instances": instances.get(device["uuid"], [])} for device in devices]
