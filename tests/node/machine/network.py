"""A pid and a mount namespace per machine, a network for it and for one beside it; the host's own stays untouched.

The guest reaches one thing only: the host's loopback, as 10.0.2.2, and the mirror there by a name that is the same for
every machine of every session (MIRROR), so that one's disks serve another. It has no name server and no way out, which
is how a test shows that nothing is fetched from anywhere but the local mirrors.
"""

import json
import socket
import subprocess
import time
from pathlib import Path

from tests.node.machine.errors import MachineError
from tests.node.machine.image import ADDRESSES, GATEWAY
from tests.support.ports import free_port

# The bridge itself, of which the mirror is behind port 80.
MIRROR = "10.0.2.4"
BRIDGE = f"""\
ip link add br0 type bridge
ip link set tap0 master br0 up
ip link set br0 up
ip address add {MIRROR}/24 dev br0
ip link set lo up
"""
PORT = """\
ip tuntap add dev {tap} mode tap
ip link set {tap} master br0 up
"""
READY_WITHIN_S = 60.0


class Namespace:
    """Lives as long as this process: its first process reads a pipe from us and takes everything in it along.

    mirror_port: where on the host's loopback the mirror is. beside: the namespace whose network this one shares; it has
    to outlive this one.
    """

    def __init__(self, folder: Path, mirror_port: int, beside: "Namespace | None" = None) -> None:
        self._folder = folder
        self._network = beside or self
        self.address = ADDRESSES[0 if beside is None else 1]
        self.tap = "uml0" if beside is None else "uml1"
        make = [
            "unshare",
            *([] if beside else ["--net"]),
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child=KILL",
            "cat",
        ]
        self._holder = subprocess.Popen(
            [*(beside.inside_network() if beside else []), *make], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self._slirp: subprocess.Popen[bytes] | None = None
        self._socat: subprocess.Popen[bytes] | None = None
        self._first_pid = self._wait_for_first_process()
        if beside is None:
            self._connect()
            self._lead_to_the_mirror(mirror_port)
        self._set_up(PORT.format(tap=self.tap))
        self.ssh_port = self.forward_ssh(self.address)

    def inside_network(self) -> list[str]:
        """Prefix of a command that runs in this network, and otherwise outside."""
        return ["nsenter", "-t", str(self._first_pid), "-n"]

    def command(self, *command: str | Path) -> list[str]:
        """Prefix a command so that it runs inside, ended with the namespace."""
        enter = ["nsenter", "-t", str(self._first_pid), "-n", "-p", "-m", f"-w{self._folder}"]
        return [*enter, *map(str, command)]

    def forward_ssh(self, address: str) -> int:
        """A port of the host's loopback that leads to the ssh of this address of the machine."""
        port = free_port()
        forward = {"proto": "tcp", "host_addr": "127.0.0.1", "host_port": port, "guest_addr": address, "guest_port": 22}
        answer = _ask(self._control, {"execute": "add_hostfwd", "arguments": forward})
        if "error" in answer:
            raise MachineError(f"slirp4netns forwards no ssh port: {answer['error']}")
        return port

    def close(self) -> None:
        """End every process inside, at once."""
        self._holder.kill()
        self._holder.wait()
        if self._network is not self:
            self._unplug()
        for helper in (self._slirp, self._socat):
            if helper is not None:
                helper.wait()
        if self._holder.stdin is not None:
            self._holder.stdin.close()

    def _wait_for_first_process(self) -> int:
        outside = Path("/proc/self/ns/mnt").readlink()
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self._holder.poll() is None:
            if child := children.read_text().strip():
                inside = Path(f"/proc/{child}/ns/mnt").readlink()
                # unshare has mounted the new /proc once it executes cat
                if inside != outside and Path(f"/proc/{child}/comm").read_text().strip() == "cat":
                    return int(child)
            time.sleep(0.02)
        raise MachineError("unshare made no namespaces: run as real root, outside a restricted container")

    @property
    def _control(self) -> Path:
        """Where the network's slirp4netns is told what to do."""
        return self._network._folder / "slirp.sock"

    def _connect(self) -> None:
        """Make the network: the host's loopback at one end of a bridge."""
        control = self._control
        control.unlink(missing_ok=True)
        # Outgoing connections bound to loopback reach the host's loopback and nothing else.
        slirp = [
            *("slirp4netns", "--mtu=1500", "--disable-dns", "--outbound-addr=127.0.0.1", "--api-socket", str(control)),
            *("--netns-type=path", f"/proc/{self._first_pid}/ns/net", "tap0"),
        ]
        with (self._folder / "slirp.log").open("wb") as log:
            # Inside the pid namespace (so that it ends with it), outside the network namespace (that is its job).
            self._slirp = subprocess.Popen(
                ["nsenter", "-t", str(self._first_pid), "-p", *slirp],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_for_tap(control)
        self._set_up(BRIDGE)

    def _lead_to_the_mirror(self, port: int) -> None:
        lead = ["socat", f"TCP-LISTEN:80,bind={MIRROR},reuseaddr,fork", f"TCP:{GATEWAY}:{port}"]
        with (self._folder / "socat.log").open("wb") as log:
            self._socat = subprocess.Popen(self.command(*lead), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _unplug(self) -> None:
        """Leave a network that lives on. The forwarded port leads nowhere from now on; the next one is another."""
        subprocess.run(
            [*self._network.inside_network(), "ip", "link", "del", self.tap], capture_output=True, check=False
        )

    def _set_up(self, commands: str) -> None:
        for line in commands.splitlines():
            subprocess.run([*self._network.inside_network(), *line.split()], check=True)

    def _wait_for_tap(self, control: Path) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        show = [*self.inside_network(), "ip", "link", "show", "tap0"]
        while time.monotonic() < deadline:
            if control.exists() and subprocess.run(show, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise MachineError(f"slirp4netns is not up after {READY_WITHIN_S:.0f} s: see {self._folder}/slirp.log")


def _ask(control: Path, request: dict[str, object]) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(control))
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        answer: dict[str, object] = json.loads(connection.makefile().read())
        return answer
