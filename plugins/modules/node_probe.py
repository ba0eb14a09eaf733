#!/usr/bin/python
"""Reads the state of one machine in one call: what preflight judges and what roles verify."""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import re
import shutil
import socket
import stat
import struct
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.journal import of_unit

DOCUMENTATION = r"""
{"module": "node_probe", "author": ["the project"], "short_description": "Reads the state of a machine in one call and changes nothing",
 "description": [
  "One module call instead of a dozen C(stat), C(slurp) and C(command) tasks.",
  "With O(machine=true) the result also becomes C(ansible_facts.node), and the action plugin of this name adds C(clock_apart_s), how far the machine's clock is at least from that of the machine that runs Ansible. It also takes C(networks), a dictionary of networks by name, and answers C(probe.inside), the machine's addresses in each."],
 "options": {
  "machine": {"type": "bool", "default": false, "description": "Read the machine itself (OS memory cgroup swap GPU clock) into ansible_facts.node."},
  "disks": {"type": "list", "elements": "str", "default": [], "description": "Paths whose free space is read; the nearest existing parent is measured."},
  "modules": {"type": "list", "elements": "str", "default": [], "description": "Kernel modules."},
  "sysctls": {"type": "list", "elements": "str", "default": [], "description": "Kernel parameters."},
  "paths": {"type": "list", "elements": "str", "default": [], "description": "Files and folders; ~user is that user's home."},
  "sums": {"type": "list", "elements": "str", "default": [], "description": "Files whose SHA-256 is read."},
  "ended": {"type": "list", "elements": "str", "default": [], "description": "Certificates of which it is read whether they have ended; one that is not there has not."},
  "packages": {"type": "list", "elements": "str", "default": [], "description": "Debian packages."},
  "units": {"type": "list", "elements": "str", "default": [], "description": "systemd units."},
  "journals": {"type": "list", "elements": "str", "default": [], "description": "Units whose journal of this boot is read: its first errors and its end, each line once; lines that differ in numbers alone are given with how often they came."},
  "users": {"type": "list", "elements": "str", "default": [], "description": "Users whose home folders are read."},
  "urls": {"type": "list", "elements": "str", "default": [], "description": "Addresses that should answer 200; all are asked at once."},
  "names": {"type": "list", "elements": "str", "default": [], "description": "Names whose IPv4 addresses are looked up."},
  "urls_timeout_s": {"type": "int", "default": 15, "description": "Seconds until a silent address is given up."},
  "proxy": {"type": "dict", "default": {}, "no_log": true, "description": "http_proxy, https_proxy and no_proxy of the environment; never shown."}}}
"""


def read(path: str | Path) -> str | None:
    """The text of a small kernel or configuration file, or None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def swaps(text: str) -> list[dict[str, Any]]:
    """The active swap areas of /proc/swaps: path, type (partition, file) and size in bytes."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return [{"path": row[0], "type": row[1], "size_bytes": int(row[2]) * 1024} for row in rows if len(row) >= 3]


def cgroup_version() -> str:
    """v2 where only the unified hierarchy is mounted, hybrid where both are, else v1 or none."""
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    if Path("/sys/fs/cgroup/unified/cgroup.controllers").exists():
        return "hybrid"
    return "v1" if Path("/sys/fs/cgroup/memory").exists() else "none"


# What GPUs (3D or VGA controllers) and NVSwitches (bridges of no other kind) are on the PCI bus.
GPU_CLASS, SWITCH_CLASS = "0x03", "0x0680"
SYS, MODULES, DRIVER = Path("/sys"), Path("/lib/modules"), Path("/proc/driver/nvidia/version")
# Generations of GPUs by the first number of their PCI devices, of which some lie between those of others: name, the highest compute capability
# of any of it, the first driver that has none of it any more, and whether it has open kernel modules (None: open ones alone).
GENERATIONS = (
    (0x0000, "Kepler or older", "3.7", "471", False),
    (0x1340, "Maxwell", "5.3", "581", False),
    (0x15F0, "Pascal", "6.2", "581", False),
    (0x1600, "Maxwell", "5.3", "581", False),
    (0x1725, "Pascal", "6.2", "581", False),
    (0x1730, "Maxwell", "5.3", "581", False),
    (0x1B00, "Pascal", "6.2", "581", False),
    (0x1D80, "Volta", "7.2", "581", False),
    (0x1E00, "Turing", "7.5", "", True),
    (0x2080, "Ampere", "8.7", "", True),
    (0x2180, "Turing", "7.5", "", True),
    (0x2200, "Ampere", "8.7", "", True),
    (0x2300, "Hopper", "9.0", "", True),
    (0x2400, "Ampere", "8.7", "", True),
    (0x2600, "Ada", "8.9", "", True),
    (0x2900, "Blackwell or newer", "99.0", "", None),
)


