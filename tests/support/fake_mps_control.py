"""Stands in for nvidia-cuda-mps-control: the commands that the harness uses, answered as the original answers them.

A process counts as a client when its environment names the daemon's pipe directory and FAKE_MPS_BLIND is not set.
FAKE_MPS_REFUSES lets the daemon end at once, as it does in a container without the right to its sockets.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

PIPES = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])


def daemon() -> int:
    if "FAKE_MPS_REFUSES" in os.environ:
        print("An instance of this daemon is already running")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = subprocess.Popen(["sleep", "3600"])
    (PIPES / "server").write_text(str(server.pid))
    (PIPES / "control").write_text(str(os.getpid()))
    while True:
        time.sleep(3600)


def clients() -> list[int]:
    if "FAKE_MPS_BLIND" in os.environ:
        return []
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CUDA_MPS_PIPE_DIRECTORY") == str(PIPES) and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def control(command: str) -> int:
    file = PIPES / "control"
    if not file.exists() or not psutil.pid_exists(int(file.read_text())):
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    match command.split():
        case ["get_server_list"]:
            print((PIPES / "server").read_text())
        case ["get_client_list", _]:
            print("\n".join(map(str, clients())))
        case ["quit", "-t", _]:
            os.kill(int(file.read_text()), signal.SIGTERM)
        case _:
            sys.stderr.write(f"unknown command {command}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(daemon() if sys.argv[1:] == ["-f"] else control(sys.stdin.read()))
