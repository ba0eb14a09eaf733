# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""The GPUs and MIG instances of a machine, as nvidia-smi tells them."""

from __future__ import annotations

import re
from typing import Any

FIELDS = "index,uuid,name,compute_mode,mig.mode.current,memory.total,compute_cap"


def parse_devices(rows: str) -> list[dict[str, Any]]:
    """The rows of ``nvidia-smi --query-gpu`` as devices without their instances; mig is None where there is no MIG."""
    devices = []
    for row in filter(None, map(str.strip, rows.splitlines())):
        index, uuid, name, compute_mode, mig, memory, capability = (field.strip() for field in row.split(",", 6))
        device = {"index": int(index), "uuid": uuid, "name": name, "compute_mode": compute_mode}
        device |= {"memory_mib": int(memory.partition(" ")[0]), "compute_capability": capability}
        devices.append({**device, "mig": {"Enabled": True, "Disabled": False}.get(mig), "instances": []})
    return devices


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

    def there(self) -> bool:
        """Whether the machine has it."""
        return self.module.get_bin_path("nvidia-smi") is not None

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
        """Every device with the profiles of its instances."""
        devices = parse_devices(self.ask(f"--query-gpu={FIELDS}", "--format=csv,noheader"))
        instances = parse_instances(self.ask("-L")) if any(device["mig"] for device in devices) else {}
        return [{**device, "instances": instances.get(device["uuid"], [])} for device in devices]