def generation(pci_id: int) -> dict[str, Any]:
    """What is known of a GPU by the number of its PCI device."""
    _, name, capability, driver_end, opened = [row for row in GENERATIONS if row[0] <= pci_id][-1]
    modules = {True: ["open", "proprietary"], False: ["proprietary"], None: ["open"]}[opened]
    return {"name": name, "capability": capability, "driver_end": driver_end, "modules": modules}


# The keys that DKMS signs with, and what the role nvidia_driver leaves.
SIGNING_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
DRIVER_PIN = "/etc/apt/preferences.d/node-nvidia-driver"


def gpu() -> dict[str, Any]:
    """NVIDIA devices on the PCI bus, the loaded driver's version (None where none is loaded), and what keeps one from working."""
    devices = [
        device for device in (SYS / "bus/pci/devices").glob("*") if (read(device / "vendor") or "").strip() == "0x10de"
    ]
    classes = [read(device / "class") or "" for device in devices]
    pci_ids = sorted(
        int((read(device / "device") or "0").strip(), 16)
        for device, kind in zip(devices, classes, strict=True)
        if kind.startswith(GPU_CLASS)
    )
    version = read(DRIVER) or ""
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", version)
    return {
        "pci_devices": sum(one.startswith(GPU_CLASS) for one in classes),
        "generations": [generation(pci_id) for pci_id in pci_ids],
        "switches": sum(one.startswith(SWITCH_CLASS) for one in classes),
        "driver": match[1] if match else None,
        "open": "Open Kernel Module" in version,
        "managed": Path(DRIVER_PIN).exists(),
        "nouveau": (SYS / "module/nouveau").exists(),
        "module": has_driver(MODULES / platform.release()),
        "module_kernels": sorted(folder.name for folder in MODULES.glob("*") if has_driver(folder)),
        "secure_boot": secure_boot(),
        "key_enrolled": key_enrolled(),
        "fabric_manager": (SYS / "fs/cgroup/system.slice/nvidia-fabricmanager.service").exists(),
    }


def has_driver(modules: Path) -> bool:
    """Whether a kernel's folder of modules has NVIDIA's."""
    # Debian's packages call it nvidia-current.
    return re.search(r"/nvidia(-current)?\.ko", read(modules / "modules.dep") or "") is not None


def has_module(name: str) -> bool:
    """Whether the running kernel has a module: loaded, or built in, where only one with parameters has a folder in /sys."""
    plain = name.replace("-", "_")
    built_in = (read(MODULES / platform.release() / "modules.builtin") or "").replace("-", "_")
    return (SYS / "module" / plain).exists() or f"/{plain}.ko\n" in f"{built_in}\n"


def key_enrolled() -> bool:
    """Whether the firmware's list of owners' keys, as shim hands it on, has one that DKMS signs with."""
    listed = [path.read_bytes() for path in (SYS / "firmware/efi/efivars").glob("MokListRT*")]
    keys = [Path(path).read_bytes() for path in SIGNING_KEYS if Path(path).exists()]
    return any(key in one for one in listed for key in keys if key)


def secure_boot() -> bool:
    """Whether the firmware lets signed kernel modules only be loaded: four bytes of attributes, then 1."""
    variables = (SYS / "firmware/efi/efivars").glob("SecureBoot-*")
    return any(variable.read_bytes()[4:5] == b"\x01" for variable in variables)


# Interfaces that a cluster makes: their addresses are other machines' too.
CLUSTER_INTERFACES = re.compile(r"lo|cali.*|vxlan\..*|kube-.*|cni\d+|tunl\d+|flannel.*|cilium.*|docker.*|nodelocaldns")
SIOCGIFADDR = 0x8915
UP, GLOBAL = 0x1, "00"


def leads_inside(name: str) -> bool:
    """Whether it is a cluster's, or a bridge to this machine's own pods, containers or virtual machines alone."""
    if CLUSTER_INTERFACES.fullmatch(name):
        return True
    ports = SYS / "class/net" / name / "brif"
    if not ports.is_dir() or name in {route["interface"] for route in default_routes(read("/proc/net/route") or "")}:
        return False
    net = [SYS / "class/net" / port.name for port in ports.iterdir()]
    # Whoever reaches another machine is a device, or of a type that has a name: a bond, a VLAN.
    return not any((port / "device").exists() or "DEVTYPE=" in (read(port / "uevent") or "") for port in net)


