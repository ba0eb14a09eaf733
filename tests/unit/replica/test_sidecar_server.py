"""What a client sees of the server in the container beside it, through the processes of their pod."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from harness.replica.engine import servers
from harness.replica.engine.servers import SidecarServer, observed
from tests.unit.traffic.engines import engine

PORT = 8080
INODE = 4711
UVM = "7f00-7f01 rw-s 00000000 00:05 238 /dev/nvidia-uvm\n"
"""As it stands there with driver 580 once a CUDA context is made, under MPS as well; NVML and cuInit map nothing of it."""
OPENED = "7f00-7f01 rw-s 00000000 00:05 195 /dev/nvidia0\n"


@pytest.fixture
def pod(tmp_path):
    """A folder like /proc: adds a process, with the port or without."""
    rows = ["  sl  local_address rem_address   st", row(PORT, "0A", INODE), row(PORT, "01", 1), row(9000, "0A", 2)]
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("\n".join(rows) + "\n")

    def add(pid, *, listens=False, maps="", **environment):
        process = tmp_path / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "maps").write_text(maps)
        (process / "environ").write_text("\0".join(f"{key}={value}" for key, value in environment.items()) + "\0")
        (process / "fd/3").symlink_to(f"socket:[{INODE if listens else 1}]")
        return process

    add.proc = tmp_path
    return add


def row(port, state, inode):
    return f"   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 65534 0 {inode} 1"


def test_what_the_container_was_given_is_read_from_whoever_listens(pod):
    pod(
        7,
        listens=True,
        maps=OPENED,
        CUDA_MPS_PIPE_DIRECTORY="/mps/pipe",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="12.5",
        NVIDIA_VISIBLE_DEVICES="GPU-12ab-3",
    )
    pod(8, maps=UVM)  # engines compute in a process of their own
    pod(9, CUDA_MPS_PIPE_DIRECTORY="another's")

    assert observed(PORT, pod.proc) == {
        "device": "cuda",
        "device_uuid": "GPU-12ab-3",
        "mps_pipe_directory": "/mps/pipe",
        "mps_limits": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5"},
    }


def test_one_that_opens_the_gpu_and_computes_elsewhere_is_on_the_cpu(pod):
    pod(7, listens=True, maps=OPENED, NVIDIA_VISIBLE_DEVICES="void")

    assert observed(PORT, pod.proc) == {"device": "cpu", "device_uuid": "", "mps_pipe_directory": "", "mps_limits": {}}


def test_the_client_itself_and_the_process_that_holds_the_pod_are_no_server(pod):
    pod(1, listens=True, maps=UVM)
    pod(os.getpid(), listens=True, maps=UVM)

    assert observed(PORT, pod.proc) == {"device": "", "device_uuid": "", "mps_pipe_directory": None, "mps_limits": None}


def test_what_may_not_be_seen_is_not_claimed(pod, monkeypatch):
    """Another user's process: permission to read it is denied, to everybody but root."""
    hidden = pod(7, listens=True, maps=UVM)
    pod(8, NVIDIA_VISIBLE_DEVICES="GPU-1")
    read_text = servers.Path.read_text

    def denied(path, *given, **named):
        if path.parent == hidden:
            raise PermissionError(13, "Permission denied")
        return read_text(path, *given, **named)

    monkeypatch.setattr(servers.Path, "read_text", denied)
    assert observed(PORT, pod.proc) == {"device": "", "device_uuid": "", "mps_pipe_directory": None, "mps_limits": None}


def test_a_real_process_is_seen_by_its_real_port():
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    given = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe"}
    with subprocess.Popen(
        [sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given
    ) as process:
        port = int(process.stdout.readline())
        facts = SidecarServer(engine(port=port, ready={"tcp": True})).facts()
        process.communicate("end\n")

    assert (facts["server_port"], facts["mps_pipe_directory"]) == (port, "/mps/pipe")


def test_it_is_up_when_its_port_takes_connections():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # and does not listen
        waiting = SidecarServer(engine(port=server.getsockname()[1], ready={"tcp": True}))
        thread = threading.Thread(target=waiting.wait_until_up)
        assert not waiting._readiness.holds()
        thread.start()
        server.listen()
        thread.join()
