"""A machine: a user-mode kernel on a copy of an image, reached by ssh as any server is."""

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

from tests.node.machine import image
from tests.node.machine.deps import Tools
from tests.node.machine.errors import MachineError
from tests.node.machine.image import Disks
from tests.node.machine.network import Namespace

MEMORY_BYTES = 2 << 30
# A boot takes 5 s; on a busy machine it once took a minute.
BOOT_WITHIN_S = 300.0
WRAPPER = Path(__file__).parent / "uml_exec.py"
_POLL_S = 0.2
_CONNECT_WITHIN_S = 15.0
_LOOK_AROUND_S = 0.5


class Machine:
    """Boots from its own copy of `disks`; `with` boots and ends it.

    mirror_port: where on the host's loopback the mirror is. name: what ssh calls it. beside: a running machine on whose
    network this one is the second.
    """

    boot_within_s = BOOT_WITHIN_S

    def __init__(
        self,
        tools: Tools,
        disks: Disks,
        folder: Path,
        mirror_port: int,
        *,
        name: str = "node",
        beside: "Machine | None" = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self._beside = beside
        self._tools = tools
        self._mirror_port = mirror_port
        self._source = disks
        self._namespace: Namespace | None = None
        self._ssh_port = 0
        self._kernel: subprocess.Popen[bytes] | None = None
        self.disks: Disks | None = None
        self.boot_duration_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH configuration in which this machine is the host of its name."""
        return self.folder / "ssh_config"

    @property
    def control_path(self) -> str:
        """Where ssh finds a connection that is open already, with ssh's own letters for user and port."""
        return str(self.folder.parent / "%r-%p")

    def start(self, *kernel_arguments: str) -> None:
        """Boot and wait for ssh; the first time, from a fresh copy of the image."""
        started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.disks is None:
            self.disks = self._source.copy_to(self.folder / "disks")
        self._namespace = Namespace(self.folder, self._mirror_port, self._beside._namespace if self._beside else None)
        self._ssh_port = self._namespace.ssh_port
        self._write_ssh_config()
        with (self.folder / "console.log").open("ab") as console:
            self._kernel = subprocess.Popen(
                self._namespace.command(*self._kernel_command(self.disks, self._namespace), *kernel_arguments),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=os.environ | {"TMPDIR": _memory_folder(), "UML_KERNEL": str(self._tools.kernel)},
            )
        self.wait_for_ssh()
        self.boot_duration_s = time.monotonic() - started

    def kill(self) -> None:
        """Pull the plug."""
        if self._namespace is not None:
            self._namespace.close()
            self._namespace = None
        if self._kernel is not None:
            self._kernel.wait()
            self._kernel = None

    def power_off(self) -> None:
        """Shut down cleanly, so that the disks can be copied."""
        self.ssh("systemctl poweroff", check=False)
        try:
            if self._kernel is not None:
                self._kernel.wait(self.boot_within_s)
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"still on after {self.boot_within_s:.0f} s: {self._console_tail()}") from error
        self.kill()

    def snapshot(self, folder: Path, *, boot_again: bool = True) -> Disks:
        """Shut down, keep a copy of the disks in a folder, boot again."""
        self.power_off()
        if self.disks is None:
            raise MachineError("a machine that never started has no disks to copy")
        kept = self.disks.copy_to(folder)
        if boot_again:
            self.start()
        return kept

    def reboot(self) -> None:
        """Reboot for real and wait until another boot answers."""
        before = self.boot_id()
        self.ssh("systemctl reboot", check=False)
        deadline = time.monotonic() + self.boot_within_s
        while time.monotonic() < deadline:
            if self._connect():
                found = self.ssh("cat /proc/sys/kernel/random/boot_id", check=False, timeout_s=15)
                if found.returncode == 0 and found.stdout.strip() != before:
                    return
            time.sleep(_POLL_S)
        raise MachineError(f"no new boot after {self.boot_within_s:.0f} s: {self._console_tail()}")

    def boot_id(self) -> str:
        """The kernel's identity of this boot."""
        return self.output("cat /proc/sys/kernel/random/boot_id")

    def ssh(self, command: str, *, check: bool = True, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root; a failing one raises MachineError with what it said, unless check is off."""
        arguments = ["ssh", "-F", str(self.ssh_config), self.name, command]
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            if check:
                raise MachineError(f"no answer within {timeout_s:.0f} s to: {command}") from error
            return subprocess.CompletedProcess(arguments, 124, "", "timed out")
        if check and done.returncode != 0:
            said = (done.stdout + done.stderr).strip()[-1500:]
            raise MachineError(f"`{command}` exited {done.returncode} on the machine: {said}")
        return done

    def drop_ssh(self, away_s: float) -> None:
        """Have the machine end every ssh connection, and take none for so many seconds; what ran in them is left to itself."""
        inside = (
            f"systemctl stop ssh.socket ssh.service; pkill -KILL '^sshd'; sleep {away_s}; systemctl start ssh.service"
        )
        self.ssh(f"systemd-run --collect --quiet sh -c {shlex.quote(inside)}", check=False)

    def output(self, command: str) -> str:
        """Standard output of a command that must succeed, stripped."""
        return self.ssh(command).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a text file on the machine, with the folders above it."""
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file on the machine, with the folders above it."""
        quoted = shlex.quote(path)
        script = f"mkdir -p $(dirname {quoted}) && cat > {quoted}"
        subprocess.run(["ssh", "-F", self.ssh_config, self.name, script], input=content, check=True, timeout=60)

    def reach_at(self, address: str) -> None:
        """Have ssh come to this address of the machine from now on."""
        assert self._namespace is not None
        self._ssh_port = self._namespace.forward_ssh(address)
        self._write_ssh_config()
        self.wait_for_ssh()

    def wait_for_ssh(self) -> None:
        """Wait until the machine answers, and keep a connection; raise with the console's end when it does not."""
        deadline = time.monotonic() + self.boot_within_s
        while time.monotonic() < deadline:
            if self._kernel is not None and self._kernel.poll() is not None:
                raise MachineError(f"the kernel ended during boot: {self._console_tail()}")
            if self._connect():
                return
            time.sleep(_POLL_S)
        raise MachineError(f"no ssh after {self.boot_within_s:.0f} s: {self._console_tail()}")

    def _connect(self) -> bool:
        """Open a connection for all commands of root, and of the user: one for each costs the machine 0.3 s every time."""
        for user in ("root", image.USER):
            # That of the boot before may not know yet that it has ended.
            Path(self.control_path.replace("%r", user).replace("%p", str(self._ssh_port))).unlink(missing_ok=True)
            command = ["ssh", "-F", str(self.ssh_config), "-M", "-N", "-f", f"{user}@{self.name}"]
            quiet = subprocess.DEVNULL
            try:
                subprocess.run(command, check=True, timeout=_CONNECT_WITHIN_S, stdin=quiet, stdout=quiet, stderr=quiet)
            except subprocess.SubprocessError:
                return False
        return True

    def _kernel_command(self, disks: Disks, namespace: Namespace) -> list[str]:
        device = f"vec0:transport=tap,ifname={namespace.tap},mac={image.mac(namespace.address)}"
        disk_arguments = [f"ubd0={disks.root}", f"ubd1={disks.swap}", "root=/dev/ubda", "rw", "rootfstype=ext4"]
        # Without the 512 terminals that nobody uses any more, for each of which udev would do something at every boot.
        console = ["con=null", "con0=null,fd:1", "pty.legacy_count=0", "quiet"]
        memory = f"mem={MEMORY_BYTES >> 20}M"
        where = [f"umid={self.folder.name}", f"uml_dir={self.folder}"]
        pinned = ["taskset", "-c", str(_idlest_cpu()), "setarch", "-R", str(WRAPPER)]
        return [*pinned, memory, *where, *disk_arguments, *console, device, "seccomp=auto"]

    def _write_ssh_config(self) -> None:
        options = {
            "HostName": "127.0.0.1",
            "Port": self._ssh_port,
            "User": "root",
            "IdentityFile": image.ssh_key(self._tools),
            "ControlPath": self.control_path,
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": 5,
            "ServerAliveInterval": 15,
        }
        lines = [f"  {name} {value}" for name, value in options.items()]
        self.ssh_config.write_text("\n".join([f"Host {self.name}", *lines]) + "\n")

    def _console_tail(self) -> str:
        console = self.folder / "console.log"
        return console.read_text(errors="replace")[-1500:] if console.exists() else "(the console said nothing)"


def _idlest_cpu() -> int:
    """The one CPU to run on: left free, the scheduler moves the machine about and a boot takes three times longer."""

    def idle_ticks() -> dict[int, int]:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines() if re.match(r"cpu\d", line)]
        return {int(row[0].removeprefix("cpu")): int(row[4]) for row in rows}

    before = idle_ticks()
    time.sleep(_LOOK_AROUND_S)
    after = idle_ticks()
    return max(sorted(os.sched_getaffinity(0), reverse=True), key=lambda cpu: after[cpu] - before[cpu])


def _memory_folder() -> str:
    """Where the kernel keeps the machine's memory: shared memory when it is large enough, else a disk."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > 2 * MEMORY_BYTES:
        return str(shared)
    return "/tmp"