def interfaces() -> dict[str, str]:
    """The first IPv4 address of every interface of the machine itself that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            if leads_inside(name):
                continue
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def default_routes(table: str) -> list[dict[str, Any]]:
    """The IPv4 default routes of /proc/net/route that are up, best first: interface and metric."""
    rows = [line.split() for line in table.splitlines()[1:]]
    routes = [row for row in rows if len(row) > 7 and row[1] == row[7] == "00000000" and int(row[3], 16) & UP]
    return sorted(({"interface": row[0], "metric": int(row[6])} for row in routes), key=lambda route: route["metric"])


def only_ipv6(table: str, with_ipv4: dict[str, str]) -> list[str]:
    """Interfaces of the machine itself that /proc/net/if_inet6 has a global address for, and that have none of IPv4."""
    rows = [line.split() for line in table.splitlines()]
    names = {row[5] for row in rows if len(row) > 5 and row[3] == GLOBAL and not leads_inside(row[5])}
    return sorted(names - set(with_ipv4))


TIME_SERVICES = ("systemd-timesyncd", "chrony", "chronyd", "ntp", "ntpsec", "openntpd")
PROXY = r"^\s*(?:export\s+)?((?:https?|all)_proxy)=\S"


def etcd_address(manifest: str) -> str | None:
    """The address that kubeadm has bound etcd to, by its manifest; None where this machine has no etcd of its."""
    match = re.search(r"--advertise-client-urls=https://([0-9.]+):", manifest)
    return match[1] if match else None


def login_user() -> str:
    """Who logged in: the user that became root by sudo, else the user we are."""
    return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name


def home_of(user: str) -> str | None:
    """The user's home folder, or None for a user that does not exist."""
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None


def closed(home: str | None) -> bool:
    """Whether a home is there into which root may not write: one on NFS whose server squashes root."""
    return home is not None and Path(home).exists() and not os.access(home, os.W_OK)


def resolved(name: str) -> list[str]:
    """The IPv4 addresses of a name, as this machine's own resolver knows them; empty for none."""
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


def free_bytes(path: str) -> int:
    """Free space at the path, or at its nearest parent that exists."""
    place = Path(path)
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def sysctl(key: str) -> str | None:
    """The running kernel's value, or None where the kernel has no such key."""
    text = read("/proc/sys/" + key.replace(".", "/"))
    return None if text is None else " ".join(text.split())


def path_state(path: str) -> dict[str, Any]:
    """Kind, owner, mode and link target of one path."""
    try:
        info = os.lstat(path)
    except OSError:
        return {"exists": False}
    linked = stat.S_ISLNK(info.st_mode)
    try:
        owner = pwd.getpwuid(info.st_uid).pw_name
    except KeyError:
        owner = str(info.st_uid)
    return {
        "exists": Path(path).exists(),
        "link": str(Path(path).readlink()) if linked else None,
        "mounted": any(line.split()[1] == path for line in (read("/proc/self/mounts") or "").splitlines()),
        "mode": format(stat.S_IMODE(info.st_mode), "04o"),
        "owner": owner,
    }


def packages(module: Any, names: list[str]) -> dict[str, dict[str, Any]]:
    """What dpkg says of each package: installed (and configured), version, held."""
    state: dict[str, dict[str, Any]] = {name: {"installed": False, "version": None, "held": False} for name in names}
    if not names:
        return state
    # dpkg-query answers 1 as soon as one of the names is unknown to it; the others are printed all the same.
    fields = "${Package}\t${db:Status-Want}\t${db:Status-Status}\t${Version}\n"
    _, out, _ = module.run_command(["dpkg-query", "--show", "--showformat", fields, *names])
    for line in out.splitlines():
        name, want, status, version = line.split("\t")
        state[name] = {"installed": status == "installed", "version": version or None, "held": want == "hold"}
    return state


UNIT_FIELDS = "LoadState,ActiveState,UnitFileState"
JOURNAL_LINES = 40


def units(module: Any, names: list[str]) -> dict[str, dict[str, Any]]:
    """What systemd says of each unit."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        _, out, _ = module.run_command(["systemctl", "show", "--property", UNIT_FIELDS, "--", name])
        values = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        found[name] = {
            "exists": values.get("LoadState") in ("loaded", "masked"),
            "masked": values.get("LoadState") == "masked" or values.get("UnitFileState", "").startswith("masked"),
            "active": values.get("ActiveState") == "active",
            "state": values.get("ActiveState"),
            "enabled": values.get("UnitFileState") in ("enabled", "enabled-runtime", "static", "alias"),
        }
    return found


def clock_ahead_s(headers: Any, now_s: float) -> float | None:
    """How far a server's clock is ahead of ours, from the date of its answer; a kept answer tells its age as well."""
    try:
        told = parsedate_to_datetime(headers["Date"]).timestamp() + int(headers.get("Age") or 0)
    except (TypeError, ValueError):  # no date, or none that can be read
        return None
    return told - now_s


