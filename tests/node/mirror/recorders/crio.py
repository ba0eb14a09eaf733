"""Recorder of the crio daemon: reads its configuration as crio does, listens on its socket, runs nothing."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from recorded import CRIO_SOCKET, STATE, crio_configuration, fail, ready, record, version_of

LOADED = STATE / "crio-loaded.json"


def main() -> None:
    arguments = sys.argv[1:]
    record("crio", arguments)
    if "--version" in arguments or arguments[:1] == ["version"]:
        print(f"crio version {version_of('cri-o')}\nVersion:        {version_of('cri-o')}")
        return
    if arguments[:1] == ["config"]:
        print(json.dumps(crio_configuration()))
        return
    serve()


def serve() -> None:
    """Run as the daemon until told to end."""
    loaded = load()
    STATE.mkdir(parents=True, exist_ok=True)
    LOADED.write_text(json.dumps(loaded, sort_keys=True))
    (STATE / "crio-running").write_text(version_of("cri-o"))
    CRIO_SOCKET.parent.mkdir(parents=True, exist_ok=True)
    CRIO_SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(CRIO_SOCKET))
        CRIO_SOCKET.chmod(0o660)
        listener.listen()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGHUP, lambda *_: LOADED.write_text(json.dumps(load(), sort_keys=True)))
        ready()
        while True:
            connection, _ = listener.accept()
            connection.close()


def load() -> dict[str, Any]:
    """Check the configuration as the daemon does at its start; fatal is fatal."""
    settings = crio_configuration()
    runtime = settings.get("crio", {}).get("runtime", {})
    default = runtime.get("default_runtime", "crun")
    handlers = runtime.get("runtimes", {})
    if default not in handlers:
        fail(f'level=fatal msg="validating runtime config: no default runtime {default} among the runtimes"')
    usable = {}
    for name, handler in handlers.items():
        monitor = handler.get("monitor_path") or runtime.get("conmon", "")
        if not monitor or not os.access(monitor, os.X_OK):
            fail(f'level=fatal msg="validating runtime config: conmon validation: monitor_path {monitor!r} of {name}"')
        path = handler.get("runtime_path", "")
        if os.access(path, os.X_OK):
            usable[name] = handler
        elif name == default:
            fail(f'level=fatal msg="validating runtime config: invalid runtime_path {path!r} of default {name}"')
        else:
            sys.stderr.write(f'level=warning msg="runtime handler {name} is ignored: no runtime_path {path!r}"\n')
    return {"default_runtime": default, "handlers": usable, "settings": settings, "cni": active_cni()}


def active_cni() -> str:
    """First network configuration by name, which is the one that counts."""
    folder = Path("/etc/cni/net.d")
    found = sorted(path.name for path in folder.iterdir() if path.suffix in {".conf", ".conflist", ".json"})
    return found[0] if found else ""
