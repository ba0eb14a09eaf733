"""Shared by the recorders: they stand in for programs that Debian does not have, and write down every call.

Nothing here runs containers. A recorder does what its original does to files, sockets and exit codes where the node
roles can see it, refuses what the original refuses, and logs the call to /var/log/recorded/<program>.jsonl.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

LOG = Path("/var/log/recorded")
STATE = Path("/var/lib/recorded")
CLUSTER_VERSION = STATE / "cluster-version"
CRIO_SOCKET = Path("/var/run/crio/crio.sock")
CRIO_DROP_INS = Path("/etc/crio/crio.conf.d")
KUBELET_HEALTH_PORT = 10248
API_PORT = 6443


def record(program: str, arguments: list[str]) -> None:
    """Append one call to the program's log (any user may)."""
    if not LOG.exists():
        LOG.mkdir(parents=True)
        LOG.chmod(0o777)
    path = LOG / f"{program}.jsonl"
    if not path.exists():
        path.touch()
        path.chmod(0o666)
    entry = {"at": time.time(), "pid": os.getpid(), "uid": os.getuid(), "arguments": arguments}
    with path.open("a") as log:
        log.write(json.dumps(entry) + "\n")


def replace(path: Path, text: str, mode: int) -> None:
    """Write a file whole or not at all: another program reads it once a second."""
    import threading

    new = path.with_name(f".{path.name}.{threading.get_native_id()}")
    new.touch(0o600)
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


def fail(message: str, status: int = 1) -> NoReturn:
    """Say why on standard error and exit."""
    sys.stderr.write(message.rstrip("\n") + "\n")
    raise SystemExit(status)


def option(arguments: list[str], *names: str, default: str = "") -> str:
    """Value of `--name value` or `--name=value`, the last one given."""
    value = default
    for position, argument in enumerate(arguments):
        for name in names:
            if argument == name and position + 1 < len(arguments):
                value = arguments[position + 1]
            elif argument.startswith(f"{name}="):
                value = argument.partition("=")[2]
    return value


def answers(address: str | tuple[str, int]) -> bool:
    """Whether something listens on a unix socket path or a TCP address."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as probe:
        probe.settimeout(3)
        return probe.connect_ex(address) == 0


def ready() -> None:
    """Tell systemd that a notify service has started."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.sendall(b"READY=1")


def crio_configuration() -> dict[str, Any]:
    """Merge every file of the drop-in folder, in order, as the daemon does: a stray copy counts too."""
    import tomllib

    merged: dict[str, Any] = {}
    main = Path("/etc/crio/crio.conf")
    for path in [*([main] if main.exists() else []), *sorted(CRIO_DROP_INS.iterdir())]:
        if path.is_file():
            try:
                _merge(merged, tomllib.loads(path.read_text()))
            except tomllib.TOMLDecodeError as error:
                fail(f"unable to load configuration file {path}: {error}")
    return merged


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def version_of(package: str) -> str:
    """Upstream version of the package this recorder came in, as dpkg unpacked it."""
    return Path(f"/usr/lib/recorders/{package}/VERSION").read_text().strip()