def answers(urls: list[str], timeout_s: int) -> tuple[dict[str, str], dict[str, float]]:
    """What every address answers, all asked at once: `ok` or why not; and how far the clock there is ahead of ours."""
    if not urls:
        return {}, {}
    # The network's modules take longer to import than everything else here to run.
    from concurrent.futures import ThreadPoolExecutor
    from http.client import HTTPException
    from urllib.error import HTTPError

    from ansible.module_utils.urls import open_url

    clocks: dict[str, float] = {}

    def read_clock(url: str, headers: Any) -> None:
        if (ahead_s := clock_ahead_s(headers, time.time())) is not None:
            clocks[url] = ahead_s

    def answer(url: str) -> str:
        try:
            with open_url(url, timeout=timeout_s) as response:
                read_clock(url, response.headers)
                return "ok"
        except HTTPError as error:
            read_clock(url, error.headers)
            return f"answers {error.code} {error.reason}"
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            silent = isinstance(reason, TimeoutError)
            return f"says nothing for {timeout_s} s" if silent else f"cannot be reached: {reason}"

    with ThreadPoolExecutor(max_workers=len(urls)) as pool:
        return dict(zip(urls, pool.map(answer, urls), strict=True)), clocks


def machine() -> dict[str, Any]:
    """The machine itself. Sizes in bytes, time in seconds since the epoch (UTC)."""
    release = platform.freedesktop_os_release()
    user, ipv4 = login_user(), interfaces()
    return {
        "os": release.get("ID", ""),
        "os_version": release.get("VERSION_ID", ""),
        "os_codename": release.get("VERSION_CODENAME", ""),
        "os_name": release.get("PRETTY_NAME", ""),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "addresses": sorted(ipv4.values()),
        "interfaces": ipv4,
        "default_routes": default_routes(read("/proc/net/route") or ""),
        "only_ipv6": only_ipv6(read("/proc/net/if_inet6") or "", ipv4),
        "boot_id": (read("/proc/sys/kernel/random/boot_id") or "").strip(),
        "systemd": Path("/run/systemd/system").is_dir(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cgroup": cgroup_version(),
        # Its files may exist and still answer EOPNOTSUPP.
        "psi": read("/proc/pressure/cpu") is not None,
        "rapl": (SYS / "class/powercap/intel-rapl:0").exists(),
        "swaps": swaps(read("/proc/swaps") or ""),
        "time_s": time.time(),
        "gpu": gpu(),
        "login_user": user,
        "login_home": home_of(user),
        "login_home_closed": closed(home_of(user)),
        "node_exporter": (SYS / "fs/cgroup/system.slice/prometheus-node-exporter.service").exists(),
        "kubelet_joined": Path("/var/lib/kubelet/config.yaml").exists(),
        "proxies": sorted(set(re.findall(PROXY, read("/etc/environment") or "", re.MULTILINE | re.IGNORECASE))),
        "network_manager": Path("/etc/NetworkManager/conf.d").is_dir(),
        "time_service": any((SYS / f"fs/cgroup/system.slice/{name}.service").exists() for name in TIME_SERVICES),
        "etcd_address": etcd_address(read("/etc/kubernetes/manifests/etcd.yaml") or ""),
        "measuring": Path("/etc/node-profile.json").exists(),
        "divided_at_boot": Path("/etc/systemd/system/node-mig.service").exists(),
    }


def has_ended(module: Any, certificate: str) -> bool:
    """Whether a certificate has ended."""
    words = ["openssl", "x509", "-noout", "-checkend", "0", "-in", certificate]
    return bool(module.run_command(words)[0] == 1)


def probe(module: Any) -> dict[str, Any]:
    """Everything that was asked for, by kind."""
    asked = module.params
    urls, clocks = answers(asked["urls"], asked["urls_timeout_s"])
    return {
        "disks": {path: free_bytes(path) for path in asked["disks"]},
        "modules": {name: has_module(name) for name in asked["modules"]},
        "sysctls": {key: sysctl(key) for key in asked["sysctls"]},
        "paths": {path: path_state(os.path.expanduser(path)) for path in asked["paths"]},  # noqa: PTH111 - a user without a home is left as it is
        "sums": {path: module.sha256(path) if Path(path).is_file() else None for path in asked["sums"]},
        "ended": {path: Path(path).exists() and has_ended(module, path) for path in asked["ended"]},
        "packages": packages(module, asked["packages"]),
        "units": units(module, asked["units"]),
        "journals": {unit: of_unit(module, unit, JOURNAL_LINES) for unit in asked["journals"]},
        "homes": {user: home_of(user) for user in asked["users"]},
        "urls": urls,
        "names": {name: resolved(name) for name in asked["names"]},
        "clocks_ahead_s": clocks,
        "swaps": swaps(read("/proc/swaps") or ""),
    }


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    result: dict[str, Any] = {"changed": False, "probe": probe(module)}
    if module.params["machine"]:
        result["ansible_facts"] = {"node": {**machine(), "disks": result["probe"]["disks"]}}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
